/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_RMA_REQ_H_
#define UCT_NPRDMA_RMA_REQ_H_

#include "nprdma_rma.h"
#include "nprdma_svc_wire.h"

#include <ucs/datastruct/list.h>
#include <ucs/datastruct/queue.h>

/*
 * Requests to the service of a peer and what is known about their replies;
 * what the operations of nprdma_rma.c are made of.
 */

/* Put and get operations that need more than one request, per interface */
#define UCT_NPRDMA_RMA_MAX_LARGE   128

/* Buffers of one zero-copy operation */
#define UCT_NPRDMA_RMA_MAX_IOV     4

typedef struct uct_nprdma_rma       uct_nprdma_rma_t;
typedef struct uct_nprdma_rma_iface uct_nprdma_rma_iface_t;
typedef struct uct_nprdma_rma_wait  uct_nprdma_rma_wait_t;
typedef struct uct_nprdma_rma_large uct_nprdma_rma_large_t;


/**
 * Consume a reply: take the data, and note for whom to call back. It must not
 * call the user's completion itself, but return it.
 *
 * @param [in] wait    Whose reply it is.
 * @param [in] data    Payload, wait->length bytes; NULL if status is an error.
 * @param [in] status  How the request ended; wait->failed tells whether an
 *                     earlier request without reply has failed.
 *
 * @return Completion to be called, or NULL; its status is status unless
 *         changed through @a status.
 */
typedef uct_completion_t *
(*uct_nprdma_rma_reply_func_t)(uct_nprdma_rma_iface_t *riface,
                               uct_nprdma_rma_wait_t *wait, const void *data,
                               ucs_status_t *status);


/* A request whose reply is awaited; its receive is posted */
struct uct_nprdma_rma_wait {
    ucs_queue_elem_t            queue;  /* In rma->waits, or in free list */
    uct_nprdma_rma_t            *rma;
    uct_nprdma_slot_t           *slot;  /* Where the reply goes */
    uct_nprdma_rma_reply_func_t func;
    uint32_t                    index;
    uint32_t                    sn;
    uint32_t                    length; /* Payload of a good reply */
    ucs_status_t                failed; /* Of requests before it */
    uct_completion_t            *comp;
    union {
        struct {
            uct_unpack_callback_t unpack_cb;
            void                  *arg;
        } bcopy;
        void                    *result;
        uct_nprdma_rma_large_t  *large;
    };
};


/* A position in the buffers of an operation */
typedef struct uct_nprdma_rma_cursor {
    size_t iov;
    size_t offset;
} uct_nprdma_rma_cursor_t;

/* A zero-copy operation, done by as many requests as it takes */
struct uct_nprdma_rma_large {
    uct_nprdma_rma_large_t  *next;      /* Free list */
    uct_completion_t        *comp;
    uint64_t                address;    /* Remote */
    uint64_t                key;
    size_t                  length;
    size_t                  requested;  /* Bytes for which requests are sent */
    size_t                  arrived;    /* Get: bytes that have come */
    ucs_status_t            status;     /* First error */
    int                     is_get;
    size_t                  iovcnt;
    uct_nprdma_rma_cursor_t cursor;     /* Next byte to send or to receive */
    struct {
        void                *buffer;
        size_t              length;
    } iov[UCT_NPRDMA_RMA_MAX_IOV];
};


/* The RMA side of an endpoint */
struct uct_nprdma_rma {
    uct_nprdma_ep_t         *ep;
    uint32_t                sn;         /* Of the last request sent */
    uint32_t                done_sn;    /* Executed up to this one */
    uint32_t                reply_sn;   /* Last one that asks for a reply */
    uint32_t                fence_sn;
    uint32_t                num_waits;
    int                     is_fenced;
    int                     is_stalled; /* In riface->stalled */
    int                     busy;       /* Callbacks are being called */
    ucs_status_t            status;     /* Failure of the connection */
    ucs_status_t            error;      /* Of a request that has nobody to
                                           report it to but a flush */
    ucs_queue_head_t        waits;      /* In the order of the replies */
    ucs_queue_head_t        flushes;
    uct_nprdma_rma_large_t  *large;     /* Not all of its requests are sent */
    ucs_list_link_t         stalled;
};


/* The RMA side of an interface */
struct uct_nprdma_rma_iface {
    uct_nprdma_bounce_t     pool;       /* Data to be stored or fetched */
    uct_nprdma_bounce_t     small_pool; /* Replies without data */
    ucs_list_link_t         stalled;    /* Have something to send */
    ucs_queue_head_t        free_waits;
    uct_nprdma_rma_large_t  *free_larges;
    uct_nprdma_rma_wait_t   waits[UCT_NPRDMA_RMA_MAX_REPLIES];
    uct_nprdma_rma_large_t  larges[UCT_NPRDMA_RMA_MAX_LARGE];
};


/**
 * Begin an operation: make sure that the endpoint has a connection, and that
 * one more request may be posted on it.
 *
 * @return UCS_OK; UCS_ERR_NO_RESOURCE: later; or why it cannot be done at all.
 */
