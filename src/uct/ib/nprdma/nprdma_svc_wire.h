/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_SVC_WIRE_H_
#define UCT_NPRDMA_SVC_WIRE_H_

#include <ucs/type/status.h>

#include <stddef.h>
#include <stdint.h>

/*
 * Messages on a connection of kind SVC: requests one way, replies the other.
 * RC delivers each once and in order; sequence numbers only prove it.
 */

/* Most bytes that one request or reply carries, whatever the configuration */
#define UCT_NPRDMA_SVC_MAX_PAYLOAD  8192

/* Replies that an initiator waits for on one connection, at most */
#define UCT_NPRDMA_SVC_MAX_REPLIES  64

/* What a receive slot must hold */
#define UCT_NPRDMA_SVC_SLOT_SIZE    (UCT_NPRDMA_SVC_MAX_PAYLOAD + 64)


enum uct_nprdma_svc_type {
    UCT_NPRDMA_SVC_STORE = 0x51,    /* payload goes to memory */
    UCT_NPRDMA_SVC_FETCH,           /* memory goes into the reply */
    UCT_NPRDMA_SVC_ATOMIC,          /* operands follow */
    UCT_NPRDMA_SVC_NOP,             /* all before it is done */
    UCT_NPRDMA_SVC_FIN,             /* last message */
    UCT_NPRDMA_SVC_REPLY
};

enum {
    UCT_NPRDMA_SVC_FLAG_REPLY = 1 << 0  /* a receive is posted for the reply */
};

/* How a request ended, as it travels */
typedef enum uct_nprdma_svc_status {
    UCT_NPRDMA_SVC_OK,
    UCT_NPRDMA_SVC_ERR_KEY,         /* no live registration has this key */
    UCT_NPRDMA_SVC_ERR_RANGE,       /* not within the registration */
    UCT_NPRDMA_SVC_ERR_ACCESS,      /* the registration does not allow it */
    UCT_NPRDMA_SVC_ERR_FAULT,       /* memory is not there, or protected */
    UCT_NPRDMA_SVC_ERR_ALIGN,       /* atomic at an odd address */
    UCT_NPRDMA_SVC_STATUS_LAST
} uct_nprdma_svc_status_t;


typedef struct uct_nprdma_svc_request {
    uint8_t  type;              /* enum uct_nprdma_svc_type */
    uint8_t  flags;             /* UCT_NPRDMA_SVC_FLAG_xx */
    uint8_t  op;                /* ATOMIC: nprdma_atomic_op_t */
    uint8_t  reserved;
    uint32_t sn;                /* first request of a connection has 1 */
    uint64_t key;
    uint64_t address;
    uint32_t length;            /* of the accessed memory; ATOMIC: 4 or 8 */
    uint32_t reserved2;
} __attribute__((packed)) uct_nprdma_svc_request_t;

typedef struct uct_nprdma_svc_operands {
    uint64_t value;
    uint64_t compare;
} __attribute__((packed)) uct_nprdma_svc_operands_t;

typedef struct uct_nprdma_svc_reply {
    uint8_t  type;              /* UCT_NPRDMA_SVC_REPLY */
    uint8_t  status;            /* uct_nprdma_svc_status_t of this request */
    uint8_t  failed_status;     /* of the first failed request before it that
                                   had no reply, since the last reply */
    uint8_t  reserved;
    uint32_t sn;                /* of the request */
    uint32_t failed_sn;
    uint32_t length;            /* bytes that follow */
} __attribute__((packed)) uct_nprdma_svc_reply_t;


/**
 * Check a request as it came from the wire. Pure, so that it can be fuzzed.
 *
 * @param [in] data    Received message.
 * @param [in] length  Bytes received.
 *
 * @return The request, in place, its payload or operands right behind it, or
 *         NULL when it is malformed.
 */
const uct_nprdma_svc_request_t *
uct_nprdma_svc_request_parse(const void *data, size_t length);


/**
 * Check a reply as it came from the wire. Pure.
 *
 * @param [in] data      Received message.
 * @param [in] length    Bytes received.
 * @param [in] sn        Number of the request that it must answer.
 * @param [in] expected  Bytes that a successful reply must carry; one that
 *                       failed carries none.
 *
 * @return The reply, in place, its payload right behind it, or NULL when it is
 *         malformed.
 */
const uct_nprdma_svc_reply_t *
uct_nprdma_svc_reply_parse(const void *data, size_t length, uint32_t sn,
                           size_t expected);


/** @return The status that users get for a status on the wire. */
ucs_status_t uct_nprdma_svc_ucs_status(uint8_t status);

#endif
