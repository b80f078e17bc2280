/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "../refuse.h"
#include "test_child.h"
#include "test_monitor.h"

#include <ucm/events/nprdma_events.h>
#include <ucm/events/nprdma_lazy.h>

#include <algorithm>
#include <fstream>

#include <dlfcn.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/uio.h>

#ifndef SYS_mseal
#define SYS_mseal 462 /* Linux 6.10, on all processors */
#endif

namespace {
constexpr size_t KiB = 1024;
constexpr size_t MiB = 1024 * KiB;
}

/* Memory that munmap() keeps */
class test_lazy : public test_monitor {
protected:
    static constexpr size_t limit = 64 * MiB;

    void SetUp() override
    {
        test_monitor::SetUp();
        for (const char *name : { "__asan_init", "__hwasan_init",
                                  "__msan_init" }) {
            if (dlsym(RTLD_DEFAULT, name) != nullptr) {
                GTEST_SKIP() << "off with this sanitizer";
            }
        }
        params.lazy_limit = limit;
    }

    static char *used(size_t length = MiB)
    {
        char *ptr = block(length);
        memset(ptr, 0x5a, length);
        return ptr;
    }

    static bool is_zero(const char *ptr, size_t length)
    {
        return (ptr[0] == 0) && (memcmp(ptr, ptr + 1, length - 1) == 0);
    }

    /* Empty the pool, as a call of mremap() does. @return Number of blocks */
    static unsigned drop()
    {
        uint64_t before = kept().dropped;
        void *ptr = mmap(nullptr, page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS,
                         -1, 0);
        EXPECT_EQ(ptr, mremap(ptr, page, page, 0));
        munmap(ptr, page);
        return (unsigned)(kept().dropped - before);
    }

    /* @return Whether munmap() has kept the block: it is still mapped */
    static bool unmap(char *ptr, size_t length = MiB)
    {
        EXPECT_EQ(0, munmap(ptr, length));
        return syscall(SYS_msync, ptr, length, MS_ASYNC) == 0;
    }

    /* A child with a monitor of its own. @return Its wait status. */
    template<typename F> int in_child(F func)
    {
        return wait_status([&]() {
            nprdma_monitor_t *own = nullptr;
            if (nprdma_monitor_create(&params, &own) != UCS_OK) {
                return 100;
            }
            signal(SIGSEGV, SIG_DFL);
            return func();
        });
    }

    /* A child with status 77 cannot be tested here */
    static void expect_zero(int status, const char *why = "")
    {
        ASSERT_TRUE(WIFEXITED(status)) << status;
        if (WEXITSTATUS(status) == 77) {
            GTEST_SKIP() << why;
        }
        EXPECT_EQ(0, WEXITSTATUS(status));
    }

    /* Bytes that RLIMIT_DATA counts */
    static size_t data()
    {
        std::ifstream file("/proc/self/status");
        std::string word;
        size_t kib = 0;
        while ((file >> word) && (word != "VmData:")) {
        }
        file >> kib;
        return kib * KiB;
    }

    static size_t resident()
    {
        std::ifstream file("/proc/self/statm");
        size_t total = 0, pages = 0;
        file >> total >> pages;
        return pages * page;
    }
};

TEST_F(test_lazy, comes_back_with_zeros)
{
    start();
    for (size_t length : { 128 * KiB, MiB, 8 * MiB, 8 * MiB + 4096 }) {
        char *ptr = used(length);
        ASSERT_TRUE(unmap(ptr, length - 100)) << length;
        size_t bytes = kept().bytes;
        char *again  = block(length - 4000);
        EXPECT_EQ((void*)ptr, (void*)again) << "a length is whole pages";
        EXPECT_TRUE(is_zero(again, length));
        EXPECT_EQ(bytes - length, kept().bytes);
        memset(again, 1, length);
        ASSERT_TRUE(unmap(again, length));
    }
    EXPECT_EQ(kept().bytes, 17 * MiB + 128 * KiB + 4096);
    EXPECT_EQ(4u, drop());
    EXPECT_EQ(0u, kept().bytes);
}