ucs_status_t uct_nprdma_rma_begin(uct_nprdma_iface_t *iface,
                                  uct_nprdma_ep_t *ep);


/** @return Nonzero if a request may be posted on a connected endpoint. */
int uct_nprdma_rma_can_post(uct_nprdma_iface_t *iface, uct_nprdma_rma_t *rma);


/** @return A slot for data, or NULL: later. */
uct_nprdma_slot_t *uct_nprdma_rma_get_slot(uct_nprdma_iface_t *iface);


/**
 * Post a receive for a reply. Must be followed by sending the request.
 *
 * @param [in] length  Payload of the reply if all goes well.
 * @param [in] func    Called with the reply.
 *
 * @return The wait, for the caller to fill in what func needs, or NULL: later.
 */
uct_nprdma_rma_wait_t *
uct_nprdma_rma_wait_add(uct_nprdma_iface_t *iface, uct_nprdma_rma_t *rma,
                        uint32_t length, uct_nprdma_rma_reply_func_t func);


/** Fill the header of a request; sn and flags are filled when it is sent. */
static inline void
uct_nprdma_rma_fill_request(uct_nprdma_svc_request_t *request, uint8_t type,
                            uint64_t address, uint64_t key, uint32_t length)
{
    request->type     = type;
    request->flags    = 0;
    request->op       = 0;
    request->reserved = 0;
    request->key      = key;
    request->address  = address;
    request->length   = length;
    request->ahead    = 0;
}


/**
 * Send a request. uct_nprdma_rma_can_post() is true.
 *
 * @param [in] request  Header, in the slot if there is one.
 * @param [in] length   Bytes of the message.
 * @param [in] slot     Slot that holds it, given back when it has left; NULL
 *                      if it fits inline.
 * @param [in] wait     For its reply, or NULL.
 *
 * @return UCS_OK or UCS_ERR_IO_ERROR: nothing is left of it.
 */
ucs_status_t uct_nprdma_rma_send(uct_nprdma_iface_t *iface,
                                 uct_nprdma_rma_t *rma,
                                 uct_nprdma_svc_request_t *request,
                                 size_t length, uct_nprdma_slot_t *slot,
                                 uct_nprdma_rma_wait_t *wait);


/**
 * Reserve what it takes to send a short request: nothing where it fits inline.
 *
 * @param [in]  length  Bytes of the message.
 * @param [out] slot_p  For uct_nprdma_rma_send_small() or
 *                      uct_nprdma_rma_small_slot_put().
 *
 * @return Zero: later.
 */
static inline int uct_nprdma_rma_small_slot(uct_nprdma_iface_t *iface,
                                            size_t length,
                                            uct_nprdma_slot_t **slot_p)
{
    if (ucs_likely(length <= iface->config.max_inline)) {
        *slot_p = NULL;
        return 1;
    }

    *slot_p = uct_nprdma_rma_get_slot(iface);
    return *slot_p != NULL;
}

static inline void uct_nprdma_rma_small_slot_put(uct_nprdma_slot_t *slot)
{
    if (ucs_unlikely(slot != NULL)) {
        uct_nprdma_bounce_put(slot);
    }
}

/** As uct_nprdma_rma_send(), of a request that is not in the slot yet. */
static inline ucs_status_t
uct_nprdma_rma_send_small(uct_nprdma_iface_t *iface, uct_nprdma_rma_t *rma,
                          uct_nprdma_svc_request_t *request, size_t length,
                          uct_nprdma_slot_t *slot, uct_nprdma_rma_wait_t *wait)
{
    if (ucs_unlikely(slot != NULL)) {
        memcpy(slot->data, request, length);
        request = (uct_nprdma_svc_request_t*)slot->data;
    }
    return uct_nprdma_rma_send(iface, rma, request, length, slot, wait);
}


/** Let progress go on with an endpoint that could not send all it has to. */
void uct_nprdma_rma_stall(uct_nprdma_rma_iface_t *riface,
                          uct_nprdma_rma_t *rma);


/* ---- nprdma_rma_large.c ---- */

/**
 * Start a zero-copy operation.
 *
 * @return UCS_INPROGRESS, UCS_OK for nothing to do, UCS_ERR_NO_RESOURCE, or
 *         another error.
 */
ucs_status_t
uct_nprdma_rma_large_start(uct_nprdma_iface_t *iface, uct_nprdma_ep_t *ep,
                           int is_get, const uct_iov_t *iov, size_t iovcnt,
                           uint64_t remote_addr, uct_rkey_t rkey,
                           uct_completion_t *comp);


/**
 * Send requests of rma->large for as long as there are resources.
 *
 * @return Number of requests sent.
 */
unsigned uct_nprdma_rma_large_send(uct_nprdma_iface_t *iface,
                                   uct_nprdma_rma_t *rma);


/**
 * Give up rma->large, some of whose requests were never sent.
 *
 * @return Its completion if no reply is awaited for it any more.
 */
uct_completion_t *
uct_nprdma_rma_large_abort(uct_nprdma_rma_iface_t *riface,
                           uct_nprdma_rma_t *rma);

#endif
