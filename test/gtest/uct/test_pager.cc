/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "ucm/access/nprdma_pagein.h"

extern "C" {
#include "uct/ib/nprdma/service/nprdma_pager.h"
}

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <fstream>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <dirent.h>
#include <sys/resource.h>

/*
 * The pager on a disk that this file plays: it remembers what is asked of it,
 * and a test decides when a page comes. A thread may take over at any time, if
 * this process has no CPU for a while. Where a test is about the caller alone,
 * it is repeated until no thread did.
 */

namespace {

typedef std::chrono::steady_clock my_clock;

/* Longer than what the pager takes for a page that was in memory */
constexpr std::chrono::microseconds start_time(3);

class disk {
public:
    /* Reads and looks of the caller, in order */
    struct event {
        char     kind; /* 'r', 'l': the page has not come, 'c': it has */
        uint64_t page;
    };

    void reset(bool has_all)
    {
        std::lock_guard<std::mutex> lock(m_mutex);
        m_has_all = has_all;
        m_by_thread = 0;
        m_present.clear();
        m_events.clear();
        m_caller = std::this_thread::get_id();
    }

    void come(uint64_t page)
    {
        std::lock_guard<std::mutex> lock(m_mutex);
        m_present.insert(page);
    }

    void read_ahead(uint64_t page)
    {
        auto end = my_clock::now() + start_time;
        while (my_clock::now() < end) {
        }
        add('r', page);
    }

    bool look(uint64_t page)
    {
        std::unique_lock<std::mutex> lock(m_mutex);
        bool has_come = m_has_all || (m_present.count(page) > 0);
        lock.unlock();
        add(has_come ? 'c' : 'l', page);
        return has_come;
    }

    void fault(uint64_t page)
    {
        add('f', page);
        come(page);
    }

    std::vector<event> events() const
    {
        std::lock_guard<std::mutex> lock(m_mutex);
        return m_events;
    }

    unsigned by_thread() const
    {
        std::lock_guard<std::mutex> lock(m_mutex);
        return m_by_thread;
    }

private:
    void add(char kind, uint64_t page)
    {
        std::lock_guard<std::mutex> lock(m_mutex);
        if (std::this_thread::get_id() == m_caller) {
            m_events.push_back({kind, page});
        } else {
            ++m_by_thread;
        }
    }

    mutable std::mutex m_mutex;
    bool               m_has_all   = false;
    unsigned           m_by_thread = 0;
    std::set<uint64_t> m_present;
    std::vector<event> m_events;
    std::thread::id    m_caller;
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
    the_disk.fault(start / NPRDMA_PAGE_SIZE);
    return count;
}

size_t nprdma_pagein_in_memory(uintptr_t start, size_t count)
{
    return the_disk.look(start / NPRDMA_PAGE_SIZE) ? count : 0;
}

void nprdma_pagein_read_ahead(uintptr_t start, size_t)
{
    the_disk.read_ahead(start / NPRDMA_PAGE_SIZE);
}
}

class test_pager : public ::testing::Test {
protected:
    /* Reads that the caller starts before it looks for the first page, and
     * before the first one has come */
    static constexpr unsigned first_reads = 16;
    static constexpr unsigned most_reads  = 32;

