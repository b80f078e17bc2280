/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_OP_TYPES_H_
#define UCT_NPRDMA_OP_TYPES_H_

#include "nprdma_order.h"
#include "nprdma_rma_iface.h"
#include "nprdma_sched.h"
#include "nprdma_state_cache.h"

#include "uct/ib/nprdma/mem/nprdma_mem.h"
#include "uct/ib/nprdma/wire/nprdma_svc_wire.h"

#include <ucs/datastruct/list.h>
#include <ucs/datastruct/queue.h>

/* Optimistic operations, their slices (nprdma_op.h, nprdma_op_slice.h), and
 * ranges that software copies (nprdma_rma_copy.h) */

typedef struct uct_nprdma_rma_copy uct_nprdma_rma_copy_t;

/* A range has been copied, or a part of it has failed with the first error. The
 * function may reuse the range. */
typedef void (*uct_nprdma_rma_copy_func_t)(uct_nprdma_rma_iface_t *iface,
                                           uct_nprdma_rma_copy_t *copy,
                                           ucs_status_t status);

/* A range; embedded in the object of the caller, which sets the first seven
 * fields */
struct uct_nprdma_rma_copy {
    uct_nprdma_rma_copy_func_t func;
    char                        *buffer;
    uint64_t                    address;    /* Remote */
    uint64_t                    key;
    size_t                      length;
    uint8_t                     is_get;
    /* Goes behind those of small operations */
    uint8_t                     is_large;

    /* In rma->copies until all of it is requested */
    ucs_queue_elem_t            queue;
    size_t                      requested;  /* Bytes that have been requested */
    size_t                      done;       /* Bytes with a reply */
    ucs_status_t                status;     /* First error */
};


/* Maximum number of operations in progress per interface */
#define UCT_NPRDMA_MAX_OPS     128

/* Operations and slices of an interface that large operations do not get.
 * Therefore a small one never waits until a large one returns its own. */
#define UCT_NPRDMA_OP_SMALL_OPS     16u
#define UCT_NPRDMA_OP_SMALL_SLICES  4u

/* Slices in progress per interface, at most */
#define UCT_NPRDMA_OP_MAX_SLICES  64

/* Maximum number of buffers of a zero-copy operation */
#define UCT_NPRDMA_OP_MAX_IOV     4

/* Remote pages of a slice, at most: one that begins within a page has the rest
 * of that page and whole pages. In local memory it may touch one page more. */
#define UCT_NPRDMA_OP_SLICE_PAGES(_slice) \
    (((_slice) / NPRDMA_PAGE_SIZE) + 1)
#define UCT_NPRDMA_OP_MAX_PAGES \
    (UCT_NPRDMA_OP_SLICE_PAGES(UCT_NPRDMA_MAX_SLICE) + 1)

typedef struct uct_nprdma_op        uct_nprdma_op_t;
typedef struct uct_nprdma_op_slice uct_nprdma_op_slice_t;


/* A buffer of an operation */
typedef struct uct_nprdma_op_piece {
    char           *buffer;
    size_t         length;
    /* Live registration, made for the operation. No region: a slot, which is
     * pinned, or on-demand paging */
    nprdma_range_t range;
    uint32_t       lkey;        /* Unless is_on_demand */
    int            is_on_demand; /* Each slice has its own lkey */
} uct_nprdma_op_piece_t;


/* A held request, with the operands of an atomic */
typedef struct uct_nprdma_held_message {
    uct_nprdma_svc_request_t  request;
    uct_nprdma_svc_operands_t operands;
} UCS_S_PACKED uct_nprdma_held_message_t;


struct uct_nprdma_op {
    uct_nprdma_order_op_t   order;      /* In op_ep.order */
    ucs_list_link_t         list;       /* In the list of free operations */
    struct uct_nprdma_rma   *rma;
    uct_completion_t        *comp;
    ucs_status_t            status;     /* First error */
    /* A held request to the target's software: see nprdma_held.h */
    uint8_t                 is_request;
    uint8_t                 is_get;
    uint8_t                 is_large;   /* Leaves the reserves to small ones */
    uint8_t                 by_nic;     /* Else software copies all of it */
    /* The target has been asked to populate the rest */
    uint8_t                 has_prefetch;
    uct_nprdma_comp_t       wr;         /* Of a single READ, without a slice */
    ucs_time_t              start;      /* Of the assist of a single READ */
    /* Small get: destination of the data. Held put: the message */
    uct_nprdma_slot_t       *slot;
    /* Small get: takes the data; NULL: it is copied to arg */
    uct_unpack_callback_t   unpack_cb;
    void                    *arg;       /* Atomic: for the old value */
    size_t                  slot_length;
    uint64_t                address;    /* Remote, in no slice yet */
    size_t                  length;     /* Bytes that are in no slice yet */
    uct_nprdma_rkey_t       rkey;       /* The user may release the key */
    unsigned                num_slices;
    unsigned                num_pieces;
    ucs_list_link_t         slices;
    union {                             /* While length > 0: */
        ucs_list_link_t     unsliced;   /* Small: in op_ep.unsliced */
        uct_nprdma_sched_op_t sched;    /* Large: in op_ep.sched */
    };
    unsigned                piece;      /* Buffer of that byte */
    size_t                  offset;     /* Offset of that byte in the buffer */
    uct_nprdma_held_message_t message;  /* Of a held request */
    uct_nprdma_op_piece_t   pieces[UCT_NPRDMA_OP_MAX_IOV];
};


