/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_OPT_H_
#define UCT_NPRDMA_OPT_H_

#include "nprdma_order.h"
#include "nprdma_rma_large.h"
#include "nprdma_state_cache.h"
#include "uct/ib/nprdma/mem/nprdma_mem.h"
#include "uct/ib/nprdma/net/nprdma_bounce.h"
#include "uct/ib/nprdma/wire/nprdma_svc_wire.h"

#include <ucs/datastruct/list.h>
#include <ucs/datastruct/queue.h>

/*
 * Optimistic operations: get and large put, done by the NIC in pages that
 * software hopes to be there, and verified (ARCHITECTURE 3). An operation is
 * done in slices. A slice is tried until it is verified, or until it has been
 * tried often enough: then software copies it.
 *
 * nprdma_opt.c has the operations, nprdma_opt_slice.c the life of a slice.
 */

/* Operations that are not complete, per interface */
#define UCT_NPRDMA_OPT_MAX_OPS     128

/* Slices on their way: per interface, and of one operation */
#define UCT_NPRDMA_OPT_MAX_SLICES  64
#define UCT_NPRDMA_OPT_WINDOW      16

/* Buffers of one zero-copy operation */
#define UCT_NPRDMA_OPT_MAX_IOV     4

/* Pages that a slice may touch there: one that begins within a page has the
 * rest of that and whole pages. They need not lie that way here. */
#define UCT_NPRDMA_OPT_SLICE_PAGES(_slice) \
    (((_slice) / UCT_NPRDMA_PAGE_SIZE) + 1)
#define UCT_NPRDMA_OPT_MAX_PAGES \
    (UCT_NPRDMA_OPT_SLICE_PAGES(UCT_NPRDMA_MAX_SLICE) + 1)

struct uct_nprdma_rma;
struct uct_nprdma_rma_res;
struct uct_nprdma_rma_wait;

typedef struct uct_nprdma_opt_op    uct_nprdma_opt_op_t;
typedef struct uct_nprdma_opt_slice uct_nprdma_opt_slice_t;


/* A buffer of an operation */
typedef struct uct_nprdma_opt_piece {
    char           *buffer;
    size_t         length;
    nprdma_range_t *range;      /* Live registration of it; NULL: pinned */
    uint32_t       lkey;
    int            is_own;      /* range is own, made for the operation */
    nprdma_range_t own;
} uct_nprdma_opt_piece_t;


/* A request that has been held, with the operands of an atomic */
typedef struct uct_nprdma_held_message {
    uct_nprdma_svc_request_t  request;
    uct_nprdma_svc_operands_t operands;
} UCS_S_PACKED uct_nprdma_held_message_t;


struct uct_nprdma_opt_op {
    uct_nprdma_order_op_t   order;      /* In opt_ep.order */
    ucs_list_link_t         list;       /* Free */
    struct uct_nprdma_rma   *rma;
    uct_completion_t        *comp;
    ucs_status_t            status;     /* First error */
    uint8_t                 is_request; /* To the target's software, which had
                                           to be held: see nprdma_held.h */
    uint8_t                 is_get;
    uint8_t                 by_nic;     /* Else software copies it all */
    uint8_t                 is_ahead;   /* Populate ahead has been asked for */
    uint8_t                 is_whole;   /* Is its only slice: has a right to
                                           one, but none yet */
    uct_nprdma_op_t         wr;         /* Of the READ, then */
    uct_nprdma_slot_t       *slot;      /* Small get: where the data goes, */
    uct_unpack_callback_t   unpack_cb;  /* and what takes it; NULL: arg is
                                           the buffer. Small put that is held:
                                           the message */
    void                    *arg;       /* Atomic: where the old value goes */
    size_t                  slot_length;
    uint64_t                address;    /* Remote: of the first byte without a
                                           slice, */
    size_t                  length;     /* and how many have none */
    uct_nprdma_rkey_t       rkey;       /* The user may release his */
    unsigned                num_slices;
    unsigned                num_pieces;
    ucs_list_link_t         slices;
    ucs_list_link_t         unsliced;   /* In opt_ep.unsliced if length > 0 */
    unsigned                piece;      /* Place of the first byte without a */
    size_t                  offset;     /* slice, and in that piece */
    uct_nprdma_held_message_t message;  /* Of a request */
    uct_nprdma_opt_piece_t  pieces[UCT_NPRDMA_OPT_MAX_IOV];
};


