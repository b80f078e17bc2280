/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "hook.h"
#include "internals.h"
#include "svc_requester.h"
#include "uct_test.h"

#include <cstring>
#include <set>

#include <poll.h>

/* Lost packets are soon repeated */
static const config_t in_haste = {{"CM_RETRY_INTERVAL", "1ms"},
                                  {"CM_RETRY_MAX", "10ms"}};

struct wireup_faults {
    const char    *name;
    config_t      config;
    hook_losses_t losses;
};

/* Wire-up with packets that are lost, repeated and reordered */
class test_wireup : public ::testing::TestWithParam<wireup_faults> {
};

TEST_P(test_wireup, many_endpoints)
{
    static const int count = 40;
    entity a(GetParam().config), b(GetParam().config);

    hook_start(a.md(), a.iface());
    hook_start(b.md(), b.iface());
    hook_lose(GetParam().losses);
    buffer memory(b.md(), 4096);
    buffer back(a.md(), 4096);
    uct_rkey_t rkey      = a.unpack(memory.packed_key());
    uct_rkey_t back_rkey = b.unpack(back.packed_key());

    a.add_progress(&b);
    b.add_progress(&a);
    for (uint64_t i = 0; i < count; ++i) {
        /* In both directions at the same time */
        uct_ep_h ab = a.connect(b.address());
        uct_ep_h ba = b.connect(a.address());
        bool ab_done = false, ba_done = false;
        a.wait([&]() {
            if (!ab_done) {
                ab_done = uct_ep_put_short(ab, &i, sizeof(i), memory.address(),
                                           rkey) == UCS_OK;
            }
            if (!ba_done) {
                ba_done = uct_ep_put_short(ba, &i, sizeof(i), back.address(),
                                           back_rkey) == UCS_OK;
            }
            return ab_done && ba_done;
        });
        a.flush(ab);
        b.flush(ba);
        EXPECT_EQ(i, *memory.ptr<uint64_t>());
        EXPECT_EQ(i, *back.ptr<uint64_t>());
        if ((i % 2) == 0) {
            a.disconnect(ab);
            b.disconnect(ba);
        }
    }
    EXPECT_TRUE(a.failed.empty());
    EXPECT_TRUE(b.failed.empty());
    EXPECT_EQ(!GetParam().config.empty(), hook_numbers().losses > 0);
}

/* A peer of another release is not reachable, and one line says why */
TEST(test_wireup_version, other_is_not_reachable)
{
    entity a, b;
    auto is_reachable = [&](const std::vector<char> &address) {
        return uct_iface_is_reachable(
                a.iface(),
                (const uct_device_addr_t*)address.data(),
                (const uct_iface_addr_t*)(address.data() +
                                          a.attr().device_addr_len));
    };
    complaints told;

    EXPECT_TRUE(is_reachable(b.address()));
    for (size_t offset : {size_t(0), a.attr().device_addr_len}) {
        std::vector<char> address = b.address();
        address[offset]           = 1; /* The version before the present one */
        EXPECT_FALSE(is_reachable(address));
    }
    expect_line(told, "version 1");
}

/* Messages behind the last one, which only a malformed peer sends. The receives
 * that they consume are not lost. */
TEST(test_wireup_end, messages_after_the_last_one)
{
    /* There are receives for all of them, which are posted again in batches of
     * RX_MAX_BATCH */
    static const unsigned num_messages = 48;
    entity target(config_t{{"RX_MAX_BUFS", "64"}, {"RX_MAX_BATCH", "16"}});
    uct_nprdma_am_hdr_t fin = {};
    svc_requester::bytes last(sizeof(fin));

    fin.type = UCT_NPRDMA_AM_FIN;
    memcpy(last.data(), &fin, sizeof(fin));
    for (unsigned round = 1; round <= 3; ++round) {
        svc_requester foul(target, UCT_NPRDMA_CONN_AM);

        /* The target calls no progress before all of them have arrived */
        ASSERT_TRUE(foul.send(last));
        for (unsigned i = 1; i < num_messages; ++i) {
            ASSERT_TRUE(foul.send(svc_requester::bytes(1)));
        }
        target.progress_often(100);
        ASSERT_EQ(round * (num_messages - 1),
                  target.counter("am_rx_malformed"));
    }
}

/* An id returns, and the FIN of its earlier connection was lost: the new one
 * takes the place of that */
