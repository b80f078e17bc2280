/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* The rules of a window (rmem_window.h), with a server of its own each */

#include "memd.h"
#include "rmem.h"

#include <gtest/gtest.h>

#include <atomic>
#include <csetjmp>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include <sys/mman.h>
#include <sys/time.h>


class test_rmem_window : public ::testing::Test {
protected:
    static constexpr size_t page  = 4096;
    static constexpr size_t cache = 8 << 20;
    static constexpr size_t bytes = 8 * cache;

    void TearDown() override
    {
        if (m_rmem != nullptr) {
            /* The emulated NIC waits for processes that are stopped */
            m_memd.kill(SIGCONT);
            rmem_close(m_rmem);
        }
    }

    void open(unsigned flags = 0, size_t cache_bytes = cache)
    {
        rmem_params_t params = {};

        params.size        = sizeof(params);
        params.bytes       = bytes;
        params.cache_bytes = cache_bytes;
        params.token_file  = m_memd.token();
        params.timeout_ms  = 2000;
        params.flags       = flags;
        params.on_error    = on_error;
        params.arg         = this;
        ASSERT_EQ(RMEM_OK, rmem_open(m_memd.where(), &params, &m_rmem));
    }

    void map(unsigned flags = 0)
    {
        open(flags);
        ASSERT_EQ(RMEM_OK, rmem_map(m_rmem, (void**)&m_base));
    }

    static void on_error(int status, void *arg)
    {
        auto self = static_cast<test_rmem_window*>(arg);

        self->m_status = status;
        ++self->m_errors;
    }

    rmem_stats_t stats() const
    {
        rmem_stats_t stats;

        rmem_stats(m_rmem, &stats);
        return stats;
    }

    volatile uint64_t &word(size_t offset) const
    {
        return *(volatile uint64_t*)(m_base + offset);
    }

    void touch(size_t offset) const
    {
        uint64_t value = word(offset);

        (void)value;
    }

    /* Reads so much of the rest that all older pages leave. What was never
     * written needs no server. */
    void evict() const
    {
        for (size_t at = bytes - 2 * cache; at < bytes; at += page) {
            touch(at);
        }
        for (size_t at = bytes - 4 * cache; at < bytes - 2 * cache;
             at += page) {
            touch(at);
        }
    }

    uint64_t at_server(size_t offset) const
    {
        uint64_t value = 0;

        EXPECT_EQ(RMEM_OK, rmem_read(m_rmem, offset, &value, sizeof(value)));
        return value;
    }

    bool is_here(size_t offset) const
    {
        unsigned char vec;

        EXPECT_EQ(0, mincore(m_base + offset, page, &vec));
        return vec & 1;
    }

    /* The server goes on in a while; the flag is set before */
    std::thread resume_later()
    {
        return std::thread([this] {
            usleep(300000);
            m_is_resumed = true;
            m_memd.kill(SIGCONT);
        });
    }

    /* Threads add one to random words, each its own of a line, and so often
     * that lines leave while others of the page are written */
    void increments(unsigned flags)
    {
        const unsigned           threads = 4, count = 30000;
        std::vector<std::thread> runs;
        uint64_t                 sum = 0;

        map(flags);
        for (unsigned t = 0; t < threads; ++t) {
            runs.emplace_back([this, t] {
                std::mt19937 random(t);

                for (unsigned i = 0; i < count; ++i) {
                    /* Pages near each other leave at a time */
                    size_t at = (i / 64 * 61 + random() % 64) * page % bytes;

                    ++word(at + random() % 64 * 64 + t * 8);
                }
            });
        }
        for (auto &run : runs) {
            run.join();
        }
        EXPECT_GT(stats().evicted_pages, 1000u);
        EXPECT_GT(stats().fetched_pages, 1000u);
        EXPECT_GT(stats().faults, stats().hits);

        ASSERT_EQ(RMEM_OK, rmem_flush(m_rmem));
        std::vector<uint64_t> all(bytes / sizeof(uint64_t));
        ASSERT_EQ(RMEM_OK, rmem_read(m_rmem, 0, all.data(), bytes));
        for (uint64_t value : all) {
            sum += value;
        }
        EXPECT_EQ(threads * count, sum);
    }

