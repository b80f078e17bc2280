/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_ORDER_H_
#define UCT_NPRDMA_ORDER_H_

#include <ucs/datastruct/list.h>

#include <stddef.h>
#include <stdint.h>

/*
 * Order among the operations of an endpoint (ARCHITECTURE 3, overlap, flags and
 * atomics): finds the earlier operation that a new one has to wait for. Pure.
 *
 * The list contains operations that are not verified or are held, in program
 * order. It does not contain requests that are sent at once. A held operation
 * is in the list of waiters of the last earlier operation that it must not
 * overtake. When that one is removed, the search is repeated.
 *
 * Most new operations cost O(1): the list is searched only if a bounding
 * interval overlaps the new operation. Large and small operations have
 * intervals of their own, because a stream of large ones often has counters or
 * locks far away. Each has one interval of older and one of newer operations,
 * so that the bounds move along with a stream that never pauses.
 */

/* Properties of an operation for the order */
enum {
    UCT_NPRDMA_ORDER_READ   = 1 << 0, /* Does not change the memory */
    UCT_NPRDMA_ORDER_ATOMIC = 1 << 1,
    /* The NIC may execute it, so that it could overtake the target's
     * software */
    UCT_NPRDMA_ORDER_NIC    = 1 << 2,
    /* A request that has been sent: the target executes these in order */
    UCT_NPRDMA_ORDER_SENT   = 1 << 3,
    UCT_NPRDMA_ORDER_SMALL  = 1 << 4  /* A small put, which may be a flag */
};


/* What waits for earlier operations, whatever their addresses */
typedef enum uct_nprdma_order_mode {
    /* Small puts and active messages for puts and atomics; atomics for all */
    UCT_NPRDMA_ORDER_RC,
    UCT_NPRDMA_ORDER_ATOMICS, /* Atomics for all */
    UCT_NPRDMA_ORDER_UCP,    /* Nothing */
    UCT_NPRDMA_ORDER_LAST
} uct_nprdma_order_mode_t;


/* Bytes of the target's memory; empty if last is less than begin */
typedef struct uct_nprdma_area {
    uint64_t begin;
    uint64_t last;
} uct_nprdma_area_t;


/* An operation; embedded in the object of the caller, which sets area and
 * flags */
typedef struct uct_nprdma_order_op {
    ucs_list_link_t   list;      /* In order->ops */
    uint64_t          sn;
    uct_nprdma_area_t area;
    uint8_t           flags;          /* UCT_NPRDMA_ORDER_xx */
    uint8_t           is_held;        /* In a list, by `held` */
    uint8_t           awaits_request; /* Also waits for `request` */
    /* Sequence number of a request to the target */
    uint32_t          request;
    /* In waiters of another operation, or in one of the caller's lists */
    ucs_list_link_t   held;
    ucs_list_link_t   waiters;        /* Operations that wait for this one */
} uct_nprdma_order_op_t;


/* Bytes from which on an operation is large */
#define UCT_NPRDMA_ORDER_LARGE   4096


/* Bounding intervals of some operations: small ones and large ones */
typedef struct uct_nprdma_order_bounds {
    uct_nprdma_area_t areas[2];
} uct_nprdma_order_bounds_t;


/* The operations of an endpoint */
typedef struct uct_nprdma_order {
    ucs_list_link_t           ops;        /* In program order */
    uint64_t                  sn;         /* Of the last one that was added */
    uint64_t                  epoch;      /* Last one that may be in older */
    uct_nprdma_order_bounds_t older;
    uct_nprdma_order_bounds_t newer;      /* Operations added after epoch */
    /* In ops, without UCT_NPRDMA_ORDER_READ */
    unsigned                  num_writes;
    unsigned                  num_held_nic; /* UCT_NPRDMA_ORDER_NIC, held */
    uct_nprdma_order_mode_t   mode;
} uct_nprdma_order_t;


/* Of at least one byte; it ends at UINT64_MAX rather than wrap */
static inline uct_nprdma_area_t
uct_nprdma_area(uint64_t address, uint64_t length)
{
    uct_nprdma_area_t area = {
        .begin = address,
        .last  = (length - 1 > UINT64_MAX - address) ? UINT64_MAX :
                                                       address + (length - 1)
    };

    return area;
}

static inline void uct_nprdma_area_clear(uct_nprdma_area_t *area)
{
    area->begin = UINT64_MAX;
    area->last  = 0;
}

/* Extend an area to include another one */
static inline void
uct_nprdma_area_add(uct_nprdma_area_t *area, const uct_nprdma_area_t *other)
{
    area->begin = (other->begin < area->begin) ? other->begin : area->begin;
    area->last  = (other->last > area->last) ? other->last : area->last;
}

