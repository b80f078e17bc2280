/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_LONGEST_H_
#define UCT_NPRDMA_LONGEST_H_

#include "nprdma_rma_iface.h"

/*
 * How long operations wait, and for what, so that a job that makes no progress
 * tells whether it is slow or stuck, and where. Progress that finds nothing to
 * do looks at the endpoints now and then; operations themselves note nothing.
 * A look remembers what has been started, and the next ones see how long it
 * takes until all of that is done: so waits are found too short by the time
 * between two looks, which is UCT_NPRDMA_LONGEST_INTERVAL or a little more.
 */

/*
 * What is waited for, as in the names of the counters (longest_xx_us), and for
 * people.
 */
#define UCT_NPRDMA_FOREACH_WAIT(_macro) \
    _macro(connecting, "the connection to be set up") \
    _macro(credits, "room in a send queue, or for a buffer or a reply") \
    _macro(fence, "the operations before a fence") \
    _macro(send, "the peer's device to acknowledge, or its receives") \
    _macro(reply, "the peer's service to reply") \
    _macro(populate, "the peer's service to bring pages in") \
    _macro(copy, "the peer's service to copy") \
    _macro(transfer, "the device to move data") \
    _macro(verification, "the device to read page states") \
    _macro(held, "its turn, or for a resource: nothing is under way")

typedef enum uct_nprdma_wait_for {
    UCT_NPRDMA_WAIT_nothing,
#define UCT_NPRDMA_WAIT_ENUM(_name, _text) UCT_NPRDMA_WAIT_##_name,
    UCT_NPRDMA_FOREACH_WAIT(UCT_NPRDMA_WAIT_ENUM)
#undef UCT_NPRDMA_WAIT_ENUM
    UCT_NPRDMA_WAIT_LAST
} uct_nprdma_wait_for_t;


/* Calls of progress without anything to do between looks at the clock: a power
 * of two */
#define UCT_NPRDMA_LONGEST_POLLS     1024u

/* Seconds between looks at the endpoints, at least */
#define UCT_NPRDMA_LONGEST_INTERVAL  10e-3


/**
 * Look at all endpoints of an interface, if it is time. From progress.
 *
 * @param [in] now  The time.
 */
void uct_nprdma_longest_look(uct_nprdma_rma_iface_t *iface,
                             ucs_time_t now);


/** What progress does that found nothing, once in UCT_NPRDMA_LONGEST_POLLS. */
void uct_nprdma_longest_polled(uct_nprdma_rma_iface_t *iface);

/** Progress has found nothing. */
static UCS_F_ALWAYS_INLINE void
uct_nprdma_longest_poll(uct_nprdma_rma_iface_t *iface)
{
    if (ucs_unlikely((++iface->longest.num_polls %
                      UCT_NPRDMA_LONGEST_POLLS) == 0)) {
        uct_nprdma_longest_polled(iface);
    }
}

#endif