    /* Whether an access raises SIGBUS */
    bool is_gone(size_t offset)
    {
        if (sigsetjmp(jump, 1) == 0) {
            touch(offset);
            return false;
        }
        return true;
    }

    void server_is_killed(unsigned flags)
    {
        signal(SIGBUS, [](int) { siglongjmp(jump, 1); });
        map(flags);
        word(0) = 1;
        ASSERT_EQ(RMEM_OK, rmem_flush(m_rmem));
        evict();
        word(bytes - page) = 2;
        ASSERT_FALSE(is_here(0));
        m_memd.kill(SIGKILL);

        EXPECT_TRUE(is_gone(0));
        EXPECT_TRUE(is_gone(0));
        EXPECT_TRUE(is_gone(3 * page)); /* It would have been zeros */
        EXPECT_EQ(2u, word(bytes - page));
        word(bytes - page) = 3;
        EXPECT_EQ(3u, word(bytes - page));
        EXPECT_EQ(RMEM_ERR_SERVER, rmem_flush(m_rmem));
        EXPECT_EQ(RMEM_ERR_SERVER, m_status);
        EXPECT_EQ(1u, m_errors.load());
        signal(SIGBUS, SIG_DFL);
    }

    static thread_local sigjmp_buf jump;
    memd                           m_memd;
    rmem_t                         *m_rmem  = nullptr;
    char                           *m_base  = nullptr;
    int                            m_status = RMEM_OK;
    std::atomic<unsigned>          m_errors{0};
    std::atomic<bool>              m_is_resumed{false};
};

thread_local sigjmp_buf test_rmem_window::jump;

/* Rules 1 to 5, by whatever is lost */
TEST_F(test_rmem_window, increments_are_not_lost)
{
    increments(0);
}

TEST_F(test_rmem_window, increments_of_pages_are_not_lost)
{
    increments(RMEM_PAGES);
}

TEST_F(test_rmem_window, increments_with_kernel_faults_are_not_lost)
{
    increments(RMEM_KERNEL_FAULTS);
}

/* Rule 1: pages that are sent while the server is stopped wait for ACKs of
 * earlier messages, and are there meanwhile */
TEST_F(test_rmem_window, writes_while_pages_leave_are_not_lost)
{
    std::atomic<size_t> end{0};
    size_t              before = 1;
    uint64_t            sum = 0, writes = 0;

    map();
    m_memd.kill(SIGSTOP);
    std::thread writer([&] {
        for (size_t at = 0; at < bytes; at += page) {
            ++word(at);
            end = at;
        }
    });
    while (before != end) {
        before = end;
        usleep(100000);
    }
    ASSERT_LT(end, bytes - page);
    std::thread later = resume_later();
    for (size_t at = 0; (at < before) && (writes < 64); at += page) {
        if (is_here(at)) {
            ++word(at + 8);
            ++writes;
        }
    }
    EXPECT_TRUE(m_is_resumed);
    later.join();
    writer.join();
    ASSERT_EQ(RMEM_OK, rmem_flush(m_rmem));
    for (size_t at = 0; at < bytes; at += page) {
        sum += at_server(at + 8);
    }
    EXPECT_EQ(writes, sum);
}

/* Rule 2: another thread writes to the last line, which is copied last, as soon
 * as it may */
