/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_RMA_CONFIG_H_
#define UCT_NPRDMA_RMA_CONFIG_H_

#include "nprdma_order.h"

#include <nprdma_uapi.h>

#include <stddef.h>

/* Limits of a slice. Buffers for page states have the size for the largest
 * slice. */
#define UCT_NPRDMA_MIN_SLICE  NPRDMA_PAGE_SIZE
#define UCT_NPRDMA_MAX_SLICE  (1024 * 1024)

/* With UCX_NPRDMA_SCHED=y: bytes of the longest operation that is urgent, and
 * of a slice while something urgent goes on */
#define UCT_NPRDMA_PRIO_MAX    8192
#define UCT_NPRDMA_BUSY_SLICE  65536

/* Configuration of put, get and atomics */
typedef struct uct_nprdma_rma_config {
    /* Bytes of an operation that are moved and verified at once */
    size_t   slice;
    /* Nonzero: small operations pass large ones; the next four follow from
     * it */
    int      sched;
    size_t   prio_max;      /* longest operation that is urgent, bytes */
    size_t   quota;         /* as uct_nprdma_sched_init() has it */
    size_t   busy_slice;    /* slice while something urgent goes on, bytes */
    /* Large operations have queue pairs of their own, unless the interface has
     * many endpoints */
    int      has_bulk_qp;
    size_t   scan_max;      /* longest get that is scanned, bytes */
    unsigned max_tries;     /* optimistic tries of a slice */
    uct_nprdma_order_mode_t order; /* what waits for earlier operations */
    size_t   state_cache;   /* bytes for page states of peers */
} uct_nprdma_rma_config_t;

#endif
