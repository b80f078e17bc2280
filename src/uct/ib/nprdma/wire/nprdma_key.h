/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_KEY_H_
#define UCT_NPRDMA_KEY_H_

#include <stddef.h>
#include <stdint.h>

/* Keys of registrations. Pure, so that the parser can be fuzzed. */

#define UCT_NPRDMA_KEY_VERSION  3


/* A key, as it travels and as the operations of the initiator use it. A remote
 * key of 0 means that the device cannot reach the memory in this way. Then the
 * target's software executes the operation, and its checks decide whether the
 * operation is allowed (ARCHITECTURE 4). */
typedef struct uct_nprdma_rkey {
    uint8_t  version;           /* UCT_NPRDMA_KEY_VERSION */
    uint8_t  flags;             /* UCT_NPRDMA_KEY_FLAG_xx */
    uint16_t reserved;          /* 0 */
    uint32_t r_rkey;            /* read view: RDMA READ */
    uint32_t w_rkey;            /* write view: RDMA WRITE */
    uint32_t s_rkey;            /* Page states, one word for each page */
    uint64_t key;               /* nprdma_reg_key() of the target */
    uint64_t address;           /* First byte of the registration */
    uint64_t length;            /* Bytes */
    uint64_t region_address;    /* First byte that the S MR has a state for */
    uint64_t region_id;         /* Unique among all regions of the process,
                                 * ended ones included */
    uint64_t signature;         /* Word that an absent page reads as */
} uct_nprdma_rkey_t;

/* How the device reaches the memory, and so what the initiator has to verify.
 * Without flags it cannot reach it. */
enum {
    /* By views of a region: the initiator verifies that pages were there */
    UCT_NPRDMA_KEY_FLAG_REGION    = 1 << 0,
    /* By on-demand paging: the device waits for absent pages, and reports those
     * that cannot be had. There are no states and no signature. */
    UCT_NPRDMA_KEY_FLAG_ON_DEMAND = 1 << 1
};


/* Copy a key, of any alignment, and check it. A forged key that passes can only
 * mislead the initiator that uses it, because the target checks every request
 * again. Therefore this check finds only values that no target packs. Zero: it
 * is no key of this version. */
int uct_nprdma_key_unpack(const void *data, uct_nprdma_rkey_t *rkey);


/* Whether a range, of any values, lies in a registration according to the key.
 * The initiator sends another one to the target, which answers with the exact
 * error. */
static inline int uct_nprdma_key_covers(const uct_nprdma_rkey_t *rkey,
                                        uint64_t address, uint64_t length)
{
    /* Both numbers come from outside, and a sum of them might wrap. Therefore
     * only differences are compared. */
    return (address >= rkey->address) &&
           ((address - rkey->address) <= rkey->length) &&
           (length <= (rkey->length - (address - rkey->address)));
}


/* The device at the target repairs absent pages itself, so that nothing has to
 * be verified */
static inline int uct_nprdma_key_is_on_demand(const uct_nprdma_rkey_t *rkey)
{
    return rkey->flags & UCT_NPRDMA_KEY_FLAG_ON_DEMAND;
}

#endif
