/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* What malloc() keeps, measured in page faults and in the size of processes.
 * Each case is a process of its own, whose settings are those of glibc. */

#include "fake_cgroup.h"
#include "test_monitor.h"

#include <ucm/nprdma_malloc.h>

#include <ucs/config/global_opts.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <thread>
#include <vector>

#include <malloc.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
static const bool is_sanitized = true;
#else
static const bool is_sanitized = false;
#endif

static constexpr size_t mebi = 1u << 20;

/* The compiler must not leave out what is only written and freed */
static void *used(void *ptr)
{
    __asm__ volatile("" : "+r"(ptr) : : "memory");
    return ptr;
}

static void *written(size_t size)
{
    return used(memset(malloc(size), 1, size));
}

static size_t resident()
{
    size_t size, pages = 0;

    std::ifstream("/proc/self/statm") >> size >> pages;
    return pages * (size_t)sysconf(_SC_PAGESIZE);
}

/* Page faults of this thread while @a count buffers are allocated, written and
 * freed, as around a collective operation */
static long faults(size_t size, unsigned count = 2)
{
    struct rusage before, after;
    void *buffers[16];

    getrusage(RUSAGE_THREAD, &before);
    for (unsigned i = 0; i < count; ++i) {
        buffers[i] = written(size);
    }
    for (unsigned i = 0; i < count; ++i) {
        free(buffers[i]);
    }
    getrusage(RUSAGE_THREAD, &after);
    return after.ru_minflt - before.ru_minflt;
}

/* Whether a block has a mapping of its own: bit 1 of the word before it, as
 * malloc/malloc.c of glibc has it (IS_MMAPPED) */
static bool is_mapped(size_t size)
{
    size_t *block = (size_t*)used(malloc(size));
    bool result   = (block[-1] & 2) != 0;

    free(block);
    return result;
}

class test_malloc : public test_monitor, protected fake_cgroup {
protected:
    void SetUp() override
    {
        if (is_sanitized) {
            GTEST_SKIP() << "malloc() is the sanitizer's";
        }
        test_monitor::SetUp();
        make_v2();
        nprdma_malloc_set_pause(2);
    }

    void begin(size_t keep, int all = 0)
    {
        params.malloc_keep     = keep;
        params.malloc_keep_all = all;
        start();
    }

    /* The case is done in a child. Its log is in m_log. */
    void run(const std::function<void()> &func)
    {
        std::string path = m_root + "/log";
        int out          = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND,
                                0600);

        int result = in_child([&]() {
            dup2(out, 1);
            dup2(out, 2);
            /* Each fault is one page */
            prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
            func();
            fflush(nullptr);
            return HasFailure() ? 1 : 0;
        });
        EXPECT_EQ(0, result) << get(path);
        close(out);
        m_log = get(path);
    }

    unsigned count(const std::string &text) const
    {
        unsigned result = 0;

        for (size_t at = m_log.find(text); at != std::string::npos;
             at = m_log.find(text, at + 1)) {
            ++result;
        }
        return result;
    }

    void press()
    {
        put_step("memory.high", "999\n");
    }

    void relax()
    {
        put_step("memory.high", "max\n");
    }

    /* Memory is short, once or more often, and then it is not */
    void press_once()
    {
        uint64_t trims = stats().malloc.trims;

        press();
        wait_for([&]() { return stats().malloc.trims > trims; });
        relax();
    }

    /* glibc is as it was at its start: its threshold follows the blocks that
     * are freed. Any of the settings ends that. */
    static void expect_untouched()
    {
        EXPECT_TRUE(is_mapped(3 * mebi));
        EXPECT_FALSE(is_mapped(3 * mebi));
        faults(3 * mebi);
        faults(3 * mebi);
        EXPECT_GT(faults(3 * mebi), 700);
    }

    /* One line says that it is not set, whatever the reason is. Without a
     * monitor: tcmalloc has an mmap() of its own, which UCM cannot see. */
    void expect_hands_off(const std::string &reason)
    {
        run([&]() {
            nprdma_malloc_stats_t stats;

            nprdma_malloc_begin(64 * mebi, 0);
            nprdma_malloc_begin(64 * mebi, 1);
            nprdma_malloc_query(&stats);
            EXPECT_EQ(0u, stats.keep);
            EXPECT_EQ("", thread_file("comm"));
            nprdma_malloc_end();
            nprdma_malloc_end();
        });
        EXPECT_EQ(1u, count(reason)) << m_log;
        EXPECT_EQ(1u, count("WARN")) << m_log;
    }

    std::string m_log;
};

