/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * One of several processes that do everything to each other at once, with every
 * byte checked.
 *
 * NPEMU_TEST_SEED repeats a run, NPEMU_TEST_FACTOR makes it longer.
 */

#ifndef NPEMU_RANK_H
#define NPEMU_RANK_H

#include "npemu_test.h"

#include <algorithm>
#include <cstdlib>
#include <random>
#include <utility>

#include <sched.h>

namespace npt {

inline unsigned base_seed()
{
    const char *text = getenv("NPEMU_TEST_SEED");
    static unsigned seed = (text == nullptr) ? std::random_device()() :
                                               strtoul(text, nullptr, 0);

    return seed;
}

inline int factor()
{
    const char *text = getenv("NPEMU_TEST_FACTOR");

    return (text == nullptr) ? 1 : atoi(text);
}

/* What a rank sends to all others. */
struct RankInfo {
    static constexpr int MAX = 4;

    Address qp[MAX];  /* the QP for each rank */
    Remote  memory;
};

/* A rank's memory: for each lane of each other rank a view that it writes to,
 * an area that all may read and that never changes, and a counter. */
struct Layout {
    static constexpr size_t LANES   = 4;
    static constexpr size_t SLOT    = 80 << 10;
    static constexpr size_t FIXED   = RankInfo::MAX * LANES * SLOT;
    static constexpr size_t STATIC  = 256 << 10;
    static constexpr size_t COUNTER = FIXED + STATIC;
    static constexpr size_t SIZE    = COUNTER + 4096;

    static size_t slot(int rank, size_t lane)
    {
        return (rank * LANES + lane) * SLOT;
    }
};

/* What a SEND begins with. */
struct Message {
    uint32_t is_last;
    uint32_t length;
    uint32_t seed;
};

/* Has up to LANES operations under way with each rank, each at random. */
class Rank {
public:
    Rank(int self, int count, unsigned seed, int rounds) :
        self(self), count(count), random(seed + self), left(count, rounds),
        memory(device, Layout::SIZE),
        recv_buffer(device, RankInfo::MAX * RECVS * RECV_SIZE),
        local(device, 2 * Layout::FIXED), cq(device, 4096)
    {
        QpOptions options;
        options.recv_wr = RECVS;
        for (int i = 0; i < count; ++i) {
            qps.push_back(std::make_unique<Qp>(device, cq, cq, options));
        }
        pattern_fill(memory.data + Layout::FIXED, Layout::STATIC, 1000 + self);
    }

    RankInfo info()
    {
        RankInfo result = {};

        for (int i = 0; i < count; ++i) {
            result.qp[i] = qps[i]->address();
        }
        result.memory = memory.remote();
        return result;
    }

    void connect(const std::vector<RankInfo> &all)
    {
        infos = all;
        for (int peer = 0; peer < count; ++peer) {
            qps[peer]->connect(all[peer].qp[self]);
            for (int i = 0; i < RECVS; ++i) {
                post_recv(peer, i);
            }
        }
    }

