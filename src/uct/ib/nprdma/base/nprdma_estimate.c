/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_estimate.h"

/* Default of UCX_BCOPY_BW in the new protocol selection, bytes/s. UCX tells it
 * to no transport */
#define UCT_NPRDMA_UCP_COPY_BANDWIDTH  7e9

/* Bytes/s of put and get */
static double uct_nprdma_estimate_own(const uct_nprdma_estimate_t *estimate)
{
    const uct_nprdma_perf_t *perf = &estimate->perf;

    return estimate->has_zcopy ? perf->bandwidth :
                                 ucs_min(perf->bandwidth, perf->am_bandwidth);
}

/* Bytes/s when UCX compares interfaces */
static double uct_nprdma_estimate_lane(const uct_nprdma_estimate_t *estimate)
{
    double own  = uct_nprdma_estimate_own(estimate);
    double lane = estimate->perf.lane_bandwidth;

    return (lane == 0) ? own : ucs_min(own, lane);
}

/* Seconds per byte that active messages take longer than zero copy */
static double uct_nprdma_estimate_copies(const uct_nprdma_estimate_t *estimate)
{
    const uct_nprdma_perf_t *perf = &estimate->perf;

    return !estimate->has_zcopy ? 0 :
           ucs_max(0, (1 / perf->am_bandwidth) - (1 / perf->bandwidth));
}

static uct_ppn_bandwidth_t
uct_nprdma_estimate_bandwidth(const uct_nprdma_estimate_t *estimate,
                              double bandwidth)
{
    uct_ppn_bandwidth_t ppn = {
        .dedicated = estimate->perf.is_per_process ? bandwidth : 0,
        .shared    = estimate->perf.is_per_process ? 0 : bandwidth
    };

    return ppn;
}

void uct_nprdma_estimate_iface(const uct_nprdma_estimate_t *estimate,
                               uct_iface_attr_t *attr)
{
    const uct_nprdma_perf_t *perf = &estimate->perf;
    double latency                = perf->latency;

    if (estimate->has_zcopy) {
        latency = ucs_max(latency,
                          (perf->rendezvous - (2 * perf->overhead)) / 4);
    }

    attr->overhead  = perf->overhead;
    attr->latency   = ucs_linear_func_make(latency, 0);
    attr->bandwidth = uct_nprdma_estimate_bandwidth(
            estimate, uct_nprdma_estimate_lane(estimate));
}

/* Whether an operation moves memory of the user without a copy */
static int uct_nprdma_estimate_is_zcopy(uct_ep_operation_t op)
{
    return (op == UCT_EP_OP_PUT_ZCOPY) || (op == UCT_EP_OP_GET_ZCOPY);
}

/* Seconds that UCP counts for a copy of the longest active message */
static double
uct_nprdma_estimate_ucp_copy(const uct_nprdma_estimate_t *estimate)
{
    return estimate->max_bcopy / UCT_NPRDMA_UCP_COPY_BANDWIDTH;
}

/* Seconds of a put or get besides the transfer. UCP adds a copy at each side to
 * a fragment, which am_bandwidth has already. So a rendezvous has to cost as
 * much more, less the three latencies and overheads that UCP counts for its
 * messages. */
static double uct_nprdma_estimate_zcopy(const uct_nprdma_estimate_t *estimate)
{
    const uct_nprdma_perf_t *perf = &estimate->perf;

    return ucs_max(perf->overhead,
                   perf->rendezvous +
                   (2 * uct_nprdma_estimate_ucp_copy(estimate)) -
                   (3 * perf->latency) - (2 * perf->overhead));
}

static double
uct_nprdma_estimate_op_bandwidth(const uct_nprdma_estimate_t *estimate,
                                 uct_ep_operation_t op)
{
    double bandwidth = UCT_NPRDMA_NEW_PROTO_LANES ?
                               uct_nprdma_estimate_lane(estimate) :
                               uct_nprdma_estimate_own(estimate);

    return uct_nprdma_estimate_is_zcopy(op) ?
                   bandwidth :
                   1 / ((1 / bandwidth) +
                        uct_nprdma_estimate_copies(estimate));
}

/*
 * All of an operation's overhead is before the sending: what comes behind it,
 * UCX 1.13 counts twice for a get and not at all for a put.
 *
 * Without the bandwidth of the operation, the caller is the old protocol
 * selection, which takes that of the interface; so the copies of a fragment are
 * an overhead. The new one takes a zero-copy active message for one copy less
 * than others. It is none less.
 */
static double uct_nprdma_estimate_pre(const uct_nprdma_estimate_t *estimate,
                                      uct_ep_operation_t op, int has_bandwidth)
{
    double overhead = estimate->perf.overhead;

    if (uct_nprdma_estimate_is_zcopy(op) && estimate->has_zcopy) {
        return uct_nprdma_estimate_zcopy(estimate);
    }
    if (op != UCT_EP_OP_AM_ZCOPY) {
        return overhead;
    }
    return has_bandwidth ?
                   overhead + uct_nprdma_estimate_ucp_copy(estimate) :
                   ucs_max(overhead, estimate->max_bcopy *
                                     uct_nprdma_estimate_copies(estimate));
}

void uct_nprdma_estimate_op(const uct_nprdma_estimate_t *estimate,
                            uct_perf_attr_t *attr)
{
    uct_ep_operation_t op = UCS_PARAM_VALUE(UCT_PERF_ATTR_FIELD, attr,
                                            operation, OPERATION,
                                            UCT_EP_OP_LAST);
    uct_ppn_bandwidth_t bandwidth;

    if (op == UCT_EP_OP_LAST) {
        return;
    }

    bandwidth = uct_nprdma_estimate_bandwidth(
            estimate, uct_nprdma_estimate_op_bandwidth(estimate, op));
    if (attr->field_mask & UCT_PERF_ATTR_FIELD_BANDWIDTH) {
        attr->bandwidth = bandwidth;
    }

#ifdef HAVE_UCT_PERF_ATTR_T_PATH_BANDWIDTH
    if (attr->field_mask & UCT_PERF_ATTR_FIELD_PATH_BANDWIDTH) {
        attr->path_bandwidth = bandwidth;
    }
#endif

    if (attr->field_mask & UCT_PERF_ATTR_FIELD_LATENCY) {
        attr->latency = ucs_linear_func_make(estimate->perf.latency, 0);
    }

    if (attr->field_mask & UCT_PERF_ATTR_FIELD_SEND_PRE_OVERHEAD) {
        attr->send_pre_overhead = uct_nprdma_estimate_pre(
                estimate, op, attr->field_mask & UCT_PERF_ATTR_FIELD_BANDWIDTH);
    }
}