/* Also the control of all others: the faults are there without the settings */
TEST_F(test_malloc, off)
{
    run([&]() {
        begin(0);
        EXPECT_EQ(0u, stats().malloc.keep);
        EXPECT_EQ("", thread_file("comm"));
        expect_untouched();
    });
    EXPECT_EQ("", m_log);
}

TEST_F(test_malloc, no_fault_from_the_second_on)
{
    run([&]() {
        begin(128 * mebi);
        EXPECT_EQ(128 * mebi, stats().malloc.keep);
        for (size_t size : {mebi / 8, mebi, 4 * mebi, 16 * mebi,
                            32 * mebi - 4096}) {
            EXPECT_GT(faults(size) + faults(size), 0) << size;
            uint64_t events = stats().events;
            void *end       = sbrk(0);
            for (unsigned i = 0; i < 3; ++i) {
                EXPECT_EQ(0, faults(size)) << size;
            }
            /* Neither mappings nor the end of the heap have changed */
            EXPECT_EQ(events, stats().events) << size;
            EXPECT_EQ(end, sbrk(0)) << size;
        }
    });
    EXPECT_EQ("", m_log);
}

TEST_F(test_malloc, more_than_32_mib)
{
    run([&]() {
        begin(128 * mebi);
        faults(40 * mebi);
        EXPECT_GT(faults(40 * mebi), 10000);
    });
    run([&]() {
        begin(128 * mebi, 1);
        faults(40 * mebi);
        faults(40 * mebi);
        EXPECT_EQ(0, faults(40 * mebi));
    });
}

/* No more than it says is kept at the end of the heap */
TEST_F(test_malloc, bound)
{
    run([&]() {
        begin(8 * mebi);
        size_t before = resident();
        faults(3 * mebi);
        EXPECT_GT(resident(), before + 5 * mebi);
        faults(30 * mebi);
        EXPECT_LT(resident(), before + 8 * mebi + 512 * 1024);
    });
}

TEST_F(test_malloc, given_back_when_memory_is_short)
{
    run([&]() {
        begin(64 * mebi);
        faults(16 * mebi);
        faults(16 * mebi);
        EXPECT_EQ(0, faults(16 * mebi));
        size_t kept = resident();
        press_once();
        EXPECT_LT(resident(), kept - 31 * mebi);

        /* Nothing is kept for a while, and then again */
        EXPECT_GT(faults(16 * mebi), 8000);
        EXPECT_GT(faults(16 * mebi), 8000);
        wait_for([]() { return faults(16 * mebi) == 0; });
        EXPECT_GE(stats().malloc.trims, 1u);
        EXPECT_EQ(64 * mebi, stats().malloc.keep);
    });
}