    /* False once something is wrong: the failure is recorded. */
    bool run()
    {
        auto start = Clock::now();

        while ((received_last < count) || (sent_last < count) ||
               (under_way > 0)) {
            int peer    = random() % count;
            size_t lane = random() % Layout::LANES;

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
        return *(volatile uint64_t*)(memory.data + Layout::COUNTER);
    }

    uint64_t added     = 0;
    bool     peers_die = false; /* errors of connections are expected */

private:
    static constexpr int    RECVS     = 16;
    static constexpr size_t RECV_SIZE = 10 << 10;
    static constexpr size_t READ_BACK = Layout::FIXED; /* in `local` */
    static constexpr uint64_t RECV    = 1ull << 32;    /* in a wr_id */

    enum Kind { IDLE, SEND, WRITE, READ, ADD, LAST };

    struct Lane {
        Kind     kind;
        uint32_t seed, length;
        size_t   from; /* READ: in the area that never changes */
    };

    void post_recv(int peer, int index)
    {
        size_t slot = peer * RECVS + index;

        ASSERT_EQ(0, qps[peer]->post_recv(RECV | slot,
                                          {recv_buffer.sge(slot * RECV_SIZE,
                                                           RECV_SIZE)}));
    }

    size_t random_size(size_t max)
    {
        /* As many small ones as large ones. */
        return random() % (1 + std::min(max, (size_t)1 << (random() % 18)));
    }

    void begin(int peer, size_t lane, Kind kind)
    {
        size_t at    = Layout::slot(peer, lane);
        size_t there = Layout::slot(self, lane);
        Lane &it     = lanes[peer][lane];
        uint64_t id  = peer * Layout::LANES + lane;

        sent_last += (kind == LAST);
        it.kind   = kind;
        it.seed   = random();
        it.length = random_size(Layout::SLOT / 2);
        ++under_way;
        if ((kind == SEND) || (kind == LAST)) {
            it.length = (kind == LAST) ? 0 :
                                         random_size(RECV_SIZE -
                                                     sizeof(Message));
            Message message = {kind == LAST, it.length, it.seed};
            memcpy(local.data + at, &message, sizeof(message));
            pattern_fill(local.data + at + sizeof(message), it.length, it.seed);
            Wr send(id, IBV_WR_SEND,
                    {local.sge(at, sizeof(message) + it.length)});
            ASSERT_EQ(0, qps[peer]->post(send));
        } else if (kind == WRITE) {
            /* What a READ behind it finds is what was written. */
            pattern_fill(local.data + at, it.length, it.seed);
            Wr write(id, IBV_WR_RDMA_WRITE,
                     {local.sge(at, it.length / 3),
                      local.sge(at + it.length / 3,
                                it.length - it.length / 3)}, 0);
            Wr read(id, IBV_WR_RDMA_READ,
                    {local.sge(READ_BACK + at, it.length)});
            write.rdma(remote(peer, there)).then(
                    read.rdma(remote(peer, there)));
            ASSERT_EQ(0, qps[peer]->post(write));
        } else if (kind == READ) {
            it.from = random() % (Layout::STATIC - it.length);
            Wr read(id, IBV_WR_RDMA_READ,
                    {local.sge(READ_BACK + at, it.length)});
            read.rdma(remote(peer, Layout::FIXED + it.from));
            ASSERT_EQ(0, qps[peer]->post(read));
        } else {
            Wr add(id, IBV_WR_ATOMIC_FETCH_AND_ADD, {local.sge(at, 8)});
            add.atomic(remote(0, Layout::COUNTER), it.seed % 1000);
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
        const uint8_t *data = local.data + READ_BACK + Layout::slot(peer, lane);
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
        post_recv(slot / RECVS, slot % RECVS);
    }

    bool progress()
    {
        ibv_wc wc[8];
        int n = ibv_poll_cq(cq, 8, wc);

        if (n == 0) {
            sched_yield();
        }
        for (int i = 0; i < n; ++i) {
            if (wc[i].status != IBV_WC_SUCCESS) {
                EXPECT_TRUE(peers_die) << "rank " << self << ", wr_id "
                                       << wc[i].wr_id << ": status "
                                       << wc[i].status;
                return false;
            }
            if (wc[i].wr_id & RECV) {
                received(wc[i].wr_id & ~RECV, wc[i].byte_len);
            } else {
                end(wc[i].wr_id / Layout::LANES, wc[i].wr_id % Layout::LANES);
            }
        }
        return !testing::Test::HasFailure();
    }

    int              self, count;
    std::mt19937     random;
    std::vector<int> left; /* to begin with each rank; -1: all are over */
    Device           device;
    Buffer           memory, recv_buffer, local;
    Cq               cq;
    Lane             lanes[RankInfo::MAX][Layout::LANES] = {};
    int              under_way = 0, sent_last = 0, received_last = 0;

    std::vector<std::unique_ptr<Qp>> qps;
    std::vector<RankInfo>            infos;
};

/* In each of @a count children: connected to all others when it returns; false
 * if the parent has gone. */
inline bool meet(Pipe &pipe, Rank &rank, int count)
{
    std::vector<RankInfo> all;

    pipe.send(rank.info());
    for (int i = 0; i < count; ++i) {
        all.push_back(pipe.recv<RankInfo>());
    }
    rank.connect(all);
    pipe.signal();
    return pipe.await();
}

/* In the parent: what children that meet() need of it. */
inline void introduce(const std::vector<std::unique_ptr<Child>> &ranks)
{
    std::vector<RankInfo> infos;

    for (auto &rank : ranks) {
        infos.push_back(rank->pipe().recv<RankInfo>());
    }
    for (auto &rank : ranks) {
        for (auto &info : infos) {
            rank->pipe().send(info);
        }
    }
    for (auto &rank : ranks) {
        EXPECT_TRUE(rank->pipe().await());
    }
    for (auto &rank : ranks) {
        rank->pipe().signal();
    }
}

} // namespace npt

#endif
