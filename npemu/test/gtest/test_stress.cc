/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* One to four processes, and threads, under load with every byte checked. */

#include "npemu_rank.h"

#include <atomic>
#include <cerrno>
#include <thread>

using namespace npt;

class test_stress : public testing::TestWithParam<int> {
protected:
    void run(int count);
};

void test_stress::run(int count)
{
    unsigned seed = base_seed();
    SCOPED_TRACE("NPEMU_TEST_SEED=" + std::to_string(seed));
    std::vector<std::unique_ptr<Child>> ranks;

    for (int self = 0; self < count; ++self) {
        ranks.push_back(std::make_unique<Child>([=](Pipe &pipe) {
            Rank rank(self, count, seed, 2000 * factor());
            EXPECT_TRUE(meet(pipe, rank, count));
            EXPECT_TRUE(rank.run());
            pipe.send(rank.added);
            EXPECT_TRUE(pipe.await());
            pipe.send(rank.counter());
        }));
    }
    introduce(ranks);
    uint64_t added = 0;
    for (auto &rank : ranks) {
        added += rank->pipe().recv<uint64_t>();
    }
    for (auto &rank : ranks) {
        rank->pipe().signal();
    }
    for (int i = 0; i < count; ++i) {
        uint64_t counter = ranks[i]->pipe().recv<uint64_t>();
        EXPECT_EQ((i == 0) ? added : 0, counter);
    }
    for (auto &rank : ranks) {
        rank->join();
    }
}

TEST_P(test_stress, everything_at_once_with_checksums)
{
    run(GetParam());
}

/* The CPUs of the peers copy. */
TEST_P(test_stress, everything_at_once_in_the_arena)
{
    Buffer::InArena in_arena;
    run(GetParam());
}

INSTANTIATE_TEST_SUITE_P(processes, test_stress, testing::Values(1, 2, 3, 4),
                         testing::PrintToStringParamName());

/* --- threads -------------------------------------------------------------- */

/* All verbs are thread-safe: one QP, one CQ, many threads post and poll. */
TEST(test_stress_threads, all_share_one_queue_pair)
{
    constexpr int THREADS = 4, EACH = 300;
    Device device;
    QpOptions options;
    options.send_wr = THREADS * EACH + 1;
    Pair pair(device, options, QpOptions(), THREADS * EACH + 1);
    Buffer buffer(device, 8192);
    std::atomic<int> completed{0};
    std::vector<std::thread> threads;

    *(uint64_t*)buffer.data = 0;
    for (int t = 0; t < THREADS; ++t) {
        threads.emplace_back([&, t] {
            for (int i = 0; i < EACH; ++i) {
                Wr add(i, IBV_WR_ATOMIC_FETCH_AND_ADD,
                       {buffer.sge(1024 + t * 64, 8)});
                add.atomic(Remote{buffer.at(0), buffer.mr->rkey}, 1);
                ASSERT_EQ(0, pair.a.post(add));
                ibv_wc wc;
                int n = ibv_poll_cq(pair.cq_a, 1, &wc);
                ASSERT_LE(0, n);
                if (n == 1) {
                    ASSERT_EQ(IBV_WC_SUCCESS, wc.status);
                    ++completed;
                }
            }
        });
    }
    for (auto &thread : threads) {
        thread.join();
    }
    while (completed < THREADS * EACH) {
        ASSERT_EQ(IBV_WC_SUCCESS, pair.cq_a.wait().status);
        ++completed;
    }
    EXPECT_EQ((uint64_t)THREADS * EACH, *(uint64_t*)buffer.data);
}

/* Registration and deregistration under fire from another thread. */
TEST(test_stress_threads, deregistered_while_in_use)
{
    Device device;
    Buffer target(device, 64 << 10, -1), source(device, 64 << 10);
    std::atomic<uint32_t> rkey{0};
    std::atomic<bool> stop{false};
    std::atomic<int> good{0}, refused{0};

    std::thread writer([&] {
        while (!stop) {
            Pair pair(device);
            for (bool alive = true; alive && !stop;) {
                Wr write(1, IBV_WR_RDMA_WRITE, {source.sge()});
                write.rdma(Remote{target.at(0), rkey});
                ASSERT_EQ(0, pair.a.post(write));
                ibv_wc wc = pair.cq_a.wait();
                alive     = wc.status == IBV_WC_SUCCESS;
                ++(alive ? good : refused);
                if (!alive) {
                    ASSERT_EQ(IBV_WC_REM_ACCESS_ERR, wc.status);
                }
            }
        }
    });
    source.fill_byte(0xff);
    auto start = Clock::now();
    while ((ms_since(start) < 500) || (good < 10) || (refused < 10)) {
        ibv_mr *mr = npemu_reg_mr(device.pd, target.data, target.length,
                                  ACCESS_ALL);
        ASSERT_NE(nullptr, mr);
        int before = good;
        rkey       = mr->rkey;
        wait_until([&] { return good > before; }, 20);
        ASSERT_EQ(0, npemu_dereg_mr(mr));
        /* From here on it is ours alone. */
        memset(target.data, 0, target.length);
        sched_yield();
        for (size_t i = 0; i < target.length; i += 512) {
            ASSERT_EQ(0, target.data[i]) << "written after deregistration";
        }
        ASSERT_GT(3 * WAIT_MS, ms_since(start));
    }
    stop = true;
    writer.join();
    /* The writer's refusals are events of the responders. */
}
