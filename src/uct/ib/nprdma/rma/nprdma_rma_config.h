/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_RMA_CONFIG_H_
#define UCT_NPRDMA_RMA_CONFIG_H_

#include "nprdma_order.h"

#include <nprdma_uapi.h>

#include <stddef.h>

/* Limits of UCX_NPRDMA_SLICE. Buffers for page states have the size for the
 * largest slice. */
#define UCT_NPRDMA_MIN_SLICE  NPRDMA_PAGE_SIZE
#define UCT_NPRDMA_MAX_SLICE  (1024 * 1024)

/* Maximum of UCX_NPRDMA_WEIGHT */
#define UCT_NPRDMA_MAX_WEIGHT  16

/* UCX_NPRDMA_BULK_QP */
typedef enum uct_nprdma_bulk_qp {
    UCT_NPRDMA_BULK_QP_AUTO,    /* unless the interface has many endpoints */
    UCT_NPRDMA_BULK_QP_NO,
    UCT_NPRDMA_BULK_QP_LAST
} uct_nprdma_bulk_qp_t;

/* Configuration of put, get and atomics */
typedef struct uct_nprdma_rma_config {
    size_t   slice;         /* bytes of an operation that are moved and verified
                             * at once */
    size_t   prio_max;      /* longest operation that is urgent, bytes */
    size_t   tx_quota;      /* bytes of large operations that the NIC has at
                             * once; may be UCS_MEMUNITS_AUTO or _INF */
    size_t   busy_slice;    /* slice while something urgent goes on, bytes */
    unsigned weight;        /* share of large operations */
    uct_nprdma_bulk_qp_t bulk_qp; /* whether they have queue pairs of their
                                   * own */
    size_t   scan_max;      /* longest get that is scanned, bytes */
    unsigned max_tries;     /* optimistic tries of a slice */
    uct_nprdma_order_mode_t order; /* what waits for earlier operations */
    size_t   state_cache;   /* bytes for page states of peers */
} uct_nprdma_rma_config_t;

#endif
