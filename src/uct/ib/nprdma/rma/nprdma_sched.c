/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_sched.h"


void uct_nprdma_sched_init(uct_nprdma_sched_t *sched, size_t slice,
                           size_t busy_slice, size_t longest, size_t quota)
{
    ucs_list_head_init(&sched->ready);
    sched->slice      = slice;
    sched->busy_slice = (busy_slice < slice) ? busy_slice : slice;
    sched->quota      = quota;
    sched->quantum    = longest;
    sched->in_flight  = 0;
    sched->urgent     = (uct_nprdma_sched_urgent_t){0};
    sched->expected   = 0;
    sched->expected_ends = 0;
    sched->busy       = 0;
    sched->num_busy   = UCT_NPRDMA_SCHED_BUSY;
    sched->quiet      = UCT_NPRDMA_SCHED_QUIET;
    sched->num_skips  = 0;
    sched->num_full   = 0;
    sched->budget     = uct_nprdma_sched_quota(sched);
}

void uct_nprdma_sched_ep_init(uct_nprdma_sched_ep_t *ep)
{
    ucs_list_head_init(&ep->ops);
    ucs_list_head_init(&ep->briefs);
    ep->in_flight  = 0;
    ep->deficit    = 0;
    ep->num_skips  = 0;
    ep->is_ready   = 0;
    ep->is_blocked = 0;
    ep->is_full    = 0;
}


/* ---- endpoints ---- */

/* Add an endpoint to the ready ones, or remove it, as its state demands */
static void uct_nprdma_sched_update(uct_nprdma_sched_t *sched,
                                    uct_nprdma_sched_ep_t *ep)
{
    int is_ready = !ucs_list_is_empty(&ep->ops) && !ep->is_blocked &&
                   !ep->is_full;

    if (is_ready == ep->is_ready) {
        return;
    }

    ep->is_ready = is_ready;
    if (is_ready) {
        ucs_list_add_tail(&sched->ready, &ep->ready);
    } else {
        ucs_list_del(&ep->ready);
    }
    if (ucs_list_is_empty(&ep->ops)) {
        /* An endpoint without operations saves nothing for later, but what it
         * has overdrawn remains */
        ep->deficit   = (ep->deficit < 0) ? ep->deficit : 0;
        ep->num_skips = 0;
    }
}

/* Check whether an endpoint has its share of the quota. Only one with something
 * in flight has: the end of that finds it again. Something is free. */
static int uct_nprdma_sched_has_share(const uct_nprdma_sched_t *sched,
                                      const uct_nprdma_sched_ep_t *ep)
{
    size_t quota = uct_nprdma_sched_quota(sched);

    return (quota != UCT_NPRDMA_SCHED_NO_QUOTA) &&
           ((ep->in_flight / 2) >= (quota - sched->in_flight));
}

void uct_nprdma_sched_block(uct_nprdma_sched_t *sched,
                            uct_nprdma_sched_ep_t *ep)
{
    ep->is_blocked = 1;
    uct_nprdma_sched_update(sched, ep);
}

void uct_nprdma_sched_unblock(uct_nprdma_sched_t *sched,
                              uct_nprdma_sched_ep_t *ep)
{
    ep->is_blocked = 0;
    uct_nprdma_sched_update(sched, ep);
}


/* ---- operations ---- */

/* @return Nonzero if there are more than expected; none is from then on. */
static int uct_nprdma_sched_exceeds(uint64_t count, unsigned *expected)
{
    int is_more = count > *expected;

    *expected = is_more ? 0 : (*expected - count);
    return is_more;
}

/* There is something urgent: at least as many slices from here on are short */
static void uct_nprdma_sched_shorten(uct_nprdma_sched_t *sched, unsigned count)
{
    sched->busy  = (count > sched->busy) ? count : sched->busy;
    sched->quiet = 0;
}

/* Adapt the number of short slices to the interval of urgent operations */
static unsigned uct_nprdma_sched_adapt(uct_nprdma_sched_t *sched)
{
    if (sched->quiet == UCT_NPRDMA_SCHED_QUIET) {
        sched->num_busy = UCT_NPRDMA_SCHED_BUSY;
    } else if ((sched->busy == 0) &&
               (sched->num_busy < UCT_NPRDMA_SCHED_MAX_BUSY)) {
        sched->num_busy *= 2;
    }
    return sched->num_busy;
}

void uct_nprdma_sched_begin(uct_nprdma_sched_t *sched,
                            uct_nprdma_sched_urgent_t urgent)
{
    uint64_t messages = urgent.messages - sched->urgent.messages;
    uint64_t ends     = urgent.ends - sched->urgent.ends;

    if (uct_nprdma_sched_exceeds(ends, &sched->expected_ends) ||
        (urgent.others != sched->urgent.others)) {
        sched->expected = 0;
        uct_nprdma_sched_shorten(sched, uct_nprdma_sched_adapt(sched));
    } else if (uct_nprdma_sched_exceeds(messages, &sched->expected)) {
        uct_nprdma_sched_shorten(sched, UCT_NPRDMA_SCHED_BUSY);
    }
    sched->urgent = urgent;
    sched->budget = uct_nprdma_sched_quota(sched);
}

