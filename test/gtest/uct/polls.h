/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_TEST_POLLS_H_
#define NPRDMA_TEST_POLLS_H_

#include <uct/api/uct.h>

/*
 * Counts how often the thread of a test polls the completion queue of the
 * service of an MD. A process has one count, of the MD that it was last started
 * for. Other functions look at what an interface counts itself.
 */

#ifdef __cplusplus
extern "C" {
#endif

/** Begin to count. The MD has one interface. */
void polls_start(uct_md_h md, uct_iface_h iface);

/** @return Polls by the calling thread. */
unsigned polls_of_service(void);

/** @return Nonzero if slices of large operations are in flight. */
int polls_have_slices(uct_iface_h iface);

/** @return Calls of progress in a row that found nothing to do. */
unsigned polls_idle(uct_iface_h iface);

#ifdef __cplusplus
}
#endif

#endif