static inline int uct_nprdma_area_overlaps(const uct_nprdma_area_t *area1,
                                           const uct_nprdma_area_t *area2)
{
    return (area1->begin <= area2->last) && (area2->begin <= area1->last);
}


static inline void
uct_nprdma_order_bounds_clear(uct_nprdma_order_bounds_t *bounds)
{
    uct_nprdma_area_clear(&bounds->areas[0]);
    uct_nprdma_area_clear(&bounds->areas[1]);
}

static inline void
uct_nprdma_order_bounds_add(uct_nprdma_order_bounds_t *bounds,
                            const uct_nprdma_area_t *area)
{
    int is_large = (area->last - area->begin) >= (UCT_NPRDMA_ORDER_LARGE - 1);

    uct_nprdma_area_add(&bounds->areas[is_large], area);
}

static inline int
uct_nprdma_order_bounds_overlap(const uct_nprdma_order_bounds_t *bounds,
                                const uct_nprdma_area_t *area)
{
    return uct_nprdma_area_overlaps(&bounds->areas[0], area) ||
           uct_nprdma_area_overlaps(&bounds->areas[1], area);
}


void uct_nprdma_order_init(uct_nprdma_order_t *order,
                           uct_nprdma_order_mode_t mode);


/* Slow path of uct_nprdma_order_find(): there are operations */
uct_nprdma_order_op_t *
uct_nprdma_order_search(uct_nprdma_order_t *order, unsigned flags,
                        const uct_nprdma_area_t *area);

/* The last operation that a new one must not overtake, or NULL */
static inline uct_nprdma_order_op_t *
uct_nprdma_order_find(uct_nprdma_order_t *order, unsigned flags,
                      const uct_nprdma_area_t *area)
{
    return ucs_list_is_empty(&order->ops) ?
           NULL : uct_nprdma_order_search(order, flags, area);
}


/* The last earlier operation that one of the list must not overtake, or NULL */
uct_nprdma_order_op_t *
uct_nprdma_order_find_before(const uct_nprdma_order_t *order,
                             const uct_nprdma_order_op_t *op);


/* Append an operation, whose area and flags are set */
static inline void
uct_nprdma_order_add(uct_nprdma_order_t *order, uct_nprdma_order_op_t *op)
{
    op->sn             = ++order->sn;
    op->is_held        = 0;
    op->awaits_request = 0;
    ucs_list_head_init(&op->waiters);
    ucs_list_add_tail(&order->ops, &op->list);
    uct_nprdma_order_bounds_add(&order->newer, &op->area);
    order->num_writes += !(op->flags & UCT_NPRDMA_ORDER_READ);
}


/* Append an operation that is in no list by `held` to one */
static inline void uct_nprdma_order_hold(uct_nprdma_order_t *order,
                                         uct_nprdma_order_op_t *op,
                                         ucs_list_link_t *held)
{
    op->is_held          = 1;
    order->num_held_nic += !!(op->flags & UCT_NPRDMA_ORDER_NIC);
    ucs_list_add_tail(held, &op->held);
}

/* Remove an operation from the list that `held` is in, if there is one */
static inline void uct_nprdma_order_unhold(uct_nprdma_order_t *order,
                                           uct_nprdma_order_op_t *op)
{
    if (op->is_held) {
        op->is_held          = 0;
        order->num_held_nic -= !!(op->flags & UCT_NPRDMA_ORDER_NIC);
        ucs_list_del(&op->held);
    }
}


/* Remove an operation that is done, or has failed. The caller starts its
 * waiters, if there are any: uct_nprdma_held_release(). */
static inline void
uct_nprdma_order_remove(uct_nprdma_order_t *order, uct_nprdma_order_op_t *op)
{
    uct_nprdma_order_unhold(order, op);
    ucs_list_del(&op->list);
    order->num_writes -= !(op->flags & UCT_NPRDMA_ORDER_READ);
    if (ucs_list_is_empty(&order->ops)) {
        order->epoch = order->sn;
        uct_nprdma_order_bounds_clear(&order->older);
        uct_nprdma_order_bounds_clear(&order->newer);
    } else if (ucs_list_head(&order->ops, uct_nprdma_order_op_t, list)->sn >
               order->epoch) {
        order->epoch = order->sn;
        order->older = order->newer;
        uct_nprdma_order_bounds_clear(&order->newer);
    }
}


/* Whether all operations up to a sequence number are done */
static inline int
uct_nprdma_order_is_done(uct_nprdma_order_t *order, uint64_t sn)
{
    return ucs_list_is_empty(&order->ops) ||
           (ucs_list_head(&order->ops, uct_nprdma_order_op_t, list)->sn > sn);
}

#endif
