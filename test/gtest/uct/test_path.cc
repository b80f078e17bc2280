/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "hook.h"
#include "uct_test.h"

/* Service level and traffic class of packets: the device has kept them for
 * every queue pair of both sides, and for datagrams */
class test_path : public uct_buffer_test {
protected:
    static constexpr size_t size = 1 << 20;

    test_path() : uct_buffer_test(size)
    {
        m_config = {{"SL", "3,5"}, {"TRAFFIC_CLASS", "96,32"}};
    }

    void prepare() override
    {
        for (auto e : {m_a.get(), m_b.get()}) {
            hook_start(e->md(), e->iface());
        }
    }

    /* Marks of queue pairs, or of datagrams */
    static unsigned count(unsigned sl, unsigned traffic_class,
                          bool is_datagram = false)
    {
        unsigned num = 0;
        hook_mark_t mark;

        for (unsigned i = 0; hook_mark(i, &mark); ++i) {
            num += (mark.is_datagram == is_datagram) && (mark.sl == sl) &&
                   (mark.traffic_class == traffic_class);
        }
        return num;
    }
};

/* Of two connections each side has a queue pair. That for slices has marks of
 * its own. */
TEST_F(test_path, each_packet_is_marked)
{
    m_b->disconnect(m_ba);
    m_a->wire_up(m_ab, m_local->ptr(), m_remote->address(), m_rkey);
    m_a->wait([&]() { return count(3, 96) >= 4; });
    unsigned begin = count(3, 96); /* With what was made from b to a */
    EXPECT_GE(6u, begin);
    EXPECT_EQ(0u, count(0, 0));
    EXPECT_LT(0u, count(3, 96, true));
    EXPECT_EQ(0u, count(0, 0, true));
    EXPECT_EQ(UCS_OK, m_a->put(m_ab, m_local->ptr(), size, m_remote->address(),
                               m_rkey));
    m_a->wait([&]() { return count(5, 32) == 2; });
    EXPECT_EQ(begin, count(3, 96));
}

/* The priority of a RoCE port has 3 bits */
class test_path_ethernet : public ::testing::Test {
protected:
    static ucs_status_t open(const entity &owner)
    {
        uct_iface_params_t params = {};
        std::string device        = device_name() + ":1";
        uct_iface_config_t *config;
        uct_iface_h iface;

        EXPECT_EQ(UCS_OK, uct_md_iface_config_read(owner.md(), "nprdma",
                                                   nullptr, nullptr, &config));
        params.field_mask           = UCT_IFACE_PARAM_FIELD_OPEN_MODE |
                                      UCT_IFACE_PARAM_FIELD_DEVICE;
        params.open_mode            = UCT_IFACE_OPEN_MODE_DEVICE;
        params.mode.device.tl_name  = "nprdma";
        params.mode.device.dev_name = device.c_str();
        ucs_status_t status         = uct_iface_open(owner.md(), owner.worker(),
                                                     &params, config, &iface);
        uct_config_release(config);
        if (status == UCS_OK) {
            uct_iface_close(iface);
        }
        return status;
    }
};

TEST_F(test_path_ethernet, priority_is_below_8)
{
    for (auto value : {"8", "8,0", "0,8"}) {
        entity good(config_t{{"SL", "7,7"}}), bad(config_t{{"SL", value}});

        EXPECT_EQ(UCS_OK, open(bad)); /* InfiniBand */
        hook_start(good.md(), good.iface());
        hook_start(bad.md(), bad.iface());
        hook_set_ethernet();
        EXPECT_EQ(UCS_OK, open(good));
        complaints told;
        EXPECT_EQ(UCS_ERR_INVALID_PARAM, open(bad));
        expect_line(told, "UCX_NPRDMA_SL: 8");
    }
}
