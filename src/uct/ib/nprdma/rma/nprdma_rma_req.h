/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_RMA_REQ_H_
#define UCT_NPRDMA_RMA_REQ_H_

#include "nprdma_opt.h"
#include "nprdma_rma.h"
#include "nprdma_rma_large.h"
#include "nprdma_rma_watch.h"
#include "uct/ib/nprdma/net/nprdma_tx.h"
#include "uct/ib/nprdma/wire/nprdma_svc_wire.h"

#include <ucs/datastruct/list.h>
#include <ucs/datastruct/queue.h>

/*
 * Requests to the service of a peer and what is known about their replies;
 * what the operations of nprdma_rma.c are made of.
 */

typedef struct uct_nprdma_rma       uct_nprdma_rma_t;
typedef struct uct_nprdma_rma_res   uct_nprdma_rma_res_t;
typedef struct uct_nprdma_rma_wait  uct_nprdma_rma_wait_t;

/* What redo and verification have for themselves besides send queue entries:
 * waits, per endpoint and per interface, and a slot for data */
#define UCT_NPRDMA_RMA_REDO_WAITS        4u
#define UCT_NPRDMA_RMA_REDO_IFACE_WAITS  8u
#define UCT_NPRDMA_RMA_REDO_SLOTS        1u

/* Waits that endpoints have a receive posted for before they need it, besides
 * those for replies that are awaited: see nprdma_rma_wait.h */
#define UCT_NPRDMA_RMA_MAX_SPARES        32u
#define UCT_NPRDMA_RMA_NUM_WAITS \
    (UCT_NPRDMA_RMA_MAX_REPLIES + UCT_NPRDMA_RMA_MAX_SPARES)

/* Slots for replies that carry next to nothing */
#define UCT_NPRDMA_RMA_SMALL_SLOT        64


/* What a reply is awaited for: nprdma_rma_reply.c has what is done with it */
typedef enum uct_nprdma_rma_kind {
    UCT_NPRDMA_RMA_ACK,         /* Acknowledgement: only a flush tells the user
                                   of a failure */
    UCT_NPRDMA_RMA_PUT,
    UCT_NPRDMA_RMA_GET,
    UCT_NPRDMA_RMA_ATOMIC,
    UCT_NPRDMA_RMA_HELD,        /* An operation that was held */
    UCT_NPRDMA_RMA_COPY,        /* A piece of what software copies */
    UCT_NPRDMA_RMA_POPULATE,    /* A slice whose pages are populated */
    UCT_NPRDMA_RMA_KIND_LAST
} uct_nprdma_rma_kind_t;

/** @return Nonzero if an operation of opt.order answers for the request. */
static inline int uct_nprdma_rma_kind_is_ordered(uct_nprdma_rma_kind_t kind)
{
    return (kind == UCT_NPRDMA_RMA_HELD) || (kind == UCT_NPRDMA_RMA_COPY);
}

/** @return Nonzero if a slice reports the failure of the request itself. */
static inline int uct_nprdma_rma_kind_is_of_slice(uct_nprdma_rma_kind_t kind)
{
    return (kind == UCT_NPRDMA_RMA_POPULATE) || (kind == UCT_NPRDMA_RMA_COPY);
}


/* A request whose reply is awaited, or a spare; its receive is posted */
struct uct_nprdma_rma_wait {
    ucs_queue_elem_t            queue;  /* In rma->waits, or in free list;
                                           of a spare in none */
    uct_nprdma_rma_t            *rma;
    uct_nprdma_slot_t           *slot;  /* Where the reply goes */
    uint32_t                    index;
    uint32_t                    sn;
    uint32_t                    length; /* Payload of a good reply */
    uint8_t                     kind;   /* uct_nprdma_rma_kind_t */
    uint8_t                     type;   /* Of the request, */
    uint32_t                    size;   /* and what it accesses */
    uint64_t                    address;
    ucs_status_t                failed; /* Of requests before it */
    uct_completion_t            *comp;
    union {
        struct {
            uct_unpack_callback_t unpack_cb;
            void                  *arg;
        } bcopy;
        void                   *result;
        struct {
            uct_nprdma_rma_large_t *range;
            size_t                 length; /* Of the request */
        } large;
        uct_nprdma_opt_slice_t *slice;
        uct_nprdma_opt_op_t    *op;
    };
};


