/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Processes that are killed in the midst of it, at random moments. */

#include "npemu_rank.h"

#include <cerrno>
#include <thread>

#include <sys/ipc.h>
#include <sys/shm.h>
#include <unistd.h>

using namespace npt;

static size_t segments_left()
{
    struct shm_info info;

    shmctl(0, SHM_INFO, (struct shmid_ds*)&info);
    return info.used_ids;
}

/*
 * The victim and the survivor write, read, add and send to each other at full
 * speed, on RC and with small and large messages, until the victim is killed.
 */
class Traffic {
public:
    explicit Traffic(unsigned seed) :
        random(seed), cq(device, 1024), qp(device, cq, cq, options()),
        buffer(device, 512 << 10)
    {
    }

    static QpOptions options()
    {
        QpOptions result;
        result.timeout   = 12; /* 16.8 ms */
        result.retry_cnt = 7;
        return result;
    }

    Remote remote() { return {buffer.at(0), buffer.mr->rkey}; }

    void start()
    {
        for (int i = 0; i < 32; ++i) {
            ASSERT_EQ(0, qp.post_recv(i, {buffer.sge(i * 8192, 8192)}));
        }
    }

    /* False when the connection is broken. */
    bool step(const Remote &peer)
    {
        static const ibv_wr_opcode ops[] = {
                IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_SEND,
                IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_RDMA_WRITE_WITH_IMM};
        ibv_wr_opcode op = ops[random() % 5];
        size_t size      = (random() % 2) ? random() % 200 : random() % 8192;

        if (in_flight < 32) {
            Wr wr(100, op, {buffer.sge(256 << 10, size)});
            if (op == IBV_WR_ATOMIC_FETCH_AND_ADD) {
                wr.list[0].length = 8;
                wr.atomic(Remote{peer.addr + (300 << 10), peer.rkey}, 1);
            } else if (op != IBV_WR_SEND) {
                wr.rdma(Remote{peer.addr + (300 << 10), peer.rkey});
            }
            if (qp.post(wr) != 0) {
                return false;
            }
            ++in_flight;
        }
        ibv_wc wc[16];
        int n = ibv_poll_cq(cq, 16, wc);
        for (int i = 0; i < n; ++i) {
            if (wc[i].status != IBV_WC_SUCCESS) {
                status = wc[i].status;
                return false;
            }
            if (wc[i].wr_id == 100) {
                --in_flight;
            } else if (qp.post_recv(wc[i].wr_id,
                                    {buffer.sge(wc[i].wr_id * 8192, 8192)}) !=
                       0) {
                return false;
            }
        }
        return true;
    }

    int status = 0;

private:
    std::mt19937 random;

public:
    Device device;
    Cq     cq;
    Qp     qp;
    Buffer buffer;
    int    in_flight = 0;
};

static void run_until_killed(Pipe &pipe, unsigned seed)
{
    Traffic traffic(seed);

    connect_over(pipe, traffic.qp);
    traffic.start();
    pipe.send(traffic.remote());
    Remote peer = pipe.recv<Remote>();
    pipe.signal();
    while (traffic.step(peer)) {
    }
    /* The survivor broke off first, in a test where it may. */
    pause();
}

TEST(test_kill, peers_get_a_transport_error)
{
    unsigned seed = base_seed();
    std::mt19937 random(seed);
    SCOPED_TRACE("NPEMU_TEST_SEED=" + std::to_string(seed));

    for (int round = 0; round < 100 * factor(); ++round) {
        SCOPED_TRACE("round " + std::to_string(round));
        unsigned victim_seed = random(), delay = random() % 3000;
        Child victim([=](Pipe &pipe) { run_until_killed(pipe, victim_seed); });
        Traffic traffic(random());
        connect_over(victim.pipe(), traffic.qp);
        traffic.start();
        victim.pipe().send(traffic.remote());
        Remote peer = victim.pipe().recv<Remote>();
        ASSERT_TRUE(victim.pipe().await());

        auto start = Clock::now();
        while (ms_since(start) * 1000 < delay) {
            ASSERT_TRUE(traffic.step(peer)) << "status " << traffic.status;
        }
        victim.kill();
        start = Clock::now();
        while (traffic.step(peer)) {
            ASSERT_GT(WAIT_MS, ms_since(start));
        }
        EXPECT_EQ(IBV_WC_RETRY_EXC_ERR, traffic.status);
        EXPECT_EQ(IBV_QPS_ERR, traffic.qp.state());
    }
}

