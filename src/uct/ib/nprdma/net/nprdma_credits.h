/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_CREDITS_H_
#define UCT_NPRDMA_CREDITS_H_

#include <ucs/sys/math.h>

/*
 * Whether a user may have one more of a resource that users share: a slot, an
 * operation, a slice, an awaited reply. There are three rules.
 *
 * - The more a user holds, the more must be free. It gets less than two thirds
 *   of what no other user holds. So some are left for the next user, even if
 *   one never returns its own.
 * - A reserve is left to redo and verification, on which others wait.
 * - Large operations hold a part at most, so a small one never waits until a
 *   large one returns its own. A user's small and large ones count separately.
 */


/* A resource with both classes of operations */
typedef struct uct_nprdma_credits {
    unsigned num_free;
    unsigned num_large; /* That large operations hold */
    unsigned max_large;
} uct_nprdma_credits_t;


/* The first two rules: whether a user that holds some may have one more */
static inline int
uct_nprdma_credits_has_share(unsigned held, unsigned num_free, unsigned reserve)
{
    return (num_free > reserve) && (held < (2 * (num_free - reserve)));
}


/* Large operations do not get num_small of them */
static inline void uct_nprdma_credits_init(uct_nprdma_credits_t *credits,
                                           unsigned total, unsigned num_small)
{
    credits->num_free  = total;
    credits->num_large = 0;
    credits->max_large = total - num_small;
}


/* Whether a user that holds some in this class may have one more */
static inline int uct_nprdma_credits_admit(const uct_nprdma_credits_t *credits,
                                           unsigned held, unsigned reserve,
                                           int is_large)
{
    unsigned num_free = credits->num_free;

    if (is_large) {
        num_free = ucs_min(num_free, credits->max_large - credits->num_large);
    }
    return uct_nprdma_credits_has_share(held, num_free, reserve);
}


static inline void
uct_nprdma_credits_take(uct_nprdma_credits_t *credits, int is_large)
{
    --credits->num_free;
    credits->num_large += is_large;
}


static inline void
uct_nprdma_credits_put(uct_nprdma_credits_t *credits, int is_large)
{
    ++credits->num_free;
    credits->num_large -= is_large;
}

#endif