/* Half of the part that the process has in what a cgroup has left */
TEST_F(test_malloc, less_where_less_is_left)
{
    auto put_number = [&](const char *name, size_t bytes) {
        std::string text = std::to_string(bytes);
        std::string path = m_cgroup + "/job/step/" + name;
        text.insert(0, 20 - text.size(), '0');
        int fd = open(path.c_str(), O_WRONLY); /* The file is never empty */
        EXPECT_EQ(20, write(fd, text.data(), text.size()));
        close(fd);
    };
    auto used = [&](size_t bytes) {
        put_number("memory.current", bytes);
    };

    nprdma_malloc_set_pause(0.02);
    put_number("memory.max", 400 * mebi);
    put(m_proc + "/self/status", "Name:\tx\nRssAnon:\t    5120 kB\n");
    used(20 * mebi);
    run([&]() {
        begin(64 * mebi);
        EXPECT_EQ(64 * mebi, stats().malloc.keep);
        EXPECT_EQ(45 * mebi, stats().malloc.bound);
        faults(20 * mebi);
        EXPECT_EQ(0, faults(20 * mebi));

        /* As a hook notices, when the heap grows */
        used(200 * mebi);
        wait_for([]() {
            faults(21 * mebi);
            return faults(21 * mebi) > 10000;
        });
        EXPECT_EQ(9 * mebi / 4, stats().malloc.bound);

        /* More again, after the pause */
        used(20 * mebi);
        wait_for([&]() { return stats().malloc.bound == 45 * mebi; });
        put_number("memory.max", 4000 * mebi);
        wait_for([&]() { return stats().malloc.bound == 64 * mebi; });
        EXPECT_EQ(0u, stats().malloc.trims);
        EXPECT_EQ(0u, stats().malloc.asked);
    });
}

/* As long as memory is short, nothing is kept */
TEST_F(test_malloc, not_kept_while_memory_is_short)
{
    nprdma_malloc_set_pause(0.02);
    run([&]() {
        begin(64 * mebi);
        press();
        for (uint64_t trims = 1; trims < 20; ++trims) {
            wait_for([&]() { return stats().malloc.trims >= trims; });
            EXPECT_GT(faults(4 * mebi), 2000);
        }
    });
}

/* A block that lives behind those that are free does not matter */
TEST_F(test_malloc, given_back_in_front_of_a_block)
{
    run([&]() {
        begin(128 * mebi, 1);
        void *front = written(50 * mebi);
        void *last  = written(2 * mebi);
        free(front);
        size_t kept = resident();
        press_once();
        EXPECT_LT(resident(), kept - 49 * mebi);
        EXPECT_EQ(1, ((char*)last)[2 * mebi - 1]);
        free(last);
    });
}

/* malloc_trim() leaves the end of the heap of another arena, which its next
 * free() gives back */
TEST_F(test_malloc, given_back_by_threads)
{
    run([&]() {
        begin(64 * mebi);
        std::thread([&]() {
            faults(8 * mebi);
            faults(8 * mebi);
            EXPECT_EQ(0, faults(8 * mebi));
            size_t kept = resident();
            press_once();
            free(written(mebi));
            EXPECT_LT(resident(), kept - 14 * mebi);
            wait_for([]() { return faults(8 * mebi) == 0; });
        }).join();
    });
}

TEST_F(test_malloc, ends_with_the_last_monitor)
{
    run([&]() {
        begin(64 * mebi, 1);
        nprdma_monitor_t *first = monitor;
        begin(32 * mebi); /* The first one has decided */
        EXPECT_EQ(64 * mebi, stats().malloc.keep);
        EXPECT_FALSE(is_mapped(40 * mebi));
        nprdma_monitor_destroy(first);
        EXPECT_EQ(64 * mebi, stats().malloc.keep);
        EXPECT_NE("", thread_file("comm"));
        faults(8 * mebi);
        EXPECT_EQ(0, faults(8 * mebi));
        size_t kept = resident();

        stop();
        EXPECT_EQ("", thread_file("comm"));
        EXPECT_LT(resident(), kept - 15 * mebi);
        EXPECT_TRUE(is_mapped(3 * mebi));
        EXPECT_TRUE(is_mapped(40 * mebi));

        begin(32 * mebi);
        EXPECT_EQ(32 * mebi, stats().malloc.keep);
        faults(8 * mebi);
        EXPECT_EQ(0, faults(8 * mebi));
        EXPECT_TRUE(is_mapped(40 * mebi));
    });
    EXPECT_EQ("", m_log);
}

TEST_F(test_malloc, one_line_of_level_info)
{
    auto &level = ucs_global_opts.log_component.log_level;
    auto before = level;

    level = UCS_LOG_LEVEL_INFO;
    run([&]() {
        begin(64 * mebi);
        nprdma_monitor_t *first = monitor;
        begin(64 * mebi);
        nprdma_monitor_destroy(first);
    });
    level = before;
    EXPECT_EQ(1u, count("malloc() keeps up to 67108864 bytes")) << m_log;
}

