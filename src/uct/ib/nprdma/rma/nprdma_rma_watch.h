/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_RMA_WATCH_H_
#define UCT_NPRDMA_RMA_WATCH_H_

#include "nprdma_rma_types.h"

/* Measures how long operations wait, and for what. Then the log of a job
 * without progress shows whether it is slow or stuck, and where. Progress that
 * finds no work scans the endpoints at intervals; operations record nothing. A
 * scan remembers the oldest operation of each kind, and later scans measure the
 * time until it is done. Therefore a wait is measured too short by at most the
 * time between two scans. */

/* Detects peers that owe a reply and no longer exist. A request that has
 * arrived leaves nothing in the send queue. If its target ends then, no
 * completion reports that, and the requester would wait without end. Therefore
 * progress sends probes to such peers at intervals. The asynchronous part only
 * wakes a user that sleeps instead of calling progress. */

void uct_nprdma_rma_watch_init(uct_nprdma_rma_iface_t *iface,
                               uct_nprdma_rma_watch_t *watch);

/* Stop the timer before the interface and its wire-up are destroyed. The async
 * context is not blocked. */
void uct_nprdma_rma_watch_stop(uct_nprdma_rma_iface_t *iface);


/* Whether a peer owes a reply; `res` is there */
static inline int
uct_nprdma_rma_watch_is_needed(const uct_nprdma_rma_iface_t *iface)
{
    return iface->res->num_free_replies < UCT_NPRDMA_RMA_MAX_REPLIES;
}

/* Part of progress while a peer owes a reply: most calls only increment a
 * counter */
void uct_nprdma_rma_watch_progress(uct_nprdma_rma_iface_t *iface,
                                   uct_nprdma_rma_watch_t *watch);


/* The user is about to sleep. If a peer owes a reply, start a timer that wakes
 * the user for the next probes. */
void uct_nprdma_rma_watch_sleep(uct_nprdma_rma_iface_t *iface);


/* Calls of progress without work between two reads of the clock: a power of
 * two */
#define UCT_NPRDMA_LONGEST_POLLS     1024u

/* Scan all endpoints of an interface, if a scan is due */
void uct_nprdma_rma_watch_check(uct_nprdma_rma_iface_t *iface, ucs_time_t now);

/* Called by progress that has found no work */
static UCS_F_ALWAYS_INLINE void
uct_nprdma_rma_watch_poll(uct_nprdma_rma_iface_t *iface)
{
    if (ucs_unlikely((++iface->longest.num_polls %
                      UCT_NPRDMA_LONGEST_POLLS) == 0)) {
        uct_nprdma_rma_watch_check(iface, ucs_get_time());
    }
}

#endif
