/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "../refuse.h"
#include "test_child.h"
#include "test_monitor.h"

/* Pages whose exported registration has ended. There is no thread: the tests
 * call tick(). */
class test_monitor_revoke : public test_monitor {
protected:
    void SetUp() override
    {
        test_monitor::SetUp();
        params.revoke      = NPRDMA_REVOKE_LAZY;
        params.revoke_tick = 0;
    }

    int tick()
    {
        return nprdma_monitor_tick(monitor);
    }

    /* Ticks until nothing is pending */
    void settle()
    {
        while (tick()) {
        }
    }

    ucs_status_t reg_local(nprdma_range_t *range, const void *ptr,
                           size_t length)
    {
        return nprdma_monitor_register_local(monitor, (uintptr_t)ptr, length,
                                             range);
    }

    /* Registers, populates and deregisters a range; the region stays */
    const nprdma_range_t *use(nprdma_range_t *range, const void *ptr,
                              size_t length)
    {
        EXPECT_EQ(UCS_OK, reg(range, ptr, length));
        EXPECT_EQ(UCS_OK, populate(range, NPRDMA_POPULATE_WRITE));
        unreg(range);
        return range;
    }
};

TEST_F(test_monitor_revoke, lazy_takes_pages_in_the_second_tick)
{
    nprdma_range_t range;
    start();
    char *ptr = map();

    use(&range, ptr, 16 * page);
    EXPECT_NE(0, tick());
    EXPECT_EQ(3, all_bits(&range, ptr, 16 * page));
    EXPECT_EQ(0, drains);
    tick();
    EXPECT_EQ(0, all_bits(&range, ptr, 16 * page));
    /* Not before the NIC has drained */
    EXPECT_EQ(1, drains);
    EXPECT_EQ(16u, stats().revoked);
    EXPECT_EQ(0, tick());
    EXPECT_EQ(1, drains);
}

TEST_F(test_monitor_revoke, lazy_spares_what_is_used_in_every_tick)
{
    nprdma_range_t range;
    start();
    char *ptr = map();

    use(&range, ptr, 8 * page);
    for (int i = 0; i < 20; ++i) {
        tick();
        ASSERT_EQ(3, all_bits(&range, ptr, 8 * page));
        ASSERT_EQ(UCS_OK, reg(&range, ptr, 8 * page));
        unreg(&range);
    }
    EXPECT_EQ(0, drains);
    settle();
    EXPECT_EQ(0, all_bits(&range, ptr, 8 * page));
}

/* However busy the neighbours are: the time limit holds for each page */
TEST_F(test_monitor_revoke, lazy_takes_what_lies_between_busy_pages)
{
    nprdma_range_t range, busy;
    start();
    char *ptr = map();

    use(&range, ptr, 16 * page);
    for (int i = 0; i < 2; ++i) {
        tick();
        use(&busy, ptr + 3 * page, page);
        use(&busy, ptr + 5 * page + 1, page);
    }
    EXPECT_EQ(0, all_bits(&range, ptr, 3 * page));
    EXPECT_EQ(3u, bits(&range, ptr + 3 * page));
    EXPECT_EQ(0u, bits(&range, ptr + 4 * page));
    EXPECT_EQ(3, all_bits(&range, ptr + 5 * page, 2 * page));
    EXPECT_EQ(0, all_bits(&range, ptr + 7 * page, 9 * page));
    settle();
    EXPECT_EQ(0, all_bits(&range, ptr, 16 * page));
}

TEST_F(test_monitor_revoke, lazy_spares_live_registrations)
{
    nprdma_range_t range, live, edge;
    size_t length = 3 * chunk;
    start();
    char *ptr = map(length);

    /* Ranges across chunks, and a page of which one byte is registered */
    ASSERT_EQ(UCS_OK, reg(&live, ptr + chunk - 5 * page, 10 * page));
    ASSERT_EQ(UCS_OK, reg(&edge, ptr + 2 * chunk - 1, 1));
    use(&range, ptr, length);
    settle();
    for (size_t i = 0; i < length; i += page) {
        bool is_live = ((i >= chunk - 5 * page) && (i < chunk + 5 * page)) ||
                       (i == 2 * chunk - page);
        ASSERT_EQ(is_live ? 3u : 0u, bits(&range, ptr + i)) << i / page;
    }

    /* Later ticks do not take them either */
    settle();
    EXPECT_EQ(3, all_bits(&live, ptr + chunk - 5 * page, 10 * page));
    unreg(&live);
    unreg(&edge);
    settle();
    EXPECT_EQ(0, all_bits(&range, ptr, length));
}

/* Pending pages that are registered again before the tick that would take
 * them */
TEST_F(test_monitor_revoke, lazy_is_cancelled_by_a_registration)
{
    nprdma_range_t range, again;
    start();
    char *ptr = map();

    use(&range, ptr, 16 * page);
    tick();
    ASSERT_EQ(UCS_OK, reg(&again, ptr + 2 * page, 4 * page));
    settle();
    EXPECT_EQ(0, all_bits(&range, ptr, 2 * page));
    EXPECT_EQ(3, all_bits(&range, ptr + 2 * page, 4 * page));
    EXPECT_EQ(0, all_bits(&range, ptr + 6 * page, 10 * page));
    unreg(&again);
    settle();
    EXPECT_EQ(0, all_bits(&range, ptr, 16 * page));
}

