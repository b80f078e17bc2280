/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_PERF_H_
#define UCT_NPRDMA_PERF_H_

#include <infiniband/verbs.h>

/* What operations on a device cost. contrib/bench/calibrate measures the
 * values. nprdma_estimate.h makes UCX's attributes of them. */

/* A name of the value in UCX_NPRDMA_PERF is that of its field */
typedef struct uct_nprdma_perf {
    double overhead;       /* seconds of a CPU for one message, at each side */
    double latency;        /* seconds from side to side besides that */
    /* Seconds that a message by rendezvous takes longer than an active message
     * of the same, small size */
    double rendezvous;
    double bandwidth;      /* bytes/s of zero copy. 0: that of the port */
    /* Bytes/s of a stream of longest active messages, which are copied at both
     * sides */
    double am_bandwidth;
    /* Bytes/s that UCX may count when it compares the interface with other
     * transports. 0: bandwidth */
    double lane_bandwidth;
    int    is_per_process; /* nonzero: processes of a node do not share it */
} uct_nprdma_perf_t;


extern const uct_nprdma_perf_t uct_nprdma_perf_emulated;

/* Of an adapter of which only the speed of the port is known */
extern const uct_nprdma_perf_t uct_nprdma_perf_adapter;


/* Bytes/s of the payload of full packets: `rate` begins with Gbit/s, as the
 * kernel's file of the port does, and the headers are those of the InfiniBand
 * specification (volume 1 chapter 5) and its annex A17 (RoCEv2). That of 10
 * Gbit/s if the port does not tell. */
double uct_nprdma_perf_port_bandwidth(const char *rate,
                                      const struct ibv_port_attr *attr);

/* Add a wire between two emulated devices, in bytes/s and seconds from side to
 * side. What the CPU does for a byte of an active message, and not for one of
 * zero copy, comes on top of the wire. A rendezvous crosses it three times more
 * than a message. */
void uct_nprdma_perf_add_wire(uct_nprdma_perf_t *perf, double rate,
                              double latency, int is_shared);

#endif
