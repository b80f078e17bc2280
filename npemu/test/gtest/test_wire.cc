/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * The wire of NPEMU_LINK, with a clock of the test: shares, order, and what a
 * process leaves behind that is killed.
 */

#include "internals.h"
#include "npemu_test.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <deque>
#include <map>
#include <random>

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

using namespace npt;

namespace {

constexpr uint64_t NS = 1000; /* work, ps */

/*
 * The same in another way: what each flow has left to send, which is reduced
 * step by step. Slow, and of real numbers.
 */
class SlowWire {
public:
    struct Message {
        int         id;
        long double left;
    };
    using Flows = std::map<std::pair<uint32_t, uint64_t>, std::deque<Message>>;

    void add(int id, uint64_t key, uint32_t level, uint64_t work_ps)
    {
        m_flows[{level, key}].push_back({id, (long double)work_ps / NS});
    }

    void remove(uint64_t key)
    {
        for (auto it = m_flows.begin(); it != m_flows.end();) {
            bool is_it = (it->first.second == key);
            if (is_it) {
                for (auto &message : it->second) {
                    departed[message.id] = -1;
                }
            }
            it = is_it ? m_flows.erase(it) : std::next(it);
        }
    }

    void advance(long double now)
    {
        while (m_now < now) {
            uint32_t top = 0;
            int count    = 0;
            for (auto &flow : m_flows) {
                if (!flow.second.empty()) {
                    count = (flow.first.first > top) ? 0 : count;
                    top   = std::max(top, flow.first.first);
                    ++count;
                }
            }
            if (count == 0) {
                break;
            }
            step(top, count, now);
        }
        m_now = now;
    }

    std::map<int, long double> departed; /* -1: removed */

private:
    void step(uint32_t top, int count, long double now)
    {
        long double each = (now - m_now) / count;
        for (auto &flow : m_flows) {
            if ((flow.first.first == top) && !flow.second.empty()) {
                each = std::min(each, flow.second.front().left);
            }
        }
        m_now += each * count;
        for (auto &flow : m_flows) {
            if ((flow.first.first != top) || flow.second.empty()) {
                continue;
            }
            flow.second.front().left -= each;
            if (flow.second.front().left < 1e-9L) {
                departed[flow.second.front().id] = m_now;
                flow.second.pop_front();
            }
        }
        /* What rounding would make of an endless loop */
        if (each * count < 1e-9L) {
            m_now += 1e-9L;
        }
    }

    Flows       m_flows;
    long double m_now = 0;
};

} // namespace

class test_wire : public testing::Test {
protected:
    test_wire() : wire(npt_wire_create()) {}
    ~test_wire() override { npt_wire_destroy(wire); }

    uint64_t add(uint64_t key, uint64_t work_ns, uint32_t level = 0)
    {
        return npt_wire_add(wire, key, level, work_ns * NS);
    }

    bool has_left(uint64_t tag, uint32_t level = 0)
    {
        return npt_wire_has_left(wire, level, tag) != 0;
    }

    uint64_t when(uint64_t tag, uint32_t level = 0)
    {
        return npt_wire_when(wire, level, tag);
    }

    /* The first nanosecond at which the message has left. */
    void expect_leaves(uint64_t at_ns, uint64_t tag, uint32_t level = 0)
    {
        EXPECT_EQ(at_ns, when(tag, level));
        npt_wire_advance(wire, at_ns - 1);
        EXPECT_FALSE(has_left(tag, level)) << "at " << at_ns - 1;
        npt_wire_advance(wire, at_ns);
        EXPECT_TRUE(has_left(tag, level)) << "at " << at_ns;
    }

    struct npt_wire *wire;
};

/* Flows for which there is no room share one, and no work is lost. */
TEST_F(test_wire, more_flows_than_room)
{
    const unsigned room = npt_wire_max_flows();
    std::vector<uint64_t> tags;

    for (unsigned i = 0; i < 2 * room; ++i) {
        tags.push_back(add(i + 1, 1));
    }
    EXPECT_EQ(room, npt_wire_flows(wire));
    expect_leaves(2 * room, tags.back());
    for (uint64_t tag : tags) {
        EXPECT_TRUE(has_left(tag));
    }
    EXPECT_EQ(0u, npt_wire_flows(wire));
}

