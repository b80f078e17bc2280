/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_order.h"


void uct_nprdma_order_init(uct_nprdma_order_t *order,
                           uct_nprdma_order_mode_t mode)
{
    order->sn           = 0;
    order->epoch        = 0;
    order->num_writes   = 0;
    order->num_held_nic = 0;
    order->mode         = mode;
    ucs_list_head_init(&order->ops);
    uct_nprdma_order_bounds_clear(&order->older);
    uct_nprdma_order_bounds_clear(&order->newer);
}

/* An atomic waits for all earlier operations */
static inline int
uct_nprdma_order_is_last(const uct_nprdma_order_t *order, unsigned flags)
{
    return (flags & UCT_NPRDMA_ORDER_ATOMIC) &&
           (order->mode != UCT_NPRDMA_ORDER_UCP);
}

/* A small put waits for all earlier puts and atomics: it may be a flag that
 * says that they are done */
static inline int
uct_nprdma_order_is_flag(const uct_nprdma_order_t *order, unsigned flags)
{
    return (flags & UCT_NPRDMA_ORDER_SMALL) &&
           (order->mode == UCT_NPRDMA_ORDER_RC);
}

/* Check whether an operation must not overtake an earlier one (ARCHITECTURE
 * 3) */
static inline int
uct_nprdma_order_conflicts(const uct_nprdma_order_t *order,
                           const uct_nprdma_order_op_t *earlier, unsigned flags,
                           const uct_nprdma_area_t *area)
{
    /* The target's software executes requests in the order in which they were
     * sent */
    if ((earlier->flags & UCT_NPRDMA_ORDER_SENT) &&
        !(flags & UCT_NPRDMA_ORDER_NIC)) {
        return 0;
    }

    if (uct_nprdma_order_is_last(order, flags) ||
        (uct_nprdma_order_is_flag(order, flags) &&
         !(earlier->flags & UCT_NPRDMA_ORDER_READ))) {
        return 1;
    }

    return !(earlier->flags & flags & UCT_NPRDMA_ORDER_READ) &&
           uct_nprdma_area_overlaps(&earlier->area, area);
}

/* Search backwards from an element of the list, or from its head */
static uct_nprdma_order_op_t *
uct_nprdma_order_search_from(const uct_nprdma_order_t *order,
                             const ucs_list_link_t *link, unsigned flags,
                             const uct_nprdma_area_t *area)
{
    uct_nprdma_order_op_t *op;

    for (; link != &order->ops; link = link->prev) {
        op = ucs_container_of(link, uct_nprdma_order_op_t, list);
        if (uct_nprdma_order_conflicts(order, op, flags, area)) {
            return op;
        }
    }
    return NULL;
}

uct_nprdma_order_op_t *
uct_nprdma_order_search(uct_nprdma_order_t *order, unsigned flags,
                        const uct_nprdma_area_t *area)
{
    int is_behind = uct_nprdma_order_is_last(order, flags) ||
                    (uct_nprdma_order_is_flag(order, flags) &&
                     (order->num_writes > 0));

    if ((flags & UCT_NPRDMA_ORDER_READ) && (order->num_writes == 0)) {
        return NULL;
    }

    if (!is_behind && !uct_nprdma_order_bounds_overlap(&order->older, area) &&
        !uct_nprdma_order_bounds_overlap(&order->newer, area)) {
        return NULL;
    }

    return uct_nprdma_order_search_from(order, order->ops.prev, flags, area);
}

uct_nprdma_order_op_t *
uct_nprdma_order_find_before(const uct_nprdma_order_t *order,
                             const uct_nprdma_order_op_t *op)
{
    return uct_nprdma_order_search_from(order, op->list.prev, op->flags,
                                        &op->area);
}
