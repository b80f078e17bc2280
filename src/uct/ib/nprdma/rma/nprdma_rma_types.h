/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_RMA_TYPES_H_
#define UCT_NPRDMA_RMA_TYPES_H_

#include "nprdma_order.h"
#include "nprdma_rma_iface.h"
#include "nprdma_state_cache.h"

#include "uct/ib/nprdma/mem/nprdma_mem.h"
#include "uct/ib/nprdma/wire/nprdma_svc_wire.h"

#include <ucs/datastruct/list.h>
#include <ucs/datastruct/queue.h>

#include <stdatomic.h>

/*
 * The initiator's side of put, get and atomics of an endpoint, on its
 * connection of kind SVC: requests to the target's software, and optimistic
 * operations (nprdma_opt.h), which the NIC does.
 *
 * Requests are numbered per connection and the target executes them in order.
 * A request that returns something, or that somebody waits for, has a receive
 * posted for its reply before it is sent. So a reply never waits for the
 * initiator, and two peers that flood each other cannot block each other. A
 * reply also acknowledges all requests before it; stores have no reply of
 * their own, a flush asks for one.
 *
 * Slots to send from and to receive replies in belong to the RMA side of the
 * interface alone: active messages that a slow peer does not take cannot hold
 * it up.
 */

typedef struct uct_nprdma_rma       uct_nprdma_rma_t;
typedef struct uct_nprdma_rma_res   uct_nprdma_rma_res_t;
typedef struct uct_nprdma_rma_wait  uct_nprdma_rma_wait_t;

/* Receives for replies that all connections of an interface have posted, at
 * most; its receive CQ must have room for them */
#define UCT_NPRDMA_RMA_MAX_REPLIES  256


/* ---- ranges that software copies: nprdma_rma_large ---- */

typedef struct uct_nprdma_rma_large uct_nprdma_rma_large_t;

/**
 * All of a range has been copied, or part of it cannot be. The range may be
 * used again here.
 */
typedef void (*uct_nprdma_rma_large_func_t)(uct_nprdma_rma_iface_t *iface,
                                            uct_nprdma_rma_large_t *large,
                                            ucs_status_t status);

/* A range; embedded in the caller's, who fills the first seven */
struct uct_nprdma_rma_large {
    uct_nprdma_rma_large_func_t func;
    char                        *buffer;
    uint64_t                    address;    /* Remote */
    uint64_t                    key;
    size_t                      length;
    uint8_t                     is_get;
    uint8_t                     populate;   /* Of a get: the pages are wanted
                                               in their window, too */

    ucs_queue_elem_t            queue;      /* Not all of it is requested */
    size_t                      requested;  /* Bytes for which requests are
                                               sent */
    size_t                      done;       /* Bytes whose reply has come */
    ucs_status_t                status;     /* First error */
};


/* ---- optimistic operations: nprdma_opt, nprdma_opt_slice ---- */

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
    unsigned         num_held_nic; /* Held, and the NIC will do them */
} uct_nprdma_opt_ep_t;


/* ---- flushes: nprdma_rma_flush ---- */

typedef struct uct_nprdma_rma_flush uct_nprdma_rma_flush_t;

/**
 * Called when everything that was posted before a flush is done.
 *
 * @param [in] status  UCS_OK, or the first error of a request that had no
 *                     completion of its own to report it, or why the
 *                     connection failed.
 */
typedef void (*uct_nprdma_rma_flush_func_t)(uct_nprdma_rma_iface_t *iface,
                                            uct_nprdma_rma_ep_t *ep,
                                            uct_nprdma_rma_flush_t *flush,
                                            ucs_status_t status);

/* A flush in progress; embedded in the caller's, who fills func */
struct uct_nprdma_rma_flush {
    ucs_queue_elem_t            queue;
    uct_nprdma_rma_flush_func_t func;
    uint32_t                    sn;   /* Last request that it waits for, */
    uint64_t                    op;   /* and last operation */
};

/**
 * Called when everything of an endpoint that has failed is complete, and the
 * NIC has left the memory of the user.
 */
typedef void (*uct_nprdma_rma_failed_func_t)(uct_nprdma_rma_iface_t *iface,
                                             uct_nprdma_rma_ep_t *ep);


/* ---- whether peers are there: nprdma_rma_watch ---- */

typedef struct uct_nprdma_rma_watch {
    unsigned    num_polls; /* Calls of progress with replies awaited */
    ucs_time_t  next;      /* Peers are asked then, */
    ucs_time_t  interval;  /* and again after this */
    int         timer_id;  /* With the async context blocked; -1: none */
    atomic_uint is_due;    /* A sleeper has been woken to ask */
} uct_nprdma_rma_watch_t;


/* ---- requests and replies: nprdma_rma_req, nprdma_rma_wait ---- */

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

#endif
