/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_RMA_TYPES_H_
#define UCT_NPRDMA_RMA_TYPES_H_

#include "nprdma_op_types.h"

#include <stdatomic.h>

/*
 * The initiator's side of put, get and atomics of an endpoint: requests to the
 * target's software, on its connection of kind SVC, and optimistic operations
 * (nprdma_op.h), which the NIC executes, on the same connection or on that of
 * nprdma_bulk.h.
 *
 * Requests are numbered per connection, and the target executes them in order.
 * Before a request with a reply is sent, a receive is posted for the reply.
 * Therefore a reply never waits for the initiator, and two peers that flood
 * each other cannot block each other. A reply also acknowledges all earlier
 * requests. A store without a completion needs no reply of its own; a flush
 * asks for one.
 *
 * Slots for sends and for replies belong to the RMA side of the interface
 * alone. Therefore active messages that a slow peer does not receive cannot
 * block RMA.
 */

/* Receives for replies that all connections of an interface have posted, at
 * most; its receive CQ must have room for them */
#define UCT_NPRDMA_RMA_MAX_REPLIES  256

/* Reserve of redo, verification and held requests besides entries of the send
 * queue: replies, per endpoint and per interface, and slots for data. Where the
 * device has little inline space, one request needs two slots at once: for its
 * message and for its reply. */
#define UCT_NPRDMA_RMA_REDO_REPLIES        4u
#define UCT_NPRDMA_RMA_REDO_IFACE_REPLIES  8u
#define UCT_NPRDMA_RMA_REDO_SLOTS        2u

/* Spares, at most: receives that are posted before they are needed, in addition
 * to those of awaited replies. See nprdma_rma_req.h. */
#define UCT_NPRDMA_RMA_MAX_SPARES        32u
#define UCT_NPRDMA_RMA_NUM_REPLIES \
    (UCT_NPRDMA_RMA_MAX_REPLIES + UCT_NPRDMA_RMA_MAX_SPARES)

/* Size in bytes of a slot for replies with little payload */
#define UCT_NPRDMA_RMA_SMALL_SLOT        64


/* Handle a reply with reply->length bytes of payload, or an error: store the
 * data. reply->comp is called afterwards; only the end of an operation of
 * nprdma_op.h calls the user itself. The function may change the status.
 * reply->failed is that of an earlier request without reply. */
typedef void
(*uct_nprdma_rma_reply_func_t)(uct_nprdma_rma_iface_t *iface,
                               uct_nprdma_rma_reply_t *reply, const void *data,
                               ucs_status_t *status);

/* Kind of awaited replies: constant, in the file that sends the requests */
typedef struct uct_nprdma_rma_kind {
    uct_nprdma_rma_reply_func_t func;  /* NULL: there is nothing to do */
    /* The request belongs to an operation of ops.order */
    int                         is_ordered;
    /* A slice reports the failure of the request, or of what it tries
     * instead */
    int                         is_of_slice;
} uct_nprdma_rma_kind_t;


/* An awaited reply of a request, or a spare. Its receive is posted */
struct uct_nprdma_rma_reply {
    /* In rma->replies or res->free_replies; a spare is in no list */
    ucs_queue_elem_t            queue;
    uct_nprdma_rma_t            *rma;
    const uct_nprdma_rma_kind_t *kind;
    uct_nprdma_slot_t           *slot;  /* Destination of the reply */
    uint32_t                    index;
    uint32_t                    sn;
    uint32_t                    length; /* Of a successful reply */
    uint8_t                     type;   /* Type of the request */
    uint8_t                     is_large; /* In rma->num_large_slots */
    uint8_t                     is_borrowed; /* The slot is the operation's */
    uint32_t                    size;   /* Bytes that it accesses */
    uint64_t                    address;
    ucs_status_t                failed; /* Of an earlier one without reply */
    uct_completion_t            *comp;  /* May be NULL */
    union {
        struct {
            uct_unpack_callback_t unpack_cb;
            void                  *arg;
        } bcopy;
        void                   *result;
        struct {
            uct_nprdma_rma_copy_t *range;
            size_t                 length; /* Bytes of the request */
        } copy;
        uct_nprdma_op_slice_t *slice;
        uct_nprdma_op_t       *op;
    };
};


/* When to make the connection for slices: nprdma_bulk.h */
typedef struct uct_nprdma_bulk {
    uint32_t num_waits; /* Slices that are cut before it is tried */
    uint32_t pause;     /* The same after the next refusal */
} uct_nprdma_bulk_t;