/* The others go on: nothing they share with the dead one blocks them. */
TEST(test_kill, other_processes_are_not_blocked)
{
    unsigned seed = base_seed() + 1;
    std::mt19937 random(seed);
    SCOPED_TRACE("NPEMU_TEST_SEED=" + std::to_string(seed - 1));

    for (int round = 0; round < 12 * factor(); ++round) {
        /* A hub that two processes hit: one SRQ, one CQ, one memory. */
        unsigned seeds[2] = {(unsigned)random(), (unsigned)random()};
        auto spoke        = [](Pipe &pipe, unsigned spoke_seed) {
            Device device;
            ASSERT_TRUE(device.ok());
            Cq cq(device, 256);
            Qp qp(device, cq, cq);
            Buffer buffer(device, 64 << 10);
            std::mt19937 spoke_random(spoke_seed);
            connect_over(pipe, qp);
            Remote hub = pipe.recv<Remote>();
            pipe.signal();
            for (uint64_t i = 0; i < 3000; ++i) {
                size_t size = spoke_random() % 9000;
                Wr add(1, IBV_WR_ATOMIC_FETCH_AND_ADD, {buffer.sge(0, 8)}, 0);
                add.atomic(hub, 1);
                Wr send(2, IBV_WR_SEND, {buffer.sge(64, size)});
                add.then(send);
                ASSERT_EQ(0, qp.post(add));
                ASSERT_TRUE(cq.expect(2));
            }
            pipe.signal();
            pipe.await();
        };
        Child stays([&](Pipe &pipe) { spoke(pipe, seeds[0]); });
        Child dies([&](Pipe &pipe) { spoke(pipe, seeds[1]); });

        Device device;
        ASSERT_TRUE(device.ok());
        Srq srq(device, 64);
        Cq send_cq(device), recv_cq(device, 256);
        QpOptions options;
        options.srq     = srq;
        options.recv_wr = 0;
        Qp a(device, send_cq, recv_cq, options);
        Qp b(device, send_cq, recv_cq, options);
        Buffer memory(device, 64 * 9216 + 4096);
        for (int i = 0; i < 64; ++i) {
            ASSERT_EQ(0, srq.post(i, {memory.sge(4096 + i * 9216, 9216)}));
        }
        connect_over(stays.pipe(), a);
        connect_over(dies.pipe(), b);
        Remote hub = {memory.at(0), memory.mr->rkey};
        stays.pipe().send(hub);
        dies.pipe().send(hub);
        ASSERT_TRUE(stays.pipe().await());
        ASSERT_TRUE(dies.pipe().await());

        unsigned delay = random() % 5000, from_a = 0;
        bool killed    = false;
        auto start     = Clock::now();
        while (from_a < 3000) {
            if (!killed && (ms_since(start) * 1000 > delay)) {
                dies.kill();
                killed = true;
            }
            ibv_wc wc;
            if (ibv_poll_cq(recv_cq, 1, &wc) == 1) {
                ASSERT_EQ(IBV_WC_SUCCESS, wc.status);
                from_a += wc.qp_num == a.qp->qp_num;
                ASSERT_EQ(0, srq.post(wc.wr_id, {memory.sge(
                                                        4096 + wc.wr_id * 9216,
                                                        9216)}));
            }
            ASSERT_GT(WAIT_MS, ms_since(start)) << "after " << from_a;
        }
        ASSERT_TRUE(stays.pipe().await());
        /* Also what the dead one held of the SRQ is back: 64 in a row. */
        EXPECT_LE(3000u, *(volatile uint64_t*)memory.data);
        stays.pipe().signal();
        stays.join();
        if (!killed) {
            dies.kill();
        }
    }
}

