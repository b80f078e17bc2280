/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_LONGEST_H_
#define UCT_NPRDMA_LONGEST_H_

#include "nprdma_rma_iface.h"

/* Measures how long operations wait, and for what. Then the log of a job
 * without progress shows whether it is slow or stuck, and where. Progress that
 * finds no work scans the endpoints at intervals; operations record nothing. A
 * scan remembers the last operation that has started, and later scans measure
 * the time until all up to that one are done. Therefore a wait is measured too
 * short by at most the time between two scans, UCT_NPRDMA_LONGEST_INTERVAL or a
 * little more. */

/* Reasons of waits, with their text for the log */
#define UCT_NPRDMA_FOREACH_WAIT(_macro) \
    _macro(connecting, "the connection to be set up") \
    _macro(credits, "a free entry of a send queue, buffer or reply slot") \
    _macro(fence, "the operations before a fence") \
    _macro(send, "an acknowledgement or a posted receive of the peer") \
    _macro(reply, "a reply of the peer's service") \
    _macro(populate, "the peer's service to populate pages") \
    _macro(copy, "the peer's service to copy data") \
    _macro(transfer, "the device to transfer data") \
    _macro(verification, "the device to read page states") \
    _macro(held, "earlier operations or a resource: it has not started")

typedef enum uct_nprdma_wait_for {
    UCT_NPRDMA_WAIT_nothing,
#define UCT_NPRDMA_WAIT_ENUM(_name, _text) UCT_NPRDMA_WAIT_##_name,
    UCT_NPRDMA_FOREACH_WAIT(UCT_NPRDMA_WAIT_ENUM)
#undef UCT_NPRDMA_WAIT_ENUM
    UCT_NPRDMA_WAIT_LAST
} uct_nprdma_wait_for_t;


/* Calls of progress without work between two reads of the clock: a power of
 * two */
#define UCT_NPRDMA_LONGEST_POLLS     1024u

/* Shortest time between two scans of the endpoints, in seconds */
#define UCT_NPRDMA_LONGEST_INTERVAL  10e-3


/* Scan all endpoints of an interface, if a scan is due. From progress. */
void uct_nprdma_longest_check(uct_nprdma_rma_iface_t *iface,
                              ucs_time_t now);


/* Part of uct_nprdma_longest_poll(), once in UCT_NPRDMA_LONGEST_POLLS calls */
void uct_nprdma_longest_polled(uct_nprdma_rma_iface_t *iface);

/* Called by progress that has found no work */
static UCS_F_ALWAYS_INLINE void
uct_nprdma_longest_poll(uct_nprdma_rma_iface_t *iface)
{
    if (ucs_unlikely((++iface->longest.num_polls %
                      UCT_NPRDMA_LONGEST_POLLS) == 0)) {
        uct_nprdma_longest_polled(iface);
    }
}

#endif
