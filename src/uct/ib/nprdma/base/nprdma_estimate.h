/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_ESTIMATE_H_
#define UCT_NPRDMA_ESTIMATE_H_

#include "uct/ib/nprdma/compat/nprdma_compat.h"
#include "uct/ib/nprdma/net/nprdma_perf.h"

/*
 * Attributes from which UCP computes when to use which protocol, made of the
 * costs of the device (nprdma_perf.h). UCP has an attribute for most of them,
 * but none for these:
 *
 * - Longer messages than one fragment are a stream of fragments, which are
 *   copied at both sides: am_bandwidth. The old protocol selection takes it as
 *   an overhead of each fragment. The new one asks for the bandwidth of the
 *   operation, and then adds copies of its own.
 * - A rendezvous costs more than the messages that it consists of. The old
 *   selection takes it for four latencies and two overheads more than a
 *   message, so that is what the latency in iface_query() has to tell. The new
 *   one takes the overhead of put and get.
 * - Lanes whose bandwidths do not add up: lane_bandwidth.
 *
 * doc/transport.md has the formulas. The functions are pure.
 */

/* An interface for which UCX asks */
typedef struct uct_nprdma_estimate {
    uct_nprdma_perf_t perf;      /* bandwidth is not 0 */
    size_t            max_bcopy; /* longest active message, bytes */
    int               has_zcopy; /* zero: all data goes through bounce slots */
} uct_nprdma_estimate_t;


/* Overhead, latency and bandwidth are set */
void uct_nprdma_estimate_iface(const uct_nprdma_estimate_t *estimate,
                               uct_iface_attr_t *attr);

/* Set what depends on the operation, after uct_base_iface_estimate_perf() */
void uct_nprdma_estimate_op(const uct_nprdma_estimate_t *estimate,
                            uct_perf_attr_t *attr);

#endif
