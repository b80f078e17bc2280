/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "../gtest/uct/uct_test.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <random>
#include <thread>

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

/*
 * Puts and gets while the kernel changes both sides' memory. Every byte must be
 * right, the kernel module must have been notified, and operations must have
 * been repeated. Nothing is pinned, so the kernel is free to do that.
 */

namespace {

enum event_t {
    SWAP,
    SWAP_AND_MERGE, /* KSM */
    MIGRATE,        /* Compaction */
    COLLAPSE,       /* To a huge page, which swap splits again */
    FORK
};

constexpr size_t page   = 4096;
constexpr size_t huge   = 2u << 20;
constexpr size_t length = 4u << 20;

/* The value takes effect at once. Files that this kernel does not have are
 * ignored. */
bool write_file(const char *path, const char *value)
{
    FILE *file = fopen(path, "w");
    bool good  = (file != nullptr) && (fputs(value, file) >= 0);

    if (file != nullptr) {
        good = (fclose(file) == 0) && good;
    }
    return good;
}

/* Memory aligned to 2 MiB */
class area {
public:
    area()
    {
        m_map = (char*)mmap(nullptr, length + huge, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        EXPECT_NE(MAP_FAILED, (void*)m_map);
    }
    ~area() { munmap(m_map, length + huge); }
    area(const area&) = delete;

    char *ptr() const
    {
        return (char*)(((uintptr_t)m_map + huge - 1) & ~(huge - 1));
    }

private:
    char *m_map;
};

} // namespace

class test_kernel : public uct_pair_test,
                    public ::testing::WithParamInterface<event_t> {
protected:
    test_kernel()
    {
        m_config = {{"MONITOR", "kernel"},
                    {"SLICE", "64k"},
                    {"SCAN_MAX", "16k"}};
    }

    void SetUp() override
    {
        if (access("/dev/nprdma", R_OK | W_OK) != 0) {
            GTEST_SKIP() << "no /dev/nprdma: run in the guest";
        }
        uct_pair_test::SetUp();
    }

    void disturb(char *ptr, std::mt19937 &random)
    {
        size_t first = random() % (length / page) * page;
        size_t size  = std::min((1 + random() % 32) * page, length - first);
        pid_t pid;

        switch (GetParam()) {
        case MIGRATE:
            write_file("/proc/sys/vm/compact_memory", "1");
            break;
        case COLLAPSE:
            /* Fails if pages are in use, or if it is a huge page already */
            madvise(ptr + first / huge * huge, huge, MADV_COLLAPSE);
            break;
        case FORK:
            pid = fork();
            if (pid == 0) {
                _exit(0);
            }
            EXPECT_EQ(pid, waitpid(pid, nullptr, 0));
            std::this_thread::yield();
            return;
        default:
            break;
        }
        madvise(ptr + first, size, MADV_PAGEOUT);
    }

    /* All that has happened, for the reader of a failure */
    static std::string counted(const entity &side)
    {
        std::string text = "\n";

        for (auto &counter : side.counters()) {
            if (counter.second != 0) {
                text += " " + counter.first + "=" +
                        std::to_string(counter.second);
            }
        }
        return text;
    }

    /* All pages are equal, for KSM */
    void fill(char *ptr, size_t size, uint64_t seed)
    {
        std::mt19937_64 random(seed);

        if (GetParam() == SWAP_AND_MERGE) {
            memset(ptr, (int)seed | 1, size);
            return;
        }
        for (size_t i = 0; i + 8 <= size; i += 8) {
            uint64_t word = random();
            memcpy(ptr + i, &word, 8);
        }
        memset(ptr + size / 8 * 8, (int)seed, size % 8);
    }

    void run(buffer &local, buffer &remote, uct_rkey_t rkey, uint64_t seed)
    {
        static const size_t sizes[] = {8192, 16000, 65536, 300000, 1u << 20};
        size_t size   = sizes[m_random() % 5];
        size_t here   = m_random() % (length - size + 1);
        size_t there  = m_random() % (length - size + 1);
        bool is_put   = m_random() % 2;
        uct_iov_t iov = {local.ptr(here), size, local.memh(), 0, 1};

        fill(is_put ? local.ptr(here) : remote.ptr(there), size, seed);
        ASSERT_EQ(UCS_OK, m_a->complete([&](uct_completion_t *comp) {
            return start_zcopy(is_put, m_ab, iov, remote.address(there), rkey,
                               comp);
        }));
        ASSERT_EQ(0, memcmp(local.ptr(here), remote.ptr(there), size))
                << (is_put ? "put" : "get") << " of " << size << " from "
                << here << " at " << there;
    }

    /* Settings of the kernel for the event */
    void set_up_event(const area &here, const area &there)
    {
        if (GetParam() != SWAP_AND_MERGE) {
            return;
        }
        ASSERT_TRUE(write_file("/sys/kernel/mm/ksm/pages_to_scan", "4000"));
        ASSERT_TRUE(write_file("/sys/kernel/mm/ksm/sleep_millisecs", "5"));
        ASSERT_TRUE(write_file("/sys/kernel/mm/ksm/run", "1"));
        for (auto ptr : {here.ptr(), there.ptr()}) {
            ASSERT_EQ(0, madvise(ptr, length, MADV_MERGEABLE));
        }
    }

    std::mt19937 m_random{20261121};
};

TEST_P(test_kernel, all_data_is_right)
{
    area here, there;
    buffer local(m_a->md(), length, here.ptr());
    buffer remote(m_b->md(), length, there.ptr());
    uct_rkey_t rkey = m_a->unpack(remote.packed_key());
    std::atomic<bool> stop(false);
    uint64_t ops = 0, redone = 0, taken = 0;

    ASSERT_NO_FATAL_FAILURE(set_up_event(here, there));
    std::thread thread([&]() {
        std::mt19937 random(7);
        while (!stop) {
            disturb((random() % 2) ? here.ptr() : there.ptr(), random);
        }
    });

    /* The time limit of the rig, which counts from the guest's boot */
    const char *patience = getenv("GUEST_PATIENCE");
    double end           = (patience != nullptr) ? atof(patience) : now() + 120;
    while ((ops < 30) || (redone < 10) || (taken == 0)) {
        run(local, remote, rkey, ++ops);
        if (HasFailure()) {
            break;
        }
        redone = m_a->counter("redone_slices") + m_a->counter("suspect_local") +
                 m_a->counter("assist_populate");
        taken  = m_a->counter("kernel_pages") + m_b->counter("kernel_pages");
        if (now() > end) {
            ADD_FAILURE() << "after " << ops << " operations only " << redone
                          << " met absent pages, and " << taken
                          << " pages were taken" << counted(*m_a)
                          << counted(*m_b);
            break;
        }
    }
    stop = true;
    thread.join();
    write_file("/sys/kernel/mm/ksm/run", "0");

    uint64_t events = m_a->counter("kernel_events") +
                      m_b->counter("kernel_events");
    EXPECT_GT(events, 0u);
    printf("%lu operations, %lu events took %lu pages, %lu times again\n",
           (unsigned long)ops, (unsigned long)events, (unsigned long)taken,
           (unsigned long)redone);
}

static std::string name_of(const ::testing::TestParamInfo<event_t> &info)
{
    static const char *names[] = {"swap", "swap_and_merge", "migrate",
                                  "collapse", "fork"};
    return names[info.param];
}

INSTANTIATE_TEST_SUITE_P(kernel, test_kernel,
                         ::testing::Values(SWAP, SWAP_AND_MERGE, MIGRATE,
                                           COLLAPSE, FORK),
                         name_of);

/* Two adapters whose drivers pin what they register, and nothing disturbs */
class test_kernel_pinned : public uct_pair_test {
protected:
    void SetUp() override
    {
        if (access("/sys/class/infiniband/mlx5_1", F_OK) != 0) {
            GTEST_SKIP() << "no mlx5_1: run by test/emlx5/guest/zcopy";
        }
        m_a = open_on("mlx5_1");
        m_b = open_on("mlx5_0");
        m_a->add_progress(m_b.get());
        m_b->add_progress(m_a.get());
        m_ab = m_a->connect(m_b->address());
    }

