/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_TEST_CONN_INDEX_H_
#define NPRDMA_TEST_CONN_INDEX_H_

#include <uct/api/uct.h>

#ifdef __cplusplus
extern "C" {
#endif

/** @return Entry of the interface's table that has the endpoint's connection
 *          for messages. */
unsigned conn_index(uct_ep_h ep);

#ifdef __cplusplus
}
#endif

#endif
