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
    bool    present;
};

/*
 * A rank's memory: for each other rank a window that this one writes into, an
 * area that all may read and that never changes, and a counter.
 */
struct Layout {
    static constexpr size_t SLOTS   = 4;
    static constexpr size_t SLOT    = 80 << 10;
    static constexpr size_t STATIC  = 256 << 10;
    static constexpr size_t WINDOW  = SLOTS * SLOT;
    static constexpr size_t FIXED   = RankInfo::MAX * WINDOW;
    static constexpr size_t COUNTER = FIXED + STATIC;
    static constexpr size_t SIZE    = COUNTER + 4096;
};

/* What goes through SENDs, before a payload. */
struct Message {
    enum Kind : uint32_t { DATA, WROTE, ACK, DONE } kind;
    uint32_t slot;
    uint32_t length;
    uint32_t seed;
};

class Rank {
public:
    Rank(int self, int count, unsigned seed, int rounds) :
        self(self), count(count), rounds(rounds), random(seed + self),
        memory(device, Layout::SIZE), recv_buffer(device, RECVS * RECV_SIZE),
        send_buffer(device, RankInfo::MAX * SENDS * RECV_SIZE),
        local(device, RankInfo::MAX * Layout::SLOT), cq(device, 4096)
    {
        QpOptions options;
        options.send_wr = 128;
        options.recv_wr = RECVS_PER_PEER;
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
        result.memory  = {memory.at(0), memory.mr->rkey};
        result.present = true;
        return result;
    }

    void connect(const std::vector<RankInfo> &all)
    {
        infos = all;
        for (int peer = 0; peer < count; ++peer) {
            qps[peer]->connect(all[peer].qp[self]);
            for (int i = 0; i < RECVS_PER_PEER; ++i) {
                post_recv(peer, peer * RECVS_PER_PEER + i);
            }
        }
    }

