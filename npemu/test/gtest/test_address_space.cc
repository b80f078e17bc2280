/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * Processes whose address space is limited (ulimit -v): each has its own arena
 * mapped, and that of each peer.
 */

#include "npemu_test.h"

#include <algorithm>
#include <sys/resource.h>

using namespace npt;

namespace {

constexpr rlim_t LIMIT = 2ul << 30;
constexpr int    PEERS = 4;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool HAS_SHADOW = true;
#else
constexpr bool HAS_SHADOW = false;
#endif

class test_address_space : public testing::Test {
protected:
    void SetUp() override
    {
        if (HAS_SHADOW) {
            GTEST_SKIP() << "sanitizers take more addresses than the limit";
        }
    }

    static void limit_addresses()
    {
        struct rlimit limit = {LIMIT, LIMIT};

        ASSERT_EQ(0, setrlimit(RLIMIT_AS, &limit));
    }

    /* One of PEERS processes that write to their parent */
    static void write_to_parent(Pipe &pipe)
    {
        Device device;
        ASSERT_TRUE(device.ok());
        Cq cq(device);
        Qp qp(device, cq, cq);
        Buffer buffer(device, 8192);
        Wr write(1, IBV_WR_RDMA_WRITE, {buffer.sge()});

        connect_over(pipe, qp);
        buffer.fill_byte(pipe.recv<uint8_t>());
        write.rdma(pipe.recv<Remote>());
        EXPECT_EQ(0, qp.post(write));
        EXPECT_TRUE(cq.expect(1));
        pipe.signal();
        EXPECT_TRUE(pipe.await());
    }
};

TEST_F(test_address_space, fits_some_peers)
{
    in_child([] {
        limit_addresses();
        std::vector<std::unique_ptr<Child>> peers;
        for (int i = 0; i < PEERS; ++i) {
            peers.push_back(std::make_unique<Child>(write_to_parent));
        }

        Device device;
        ASSERT_TRUE(device.ok());
        Cq cq(device);
        std::vector<std::unique_ptr<Qp>> qps;
        for (int i = 0; i < PEERS; ++i) {
            Buffer buffer(device, 8192);
            qps.push_back(std::make_unique<Qp>(device, cq, cq));
            connect_over(peers[i]->pipe(), *qps.back());
            peers[i]->pipe().send((uint8_t)(i + 1));
            peers[i]->pipe().send(Remote{buffer.at(0), buffer.mr->rkey});
            ASSERT_TRUE(peers[i]->pipe().await());
            EXPECT_EQ(8192, std::count(buffer.data, buffer.data + 8192, i + 1));
        }
        /* More than these few would fit */
        EXPECT_LT(proc_status_kb("VmPeak"), (long)(LIMIT >> 10) / 2);
        for (auto &peer : peers) {
            peer->pipe().signal();
            peer->join();
        }
    });
}

TEST_F(test_address_space, peer_beyond_the_limit_is_unreachable)
{
    Child limited([](Pipe &pipe) {
        limit_addresses();
        Device device;
        ASSERT_TRUE(device.ok());
        Cq cq(device);
        Qp qp(device, cq, cq), again(device, cq, cq);

        testing::internal::CaptureStderr();
        Address address = pipe.recv<Address>();
        for (Qp *each : {&qp, &again}) {
            EXPECT_EQ(0, each->to_init());
            EXPECT_EQ(0, each->to_rtr(address));
            EXPECT_EQ(0, each->to_rts());
        }
        std::string told = testing::internal::GetCapturedStderr();
        EXPECT_NE(std::string::npos, told.find("ulimit -v")) << told;
        EXPECT_EQ(1, std::count(told.begin(), told.end(), '\n')) << told;

        /* As to a host that does not answer */
        Buffer buffer(device, 8192);
        Wr write(1, IBV_WR_RDMA_WRITE, {buffer.sge()});
        EXPECT_EQ(0, qp.post(write.rdma(Remote{0, 0})));
        EXPECT_TRUE(cq.expect(1, IBV_WC_RETRY_EXC_ERR));
        pipe.signal();
    });
    Device device;
    ASSERT_TRUE(device.ok());
    Cq cq(device);
    Qp qp(device, cq, cq);

    limited.pipe().send(qp.address());
    EXPECT_TRUE(limited.pipe().await());
    limited.join();
}

} // namespace
