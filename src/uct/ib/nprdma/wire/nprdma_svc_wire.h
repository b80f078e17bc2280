/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_SVC_WIRE_H_
#define UCT_NPRDMA_SVC_WIRE_H_

#include <nprdma_uapi.h>

#include <ucs/type/status.h>

#include <stddef.h>
#include <stdint.h>

/* Messages on a connection of kind SVC. Requests travel from the initiator to
 * the target, replies back. RC delivers each message once and in order; the
 * sequence numbers only verify that. */

/* Longest operation in bytes that is one request and one reply */
#define UCT_NPRDMA_SVC_MAX_PAYLOAD  8192

/* Longest payload in bytes of a STORE or FETCH. A longer operation that has to
 * be copied is cut into pieces of this size. It is twice as fast as with pieces
 * of 8 KiB; pieces of 64 KiB gain too little for the size of their buffers. */
#define UCT_NPRDMA_SVC_MAX_PIECE    32768

/* The same where little memory may be pinned: four slots fill a page. All
 * processes of a job have the same length. */
#define UCT_NPRDMA_SVC_SHORT_PIECE  960

/* Maximum number of replies that an initiator waits for on one connection */
#define UCT_NPRDMA_SVC_MAX_REPLIES  64

/* Size in bytes of a slot: the longest payload, and what precedes it */
#define UCT_NPRDMA_SVC_SLOT(_piece) ((_piece) + 64)


enum uct_nprdma_svc_type {
    UCT_NPRDMA_SVC_STORE = 0x51,    /* writes the payload to memory */
    UCT_NPRDMA_SVC_FETCH,           /* returns memory in the reply */
    UCT_NPRDMA_SVC_ATOMIC,          /* operands follow */
    UCT_NPRDMA_SVC_NOP,             /* completes after all earlier requests */
    UCT_NPRDMA_SVC_FIN,             /* last message of the connection */
    UCT_NPRDMA_SVC_REPLY,
    UCT_NPRDMA_SVC_POPULATE         /* points views at pages */
};

enum {
    /* The sender has a receive for the reply */
    UCT_NPRDMA_SVC_FLAG_REPLY = 1 << 0
};

enum {
    /* Op of a POPULATE: for writing, else for reading */
    UCT_NPRDMA_SVC_POPULATE_WRITE = 1 << 0,
    /* Op of a FETCH: also populate its pages for reading, after the reply;
     * errors of that are not reported */
    UCT_NPRDMA_SVC_FETCH_POPULATE = 1 << 0
};

/* Result of a request, as replies carry it */
typedef enum uct_nprdma_svc_status {
    UCT_NPRDMA_SVC_OK,
    UCT_NPRDMA_SVC_ERR_KEY,         /* no live registration has this key */
    UCT_NPRDMA_SVC_ERR_RANGE,       /* range leaves the registration */
    UCT_NPRDMA_SVC_ERR_ACCESS,      /* the registration does not allow it */
    UCT_NPRDMA_SVC_ERR_FAULT,       /* memory is unmapped or protected */
    UCT_NPRDMA_SVC_ERR_ALIGN,       /* unaligned address of an atomic */
    UCT_NPRDMA_SVC_ERR_VIEW,      /* the NIC cannot reach the memory */
    UCT_NPRDMA_SVC_STATUS_LAST
} uct_nprdma_svc_status_t;


typedef struct uct_nprdma_svc_request {
    uint8_t  type;              /* enum uct_nprdma_svc_type */
    uint8_t  flags;             /* UCT_NPRDMA_SVC_FLAG_xx */
    /* ATOMIC: nprdma_atomic_op_t; POPULATE, FETCH: flags, UCT_NPRDMA_SVC_xx */
    uint8_t  op;
    uint8_t  reserved;
    uint32_t sn;                /* the first request has 1 */
    uint64_t key;
    uint64_t address;
    uint32_t length;            /* bytes of accessed memory; ATOMIC: 4 or 8 */
    /* POPULATE: bytes behind the range, see uct_nprdma_svc_populated_t */
    uint32_t prefetch;
} __attribute__((packed)) uct_nprdma_svc_request_t;

typedef struct uct_nprdma_svc_operands {
    uint64_t value;
    uint64_t compare;
} __attribute__((packed)) uct_nprdma_svc_operands_t;

/* A POPULATE makes the target bring in the pages of [address, address + length)
 * and point the read view, or both views, at them (ARCHITECTURE 3, state
 * order). The initiator waits for the reply. Therefore the target answers after
 * a short time with what is populated by then, and goes on in the background.
 * The background work includes the `prefetch` bytes behind the range. They are
 * a hint: their errors are not reported. All of length + prefetch must lie in
 * the registration. */
