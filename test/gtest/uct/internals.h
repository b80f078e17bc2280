/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_TEST_INTERNALS_H_
#define NPRDMA_TEST_INTERNALS_H_

#include <uct/api/uct.h>

/* What only the component knows of its endpoints and interfaces */

#ifdef __cplusplus
extern "C" {
#endif

/** @return Entry of the interface's table that has the endpoint's connection
 *          for messages. */
unsigned conn_index(uct_ep_h ep);

/** As if what the endpoint waits for had begun then, and not been reported. */
void waits_since(uct_ep_h ep, double seconds);

/** @return Receives that endpoints of an interface have posted for replies to
 *          future requests. */
unsigned spares_count(uct_iface_h iface);

/**
 * @return Nonzero if nothing waits for a reply, and every receive buffer is
 *         accounted for: free, or a spare.
 */
int spares_rest(uct_iface_h iface);

/** @return Nonzero if a connection is being made. */
int conn_is_connecting(uct_ep_h ep, unsigned kind);

/** @return Nonzero if a connection is there. */
int conn_is_connected(uct_ep_h ep, unsigned kind);

/** Let an endpoint send messages as if none waited at the peer. */
void forget_messages(uct_ep_h ep);

/** @return Nonzero if all destroyed endpoints of an interface are freed. */
int eps_are_freed(uct_iface_h iface);

/**
 * @return Nonzero if an interface has nothing outstanding: all queue entries
 *         and buffers of sends are back, and destroyed endpoints are freed.
 */
int iface_is_settled(uct_iface_h iface);

/** Leave one place in the completion queue for messages, or none at all.
 * @return Places that cq_show() is to give back. */
int cq_hide(uct_ep_h ep);
int cq_hide_all(uct_iface_h iface);
void cq_show(uct_iface_h iface, int hidden);

/** @return Nonzero if more completions can come than the queue has places. */
int cq_is_overrun(uct_iface_h iface);

/** @return Nonzero if slices of large operations are in flight. */
int iface_has_slices(uct_iface_h iface);

/** @return Calls of progress in a row that found nothing to do. */
unsigned iface_idle(uct_iface_h iface);

/** @return Connections whose requests the service of an interface executes. */
unsigned num_served(uct_iface_h iface);

/** Hold the asynchronous context of an interface's worker: it answers no
 *  connection requests. */
void async_hold(uct_iface_h iface);

/** Undo async_hold(). */
void async_release(uct_iface_h iface);

/** Answer the requests that arrived in the meantime. Nothing else signals
 *  them. */
void async_answer(uct_iface_h iface);

#ifdef __cplusplus
}
#endif

#endif
