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

/* Most bytes of an operation that is one request and one reply */
#define UCT_NPRDMA_SVC_MAX_PAYLOAD  8192

/* Most bytes that a STORE or a FETCH carries: pieces of what is too large for
 * one, and has to be copied. Twice as fast as with pieces of 8 KiB; 64 KiB are
 * not worth their buffers. */
#define UCT_NPRDMA_SVC_MAX_PIECE    32768

/* Replies that an initiator waits for on one connection, at most */
#define UCT_NPRDMA_SVC_MAX_REPLIES  64

/* What a page state tells of, whatever pages the CPU has */
#define UCT_NPRDMA_SVC_PAGE_SIZE    4096

/* What a receive slot must hold */
#define UCT_NPRDMA_SVC_SLOT_SIZE    (UCT_NPRDMA_SVC_MAX_PIECE + 64)


enum uct_nprdma_svc_type {
    UCT_NPRDMA_SVC_STORE = 0x51,    /* payload goes to memory */
    UCT_NPRDMA_SVC_FETCH,           /* memory goes into the reply */
    UCT_NPRDMA_SVC_ATOMIC,          /* operands follow */
    UCT_NPRDMA_SVC_NOP,             /* all before it is done */
    UCT_NPRDMA_SVC_FIN,             /* last message */
    UCT_NPRDMA_SVC_REPLY,
    UCT_NPRDMA_SVC_POPULATE         /* pages go into their windows */
};

enum {
    UCT_NPRDMA_SVC_FLAG_REPLY = 1 << 0  /* a receive is posted for the reply */
};

enum {
    UCT_NPRDMA_SVC_POPULATE_WRITE = 1 << 0, /* op of a POPULATE: for writing,
                                               else for reading */
    UCT_NPRDMA_SVC_FETCH_POPULATE = 1 << 0  /* op of a FETCH: its pages are
                                               populated for reading after the
                                               reply; nothing tells of that */
};

/* How a request ended, as it travels */
typedef enum uct_nprdma_svc_status {
    UCT_NPRDMA_SVC_OK,
    UCT_NPRDMA_SVC_ERR_KEY,         /* no live registration has this key */
    UCT_NPRDMA_SVC_ERR_RANGE,       /* not within the registration */
    UCT_NPRDMA_SVC_ERR_ACCESS,      /* the registration does not allow it */
    UCT_NPRDMA_SVC_ERR_FAULT,       /* memory is not there, or protected */
    UCT_NPRDMA_SVC_ERR_ALIGN,       /* atomic at an odd address */
    UCT_NPRDMA_SVC_ERR_WINDOW,      /* the NIC has no way to the memory */
    UCT_NPRDMA_SVC_STATUS_LAST
} uct_nprdma_svc_status_t;


typedef struct uct_nprdma_svc_request {
    uint8_t  type;              /* enum uct_nprdma_svc_type */
    uint8_t  flags;             /* UCT_NPRDMA_SVC_FLAG_xx */
    uint8_t  op;                /* ATOMIC: nprdma_atomic_op_t; POPULATE,
                                   FETCH: flags, UCT_NPRDMA_SVC_xx */
    uint8_t  reserved;
    uint32_t sn;                /* first request of a connection has 1 */
    uint64_t key;
    uint64_t address;
    uint32_t length;            /* of the accessed memory; ATOMIC: 4 or 8 */
    uint32_t ahead;             /* POPULATE: bytes behind it, see there */
} __attribute__((packed)) uct_nprdma_svc_request_t;

typedef struct uct_nprdma_svc_operands {
    uint64_t value;
    uint64_t compare;
} __attribute__((packed)) uct_nprdma_svc_operands_t;

/*
 * A POPULATE makes the target bring in the pages of [address, address + length)
 * and point the R window at them, or both windows, as ARCHITECTURE 3 says under
 * "state order". The initiator waits for that, so the target answers after a
 * short time with what it has done by then, and goes on in the background, also
 * with the `ahead` bytes behind the range, which are a hint: nothing tells of
 * their errors. All of length + ahead must lie in the registration.
 */