    static std::unique_ptr<entity> open_on(const char *device)
    {
        setenv("NPRDMA_TEST_DEVICE", device, 1);
        return std::make_unique<entity>(
                config_t{{"MONITOR", "kernel"}, {"SELFCHECK", "n"}});
    }

    /* Beyond the transport's own buffers, which show that the kernel counts */
    size_t pinned_by_others() const
    {
        long all = proc_status_kb(getpid(), "VmPin:") * 1024;
        long own = m_a->counter("pinned_bytes");

        EXPECT_LT(0, own);
        EXPECT_LE(own, all);
        return all - own;
    }

    void run(bool is_put, buffer &local, buffer &remote, size_t at,
             uct_rkey_t rkey)
    {
        constexpr size_t size = 1 << 20;
        uct_iov_t iov         = {local.ptr(at), size, local.memh(), 0, 1};

        ASSERT_EQ(UCS_OK, m_a->complete([&](uct_completion_t *comp) {
            return start_zcopy(is_put, m_ab, iov, remote.address(at), rkey,
                               comp);
        }));
        m_a->flush(m_ab);
        EXPECT_EQ(0, memcmp(local.ptr(at), remote.ptr(at), size));
    }

    /* Puts and gets all of a buffer */
    void move(buffer &local, buffer &remote, uct_rkey_t rkey)
    {
        for (size_t at = 0; at < local.length(); at += 1 << 20) {
            run(true, local, remote, at, rkey);
            memset(local.ptr(at), 0, 1 << 20);
            run(false, local, remote, at, rkey);
        }
    }
};

TEST_F(test_kernel_pinned, registered_memory_is_not)
{
    constexpr size_t size = 16 << 20;
    uint64_t moved        = m_a->counter("nic_put") + m_a->counter("nic_get");
    buffer first(m_a->md(), 1 << 20), other(m_b->md(), 1 << 20);

    /* Makes the queue pairs, whose queues are pinned */
    m_a->wire_up(m_ab, first.ptr(), other.address(),
                 m_a->unpack(other.packed_key()));
    move(first, other, m_a->unpack(other.packed_key()));
    size_t before = pinned_by_others();
    buffer local(m_a->md(), size), remote(m_b->md(), size);
    uct_rkey_t rkey = m_a->unpack(remote.packed_key());

    local.fill(1);
    remote.fill(2);
    EXPECT_EQ(before, pinned_by_others()) << "by the registration";
    move(local, remote, rkey);
    EXPECT_EQ(before, pinned_by_others()) << "by the operations";
    EXPECT_LE(moved + 2 * size / (1 << 20),
              m_a->counter("nic_put") + m_a->counter("nic_get"));
}

/* All pages are there, and their states in the initiator's cache */
TEST_F(test_kernel_pinned, put_reads_states_once)
{
    buffer local(m_a->md(), 1 << 20), remote(m_b->md(), 1 << 20);
    uct_rkey_t rkey = m_a->unpack(remote.packed_key());

    m_a->wire_up(m_ab, local.ptr(), remote.address(), rkey);
    for (int i = 0; i < 10; ++i) {
        run(true, local, remote, 0, rkey);
    }
    uint64_t slices = m_a->counter("nic_slices");
    uint64_t reads  = m_a->counter("state_reads");
    run(true, local, remote, 0, rkey);
    EXPECT_LT(slices, m_a->counter("nic_slices"));
    EXPECT_EQ(m_a->counter("nic_slices") - slices,
              m_a->counter("state_reads") - reads);
}
