/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * One to four processes, and threads, that do everything to each other at once,
 * with every byte checked; also until they are killed.
 *
 * NPEMU_TEST_SEED repeats a run, NPEMU_TEST_FACTOR makes it longer.
 */

#include "npemu_test.h"

#include <algorithm>
#include <atomic>
#include <random>
#include <thread>

#include <unistd.h>

using namespace npt;

namespace {

constexpr int MAX_RANKS = 4;

/* What a rank sends to all others. */
struct RankInfo {
    Address qp[MAX_RANKS]; /* the QP for each rank */
    Remote  memory;
};

/* A rank's memory: for each lane of each other rank a place that it writes to,
 * an area that all may read and that never changes, and a counter. */
constexpr size_t LANES = 4, SLOT = 80 << 10;
constexpr size_t FIXED = MAX_RANKS * LANES * SLOT, FIXED_SIZE = 256 << 10;
constexpr size_t COUNTER = FIXED + FIXED_SIZE, SIZE = COUNTER + 4096;

size_t slot_of(int rank, size_t lane)
{
    return (rank * LANES + lane) * SLOT;
}

/* What a SEND begins with. */
struct Message {
    uint32_t is_last, length, seed;
};

/* Has up to LANES operations under way with each rank, each at random. */
class Rank {
public:
    Rank(int self, int count, unsigned seed, int rounds) :
        self(self), count(count), random(seed + self), left(count, rounds)
    {
        QpOptions options;
        options.recv_wr = RECVS;
        options.timeout = 12; /* 16.8 ms */
        for (int i = 0; i < count; ++i) {
            qps.push_back(std::make_unique<Qp>(device, cq, cq, options));
        }
        pattern_fill(memory.data + FIXED, FIXED_SIZE, 1000 + self);
    }

    /* Connected to all others when it returns; false if the parent has gone. */
    bool meet(Pipe &pipe)
    {
        RankInfo own = {};

        for (int i = 0; i < count; ++i) {
            own.qp[i] = qps[i]->address();
        }
        own.memory = memory.remote();
        pipe.send(own);
        for (int i = 0; i < count; ++i) {
            infos.push_back(pipe.recv<RankInfo>());
        }
        for (int peer = 0; peer < count; ++peer) {
            qps[peer]->connect(infos[peer].qp[self]);
            for (int i = 0; i < RECVS; ++i) {
                post_recv(peer * RECVS + i);
            }
        }
        pipe.signal();
        return pipe.await();
    }

    /* False once something is wrong: the failure is recorded, or in status. */
    bool run()
    {
        auto start = Clock::now();

        while ((received_last < count) || (sent_last < count) ||
               (under_way > 0)) {
            int peer    = random() % count;
            size_t lane = random() % LANES;

            if (ms_since(start) > 2 * WAIT_MS) {
                ADD_FAILURE() << "rank " << self << " gets no further";
                return false;
            }
            if ((left[peer] >= 0) && (lanes[peer][lane].kind == IDLE)) {
                begin(peer, lane, (left[peer]-- > 0) ?
                                          (Kind)(1 + random() % 4) : LAST);
            }
            if (!progress()) {
                return false;
            }
        }
        return true;
    }

    uint64_t counter() const
    {
        return *(volatile uint64_t*)(memory.data + COUNTER);
    }

    uint64_t      added  = 0;
    ibv_wc_status status = IBV_WC_SUCCESS;

private:
    static constexpr int    RECVS     = 16;
    static constexpr size_t RECV_SIZE = 10 << 10;
    static constexpr size_t READ_BACK = FIXED;      /* in `local` */
    static constexpr uint64_t RECV    = 1ull << 32; /* in a wr_id */

    enum Kind { IDLE, SEND, WRITE, READ, ADD, LAST };

    struct Lane {
        Kind     kind;
        uint32_t seed, length;
        size_t   from; /* READ: in the area that never changes */
    };

    void post_recv(size_t slot)
    {
        qps[slot / RECVS]->recv(RECV | slot,
                                {recv_buffer.sge(slot * RECV_SIZE,
                                                 RECV_SIZE)});
    }

    size_t random_size(size_t max)
    {
        /* As many small ones as large ones. */
        return random() % (1 + std::min(max, (size_t)1 << (random() % 18)));
    }

