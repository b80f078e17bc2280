/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_BOUNCE_H_
#define UCT_NPRDMA_BOUNCE_H_

#include "nprdma_conn_types.h"
#include "nprdma_credits.h"

#include <ucs/sys/compiler_def.h>
#include <ucs/sys/math.h>

/* Bounce slots: the only memory that this transport pins. All pools of a
 * process share one budget (UCX_NPRDMA_MAX_PINNED); its functions are safe in
 * any thread. A pool grows and never shrinks, and one thread at a time uses
 * it. */

/* Bytes that are enough for the pools of two memory domains with one interface
 * each, as MPI with windows has them, at both sides of operations: with short
 * slots, and with others */
#define UCT_NPRDMA_MIN_PINNED   (64 * UCS_KBYTE)
#define UCT_NPRDMA_FULL_PINNED  (768 * UCS_KBYTE)

/* What more than that is good for ends here */
#define UCT_NPRDMA_MAX_PINNED   (4 * UCS_MBYTE)

typedef struct uct_nprdma_bounce       uct_nprdma_bounce_t;
typedef struct uct_nprdma_bounce_chunk uct_nprdma_bounce_chunk_t;

/* Descriptor of one slot, in unpinned memory */
typedef struct uct_nprdma_slot {
    /* Of its user, while a WR uses the slot */
    uct_nprdma_comp_t       comp;
    struct uct_nprdma_slot  *next;  /* free list */
    char                    *data;  /* slot_size bytes, pinned */
    uct_nprdma_bounce_t     *pool;
    uint32_t                lkey;
} uct_nprdma_slot_t;

struct uct_nprdma_bounce {
    uct_nprdma_slot_t         *free;     /* LIFO: slots in the CPU's cache */
    unsigned                  num_free;
    unsigned                  num_slots;
    unsigned                  max_slots; /* grows up to this */
    size_t                    slot_size;
    struct uct_nprdma_device      *dev;
    const char                *name;
    uct_nprdma_bounce_chunk_t *chunks;
};


/* A number in a line of /proc/self/status, or 0 */
unsigned long long uct_nprdma_proc_status(const char *name, int base);


/* Bytes that the process may pin by default, at most UCT_NPRDMA_MAX_PINNED. The
 * first call decides, because later ones would count the pools. */
size_t uct_nprdma_bounce_auto(void);


/* The domain that was opened last determines the limit of the process. If auto
 * has found it, UCT_NPRDMA_MAX_PINNED is none for the smallest pools: a process
 * with many contexts works as long as the kernel lets it. */
void uct_nprdma_bounce_set_budget(size_t max_pinned);


/* Bytes that all pools of this process have pinned */
size_t uct_nprdma_bounce_pinned(void);

/* A child of fork() has none of the memory that its parent pinned */
void uct_nprdma_bounce_forked(void);


/* A pool gets max_slots at once as long as at most a quarter of the budget is
 * in use. After that a pool begins with as few as min_slots and grows on
 * demand. The name is a constant string for messages. */
ucs_status_t
uct_nprdma_bounce_init(uct_nprdma_bounce_t *pool, struct uct_nprdma_device *dev,
                       size_t slot_size, unsigned max_slots,
                       unsigned min_slots, const char *name);


/* Add slots within half of the budget, and return their number: the other half,
 * or what they need at least if that is more, is kept for pools that are
 * created later. After a growth that fails, the pool never grows again. */
unsigned uct_nprdma_bounce_grow(uct_nprdma_bounce_t *pool);


/* No work request may still use the pool */
void uct_nprdma_bounce_cleanup(uct_nprdma_bounce_t *pool);


/* Whether a user that holds some slots may have one more; the pool can still
 * grow */
static inline int
uct_nprdma_bounce_has_share(const uct_nprdma_bounce_t *pool, unsigned held,
                            unsigned reserve)
{
    return uct_nprdma_credits_has_share(held, pool->num_free +
                                              pool->max_slots -
                                              pool->num_slots, reserve);
}


/* A free slot, or NULL */
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


static inline void uct_nprdma_bounce_put(uct_nprdma_slot_t *slot)
{
    uct_nprdma_bounce_t *pool = slot->pool;

    slot->next = pool->free;
    pool->free = slot;
    ++pool->num_free;
}


/* Completion function of a slot, counted in conn->num_slots, that has no other
 * use */
void uct_nprdma_slot_release_comp(struct uct_nprdma_net_iface *iface,
                                  uct_nprdma_conn_t *conn,
                                  uct_nprdma_comp_t *comp, ucs_status_t status);

#endif