/* What a slice does next */
typedef enum uct_nprdma_opt_step {
    UCT_NPRDMA_OPT_TRY,         /* Begin a try: look at the local pages */
    UCT_NPRDMA_OPT_BEFORE,      /* READ the states of the remote pages */
    UCT_NPRDMA_OPT_DATA,        /* READ or WRITE the data */
    UCT_NPRDMA_OPT_AFTER,       /* READ the states again */
    UCT_NPRDMA_OPT_FETCH,       /* Have the target send a small slice */
    UCT_NPRDMA_OPT_POPULATE,    /* Have the target bring the pages in */
    UCT_NPRDMA_OPT_COPY,        /* Give up: software copies */
    UCT_NPRDMA_OPT_LAST
} uct_nprdma_opt_step_t;


struct uct_nprdma_opt_slice {
    uct_nprdma_op_t         wr;         /* Of the WR whose end is awaited */
    ucs_queue_elem_t        queue;      /* Free, or in opt_ep.todo */
    ucs_list_link_t         list;       /* In op->slices */
    uct_nprdma_opt_op_t     *op;
    uint8_t                 step;       /* uct_nprdma_opt_step_t */
    uint8_t                 by_states;  /* Else the data is scanned */
    uint8_t                 is_known;   /* before[] is from before this try */
    uint8_t                 is_suspect; /* A scan has found something */
    unsigned                tries;
    uint64_t                address;    /* Remote */
    char                    *buffer;
    uint32_t                length;
    uint32_t                populated;  /* Bytes, in this try */
    uct_nprdma_opt_piece_t  *piece;
    uct_nprdma_slot_t       *slot;      /* Where states are read to, its own */
    ucs_time_t              start;      /* Of a populate */
    uct_nprdma_rma_large_t  large;      /* When software copies */
    uint32_t                local[UCT_NPRDMA_OPT_MAX_PAGES];
    uint32_t                before[UCT_NPRDMA_OPT_MAX_PAGES];
};


/* The optimistic operations of an interface */
typedef struct uct_nprdma_opt_iface {
    size_t                   slice;     /* Configuration */
    size_t                   scan_max;
    size_t                   whole_max; /* Gets that may be one READ */
    unsigned                 max_tries;
    struct ibv_send_wr       read_wr;   /* Template of these, */
    struct ibv_sge           read_sge;  /* to which it points */
    uct_nprdma_state_cache_t *cache;
    uct_nprdma_bounce_t      pool;      /* Slots of the slices */
    ucs_list_link_t          free_ops;
    unsigned                 num_free_ops;
    ucs_queue_head_t         free_slices;
    unsigned                 num_free_slices; /* Those that operations have a
                                                 right to are not */
    uct_nprdma_opt_op_t      ops[UCT_NPRDMA_OPT_MAX_OPS];
    uct_nprdma_opt_slice_t   slices[UCT_NPRDMA_OPT_MAX_SLICES];
} uct_nprdma_opt_iface_t;


/* The optimistic operations of an endpoint, and what is held */
typedef struct uct_nprdma_opt_ep {
    uct_nprdma_order_t order;   /* Those that are not complete */
    unsigned         num_ops;
    unsigned         num_slices;
    ucs_list_link_t  unsliced;  /* Operations with bytes that have no slice */
    ucs_queue_head_t todo;      /* Slices that lack resources for their step */
    ucs_list_link_t  unacked;   /* Held until requests have been executed */
    ucs_list_link_t  ready;     /* Requests that wait for resources only */
} uct_nprdma_opt_ep_t;


/**
 * @param [in]  iface  Interface, whose MD has the configuration.
 * @param [out] opt    To be given to uct_nprdma_opt_iface_cleanup().
 *
 * @return UCS_OK, or UCS_ERR_NO_MEMORY with a logged reason.
 */
ucs_status_t uct_nprdma_opt_iface_init(uct_nprdma_rma_iface_t *iface,
                                       uct_nprdma_opt_iface_t *opt);

/** Nothing of it may be under way any more. */
void uct_nprdma_opt_iface_cleanup(uct_nprdma_opt_iface_t *opt);

/**
 * An endpoint without operations; needs no cleanup.
 *
 * @param [in] is_strict  Atomics wait for all operations before them.
 */
void uct_nprdma_opt_ep_init(uct_nprdma_opt_ep_t *opt, int is_strict);


/**
 * Start get_bcopy. Arguments as of uct_ep_get_bcopy(), length at least 1 and at
 * most UCT_NPRDMA_SVC_MAX_PAYLOAD, rkey one that uct_nprdma_opt_can_get()
 * allows. Posting is possible: see uct_nprdma_rma_begin().
 *
 * @return UCS_INPROGRESS or UCS_ERR_NO_RESOURCE.
 */
ucs_status_t
uct_nprdma_opt_get_bcopy(uct_nprdma_rma_iface_t *iface,
                         struct uct_nprdma_rma *rma,
                         uct_unpack_callback_t unpack_cb, void *arg,
                         size_t length, uint64_t remote_addr,
                         const uct_nprdma_rkey_t *rkey, uct_completion_t *comp);