/* Next step of a slice */
typedef enum uct_nprdma_op_step {
    UCT_NPRDMA_OP_TRY,          /* Begin a try: check the number of tries */
    UCT_NPRDMA_OP_BEFORE,       /* READ the states of the remote pages */
    UCT_NPRDMA_OP_DATA,         /* READ or WRITE the data */
    UCT_NPRDMA_OP_AFTER,        /* READ the states again */
    UCT_NPRDMA_OP_POPULATE,     /* The target populates the pages */
    UCT_NPRDMA_OP_COPY,         /* Software copies the data */
    UCT_NPRDMA_OP_LAST
} uct_nprdma_op_step_t;


/* What shows that the NIC has accessed present pages only */
typedef enum uct_nprdma_op_verifier {
    UCT_NPRDMA_OP_VERIFY_NONE,  /* Nothing has to: it waits for absent ones */
    UCT_NPRDMA_OP_VERIFY_SCAN,  /* A get: no line of the data has the
                                 * signature */
    UCT_NPRDMA_OP_VERIFY_STATES /* The states of the pages have not changed */
} uct_nprdma_op_verifier_t;


struct uct_nprdma_op_slice {
    uct_nprdma_comp_t       wr;         /* Of the WR that is outstanding */
    ucs_queue_elem_t        queue;      /* Free, or in op_ep.todo[is_large] */
    ucs_list_link_t         list;       /* In op->slices */
    uct_nprdma_op_t         *op;
    /* Of all its READs and WRITEs: states are READ behind the data */
    uct_nprdma_conn_t       *conn;
    uint8_t                 step;       /* uct_nprdma_op_step_t */
    uint8_t                 verifier;   /* uct_nprdma_op_verifier_t */
    uint8_t                 is_known;   /* before[] was read before this try */
    uint8_t                 is_counted; /* In the quota of large operations */
    uint8_t                 is_suspect; /* A scan was suspect */
    unsigned                tries;
    uint32_t                lkey;
    uint64_t                address;    /* Remote */
    char                    *buffer;
    uint32_t                length;
    uint32_t                populated;  /* Bytes populated in this try */
    uct_nprdma_op_piece_t   *piece;
    uct_nprdma_slot_t       *slot;      /* For the states that are read */
    ucs_time_t              start;      /* Of an assist */
    uct_nprdma_rma_copy_t  copy;      /* For a copy by software */
    uint32_t                local[UCT_NPRDMA_OP_MAX_PAGES];
    uint32_t                before[UCT_NPRDMA_OP_MAX_PAGES];
};


/* The optimistic operations of an interface */
typedef struct uct_nprdma_op_iface {
    size_t                   slice;     /* Copy of the configuration */
    size_t                   prio_max;
    size_t                   scan_max;
    unsigned                 max_tries;
    struct ibv_send_wr       read_wr;   /* Template of READs without slice */
    struct ibv_sge           read_sge;  /* The element of read_wr */
    uct_nprdma_sched_t       sched;     /* Of large operations */
    uint64_t                 num_large; /* Large operations so far */
    uct_nprdma_state_cache_t *cache;
    ucs_list_link_t          free_ops;
    uct_nprdma_credits_t     credits;   /* Operations */
    uct_nprdma_bounce_t      states;    /* Slots of slices for page states */
    ucs_queue_head_t         free_slices;
    uct_nprdma_credits_t     slice_credits;
    uct_nprdma_op_t          all[UCT_NPRDMA_MAX_OPS];
    uct_nprdma_op_slice_t    slices[UCT_NPRDMA_OP_MAX_SLICES];
} uct_nprdma_op_iface_t;


/* The optimistic and held operations of an endpoint */
typedef struct uct_nprdma_op_ep {
    uct_nprdma_order_t order;   /* Operations that are not complete */
    /* Indexed by op->is_large */
    unsigned         num_ops[2];
    unsigned         num_slices[2];
    /* Slices that lack resources for their next step */
    ucs_queue_head_t todo[2];

    /* Small operations with bytes that are in no slice */
    ucs_list_link_t  unsliced;
    uct_nprdma_sched_ep_t sched; /* Large ones */
    ucs_list_link_t  unacked;   /* Held until requests are executed */
    ucs_list_link_t  ready;     /* Requests that wait for resources only */
} uct_nprdma_op_ep_t;

#endif
