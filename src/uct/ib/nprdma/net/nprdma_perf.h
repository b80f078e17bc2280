/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_PERF_H_
#define UCT_NPRDMA_PERF_H_

#include <infiniband/verbs.h>
#include <ucs/type/status.h>

/*
 * What operations on a device cost. contrib/bench/calibrate measures the
 * values. nprdma_estimate.h makes UCX's attributes of them.
 */

/* A name of the value in UCX_NPRDMA_PERF is that of its field */
typedef struct uct_nprdma_perf {
    double overhead;       /* seconds of a CPU for one message, at each side */
    double latency;        /* seconds from side to side besides that */
    double rendezvous;     /* seconds that a message by rendezvous takes longer
                            * than an active message of the same, small size */
    double bandwidth;      /* bytes/s of zero copy. 0: that of the port */
    double am_bandwidth;   /* bytes/s of a stream of longest active messages,
                            * which are copied at both sides */
    double lane_bandwidth; /* bytes/s that UCX may count when it compares the
                            * interface with other transports. 0: bandwidth */
    int    is_per_process; /* nonzero: processes of a node do not share it */
} uct_nprdma_perf_t;


/** Of the emulated RNIC. */
extern const uct_nprdma_perf_t uct_nprdma_perf_emulated;

/** Of an adapter of which only the speed of the port is known. */
extern const uct_nprdma_perf_t uct_nprdma_perf_adapter;


/**
 * Compute the bandwidth of a port for the payload of full packets, from the
 * rates of lanes and the headers in the InfiniBand specification (volume 1
 * chapter 5, volume 2 chapter 5) and its annex A17 (RoCEv2).
 *
 * @param [in] attr  Attributes of the port.
 *
 * @return Bytes per second; that of 10 Gbit/s if the port does not tell its
 *         width and speed.
 */
double uct_nprdma_perf_port_bandwidth(const struct ibv_port_attr *attr);

/**
 * Add a wire between two emulated devices. What the CPU does for a byte of an
 * active message, and not for one of zero copy, comes on top of the wire.
 *
 * @param [inout] perf       Costs without the wire; bandwidth is not 0.
 * @param [in]    rate       Bytes per second, not 0.
 * @param [in]    latency    Seconds from side to side. A rendezvous crosses the
 *                           wire three times more than a message.
 * @param [in]    is_shared  Nonzero: processes of a node share it.
 */
void uct_nprdma_perf_add_wire(uct_nprdma_perf_t *perf, double rate,
                              double latency, int is_shared);

/**
 * Apply UCX_NPRDMA_PERF: "auto", or items NAME:VALUE between commas. The values
 * are times ("300ns") and bandwidths ("12000MBs") in the form of UCX's own
 * variables.
 *
 * @param [in]    text  Value of the variable.
 * @param [inout] perf  Fields that are named are set. After an error, some may
 *                      be.
 *
 * @return UCS_OK, or UCS_ERR_INVALID_PARAM with a logged reason that names the
 *         variable and the item.
 */
ucs_status_t uct_nprdma_perf_parse(const char *text, uct_nprdma_perf_t *perf);

#endif
