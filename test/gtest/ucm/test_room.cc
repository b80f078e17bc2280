/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* What a cgroup leaves to its processes: in folders that the test writes, and
 * in a real one, where the kernel kills a process beyond the limit */

#include "limited_group.h"


#include <ucm/events/nprdma_kept.h>
#include <ucm/events/nprdma_room.h>

#include <cerrno>
#include <string>

class test_room : public ::testing::Test, protected fake_cgroup {
protected:
    ~test_room() override
    {
        nprdma_room_close(&m_room);
    }

    void open()
    {
        nprdma_room_close(&m_room);
        nprdma_room_open(&m_room, &m_params.psi);
    }

    bool has(size_t length, unsigned percent = 100)
    {
        return nprdma_room_has(&m_room, length, percent) != 0;
    }

    nprdma_room_t m_room = {};
};

TEST_F(test_room, without_limits)
{
    EXPECT_TRUE(has(SIZE_MAX));
    open();
    EXPECT_TRUE(has(SIZE_MAX));
    make_v2();
    open();
    EXPECT_EQ(2u, m_room.num_groups);
    EXPECT_TRUE(has(SIZE_MAX));
}

TEST_F(test_room, limit_of_v2)
{
    make_v2();
    put_step("memory.max", "4000\n");
    open();
    EXPECT_TRUE(has(3000));
    EXPECT_FALSE(has(3001));
    EXPECT_FALSE(has(SIZE_MAX));
    EXPECT_TRUE(has(0, 25));
    EXPECT_TRUE(has(1000, 50));
    EXPECT_FALSE(has(1001, 50));
    EXPECT_FALSE(has(0, 24));

    /* Usage is read each time */
    put_step("memory.current", "3999\n");
    EXPECT_TRUE(has(1));
    EXPECT_FALSE(has(2));
}

TEST_F(test_room, limit_of_v1)
{
    make_v1();
    open();
    EXPECT_TRUE(has(SIZE_MAX));
    put(m_cgroup + "/memory/job/memory.limit_in_bytes", "4000\n");
    open();
    EXPECT_TRUE(has(3000));
    EXPECT_FALSE(has(3001));
    put(m_cgroup + "/memory/job/memory.stat",
        "cache 7\ninactive_file 1\nactive_file 2\ntotal_cache 9\n"
        "total_inactive_file 300\ntotal_active_file 40\n");
    open();
    EXPECT_TRUE(has(3340));
    EXPECT_FALSE(has(3341));
}

TEST_F(test_room, limit_is_read_again)
{
    make_v2();
    open();
    EXPECT_TRUE(has(3001));
    put_step("memory.max", "4000\n");
    wait_for([&]() { return !has(3001); });
    put_step("memory.stat", "anon 1\ninactive_file 500\nactive_file 20\n");
    open();
    EXPECT_TRUE(has(3520));
    EXPECT_FALSE(has(3521));
}

/* The part of a process is as large as that of what is used */
TEST_F(test_room, left)
{
    size_t part;

    open();
    EXPECT_EQ(SIZE_MAX, nprdma_room_left(&m_room, 95, 1, &part));
    EXPECT_EQ(SIZE_MAX, part);
    make_v2();
    put_step("memory.max", "4000\n");
    open();
    EXPECT_EQ(2800u, nprdma_room_left(&m_room, 95, 500, &part));
    EXPECT_EQ(1400u, part);
    EXPECT_EQ(2800u, nprdma_room_left(&m_room, 95, 5000, &part));
    EXPECT_EQ(2800u, part);

    /* The cgroup above has less */
    put(m_cgroup + "/job/memory.max", "4000\n");
    put(m_cgroup + "/job/memory.current", "2000\n");
    open();
    EXPECT_EQ(1800u, nprdma_room_left(&m_room, 95, 500, &part));
    EXPECT_EQ(450u, part);
    put_step("memory.current", "4000\n");
    EXPECT_EQ(0u, nprdma_room_left(&m_room, 95, 500, &part));
    EXPECT_EQ(0u, part);
}

TEST_F(test_room, nonsense)
{
    make_v2();
    put_step("memory.max", "lots\n");
    open();
    EXPECT_TRUE(has(SIZE_MAX));
    put_step("memory.max", "99999999999999999999999999\n");
    open();
    EXPECT_TRUE(has(SIZE_MAX));
    put_step("memory.max", "4000\n");
    put_step("memory.current", "");
    open();
    EXPECT_TRUE(has(SIZE_MAX));
    put_step("memory.current", "1000\n");
    put_step("memory.stat", "inactive_files 5\ninactive_file x\n");
    open();
    errno = EDOM;
    EXPECT_FALSE(has(3001));
    EXPECT_EQ(EDOM, errno);
}