    /* False once something is wrong: the failure is recorded. */
    bool run()
    {
        std::vector<int> left(count, rounds);
        std::vector<bool> done(count, false);

        auto start = Clock::now();
        while (!finished()) {
            if (ms_since(start) > 2 * WAIT_MS) {
                ADD_FAILURE() << "rank " << self << " gets no further";
                return false;
            }
            int peer = random() % count;
            if ((left[peer] > 0) && (outstanding[peer] < 8)) {
                start_one(peer);
                --left[peer];
            } else if ((left[peer] == 0) && !done[peer] &&
                       (outstanding[peer] == 0) && (unacked[peer] == 0)) {
                send(peer, Message{Message::DONE, 0, 0, 0});
                done[peer] = true;
                ++sent_done;
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

    static constexpr int RECVS_PER_PEER = 16;
    static constexpr size_t RECV_SIZE   = 10 << 10;

private:
    static constexpr int RECVS = RankInfo::MAX * RECVS_PER_PEER;
    static constexpr int SENDS = 16;

    /* Before the message of a send slot: results of atomics. */
    static constexpr size_t HEAD = 64;

    enum Tag : uint64_t { RECV, SEND, WRITE, READ, ADD };

    static uint64_t id(Tag tag, int peer, uint32_t a, uint32_t b = 0)
    {
        return (tag << 56) | ((uint64_t)peer << 48) | ((uint64_t)a << 32) | b;
    }

    bool finished() const
    {
        int open = 0;
        for (int i = 0; i < count; ++i) {
            open += outstanding[i] + unacked[i];
        }
        return (open == 0) && (received_done == count) &&
               (sent_done == count) && (sends_out == 0);
    }

    void post_recv(int peer, int index)
    {
        ASSERT_EQ(0, qps[peer]->post_recv(
                             id(RECV, peer, index),
                             {recv_buffer.sge(index * RECV_SIZE, RECV_SIZE)}));
    }

    size_t random_size(size_t max)
    {
        /* As many small ones as large ones. */
        return random() % (1 + std::min(max, (size_t)1 << (random() % 18)));
    }

    void start_one(int peer)
    {
        uint32_t kind = random() % 4;

        if (kind == 0) {
            size_t size = random_size(RECV_SIZE - HEAD - sizeof(Message));
            send(peer, Message{Message::DATA, 0, (uint32_t)size,
                               (uint32_t)random()});
        } else if ((kind == 1) && (slots[peer] != 0)) {
            /* Written first, announced on the same connection. */
            uint32_t slot = __builtin_ctz(slots[peer]);
            slots[peer]  &= ~(1u << slot);
            size_t size   = random_size(Layout::SLOT / 2);
            uint32_t seed = random();
            size_t offset = peer * Layout::SLOT;
            if (local_busy[peer]) {
                slots[peer] |= 1u << slot;
                return;
            }
            local_busy[peer] = true;
            pattern_fill(local.data + offset, size, seed);
            Wr write(id(WRITE, peer, slot), IBV_WR_RDMA_WRITE,
                     {local.sge(offset, size / 3),
                      local.sge(offset + size / 3, size - size / 3)});
            write.rdma(Remote{infos[peer].memory.addr + self * Layout::WINDOW +
                                      slot * Layout::SLOT,
                              infos[peer].memory.rkey});
            post(peer, write);
            ++unacked[peer];
            send(peer,
                 Message{Message::WROTE, slot, (uint32_t)size, seed});
        } else if ((kind == 2) && !local_busy[peer]) {
            size_t size      = random_size(Layout::SLOT / 2);
            size_t from      = random() % (Layout::STATIC - size);
            local_busy[peer] = true;
            read_from[peer]  = from;
            Wr read(id(READ, peer, 0, size), IBV_WR_RDMA_READ,
                    {local.sge(peer * Layout::SLOT, size)});
            read.rdma(Remote{infos[peer].memory.addr + Layout::FIXED + from,
                             infos[peer].memory.rkey});
            post(peer, read);
        } else if ((kind == 3) && (outstanding[0] < 8)) {
            uint64_t value = random() % 1000;
            Wr add(id(ADD, peer, 0), IBV_WR_ATOMIC_FETCH_AND_ADD,
                   {send_buffer.sge(0, 8)});
            add.atomic(Remote{infos[0].memory.addr + Layout::COUNTER,
                              infos[0].memory.rkey},
                       value);
            post(0, add);
            added += value;
        }
    }

    void post(int peer, Wr &wr)
    {
        ASSERT_EQ(0, qps[peer]->post(wr));
        ++outstanding[peer];
    }

    void send(int peer, const Message &message)
    {
        /* Slots in turn; the send queue is long enough for the rest. */
        size_t slot   = peer * SENDS + (next_send[peer]++ % SENDS);
        size_t offset = slot * RECV_SIZE + HEAD;
        size_t size   = sizeof(message);

        while (send_busy[slot]) {
            if (!progress()) {
                return;
            }
        }
        send_busy[slot] = true;
        memcpy(send_buffer.data + offset, &message, sizeof(message));
        if (message.kind == Message::DATA) {
            pattern_fill(send_buffer.data + offset + size, message.length,
                         message.seed);
            size += message.length;
        }
        Wr wr(id(SEND, peer, slot), IBV_WR_SEND,
              {send_buffer.sge(offset, size)});
        ASSERT_EQ(0, qps[peer]->post(wr));
        ++sends_out;
    }

    bool received(int peer, int index, size_t size)
    {
        const uint8_t *data = recv_buffer.data + index * RECV_SIZE;
        Message message;

        memcpy(&message, data, sizeof(message));
        switch (message.kind) {
        case Message::DATA:
            EXPECT_EQ(sizeof(message) + message.length, size);
            EXPECT_TRUE(pattern_holds(data + sizeof(message), message.length,
                                      message.seed));
            break;
        case Message::WROTE:
            EXPECT_TRUE(pattern_holds(memory.data + peer * Layout::WINDOW +
                                              message.slot * Layout::SLOT,
                                      message.length, message.seed));
            acks.push_back({peer, message.slot});
            break;
        case Message::ACK:
            slots[peer] |= 1u << message.slot;
            --unacked[peer];
            break;
        case Message::DONE:
            ++received_done;
            break;
        default:
            ADD_FAILURE() << "message of kind " << message.kind;
        }
        post_recv(peer, index);
        return !testing::Test::HasFailure();
    }

    bool progress()
    {
        ibv_wc wc[8];
        int n = ibv_poll_cq(cq, 8, wc);

        if (n == 0) {
            sched_yield();
        }
        for (int i = 0; i < n; ++i) {
            int peer     = (wc[i].wr_id >> 48) & 0xff;
            uint32_t a   = (wc[i].wr_id >> 32) & 0xffff;
            uint32_t b   = (uint32_t)wc[i].wr_id;
            size_t local_at = peer * Layout::SLOT;
            if (wc[i].status != IBV_WC_SUCCESS) {
                EXPECT_TRUE(peers_die)
                        << "rank " << self << ", peer " << peer
                        << ": status " << wc[i].status;
                return false;
            }
            switch (wc[i].wr_id >> 56) {
            case RECV:
                if (!received(peer, a, wc[i].byte_len)) {
                    return false;
                }
                break;
            case SEND:
                send_busy[a] = false;
                --sends_out;
                break;
            case WRITE:
                local_busy[peer] = false;
                --outstanding[peer];
                break;
            case READ:
                local_busy[peer] = false;
                --outstanding[peer];
                for (uint32_t k = 0; k < b; ++k) {
                    if (local.data[local_at + k] !=
                        pattern_byte(1000 + peer, read_from[peer] + k)) {
                        ADD_FAILURE() << "read from " << peer << ", byte " << k;
                        return false;
                    }
                }
                break;
            default:
                --outstanding[0]; /* the counter is rank 0's */
                break;
            }
        }
        /* Not from within the loop: a send may poll, too. */
        while (!acks.empty() && !acking) {
            auto ack = acks.back();
            acks.pop_back();
            acking = true;
            send(ack.first, Message{Message::ACK, ack.second, 0, 0});
            acking = false;
        }
        return true;
    }

    int          self, count, rounds;
    std::mt19937 random;
    Device       device;
    Buffer       memory, recv_buffer, send_buffer, local;
    Cq           cq;

    std::vector<std::unique_ptr<Qp>>      qps;
    std::vector<RankInfo>                 infos;
    std::vector<std::pair<int, uint32_t>> acks;

    bool     acking                           = false;
    int      outstanding[RankInfo::MAX]       = {};
    int      unacked[RankInfo::MAX]           = {};
    unsigned next_send[RankInfo::MAX]         = {};
    bool     send_busy[RankInfo::MAX * SENDS] = {};
    bool     local_busy[RankInfo::MAX]        = {};
    size_t   read_from[RankInfo::MAX]         = {};
    uint32_t slots[RankInfo::MAX]             = {15, 15, 15, 15};
    int      sent_done = 0, received_done = 0, sends_out = 0;
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
