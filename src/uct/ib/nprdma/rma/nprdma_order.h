/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_ORDER_H_
#define UCT_NPRDMA_ORDER_H_

#include <ucs/datastruct/list.h>

#include <stddef.h>
#include <stdint.h>

/*
 * Order among the operations of an endpoint (ARCHITECTURE 3, overlap and
 * atomics): which earlier operation a new one has to wait for. Pure: it posts
 * nothing and knows nothing of queue pairs.
 *
 * The list has what is not verified and what is held, in program order.
 * Requests that are sent at once and wait for nothing are not in it. An
 * operation that is held hangs on the last earlier one that it must not
 * overtake; when that one goes, it is looked at again.
 *
 * Most new operations cost O(1). The list is searched only if a bounding
 * interval overlaps the new operation. There are two intervals, of older and of
 * newer operations, so that they follow a stream that never pauses.
 */

/* What an operation is to others */
enum {
    UCT_NPRDMA_ORDER_READ   = 1 << 0, /* Leaves the memory as it is */
    UCT_NPRDMA_ORDER_ATOMIC = 1 << 1,
    UCT_NPRDMA_ORDER_NIC    = 1 << 2, /* The NIC may do it, so that it could
                                         overtake the target's software */
    UCT_NPRDMA_ORDER_SENT   = 1 << 3  /* A request that has been sent: the
                                         target executes these in order */
};


/* Bytes of the target's memory; empty if last is less than begin */
typedef struct uct_nprdma_span {
    uint64_t begin;
    uint64_t last;
} uct_nprdma_span_t;


/* An operation; embedded in the caller's. The caller fills span and flags */
typedef struct uct_nprdma_order_op {
    ucs_list_link_t   list;      /* In order->ops */
    uint64_t          sn;
    uct_nprdma_span_t span;
    uint8_t           flags;     /* UCT_NPRDMA_ORDER_xx */
    uint8_t           is_held;   /* held is in some list */
    uint8_t           is_late;   /* Waits for request, too */
    uint32_t          request;   /* Number of a request to the target */
    ucs_list_link_t   held;      /* In waiters of another operation, or in one
                                    of the caller's lists */
    ucs_list_link_t   waiters;   /* Operations that are held for this one */
} uct_nprdma_order_op_t;


/* The operations of an endpoint */
typedef struct uct_nprdma_order {
    ucs_list_link_t   ops;       /* In program order */
    uint64_t          sn;        /* Of the last one added */
    uint64_t          epoch;     /* Last one that may be in older */
    uct_nprdma_span_t older;
    uct_nprdma_span_t newer;     /* Of what was added after epoch */
    unsigned          num_writes; /* In ops, without UCT_NPRDMA_ORDER_READ */
    int               is_strict; /* Atomics wait for all before them */
} uct_nprdma_order_t;


/** @return The span of length bytes, at least 1; it does not wrap. */
static inline uct_nprdma_span_t
uct_nprdma_span(uint64_t address, uint64_t length)
{
    uct_nprdma_span_t span = {
        .begin = address,
        .last  = (length - 1 > UINT64_MAX - address) ? UINT64_MAX :
                                                       address + (length - 1)
    };

    return span;
}

static inline void uct_nprdma_span_clear(uct_nprdma_span_t *span)
{
    span->begin = UINT64_MAX;
    span->last  = 0;
}

/** Make a span reach over another one, too. */
static inline void
uct_nprdma_span_add(uct_nprdma_span_t *span, const uct_nprdma_span_t *other)
{
    span->begin = (other->begin < span->begin) ? other->begin : span->begin;
    span->last  = (other->last > span->last) ? other->last : span->last;
}

/** @return Nonzero if two spans have a byte in common. */
static inline int uct_nprdma_span_overlaps(const uct_nprdma_span_t *span1,
                                           const uct_nprdma_span_t *span2)
{
    return (span1->begin <= span2->last) && (span2->begin <= span1->last);
}


/**
 * @param [out] order      Without operations.
 * @param [in]  is_strict  Atomics wait for all operations before them.
 */
void uct_nprdma_order_init(uct_nprdma_order_t *order, int is_strict);


/** What uct_nprdma_order_find() does where there are operations. */
uct_nprdma_order_op_t *
uct_nprdma_order_search(uct_nprdma_order_t *order, unsigned flags,
                        const uct_nprdma_span_t *span);

/**
 * Find out what a new operation has to wait for.
 *
 * @param [in] flags  UCT_NPRDMA_ORDER_xx of the new one.
 * @param [in] span   What it accesses.
 *
 * @return The last operation that it must not overtake, or NULL.
 */
static inline uct_nprdma_order_op_t *
uct_nprdma_order_find(uct_nprdma_order_t *order, unsigned flags,
                      const uct_nprdma_span_t *span)
{
    return ucs_list_is_empty(&order->ops) ?
           NULL : uct_nprdma_order_search(order, flags, span);
}


/**
 * The same for an operation that has been added.
 *
 * @return The last operation before it that it must not overtake, or NULL.
 */
uct_nprdma_order_op_t *
uct_nprdma_order_find_before(const uct_nprdma_order_t *order,
                             const uct_nprdma_order_op_t *op);


/** Add an operation, which has its span and flags, behind all others. */
static inline void
uct_nprdma_order_add(uct_nprdma_order_t *order, uct_nprdma_order_op_t *op)
{
    op->sn      = ++order->sn;
    op->is_held = 0;
    op->is_late = 0;
    ucs_list_head_init(&op->waiters);
    ucs_list_add_tail(&order->ops, &op->list);
    uct_nprdma_span_add(&order->newer, &op->span);
    order->num_writes += !(op->flags & UCT_NPRDMA_ORDER_READ);
}


/**
 * An operation is done: nothing waits for it any more. What hangs on it stays
 * there, for the caller to take away.
 */
static inline void
uct_nprdma_order_remove(uct_nprdma_order_t *order, uct_nprdma_order_op_t *op)
{
    ucs_list_del(&op->list);
    order->num_writes -= !(op->flags & UCT_NPRDMA_ORDER_READ);
    if (ucs_list_is_empty(&order->ops)) {
        order->epoch = order->sn;
        uct_nprdma_span_clear(&order->older);
        uct_nprdma_span_clear(&order->newer);
    } else if (ucs_list_head(&order->ops, uct_nprdma_order_op_t, list)->sn >
               order->epoch) {
        order->epoch = order->sn;
        order->older = order->newer;
        uct_nprdma_span_clear(&order->newer);
    }
}


/** Let an operation that is in no such list hang in one. */
static inline void uct_nprdma_order_hold(uct_nprdma_order_op_t *op,
                                         ucs_list_link_t *held)
{
    op->is_held = 1;
    ucs_list_add_tail(held, &op->held);
}

/** Take an operation from the list that it hangs in, if there is one. */
static inline void uct_nprdma_order_unhold(uct_nprdma_order_op_t *op)
{
    if (op->is_held) {
        op->is_held = 0;
        ucs_list_del(&op->held);
    }
}


/** @return Nonzero if all operations up to a number are done. */
static inline int
uct_nprdma_order_is_done(uct_nprdma_order_t *order, uint64_t sn)
{
    return ucs_list_is_empty(&order->ops) ||
           (ucs_list_head(&order->ops, uct_nprdma_order_op_t, list)->sn > sn);
}

#endif
