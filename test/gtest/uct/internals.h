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

#ifdef __cplusplus
}
#endif

#endif
