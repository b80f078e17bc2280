/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_BOUNCE_H_
#define UCT_NPRDMA_BOUNCE_H_

#include "nprdma_conn_types.h"

#include <ucs/sys/compiler_def.h>
#include <ucs/sys/math.h>

/*
 * Bounce slots: the only memory that this transport pins. All pools of a
 * process share one budget (UCX_NPRDMA_MAX_PINNED). A pool consists of chunks
 * and can grow; it never shrinks. One thread at a time uses a pool; the
 * functions of the budget are safe in any thread.
 */

/* Smallest budget, in bytes. It is enough for the pools of one memory domain
 * with one interface, at both sides of operations. */
#define UCT_NPRDMA_MIN_PINNED  (512 * UCS_KBYTE)

typedef struct uct_nprdma_bounce       uct_nprdma_bounce_t;
typedef struct uct_nprdma_bounce_chunk uct_nprdma_bounce_chunk_t;

/* Descriptor of one slot, in unpinned memory */
typedef struct uct_nprdma_slot {
    uct_nprdma_comp_t       comp;   /* for the user of the slot while a WR uses
                                     * it */
    struct uct_nprdma_slot  *next;  /* free list */
    char                    *data;  /* slot_size bytes, pinned */
    uct_nprdma_bounce_t     *pool;
    uint32_t                lkey;
} uct_nprdma_slot_t;

struct uct_nprdma_bounce {
    uct_nprdma_slot_t         *free;     /* LIFO: reuses slots that are in the
                                          * CPU's cache */
    unsigned                  num_free;
    unsigned                  num_slots;
    unsigned                  max_slots; /* grows up to this */
    size_t                    slot_size;
    struct uct_nprdma_device      *dev;
    const char                *name;
    uct_nprdma_bounce_chunk_t *chunks;
};


/**
 * Set the limit of the process. All memory domains share one budget, and the
 * domain that was opened last determines it.
 *
 * @param [in] max_pinned  Bytes.
 */
void uct_nprdma_bounce_set_budget(size_t max_pinned);


/** @return Bytes pinned by all pools of this process. */
size_t uct_nprdma_bounce_pinned(void);

/**
 * In a child of fork(): the child has none of the memory that its parent
 * pinned.
 */
void uct_nprdma_bounce_forked(void);


/**
 * Set up a pool and register its first chunk. A pool gets max_slots at once as
 * long as at most a quarter of the budget is in use. After that a pool begins
 * with as few as min_slots and grows on demand.
 *
 * @param [out] pool       Pool to set up; the caller calls
 *                         uct_nprdma_bounce_cleanup() after success.
 * @param [in]  dev        Device; the memory is registered with its PD.
 * @param [in]  slot_size  Bytes per slot; rounded up to a cache line.
 * @param [in]  max_slots  Slots that the pool can use.
 * @param [in]  min_slots  Slots that the pool cannot work without.
 * @param [in]  name       Constant string for messages; not copied.
 *
 * @return UCS_OK, or UCS_ERR_NO_MEMORY with a logged reason.
 */
ucs_status_t
uct_nprdma_bounce_init(uct_nprdma_bounce_t *pool, struct uct_nprdma_device *dev,
                       size_t slot_size, unsigned max_slots,
                       unsigned min_slots, const char *name);


/**
 * Add slots, within max_slots and half of the budget: the other half, or what
 * they need at least if that is more, is kept for pools that are created later.
 * Each of the few growths costs system calls.
 * After a growth that fails, the pool never grows again.
 *
 * @param [in] pool  Pool.
 *
 * @return Number of slots added, 0 if none.
 */
unsigned uct_nprdma_bounce_grow(uct_nprdma_bounce_t *pool);


/**
 * Deregister and free the memory of a pool. No work request may still use it.
 *
 * @param [in] pool  Pool set up by uct_nprdma_bounce_init().
 */
void uct_nprdma_bounce_cleanup(uct_nprdma_bounce_t *pool);


/**
 * Check whether one of several users of a pool may have one more slot. It may
 * have less than two thirds of the slots that no other user holds. Therefore
 * some slots are left for the next user, even if one user never returns its
 * own.
 *
 * @param [in] pool     Pool.
 * @param [in] held     Slots that the user holds.
 * @param [in] reserve  Slots that are kept for other purposes; they do not
 *                      count as free.
 *
 * @return Nonzero if the user may have one more.
 */
static inline int
uct_nprdma_bounce_has_share(const uct_nprdma_bounce_t *pool, unsigned held,
                            unsigned reserve)
{
    return held + (2 * reserve) <
           2 * (pool->num_free + pool->max_slots - pool->num_slots);
}


/**
 * @return A free slot, to be returned with uct_nprdma_bounce_put(), or NULL.
 */
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


/** Return a slot to its pool. */
static inline void uct_nprdma_bounce_put(uct_nprdma_slot_t *slot)
{
    uct_nprdma_bounce_t *pool = slot->pool;

    slot->next = pool->free;
    pool->free = slot;
    ++pool->num_free;
}


/**
 * Completion function for the completion of a slot that has no other use after
 * the completion. The slot is counted in conn->num_slots.
 *
 * @param [in] iface   Interface.
 * @param [in] conn    Connection of the WR.
 * @param [in] comp    Completion of the slot.
 * @param [in] status  Ignored.
 */
void uct_nprdma_slot_release_comp(struct uct_nprdma_net_iface *iface,
                                  uct_nprdma_conn_t *conn,
                                  uct_nprdma_comp_t *comp, ucs_status_t status);

#endif
