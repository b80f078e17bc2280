/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "test_monitor.h"

/*
 * Pages that other threads take away delay no other pages of a populate. The
 * test takes them at the critical moment: after a populate has remembered the
 * states and has found no blocked range, and before it calls the back end.
 */
class test_monitor_progress : public test_monitor {
protected:
    static constexpr size_t num_pages = 400;

    void SetUp() override
    {
        test_monitor::SetUp();
        self             = this;
        base             = params.backend;
        backend          = *base;
        backend.populate = populate_cb;
        params.backend   = &backend;
        start();
        ptr = map(num_pages * page);
        ASSERT_EQ(UCS_OK, reg(&range, ptr, num_pages * page));
    }

    void TearDown() override
    {
        meanwhile = nullptr;
        unreg(&range);
        test_monitor::TearDown();
    }

    /* As another thread would */
    void take(size_t first, size_t count)
    {
        ASSERT_EQ(0, madvise(ptr + first * page, count * page, MADV_DONTNEED));
    }

    nprdma_range_t        range;
    char                  *ptr  = nullptr;
    size_t                tries = 0;
    std::function<void()> meanwhile;

private:
    static ucs_status_t populate_cb(void *priv, nprdma_populate_t *populate)
    {
        ++self->tries;
        if (self->meanwhile) {
            self->meanwhile();
        }
        return self->base->populate(priv, populate);
    }

    static test_monitor_progress *self;
    const nprdma_backend_t       *base;
    nprdma_backend_t             backend;
};

test_monitor_progress *test_monitor_progress::self = nullptr;

/* Each try loses all pages but the first remaining one, old and new ones. The
 * kernel module distinguishes only groups of 64 pages. */
TEST_F(test_monitor_progress, first_page_is_populated_while_others_are_taken)
{
    size_t step = on_kernel() ? 64 : 1;

    for (unsigned flags : { 0u, (unsigned)NPRDMA_POPULATE_WRITE }) {
        tries     = 0;
        meanwhile = [&]() {
            size_t done = (tries - 1) * step;
            take(0, done);
            if (done + step < num_pages) {
                take(done + step, num_pages - done - step);
            }
        };
        EXPECT_EQ(UCS_OK, populate(&range, flags));
        EXPECT_EQ((num_pages + step - 1) / step, tries);
        take(0, num_pages);
    }
}

TEST_F(test_monitor_progress, gives_up_on_a_page_that_is_always_taken)
{
    meanwhile = [&]() { take(100, 1); };
    EXPECT_EQ(UCS_ERR_BUSY, populate(&range));
    EXPECT_EQ(0u, bits(&range, ptr + 100 * page));
    EXPECT_EQ(1, all_bits(&range, ptr, 64 * page));
    EXPECT_LT(tries, 1000u);
}

/* A call that never returns is reported soon, and pages before it are
 * populated */
TEST_F(test_monitor_progress, stops_at_a_page_that_stays_blocked)
{
    static std::atomic<int> hold;

    ASSERT_EQ(UCS_OK, populate(&range, ptr + 8 * page, page));
    hold     = 1;
    on_drain = [](test_monitor*) {
        int one = 1;
        hold.compare_exchange_strong(one, 2);
        while (hold == 2) {
            sched_yield();
        }
    };
    std::thread thread([&]() { take(8, 1); });
    wait_until([&]() { return hold == 2; });
    tries = 0;
    EXPECT_EQ(UCS_ERR_BUSY, populate(&range));
    EXPECT_EQ(1u, tries);
    EXPECT_EQ(UCS_ERR_BUSY, populate(&range, NPRDMA_POPULATE_WRITE));
    EXPECT_EQ(2u, tries);
    EXPECT_EQ(3, all_bits(&range, ptr, 8 * page));
    EXPECT_EQ(0, all_bits(&range, ptr + 8 * page, (num_pages - 8) * page));
    EXPECT_EQ(UCS_OK, populate(&range, ptr + 9 * page, 9 * page));
    hold = 3;
    thread.join();
    on_drain = nullptr;
    EXPECT_EQ(UCS_OK, populate(&range, NPRDMA_POPULATE_WRITE));
    EXPECT_EQ(3, all_bits(&range, ptr, num_pages * page));
}