/* Detection of dead peers: nprdma_rma_watch.h */
typedef struct uct_nprdma_rma_watch {
    unsigned    num_polls; /* Calls of progress with replies awaited */
    ucs_time_t  next;      /* Time of the next probes */
    ucs_time_t  interval;  /* Time between probes */
    /* Used with the async context blocked; -1: does not run */
    int         timer_id;
    atomic_uint is_due;    /* Probes are due; set while the user sleeps */
} uct_nprdma_rma_watch_t;


/* Number of requests that an endpoint remembers: to find the address of a
 * failed one without reply, and those that the NIC must not overtake */
#define UCT_NPRDMA_RMA_RECENT  64

typedef struct uct_nprdma_rma_recent {
    uint32_t                sn;
    /* 0: no access, or its operation is in ops.order */
    uint32_t                length : 31;
    uint32_t                is_read : 1;
    uint64_t                address;
} uct_nprdma_rma_recent_t;


/* Waits for the WRs of one connection of an endpoint that has failed */
typedef struct uct_nprdma_rma_drain {
    uct_nprdma_comp_t       comp;
    uct_nprdma_rma_t        *rma;
} uct_nprdma_rma_drain_t;


/* All operations of a failed endpoint are complete, and the NIC no longer
 * accesses memory of the user */
typedef void (*uct_nprdma_rma_failed_func_t)(uct_nprdma_rma_iface_t *iface,
                                             uct_nprdma_rma_ep_t *ep);


/* The RMA side of an endpoint */
struct uct_nprdma_rma {
    uct_nprdma_rma_ep_t         *ep;
    uint32_t                sn;         /* Of the last request that was sent */
    uint32_t                done_sn;    /* Executed, with all before */
    uint32_t                reply_sn;   /* Last request with a reply */
    uint32_t                fence_sn;
    uint64_t                count;      /* Requests sent; sn: lower half */
    uint64_t                write_count; /* count at the last STORE or ATOMIC */
    /* UCT_NPRDMA_EP_BEHIND if messages wait for earlier puts, else 0 */
    uint32_t                behind_flag;
    /* Request that is acknowledged before num_behind begins anew */
    uint32_t                behind_sn;
    unsigned                num_behind; /* Messages since behind_sn */
    uint64_t                fence_op;   /* Last operation before the fence */
    /* Of requests since all were executed; valid while some are not */
    uct_nprdma_area_t       area;
    uct_nprdma_rma_reply_t   *spare;     /* For the next reply, or NULL */
    /* Single stores since the last reply that was too large for a spare */
    uint32_t                num_alone;
    uint32_t                num_replies; /* Awaited ones, without the spare */
    /* Those of ranges that are copied; indexed by is_large, as copies */
    uint32_t                num_copies[2];
    uint32_t                num_slots;  /* Slots for received data */
    /* Slots for data that requests of large operations have; not in
     * num_slots */
    uint32_t                num_large_slots;
    int                     is_fenced;
    int                     needs_ack;  /* The fence has to ask */
    int                     held_needs_ack; /* Held operations have to ask */
    int                     is_stalled; /* In res->stalled */
    int                     is_reported; /* An error was logged */
    int                     busy;       /* Nesting of uct_nprdma_rma_enter() */
    ucs_status_t            status;     /* Failure of the connection */
    /* Of a request without completion; a flush reports it */
    ucs_status_t            error;
    ucs_queue_head_t        replies;      /* In the order of their replies */
    ucs_queue_head_t        flushes;
    ucs_queue_head_t        copies[2];  /* Not completely requested */
    uct_nprdma_op_ep_t      ops;
    uct_nprdma_bulk_t       bulk;       /* For slices of large operations */
    /* Called behind the last WR of svc and of bulk after a failure */
    uct_nprdma_rma_drain_t  drains[2];
    unsigned                num_drains; /* Those that are outstanding */
    uct_nprdma_rma_failed_func_t failed; /* Called after the last of them */
    ucs_list_link_t         stalled;
    uct_nprdma_rma_recent_t recent[UCT_NPRDMA_RMA_RECENT]; /* Indexed by sn */
};


/* Resources that the endpoints of an interface share; allocated when first
 * needed */
struct uct_nprdma_rma_res {
    uct_nprdma_bounce_t     pool;       /* For data of stores and fetches */
    uct_nprdma_bounce_t     small_pool; /* For replies with little payload */
    ucs_list_link_t         stalled;    /* Endpoints that lack resources */
    ucs_queue_head_t        free_replies;
    unsigned                num_free_replies; /* Without those for spares */
    unsigned                num_spares;
    unsigned                num_large_slots; /* Sum of all rma's */
    uct_nprdma_rma_reply_t   replies[UCT_NPRDMA_RMA_NUM_REPLIES];
    uct_nprdma_op_iface_t   ops;
    uct_nprdma_rma_watch_t  watch;
};

#endif