/* Pages stay as they are: absent, or the kernel's page of zeros */
TEST_F(test_lazy, stays_sparse)
{
    start();
    /* Advice to have no huge page would mean that it is not kept */
    ASSERT_EQ(0, prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0));
    char *ptr = block(8 * MiB);
    ptr[0] = ptr[4 * MiB] = ptr[8 * MiB - 1] = 1;
    for (size_t i = 2 * MiB; i < 4 * MiB; i += page) {
        EXPECT_EQ(0, ptr[i]);
    }
    ASSERT_TRUE(unmap(ptr, 8 * MiB));
    size_t before = resident();
    ASSERT_EQ((void*)ptr, (void*)block(8 * MiB));
    EXPECT_LE(resident(), before + 64 * KiB);
    EXPECT_FALSE(is_present(ptr + MiB));
    EXPECT_TRUE(is_present(ptr + 4 * MiB));
    EXPECT_TRUE(is_zero(ptr, 8 * MiB));
    munmap(ptr, 8 * MiB);
    EXPECT_EQ(0, prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0));
}

TEST_F(test_lazy, access_after_munmap_is_a_fault)
{
    int status = in_child([&]() {
        char *ptr = used();
        if (!unmap(ptr)) {
            return 102;
        }
        *(volatile char*)(ptr + 4096) = 1;
        return 0;
    });
    EXPECT_TRUE(WIFSIGNALED(status) && (WTERMSIG(status) == SIGSEGV)) << status;
}

/* As a munmap() without it: no bit, no way to get one */
TEST_F(test_lazy, kept_pages_are_retired)
{
    nprdma_range_t range;
    start();
    char *ptr = used();
    ASSERT_EQ(UCS_OK, reg(&range, ptr, MiB));
    ASSERT_EQ(UCS_OK, populate(&range, NPRDMA_POPULATE_WRITE));
    EXPECT_EQ(3, all_bits(&range, ptr, MiB));
    uint32_t before = state(&range, ptr);

    ASSERT_TRUE(unmap(ptr));
    EXPECT_EQ(0, all_bits(&range, ptr, MiB));
    EXPECT_EQ((before & ~NPRDMA_PAGE_BITS) + NPRDMA_PAGE_COUNT,
              state(&range, ptr));
    /* Also if it is accessible, by a call that no hook sees */
    EXPECT_EQ(0, syscall(SYS_mprotect, ptr, MiB, PROT_READ | PROT_WRITE));
    EXPECT_EQ(UCS_ERR_INVALID_ADDR, populate(&range));
    EXPECT_EQ(0, syscall(SYS_mprotect, ptr, MiB, PROT_NONE));
    EXPECT_EQ(0, all_bits(&range, ptr, MiB));

    /* What is mapped there now may be used, as ever */
    ASSERT_EQ((void*)ptr, (void*)block());
    EXPECT_EQ(0, all_bits(&range, ptr, MiB)) << "bits of the old memory";
    EXPECT_EQ(UCS_OK, populate(&range, NPRDMA_POPULATE_WRITE));
    EXPECT_EQ(3, all_bits(&range, ptr, MiB));
    EXPECT_TRUE(is_zero(ptr, MiB));
    munmap(ptr, MiB);
    unreg(&range);
    stop();
}

/* The NIC has finished while the memory is still what it was */
TEST_F(test_lazy, bits_then_drain_then_kept)
{
    static nprdma_range_t range;
    static char *ptr;
    static int wrong;
    start();
    wrong = 0;
    ptr   = used();
    ASSERT_EQ(UCS_OK, reg(&range, ptr, MiB));
    ASSERT_EQ(UCS_OK, populate(&range, NPRDMA_POPULATE_WRITE));

    on_drain = [](test_monitor*) {
        char byte            = 0;
        struct iovec local   = { &byte, 1 };
        struct iovec remote  = { ptr + 5 * page, 1 };
        uintptr_t first      = (uintptr_t)ptr;
        wrong += (process_vm_readv(getpid(), &local, 1, &remote, 1, 0) != 1) ||
                 (byte != 0x5a) || (all_bits(&range, ptr, MiB) != 0) ||
                 (nprdma_events_blocked(first, first + MiB) != first);
    };
    ASSERT_TRUE(unmap(ptr));
    on_drain = nullptr;
    EXPECT_EQ(1, drains);
    EXPECT_EQ(0, wrong);
    unreg(&range);
}