TEST_F(test_malloc, parameters)
{
    for (size_t keep : {(size_t)1, mebi - 1, 2047 * mebi + 1, SIZE_MAX}) {
        params.malloc_keep = keep;
        EXPECT_EQ(UCS_ERR_INVALID_PARAM,
                  nprdma_monitor_create(&params, &monitor));
    }
    monitor = nullptr;
}

/* The largest value is not a negative one */
TEST_F(test_malloc, largest)
{
    run([&]() {
        begin(2047 * mebi);
        faults(32 * mebi - 4096, 3);
        EXPECT_EQ(0, faults(32 * mebi - 4096, 3));
    });
}


/* ---- fork ---- */

/* The child has the settings of the heap that it inherits. A monitor of its own
 * gives back what is kept there. */
TEST_F(test_malloc, child)
{
    auto child = [&]() {
        EXPECT_EQ("", thread_file("comm"));
        faults(8 * mebi);
        EXPECT_EQ(0, faults(8 * mebi));
        stop(); /* The parent's: not its end */
        begin(64 * mebi);
        EXPECT_NE("", thread_file("comm"));
        faults(8 * mebi);
        EXPECT_EQ(0, faults(8 * mebi));
        size_t kept = resident();
        press_once();
        EXPECT_LT(resident(), kept - 15 * mebi);
        stop();
        EXPECT_EQ("", thread_file("comm"));
        return HasFailure() ? 1 : 0;
    };

    run([&]() {
        begin(64 * mebi);
        faults(8 * mebi);
        EXPECT_EQ(0, faults(8 * mebi));
        int result = in_child(child);
        EXPECT_EQ(0, result);
        /* The parent has seen the same files, and pauses */
        wait_for([]() { return faults(8 * mebi) == 0; });
        size_t kept = resident();
        press_once();
        EXPECT_LT(resident(), kept - 15 * mebi);
    });
}

/* fork() at any moment, while monitors begin and end and memory is short:
 * nothing hangs, and no data is lost */
TEST_F(test_malloc, child_at_any_moment)
{
    nprdma_malloc_set_pause(0.001);
    m_params.holdoff_seconds = m_params.sample_seconds = 0.0005;
    nprdma_pressure_set_params(&m_params);
    run([&]() {
        std::atomic<bool> done{false};
        std::vector<std::thread> threads;

        /* The handlers of fork() are there from the first time on. A child of
         * before that may inherit UCM's lock while a thread holds it, and
         * no thread opens it there. */
        nprdma_malloc_begin(8 * mebi, 0);
        nprdma_malloc_end();
        press();
        for (unsigned i = 0; i < 3; ++i) {
            threads.emplace_back([&, i]() {
                while (!done) {
                    char *ptr = (char*)written((i + 1) * 100000);
                    EXPECT_EQ(1, ptr[(i + 1) * 100000 - 1]);
                    free(ptr);
                    nprdma_malloc_begin(8 * mebi, i & 1);
                    free(written(mebi));
                    nprdma_malloc_end();
                }
            });
        }
        for (unsigned i = 0; i < 60; ++i) {
            EXPECT_EQ(0, in_child([&]() {
                nprdma_malloc_begin(8 * mebi, 0);
                free(written(2 * mebi));
                nprdma_malloc_end();
                return 0;
            }));
        }
        done = true;
        for (std::thread &thread : threads) {
            thread.join();
        }
    });
}

/* Registered memory comes and goes with malloc(), under its locks, and the
 * thread gives memory back meanwhile */
