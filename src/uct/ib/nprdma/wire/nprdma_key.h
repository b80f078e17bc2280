/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_KEY_H_
#define UCT_NPRDMA_KEY_H_

#include <stddef.h>
#include <stdint.h>

/*
 * Keys of registrations: as operations use them, and as they travel between
 * processes. Pure: no memory is allocated and nothing else is touched, so that
 * the reader of packed keys can be fuzzed.
 */

#define UCT_NPRDMA_KEY_VERSION  2

/* The windows of a region, and so its keys, cover whole pages of this size
 * (ARCHITECTURE 2, page state) */
#define UCT_NPRDMA_PAGE_SIZE    4096u


/*
 * A key as the operations of the initiator use it. A remote key of 0 means that
 * the device has no such way to the memory: the target's software does the
 * operation, and its checks decide whether it is allowed at all.
 */
typedef struct uct_nprdma_rkey {
    uint64_t key;               /* nprdma_reg_key() of the target */
    uint64_t address;           /* Of the registration, first byte */
    uint64_t length;            /* Bytes */
    uint64_t region_address;    /* First byte whose state the S MR shows */
    uint64_t region_id;         /* No other region of the process ever has it */
    uint64_t signature;         /* What absent pages show when they are read */
    uint32_t r_rkey;            /* R window: RDMA READ */
    uint32_t w_rkey;            /* W window: RDMA WRITE */
    uint32_t s_rkey;            /* Page states, one word for each page */
} uct_nprdma_rkey_t;


/* A packed key */
typedef struct uct_nprdma_packed_rkey {
    uint8_t  version;           /* UCT_NPRDMA_KEY_VERSION */
    uint8_t  flags;             /* UCT_NPRDMA_KEY_FLAG_xx */
    uint16_t reserved;          /* 0 */
    uint32_t r_rkey;
    uint32_t w_rkey;
    uint32_t s_rkey;
    uint64_t key;
    uint64_t address;
    uint64_t length;
    uint64_t region_address;
    uint64_t region_id;
    uint64_t signature;
} __attribute__((packed)) uct_nprdma_packed_rkey_t;

enum {
    UCT_NPRDMA_KEY_FLAG_REGION = 1 << 0 /* The device reaches the memory */
};


/* Outcome of reading a packed key. */
typedef enum uct_nprdma_key_result {
    UCT_NPRDMA_KEY_OK,
    UCT_NPRDMA_KEY_BAD_VERSION,
    UCT_NPRDMA_KEY_BAD_FIELD
} uct_nprdma_key_result_t;


/**
 * Pack a key for peers.
 *
 * @param [in]  rkey    Key; if all three remote keys are 0, the peers are told
 *                      nothing about a region.
 * @param [out] packed  Filled.
 */
void uct_nprdma_key_pack(const uct_nprdma_rkey_t *rkey,
                         uct_nprdma_packed_rkey_t *packed);


/**
 * Read a packed key. Whatever it says can only do harm to the target, which
 * checks every key again, so this finds what can never have been packed here.
 *
 * @param [in]  data  sizeof(uct_nprdma_packed_rkey_t) bytes, of any alignment.
 * @param [out] rkey  Filled on UCT_NPRDMA_KEY_OK.
 *
 * @return UCT_NPRDMA_KEY_OK, or what is wrong with it.
 */
uct_nprdma_key_result_t
uct_nprdma_key_unpack(const void *data, uct_nprdma_rkey_t *rkey);


/**
 * Whether a range lies in a registration, as far as its key tells. A range
 * that does not goes to the target, which answers with the right error.
 *
 * @param [in] rkey     Key.
 * @param [in] address  First byte; any value.
 * @param [in] length   Bytes; any value.
 *
 * @return Nonzero if every byte is inside.
 */
static inline int uct_nprdma_key_covers(const uct_nprdma_rkey_t *rkey,
                                        uint64_t address, uint64_t length)
{
    /* No sum of two numbers that came from outside: it may wrap */
    return (address >= rkey->address) &&
           ((address - rkey->address) <= rkey->length) &&
           (length <= (rkey->length - (address - rkey->address)));
}


/** @return Order of two keys, as of memcmp(); 0 if they are the same. */
int uct_nprdma_key_compare(const uct_nprdma_rkey_t *rkey1,
                           const uct_nprdma_rkey_t *rkey2);

#endif
