/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "ucm/access/nprdma_pagein.h"

extern "C" {
#include "uct/ib/nprdma/service/nprdma_pager.h"
}

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <vector>

#include <sys/resource.h>

/*
 * The pager on a disk that this file plays: a test decides when a page comes,
 * and each access to a page brings it in.
 */

namespace {

typedef std::chrono::steady_clock my_clock;

class disk {
public:
    void come(uint64_t page)
    {
        std::lock_guard<std::mutex> lock(m_mutex);
        m_present.insert(page);
    }

    bool look(uint64_t page)
    {
        std::lock_guard<std::mutex> lock(m_mutex);
        return m_present.count(page) > 0;
    }

private:
    std::mutex         m_mutex;
    std::set<uint64_t> m_present;
};

disk the_disk;

} // namespace

extern "C" {

ucs_status_t nprdma_pagein_init(void) { return UCS_OK; }

void nprdma_pagein_cleanup(void) {}

long nprdma_pagein_num_waits(void)
{
    rusage usage = {};

    getrusage(RUSAGE_THREAD, &usage);
    return usage.ru_nvcsw;
}

size_t nprdma_pagein_fault(uintptr_t start, size_t count, int, uint64_t *)
{
    the_disk.come(start / NPRDMA_PAGE_SIZE);
    return count;
}

size_t nprdma_pagein_in_memory(uintptr_t start, size_t count)
{
    return the_disk.look(start / NPRDMA_PAGE_SIZE) ? count : 0;
}

void nprdma_pagein_read_ahead(uintptr_t, size_t) {}

int nprdma_pagein_is_watched(uintptr_t, size_t, int) { return 0; }
}

class test_pager : public ::testing::Test {
protected:
    void SetUp() override
    {
        ASSERT_EQ(UCS_OK,
                  uct_nprdma_pager_create(4, "test", &m_ops, this, &m_pager));
    }

    void TearDown() override
    {
        if (m_pager != nullptr) {
            uct_nprdma_pager_destroy(m_pager);
            m_pager = nullptr;
        }
    }

    static void notify(void *arg)
    {
        ++static_cast<test_pager*>(arg)->m_notices;
    }

    static ucs_status_t step(void *arg, const uct_nprdma_populate_t *, uint64_t)
    {
        test_pager *self = static_cast<test_pager*>(arg);

        EXPECT_EQ(1, ++self->m_in_step);
        ++self->m_steps;
        sched_yield();
        --self->m_in_step;
        return UCS_OK;
    }

    /* Ranges do not include each other. */
    void populate(unsigned num_steps)
    {
        uct_nprdma_populate_t range = {};

        range.key    = ++m_num_ranges;
        range.length = num_steps * UCT_NPRDMA_PAGER_STEP;
        uct_nprdma_pager_populate(m_pager, &range);
    }

    /* Submits jobs of one page each, which are numbered from 1 on */
    void submit(unsigned count)
    {
        while (count-- > 0) {
            std::unique_ptr<uct_nprdma_pager_job_t>
                    job(new uct_nprdma_pager_job_t());
            m_jobs.push_back(std::move(job));
            m_jobs.back()->address    = m_jobs.size() * NPRDMA_PAGE_SIZE;
            m_jobs.back()->count      = 1;
            ASSERT_TRUE(uct_nprdma_pager_submit(m_pager, m_jobs.back().get()));
        }
        uct_nprdma_pager_kick(m_pager);
    }

    /* Returns how many were done. Each is so once, with its page. */
    unsigned take()
    {
        unsigned count = 0;
        uct_nprdma_pager_job_t *job;

        while ((job = uct_nprdma_pager_take_done(m_pager)) != nullptr) {
            ++count;
            EXPECT_EQ(1u, job->done);
            EXPECT_TRUE(m_done.insert(job->address / NPRDMA_PAGE_SIZE).second);
        }
        return count;
    }

    const uct_nprdma_pager_ops_t m_ops = {notify, step};
    uct_nprdma_pager_t           *m_pager = nullptr;
    unsigned                     m_num_ranges = 0;
    std::atomic<unsigned>        m_steps{0};
    std::atomic<int>             m_in_step{0};
    std::atomic<unsigned>                                m_notices{0};
    std::vector<std::unique_ptr<uct_nprdma_pager_job_t>> m_jobs;
    std::set<uint64_t>                                   m_done;
};

/* Each job ends once, whatever comes when and what brings it in. Those that are
 * cancelled do not end. */
TEST_F(test_pager, each_job_ends_once)
{
    std::mt19937 random(1);
    std::set<uint64_t> cancelled;
    uct_nprdma_pager_stats_t stats;

    for (unsigned round = 0; round < 300; ++round) {
        unsigned first = m_jobs.size();
        auto end       = my_clock::now() + std::chrono::seconds(20);

        submit(1 + random() % 40);
        while (m_done.size() + cancelled.size() < m_jobs.size()) {
            ASSERT_LT(my_clock::now(), end);
            uint64_t page = first + 1 + random() % (m_jobs.size() - first);
            switch (random() % 8) {
            case 0:
                the_disk.come(page);
                break;
            case 1:
                if ((random() % 16 == 0) && (m_done.count(page) == 0) &&
                    (cancelled.count(page) == 0) &&
                    uct_nprdma_pager_cancel(m_pager, m_jobs[page - 1].get())) {
                    cancelled.insert(page);
                }
                break;
            case 2:
                uct_nprdma_pager_kick(m_pager);
                break;
            }
            take();
        }
    }

    for (uint64_t page : cancelled) {
        EXPECT_EQ(0u, m_done.count(page));
    }
    uct_nprdma_pager_query(m_pager, &stats);
    EXPECT_EQ(m_jobs.size(), stats.jobs);
    EXPECT_LT(0u, m_notices);
    EXPECT_LT(0u, cancelled.size());
}

/* Ranges are populated step by step, by one thread at a time, also while jobs
 * come and end, and all of them are */
TEST_F(test_pager, ranges)
{
    std::mt19937 random(2);
    unsigned steps = 0;
    auto end       = my_clock::now() + std::chrono::seconds(60);

    for (unsigned round = 0; round < 300; ++round) {
        unsigned num = 1 + random() % 40;

        steps += num;
        populate(num);
        submit(random() % 4);
        while ((m_steps < steps) || (m_done.size() < m_jobs.size())) {
            ASSERT_LT(my_clock::now(), end);
            take();
            sched_yield();
        }
    }
    EXPECT_EQ(steps, m_steps);
}

/* A pager that is destroyed populates no more */
TEST_F(test_pager, range_ends_before_destroy)
{
    for (unsigned round = 0; round < 100; ++round) {
        m_steps = 0;
        populate(1000000);
        while (m_steps == 0) {
            sched_yield();
        }
        uct_nprdma_pager_destroy(m_pager);
        EXPECT_EQ(0, m_in_step);
        m_steps = 0;
        sched_yield();
        EXPECT_EQ(0u, m_steps);
        SetUp();
    }
}