/**
 * Start get_zcopy or put_zcopy; without a way for the NIC software copies.
 * Arguments as of uct_ep_get_zcopy(), not all of the buffers empty. Posting is
 * possible: see uct_nprdma_rma_begin().
 *
 * @return UCS_INPROGRESS or UCS_ERR_NO_RESOURCE.
 */
ucs_status_t
uct_nprdma_opt_zcopy(uct_nprdma_rma_iface_t *iface, struct uct_nprdma_rma *rma,
                     int is_get, const uct_iov_t *iov, size_t iovcnt,
                     uint64_t remote_addr, const uct_nprdma_rkey_t *rkey,
                     uct_completion_t *comp);


/** @return Nonzero if the NIC can get from a range. */
static inline int uct_nprdma_opt_can_get(uct_nprdma_rma_iface_t *iface,
                                         const uct_nprdma_rkey_t *rkey,
                                         uint64_t address, size_t length)
{
    return (rkey->r_rkey != 0) &&
           (uct_nprdma_rma_md(iface)->monitor != NULL) &&
           uct_nprdma_key_covers(rkey, address, length);
}


/**
 * Go on with what lacked resources: redo and verification first.
 *
 * @return Number of slices that went on.
 */
unsigned uct_nprdma_opt_progress(uct_nprdma_rma_iface_t *iface,
                                 struct uct_nprdma_rma *rma);


/** @return Nonzero if uct_nprdma_opt_progress() is to be called again. */
static inline int uct_nprdma_opt_is_stalled(uct_nprdma_opt_ep_t *opt)
{
    return !ucs_list_is_empty(&opt->unsliced) ||
           !ucs_queue_is_empty(&opt->todo);
}


/**
 * @return Nonzero if an endpoint may have one more operation: as with slots,
 *         the more it has the more must be left.
 */
static inline int uct_nprdma_opt_has_op(const uct_nprdma_opt_iface_t *iface,
                                        const uct_nprdma_opt_ep_t *opt)
{
    return opt->num_ops < 2 * iface->num_free_ops;
}


/**
 * Take an operation, if the endpoint may have one more.
 *
 * @return The operation, without a slot, or NULL: later.
 */
uct_nprdma_opt_op_t *
uct_nprdma_opt_op_new(uct_nprdma_rma_iface_t *iface, struct uct_nprdma_rma *rma,
                      int is_get, uint64_t remote_addr,
                      const uct_nprdma_rkey_t *rkey, uct_completion_t *comp);


/** An operation that was held need not wait any more. It is no request. */
void uct_nprdma_opt_op_release(uct_nprdma_rma_iface_t *iface,
                               uct_nprdma_opt_op_t *op);


/**
 * An operation is verified whole, or has failed. The completion is called
 * last: it may destroy the endpoint.
 */
void uct_nprdma_opt_op_complete(uct_nprdma_rma_iface_t *iface,
                                uct_nprdma_opt_op_t *op);


/**
 * Complete all operations of an endpoint with rma->status. No WR of theirs is
 * outstanding, no reply awaited. The caller holds the RMA side of the endpoint
 * (uct_nprdma_rma_enter()).
 */
void uct_nprdma_opt_purge(uct_nprdma_rma_iface_t *iface,
                          struct uct_nprdma_rma *rma);


/* ---- nprdma_opt_slice.c ---- */

/** Begin with a slice that has its op, address, buffer, length and piece. */
void uct_nprdma_opt_slice_start(uct_nprdma_rma_iface_t *iface,
                                uct_nprdma_opt_slice_t *slice);

/**
 * Go on with a slice, filled as for uct_nprdma_opt_slice_start(). Its data has
 * been read once, as its operation did without a slice, and is to be scanned.
 */
void uct_nprdma_opt_slice_resume(uct_nprdma_rma_iface_t *iface,
                                 uct_nprdma_opt_slice_t *slice);

/** Do the next step of a slice, and what follows until it has to wait. */
void uct_nprdma_opt_slice_run(uct_nprdma_rma_iface_t *iface,
                              uct_nprdma_opt_slice_t *slice);

/** Reply to a populate request; see nprdma_rma_reply.c. */
uct_completion_t *
uct_nprdma_opt_populated(uct_nprdma_rma_iface_t *iface,
                         struct uct_nprdma_rma_wait *wait, const void *data,
                         ucs_status_t *status);

/**
 * A slice is verified, copied, or has failed. It is free afterwards, and so may
 * be its operation, its endpoint and whatever else the user had.
 */
void uct_nprdma_opt_slice_end(uct_nprdma_rma_iface_t *iface,
                              uct_nprdma_opt_slice_t *slice,
                              ucs_status_t status);

#endif