    void begin(int peer, size_t lane, Kind kind)
    {
        size_t at    = slot_of(peer, lane), back = READ_BACK + at;
        Remote there = remote(peer, slot_of(self, lane));
        Lane &it     = lanes[peer][lane];
        uint64_t id  = peer * LANES + lane;

        sent_last += (kind == LAST);
        it.kind   = kind;
        it.seed   = random();
        it.length = random_size(SLOT / 2);
        ++under_way;
        if ((kind == SEND) || (kind == LAST)) {
            it.length = random_size(RECV_SIZE - sizeof(Message));
            Message message = {kind == LAST, it.length, it.seed};
            memcpy(local.data + at, &message, sizeof(message));
            pattern_fill(local.data + at + sizeof(message), it.length, it.seed);
            qps[peer]->send(id, {local.sge(at, sizeof(message) + it.length)});
        } else if (kind == WRITE) {
            /* What a READ behind it finds is what was written. */
            uint32_t third = it.length / 3;
            pattern_fill(local.data + at, it.length, it.seed);
            Wr write(id, IBV_WR_RDMA_WRITE,
                     {local.sge(at, third),
                      local.sge(at + third, it.length - third)}, 0);
            Wr read(id, IBV_WR_RDMA_READ, {local.sge(back, it.length)});
            write.rdma(there).then(read.rdma(there));
            ASSERT_EQ(0, qps[peer]->post(write));
        } else if (kind == READ) {
            it.from = random() % (FIXED_SIZE - it.length);
            qps[peer]->read(id, {local.sge(back, it.length)},
                            remote(peer, FIXED + it.from));
        } else {
            Wr add(id, IBV_WR_ATOMIC_FETCH_AND_ADD, {local.sge(at, 8)});
            add.atomic(remote(0, COUNTER), it.seed % 1000);
            added += it.seed % 1000;
            ASSERT_EQ(0, qps[0]->post(add));
        }
    }

    Remote remote(int peer, size_t offset) const
    {
        return {infos[peer].memory.addr + offset, infos[peer].memory.rkey};
    }

    void end(int peer, size_t lane)
    {
        const uint8_t *data = local.data + READ_BACK + slot_of(peer, lane);
        Lane &it            = lanes[peer][lane];

        if (it.kind == WRITE) {
            EXPECT_TRUE(pattern_holds(data, it.length, it.seed));
        }
        for (uint32_t k = 0; (it.kind == READ) && (k < it.length); ++k) {
            if (data[k] != pattern_byte(1000 + peer, it.from + k)) {
                ADD_FAILURE() << "read from " << peer << ", byte " << k;
                break;
            }
        }
        it.kind = IDLE;
        --under_way;
    }

    void received(size_t slot, size_t size)
    {
        const uint8_t *data = recv_buffer.data + slot * RECV_SIZE;
        Message message;

        memcpy(&message, data, sizeof(message));
        EXPECT_EQ(sizeof(message) + message.length, size);
        EXPECT_TRUE(pattern_holds(data + sizeof(message), message.length,
                                  message.seed));
        received_last += message.is_last;
        post_recv(slot);
    }

    bool progress()
    {
        ibv_wc wc[8];
        int n = ibv_poll_cq(cq, 8, wc);

        if (n == 0) {
            sched_yield();
        }
        for (int i = 0; i < n; ++i) {
            status = wc[i].status;
            if (status != IBV_WC_SUCCESS) {
                return false;
            }
            if (wc[i].wr_id & RECV) {
                received(wc[i].wr_id & ~RECV, wc[i].byte_len);
            } else {
                end(wc[i].wr_id / LANES, wc[i].wr_id % LANES);
            }
        }
        return !testing::Test::HasFailure();
    }

    int              self, count;
    std::mt19937     random;
    std::vector<int> left; /* to begin with each rank; -1: all are over */
    Device           device;
    Buffer           memory{device, SIZE}, local{device, 2 * FIXED};
    Buffer           recv_buffer{device, MAX_RANKS * RECVS * RECV_SIZE};
    Cq               cq{device, 4096};
    Lane             lanes[MAX_RANKS][LANES] = {};
    int              under_way = 0, sent_last = 0, received_last = 0;