TEST_F(test_malloc, hooks_under_pressure)
{
    nprdma_malloc_set_pause(0.001);
    m_params.holdoff_seconds = m_params.sample_seconds = 0.0005;
    nprdma_pressure_set_params(&m_params);
    run([&]() {
        std::vector<std::thread> threads;

        begin(8 * mebi);
        press();
        for (unsigned i = 0; i < 4; ++i) {
            threads.emplace_back([&, i]() {
                while (stats().malloc.trims < 200) {
                    size_t size = (i + 1) * 700000;
                    char *ptr   = (char*)written(size);
                    nprdma_range_t range;
                    EXPECT_EQ(UCS_OK, reg(&range, ptr, size));
                    EXPECT_EQ(UCS_OK, populate(&range));
                    EXPECT_EQ(1, ptr[size - 1]);
                    unreg(&range);
                    free(ptr);
                }
            });
        }
        for (std::thread &thread : threads) {
            thread.join();
        }
    });
}


/* ---- hands off ---- */

TEST_F(test_malloc, set_by_the_environment)
{
    for (const char *name : {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_",
                             "MALLOC_TOP_PAD_", "MALLOC_MMAP_MAX_"}) {
        setenv(name, "131072", 1);
        expect_hands_off(name);
        run([&]() {
            begin(64 * mebi);
            expect_untouched();
        });
        unsetenv(name);
        unlink((m_root + "/log").c_str());
    }
    setenv("GLIBC_TUNABLES", "glibc.rtld.nns=4:glibc.malloc.top_pad=131072", 1);
    expect_hands_off("GLIBC_TUNABLES");
    setenv("GLIBC_TUNABLES", "glibc.rtld.nns=4", 1);
    run([&]() {
        begin(64 * mebi);
        EXPECT_EQ(64 * mebi, stats().malloc.keep);
    });
    unsetenv("GLIBC_TUNABLES");
}

/* Nothing could give it back */
TEST_F(test_malloc, without_a_thread)
{
    run([&]() {
        const struct rlimit none = {};

        begin(0);
        EXPECT_TRUE((geteuid() != 0) || (setuid(65534) == 0));
        EXPECT_EQ(0, setrlimit(RLIMIT_NPROC, &none));
        nprdma_malloc_begin(64 * mebi, 0);
        EXPECT_EQ(0u, stats().malloc.keep);
        expect_untouched();
        nprdma_malloc_end();
    });
    EXPECT_EQ(1u, count("no memory is kept")) << m_log;
}

/* With another malloc(): that of a sanitizer, or of a library that is
 * preloaded */
class test_malloc_other : public test_malloc {
protected:
    void SetUp() override
    {
        test_monitor::SetUp();
        make_v2();
    }

    /* The case above in a process that preloads a library */
    void preload(const char *library)
    {
        if (*library == '\0') {
            GTEST_SKIP() << "the library is not installed";
        }
        int result = in_child([=]() {
            setenv("LD_PRELOAD", library, 1);
            execl("/proc/self/exe", "test_malloc",
                  "--gtest_filter=test_malloc_other.hands_off", nullptr);
            return 1;
        });
        EXPECT_EQ(0, result);
    }
};

TEST_F(test_malloc_other, hands_off)
{
    if (!is_sanitized && (getenv("LD_PRELOAD") == nullptr)) {
        GTEST_SKIP() << "malloc() is that of glibc";
    }
    expect_hands_off("malloc() is not that of glibc");
}

TEST_F(test_malloc_other, jemalloc)
{
    preload(NPRDMA_TEST_JEMALLOC);
}

TEST_F(test_malloc_other, tcmalloc)
{
    preload(NPRDMA_TEST_TCMALLOC);
}

/* What doc/monitor.md recommends in place of the variable, with the values of
 * GLIBC_TUNABLES that ctest has set */
TEST_F(test_malloc, tunables_do_the_same)
{
    const char *tunables = getenv("GLIBC_TUNABLES");

    if (tunables == nullptr) {
        GTEST_SKIP() << "a test of its own sets GLIBC_TUNABLES";
    }
    expect_hands_off("GLIBC_TUNABLES");
    run([&]() {
        begin(0);
        for (size_t size : {mebi / 8, mebi, 4 * mebi, 16 * mebi,
                            32 * mebi - 4096}) {
            faults(size);
            faults(size);
            EXPECT_EQ(0, faults(size)) << size;
        }
        EXPECT_GT(faults(40 * mebi), 10000);
    });
}
