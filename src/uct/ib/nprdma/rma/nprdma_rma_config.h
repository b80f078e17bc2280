/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_RMA_CONFIG_H_
#define UCT_NPRDMA_RMA_CONFIG_H_

#include <stddef.h>

/* Limits of UCX_NPRDMA_SLICE; buffers for page states are made for the
 * largest */
#define UCT_NPRDMA_MIN_SLICE  4096
#define UCT_NPRDMA_MAX_SLICE  (1024 * 1024)

/* Configuration of put, get and atomics */
typedef struct uct_nprdma_rma_config {
    size_t   slice;         /* of an operation, bytes */
    size_t   scan_max;      /* gets up to this are scanned */
    unsigned max_tries;     /* optimistic ones of a slice */
    int      atomic_order;  /* atomics wait for puts and gets */
    size_t   state_cache;   /* of peers' page states, bytes */
} uct_nprdma_rma_config_t;

#endif
