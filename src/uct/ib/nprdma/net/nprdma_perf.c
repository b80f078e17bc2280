/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_perf.h"

#include <ucs/sys/math.h>

#include <stdlib.h>

/* Bytes of a packet besides payload. InfiniBand: local route header, base
 * transport header, two checksums. RoCEv2: preamble and gap, Ethernet, IPv4,
 * UDP, base transport header, two checksums */
#define UCT_NPRDMA_PERF_IB_HEADERS    (8 + 12 + 4 + 2)
#define UCT_NPRDMA_PERF_ROCE_HEADERS  (20 + 14 + 20 + 8 + 12 + 4 + 4)

/* Bytes per second of a port that does not tell */
#define UCT_NPRDMA_PERF_UNKNOWN_PORT  1.25e9

/* The CPU that posts or receives moves the data, so there is no port. Beside
 * UCX's own transports of shared memory the device adds no bandwidth: it moves
 * data as cma does, by the same CPUs. UCX takes every lane into a rendezvous
 * that has a fourth of the fastest lane's bandwidth (UCX_MULTI_LANE_MAX_RATIO),
 * and gives cma 11145 MB/s. lane_bandwidth is less than a fourth of that.
 * contrib/bench/calibrate prints these values. am_bandwidth is not the speed of
 * fragments, 26 GB/s, with which no message would be a rendezvous: it makes UCX
 * send at most some 32 KiB in fragments, which others wait behind. */
const uct_nprdma_perf_t uct_nprdma_perf_emulated = {
    .overhead       = 70e-9,
    .latency        = 2e-9,
    .rendezvous     = 3650e-9,
    .bandwidth      = 11.7e9,
    .am_bandwidth   = 5.08e9,
    .lane_bandwidth = 2.8e9,
    .is_per_process = 1
};

/* The work of the CPU is that of the emulated device. The latency is that of
 * current adapters and one switch, and a rendezvous crosses the network three
 * times more. */
const uct_nprdma_perf_t uct_nprdma_perf_adapter = {
    .overhead       = 200e-9,
    .latency        = 1000e-9,
    .rendezvous     = 4000e-9,
    .bandwidth      = 0,
    .am_bandwidth   = 5.0e9,
    .lane_bandwidth = 0,
    .is_per_process = 0
};

double uct_nprdma_perf_port_bandwidth(const char *rate,
                                      const struct ibv_port_attr *attr)
{
    double raw     = strtod(rate, NULL) * 1e9 / 8;
    double headers = (attr->link_layer == IBV_LINK_LAYER_ETHERNET) ?
                             UCT_NPRDMA_PERF_ROCE_HEADERS :
                             UCT_NPRDMA_PERF_IB_HEADERS;
    double mtu;

    if (!(raw > 0) || (attr->active_mtu < IBV_MTU_256) ||
        (attr->active_mtu > IBV_MTU_4096)) {
        return UCT_NPRDMA_PERF_UNKNOWN_PORT;
    }

    mtu = 128 << attr->active_mtu;
    return raw * mtu / (mtu + headers);
}

void uct_nprdma_perf_add_wire(uct_nprdma_perf_t *perf, double rate,
                              double latency, int is_shared)
{
    double copies = ucs_max(0, (1 / perf->am_bandwidth) -
                               (1 / perf->bandwidth));

    perf->latency       += latency;
    perf->rendezvous    += 3 * latency;
    perf->bandwidth      = ucs_min(perf->bandwidth, rate);
    perf->am_bandwidth   = 1 / ((1 / perf->bandwidth) + copies);
    perf->lane_bandwidth = ucs_min(perf->lane_bandwidth, rate);
    perf->is_per_process = perf->is_per_process && !is_shared;
}