/* Requests that an endpoint remembers: to tell which of those without a reply
 * has failed, and what the NIC must not overtake */
#define UCT_NPRDMA_RMA_RECENT  64

typedef struct uct_nprdma_rma_recent {
    uint32_t                sn;
    uint32_t                length : 31; /* 0: accesses nothing, or an operation
                                            in opt.order answers for it */
    uint32_t                is_read : 1;
    uint64_t                address;
} uct_nprdma_rma_recent_t;


/* The RMA side of an endpoint */
struct uct_nprdma_rma {
    uct_nprdma_rma_ep_t         *ep;
    uint32_t                sn;         /* Of the last request sent */
    uint32_t                done_sn;    /* Executed up to this one */
    uint32_t                reply_sn;   /* Last one that asks for a reply */
    uint32_t                fence_sn;
    uint64_t                fence_op;   /* Last operation before the fence */
    uct_nprdma_span_t       span;       /* Of requests since all were executed;
                                           valid while some are not */
    uct_nprdma_rma_wait_t   *spare;     /* For the next reply; may be NULL */
    uint32_t                num_alone;  /* Stores that were, since a reply was
                                           too large for a spare */
    uint32_t                num_waits;  /* Without spare */
    uint32_t                num_large;  /* Of these for larges */
    uint32_t                num_slots;  /* For data to receive */
    int                     is_fenced;
    int                     is_asking;  /* The fence could not ask the target */
    int                     is_asking_held; /* What is held could not */
    int                     is_stalled; /* In res->stalled */
    int                     is_told;    /* A failed operation is in the log */
    int                     busy;       /* Callbacks are being called */
    ucs_status_t            status;     /* Failure of the connection */
    ucs_status_t            error;      /* Of a request that has nobody to
                                           report it to but a flush */
    ucs_queue_head_t        waits;      /* In the order of the replies */
    ucs_queue_head_t        flushes;
    ucs_queue_head_t        larges;     /* Not all of their requests are sent */
    uct_nprdma_opt_ep_t     opt;
    uct_nprdma_op_t         drain;      /* Of the last WR, after a failure */
    uct_nprdma_rma_failed_func_t failed; /* Told then */
    ucs_list_link_t         stalled;
    uct_nprdma_rma_recent_t recent[UCT_NPRDMA_RMA_RECENT]; /* By sn */
};


/* What the operations of an interface share; made when it is first needed */
struct uct_nprdma_rma_res {
    uct_nprdma_bounce_t     pool;       /* Data to be stored or fetched */
    uct_nprdma_bounce_t     small_pool; /* Replies without data */
    ucs_list_link_t         stalled;    /* Have something to send */
    ucs_queue_head_t        free_waits;
    unsigned                num_free_waits; /* Without those for spares */
    unsigned                num_spares;
    uct_nprdma_rma_wait_t   waits[UCT_NPRDMA_RMA_NUM_WAITS];
    uct_nprdma_opt_iface_t  opt;
    uct_nprdma_rma_watch_t  watch;
};


/** What uct_nprdma_rma_begin() does where the endpoint is not ready. */
ucs_status_t uct_nprdma_rma_begin_slow(uct_nprdma_rma_iface_t *iface,
                                       uct_nprdma_rma_ep_t *ep,
                                       uint32_t blocked);


/* No more unacknowledged requests, for sequence numbers to be comparable */
#define UCT_NPRDMA_RMA_MAX_UNACKED  UCS_BIT(30)

static inline int uct_nprdma_rma_can_count(const uct_nprdma_rma_t *rma)
{
    return (rma->sn - rma->done_sn) < UCT_NPRDMA_RMA_MAX_UNACKED;
}


/** @return Nonzero if a request may be posted on a connected endpoint. */
static inline int
uct_nprdma_rma_can_post(uct_nprdma_rma_iface_t *iface, uct_nprdma_rma_t *rma)
{
    return uct_nprdma_conn_can_post(&iface->net, &rma->ep->net.svc) &&
           uct_nprdma_rma_can_count(rma);
}


