/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_TEST_SPARES_H_
#define NPRDMA_TEST_SPARES_H_

#include <uct/api/uct.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Receives that endpoints have posted for replies that nothing has been asked
 * for yet, as the component has them.
 */

/** Most of them that an interface has at a time. */
unsigned spares_max(void);

/** How many an interface has. */
unsigned spares_count(uct_iface_h iface);

/**
 * @return Nonzero if nothing waits for a reply, and everything that could is
 *         there: free, or a spare.
 */
int spares_rest(uct_iface_h iface);

/** Take over the sends of an MD; before it has any endpoint. */
void spares_start(uct_md_h md);

/** Whether its service sends each reply twice from now on. */
void spares_double(int is_double);

#ifdef __cplusplus
}
#endif

#endif
