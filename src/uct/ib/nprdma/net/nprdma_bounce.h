/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_BOUNCE_H_
#define UCT_NPRDMA_BOUNCE_H_

#include "nprdma_conn_types.h"

#include <ucs/sys/compiler_def.h>

/*
 * Bounce slots: the only memory that this transport ever pins. All pools of a
 * process share one budget (UCX_NPRDMA_MAX_PINNED). A pool consists of chunks
 * and can grow; it never shrinks. A pool belongs to one thread at a time; the
 * budget is safe for any.
 */

typedef struct uct_nprdma_bounce       uct_nprdma_bounce_t;
typedef struct uct_nprdma_bounce_chunk uct_nprdma_bounce_chunk_t;

/* Descriptor of one slot, in ordinary memory. */
typedef struct uct_nprdma_slot {
    uct_nprdma_op_t         op;     /* for the owner while a WR uses the slot */
    struct uct_nprdma_slot  *next;  /* free list */
    char                    *data;  /* slot_size bytes, pinned */
    uct_nprdma_bounce_t     *pool;
    uint32_t                lkey;
} uct_nprdma_slot_t;

struct uct_nprdma_bounce {
    uct_nprdma_slot_t         *free;     /* LIFO: reuse what is in the cache */
    unsigned                  num_free;
    unsigned                  num_slots;
    unsigned                  max_slots; /* grows up to this */
    size_t                    slot_size;
    struct uct_nprdma_device      *dev;
    const char                *name;
    uct_nprdma_bounce_chunk_t *chunks;
};


/**
 * Set the process-wide limit. The budget is one for all memory domains: the
 * last one opened decides.
 *
 * @param [in] max_pinned  Bytes.
 */
void uct_nprdma_bounce_set_budget(size_t max_pinned);


/** @return Bytes pinned by all pools of this process. */
size_t uct_nprdma_bounce_pinned(void);

/** In a child of fork(): what its parent has pinned is not pinned here. */
void uct_nprdma_bounce_forked(void);


/**
 * Set up a pool and register its first chunk. The first pools of a process get
 * max_slots at once; when a quarter of the budget is in use a pool begins with
 * min_slots and grows when it must.
 *
 * @param [out] pool       Pool to set up.
 * @param [in]  dev        Device whose PD the memory is registered with.
 * @param [in]  slot_size  Bytes per slot; rounded up to a cache line.
 * @param [in]  max_slots  Slots wanted.
 * @param [in]  min_slots  Slots needed.
 * @param [in]  name       For messages, a constant string.
 *
 * @return UCS_OK, or UCS_ERR_NO_MEMORY with a logged reason.
 */
ucs_status_t
uct_nprdma_bounce_init(uct_nprdma_bounce_t *pool, struct uct_nprdma_device *dev,
                       size_t slot_size, unsigned max_slots,
                       unsigned min_slots, const char *name);


/**
 * Add slots, if neither max_slots nor the budget is against it: half of the
 * budget is kept for pools that are yet to come. Costs system calls the
 * few times that it does something.
 *
 * @param [in] pool  Pool.
 *
 * @return Number of slots added.
 */
unsigned uct_nprdma_bounce_grow(uct_nprdma_bounce_t *pool);


/**
 * Give the memory of a pool back. No work request may still use it.
 *
 * @param [in] pool  Pool set up by uct_nprdma_bounce_init().
 */
void uct_nprdma_bounce_cleanup(uct_nprdma_bounce_t *pool);


/**
 * Whether somebody who shares a pool with others may have one more slot: he has
 * less than two thirds of what nobody else has. So however long one of them
 * keeps his, there are some for the next.
 *
 * @param [in] held     Slots that he has.
 * @param [in] reserve  Slots that are nobody's in particular.
 */
static inline int
uct_nprdma_bounce_has_share(const uct_nprdma_bounce_t *pool, unsigned held,
                            unsigned reserve)
{
    return held + (2 * reserve) <
           2 * (pool->num_free + pool->max_slots - pool->num_slots);
}


/** @return A free slot, or NULL. */
static inline uct_nprdma_slot_t *
uct_nprdma_bounce_get(uct_nprdma_bounce_t *pool)
{
    uct_nprdma_slot_t *slot = pool->free;

    if (ucs_likely(slot != NULL)) {
        pool->free = slot->next;
        --pool->num_free;
    }
    return slot;
}


/** Give a slot back to the pool that it came from. */
static inline void uct_nprdma_bounce_put(uct_nprdma_slot_t *slot)
{
    uct_nprdma_bounce_t *pool = slot->pool;

    slot->next = pool->free;
    pool->free = slot;
    ++pool->num_free;
}


/**
 * Completion function for the op of a slot that only has to be given back, and
 * is counted in conn->num_slots.
 */
void uct_nprdma_slot_release_op(struct uct_nprdma_net_iface *iface,
                                uct_nprdma_conn_t *conn, uct_nprdma_op_t *op,
                                ucs_status_t status);

#endif