void uct_nprdma_sched_add(uct_nprdma_sched_t *sched, uct_nprdma_sched_ep_t *ep,
                          uct_nprdma_sched_op_t *op, size_t length,
                          uct_nprdma_sched_urgent_t urgent, unsigned own)
{
    if ((sched->in_flight == 0) && ucs_list_is_empty(&sched->ready)) {
        sched->urgent        = urgent;
        sched->expected      = 0;
        sched->expected_ends = 0;
    }
    sched->expected = (own < (UCT_NPRDMA_SCHED_MAX_EXPECTED -
                              sched->expected)) ?
                      (sched->expected + own) : UCT_NPRDMA_SCHED_MAX_EXPECTED;
    sched->expected_ends += (own > 0) && (sched->expected_ends <
                                          UCT_NPRDMA_SCHED_MAX_EXPECTED);

    op->is_brief = (length <= sched->slice);
    ucs_list_add_tail(&ep->ops, &op->list);
    if (op->is_brief) {
        ucs_list_add_tail(&ep->briefs, &op->brief);
    }
    uct_nprdma_sched_update(sched, ep);
}

void uct_nprdma_sched_remove(uct_nprdma_sched_t *sched,
                             uct_nprdma_sched_ep_t *ep,
                             uct_nprdma_sched_op_t *op)
{
    ucs_list_del(&op->list);
    if (op->is_brief) {
        ucs_list_del(&op->brief);
    }
    uct_nprdma_sched_update(sched, ep);
}

/* The operation of an endpoint that has its turn */
static uct_nprdma_sched_op_t *
uct_nprdma_sched_choose(uct_nprdma_sched_ep_t *ep)
{
    if (ucs_list_is_empty(&ep->briefs) ||
        (ep->num_skips == UCT_NPRDMA_SCHED_MAX_SKIPS)) {
        return ucs_list_head(&ep->ops, uct_nprdma_sched_op_t, list);
    }
    return ucs_list_head(&ep->briefs, uct_nprdma_sched_op_t, brief);
}

uct_nprdma_sched_op_t *uct_nprdma_sched_next(uct_nprdma_sched_t *sched,
                                             uct_nprdma_sched_ep_t **ep_p)
{
    uct_nprdma_sched_ep_t *ep;

    while (!ucs_list_is_empty(&sched->ready) && (sched->budget > 0)) {
        if (sched->in_flight >= uct_nprdma_sched_quota(sched)) {
            ++sched->num_full;
            break;
        }

        ep = ucs_list_head(&sched->ready, uct_nprdma_sched_ep_t, ready);
        if (!uct_nprdma_sched_has_share(sched, ep)) {
            if (ep->deficit <= 0) {
                /* No slice is longer than the quantum, so this is positive */
                ep->deficit += (int64_t)sched->quantum;
            }
            *ep_p = ep;
            return uct_nprdma_sched_choose(ep);
        }

        /* It leaves the list, so each call and each end of a slice pay for one
         * round of this loop */
        ++sched->num_full;
        ep->is_full = 1;
        uct_nprdma_sched_update(sched, ep);
    }
    return NULL;
}

void uct_nprdma_sched_posted(uct_nprdma_sched_t *sched,
                             uct_nprdma_sched_ep_t *ep,
                             uct_nprdma_sched_op_t *op, size_t length,
                             int is_last)
{
    if (&op->list == ep->ops.next) {
        ep->num_skips = 0;
    } else {
        ++ep->num_skips;
        ++sched->num_skips;
    }

    sched->budget -= (length < sched->budget) ? length : sched->budget;
    if (sched->busy > 0) {
        --sched->busy;
    } else {
        sched->quiet += (sched->quiet < UCT_NPRDMA_SCHED_QUIET);
    }
    uct_nprdma_sched_again(sched, ep, length);
    ep->deficit   -= length;
    if (is_last) {
        uct_nprdma_sched_remove(sched, ep, op);
    }
    if (ep->is_ready && (ep->deficit <= 0)) {
        ucs_list_del(&ep->ready);
        ucs_list_add_tail(&sched->ready, &ep->ready);
    }
}

void uct_nprdma_sched_again(uct_nprdma_sched_t *sched,
                            uct_nprdma_sched_ep_t *ep, size_t length)
{
    sched->in_flight += length;
    ep->in_flight    += length;
}

void uct_nprdma_sched_done(uct_nprdma_sched_t *sched, uct_nprdma_sched_ep_t *ep,
                           size_t length)
{
    sched->in_flight -= length;
    ep->in_flight    -= length;
    if (ep->is_full) {
        ep->is_full = 0;
        uct_nprdma_sched_update(sched, ep);
    }
}