TEST(test_wireup_end, id_returns)
{
    entity target(config_t{{"CM_PROBE_INTERVAL", "20ms"}});
    auto nop = svc_request(UCT_NPRDMA_SVC_NOP, 0, 0, 0);

    for (auto kind : {UCT_NPRDMA_CONN_SVC, UCT_NPRDMA_CONN_AM}) {
        svc_requester requester(target, kind);
        for (int i = 0; i < 3; ++i) {
            if (kind == UCT_NPRDMA_CONN_SVC) {
                EXPECT_EQ(UCT_NPRDMA_SVC_OK, requester.status(nop));
            }
            EXPECT_EQ(1u, target.counter("cm_responders"));
            requester.again();
        }
        requester.kill();
        target.wait([&]() { return target.counter("cm_responders") == 0; });
    }
    EXPECT_EQ(8u, target.counter("cm_accepted"));
    EXPECT_EQ(0u, target.counter("cm_rejected"));
}

/* Each RTU is lost, and the connection is used: it does not end before its
 * requester does */
TEST(test_wireup_end, no_confirmation_arrives)
{
    entity target(config_t{{"CM_TIMEOUT", "1s"},
                           {"CM_PROBE_INTERVAL", "20ms"}});
    auto nop = svc_request(UCT_NPRDMA_SVC_NOP, 0, 0, 0);

    for (auto kind : {UCT_NPRDMA_CONN_SVC, UCT_NPRDMA_CONN_AM}) {
        uint64_t probes = target.counter("cm_probes");
        svc_requester requester(target, kind, false);
        target.wait([&]() {
            return (target.counter("cm_probes") > probes + 1) ||
                   (target.counter("cm_responders") == 0);
        });
        EXPECT_EQ(1u, target.counter("cm_responders"));
        if (kind == UCT_NPRDMA_CONN_SVC) {
            EXPECT_EQ(UCT_NPRDMA_SVC_OK, requester.status(nop));
        }
        requester.kill();
        target.wait([&]() { return target.counter("cm_responders") == 0; });
    }
}

/* The ids of all free entries are used before one returns */
TEST(test_wireup_end, ids_return_late)
{
    entity a, b;
    std::set<unsigned> used;

    a.add_progress(&b);
    for (int i = 0; i < 16; ++i) {
        uct_ep_h ep = a.connect(b.address());
        used.insert(conn_index(ep));
        a.wait([&]() { return a.counter("cm_connected") == i + 1u; });
        a.disconnect(ep);
        a.wait([&]() { return iface_is_settled(a.iface()); });
    }
    EXPECT_EQ(16u, used.size());
}

/* Messages that are posted before the connection exists are sent when the peer
 * answers, also if the user makes no progress. The first event that progress
 * sees may be the failure of the connection. */
TEST(test_wireup_end, failure_may_precede_the_connected_event)
{
    entity a, b(config_t{{"SEG_SIZE", "1024"}});
    struct pollfd pfd = {-1, POLLIN, 0};
    uct_ep_h ep       = a.connect(b.address());
    ucs_status_t status;

    /* Longer than the peer's receives */
    auto pack = [](void *dest, void *) {
        memset(dest, 0, 4000);
        return (size_t)4000;
    };
    ASSERT_EQ(4000, uct_ep_am_bcopy(ep, 1, pack, nullptr, 0));
    ASSERT_EQ(UCS_OK, uct_iface_event_fd_get(a.iface(), &pfd.fd));
    ASSERT_EQ(1, poll(&pfd, 1, 60000));
    do {
        a.progress();
        status = uct_ep_flush(ep, 0, nullptr);
    } while (a.failed.empty() && (status != UCS_OK));
    EXPECT_EQ(1u, a.failed.count(ep)) << "a message is lost without a word";
}

/* The device refuses a send and all later ones. Repeated packets arrive, and
 * the user gets one error. */
TEST(test_wireup_fail, some_connections_fail)
{
    complaints said;
    entity a(in_haste), b;
    buffer memory(b.md(), 4096);
    uct_rkey_t rkey = a.unpack(memory.packed_key());

    hook_start(a.md(), a.iface());
    hook_lose({0, 0, 0, 50});
    a.add_progress(&b);
    for (uint64_t i = 1; i <= 20; ++i) {
        uct_ep_h ep = a.connect(b.address());
        ASSERT_EQ(UCS_OK, a.retry([&]() {
            return uct_ep_put_short(ep, &i, sizeof(i), memory.address(), rkey);
        }));
        a.flush(ep);
        EXPECT_EQ(i, *memory.ptr<uint64_t>());
    }
    EXPECT_TRUE(a.failed.empty());
    EXPECT_GT(a.counter("cm_failed"), 1u);
    expect_line(said, "wire-up packet");
}

static const wireup_faults faults[] = {
    {"no_fault", {}, {0, 0, 0, 0}},
    {"dropped", in_haste, {50, 0, 0, 0}},
    {"duplicated", in_haste, {0, 100, 0, 0}},
    {"reordered", in_haste, {0, 0, 50, 0}},
    {"all_faults", in_haste, {30, 30, 30, 0}},
};

INSTANTIATE_TEST_SUITE_P(packets, test_wireup, ::testing::ValuesIn(faults),
                         [](auto &info) { return info.param.name; });
