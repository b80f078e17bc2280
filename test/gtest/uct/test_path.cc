/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "marks.h"
#include "uct_test.h"

/* Service level and traffic class of packets: the device has kept them for
 * every queue pair of both sides, and for datagrams */
class test_path : public ::testing::Test {
protected:
    virtual config_t config()
    {
        return {{"SL", "3,5"}, {"TRAFFIC_CLASS", "96,32"}};
    }

    void SetUp() override
    {
        marks_clear();
        for (auto e : {&m_a, &m_b}) {
            e->reset(new entity(config()));
            marks_start((*e)->md(), (*e)->iface());
        }
        m_a->add_progress(m_b.get());
        m_local.reset(new buffer(m_a->md(), size));
        m_remote.reset(new buffer(m_b->md(), size));
        m_rkey = m_a->unpack(m_remote->packed_key());
    }

    void TearDown() override
    {
        m_local.reset();
        m_remote.reset();
        m_a.reset();
        m_b.reset();
    }

    /* Queue pairs of both sides with these marks. */
    unsigned count(unsigned sl, unsigned traffic_class)
    {
        unsigned num = 0;

        for (unsigned i = 0; i < marks_count(); ++i) {
            mark_t mark = marks_get(i);
            num += !mark.is_datagram && (mark.sl == sl) &&
                   (mark.traffic_class == traffic_class);
        }
        return num;
    }

    void use()
    {
        m_ep = m_a->connect(m_b->address());
        m_a->wire_up(m_ep, m_local->ptr(), m_remote->address(), m_rkey);
    }

    void put_large()
    {
        EXPECT_EQ(UCS_OK, m_a->put(m_ep, m_local->ptr(), size,
                                   m_remote->address(), m_rkey));
    }

    uct_ep_h                m_ep = nullptr;
    static constexpr size_t size = 1 << 20;
    std::unique_ptr<entity> m_a, m_b;
    std::unique_ptr<buffer> m_local, m_remote;
    uct_rkey_t              m_rkey = UCT_INVALID_RKEY;
};

/* Two connections, of which each side has a queue pair */
TEST_F(test_path, small_connections)
{
    use();
    EXPECT_EQ(4u, count(3, 96));
    EXPECT_EQ(0u, count(0, 0));
}

/* The connection for slices has marks of its own */
TEST_F(test_path, large_connection)
{
    use();
    put_large();
    m_a->wait([&]() { return count(5, 32) == 2; });
    EXPECT_EQ(4u, count(3, 96));
}

TEST_F(test_path, datagrams)
{
    use();
    unsigned num = 0;
    for (unsigned i = 0; i < marks_count(); ++i) {
        mark_t mark = marks_get(i);
        if (mark.is_datagram) {
            EXPECT_EQ(3u, mark.sl);
            EXPECT_EQ(96u, mark.traffic_class);
            ++num;
        }
    }
    EXPECT_LT(0u, num);
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
        marks_start(good.md(), good.iface());
        marks_start(bad.md(), bad.iface());
        marks_set_ethernet();
        EXPECT_EQ(UCS_OK, open(good));
        complaints told;
        EXPECT_EQ(UCS_ERR_INVALID_PARAM, open(bad));
        ASSERT_EQ(1u, told.lines().size());
        EXPECT_NE(std::string::npos, told.lines()[0].find("UCX_NPRDMA_SL: 8"))
                << told.lines()[0];
    }
}
