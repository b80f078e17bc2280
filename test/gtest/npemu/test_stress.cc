/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * Two to four processes that do everything to each other at once, with every
 * byte checked; threads; and processes killed in the midst of it.
 *
 * NPEMU_TEST_SEED repeats a run, NPEMU_TEST_FACTOR makes it longer.
 */

#include "npemu_test.h"

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <random>
#include <thread>

#include <sys/ipc.h>
#include <sys/shm.h>
#include <unistd.h>

using namespace npt;

static unsigned base_seed()
{
    static unsigned seed = getenv("NPEMU_TEST_SEED") ?
                                   strtoul(getenv("NPEMU_TEST_SEED"), NULL, 0) :
                                   std::random_device()();
    return seed;
}

static int factor()
{
    const char *text = getenv("NPEMU_TEST_FACTOR");

    return (text == nullptr) ? 1 : atoi(text);
}

/* What a rank tells all others. */
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
            if (ms_since(start) > 4 * WAIT_MS) {
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
            size_t size = random_size(RECV_SIZE - sizeof(Message));
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
        } else if (kind == 3) {
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
        size_t offset = slot * RECV_SIZE + 64;
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

class NpemuStress : public testing::TestWithParam<int> {};

TEST_P(NpemuStress, everything_at_once_with_checksums)
{
    int count     = GetParam();
    unsigned seed = base_seed();
    SCOPED_TRACE("NPEMU_TEST_SEED=" + std::to_string(seed));
    std::vector<std::unique_ptr<Child>> ranks;

    for (int self = 0; self < count; ++self) {
        ranks.push_back(std::make_unique<Child>([=](Pipe &pipe) {
            Rank rank(self, count, seed, 400 * factor());
            pipe.send(rank.info());
            std::vector<RankInfo> all;
            for (int i = 0; i < count; ++i) {
                all.push_back(pipe.recv<RankInfo>());
            }
            rank.connect(all);
            pipe.signal();
            EXPECT_TRUE(pipe.await());
            EXPECT_TRUE(rank.run());
            pipe.send(rank.added);
            EXPECT_TRUE(pipe.await());
            pipe.send(rank.counter());
        }));
    }
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

INSTANTIATE_TEST_SUITE_P(Processes, NpemuStress, testing::Values(1, 2, 3, 4));

/* --- threads -------------------------------------------------------------- */

/* Each thread its own connection; all use the same device. */
TEST(NpemuThreads, own_connections)
{
    Device device;
    ASSERT_TRUE(device.ok());
    std::vector<std::thread> threads;

    for (int t = 0; t < 4; ++t) {
        threads.emplace_back([&, t] {
            Pair pair(device);
            Buffer buffer(device, 32 << 10);
            for (int i = 0; i < 200; ++i) {
                size_t size = (i * 97) % 9000;
                pattern_fill(buffer.data, size, i + t);
                ASSERT_EQ(0, pair.b.post_recv(i, {buffer.sge(16 << 10,
                                                             16 << 10)}));
                Wr send(i, IBV_WR_SEND, {buffer.sge(0, size)});
                ASSERT_EQ(0, pair.a.post(send));
                pair.cq_a.expect(i);
                pair.cq_b.expect(i);
                ASSERT_TRUE(pattern_holds(buffer.data + (16 << 10), size,
                                          i + t));
            }
        });
    }
    for (auto &thread : threads) {
        thread.join();
    }
}

/* All verbs are thread-safe: one QP, one CQ, many threads post and poll. */
TEST(NpemuThreads, one_queue_pair_for_all)
{
    constexpr int THREADS = 4, EACH = 300;
    Device device;
    ASSERT_TRUE(device.ok());
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
TEST(NpemuThreads, deregistered_while_in_use)
{
    Device device;
    ASSERT_TRUE(device.ok());
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

/* --- killed in the midst of it -------------------------------------------- */

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
        result.retry_cnt = 2;
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

TEST(NpemuKill, peers_get_a_transport_error_in_time)
{
    unsigned seed = base_seed();
    std::mt19937 random(seed);
    SCOPED_TRACE("NPEMU_TEST_SEED=" + std::to_string(seed));

    for (int round = 0; round < 40 * factor(); ++round) {
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
            ASSERT_GT(3 * 16.77 * 4 + 3000, ms_since(start));
        }
        EXPECT_EQ(IBV_WC_RETRY_EXC_ERR, traffic.status);
        EXPECT_EQ(IBV_QPS_ERR, traffic.qp.state());
    }
}

/* The others go on: nothing they share with the dead one blocks them. */
TEST(NpemuKill, bystanders_go_on)
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
                cq.expect(2);
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
TEST(NpemuKill, receives_are_not_lost)
{
    unsigned seed = base_seed() + 2;
    std::mt19937 random(seed);
    SCOPED_TRACE("NPEMU_TEST_SEED=" + std::to_string(seed - 2));
    constexpr int RECEIVES = 8;

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
    for (int round = 0; round < 40 * factor(); ++round) {
        unsigned victim_seed = random(), delay = random() % 2000;
        Child victim([=](Pipe &pipe) {
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
                cq.expect(2);
            }
        });
        Qp qp(device, send_cq, recv_cq, options);
        connect_over(victim.pipe(), qp);
        ASSERT_TRUE(victim.pipe().await());
        auto start  = Clock::now();
        auto repost = [&] {
            ibv_wc wc;
            if (ibv_poll_cq(recv_cq, 1, &wc) == 1) {
                ASSERT_EQ(IBV_WC_SUCCESS, wc.status);
                ASSERT_EQ(0, srq.post(wc.wr_id,
                                      {memory.sge(wc.wr_id * 9216, 9216)}));
            }
        };
        while (ms_since(start) * 1000 < delay) {
            repost();
        }
        victim.kill();
        start = Clock::now();
        while (ms_since(start) < 2) {
            repost();
        }
    }

    /* All that were posted must still be there to be used, each once. */
    Cq cq(device);
    Qp a(device, cq, cq), b(device, cq, recv_cq, options);
    ASSERT_EQ(0, a.to_init());
    ASSERT_EQ(0, b.to_init());
    ASSERT_EQ(0, a.to_rtr(b.address()));
    ASSERT_EQ(0, b.to_rtr(a.address()));
    ASSERT_EQ(0, a.to_rts());
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
TEST(NpemuKill, nothing_is_left_of_four_killed_processes)
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
                pipe.send(rank.info());
                std::vector<RankInfo> all;
                for (int i = 0; i < 4; ++i) {
                    all.push_back(pipe.recv<RankInfo>());
                }
                rank.connect(all);
                pipe.signal();
                pipe.await();
                rank.peers_die = true;
                rank.run();
                pause(); /* one of the others was killed before */
            }));
        }
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
        for (auto &rank : ranks) {
            std::this_thread::sleep_for(
                    std::chrono::microseconds(random() % 5000));
            rank->kill();
        }
        EXPECT_TRUE(wait_until([] { return segments_left() == 0; }))
                << segments_left() << " segments";
    }
}