TEST_F(test_rmem_window, twin_is_older_than_writes)
{
    const unsigned        rounds = 1000;
    const time_t          end    = time(nullptr) + 15;
    std::atomic<unsigned> begun{0}, ended{0}, beats{0};
    std::atomic<bool>     is_over{false};

    map();
    word(0) = 0;
    std::thread other([&] {
        for (unsigned i = 1; (i <= rounds) && !is_over; ++i) {
            while ((begun < i) && !is_over) {
                ++beats;
            }
            for (volatile unsigned delay = i % 1000 * 4; delay > 0; --delay) {}
            ++word(page - 8);
            ended = i;
        }
    });
    for (unsigned i = 1; (i <= rounds) && !HasFailure(); ++i) {
        if (time(nullptr) > end) {
            break; /* A busy machine has time for fewer */
        }
        EXPECT_EQ(RMEM_OK, rmem_flush(m_rmem));
        /* Both threads have a CPU */
        for (unsigned seen = beats; beats - seen < 10;) {}
        begun = i;
        ++word(0);
        while (ended < i) {}
        EXPECT_EQ(RMEM_OK, rmem_flush(m_rmem));
        EXPECT_EQ(i, at_server(page - 8));
    }
    is_over = true;
    other.join();
}

/* Rule 3 */
TEST_F(test_rmem_window, page_comes_after_its_last_write)
{
    map();
    for (unsigned i = 0; i < 10; ++i) {
        word(i * page) = 1;
    }
    evict();
    for (unsigned i = 0; i < 10; ++i) {
        touch(i * page); /* From now on gets need no more of the server */
        word(i * page) = 2;
    }
    m_memd.kill(SIGSTOP);
    evict();
    ASSERT_FALSE(is_here(0));
    std::thread later = resume_later();
    EXPECT_EQ(2u, word(0));
    EXPECT_TRUE(m_is_resumed);
    later.join();
}

/* Rule 4 */
TEST_F(test_rmem_window, flush_waits_for_the_server)
{
    map();
    word(5 * page) = 7;
    m_memd.kill(SIGSTOP);
    std::thread later = resume_later();
    EXPECT_EQ(RMEM_OK, rmem_flush(m_rmem));
    EXPECT_TRUE(m_is_resumed);
    later.join();
    EXPECT_EQ(7u, at_server(5 * page));
}

/* Rule 6 */
TEST_F(test_rmem_window, server_is_killed)
{
    server_is_killed(0);
}

TEST_F(test_rmem_window, server_is_killed_with_kernel_faults)
{
    server_is_killed(RMEM_KERNEL_FAULTS);
}

TEST_F(test_rmem_window, server_is_stopped)
{
    time_t begun = time(nullptr);

    signal(SIGBUS, [](int) { siglongjmp(jump, 1); });
    map();
    word(0) = 1;
    m_memd.kill(SIGSTOP);
    std::thread later([this] {
        while (m_errors == 0) {
            usleep(1000);
        }
        m_memd.kill(SIGCONT); /* As above */
    });
    evict();
    EXPECT_TRUE(is_gone(0));
    later.join();
    EXPECT_EQ(RMEM_ERR_TIMEOUT, m_status);
    EXPECT_LE(time(nullptr) - begun, 4);
    signal(SIGBUS, SIG_DFL);
}

/* Rule 7 */
TEST_F(test_rmem_window, child_has_no_window)
{
    pid_t pid;
    int   status;

    map();
    word(0) = 1;
    testing::internal::CaptureStderr();
    pid = fork();
    if (pid == 0) {
        pid = fork(); /* Neither has its child */
        if (pid != 0) {
            waitpid(pid, &status, 0);
            kill(getpid(), WIFSIGNALED(status) ? WTERMSIG(status) : SIGKILL);
        }
        _exit(word(page) != 0); /* Would be zeros without userfaultfd */
    }
    waitpid(pid, &status, 0);
    EXPECT_NE(testing::internal::GetCapturedStderr().find(
                  "a child of fork() used memory"), std::string::npos);
    EXPECT_TRUE(WIFSIGNALED(status) && (WTERMSIG(status) == SIGBUS));
}

