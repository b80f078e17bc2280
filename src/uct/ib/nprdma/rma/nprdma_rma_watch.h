/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_RMA_WATCH_H_
#define UCT_NPRDMA_RMA_WATCH_H_

#include "nprdma_rma_types.h"

/*
 * Whether peers that owe a reply are still there. A request that has arrived
 * leaves nothing in the send queue, so when its target dies no completion tells
 * of that, and the requester would wait for ever. Therefore something is sent
 * to those peers every now and then, by progress. The asynchronous part only
 * wakes those that sleep instead of calling progress.
 */

/**
 * Prepare the watch of an interface.
 *
 * @param [out] watch  Filled.
 */
void uct_nprdma_rma_watch_init(uct_nprdma_rma_iface_t *iface,
                               uct_nprdma_rma_watch_t *watch);

/**
 * The interface is going: stop the timer, if there is one, before what it uses
 * of wire-up is gone. The async context is not blocked.
 */
void uct_nprdma_rma_watch_stop(uct_nprdma_rma_iface_t *iface);


/** Part of progress while replies are awaited: cheap, most of the time. */
void uct_nprdma_rma_watch_progress(uct_nprdma_rma_iface_t *iface,
                                   uct_nprdma_rma_watch_t *watch);


/** The user is about to sleep. If replies are awaited, wake him in time. */
void uct_nprdma_rma_watch_sleep(uct_nprdma_rma_iface_t *iface);

#endif