    void SetUp() override
    {
        ASSERT_EQ(UCS_OK,
                  uct_nprdma_pager_create(4, "test", notify, this, &m_pager));
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

    /* Submits jobs of one page each, which are numbered from 1 on */
    void submit(unsigned count)
    {
        while (count-- > 0) {
            std::unique_ptr<uct_nprdma_pager_job_t>
                    job(new uct_nprdma_pager_job_t());
            m_jobs.push_back(std::move(job));
            m_jobs.back()->address    = m_jobs.size() * NPRDMA_PAGE_SIZE;
            m_jobs.back()->count      = 1;
            m_jobs.back()->is_on_disk = 1;
            m_jobs.back()->is_absent  = 1;
            ASSERT_TRUE(uct_nprdma_pager_submit(m_pager, m_jobs.back().get()));
        }
        uct_nprdma_pager_kick(m_pager, 1);
    }

    /* Returns how many were done. Each is so once, with its page. */
    unsigned take()
    {
        unsigned count = 0;

        for (auto job = uct_nprdma_pager_take_done(m_pager); job != nullptr;
             job = job->next, ++count) {
            EXPECT_EQ(1u, job->done);
            EXPECT_TRUE(m_done.insert(job->address / NPRDMA_PAGE_SIZE).second);
        }
        return count;
    }

    /* Tries until an attempt is one, and the caller did it all, without a
     * thread */
    template <typename F> void until_alone(bool has_all, F attempt)
    {
        auto end   = my_clock::now() + std::chrono::seconds(60);
        bool is_ok = false;

        do {
            if (my_clock::now() > end) {
                GTEST_SKIP() << "SKIPPED: other processes interrupt this one";
            }
            TearDown();
            m_jobs.clear();
            m_done.clear();
            the_disk.reset(has_all);
            SetUp();
            is_ok = attempt();
            TearDown(); /* What threads have begun is counted then */
        } while (!HasFatalFailure() && (!is_ok || (the_disk.by_thread() > 0)));
    }

    /* Times that threads of the pager have slept */
    static unsigned long count_sleeps()
    {
        DIR *dir          = opendir("/proc/self/task");
        unsigned long sum = 0;
        struct dirent *entry;

        while ((entry = readdir(dir)) != nullptr) {
            std::string path = std::string("/proc/self/task/") + entry->d_name;
            std::ifstream comm(path + "/comm"), status(path + "/status");
            std::string name, word;

            if (std::getline(comm, name) && (name == "nprdma-pager")) {
                while ((status >> word) && (word != "voluntary_ctxt_switches:"))
                    ;
                unsigned long count = 0;
                status >> count;
                sum += count;
            }
        }
        closedir(dir);
        return sum;
    }

    uct_nprdma_pager_t                                   *m_pager = nullptr;
    std::atomic<unsigned>                                m_notices{0};
    std::vector<std::unique_ptr<uct_nprdma_pager_job_t>> m_jobs;
    std::set<uint64_t>                                   m_done;
};

/* All pages come at once, as from a disk of a virtual machine. Their requests
 * are executed between reads, not before the others, so that the disk always
 * has some. */
TEST_F(test_pager, one_page_at_a_time)
{
    constexpr unsigned count = most_reads + 8;
    unsigned most            = 0; /* That are taken at once */

    until_alone(true, [&]() {
        most = 0;
        submit(count);
        while (m_done.size() < count) {
            uct_nprdma_pager_poll(m_pager);
            most = std::max(most, take());
        }
        return true;
    });
    if (IsSkipped()) {
        return;
    }
    EXPECT_EQ(1u, most);

    unsigned num_reads = 0, num_done = 0, in_a_row = 0;
    for (auto &event : the_disk.events()) {
        if (event.kind == 'r') {
            EXPECT_EQ(++num_reads, event.page);
            in_a_row = 0;
        } else {
            EXPECT_EQ('c', event.kind);
            EXPECT_EQ(++num_done, event.page);
            EXPECT_LE(first_reads, num_reads);
            EXPECT_GE(((num_reads < count) ? 1u : count), ++in_a_row);
        }
    }
    EXPECT_EQ(count, num_reads);
    EXPECT_EQ(count, num_done);
}

/* The caller looks now and then, and leaves jobs beyond a number to later */
TEST_F(test_pager, reads_are_bounded)
{
    constexpr unsigned count = most_reads + 8;
    constexpr unsigned looks = 40;
    unsigned num_reads       = 0, num_looks = 0;

    until_alone(false, [&]() {
        submit(count);
        for (num_looks = 0; num_looks < looks;) {
            uct_nprdma_pager_poll(m_pager);
            take();
            num_reads = num_looks = 0;
            for (auto &event : the_disk.events()) {
                num_reads += (event.kind == 'r');
                num_looks += (event.kind == 'l');
            }
            if (the_disk.by_thread() > 0) {
                break;
            }
        }
        return true;
    });
    if (IsSkipped()) {
        return;
    }
    EXPECT_EQ(most_reads, num_reads);
    EXPECT_TRUE(m_done.empty());

    unsigned in_a_row = 0, is_first = 1;
    for (auto &event : the_disk.events()) {
        if (event.kind == 'r') {
            EXPECT_GE((is_first ? first_reads : 4u), ++in_a_row);
        } else {
            in_a_row = is_first = 0;
        }
    }
}

/* A thread that watches takes the CPU from a caller that needs no help. One of
 * several is enough. The lock makes it sleep as well, so a few tries count. */
TEST_F(test_pager, watch_is_rare)
{
    constexpr unsigned rounds = 40;
    constexpr unsigned tries  = 3;
    std::chrono::microseconds round(250), elapsed(0);
    unsigned long sleeps = 1;

    for (unsigned i = 0; (i < tries) && (elapsed / round < (long)sleeps); ++i) {
        until_alone(false, [&]() {
            uct_nprdma_pager_stats_t stats;

            for (unsigned j = 0; j < 3; ++j) {
                submit(1); /* Starts another thread if none watches yet */
            }
            uct_nprdma_pager_query(m_pager, &stats);
            if (stats.threads < 3) {
                return false;
            }

            do {
                uct_nprdma_pager_poll(m_pager);
                sleeps = count_sleeps();
            } while ((sleeps < 3) && (the_disk.by_thread() == 0));
            auto start = my_clock::now();
            for (unsigned page = 1; page <= rounds; ++page) {
                auto end = my_clock::now() + round;
                while (my_clock::now() < end) {
                    uct_nprdma_pager_poll(m_pager);
                }
                if (page < rounds) {
                    submit(1); /* The pager always has one */
                }
                the_disk.come(page);
                while ((m_done.size() < page) && (the_disk.by_thread() == 0)) {
                    uct_nprdma_pager_poll(m_pager);
                    take();
                }
            }
            sleeps  = count_sleeps() - sleeps;
            elapsed = std::chrono::duration_cast<std::chrono::microseconds>(
                    my_clock::now() - start);
            return true;
        });
        if (IsSkipped()) {
            return;
        }
    }
    EXPECT_GE(elapsed / round, (long)sleeps);
}

/* Each job ends once, whatever comes when and what brings it in. Those that are
 * cancelled do not end. */
TEST_F(test_pager, each_job_ends_once)
{
    std::mt19937 random(1);
    std::set<uint64_t> cancelled;
    uct_nprdma_pager_stats_t stats;

    the_disk.reset(false);
    for (unsigned round = 0; round < 300; ++round) {
        int is_poll    = round % 3 > 0; /* Else threads do it */
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
                uct_nprdma_pager_kick(m_pager, is_poll && (random() % 2));
                break;
            default:
                if (is_poll) {
                    uct_nprdma_pager_poll(m_pager);
                }
            }
            take();
        }
    }

    for (uint64_t page : cancelled) {
        EXPECT_EQ(0u, m_done.count(page));
    }
    uct_nprdma_pager_query(m_pager, &stats);
    EXPECT_EQ(m_jobs.size(), stats.jobs);
    EXPECT_LT(0u, stats.polled);
    EXPECT_LT(0u, m_notices);
    EXPECT_LT(0u, cancelled.size());
}

/* The caller polls no more, or never did */
TEST_F(test_pager, a_thread_takes_over)
{
    the_disk.reset(false);
    for (unsigned i = 1; i <= 10; ++i) {
        auto end = my_clock::now() + std::chrono::seconds(20);

        submit(1);
        for (unsigned j = 0; j < i % 3; ++j) {
            uct_nprdma_pager_poll(m_pager);
        }
        while (m_done.size() < i) {
            ASSERT_LT(my_clock::now(), end);
            std::this_thread::yield();
            take();
        }

        /* No thread watches any more: the next job wakes one */
        unsigned long sleeps = 0;
        auto quiet           = my_clock::now();
        while (my_clock::now() - quiet < std::chrono::milliseconds(2)) {
            if (count_sleeps() != sleeps) {
                sleeps = count_sleeps();
                quiet  = my_clock::now();
            }
        }
    }

    /* A job can be taken before its notice */
    auto end = my_clock::now() + std::chrono::seconds(20);
    while (m_notices < 10) {
        ASSERT_LT(my_clock::now(), end);
        std::this_thread::yield();
    }
}