/**
 * Begin an operation: make sure that the endpoint has a connection, and that
 * one more request, or an optimistic operation, may be posted on it.
 *
 * @param [in] blocked  What refuses it: UCT_NPRDMA_EP_BLOCK_xx of it.
 *
 * @return UCS_OK; UCS_ERR_NO_RESOURCE: later; or why it cannot be done at all.
 */
static inline ucs_status_t
uct_nprdma_rma_begin(uct_nprdma_rma_iface_t *iface, uct_nprdma_rma_ep_t *ep,
                     uint32_t blocked)
{
    ucs_status_t status;

    if (ucs_unlikely((ep->net.blocked & blocked) ||
                     (ep->net.svc.state != UCT_NPRDMA_CONN_CONNECTED))) {
        status = uct_nprdma_rma_begin_slow(iface, ep, blocked);
        if (status != UCS_OK) {
            return status;
        }
    }

    if (ucs_likely(uct_nprdma_rma_can_post(iface, ep->rma))) {
        return UCS_OK;
    }

    ++iface->net.stats.no_resource;
    return UCS_ERR_NO_RESOURCE;
}


/** @return Nonzero if so many WRs may be posted that redo or verify. */
int uct_nprdma_rma_can_redo(uct_nprdma_rma_iface_t *iface,
                            uct_nprdma_rma_t *rma, int32_t count);


/** What uct_nprdma_rma_get_slot() does where slots are few. */
uct_nprdma_slot_t *uct_nprdma_rma_get_slot_slow(uct_nprdma_rma_iface_t *iface,
                                                uct_nprdma_rma_t *rma,
                                                int is_redo);


/**
 * Take a slot of a pool that endpoints share.
 *
 * @param [in] pool     &iface->res->pool or &iface->res->small_pool.
 * @param [in] held     Slots of it that the endpoint has.
 * @param [in] is_redo  Not held to the share of the endpoint.
 *
 * @return The slot, or NULL: later.
 */
uct_nprdma_slot_t *
uct_nprdma_rma_pool_get(uct_nprdma_rma_iface_t *iface, uct_nprdma_rma_t *rma,
                        uct_nprdma_bounce_t *pool, unsigned held, int is_redo);


/** Slots for data that an endpoint has */
static inline unsigned uct_nprdma_rma_held_slots(const uct_nprdma_rma_t *rma)
{
    return rma->num_slots + rma->ep->net.svc.num_slots;
}


/**
 * @param [in] is_redo  For redo or verification, which have a share.
 *
 * @return A slot for data, or NULL: later. Who receives to it counts it in
 *         rma->num_slots.
 */
static inline uct_nprdma_slot_t *
uct_nprdma_rma_get_slot(uct_nprdma_rma_iface_t *iface, uct_nprdma_rma_t *rma,
                        int is_redo)
{
    uct_nprdma_bounce_t *pool = &iface->res->pool;

    if (ucs_likely((pool->num_free > UCT_NPRDMA_RMA_REDO_SLOTS) &&
                   uct_nprdma_bounce_has_share(pool,
                                               uct_nprdma_rma_held_slots(rma),
                                               UCT_NPRDMA_RMA_REDO_SLOTS))) {
        return uct_nprdma_bounce_get(pool);
    }

    return uct_nprdma_rma_get_slot_slow(iface, rma, is_redo);
}


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
ucs_status_t uct_nprdma_rma_send(uct_nprdma_rma_iface_t *iface,
                                 uct_nprdma_rma_t *rma,
                                 uct_nprdma_svc_request_t *request,
                                 size_t length, uct_nprdma_slot_t *slot,
                                 uct_nprdma_rma_wait_t *wait);


#define UCT_NPRDMA_RMA_SN_CMP(_sn1, _op, _sn2) \
    ((int32_t)((_sn1) - (_sn2)) _op 0)


/**
 * Make sure that a reply will tell when all requests up to now are executed.
 *
 * @return UCS_OK; UCS_ERR_NO_RESOURCE: later; or UCS_ERR_IO_ERROR: the
 *         connection fails.
 */
ucs_status_t uct_nprdma_rma_ask(uct_nprdma_rma_iface_t *iface,
                                uct_nprdma_rma_t *rma);


/**
 * Reserve what it takes to send a short request: nothing where it fits inline.
 *
 * @param [in]  length   Bytes of the message.
 * @param [in]  is_redo  For redo or verification, which have a share.
 * @param [out] slot_p   For uct_nprdma_rma_send_small() or
 *                      uct_nprdma_rma_small_slot_put().
 *
 * @return Zero: later.
 */