namespace {
struct change {
    const char *name;
    bool       is_kept;             /* And put right */
    bool       (*apply)(char *ptr); /* To a block of 1 MiB; false: cannot */
};

void PrintTo(const change &what, std::ostream *stream)
{
    *stream << what.name;
}

/* By the system call, since ThreadSanitizer leaves mlock() out */
bool lock(char *ptr)
{
    return syscall(SYS_mlock, ptr, MiB) == 0;
}

/* mbind() of one node, which need not be in libnuma's headers */
bool bind(char *ptr, size_t length)
{
    unsigned long node = 1;
    return syscall(SYS_mbind, ptr, length, 2 /* MPOL_BIND */, &node, 64, 0) ==
           0;
}

const change changes[] = {
    { "nothing", true, [](char*) { return true; } },
    { "mlock", false, lock },
    { "mprotect_part", true,
      [](char *ptr) { return mprotect(ptr, 8192, PROT_READ) == 0; } },
    { "mbind_part", true, [](char *ptr) { return bind(ptr, 8192); } },
    { "dontfork", false,
      [](char *ptr) { return madvise(ptr, MiB, MADV_DONTFORK) == 0; } },
    { "dontneed", false,
      [](char *ptr) { return madvise(ptr, MiB, MADV_DONTNEED) == 0; } },
    { "raw_munmap_part", false,
      [](char *ptr) { return syscall(SYS_munmap, ptr + 4096, 4096) == 0; } },
    { "file_unseen", false,
      [](char *ptr) {
          int fd     = open("/proc/self/exe", O_RDONLY);
          long there = syscall(SYS_mmap, ptr, MiB, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_FIXED, fd, 0);
          close(fd);
          return there == (long)ptr;
      } },
};
}

class test_lazy_changes : public test_lazy,
                          public ::testing::WithParamInterface<change> {
};

TEST_P(test_lazy_changes, what_comes_back_is_new)
{
    start();
    char *ptr = used();
    if (!GetParam().apply(ptr)) {
        GTEST_SKIP() << "this kernel or processor cannot: " << strerror(errno);
    }
    EXPECT_EQ(GetParam().is_kept, unmap(ptr));

    char *again = block();
    EXPECT_TRUE(is_zero(again, MiB));
    again[0] = again[8191] = again[MiB - 1] = 1;
    /* No lock, no policy, no key */
    EXPECT_EQ(0, msync(again, MiB, MS_ASYNC | MS_INVALIDATE));
    int policy = -1;
    if (syscall(SYS_get_mempolicy, &policy, nullptr, 0, again,
                2 /* MPOL_F_ADDR */) == 0) {
        EXPECT_EQ(0, policy);
    }
    /* Inherited by a child */
    expect_child([&]() { return (again[0] == 1) && (again[MiB - 1] == 1); });
    munmap(again, MiB);
}

INSTANTIATE_TEST_SUITE_P(all, test_lazy_changes, ::testing::ValuesIn(changes),
                         [](const auto &info) { return info.param.name; });

/* mseal(): munmap() fails, and nothing of the memory has changed. In a child,
 * since such memory never goes. */
TEST_F(test_lazy, sealed_memory_stays)
{
    int status = in_child([&]() {
        char *ptr = used();
        if (syscall(SYS_mseal, ptr, MiB, 0) != 0) {
            return (errno == ENOSYS) ? 77 : 1;
        }
        if ((munmap(ptr, MiB) != -1) || (errno != EPERM) ||
            (std::count(ptr, ptr + MiB, 0x5a) != (ptrdiff_t)MiB)) {
            return 2;
        }
        memset(ptr, 1, MiB);
        return 0;
    });
    expect_zero(status, "no mseal(): Linux 6.10");
}