/* Ten thousand random sequences. */
TEST_F(test_wire, is_like_the_slow_one)
{
    struct Sent {
        int      id;
        uint32_t level;
        uint64_t tag;
    };

    for (int seed = 0; seed < 10000; ++seed) {
        std::mt19937 random(seed);
        unsigned levels = (random() % 3 == 0) ? 3 : 1;
        unsigned keys   = 1 + random() % 6;
        SlowWire slow;
        std::vector<Sent> sent;
        uint64_t now = 0;

        npt_wire_destroy(wire);
        wire = npt_wire_create();
        for (int i = 0; i < 40; ++i) {
            unsigned what = random() % 10;
            if (what < 5) {
                /* A queue pair has one service level */
                uint64_t key   = random() % (keys + 1);
                uint32_t level = key % levels;
                uint64_t work  = 1 + random() % 100000;
                sent.push_back({(int)sent.size(), level,
                                npt_wire_add(wire, key, level, work)});
                slow.add(sent.back().id, key, level, work);
            } else if (what == 5) {
                uint64_t key = 1 + random() % keys;
                npt_wire_remove(wire, key);
                slow.remove(key);
            } else {
                now += random() % 200;
                npt_wire_advance(wire, now);
                slow.advance(now);
            }

            SlowWire future = slow;
            future.advance(1e9L);
            for (const Sent &one : sent) {
                long double end = future.departed.at(one.id);
                if (end < 0) {
                    continue; /* removed */
                }
                if (fabsl(end - now) > 1) {
                    ASSERT_EQ(end < now, npt_wire_has_left(wire, one.level,
                                                           one.tag) != 0)
                            << "seed " << seed << " message " << one.id;
                }
                if (end > now + 1) {
                    ASSERT_NEAR((double)end, (double)npt_wire_when(wire,
                                                                   one.level,
                                                                   one.tag),
                                2.0)
                            << "seed " << seed << " message " << one.id;
                }
            }
        }
    }
}

/* A process is killed at any moment: the wire works on, and owes no more than
 * that process has put there. */
TEST_F(test_wire, a_killed_process_leaves_a_valid_wire)
{
    struct Shared {
        std::atomic<uint64_t> work_ns; /* put on the wire, or more */
        std::atomic<uint64_t> now_ns;
    };
    auto *shared = (Shared*)mmap(nullptr, sizeof(Shared),
                                 PROT_READ | PROT_WRITE,
                                 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(MAP_FAILED, (void*)shared);

    for (int round = 0; round < 100; ++round) {
        std::mt19937 random(round);
        pid_t pid = fork();
        ASSERT_GE(pid, 0);
        if (pid == 0) {
            for (;;) {
                uint64_t work = 1 + random() % 100;
                shared->work_ns += work;
                npt_wire_add(wire, 1 + random() % 50, random() % 16,
                             work * NS);
                if (random() % 8 == 0) {
                    npt_wire_remove(wire, 1 + random() % 50);
                }
                shared->now_ns += random() % 100;
                npt_wire_advance(wire, shared->now_ns);
            }
        }

        uint64_t before = shared->work_ns;
        EXPECT_TRUE(wait_until([&] {
            return shared->work_ns > before + 1000 + random() % 1000;
        }));
        kill(pid, SIGKILL);
        ASSERT_EQ(pid, waitpid(pid, nullptr, 0));

        uint64_t mine = add(1000, 10, 0);
        uint64_t end  = when(mine, 0);
        ASSERT_LE(end, shared->now_ns + shared->work_ns + 10);
        npt_wire_advance(wire, shared->now_ns + shared->work_ns + 10);
        ASSERT_TRUE(has_left(mine, 0));
        ASSERT_EQ(0u, npt_wire_flows(wire));
        shared->now_ns = shared->now_ns + shared->work_ns + 10;
    }
    munmap(shared, sizeof(Shared));
}
