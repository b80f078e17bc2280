/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_STATS_UCS_H_
#define UCT_NPRDMA_STATS_UCS_H_

#include "nprdma_md.h"
#include "uct/ib/nprdma/compat/nprdma_compat.h"
#include "uct/ib/nprdma/net/nprdma_net.h"

/*
 * The counters as UCX's statistics (UCX_STATS_DEST), if the UCX of this build
 * has them. UCX writes the contents of its nodes at any time without a
 * callback. Therefore the counters are copied to the nodes at intervals, and at
 * the end.
 */

#ifdef ENABLE_STATS

/* Part of an interface. All nodes are NULL while statistics are off. */
typedef struct uct_nprdma_stats_ucs {
    uct_nprdma_net_iface_t *iface;
    uct_nprdma_md_t  *md;
    ucs_stats_node_t *counters;
    ucs_stats_node_t *waits;    /* longest_xx_us: a node has at most 64
                                 * counters */
    ucs_stats_node_t *memory;   /* of the interface's MD */
    int              timer_id;  /* -1: no timer */
} uct_nprdma_stats_ucs_t;

#define UCT_NPRDMA_STATS_UCS_DECLARE uct_nprdma_stats_ucs_t stats_ucs;
#define UCT_NPRDMA_STATS_UCS(_iface) (&(_iface)->stats_ucs)

/**
 * Add nodes with the interface's counters below the interface's own node, and
 * start to update them.
 *
 * @param [in]  iface  Interface; its base class is initialized and its worker
 *                     has an asynchronous context.
 * @param [in]  md     Its memory domain.
 * @param [out] nodes  Filled; the caller calls uct_nprdma_stats_ucs_end().
 *
 * @return UCS_OK, also if statistics are off; or an error of UCX. Nothing is
 *         left allocated then.
 */
ucs_status_t uct_nprdma_stats_ucs_start(uct_nprdma_net_iface_t *iface,
                                        uct_nprdma_md_t *md,
                                        uct_nprdma_stats_ucs_t *nodes);


/**
 * Update the nodes a last time and release them; UCX keeps the numbers until
 * the process ends. The worker's asynchronous context is not blocked.
 *
 * @param [in] nodes  Filled by uct_nprdma_stats_ucs_start().
 * @param [in] mem    Last memory statistics of the interface's MD.
 */
void uct_nprdma_stats_ucs_end(uct_nprdma_stats_ucs_t *nodes,
                              const uct_nprdma_mem_stats_t *mem);

#else

typedef struct uct_nprdma_stats_ucs uct_nprdma_stats_ucs_t;

#define UCT_NPRDMA_STATS_UCS_DECLARE
#define UCT_NPRDMA_STATS_UCS(_iface) NULL

static inline ucs_status_t
uct_nprdma_stats_ucs_start(uct_nprdma_net_iface_t UCS_V_UNUSED *iface,
                           uct_nprdma_md_t UCS_V_UNUSED *md,
                           uct_nprdma_stats_ucs_t UCS_V_UNUSED *nodes)
{
    return UCS_OK;
}

static inline void
uct_nprdma_stats_ucs_end(uct_nprdma_stats_ucs_t UCS_V_UNUSED *nodes,
                         const uct_nprdma_mem_stats_t UCS_V_UNUSED *mem)
{
}

#endif

#endif