typedef struct uct_nprdma_svc_populated {
    uint32_t length;            /* Populated bytes from the start of the range.
                                 * If they are fewer than requested, the
                                 * initiator uses them and requests the rest
                                 * again. 0 while the memory is being
                                 * unmapped */
    uint32_t states[];          /* States of the first pages of the range, see
                                 * uct_nprdma_svc_num_states(). Loaded after
                                 * populate and before the reply is sent. 0
                                 * behind `length` */
} uct_nprdma_svc_populated_t;

typedef struct uct_nprdma_svc_reply {
    uint8_t  type;              /* UCT_NPRDMA_SVC_REPLY */
    uint8_t  status;            /* uct_nprdma_svc_status_t of this request */
    /* Of the first request that failed without a reply of its own since the
     * last reply */
    uint8_t  failed_status;
    uint8_t  reserved;
    uint32_t sn;                /* of the request */
    uint32_t failed_sn;
    uint32_t length;            /* bytes of payload that follow */
} __attribute__((packed)) uct_nprdma_svc_reply_t;


/* Maximum number of states in the reply to a POPULATE */
#define UCT_NPRDMA_SVC_MAX_STATES \
    ((UCT_NPRDMA_SVC_MAX_PAYLOAD - sizeof(uct_nprdma_svc_populated_t)) / \
     sizeof(uint32_t))


/* Page states in the reply to a POPULATE of a range that is not empty and does
 * not wrap */
static inline unsigned
uct_nprdma_svc_num_states(uint64_t address, uint32_t length)
{
    uint64_t first = address / NPRDMA_PAGE_SIZE;
    uint64_t last  = (address + length - 1) / NPRDMA_PAGE_SIZE;
    uint64_t count = last - first + 1;

    return (count < UCT_NPRDMA_SVC_MAX_STATES) ? (unsigned)count :
           (unsigned)UCT_NPRDMA_SVC_MAX_STATES;
}

static inline uint32_t
uct_nprdma_svc_populated_length(uint64_t address, uint32_t length)
{
    return sizeof(uct_nprdma_svc_populated_t) +
           (uct_nprdma_svc_num_states(address, length) * sizeof(uint32_t));
}


/* Payload of a successful reply */
enum {
    UCT_NPRDMA_SVC_REPLY_NONE,      /* nothing */
    UCT_NPRDMA_SVC_REPLY_DATA,      /* the accessed bytes */
    UCT_NPRDMA_SVC_REPLY_STATES     /* uct_nprdma_svc_populated_t */
};

/* Properties of a type of request */
typedef struct uct_nprdma_svc_type_info {
    const char *name;               /* of the operation, for messages */
    uint8_t    reply;               /* UCT_NPRDMA_SVC_REPLY_xx */
} uct_nprdma_svc_type_info_t;

extern const uct_nprdma_svc_type_info_t uct_nprdma_svc_types[];

/* Of a valid type */
static inline const uct_nprdma_svc_type_info_t *
uct_nprdma_svc_type_info(uint8_t type)
{
    return &uct_nprdma_svc_types[type - UCT_NPRDMA_SVC_STORE];
}

/* Payload of a successful reply */
static inline uint32_t
uct_nprdma_svc_reply_length(const uct_nprdma_svc_request_t *request)
{
    switch (uct_nprdma_svc_type_info(request->type)->reply) {
    case UCT_NPRDMA_SVC_REPLY_DATA:
        return request->length;
    case UCT_NPRDMA_SVC_REPLY_STATES:
        return uct_nprdma_svc_populated_length(request->address,
                                               request->length);
    default:
        return 0;
    }
}


/* Check a received reply to a request of this type and number. Pure. `expected`
 * is the payload if it is successful; a failed reply has none, and a NOP cannot
 * fail. Returns it in place, with its payload directly behind it; NULL if it is
 * malformed. */
const uct_nprdma_svc_reply_t *
uct_nprdma_svc_reply_parse(const void *data, size_t length, uint8_t type,
                           uint32_t sn, size_t expected);


/* Check the payload of a successful reply to a POPULATE of `length` bytes,
 * after uct_nprdma_svc_reply_parse(). NULL if it claims more. */
const uct_nprdma_svc_populated_t *
uct_nprdma_svc_populated_parse(const void *data, uint32_t length);


/* UCS_ERR_IO_ERROR for an unknown status */
ucs_status_t uct_nprdma_svc_ucs_status(uint8_t status);

#endif