static inline int uct_nprdma_rma_small_slot(uct_nprdma_rma_iface_t *iface,
                                            uct_nprdma_rma_t *rma,
                                            size_t length, int is_redo,
                                            uct_nprdma_slot_t **slot_p)
{
    if (ucs_likely(length <= iface->net.config.max_inline)) {
        *slot_p = NULL;
        return 1;
    }

    *slot_p = uct_nprdma_rma_get_slot(iface, rma, is_redo);
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
uct_nprdma_rma_send_small(uct_nprdma_rma_iface_t *iface, uct_nprdma_rma_t *rma,
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
void uct_nprdma_rma_stall(uct_nprdma_rma_res_t *res,
                          uct_nprdma_rma_t *rma);


/**
 * An operation has failed at the target. Many users do not look at the status
 * of each operation, so the first one of an endpoint is an error in the log.
 *
 * @param [in] name     Of the operation.
 * @param [in] address  Remote address.
 * @param [in] length   Bytes.
 * @param [in] status   What the user gets.
 */
void uct_nprdma_rma_tell(uct_nprdma_rma_iface_t *iface, uct_nprdma_rma_t *rma,
                         const char *name, uint64_t address, size_t length,
                         ucs_status_t status);


/**
 * The same for one whose buffer here could not be copied from or to.
 *
 * @param [in] is_get  Nonzero: a get.
 * @param [in] buffer  The part of it that was to be copied.
 * @param [in] length  Bytes of that.
 */
void uct_nprdma_rma_tell_local(uct_nprdma_rma_iface_t *iface,
                               uct_nprdma_rma_t *rma, int is_get,
                               const void *buffer, size_t length);


/**
 * Tell of what has failed according to a reply: its own request, and the first
 * one before it that has no reply. Slices tell of themselves.
 *
 * @param [in] wait       For the reply; wait->failed of the request before it.
 * @param [in] failed_sn  Number of that request.
 * @param [in] status     How the request of the reply has ended.
 */
void uct_nprdma_rma_tell_reply(uct_nprdma_rma_iface_t *iface,
                               uct_nprdma_rma_t *rma,
                               const uct_nprdma_rma_wait_t *wait,
                               uint32_t failed_sn, ucs_status_t status);


/**
 * @return Nonzero if uct_nprdma_rma_progress() has something to look at. There
 *         is an RMA side.
 */
static inline int uct_nprdma_rma_has_work(const uct_nprdma_rma_iface_t *iface)
{
    uct_nprdma_rma_res_t *res = iface->res;

    return (res->num_free_waits < UCT_NPRDMA_RMA_MAX_REPLIES) ||
           !ucs_list_is_empty(&res->stalled);
}


/** Keep the RMA side of an endpoint while callbacks of the user are called. */
static inline void uct_nprdma_rma_enter(uct_nprdma_rma_t *rma)
{
    ++rma->busy;
}

/** The endpoint is gone, and nobody keeps its RMA side. */
void uct_nprdma_rma_free(uct_nprdma_rma_t *rma);

/** Undo uct_nprdma_rma_enter(); the RMA side may be gone afterwards. */
static inline void uct_nprdma_rma_leave(uct_nprdma_rma_t *rma)
{
    if ((--rma->busy == 0) && ucs_unlikely(rma->ep == NULL)) {
        uct_nprdma_rma_free(rma);
    }
}


/** What uct_nprdma_rma_check() does where somebody may wait. */
void uct_nprdma_rma_check_slow(uct_nprdma_rma_iface_t *iface,
                               uct_nprdma_rma_t *rma);

/**
 * Something that flushes and fences may wait for is done: tell those that wait
 * for no more.
 */
static inline void
uct_nprdma_rma_check(uct_nprdma_rma_iface_t *iface, uct_nprdma_rma_t *rma)
{
    if (ucs_likely((rma->ep != NULL) && !rma->is_fenced &&
                   ucs_queue_is_empty(&rma->flushes))) {
        uct_nprdma_net_ep_schedule(&iface->net, &rma->ep->net);
    } else {
        uct_nprdma_rma_check_slow(iface, rma);
    }
}

#endif