/* Processes that keep something are told by one that needs room */
TEST_F(test_room, call)
{
    static std::atomic<unsigned> told;
    nprdma_pressure_client_t client = {};
    make_v2();
    for (const char *name : { "/job", "/job/step" }) {
        put(m_cgroup + name + "/cgroup.max.depth", "max\n");
    }
    put_step("memory.pressure", "");
    put_step("memory.max", "4000\n");
    open();
    told             = 0;
    client.give_back = [](void *) { ++told; };
    ASSERT_EQ(UCS_OK, nprdma_pressure_add(&client));
    nprdma_pressure_arm(&client);
    wait_for([&]() { return thread_file("comm") == "nprdma-pressure\n"; });
    EXPECT_TRUE(nprdma_room_call(&m_room, 3000, 100));
    EXPECT_FALSE(nprdma_room_call(&m_room, 3001, 100)) << "too early";
    EXPECT_EQ(0u, told);
    /* The thread may not watch yet */
    wait_for([&]() {
        m_room.called_at = 0;
        EXPECT_TRUE(nprdma_room_call(&m_room, 3001, 100));
        return told > 0;
    });
    nprdma_pressure_remove(&client);
}

/* ---- a real cgroup ---- */

class test_room_group : public limited_test {
protected:
    static constexpr size_t limit = 100 * MiB;
    static constexpr size_t total = 80 * MiB;

    test_room_group() : limited_test(limit)
    {
    }

    /* `bytes` of blocks of one size at once, written and then unmapped */
    static void use(size_t size, size_t bytes)
    {
        std::vector<char*> blocks;
        for (size_t done = 0; done < bytes; done += size) {
            blocks.push_back(block(size));
            memset(blocks.back(), 1, size);
        }
        for (char *ptr : blocks) {
            munmap(ptr, size);
        }
    }

    static uint64_t kept(uint64_t nprdma_lazy_stats_t::*field)
    {
        nprdma_lazy_stats_t stats;
        nprdma_kept_query(&stats);
        return stats.*field;
    }
};

/* Blocks of other sizes, for which what is kept is of no use */
TEST_F(test_room_group, what_is_kept_makes_room)
{
    params.lazy_limit = 4 * limit;
    params.lazy_huge  = UCS_MEMUNITS_INF;
    params.lazy_age   = 3600;
    EXPECT_EQ(0, status_of(in_group([]() {
        use(4 * MiB, total);
        if (kept(&nprdma_lazy_stats_t::bytes) < 8 * MiB) {
            return 1;
        }
        use(16 * MiB, total);
        if (kept(&nprdma_lazy_stats_t::bytes) > 0) {
            return 2; /* Nothing is kept for some time */
        }
        use(1 * MiB, total);
        return 0;
    })));
}

/* A quarter is left to processes that cannot call */
TEST_F(test_room_group, a_quarter_is_left)
{
    params.lazy_limit = 4 * limit;
    params.lazy_huge  = UCS_MEMUNITS_INF;
    params.lazy_age   = 3600;
    EXPECT_EQ(0, status_of(in_group([]() {
        use(4 * MiB, total);
        use(4 * MiB, total);
        return (kept(&nprdma_lazy_stats_t::bytes) > limit / 4 * 3) ? 1 :
               (kept(&nprdma_lazy_stats_t::reused) == 0) ? 2 : 0;
    })));
}

/* Another process, which does nothing at that moment, keeps memory */
TEST_F(test_room_group, others_are_called)
{
    int ready[2], end[2];
    char byte = 0;
    params.lazy_limit = 4 * limit;
    params.lazy_huge  = UCS_MEMUNITS_INF;
    params.lazy_age   = 3600;
    ASSERT_EQ(0, pipe(ready));
    ASSERT_EQ(0, pipe(end));
    pid_t other = in_group([&]() {
        use(4 * MiB, 60 * MiB);
        if (kept(&nprdma_lazy_stats_t::bytes) < 40 * MiB) {
            return 1;
        }
        (void)!write(ready[1], &byte, 1);
        return (read(end[0], &byte, 1) != 1) ? 2 :
               (kept(&nprdma_lazy_stats_t::bytes) > 0) ? 3 : 0;
    });
    ASSERT_EQ(1, read(ready[0], &byte, 1));
    /* The hook waits for some milliseconds only: written when there is room */
    EXPECT_EQ(0, status_of(in_group([&]() {
        char *ptr = block(total);
        wait_for([]() {
            return nprdma_pressure_has_room(total, 95) != 0;
        });
        memset(ptr, 1, total);
        return 0;
    })));
    EXPECT_EQ(1, write(end[1], &byte, 1));
    EXPECT_EQ(0, status_of(other));
    for (int fd : { ready[0], ready[1], end[0], end[1] }) {
        close(fd);
    }
}