/* Rule 8 */
TEST_F(test_rmem_window, cache_is_not_exceeded)
{
    /* Without what UCX shares with the server */
    auto resident = [] {
        std::ifstream file("/proc/self/status");
        std::string   word;

        while (file >> word && (word != "RssAnon:")) {}
        file >> word;
        return std::stoul(word) * 1024;
    };
    size_t       most = 0;
    std::mt19937 random(1);

    map();
    size_t before = resident();
    for (unsigned i = 0; i < 60000; ++i) {
        ++word(random() % (bytes / 64) * 64);
        if (i % 1000 == 0) {
            most = std::max(most, resident() - before);
        }
    }
    for (size_t at = 0; at < bytes; at += page) {
        word(at) = at;
    }
    most = std::max(most, resident() - before);
    /* Beside it six bytes for each page of the window, frames, requests of
     * UCX, and what AddressSanitizer knows of all */
    EXPECT_LE(most, cache + bytes / page * 6 + cache / page * 24 + (2 << 20));
    EXPECT_GT(most, cache / 2);
    EXPECT_GT(stats().dirty_pages, stats().untwinned_pages);
}

/* Rule 9 */
TEST_F(test_rmem_window, discarded_page_is_zeros_at_the_server)
{
    map();
    for (size_t at = 0; at < 10 * page; at += 8) {
        word(at) = 1;
    }
    evict();
    for (size_t at = 3 * page; at < 5 * page; at += 8) {
        word(at) = 2; /* Here, and not at the server */
    }
    ASSERT_EQ(RMEM_OK, rmem_discard(m_rmem, m_base + 1, 9 * page));
    EXPECT_EQ(1u, word(0));
    EXPECT_EQ(1u, word(9 * page));
    EXPECT_EQ(0u, word(8 * page));
    EXPECT_EQ(0u, word(3 * page));
    word(4 * page + 640) = 3;
    evict();
    EXPECT_EQ(0u, word(4 * page));
    EXPECT_EQ(3u, word(4 * page + 640));
    ASSERT_EQ(RMEM_OK, rmem_flush(m_rmem));
    for (size_t at = page; at < 9 * page; at += 8) {
        ASSERT_EQ((at == 4 * page + 640) ? 3u : 0u, at_server(at)) << at;
    }
}

TEST_F(test_rmem_window, virgin_pages_need_no_server)
{
    map();
    m_memd.kill(SIGSTOP);
    evict();
    evict();
    EXPECT_EQ(0u, stats().messages + stats().fetched_pages);
    EXPECT_EQ(stats().faults, stats().hits);
    EXPECT_EQ(0u, stats().dirty_pages); /* They were only read */
    EXPECT_GT(stats().evicted_pages, cache / page);
}

TEST_F(test_rmem_window, only_changed_lines_are_sent)
{
    map();
    memset(m_base, 1, 100 * page);
    evict();
    uint64_t sent = stats().sent_bytes;
    EXPECT_GE(sent, 100 * page);
    for (unsigned i = 0; i < 100; i += 3) {
        word(i * page + i % 64 * 64) = 2; /* No stream */
    }
    evict();
    EXPECT_LE(stats().sent_bytes - sent, 34 * 100u);
}

TEST_F(test_rmem_window, a_scan_reads_ahead)
{
    map();
    memset(m_base, 1, 2000 * page);
    evict();
    uint64_t faults = stats().faults;
    for (size_t at = 0; at < 2000 * page; at += 8) {
        ASSERT_EQ(UINT64_C(0x0101010101010101), word(at));
    }
    EXPECT_LE(stats().faults - faults, 2000 / 16 + 10u);

    /* Each page is read first, and then written to */
    evict();
    faults = stats().faults;
    for (size_t at = 0; at < 2000 * page; at += 8) {
        word(at) = word(at) + 1;
    }
    EXPECT_LE(stats().faults - faults, 2 * (2000 / 16 + 10u));
}

