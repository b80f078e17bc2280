/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_TEST_SPARES_H_
#define NPRDMA_TEST_SPARES_H_

#include <uct/api/uct.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Spares: receives that endpoints have posted for replies to future requests,
 * as the component counts them.
 */

/** Number of spares of an interface. */
unsigned spares_count(uct_iface_h iface);

/**
 * @return Nonzero if nothing waits for a reply, and every receive buffer is
 *         accounted for: free, or a spare.
 */
int spares_rest(uct_iface_h iface);

/** Take over the sends of an MD that has no endpoint yet. */
void spares_start(uct_md_h md);

/**
 * Send the last reply of the MD's service again. Its connection still exists.
 *
 * @return 0, or an error of ibv_post_send().
 */
int spares_repeat(void);

#ifdef __cplusplus
}
#endif

#endif
