/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_TEST_WAITS_H_
#define NPRDMA_TEST_WAITS_H_

#include <uct/api/uct.h>

#ifdef __cplusplus
extern "C" {
#endif

/** As if what the endpoint waits for had begun then, and not been reported. */
void waits_since(uct_ep_h ep, double seconds);

#ifdef __cplusplus
}
#endif

#endif
