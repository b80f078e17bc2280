/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "uct_test.h"

extern "C" {
#include <uct/ib/nprdma/net/nprdma_perf.h>
}

#include <cmath>

/*
 * What UCX is told of the speed of a device: the values that are configured,
 * and else those of the device.
 */

namespace {

const double close_to = 1e-12;

/* All values differ from those of every device */
const config_t configured = {
    {"PERF", "overhead:110ns,latency:700ns,rendezvous:9us,bandwidth:8000MBs,"
             "am_bandwidth:2000MBs,lane_bandwidth:4000MBs"}
};

constexpr double mega = 1 << 20;

uct_perf_attr_t estimate(entity &e, uct_ep_operation_t op, uint64_t fields)
{
    uct_perf_attr_t attr = {};

    attr.field_mask = UCT_PERF_ATTR_FIELD_OPERATION | fields;
    attr.operation  = op;
    EXPECT_EQ(UCS_OK, uct_iface_estimate_perf(e.iface(), &attr));
    return attr;
}

double total(const uct_ppn_bandwidth_t &bandwidth)
{
    return bandwidth.dedicated + bandwidth.shared;
}

struct port {
    const char   *rate; /* as in the kernel's file of the port */
    uint8_t      layer;
    enum ibv_mtu mtu;
    double       gbits; /* of the link, without headers */
    double       share; /* of payload in full packets */
};

const port ports[] = {
    {"100 Gb/sec (4X EDR)\n", IBV_LINK_LAYER_INFINIBAND, IBV_MTU_4096, 100,
     4096. / 4122},
    {"100 Gb/sec (4X EDR)\n", IBV_LINK_LAYER_ETHERNET, IBV_MTU_1024, 100,
     1024. / 1106},
    {"2.5 Gb/sec (1X SDR)\n", IBV_LINK_LAYER_INFINIBAND, IBV_MTU_256, 2.5,
     256. / 282},
    /* What is not known counts as 10 Gbit/s */
    {"", IBV_LINK_LAYER_INFINIBAND, IBV_MTU_4096, 10, 1},
    {"nan", IBV_LINK_LAYER_INFINIBAND, IBV_MTU_4096, 10, 1},
    {"100", IBV_LINK_LAYER_INFINIBAND, static_cast<enum ibv_mtu>(7), 10, 1}
};

} // namespace

TEST(test_perf, port_bandwidth)
{
    for (auto &p : ports) {
        struct ibv_port_attr attr = {};

        attr.link_layer = p.layer;
        attr.active_mtu = p.mtu;
        EXPECT_NEAR(p.gbits * 1e9 / 8 * p.share,
                    uct_nprdma_perf_port_bandwidth(p.rate, &attr), 1)
                << p.rate;
    }
}

TEST(test_perf, interface_has_configured_values)
{
    entity e(configured);

    EXPECT_NEAR(110e-9, e.attr().overhead, close_to);
    EXPECT_NEAR(4000 * mega, total(e.attr().bandwidth), 1);
    /* Four of these and two overheads are a rendezvous */
    EXPECT_NEAR(9e-6, 4 * e.attr().latency.c + 2 * e.attr().overhead,
                close_to);
    EXPECT_EQ(0, e.attr().latency.m);
}

/* The old protocol selection asks for overheads only */
TEST(test_perf, fragment_is_an_overhead)
{
    const uint64_t fields = UCT_PERF_ATTR_FIELD_SEND_PRE_OVERHEAD |
                            UCT_PERF_ATTR_FIELD_SEND_POST_OVERHEAD;
    entity e(configured);
    uct_perf_attr_t attr = estimate(e, UCT_EP_OP_AM_ZCOPY, fields);

    EXPECT_NEAR(e.attr().cap.am.max_bcopy *
                        (1 / (2000 * mega) - 1 / (8000 * mega)),
                attr.send_pre_overhead, close_to);
    EXPECT_EQ(0, attr.send_post_overhead);
    /* In copy mode nothing is better than a fragment */
    entity copies(config_t{{"PERF", configured.at("PERF")},
                           {"MONITOR", "copy"}});
    attr = estimate(copies, UCT_EP_OP_AM_ZCOPY, fields);
    EXPECT_NEAR(110e-9, attr.send_pre_overhead, close_to);
}