/* A program that seals what it has unmapped: as it is mapped, the kernel does
 * so. The pool must not wait for ever to get rid of it. */
TEST_F(test_lazy, sealed_while_kept)
{
    params.lazy_limit = 2 * MiB;
    int status        = in_child([&]() {
        char *ptr = used();
        if (!unmap(ptr)) {
            return 1;
        }
        if (syscall(SYS_mseal, ptr, MiB, 0) != 0) {
            return (errno == ENOSYS) ? 77 : 2;
        }
        char *other = block();
        if ((other == ptr) || !is_zero(other, MiB) || (kept().bytes != 0)) {
            return 3;
        }
        /* There is room again for as much as before */
        char *third = used();
        return (unmap(other) && unmap(third) && (drop() == 2)) ? 0 : 4;
    });
    expect_zero(status, "no mseal(): Linux 6.10");
}

/* Memory that a userfaultfd of the application watches, or a part of it */
TEST_F(test_lazy, watched_memory_is_left_to_the_kernel)
{
    struct range {
        size_t start, length;
    };
    struct uffdio_api api = {};
    int uffd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
    auto watch = [&](char *ptr, size_t length, uint64_t mode) {
        struct uffdio_register range = {};
        range.range.start = (uintptr_t)ptr;
        range.range.len   = length;
        range.mode        = mode;
        return ioctl(uffd, UFFDIO_REGISTER, &range) == 0;
    };

    api.api = UFFD_API;
    if ((uffd < 0) || (ioctl(uffd, UFFDIO_API, &api) != 0)) {
        GTEST_SKIP() << "no userfaultfd: " << strerror(errno);
    }
    start();
    for (auto &part : { range{ 0, MiB }, range{ 0, page },
                        range{ MiB - page, page },
                        range{ MiB / 2, 16 * page } }) {
        char *ptr = used();
        ASSERT_TRUE(watch(ptr + part.start, part.length,
                          UFFDIO_REGISTER_MODE_MISSING));
        EXPECT_FALSE(unmap(ptr));
        EXPECT_EQ(-1, msync(ptr, MiB, MS_ASYNC)) << "still mapped";
    }

    /* The control: as soon as it is not watched any more it is kept */
    char *ptr = used();
    ASSERT_TRUE(watch(ptr, MiB, UFFDIO_REGISTER_MODE_WP));
    struct uffdio_range range = { (uintptr_t)ptr, MiB };
    ASSERT_EQ(0, ioctl(uffd, UFFDIO_UNREGISTER, &range));
    EXPECT_TRUE(unmap(ptr));
    ASSERT_EQ((void*)ptr, (void*)block());
    EXPECT_TRUE(watch(ptr, MiB, UFFDIO_REGISTER_MODE_MISSING))
            << "nothing of ours watches it";
    munmap(ptr, MiB);
    close(uffd);
}

/* A filter of system calls that refuses a change of protection */
TEST_F(test_lazy, protection_is_refused)
{
    expect_child([&]() {
        params.lazy_limit = 0;
        start();
        return refuse({SYS_mprotect, SYS_pkey_mprotect}, EPERM) &&
               !nprdma_lazy_start(limit) && !unmap(used());
    });
}

/* A filter that hides which pages are there. On a stack that is all zeros, as
 * that of a new thread */
TEST_F(test_lazy, mincore_is_refused)
{
    expect_child([&]() {
        bool is_clean;
        start();
        std::thread([&]() {
            char *ptr = used();
            is_clean  = refuse({SYS_mincore}, EPERM) && unmap(ptr) &&
                        (block() == ptr) && is_zero(ptr, MiB);
        }).join();
        return is_clean;
    });
}

/* No hook sees the calls by which the dynamic linker maps memory, so under a
 * limit nothing is kept, and what was kept goes with the next call */
