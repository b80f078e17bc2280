/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * Foreign and malformed packets to the wire-up queue pair of a live interface.
 * Each is ignored and counted, and the interface still works.
 */

#include "svc_requester.h"

class test_foreign : public ::testing::Test {
protected:
    using bytes = svc_requester::bytes;

    test_foreign() : m_requester(m_entity) {}

    void TearDown() override
    {
        /* Neither the earlier connection nor a new one is disturbed */
        auto nop = svc_request(UCT_NPRDMA_SVC_NOP, 0, 0, 0);
        EXPECT_EQ(UCT_NPRDMA_SVC_OK, m_requester.status(nop));
        svc_requester late(m_entity);
        EXPECT_EQ(UCT_NPRDMA_SVC_OK, late.status(nop));
    }

    /* A packet that the parser accepts: a request to connect, unless type says
     * something else */
    uct_nprdma_cm_packet_t packet(uint8_t type = UCT_NPRDMA_CM_REQ)
    {
        uct_nprdma_cm_packet_t good = {};
        uct_nprdma_iface_addr_t iface;

        uct_iface_get_address(m_entity.iface(), (uct_iface_addr_t*)&iface);
        uct_iface_get_device_address(m_entity.iface(),
                                     (uct_device_addr_t*)&good.qp.dev);
        good.magic     = UCT_NPRDMA_CM_MAGIC;
        good.version   = UCT_NPRDMA_WIRE_VERSION;
        good.type      = type;
        good.src_nonce = 0x0123456789abcdef;
        good.dst_nonce = iface.nonce;
        good.conn_id   = 77;
        good.ud_qpn    = 0xffff;
        good.qp.qpn    = 0xffff;
        good.qp.psn    = 1;
        return good;
    }

    static bytes bytes_of(const uct_nprdma_cm_packet_t &packet)
    {
        return {(const char*)&packet, (const char*)(&packet + 1)};
    }

    /* One at a time, so that none gets lost */
    void expect_counted(const bytes &packet, const std::string &counter)
    {
        uint64_t before = m_entity.counter(counter);

        m_requester.datagram(packet);
        m_entity.wait([&]() { return m_entity.counter(counter) > before; });
        EXPECT_EQ(before + 1, m_entity.counter(counter));
    }

    entity        m_entity;
    svc_requester m_requester;
};

TEST_F(test_foreign, wrong_field)
{
    auto expect = [&](std::function<void(uct_nprdma_cm_packet_t&)> spoil) {
        auto bad = packet();
        spoil(bad);
        expect_counted(bytes_of(bad), "cm_malformed");
    };

    expect([](auto &bad) { bad.magic = 0; });
    expect([](auto &bad) { ++bad.version; });
    expect([](auto &bad) { bad.type = 0; });
    expect([](auto &bad) { bad.kind = UCT_NPRDMA_CONN_KIND_LAST; });
    expect([](auto &bad) { bad.ud_qpn = 0; });
    expect([](auto &bad) { bad.qp.qpn = 0; });
    expect([](auto &bad) { bad.qp.dev.mtu = 0; });
    expect([](auto &bad) { bad.qp.dev.version = 0; });
}

TEST_F(test_foreign, wrong_size)
{
    auto good = bytes_of(packet());

    for (size_t size : {0ul, 1ul, 4ul, 39ul, 40ul, good.size() - 1}) {
        bytes data = good;
        data.resize(size);
        expect_counted(data, "cm_malformed");
    }
    /* The device may drop these */
    for (size_t size : {good.size() + 1, 256ul, 1024ul, 4096ul}) {
        bytes data = good;
        data.resize(size);
        m_requester.datagram(data);
    }
}

/* For an interface that had this queue pair number, and for connections that do
 * not exist */
TEST_F(test_foreign, strays)
{
    for (int type = UCT_NPRDMA_CM_REQ; type < UCT_NPRDMA_CM_TYPE_LAST; ++type) {
        auto stray = packet(type);
        stray.dst_nonce ^= 1;
        expect_counted(bytes_of(stray), "cm_stale");
        if (type != UCT_NPRDMA_CM_REQ) {
            m_requester.datagram(bytes_of(packet(type)));
        }
    }
}
