/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_STATS_UCS_H_
#define UCT_NPRDMA_STATS_UCS_H_

#include "nprdma_md.h"
#include "uct/ib/nprdma/compat/nprdma_compat.h"
#include "uct/ib/nprdma/net/nprdma_net.h"

/*
 * The counters as UCX's statistics (UCX_STATS_DEST), where the UCX that this is
 * built for has these. UCX writes what it finds in its nodes and asks nobody
 * before: the counters are copied there now and then, and at the end.
 */

#ifdef ENABLE_STATS

/* Part of an interface. All nodes are NULL while statistics are off. */
typedef struct uct_nprdma_stats_ucs {
    uct_nprdma_net_iface_t *iface;
    uct_nprdma_md_t  *md;
    ucs_stats_node_t *counters;
    ucs_stats_node_t *waits;    /* longest_xx_us: a node has 64 counters at
                                   most */
    ucs_stats_node_t *memory;   /* of the interface's MD */
    int              timer_id;  /* -1: none */
} uct_nprdma_stats_ucs_t;

#define UCT_NPRDMA_STATS_UCS_DECLARE uct_nprdma_stats_ucs_t stats_ucs;
#define UCT_NPRDMA_STATS_UCS(_iface) (&(_iface)->stats_ucs)

/**
 * Add nodes with the interface's counters below the interface's own node, and
 * begin to keep them up to date.
 *
 * @param [in]  iface  Interface; its base is complete and its worker has an
 *                     asynchronous context.
 * @param [in]  md     Its memory domain.
 * @param [out] nodes  Filled; to be given to uct_nprdma_stats_ucs_end().
 *
 * @return UCS_OK, also if statistics are off, or an error; nothing is left
 *         then.
 */
ucs_status_t uct_nprdma_stats_ucs_start(uct_nprdma_net_iface_t *iface,
                                        uct_nprdma_md_t *md,
                                        uct_nprdma_stats_ucs_t *nodes);


/**
 * Leave the last numbers to UCX, which keeps them until the process ends. Not
 * to be called with the worker's asynchronous context blocked.
 *
 * @param [in] nodes  Filled by uct_nprdma_stats_ucs_start().
 * @param [in] mem    Last counters of the interface's MD.
 */
void uct_nprdma_stats_ucs_end(uct_nprdma_stats_ucs_t *nodes,
                              const uct_nprdma_mem_stats_t *mem);

#else

typedef struct uct_nprdma_stats_ucs uct_nprdma_stats_ucs_t;

#define UCT_NPRDMA_STATS_UCS_DECLARE
#define UCT_NPRDMA_STATS_UCS(_iface) NULL

static inline ucs_status_t
uct_nprdma_stats_ucs_start(uct_nprdma_net_iface_t *iface, uct_nprdma_md_t *md,
                           uct_nprdma_stats_ucs_t *nodes)
{
    return UCS_OK;
}

static inline void uct_nprdma_stats_ucs_end(uct_nprdma_stats_ucs_t *nodes,
                                            const uct_nprdma_mem_stats_t *mem)
{
}

#endif

#endif
