/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* What malloc() keeps in a cgroup with a limit, where the kernel kills a
 * process that writes more than that */

#include "limited_group.h"

#include <ucm/nprdma_malloc.h>

#include <csignal>
#include <cstdlib>

#include <malloc.h>
#include <sys/prctl.h>

class test_malloc_limit : public limited_test {
protected:
    static constexpr size_t limit = 36 * MiB;

    /* It fits, but not with what is kept. malloc() maps nothing as short. */
    static constexpr size_t mapping = 31 * MiB;

    test_malloc_limit() : limited_test(limit)
    {
    }

    void SetUp() override
    {
        limited_test::SetUp();
        nprdma_malloc_set_pause(3600); /* What happens, a hook has caused */
        params.malloc_keep = 512 * MiB;
    }

    /* Bytes that the process has and that are of no file */
    static size_t resident()
    {
        size_t size, pages = 0, shared = 0;
        std::ifstream("/proc/self/statm") >> size >> pages >> shared;
        return (pages - shared) * (size_t)sysconf(_SC_PAGESIZE);
    }

    /* The compiler must not leave out what is only allocated and freed */
    static void *used(void *ptr)
    {
        __asm__ volatile("" : "+r"(ptr) : : "memory");
        return ptr;
    }

    /* Blocks of 1 MiB of the heap, all written, and then all freed. Nothing
     * else is allocated, which would be behind them, so that free() could not
     * give them back. */
    struct blocks {
        explicit blocks(unsigned count) : m_count(count)
        {
            for (unsigned i = 0; i < count; ++i) {
                m_blocks[i] = used(memset(malloc(MiB), 1, MiB));
            }
        }

        ~blocks()
        {
            for (unsigned i = 0; i < m_count; ++i) {
                free(m_blocks[i]);
            }
        }

        unsigned m_count;
        void     *m_blocks[limit / MiB];
    };

    static nprdma_malloc_stats_t kept()
    {
        nprdma_malloc_stats_t stats;
        nprdma_malloc_query(&stats);
        return stats;
    }

    /* @return Nonzero if the heap keeps that many MiB, which are of no use */
    static bool keeps_some(unsigned count = 6)
    {
        prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
        size_t before = resident();
        {
            blocks all(count);
        }
        return resident() > before + (count - 1) * MiB;
    }
};

/* The more there is in use, the less is kept */
TEST_F(test_malloc_limit, half_of_what_is_left)
{
    EXPECT_EQ(0, status_of(in_group([]() {
        size_t before = resident();
        if ((kept().keep != 512 * MiB) || (kept().bound > limit / 2)) {
            return 1;
        }
        if (!keeps_some()) {
            return 2;
        }
        {
            blocks most(26);
            wait_for([]() { return kept().bound < 8 * MiB; });
        }
        return (resident() > before + 8 * MiB) ? 3 :
               ((kept().asked > 0) || (kept().trims > 0)) ? 4 : 0;
    })));
}

/* What is kept is of no use for memory that is mapped. The thread is busy until
 * some time after the hook has asked it. */
TEST_F(test_malloc_limit, mapped_and_written_at_once)
{
    static std::atomic<bool> is_busy;
    EXPECT_EQ(0, status_of(in_group([]() {
        nprdma_pressure_client_t client = {};
        client.give_back = [](void *) {};
        client.arg       = &client;
        client.tick      = [](void *arg) {
            nprdma_pressure_disarm((nprdma_pressure_client_t*)arg);
            is_busy = true;
            wait_for([]() { return kept().asked > 0; });
            usleep(20000);
        };
        if (!keeps_some() || (nprdma_pressure_add(&client) != UCS_OK)) {
            return 1;
        }
        nprdma_pressure_arm(&client);
        wait_for([]() { return is_busy.load(); });
        char *ptr = block(mapping);
        if (!nprdma_pressure_has_room(mapping, 95)) {
            return 2; /* The hook has not waited */
        }
        memset(ptr, 1, mapping);
        return (kept().bound > 131072) ? 3 : 0; /* Nothing for some time */
    })));
}