TEST_F(test_rmem_window, signal_handlers_may_touch_it)
{
    static volatile uint64_t *words;
    static unsigned          calls;
    itimerval                timer = {{0, 200}, {0, 200}};

    map();
    words = &word(0);
    calls = 0;
    signal(SIGALRM, [](int) { ++words[calls++ * 997 % 10000 * 512]; });
    setitimer(ITIMER_REAL, &timer, nullptr);
    for (unsigned i = 0; i < 40000; ++i) {
        char *at = m_base + bytes - (i * 31 % 4000 + 1) * page;

        touch(at - m_base);
        ASSERT_EQ(RMEM_OK, rmem_discard(m_rmem, at, page));
    }
    timer = {};
    setitimer(ITIMER_REAL, &timer, nullptr);
    signal(SIGALRM, SIG_DFL);
    uint64_t sum = 0;
    for (unsigned i = 0; i < 10000; ++i) {
        sum += word(i * page);
    }
    EXPECT_GT(calls, 100u);
    EXPECT_EQ(calls, sum);
}

TEST_F(test_rmem_window, kernel_faults_of_system_calls)
{
    int fds[2];

    map(RMEM_KERNEL_FAULTS);
    memset(m_base, 1, 8 * page);
    memset(m_base + 8 * page, 2, 8 * page);
    evict();
    ASSERT_EQ(0, pipe(fds));
    EXPECT_EQ(8 * page, (size_t)write(fds[1], m_base, 8 * page));
    EXPECT_EQ(8 * page, (size_t)read(fds[0], m_base + 8 * page, 8 * page));
    EXPECT_EQ(std::string(16 * page, 1), std::string(m_base, 16 * page));
    close(fds[0]);
    close(fds[1]);
}

/* A handler would run there while locks of UCX are held, and wait for them */
TEST_F(test_rmem_window, other_threads_take_no_signals)
{
    std::string self = std::to_string(getpid());
    unsigned    others = 0;

    map(RMEM_KERNEL_FAULTS);
    for (auto &task : std::filesystem::directory_iterator("/proc/self/task")) {
        std::ifstream file(task.path() / "status");
        std::string   word;

        if (task.path().filename() != self) {
            while (file >> word && (word != "SigBlk:")) {}
            file >> word;
            EXPECT_TRUE(std::stoull(word, nullptr, 16) >> (SIGALRM - 1) & 1);
            ++others;
        }
    }
    EXPECT_GT(others, 1u);
}

TEST_F(test_rmem_window, explicit_calls_need_none)
{
    char text[] = "over there", copy[sizeof(text)];

    open();
    EXPECT_EQ(RMEM_OK, rmem_write(m_rmem, 60, text, sizeof(text)));
    EXPECT_EQ(RMEM_OK, rmem_flush(m_rmem));
    EXPECT_EQ(RMEM_OK, rmem_read(m_rmem, 60, copy, sizeof(copy)));
    EXPECT_STREQ(text, copy);
}

TEST_F(test_rmem_window, shows_what_was_written_before)
{
    uint64_t value = 0x1234;

    open();
    EXPECT_EQ(RMEM_OK, rmem_write(m_rmem, 0, &value, sizeof(value)));
    ASSERT_EQ(RMEM_OK, rmem_map(m_rmem, (void**)&m_base));
    EXPECT_EQ(value, word(0));
}

TEST_F(test_rmem_window, refuses_wrong_use)
{
    void *base;
    char byte;

    open(0, 1 << 20);
    EXPECT_EQ(RMEM_ERR_ARG, rmem_map(m_rmem, &base));
    EXPECT_EQ(RMEM_OK, rmem_read(m_rmem, 0, &byte, 1));
    rmem_close(m_rmem);

    map();
    EXPECT_EQ(RMEM_ERR_ARG, rmem_map(m_rmem, &base));
    EXPECT_EQ(RMEM_ERR_ARG, rmem_write(m_rmem, 0, "x", 1));
}