typedef struct uct_nprdma_svc_populated {
    uint32_t length;            /* Bytes of the range, from its begin, whose
                                   pages are there; fewer than asked for: do
                                   what can be done, ask for the rest again. 0
                                   if the memory is just being unmapped */
    uint32_t states[];          /* of the first pages of the range, see
                                   uct_nprdma_svc_num_states(); after populate,
                                   before the reply was sent. 0 behind what
                                   `length` says */
} uct_nprdma_svc_populated_t;

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


/* States that the reply to a POPULATE carries, at most */
#define UCT_NPRDMA_SVC_MAX_STATES \
    ((UCT_NPRDMA_SVC_MAX_PAYLOAD - sizeof(uct_nprdma_svc_populated_t)) / \
     sizeof(uint32_t))


/** @return Page states in the reply to a POPULATE of a range that is not empty
 *          and does not wrap. */
static inline unsigned
uct_nprdma_svc_num_states(uint64_t address, uint32_t length)
{
    uint64_t first = address / UCT_NPRDMA_SVC_PAGE_SIZE;
    uint64_t last  = (address + length - 1) / UCT_NPRDMA_SVC_PAGE_SIZE;
    uint64_t count = last - first + 1;

    return (count < UCT_NPRDMA_SVC_MAX_STATES) ? (unsigned)count :
           (unsigned)UCT_NPRDMA_SVC_MAX_STATES;
}

/** @return Payload of a successful reply to a POPULATE, bytes. */
static inline uint32_t
uct_nprdma_svc_populated_length(uint64_t address, uint32_t length)
{
    return sizeof(uct_nprdma_svc_populated_t) +
           (uct_nprdma_svc_num_states(address, length) * sizeof(uint32_t));
}


/* What a successful reply carries */
enum {
    UCT_NPRDMA_SVC_REPLY_NONE,      /* nothing */
    UCT_NPRDMA_SVC_REPLY_DATA,      /* as many bytes as are accessed */
    UCT_NPRDMA_SVC_REPLY_STATES     /* uct_nprdma_svc_populated_t */
};

/* What is known of requests by their type */
typedef struct uct_nprdma_svc_type_info {
    const char *name;               /* of the operation, for messages */
    uint8_t    reply;               /* UCT_NPRDMA_SVC_REPLY_xx */
} uct_nprdma_svc_type_info_t;

extern const uct_nprdma_svc_type_info_t uct_nprdma_svc_types[];

/** @return What is known of a type that a request can have. */
static inline const uct_nprdma_svc_type_info_t *
uct_nprdma_svc_type_info(uint8_t type)
{
    return &uct_nprdma_svc_types[type - UCT_NPRDMA_SVC_STORE];
}

/** @return Payload of a successful reply to a request, bytes. */
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
 * @param [in] type      Type of the request that it must answer; nothing can
 *                       fail of a NOP.
 * @param [in] sn        Number of that request.
 * @param [in] expected  Bytes that a successful reply must carry; one that
 *                       failed carries none.
 *
 * @return The reply, in place, its payload right behind it, or NULL when it is
 *         malformed.
 */
const uct_nprdma_svc_reply_t *
uct_nprdma_svc_reply_parse(const void *data, size_t length, uint8_t type,
                           uint32_t sn, size_t expected);


/**
 * Check the payload of a successful reply to a POPULATE.
 *
 * @param [in] data    Payload that uct_nprdma_svc_reply_parse() has found to
 *                     have uct_nprdma_svc_populated_length() bytes.
 * @param [in] length  Length of the range in the request.
 *
 * @return The payload, in place, or NULL when it is malformed.
 */
const uct_nprdma_svc_populated_t *
uct_nprdma_svc_populated_parse(const void *data, uint32_t length);


/** @return The status that users get for a status on the wire. */
ucs_status_t uct_nprdma_svc_ucs_status(uint8_t status);

#endif