/* The control: with the same settings, and nothing that gives memory back, the
 * kernel kills */
TEST_F(test_malloc_limit, mapped_without_a_hook)
{
    params.malloc_keep = 0;
    EXPECT_EQ(SIGKILL, status_of(in_group([]() {
        mallopt(M_MMAP_THRESHOLD, 32 * MiB);
        mallopt(M_TRIM_THRESHOLD, 512 * MiB);
        if (!keeps_some()) {
            return 1;
        }
        memset(block(mapping), 1, mapping);
        return 0;
    })));
}

/* It grows by mremap() */
TEST_F(test_malloc_limit, remapped_and_written_at_once)
{
    EXPECT_EQ(0, status_of(in_group([]() {
        char *ptr = block(page);
        if (!keeps_some()) {
            return 1;
        }
        ptr = (char*)mremap(ptr, page, mapping, MREMAP_MAYMOVE);
        if (!nprdma_pressure_has_room(mapping, 95)) {
            return 2;
        }
        memset(ptr, 1, mapping);
        return 0;
    })));
}

/* Alternately from the heap and not: no moment is one too many */
TEST_F(test_malloc_limit, again_and_again)
{
    EXPECT_EQ(0, status_of(in_group([]() {
        void *last = nullptr;
        for (unsigned i = 0; i < 30; ++i) {
            /* Now and then behind what is freed, which so is not its end */
            {
                blocks some(20);
                free(last);
                last = (i & 1) ? used(malloc(page)) : nullptr;
            }
            char *ptr = block(mapping);
            memset(ptr, 1, mapping);
            munmap(ptr, mapping);
        }
        return 0;
    })));
}

/* malloc() maps a large block itself, under the lock that malloc_trim() needs:
 * the hook does not wait for the thread, and the thread goes on behind it */
TEST_F(test_malloc_limit, asked_under_the_lock)
{
    EXPECT_EQ(0, status_of(in_group([]() {
        if (!keeps_some()) {
            return 1;
        }
        size_t before = resident();
        void *large   = used(malloc(limit));
        if (kept().asked != 1) {
            return 2;
        }
        wait_for([]() { return kept().trims > 0; });
        free(large);
        return (resident() > before - 5 * MiB) ? 3 : 0;
    })));
}

/* A child has nobody to ask, and so neither asks nor waits */
TEST_F(test_malloc_limit, child)
{
    EXPECT_EQ(0, status_of(in_group([]() {
        if (!keeps_some()) {
            return 1;
        }
        return in_child([]() {
            uint64_t asked = kept().asked;
            char *ptr      = block(mapping);
            munmap(ptr, mapping);
            free(used(malloc(limit)));
            return (kept().asked != asked) ? 2 : 0;
        });
    })));
}

/* A child by a system call has the hooks of its parent, and no handlers of
 * fork() have run */
TEST_F(test_malloc_limit, child_by_clone)
{
    EXPECT_EQ(0, status_of(in_group([]() {
        if (!keeps_some()) {
            return 1;
        }
        uint64_t asked = kept().asked;
        pid_t pid      = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
        if (pid == 0) {
            block(mapping);
            _exit((kept().asked != asked) ? 2 : 0);
        }
        return (status_of(pid) != 0) ? 3 : 0;
    })));
}

/* One with a monitor of its own asks its own thread, by the hook of its
 * parent */
TEST_F(test_malloc_limit, child_with_a_monitor)
{
    EXPECT_EQ(0, status_of(in_group([&]() {
        return in_child([&]() {
            nprdma_monitor_t *own = nullptr;
            if (nprdma_monitor_create(&params, &own) != UCS_OK) {
                return 1;
            }
            /* Half of what is used is the parent's */
            if (!keeps_some(3)) {
                return 2;
            }
            memset(block(mapping), 1, mapping);
            if (kept().trims == 0) {
                return 3;
            }
            nprdma_monitor_destroy(own);
            return 0;
        });
    })));
}