TEST_F(test_lazy, nothing_is_kept_under_a_limit)
{
    struct rlimit before;
    start();
    ASSERT_TRUE(unmap(used()));
    ASSERT_EQ(0, getrlimit(RLIMIT_AS, &before));
    struct rlimit limited = { rlim_t(1) << 46, before.rlim_max };
    ASSERT_EQ(0, setrlimit(RLIMIT_AS, &limited));
    EXPECT_FALSE(unmap(used(2 * MiB), 2 * MiB));
    EXPECT_EQ(0u, kept().bytes);
    setrlimit(RLIMIT_AS, &before);
}

/* What is kept is not counted: it cannot be written to */
TEST_F(test_lazy, limit_of_data_is_left_to_the_program)
{
    int status = in_child([&]() {
        size_t before = data();
        char *ptr     = used(16 * MiB);
        return (data() < before + 16 * MiB) ? 1 : !unmap(ptr, 16 * MiB) ? 2 :
               (data() < before + MiB) ? 0 : 3;
    });
    expect_zero(status);
}

/* Kept blocks that are neighbours are one mapping. At the limit of mappings
 * (vm.max_map_count) only its ends can be unmapped, whatever is the oldest. */
TEST_F(test_lazy, lack_of_mappings_empties_the_pool)
{
    int status = in_child([&]() {
        constexpr int num = 8;
        std::vector<char*> blocks; /* From the highest on */
        long area = syscall(SYS_mmap, nullptr, num * MiB, PROT_NONE,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        syscall(SYS_munmap, area, num * MiB);
        for (int i = 0; i < num; ++i) {
            blocks.push_back(used());
        }
        /* Those in the middle are the oldest */
        for (int i : { 3, 4, 2, 5, 1, 6, 0, 7 }) {
            if (!unmap(blocks[i])) {
                return 1;
            }
        }
        if (blocks[0] - blocks[7] != 7 * (ptrdiff_t)MiB) {
            return 77;
        }

        /* Each is a mapping of its own: neighbours have other rights */
        for (int i = 0; syscall(SYS_mmap, nullptr, page,
                                (i & 1) ? PROT_READ : PROT_NONE,
                                MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != -1;
             ++i) {
            if (i > 4000000) {
                return 77; /* No limit that can be reached */
            }
        }
        if (errno != ENOMEM) {
            return 2;
        }
        void *ptr = mmap(nullptr, page, PROT_READ | PROT_WRITE,
                         MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        return (ptr == MAP_FAILED) ? 3 : (kept().bytes != 0) ? 4 : 0;
    });
    expect_zero(status, "no limit, or the blocks are no neighbours");
}

TEST_F(test_lazy, nothing_is_reused_where_new_memory_is_locked)
{
    int status = in_child([&]() {
        char *ptr = used(256 * KiB);
        if (!unmap(ptr, 256 * KiB)) {
            return 1;
        }
        if (syscall(SYS_mlockall, MCL_FUTURE) != 0) {
            return 77;
        }
        ptr = block(256 * KiB);
        if ((msync(ptr, 256 * KiB, MS_ASYNC | MS_INVALIDATE) != -1) ||
            (errno != EBUSY)) {
            return 2; /* Not locked */
        }
        return unmap(ptr, 256 * KiB) ? 3 : 0;
    });
    expect_zero(status, "mlockall() is not allowed here");
}

TEST_F(test_lazy, child_has_no_kept_block)
{
    start();
    char *ptr = used();
    ASSERT_TRUE(unmap(ptr));
    EXPECT_EQ(0, wait_status([&]() {
        /* Not mapped here, and nothing is kept without a monitor */
        bool is_gone = (msync(ptr, MiB, MS_ASYNC) == -1) && (errno == ENOMEM);
        char *own    = used();
        munmap(own, MiB);
        bool is_off = msync(own, MiB, MS_ASYNC) == -1;
        return is_gone ? (is_off ? 0 : 2) : 1;
    }));
    EXPECT_EQ((void*)ptr, (void*)block()) << "the parent goes on";
    memset(ptr, 1, MiB);
    expect_child([&]() { return ptr[MiB - 1] == 1; });
    EXPECT_TRUE(unmap(ptr));
}

TEST_F(test_lazy, bytes_are_bounded_and_the_oldest_leaves)
{
    params.lazy_limit = 16 * MiB;
    start();
    size_t before = resident();
    for (int i = 0; i < 60; ++i) {
        size_t length = (1 + (i % 7)) * MiB;
        EXPECT_TRUE(unmap(used(length), length));
        ASSERT_LE(kept().bytes, params.lazy_limit);
        ASSERT_LE(resident(), before + params.lazy_limit + 2 * MiB);
    }
    EXPECT_GT(resident(), before + params.lazy_limit / 2) << "the control";
    drop();
    EXPECT_LE(resident(), before + 2 * MiB);

    char *ptrs[3] = { used(7 * MiB), used(7 * MiB), used(7 * MiB) };
    for (char *ptr : ptrs) {
        EXPECT_TRUE(unmap(ptr, 7 * MiB));
    }
    EXPECT_EQ(14 * MiB, kept().bytes);
    EXPECT_EQ((void*)ptrs[2], (void*)block(7 * MiB)) << "the newest first";
    EXPECT_EQ((void*)ptrs[1], (void*)block(7 * MiB));
    EXPECT_EQ(0u, kept().bytes);
}

/* A call that maps other memory where a thread is about to unmap a block waits
 * for it: otherwise that thread would unmap the other memory */
TEST_F(test_lazy, addresses_are_free_when_they_are_needed)
{
    static std::atomic<int> hold;
    static char *ptr;
    std::atomic<bool> is_mapped_anew(false);
    const nprdma_listener_t listener = {
        [](void*, nprdma_span_t taken, nprdma_span_t) {
            if ((taken.start == (uintptr_t)ptr) && (hold == 1)) {
                for (hold = 2; hold == 2;) {
                    sched_yield();
                }
            }
        }, nullptr, nullptr, nullptr
    };
    start();
    ASSERT_EQ(UCS_OK, nprdma_events_add(&listener));
    ptr = used();
    ASSERT_TRUE(unmap(ptr));
    hold = 1;
    std::thread dropping([]() { drop(); });
    while (hold != 2) {
        sched_yield();
    }

    std::thread mapping([&]() {
        mmap(ptr, page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
             0);
        is_mapped_anew = true;
    });
    /* Also when it has had the CPU for much longer than it needs */
    clockid_t clock;
    timespec used = {};
    ASSERT_EQ(0, pthread_getcpuclockid(mapping.native_handle(), &clock));
    while (!is_mapped_anew && (clock_gettime(clock, &used) == 0) &&
           (used.tv_sec == 0) && (used.tv_nsec < 5000000)) {
        sched_yield();
    }
    EXPECT_FALSE(is_mapped_anew) << "before the block was unmapped";
    hold = 3;
    dropping.join();
    mapping.join();
    EXPECT_EQ(0, munmap(ptr, page));
    nprdma_events_remove(&listener);
}

/* What the kernel may take when memory is short, it takes here because it is
 * told to. It writes nothing to swap: the contents were given up. */
TEST_F(test_lazy, kernel_takes_kept_pages)
{
    size_t num_swapped = 0, num_present = 0;
    start();
    char *ptr = used();
    ASSERT_TRUE(unmap(ptr));
    ASSERT_EQ(0, syscall(SYS_madvise, ptr, MiB, 21 /* MADV_PAGEOUT */));
    for (size_t i = 0; i < MiB; i += page) {
        num_swapped += (pagemap(ptr + i) >> 62) & 1;
        num_present += is_present(ptr + i);
    }
    EXPECT_EQ(0u, num_swapped);
    /* Some may be on lists of a CPU, where the kernel does not find them */
    EXPECT_LT(num_present, MiB / page / 8);
    EXPECT_EQ(MiB, kept().bytes);
    ASSERT_EQ((void*)ptr, (void*)block());
    EXPECT_TRUE(is_zero(ptr, MiB));
    memset(ptr, 1, MiB);
    EXPECT_TRUE(unmap(ptr));
}