    std::vector<std::unique_ptr<Qp>> qps;
    std::vector<RankInfo>            infos;
};

using Ranks = std::vector<std::unique_ptr<Child>>;

/* Starts ranks that run @a body when they have met. */
Ranks start(int count, unsigned seed, int rounds,
            const std::function<void(Rank &, Pipe &)> &body)
{
    std::vector<RankInfo> infos;
    Ranks ranks;

    for (int self = 0; self < count; ++self) {
        ranks.push_back(std::make_unique<Child>([=](Pipe &pipe) {
            Rank rank(self, count, seed, rounds);
            if (rank.meet(pipe)) {
                body(rank, pipe);
            }
        }));
    }
    for (auto &rank : ranks) {
        infos.push_back(rank->pipe().recv<RankInfo>());
    }
    for (auto &rank : ranks) {
        rank->pipe().send_bytes(infos.data(), count * sizeof(RankInfo));
    }
    for (auto &rank : ranks) {
        EXPECT_TRUE(rank->pipe().await());
    }
    for (auto &rank : ranks) {
        rank->pipe().signal();
    }
    return ranks;
}

int number(const char *name, int otherwise)
{
    const char *text = getenv(name);

    return (text == nullptr) ? otherwise : strtol(text, nullptr, 0);
}

} // namespace

/* With memory of the program, or in the arena: the CPUs of the peers copy. */
class test_stress :
        public testing::TestWithParam<std::tuple<int, bool>> {
protected:
    test_stress() : trace(__FILE__, __LINE__, "NPEMU_TEST_SEED=" +
                                                      std::to_string(seed))
    {
        if (std::get<1>(GetParam())) {
            in_arena = std::make_unique<Buffer::InArena>();
        }
    }

    const int factor    = number("NPEMU_TEST_FACTOR", 1);
    const unsigned seed = number("NPEMU_TEST_SEED", std::random_device()());
    testing::ScopedTrace             trace;
    std::unique_ptr<Buffer::InArena> in_arena;
};

TEST_P(test_stress, everything_at_once_with_checksums)
{
    auto ranks = start(std::get<0>(GetParam()), seed, 2000 * factor,
                       [](Rank &rank, Pipe &pipe) {
        EXPECT_TRUE(rank.run()) << rank.status;
        pipe.send(rank.added);
        EXPECT_TRUE(pipe.await());
        pipe.send(rank.counter());
    });
    uint64_t added = 0;

    for (auto &rank : ranks) {
        added += rank->pipe().recv<uint64_t>();
    }
    for (auto &rank : ranks) {
        rank->pipe().signal();
        EXPECT_EQ(added, rank->pipe().recv<uint64_t>());
        rank->join();
        added = 0; /* it was in the first one's memory */
    }
}

INSTANTIATE_TEST_SUITE_P(processes, test_stress,
                         testing::Combine(testing::Values(1, 2, 3, 4),
                                          testing::Bool()));

/* All but one are killed at random moments. That one gets a transport error,
 * and nothing is left. */
class test_stress_kill : public test_stress {
};

TEST_P(test_stress_kill, survivor_gets_a_transport_error)
{
    const int count = std::get<0>(GetParam());
    std::mt19937 random(seed);

    for (int round = 0; round < 120 / count * factor; ++round) {
        auto ranks = start(count, random(), 1 << 30,
                           [=](Rank &rank, Pipe &pipe) {
            EXPECT_FALSE(rank.run());
            EXPECT_TRUE((rank.status == IBV_WC_RETRY_EXC_ERR) ||
                        (rank.status == IBV_WC_WR_FLUSH_ERR)) << rank.status;
            pipe.await();
        });
        for (int i = 1; i < count; ++i) {
            std::this_thread::sleep_for(
                    std::chrono::microseconds(random() % 4000));
            ranks[i]->kill();
        }
        ranks[0]->release();
        EXPECT_TRUE(!has_own_fabric() ||
                    wait_until([] { return segments().empty(); }));
        ASSERT_FALSE(HasFailure()) << "round " << round;
    }
}

INSTANTIATE_TEST_SUITE_P(processes, test_stress_kill,
                         testing::Combine(testing::Values(2, 4),
                                          testing::Bool()));

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
                ibv_wc wc;
                ASSERT_EQ(0, pair.a.post(add.atomic(buffer.remote(), 1)));
                int n = ibv_poll_cq(pair.cq_a, 1, &wc);
                ASSERT_LE(0, n);
                ASSERT_TRUE((n == 0) || (wc.status == IBV_WC_SUCCESS));
                completed += n;
            }
        });
    }
    for (auto &thread : threads) {
        thread.join();
    }
    for (; completed < THREADS * EACH; ++completed) {
        ASSERT_EQ(IBV_WC_SUCCESS, pair.cq_a.wait().status);
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
                pair.a.write(1, {source.sge()}, {target.at(0), rkey});
                ibv_wc_status status = pair.cq_a.wait().status;
                alive                = status == IBV_WC_SUCCESS;
                ++(alive ? good : refused);
                ASSERT_TRUE(alive || (status == IBV_WC_REM_ACCESS_ERR));
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