/* No receive is lost with a sender that dies between taking and filling it. */
TEST(test_kill, receives_are_not_lost)
{
    unsigned seed = base_seed() + 2;
    std::mt19937 random(seed);
    SCOPED_TRACE("NPEMU_TEST_SEED=" + std::to_string(seed - 2));
    constexpr int RECEIVES = 8;
    std::vector<std::unique_ptr<Child>> victims;

    for (int round = 0; round < 40 * factor(); ++round) {
        unsigned victim_seed = random();
        victims.push_back(std::make_unique<Child>([=](Pipe &pipe) {
            if (!pipe.await()) {
                return;
            }
            Device own;
            ASSERT_TRUE(own.ok());
            Cq cq(own, 256);
            Qp qp(own, cq, cq);
            Buffer buffer(own, 16 << 10);
            std::mt19937 victim_random(victim_seed);
            connect_over(pipe, qp);
            pipe.signal();
            for (;;) {
                Wr send(2, IBV_WR_SEND,
                        {buffer.sge(0, victim_random() % 9000)});
                ASSERT_EQ(0, qp.post(send));
                ASSERT_TRUE(cq.expect(2));
            }
        }));
    }

    Device device;
    Srq srq(device, RECEIVES);
    ibv_srq_attr attr;
    ASSERT_EQ(0, npemu_query_srq(srq, &attr));
    Cq send_cq(device), recv_cq(device, 256);
    Buffer memory(device, (RECEIVES + 1) * 9216);
    for (int i = 0; i < RECEIVES; ++i) {
        ASSERT_EQ(0, srq.post(i, {memory.sge(i * 9216, 9216)}));
    }

    QpOptions options;
    options.srq     = srq;
    options.recv_wr = 0;
    for (auto &it : victims) {
        Child &victim  = *it;
        unsigned delay = random() % 2000;
        victim.pipe().signal();
        Qp qp(device, send_cq, recv_cq, options);
        connect_over(victim.pipe(), qp);
        ASSERT_TRUE(victim.pipe().await());
        auto start  = Clock::now();
        auto repost = [&] {
            ibv_wc wc;
            if (ibv_poll_cq(recv_cq, 1, &wc) != 1) {
                return false;
            }
            EXPECT_EQ(IBV_WC_SUCCESS, wc.status);
            EXPECT_EQ(0, srq.post(wc.wr_id,
                                  {memory.sge(wc.wr_id * 9216, 9216)}));
            return true;
        };
        while (ms_since(start) * 1000 < delay) {
            repost();
        }
        victim.kill();
        /* The end of the queue pair discards completions that have not been
         * polled, and their receives are used up */
        start = Clock::now();
        while (repost() || (ms_since(start) < 2)) {
        }
    }

    /* All that were posted must still be there to be used, each once. */
    Cq cq(device);
    Qp a(device, cq, cq), b(device, cq, recv_cq, options);
    connect(a, b);
    uint32_t seen = 0;
    for (int i = 0; i < RECEIVES; ++i) {
        Wr send(1, IBV_WR_SEND, {memory.sge(RECEIVES * 9216, 100)});
        ASSERT_EQ(0, a.post(send));
        cq.expect(1);
        ibv_wc wc = recv_cq.wait();
        ASSERT_EQ(IBV_WC_SUCCESS, wc.status);
        EXPECT_EQ(0u, seen & (1u << wc.wr_id)) << "twice: " << wc.wr_id;
        seen |= 1u << wc.wr_id;
    }
    EXPECT_EQ((1u << RECEIVES) - 1, seen);
}

/* All at once, and nothing is left. */
TEST(test_kill, nothing_is_left_of_four_killed_processes)
{
    SKIP_UNLESS(has_own_fabric(), "no IPC namespace of our own");
    unsigned seed = base_seed() + 3;
    std::mt19937 random(seed);
    SCOPED_TRACE("NPEMU_TEST_SEED=" + std::to_string(seed - 3));

    for (int round = 0; round < 10 * factor(); ++round) {
        std::vector<std::unique_ptr<Child>> ranks;
        for (int self = 0; self < 4; ++self) {
            unsigned rank_seed = random();
            ranks.push_back(std::make_unique<Child>([=](Pipe &pipe) {
                Rank rank(self, 4, rank_seed, 1 << 30);
                meet(pipe, rank, 4);
                rank.peers_die = true;
                rank.run();
                pause(); /* one of the others was killed before */
            }));
        }
        introduce(ranks);
        for (auto &rank : ranks) {
            std::this_thread::sleep_for(
                    std::chrono::microseconds(random() % 5000));
            rank->kill();
        }
        EXPECT_TRUE(wait_until([] { return segments_left() == 0; }))
                << segments_left() << " segments";
    }
}
