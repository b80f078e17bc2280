/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "fake_cgroup.h"
#include "test_monitor.h"

#include <ucm/nprdma_early.h>

#include <sys/stat.h>
#include <sys/wait.h>

/* Pages that come in before the operation that needs them */
class test_early : public test_monitor {
protected:
    static constexpr size_t size = 1u << 20;

    void SetUp() override
    {
        test_monitor::SetUp();
        params.early = 1;
    }

    static char *map_block()
    {
        char *ptr = (char*)mmap(nullptr, size, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        EXPECT_NE(MAP_FAILED, (void*)ptr);
        return ptr;
    }

    void fill(const char *ptr)
    {
        nprdma_early_filled(monitor, (uintptr_t)ptr, size);
    }

    /* Operations that fill new blocks, until the next one is expected */
    void learn()
    {
        nprdma_early_filled(monitor, (uintptr_t)this, NPRDMA_FORECAST_MIN);
        for (int i = 0; i < NPRDMA_FORECAST_STREAK; ++i) {
            char *ptr = map_block();
            fill(ptr);
            munmap(ptr, size);
        }
    }

    int bring_in()
    {
        int count = 0;
        while (nprdma_early_page_in(monitor)) {
            ++count;
        }
        return count;
    }

    static size_t num_present(const char *ptr)
    {
        size_t count = 0;
        for (size_t i = 0; i < size; i += page) {
            count += is_present(ptr + i);
        }
        return count;
    }
};

TEST_F(test_early, pages_are_there_before_the_operation)
{
    start();
    char *first = map_block();
    EXPECT_EQ(0, bring_in());
    EXPECT_EQ(0u, num_present(first));
    munmap(first, size);

    learn();
    char *ptr = map_block();
    EXPECT_EQ(0u, num_present(ptr)) << "mmap() itself brings in nothing";
    EXPECT_EQ(int(size / NPRDMA_FORECAST_PIECE), bring_in());
    EXPECT_EQ(size / page, num_present(ptr));

    /* The operation finds the states that it needs */
    uint64_t pageins = stats().pageins;
    nprdma_range_t range;
    ASSERT_EQ(UCS_OK, nprdma_monitor_register_local(monitor, (uintptr_t)ptr,
                                                    size, &range));
    EXPECT_EQ(int(NPRDMA_PAGE_BITS), all_bits(&range, ptr, size));
    EXPECT_EQ(UCS_OK, populate(&range, NPRDMA_POPULATE_WRITE));
    EXPECT_EQ(pageins, stats().pageins);
    unreg(&range);
    fill(ptr);
    EXPECT_EQ(1u, stats().early.expected);
    munmap(ptr, size);
    EXPECT_EQ(0u, stats().early.unused);
    EXPECT_EQ(0u, stats().ranges);
}

/* No key leads to pages that came in early */
TEST_F(test_early, peers_do_not_get_them)
{
    start();
    learn();
    char *ptr = map_block();
    EXPECT_GT(bring_in(), 0);
    nprdma_range_t range;
    ASSERT_EQ(UCS_OK, reg(&range, ptr, size));
    EXPECT_EQ(0, all_bits(&range, ptr, size));
    unreg(&range);
    munmap(ptr, size);
}

/* Where a cgroup has a limit, the kernel kills for what it cannot take back */
class test_early_limit : public test_early, protected fake_cgroup {
};

TEST_F(test_early_limit, room_in_a_cgroup)
{
    make_v2();
    put(m_cgroup + "/job/step/memory.max", std::to_string(64 * size) + "\n");
    start();
    for (int used : {40, 46, 48, 60, 40}) {
        put(m_cgroup + "/job/step/memory.current",
            std::to_string(used * size) + "\n");
        learn();
        char *ptr = map_block();
        bring_in();
        EXPECT_EQ((used < 48) ? size / page : 0, num_present(ptr)) << used;
        fill(ptr);
        munmap(ptr, size);
    }
}

TEST_F(test_early, off)
{
    params.early = 0;
    start();
    learn();
    char *ptr = map_block();
    EXPECT_EQ(0, bring_in());
    EXPECT_EQ(0u, num_present(ptr));
    nprdma_early_shown(monitor, (uintptr_t)ptr, size);
    munmap(ptr, size);
    EXPECT_EQ(0u, stats().early.expected);
}

TEST_F(test_early, only_memory_as_mmap_makes_it)
{
    start();
    learn();
    /* Of the right length each, and none of the kind */
    char *fixed = map(size);
    char *read_only = (char*)mmap(nullptr, size, PROT_READ,
                                  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *shared    = (char*)mmap(nullptr, size, PROT_READ | PROT_WRITE,
                                  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    char *sparse    = (char*)mmap(nullptr, size, PROT_READ | PROT_WRITE,
                                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                                  -1, 0);
    EXPECT_EQ(0, bring_in());
    for (char *ptr : {fixed, read_only, shared, sparse}) {
        EXPECT_EQ(0u, num_present(ptr));
        munmap(ptr, size);
    }

    /* Protected since: there is no signal, and no endless try */
    char *ptr = map_block();
    mprotect(ptr, size, PROT_READ);
    EXPECT_EQ(1, bring_in());
    EXPECT_EQ(0u, num_present(ptr));
    munmap(ptr, size);
}

TEST_F(test_early, wrong_forecasts_are_bounded)
{
    std::vector<char*> blocks;
    start();
    for (int i = 0; i < 2 * NPRDMA_FORECAST_STREAK; ++i) {
        char *a = map_block(), *b = map_block();
        fill(a);
        fill(b);
        munmap(a, size);
        munmap(b, size);
    }
    for (int i = 0; i < 10; ++i) {
        blocks.push_back(map_block());
    }
    bring_in();
    size_t total = 0;
    for (char *ptr : blocks) {
        total += num_present(ptr);
        munmap(ptr, size);
    }
    EXPECT_EQ(2 * size / page, total) << "as much as was filled at once";
    EXPECT_EQ(2u, stats().early.unused);

    char *ptr = map_block();
    EXPECT_EQ(0, bring_in());
    munmap(ptr, size);
}

/* A file that comes to the addresses of an expected block gets no data: threads
 * that unmap wait for the one that brings pages in */
TEST_F(test_early, files_are_left_alone)
{
    char name[] = "/tmp/nprdma-early-XXXXXX";
    int fd      = mkstemp(name);
    ASSERT_GE(fd, 0);
    unlink(name);
    start();

    std::atomic<bool> stop{false};
    std::atomic<long> pieces{0};
    std::thread thread([&]() {
        while (!stop) {
            pieces += nprdma_early_page_in(monitor);
        }
    });
    for (int i = 0; i < 100; ++i) {
        ASSERT_EQ(0, ftruncate(fd, size));
        learn();
        long before = pieces;
        char *ptr   = map_block();
        if (i % 2) {
            wait_until([&]() { return pieces > before; });
        }
        munmap(ptr, size);
        char *file = (char*)mmap(ptr, size, PROT_READ | PROT_WRITE, MAP_SHARED,
                                 fd, 0);
        ASSERT_NE(MAP_FAILED, (void*)file);
        struct stat st;
        ASSERT_EQ(0, fstat(fd, &st));
        EXPECT_EQ(0, st.st_blocks) << i;
        munmap(file, size);
        ASSERT_EQ(0, ftruncate(fd, 0));
    }
    stop = true;
    thread.join();
    EXPECT_GT(pieces, 0);
    close(fd);
}

/* ARCHITECTURE 4: a hook waits for no thread that may allocate. The region is
 * created before the piece begins. */
class test_early_attach : public test_early {
protected:
    void SetUp() override
    {
        test_early::SetUp();
        inner         = params.attach;
        params.attach = attach_hook;
    }

    static ucs_status_t attach_hook(void *arg, nprdma_region_t *region)
    {
        auto self = static_cast<test_early_attach*>(
                static_cast<test_monitor*>(arg));
        if (self->block != nullptr) {
            std::thread([&]() { munmap(self->block, size); }).join();
            self->block = nullptr;
        }
        return self->inner(arg, region);
    }

    ucs_status_t (*inner)(void *arg, nprdma_region_t *region) = nullptr;
    char *block                                               = nullptr;
};

TEST_F(test_early_attach, hooks_do_not_wait_for_a_region)
{
    start();
    learn();
    char *ptr = map_block();
    block     = ptr;
    EXPECT_EQ(1, nprdma_early_page_in(monitor));
    EXPECT_EQ(nullptr, block) << "a region was created";
    EXPECT_EQ(1u, stats().early.unused) << "munmap() has given up";
    EXPECT_EQ(0, bring_in());
}

TEST_F(test_early, forked_child)
{
    start();
    learn();
    char *ptr = map_block();
    pid_t pid = fork();
    if (pid == 0) {
        nprdma_early_filled(monitor, (uintptr_t)ptr, size);
        nprdma_early_shown(monitor, (uintptr_t)ptr, size);
        _exit(nprdma_early_page_in(monitor));
    }
    int status;
    ASSERT_EQ(pid, waitpid(pid, &status, 0));
    EXPECT_EQ(0, status);
    EXPECT_GT(bring_in(), 0) << "the parent goes on";
    munmap(ptr, size);
}

TEST_F(test_early, odd_buffers)
{
    start();
    nprdma_early_filled(monitor, UINTPTR_MAX - size, size);
    nprdma_early_filled(monitor, UINTPTR_MAX - size + 1, size);
    nprdma_early_filled(monitor, 0, SIZE_MAX);
    nprdma_early_filled(monitor, 4096, 0);
    nprdma_early_shown(monitor, UINTPTR_MAX - 10, 11);
    EXPECT_EQ(0, bring_in());
    EXPECT_EQ(0u, stats().early.filled_bytes);
}