/* Registrations begin and end while ticks run. Pages of a live registration are
 * never taken, whenever it began. */
TEST_F(test_monitor_revoke, lazy_never_takes_live_pages)
{
    ONLY_EMULATED("the kernel may take pages at any time");
    std::atomic<bool> done{false};
    start();
    char *ptr = map(2 * chunk);

    std::thread ticker([&]() {
        while (!done) {
            tick();
            sched_yield();
        }
    });
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < 2; ++t) {
        threads.emplace_back([&, t]() {
            unsigned seed = t + 1;
            for (int i = 0; (i < 300) || (stats().revoked == 0); ++i) {
                size_t first = rand_r(&seed) % 1000;
                size_t count = 1 + rand_r(&seed) % 20;
                nprdma_range_t range;
                ASSERT_EQ(UCS_OK, reg(&range, ptr + first * page,
                                      count * page));
                ASSERT_EQ(UCS_OK, populate(&range, NPRDMA_POPULATE_WRITE));
                for (int look = 0; look < 3; ++look) {
                    ASSERT_EQ(3, all_bits(&range, ptr + first * page,
                                          count * page));
                    sched_yield();
                }
                unreg(&range);
            }
        });
    }
    for (auto &thread : threads) {
        thread.join();
    }
    done = true;
    ticker.join();
    EXPECT_GT(stats().revoked, 0u);
    settle();

    nprdma_range_t all;
    ASSERT_EQ(UCS_OK, reg(&all, ptr, 2 * chunk));
    EXPECT_EQ(0, all_bits(&all, ptr, 2 * chunk));
    unreg(&all);
}

/* Memory that is used for operations of this process alone is out of reach of
 * peers */
TEST_F(test_monitor_revoke, local_regions_are_separate)
{
    nprdma_range_t peers, local, again;
    start();
    char *ptr = map();

    ASSERT_EQ(UCS_OK, reg_local(&local, ptr, 16 * page));
    EXPECT_NE(0, local.region->is_local);
    ASSERT_EQ(UCS_OK, populate(&local, NPRDMA_POPULATE_WRITE));
    ASSERT_EQ(UCS_OK, reg(&peers, ptr, 16 * page));
    EXPECT_EQ(0, peers.region->is_local);
    EXPECT_NE(local.region, peers.region);
    EXPECT_EQ(0, all_bits(&peers, ptr, 16 * page));
    EXPECT_EQ(3, all_bits(&local, ptr, 16 * page));

    /* The end of peers' keys does not affect the local region either */
    ASSERT_EQ(UCS_OK, populate(&peers));
    unreg(&peers, 1);
    EXPECT_EQ(0, all_bits(&peers, ptr, 16 * page));
    EXPECT_EQ(3, all_bits(&local, ptr, 16 * page));
    unreg(&local);
    settle();
    ASSERT_EQ(UCS_OK, reg_local(&again, ptr + page, page));
    EXPECT_EQ(local.region, again.region);
    EXPECT_EQ(3, all_bits(&again, ptr, 16 * page));
    unreg(&again, 1);
    EXPECT_EQ(3, all_bits(&again, ptr, 16 * page));
    munmap(ptr, 16 * page);
    EXPECT_EQ(0, all_bits(&again, ptr, 16 * page));
    maps.clear();
}

TEST_F(test_monitor_revoke, strict_takes_pages_at_once)
{
    nprdma_range_t range, other;
    params.revoke = NPRDMA_REVOKE_STRICT;
    start();
    char *ptr = map();

    ASSERT_EQ(UCS_OK, reg(&other, ptr + 4 * page, page));
    use(&range, ptr, 16 * page);
    EXPECT_EQ(1, drains);
    EXPECT_EQ(0, all_bits(&range, ptr, 4 * page));
    EXPECT_EQ(3u, bits(&range, ptr + 4 * page));
    EXPECT_EQ(0, all_bits(&range, ptr + 5 * page, 11 * page));
    unreg(&other);
    EXPECT_EQ(2, drains);
    EXPECT_EQ(0, all_bits(&range, ptr, 16 * page));
    EXPECT_EQ(16u, stats().revoked);
}

/* The thread starts with the first registration for peers. It sleeps while
 * nothing is to be revoked, so each registration has to wake it. */
TEST_F(test_monitor_revoke, lazy_by_its_thread)
{
    nprdma_range_t range;
    params.revoke_tick = 1e-3;
    start();
    char *ptr = map();

    for (int i = 0; i < 5; ++i) {
        use(&range, ptr, 16 * page);
        wait_until([&]() { return bits(&range, ptr) == 0; });
        wait_until([&]() { return drains > i; });
        EXPECT_EQ(0, all_bits(&range, ptr, 16 * page));
    }
}

/* If no thread can be started, pages are revoked at deregistration */
TEST_F(test_monitor_revoke, lazy_without_a_thread_is_strict)
{
    nprdma_range_t range;
    params.revoke_tick = 10;

    expect_child([&]() {
        if (!refuse({SYS_clone, SYS_clone3}, EAGAIN)) {
            return false;
        }
        start();
        char *ptr = map();
        use(&range, ptr, 16 * page);
        return (all_bits(&range, ptr, 16 * page) == 0) && (drains == 1) &&
               !HasFailure();
    });
}
