/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "limited_group.h"
#include "test_monitor.h"

#include <ucm/events/nprdma_block.h>
#include <ucm/events/nprdma_events.h>
#include <ucm/events/nprdma_kept.h>
#include <ucm/events/nprdma_pagemap.h>

#include <algorithm>
#include <fstream>
#include <random>
#include <string>

#include <dlfcn.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/utsname.h>
#include <sys/wait.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLD
#define MADV_COLD 20
#endif
#ifndef PR_SET_VMA
#define PR_SET_VMA 0x53564d41
#endif
#ifndef SYS_mseal
#define SYS_mseal 462 /* Linux 6.10, on all processors */
#endif
#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif

namespace {
constexpr size_t KiB = 1024;
}

/* Memory that munmap() keeps. test_lazy.cc has the policy alone. */
class test_kept : public test_monitor {
protected:
    /* For the rest of a child */
    static void filter_calls(struct sock_filter *code, unsigned short length)
    {
        struct sock_fprog filter = { length, code };
        if ((prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) ||
            (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0)) {
            _exit(99);
        }
    }

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

    static char *block(size_t length = MiB)
    {
        void *ptr = mmap(nullptr, length, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        EXPECT_NE(MAP_FAILED, ptr);
        return (char*)ptr;
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

    static nprdma_lazy_stats_t kept()
    {
        nprdma_lazy_stats_t result;
        nprdma_kept_query(&result);
        return result;
    }

    static bool set_limit(int resource, rlim_t limit)
    {
        struct rlimit rlimit;
        getrlimit(resource, &rlimit);
        rlimit.rlim_cur = limit;
        return setrlimit(resource, &rlimit) == 0;
    }

    /* @return Whether munmap() has kept the block */
    static bool unmap(char *ptr, size_t length = MiB)
    {
        uint64_t before = kept().kept;
        EXPECT_EQ(0, munmap(ptr, length));
        return kept().kept == before + 1;
    }

    /* A child with a monitor of its own, before which @a before runs. @return
     * Its wait status. */
    template<typename F> int in_child(F func, void (*before)() = [](){})
    {
        int status = -1;
        pid_t pid  = fork();
        if (pid == 0) {
            before();
            nprdma_monitor_t *own = nullptr;
            if (nprdma_monitor_create(&params, &own) != UCS_OK) {
                _exit(100);
            }
            signal(SIGSEGV, SIG_DFL);
            _exit(func());
        }
        EXPECT_EQ(pid, waitpid(pid, &status, 0));
        return status;
    }

    /* @return What the log of a child with a monitor has at level warn */
    template<typename F> std::string warnings(F before)
    {
        FILE *file = tmpfile();
        std::string result;
        char line[1024];
        int status = -1;
        pid_t pid  = fork();
        if (pid == 0) {
            dup2(fileno(file), 1);
            dup2(fileno(file), 2);
            before();
            nprdma_monitor_t *own = nullptr;
            bool is_off = (nprdma_monitor_create(&params, &own) == UCS_OK) &&
                          !unmap(used());
            fflush(nullptr);
            _exit(is_off ? 0 : 1);
        }
        EXPECT_EQ(pid, waitpid(pid, &status, 0));
        rewind(file);
        while (fgets(line, sizeof(line), file) != nullptr) {
            result += line;
        }
        fclose(file);
        EXPECT_TRUE(WIFEXITED(status) && (WEXITSTATUS(status) == 0))
                << "munmap() has kept something " << status << result;
        EXPECT_EQ(1, std::count(result.begin(), result.end(), '\n')) << result;
        return result;
    }

    /* Busy while more calls are in progress than nprdma_events.c tells apart:
     * then all addresses count as blocked */
    ucs_status_t populate_all(nprdma_range_t *range)
    {
        ucs_status_t status;
        while ((status = populate(range)) == UCS_ERR_BUSY) {
            std::this_thread::yield();
        }
        return status;
    }

    /* Address ranges and rights, neighbours of equal rights as one */
    static std::string mappings()
    {
        std::ifstream file("/proc/self/maps");
        std::string line, result, rights;
        uint64_t start, end, last = 0;
        char perms[5];
        while (std::getline(file, line)) {
            if ((line.find("[heap]") == std::string::npos) &&
                (sscanf(line.c_str(), "%lx-%lx %4s", &start, &end, perms) ==
                 3)) {
                if ((start != last) || (rights != perms)) {
                    result += "-" + std::to_string(last) + "\n" +
                              std::to_string(start) + perms;
                }
                last   = end;
                rights = perms;
            }
        }
        return result;
    }

    /* PROCMAP_QUERY */
    static bool has_query()
    {
        struct utsname name;
        int major = 0, minor = 0;
        uname(&name);
        sscanf(name.release, "%d.%d", &major, &minor);
        return (major > 6) || ((major == 6) && (minor >= 11));
    }

    static bool is_mapped(char *ptr)
    {
        unsigned char presence;
        return mincore(ptr, page, &presence) == 0;
    }

    static size_t resident()
    {
        std::ifstream file("/proc/self/statm");
        size_t total = 0, pages = 0;
        file >> total >> pages;
        return pages * page;
    }
};

TEST_F(test_kept, comes_back_with_zeros)
{
    start();
    for (size_t length : { 128 * KiB, MiB, 8 * MiB, 8 * MiB + 4096 }) {
        char *ptr = used(length);
        ASSERT_TRUE(unmap(ptr, length)) << length;
        size_t bytes = kept().bytes;
        char *again  = block(length);
        EXPECT_EQ((void*)ptr, (void*)again);
        EXPECT_TRUE(is_zero(again, length));
        EXPECT_EQ(bytes - length, kept().bytes);
        memset(again, 1, length);
        ASSERT_TRUE(unmap(again, length));
    }
    EXPECT_EQ(kept().bytes, 17 * MiB + 128 * KiB + 4096);
    EXPECT_EQ(4u, nprdma_kept_drop());
    EXPECT_EQ(0u, kept().bytes);
}

TEST_F(test_kept, a_length_is_whole_pages)
{
    start();
    char *ptr = used(MiB);
    ASSERT_TRUE(unmap(ptr, MiB - 100));
    EXPECT_EQ((void*)ptr, (void*)block(MiB - 4000));
    EXPECT_TRUE(is_zero(ptr, MiB));
    munmap(ptr, MiB);
}

/* Pages that were never touched stay absent */
TEST_F(test_kept, stays_sparse)
{
    start();
    /* Advice to have no huge page would mean that it is not kept */
    ASSERT_EQ(0, prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0));
    char *ptr = block(8 * MiB);
    ptr[0] = ptr[4 * MiB] = ptr[8 * MiB - 1] = 1;
    EXPECT_EQ(0, ptr[2 * MiB]); /* The kernel's page of zeros */
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

/* Blocks of huge pages, which the policy of the system may give to others */
class test_kept_huge : public test_kept {
protected:
    static constexpr size_t huge = 2 * MiB;

    void SetUp() override
    {
        test_kept::SetUp();
        if (IsSkipped()) {
            return;
        }
        char *ptr = used_huge(2 * huge);
        bool has  = is_huge(ptr);
        munmap(ptr, 2 * huge);
        if (!has) {
            GTEST_SKIP() << "no huge pages of 2 MiB";
        }
        ptr = block(huge);
        has = is_scanned(ptr);
        munmap(ptr, huge);
        if (!has) {
            GTEST_SKIP() << "no PAGEMAP_SCAN (Linux 6.7)";
        }
    }

    /* By a call that no hook sees, because memory with advice is not kept */
    static char *block_huge(size_t length)
    {
        char *ptr = block(length);
        syscall(SYS_madvise, ptr, length, MADV_HUGEPAGE);
        return ptr;
    }

    static char *used_huge(size_t length)
    {
        char *ptr = block_huge(length);
        memset(ptr, 0x5a, length);
        return ptr;
    }

    /* @return 1 if a page of this process has a category, -1: no such call */
    static long scan(char *ptr, uint64_t category)
    {
        nprdma_pagemap_run_t run;
        nprdma_pagemap_scan_t scan = {};
        int fd             = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
        scan.size          = sizeof(scan);
        scan.start         = (uintptr_t)ptr;
        scan.end           = scan.start + page;
        scan.vec           = (uintptr_t)&run;
        scan.vec_len       = 1;
        scan.category_mask = scan.return_mask = category;
        long ret           = ioctl(fd, NPRDMA_PAGEMAP_SCAN, &scan);
        close(fd);
        return ret;
    }

    static bool is_scanned(char *ptr)
    {
        return scan(ptr, NPRDMA_PAGEMAP_HUGE) >= 0;
    }

    /* Whether its first huge page is one */
    static bool is_huge(char *ptr)
    {
        uintptr_t first = ((uintptr_t)ptr + huge - 1) & ~(huge - 1);
        return scan((char*)first, NPRDMA_PAGEMAP_HUGE) == 1;
    }

    /* A system without PAGEMAP_SCAN */
    static void refuse_scan()
    {
        struct sock_filter code[] = {
            BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
                     offsetof(struct seccomp_data, nr)),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ioctl, 0, 3),
            BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
                     offsetof(struct seccomp_data, args[1])),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, NPRDMA_PAGEMAP_SCAN, 0, 1),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOTTY),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
        };
        filter_calls(code, 6);
    }

    /* Resident bytes without those of files, page by page */
    static size_t counted()
    {
        std::ifstream file("/proc/self/smaps_rollup");
        std::string word;
        size_t kib = 0;
        while ((file >> word) && (word != "Anonymous:")) {
        }
        file >> kib;
        return kib * KiB;
    }

    /* A block with pages of each kind. @return 0, or which check has failed. */
    static int kinds()
    {
        constexpr size_t length = 16 * MiB;
        char *ptr   = block(length);
        char *start = (char*)(((uintptr_t)ptr + huge - 1) & ~(huge - 1));
        syscall(SYS_madvise, start, 2 * huge, MADV_NOHUGEPAGE);
        for (size_t i = 0; i < 512; i += 3) {
            start[i * page] = 1;                       /* Used, absent, */
            (void)*(volatile char*)(start + i * page + page); /* zero */
        }
        syscall(SYS_madvise, ptr, length, MADV_HUGEPAGE);
        memset(start + 2 * huge, 1, huge);             /* Used as a whole */
        (void)*(volatile char*)(start + 3 * huge);     /* Of zeros */
        start[5 * huge - 1] = 1;                       /* Used at its end */
        syscall(SYS_madvise, ptr, length, MADV_NOHUGEPAGE);
        if (!is_huge(start + 2 * huge) || !unmap(ptr, length)) {
            return 1;
        }
        size_t before = counted();
        if (block(length) != ptr) {
            return 2;
        }
        size_t after  = counted();
        bool has_huge   = is_huge(start + 2 * huge);
        bool has_absent = scan(start + 2 * page, NPRDMA_PAGEMAP_PRESENT) == 0;
        return !is_zero(ptr, length) ? 3 : (after > before + 64 * KiB) ? 4 :
               !has_huge ? 5 : !has_absent ? 6 : 0;
    }
};

TEST_F(test_kept_huge, comes_back_huge_with_zeros)
{
    start();
    for (size_t length : { 4 * MiB, 16 * MiB, 8 * MiB + 4096 }) {
        char *ptr = used_huge(length);
        ASSERT_TRUE(is_huge(ptr));
        ASSERT_TRUE(unmap(ptr, length)) << length;
        ASSERT_EQ((void*)ptr, (void*)block(length));
        EXPECT_TRUE(is_huge(ptr));
        EXPECT_TRUE(is_zero(ptr, length));
        munmap(ptr, length);
    }
}

/* Pages stay as they are: present or not, huge or not, of zeros or not */
TEST_F(test_kept_huge, pages_of_all_kinds)
{
    EXPECT_EQ(0, in_child(kinds));
}

TEST_F(test_kept_huge, pages_of_all_kinds_without_scan)
{
    EXPECT_EQ(0, in_child([]() {
        char *ptr     = block_huge(2 * huge);
        bool is_there = is_scanned(ptr);
        munmap(ptr, 2 * huge);
        return is_there ? 100 : 0;
    }, refuse_scan)) << "the control: it is refused";
    /* Nothing tells then whether there is a huge page */
    EXPECT_EQ(0, in_child([]() {
        char *ptr = used_huge(4 * MiB);
        return (unmap(ptr, 4 * MiB) && (block(4 * MiB) == ptr) &&
                is_zero(ptr, 4 * MiB)) ? 0 : 1;
    }, refuse_scan));
}

TEST_F(test_kept, access_after_munmap_is_a_fault)
{
    for (size_t length : { 128 * KiB, MiB, 32 * MiB }) {
        for (int advice : { -1, (int)MADV_WILLNEED, (int)MADV_POPULATE_WRITE,
                            (int)MADV_DONTNEED, (int)MADV_COLD }) {
            for (bool other_thread : { false, true }) {
                int status = in_child([&]() {
                    std::atomic<int> step(0);
                    char *ptr   = nullptr;
                    auto access = [&]() { *(volatile char*)(ptr + 4096) = 1; };
                    /* Begins first: its stack must not take the addresses */
                    std::thread thread([&]() {
                        for (step = 1; step != 2;) {
                        }
                        access();
                    });
                    while (step != 1) {
                    }
                    ptr = used(length);
                    if ((advice != -1) && (madvise(ptr, length, advice) != 0)) {
                        return 101;
                    }
                    bool is_harmless = (advice == -1) ||
                                       (advice == MADV_WILLNEED) ||
                                       (advice == MADV_POPULATE_WRITE);
                    if (unmap(ptr, length) != is_harmless) {
                        return 102;
                    }
                    if (other_thread) {
                        step = 2;
                        thread.join();
                    } else {
                        access();
                    }
                    return 0;
                });
                EXPECT_TRUE(WIFSIGNALED(status) &&
                            (WTERMSIG(status) == SIGSEGV))
                        << length << " " << advice << " " << status;
            }
        }
    }
}

TEST_F(test_kept, maps_are_as_without_it)
{
    start();
    const size_t lengths[] = { 256 * KiB, MiB, 3 * MiB, 8 * MiB };
    std::string before     = mappings();
    for (int i = 0; i < 3; ++i) {
        char *ptrs[4];
        for (int k = 0; k < 4; ++k) {
            ptrs[k] = used(lengths[k]);
        }
        for (int k : { 2, 0, 3, 1 }) {
            EXPECT_TRUE(unmap(ptrs[k], lengths[k]));
        }
    }
    EXPECT_NE(before, mappings()) << "the control: blocks are kept";
    EXPECT_EQ(4u, nprdma_kept_drop());
    EXPECT_EQ(before, mappings());

    char *ptr = used();
    ASSERT_TRUE(unmap(ptr));
    stop();
    EXPECT_EQ(0u, kept().bytes);
    EXPECT_EQ(-1, msync(ptr, page, MS_ASYNC)) << "still mapped";
}

/* As a munmap() without it: no bit, no way to get one */
TEST_F(test_kept, kept_pages_are_retired)
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
    EXPECT_EQ(UCS_ERR_INVALID_ADDR, populate(&range));
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

/* The module hears of it as well, and takes the pages before they are kept.
 * A block that comes back has its region, and its pages are new to it. */
TEST_F(test_kept, module_takes_kept_pages)
{
    if (!on_kernel()) {
        GTEST_SKIP() << "needs the kernel module, in the guest "
                        "(NPRDMA_TEST_BACKEND=kernel)";
    }
    nprdma_range_t range, again;
    params.drain = nullptr; /* The NIC uses the windows */
    start();
    char *ptr = used();
    ASSERT_EQ(UCS_OK, reg(&range, ptr, MiB));
    for (int i = 0; i < 3; ++i) {
        ASSERT_EQ(UCS_OK, populate(&range, NPRDMA_POPULATE_WRITE));
        nprdma_monitor_stats_t before = stats();
        ASSERT_TRUE(unmap(ptr));
        EXPECT_GE(stats().kernel_events, before.kernel_events + 1);
        EXPECT_GE(stats().kernel_invalidated,
                  before.kernel_invalidated + MiB / page);
        EXPECT_EQ(0, all_bits(&range, ptr, MiB));

        ASSERT_EQ((void*)ptr, (void*)block());
        EXPECT_TRUE(is_zero(ptr, MiB));
        ASSERT_EQ(UCS_OK, reg(&again, ptr, MiB));
        EXPECT_EQ(range.region, again.region);
        ASSERT_EQ(UCS_OK, populate(&again, NPRDMA_POPULATE_WRITE));
        EXPECT_EQ(3, all_bits(&again, ptr, MiB));
        unreg(&range);
        range = again;
        memset(ptr, 0x5a, MiB);
    }

    /* Given back, by a call that no hook sees */
    ASSERT_TRUE(unmap(ptr));
    ASSERT_EQ(1u, nprdma_kept_drop());
    raw_mmap(ptr, MiB);
    EXPECT_EQ(0, all_bits(&range, ptr, MiB));
    raw_munmap(ptr, MiB);
    unreg(&range);
}

/* The NIC has finished while the memory is still what it was */
TEST_F(test_kept, bits_then_drain_then_kept)
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

/* A registration that begins while memory is kept shows nothing of it */
TEST_F(test_kept, registered_while_kept)
{
    nprdma_range_t range;
    start();
    char *ptr = used();
    ASSERT_TRUE(unmap(ptr));
    ASSERT_EQ(UCS_OK, reg(&range, ptr, MiB));
    EXPECT_EQ(UCS_ERR_INVALID_ADDR, populate(&range));
    drains = 0;
    ASSERT_EQ((void*)ptr, (void*)block());
    EXPECT_EQ(0, all_bits(&range, ptr, MiB)) << "during the zeroing";
    EXPECT_EQ(0, drains);
    EXPECT_EQ(UCS_OK, populate(&range));
    munmap(ptr, MiB);
    ASSERT_EQ(1u, nprdma_kept_drop());
    EXPECT_EQ(0, all_bits(&range, ptr, MiB));
    unreg(&range);
    stop();
}

namespace {
struct change {
    const char *name;
    bool       is_kept;
    bool       by_query; /* Is found by PROCMAP_QUERY, else put right */
    bool       (*apply)(char *ptr); /* To a block of 1 MiB; false: cannot */
};

void PrintTo(const change &what, std::ostream *stream)
{
    *stream << what.name;
}

/* By the system call, since ThreadSanitizer leaves mlock() out */
bool lock(char *ptr, size_t length)
{
    return syscall(SYS_mlock, ptr, length) == 0;
}

/* mbind() of one node, which need not be in libnuma's headers */
bool bind(char *ptr, size_t length)
{
    unsigned long node = 1;
    return syscall(SYS_mbind, ptr, length, 2 /* MPOL_BIND */, &node, 64, 0) ==
           0;
}

bool key(char *ptr, size_t length)
{
    int pkey = pkey_alloc(0, 0);
    return (pkey >= 0) &&
           (pkey_mprotect(ptr, length, PROT_READ | PROT_WRITE, pkey) == 0);
}

const change changes[] = {
    { "nothing", true, false, [](char*) { return true; } },
    { "mlock_part", false, false,
      [](char *ptr) { return lock(ptr, 8192); } },
    { "mlock_all", false, false,
      [](char *ptr) { return lock(ptr, MiB); } },
    { "mprotect_part", false, true,
      [](char *ptr) { return mprotect(ptr, 8192, PROT_READ) == 0; } },
    { "mprotect_all", false, true,
      [](char *ptr) { return mprotect(ptr, MiB, PROT_NONE) == 0; } },
    { "mbind_part", false, true, [](char *ptr) { return bind(ptr, 8192); } },
    { "mbind_all", true, false, [](char *ptr) { return bind(ptr, MiB); } },
    { "pkey_part", false, true, [](char *ptr) { return key(ptr, 8192); } },
    { "pkey_all", true, false, [](char *ptr) { return key(ptr, MiB); } },
    { "name", false, true,
      [](char *ptr) { return prctl(PR_SET_VMA, 0, ptr, MiB, "name") == 0; } },
    { "dontfork", false, false,
      [](char *ptr) { return madvise(ptr, MiB, MADV_DONTFORK) == 0; } },
    { "dontdump", false, false,
      [](char *ptr) { return madvise(ptr, 4096, MADV_DONTDUMP) == 0; } },
    { "wipeonfork", false, false,
      [](char *ptr) { return madvise(ptr, MiB, MADV_WIPEONFORK) == 0; } },
    { "mergeable", false, false,
      [](char *ptr) { return madvise(ptr, MiB, MADV_MERGEABLE) == 0; } },
    { "hugepage", false, false,
      [](char *ptr) { return madvise(ptr, MiB, MADV_HUGEPAGE) == 0; } },
    { "nohugepage", false, false,
      [](char *ptr) { return madvise(ptr, MiB, MADV_NOHUGEPAGE) == 0; } },
    { "dontneed", false, false,
      [](char *ptr) { return madvise(ptr, MiB, MADV_DONTNEED) == 0; } },
    { "munmap_part", false, false,
      [](char *ptr) { return munmap(ptr + 4096, 4096) == 0; } },
    { "raw_munmap_part", false, false,
      [](char *ptr) { return syscall(SYS_munmap, ptr + 4096, 4096) == 0; } },
    { "mremap_part", false, false,
      [](char *ptr) {
          void *moved = mremap(ptr + 4096, 4096, 8192, MREMAP_MAYMOVE);
          return (moved != MAP_FAILED) && (munmap(moved, 8192) == 0);
      } },
    { "file_in_the_middle", false, false,
      [](char *ptr) {
          int fd      = open("/proc/self/exe", O_RDONLY);
          void *there = mmap(ptr + 8192, 4096, PROT_READ,
                             MAP_PRIVATE | MAP_FIXED, fd, 0);
          close(fd);
          return there == ptr + 8192;
      } },
    { "file_unseen", false, true,
      [](char *ptr) {
          int fd     = open("/proc/self/exe", O_RDONLY);
          long there = syscall(SYS_mmap, ptr, MiB, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_FIXED, fd, 0);
          close(fd);
          return there == (long)ptr;
      } },
};
}

class test_kept_changes : public test_kept,
                          public ::testing::WithParamInterface<change> {
};

TEST_P(test_kept_changes, what_comes_back_is_new)
{
    start();
    char *ptr = used();
    if (!GetParam().apply(ptr)) {
        GTEST_SKIP() << "this kernel or processor cannot: " << strerror(errno);
    }
    bool is_kept = unmap(ptr);
    if (!GetParam().by_query || has_query()) {
        EXPECT_EQ(GetParam().is_kept, is_kept);
    }

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
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        _exit((again[0] == 1) && (again[MiB - 1] == 1) ? 0 : 1);
    }
    ASSERT_EQ(pid, waitpid(pid, &status, 0));
    EXPECT_TRUE(WIFEXITED(status) && (WEXITSTATUS(status) == 0)) << status;
    munmap(again, MiB);
}

INSTANTIATE_TEST_SUITE_P(all, test_kept_changes, ::testing::ValuesIn(changes),
                         [](const auto &info) { return info.param.name; });

/* mseal(): munmap() fails, and nothing of the memory has changed. In a child,
 * since such memory never goes. */
TEST_F(test_kept, sealed_memory_stays)
{
    for (size_t length : { (size_t)0, (size_t)page, (size_t)MiB }) {
        int status       = in_child([&]() {
            char *ptr = used();
            if ((length > 0) &&
                (syscall(SYS_mseal, ptr + MiB - length, length, 0) != 0)) {
                return (errno == ENOSYS) ? 77 : 1;
            }
            errno   = 0;
            int ret = munmap(ptr, MiB);
            if (length == 0) { /* The control */
                return ((ret == 0) && (kept().bytes == MiB)) ? 0 : 2;
            }
            if ((ret != -1) || (errno != EPERM) || (kept().kept != 0)) {
                return 3;
            }
            for (size_t i = 0; i < MiB; ++i) {
                if (ptr[i] != 0x5a) {
                    return 4;
                }
            }
            memset(ptr, 1, MiB);
            /* It is never given to another mapping */
            for (int i = 0; i < 3; ++i) {
                char *other = used();
                if ((other < ptr + MiB) && (ptr < other + MiB)) {
                    return 5;
                }
                if (!unmap(other)) {
                    return 6;
                }
            }
            return ((ptr[0] == 1) && (munmap(ptr, MiB) == -1)) ? 0 : 7;
        });
        ASSERT_TRUE(WIFEXITED(status)) << status;
        if (WEXITSTATUS(status) == 77) {
            GTEST_SKIP() << "no mseal(): Linux 6.10";
        }
        EXPECT_EQ(0, WEXITSTATUS(status)) << length;
    }
}

/* A program that seals what it has unmapped: as it is mapped, the kernel does
 * so. The pool must not wait for ever to get rid of it. */
TEST_F(test_kept, sealed_while_kept)
{
    params.lazy_limit = 2 * MiB;
    for (bool is_dropped : { false, true }) {
        int status = in_child([&]() {
            char *ptr = used();
            if (!unmap(ptr)) {
                return 1;
            }
            if (syscall(SYS_mseal, ptr, MiB, 0) != 0) {
                return (errno == ENOSYS) ? 77 : 2;
            }
            if (is_dropped) {
                nprdma_kept_drop();
            }
            char *other = block();
            if ((other == ptr) || !is_zero(other, MiB) ||
                (kept().bytes != 0)) {
                return 3;
            }
            /* There is room again for as much as before */
            char *third = used();
            return (unmap(other) && unmap(third) && (kept().bytes == 2 * MiB) &&
                    (nprdma_kept_drop() == 2)) ? 0 : 4;
        });
        ASSERT_TRUE(WIFEXITED(status)) << status;
        if (WEXITSTATUS(status) == 77) {
            GTEST_SKIP() << "no mseal(): Linux 6.10";
        }
        EXPECT_EQ(0, WEXITSTATUS(status)) << is_dropped;
    }
}

/* A userfaultfd of the application, which waits for events of its memory */
class test_kept_watched : public test_kept {
protected:
    void TearDown() override
    {
        if (uffd >= 0) {
            close(uffd);
        }
        test_kept::TearDown();
    }

    bool watch()
    {
        struct uffdio_api api = {};
        uffd = (int)syscall(SYS_userfaultfd,
                            O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);
        api.api      = UFFD_API;
        api.features = UFFD_FEATURE_EVENT_UNMAP;
        return (uffd >= 0) && (ioctl(uffd, UFFDIO_API, &api) == 0);
    }

    int watch(char *ptr, size_t length,
              uint64_t mode = UFFDIO_REGISTER_MODE_MISSING)
    {
        struct uffdio_register range = {};
        range.range.start = (uintptr_t)ptr;
        range.range.len   = length;
        range.mode        = mode;
        return ioctl(uffd, UFFDIO_REGISTER, &range);
    }

    /* Unmap a block. @return The event that came meanwhile, empty if none */
    struct uffd_msg unmap_watched(char *ptr)
    {
        struct uffd_msg msg = {};
        std::atomic<bool> done(false);
        std::thread reader([&]() {
            struct pollfd poll_fd = { uffd, POLLIN, 0 };
            while ((read(uffd, &msg, sizeof(msg)) != sizeof(msg)) && !done) {
                poll(&poll_fd, 1, 10);
            }
        });
        EXPECT_EQ(0, munmap(ptr, MiB));
        done = true;
        reader.join();
        return msg;
    }

    int uffd = -1;
};

TEST_F(test_kept_watched, is_left_to_the_kernel)
{
    if (!watch()) {
        GTEST_SKIP() << "no userfaultfd: " << strerror(errno);
    }
    struct range {
        size_t start, length;
    };
    start();
    for (auto &part : { range{ 0, MiB }, range{ 0, page },
                        range{ MiB - page, page },
                        range{ MiB / 2, 16 * page } }) {
        char *ptr = used();
        ASSERT_EQ(0, watch(ptr + part.start, part.length));
        uint64_t before = kept().kept;
        auto msg        = unmap_watched(ptr);
        EXPECT_EQ(before, kept().kept);
        EXPECT_EQ(UFFD_EVENT_UNMAP, msg.event);
        /* The kernel reports all that one call unmaps */
        EXPECT_EQ((uintptr_t)ptr, msg.arg.remove.start);
        EXPECT_EQ((uintptr_t)ptr + MiB, msg.arg.remove.end);
        EXPECT_EQ(-1, msync(ptr, MiB, MS_ASYNC)) << "still mapped";
    }

    /* Whatever it is watched for; but not for what is watched beside it */
    char *written = used();
    char *ptr     = used();
    ASSERT_EQ(0, watch(written, MiB, UFFDIO_REGISTER_MODE_WP));
    EXPECT_TRUE(unmap(ptr));
    EXPECT_EQ(UFFD_EVENT_UNMAP, unmap_watched(written).event);
    ASSERT_EQ((void*)ptr, (void*)block());

    /* The control: as soon as it is not watched any more it is kept */
    ASSERT_EQ(0, watch(ptr, MiB));
    struct uffdio_range range = { (uintptr_t)ptr, MiB };
    ASSERT_EQ(0, ioctl(uffd, UFFDIO_UNREGISTER, &range));
    uint64_t before = kept().kept;
    EXPECT_EQ(0, unmap_watched(ptr).event);
    EXPECT_EQ(before + 1, kept().kept);
    ASSERT_EQ((void*)ptr, (void*)block());
    EXPECT_TRUE(is_zero(ptr, MiB));
    ASSERT_EQ(0, watch(ptr, MiB)) << "nothing of ours watches it";
    EXPECT_EQ(UFFD_EVENT_UNMAP, unmap_watched(ptr).event);
    stop();

    ptr = used();
    start();
    munmap(ptr, MiB);
    ptr = used();
    ASSERT_EQ(0, watch(ptr, MiB));
    close(uffd);
    uffd = -1;
    EXPECT_TRUE(unmap(ptr)) << "a closed descriptor watches nothing";
}

/* UCX_NPRDMA_LAZY_UNMAP is set, and it cannot work: one line says why */
TEST_F(test_kept, new_memory_is_locked)
{
    if (syscall(SYS_mlockall, MCL_FUTURE) != 0) {
        GTEST_SKIP() << "mlockall() is not allowed here";
    }
    syscall(SYS_munlockall);
    std::string log = warnings([]() { syscall(SYS_mlockall, MCL_FUTURE); });
    EXPECT_NE(std::string::npos,
              log.find("UCX_NPRDMA_LAZY_UNMAP has no effect")) << log;
    EXPECT_NE(std::string::npos, log.find("mlockall")) << log;
}

/* A filter of system calls that refuses a change of protection */
TEST_F(test_kept, protection_is_refused)
{
    std::string log = warnings([]() {
        struct sock_filter code[] = {
            BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
                     offsetof(struct seccomp_data, nr)),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mprotect, 1, 0),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pkey_mprotect, 0, 1),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
        };
        filter_calls(code, 5);
    });
    EXPECT_NE(std::string::npos, log.find("the kernel refuses")) << log;
}

/* As a library does that patches mmap() after UCM: its first bytes are those of
 * the file again */
static void disconnect(const char *name)
{
    constexpr size_t size = 32;
    char *function        = (char*)dlsym(RTLD_NEXT, name);
    std::ifstream maps("/proc/self/maps");
    std::string line, path;
    uintptr_t start, end, offset;
    while (std::getline(maps, line)) {
        if ((sscanf(line.c_str(), "%lx-%lx %*s %lx", &start, &end, &offset) ==
             3) &&
            (start <= (uintptr_t)function) && ((uintptr_t)function < end)) {
            path = line.substr(line.find('/'));
            break;
        }
    }
    char bytes[size] = {};
    std::ifstream file(path, std::ios::binary);
    file.seekg((std::streamoff)((uintptr_t)function - start + offset));
    file.read(bytes, size);
    char *first = (char*)((uintptr_t)function & ~(uintptr_t)4095);
    if (!file || (syscall(SYS_mprotect, first, 8192,
                          PROT_READ | PROT_WRITE | PROT_EXEC) != 0)) {
        _exit(99);
    }
    memcpy(function, bytes, size);
    syscall(SYS_mprotect, first, 8192, PROT_READ | PROT_EXEC);
}

TEST_F(test_kept, mmap_is_not_reported)
{
    start(); /* The child inherits the hooks */
    std::string log = warnings([]() { disconnect("mmap"); });
    EXPECT_NE(std::string::npos,
              log.find("does not report mmap() and munmap()")) << log;
}

/* A call that takes the addresses of a kept block finds them free, and nothing
 * unmaps them afterwards */
TEST_F(test_kept, other_memory_over_a_block)
{
    start();
    int shmid = shmget(IPC_PRIVATE, MiB, IPC_CREAT | 0600);
    ASSERT_NE(-1, shmid);
    const std::vector<std::function<void*(char*)>> calls = {
        [](char *ptr) {
            return mmap(ptr, MiB, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        },
        [](char *ptr) {
            return mmap(ptr + 4096, 4096, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        },
        [](char *ptr) {
            return mmap(ptr, MiB, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1,
                        0);
        },
        [](char *ptr) { /* A hint is taken where it can be */
            return mmap(ptr, MiB, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        },
        [&](char *ptr) { return shmat(shmid, ptr, 0); },
        [&](char *ptr) { return shmat(shmid, ptr, SHM_REMAP); },
    };
    for (auto &call : calls) {
        char *ptr = used();
        ASSERT_TRUE(unmap(ptr));
        char *there = (char*)call(ptr);
        ASSERT_NE(MAP_FAILED, (void*)there) << strerror(errno);
        ASSERT_EQ((void*)((there == ptr) ? ptr : ptr + 4096), (void*)there);
        EXPECT_EQ(0u, kept().bytes);
        memset(there, 3, 4096);
        EXPECT_EQ(0u, nprdma_kept_drop());
        char *other = block();
        EXPECT_EQ(3, there[4095]);
        munmap(other, MiB);
        nprdma_kept_drop();
        if (&call >= &calls[4]) {
            EXPECT_EQ(0, shmdt(there));
        } else {
            EXPECT_EQ(0, munmap(there, (there == ptr) ? MiB : 4096));
        }
        nprdma_kept_drop();
    }
    shmctl(shmid, IPC_RMID, nullptr);
}

TEST_F(test_kept, mremap_over_a_block)
{
    if (!has_query()) {
        GTEST_SKIP() << "Linux before 6.11 does not tell";
    }
    start();
    char *source = (char*)mmap(nullptr, MiB, PROT_READ | PROT_WRITE,
                               MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    char *ptr    = used();
    ASSERT_TRUE(unmap(ptr));
    /* By the system call, as UCX before 1.15 passes no target; then a mapping
     * that nothing has seen is where the block was */
    ASSERT_EQ((long)ptr, syscall(SYS_mremap, source, MiB, MiB,
                                 MREMAP_MAYMOVE | MREMAP_FIXED, ptr));
    memset(ptr, 3, MiB);
    char *other = block();
    EXPECT_NE((void*)ptr, (void*)other);
    EXPECT_EQ(3, ptr[0]);
    EXPECT_EQ(0u, nprdma_kept_drop());
    EXPECT_EQ(3, ptr[0]);
    munmap(other, MiB);
    munmap(ptr, MiB);
}

/* To unmap or advise what is not mapped is not an error of ours */
TEST_F(test_kept, calls_on_a_kept_block)
{
    start();
    char *ptr = used();
    ASSERT_TRUE(unmap(ptr));
    EXPECT_EQ(0, munmap(ptr, MiB));
    EXPECT_EQ(0u, kept().bytes);
    EXPECT_NE((void*)nullptr, (void*)block());

    ptr = used();
    ASSERT_TRUE(unmap(ptr));
    EXPECT_EQ(-1, madvise(ptr, 4096, MADV_DONTNEED));
    EXPECT_EQ(ENOMEM, errno);
    EXPECT_EQ(0u, kept().bytes);

    errno = 77;
    ptr   = used();
    ASSERT_TRUE(unmap(ptr));
    ptr = block();
    munmap(ptr, MiB);
    EXPECT_EQ(77, errno) << "of calls that have succeeded";
    EXPECT_EQ(-1, munmap(ptr + 1, MiB));
    EXPECT_EQ(EINVAL, errno);
    EXPECT_EQ(-1, munmap(ptr, 0));
    EXPECT_EQ(EINVAL, errno);
}

/* No hook sees the calls by which the dynamic linker maps memory, so under a
 * limit nothing more is kept */
TEST_F(test_kept, nothing_is_kept_under_a_limit)
{
    start();
    for (int resource : { RLIMIT_AS, RLIMIT_DATA }) {
        ASSERT_TRUE(unmap(used())) << resource;
        ASSERT_TRUE(set_limit(resource, rlim_t(1) << 46));
        EXPECT_FALSE(unmap(used(2 * MiB), 2 * MiB)) << resource;
        EXPECT_EQ(MiB, kept().bytes) << resource;
        set_limit(resource, RLIM_INFINITY);
        munmap(block(), MiB);
    }
}

/* The pool never makes a call fail for lack of memory */
TEST_F(test_kept, lack_of_addresses_empties_the_pool)
{
    int status = in_child([&]() {
        size_t pages = 0;
        for (int i = 0; i < 2; ++i) {
            if (!unmap(used(16 * MiB), 16 * MiB)) {
                return 1;
            }
        }
        std::ifstream("/proc/self/statm") >> pages;
        const rlim_t most = pages * page + 8 * MiB;
        if (!set_limit(RLIMIT_AS, most)) {
            return 2;
        }
        void *ptr = mmap(nullptr, 24 * MiB, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if ((ptr == MAP_FAILED) || (kept().bytes != 0)) {
            return 3;
        }
        /* Nothing is kept under a limit */
        set_limit(RLIMIT_AS, RLIM_INFINITY);
        munmap(ptr, 24 * MiB);
        if (kept().bytes != 24 * MiB) {
            return 4;
        }
        set_limit(RLIMIT_AS, most);
        void *small = mmap(nullptr, 4096, PROT_READ | PROT_WRITE,
                           MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        ptr = mremap(small, 4096, 24 * MiB, MREMAP_MAYMOVE);
        if ((ptr == MAP_FAILED) || (kept().bytes != 0)) {
            return 5;
        }
        munmap(ptr, 24 * MiB);
        set_limit(RLIMIT_AS, RLIM_INFINITY);
        if (!unmap(used(24 * MiB), 24 * MiB)) {
            return 6;
        }
        set_limit(RLIMIT_AS, most);
        if ((sbrk(24 * MiB) == (void*)-1) || (kept().bytes != 0)) {
            return 7;
        }
        sbrk(-(intptr_t)(24 * MiB));
        /* Without a pool it is still an error, as it should be */
        ptr = mmap(nullptr, 64 * MiB, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        return ((ptr == MAP_FAILED) && (errno == ENOMEM)) ? 0 : 8;
    });
    EXPECT_TRUE(WIFEXITED(status) && (WEXITSTATUS(status) == 0)) << status;
}

/* Kept blocks that are neighbours are one mapping. At the limit of mappings
 * (vm.max_map_count) only its ends can be unmapped, whatever is the oldest. */
TEST_F(test_kept, lack_of_mappings_empties_the_pool)
{
    int status = in_child([&]() {
        constexpr int num = 8;
        char *area = (char*)syscall(SYS_mmap, nullptr, num * MiB, PROT_NONE,
                                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        syscall(SYS_munmap, area, num * MiB);
        std::vector<char*> blocks;
        for (int i = 0; i < num; ++i) {
            blocks.push_back(used());
        }
        std::sort(blocks.begin(), blocks.end());
        for (int i : { 3, 4, 2, 5, 1, 6, 0, 7 }) {
            if (!unmap(blocks[i])) {
                return 1;
            }
        }
        if (blocks[7] - blocks[0] != 7 * (ptrdiff_t)MiB) {
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
    ASSERT_TRUE(WIFEXITED(status)) << status;
    if (WEXITSTATUS(status) == 77) {
        GTEST_SKIP() << "no limit, or the blocks are no neighbours";
    }
    EXPECT_EQ(0, WEXITSTATUS(status));
}

namespace {
struct storm_block {
    char   *ptr = nullptr;
    size_t length;
};

/* Whether all bytes are @a fill */
bool is_filled(const char *ptr, size_t length, char fill)
{
    return std::count(ptr, ptr + length, fill) == (ptrdiff_t)length;
}

char *map_private(char *where, size_t length, int flags = 0)
{
    void *ptr = mmap(where, length, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
    return (ptr == MAP_FAILED) ? nullptr : (char*)ptr;
}

/* Unmap a block, or what has become of it. @return Whether all is right. */
bool end_block(storm_block &block, char fill, unsigned how)
{
    size_t length = block.length;
    char *ptr     = block.ptr;

    switch (how) {
    case 0: /* A hole, then the rest. The hole is not ours any more. */
        return (munmap(ptr + 64 * KiB, 32 * KiB) == 0) &&
               (munmap(ptr, 64 * KiB) == 0) &&
               (munmap(ptr + 96 * KiB, length - 96 * KiB) == 0);
    case 1:
        return (mprotect(ptr, 4096, PROT_READ) == 0) &&
               (munmap(ptr, length) == 0);
    case 2:
        madvise(ptr, length, MADV_HUGEPAGE);
        return munmap(ptr, length) == 0;
    case 3: /* Others over it */
        return (map_private(ptr, length, MAP_FIXED) == ptr) &&
               is_filled(ptr, length, 0) && (munmap(ptr, length) == 0);
    case 4: /* It grows, and goes elsewhere */
        ptr = (char*)mremap(ptr, length, 2 * length, MREMAP_MAYMOVE);
        return (ptr != MAP_FAILED) && is_filled(ptr, length, fill) &&
               is_filled(ptr + length, length, 0) &&
               (munmap(ptr, 2 * length) == 0);
    case 5: /* Its own address as a hint */
        if (munmap(ptr, length) != 0) {
            return false;
        }
        ptr = map_private(ptr, length);
        return (ptr != nullptr) && is_filled(ptr, length, 0) &&
               (munmap(ptr, length) == 0);
    default:
        return munmap(ptr, length) == 0;
    }
}

/* What a program does to its memory, on up to four blocks. @return The number
 * of times that something was not as it should be. */
int storm(unsigned seed, int rounds)
{
    const char fill = (char)seed;
    std::mt19937 random(seed);
    storm_block blocks[4];
    int wrong = 0;

    for (int i = 0; i < rounds; ++i) {
        auto &block = blocks[random() % 4];
        if (block.ptr == nullptr) {
            block.length = (1 + random() % 6) * 128 * KiB;
            block.ptr    = map_private(nullptr, block.length);
            if (block.ptr == nullptr) {
                return wrong + 1;
            }
            wrong += !is_filled(block.ptr, block.length, 0);
            memset(block.ptr, fill, block.length);
        } else {
            wrong += !is_filled(block.ptr, block.length, fill);
            wrong += !end_block(block, fill, random() % 8);
            block.ptr = nullptr;
        }
    }
    for (auto &block : blocks) {
        if (block.ptr != nullptr) {
            wrong += !end_block(block, fill, 7);
        }
    }
    return wrong;
}
}

/* Threads, children, a signal handler that interrupts the hooks, and little
 * room. A block that comes back is zero, and nobody else has it. */
TEST_F(test_kept, storm)
{
    /* Emulated CPUs take long for it */
    const int rounds = on_kernel() ? 100 : 400;
    int status       = in_child([&]() {
        size_t pages = 0;
        std::ifstream("/proc/self/statm") >> pages;
        alarm(200);
        signal(SIGVTALRM, [](int) {
            int saved = errno;
            void *ptr = mmap(nullptr, 256 * KiB, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            if (ptr != MAP_FAILED) {
                *(volatile char*)ptr = 1;
                munmap(ptr, 256 * KiB);
            }
            errno = saved;
        });
        struct itimerval timer = { { 0, 1000 }, { 0, 1000 } };
        setitimer(ITIMER_VIRTUAL, &timer, nullptr);

        std::atomic<int> wrong(0);
        std::vector<std::thread> threads;
        for (int t = 0; t < 6; ++t) {
            threads.emplace_back([&, t]() { wrong += storm(t + 1, rounds); });
        }
        for (int i = 0; i < 20; ++i) {
            /* Without a limit blocks are kept, and with it they are missing */
            set_limit(RLIMIT_AS, (i & 1) ? pages * page + 700 * MiB :
                                           RLIM_INFINITY);
            int result = -1;
            pid_t pid  = fork();
            if (pid == 0) {
                alarm(60);
                _exit((storm(99, 10) == 0) ? 0 : 1);
            }
            wrong += (waitpid(pid, &result, 0) != pid) || (result != 0);
        }
        for (auto &thread : threads) {
            thread.join();
        }
        return (wrong != 0) ? 1 : (kept().reused == 0) ? 2 : 0;
    });
    EXPECT_TRUE(WIFEXITED(status) && (WEXITSTATUS(status) == 0)) << status;
}

TEST_F(test_kept, nothing_is_reused_where_new_memory_is_locked)
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
    ASSERT_TRUE(WIFEXITED(status)) << status;
    if (WEXITSTATUS(status) == 77) {
        GTEST_SKIP() << "mlockall() is not allowed here";
    }
    EXPECT_EQ(0, WEXITSTATUS(status));
}

TEST_F(test_kept, fork_drops_the_pool)
{
    start();
    char *ptr = used();
    ASSERT_TRUE(unmap(ptr));
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        /* Not mapped here, and nothing is kept without a monitor */
        bool is_gone = (msync(ptr, MiB, MS_ASYNC) == -1) && (errno == ENOMEM);
        char *own    = used();
        munmap(own, MiB);
        bool is_off = (msync(own, MiB, MS_ASYNC) == -1) && (kept().kept == 0);
        _exit(is_gone ? (is_off ? 0 : 2) : 1);
    }
    ASSERT_EQ(pid, waitpid(pid, &status, 0));
    EXPECT_TRUE(WIFEXITED(status) && (WEXITSTATUS(status) == 0)) << status;
    EXPECT_EQ(0u, kept().bytes);
    EXPECT_TRUE(unmap(used())) << "the parent goes on";
}

TEST_F(test_kept, resident_memory_is_within_the_limit)
{
    params.lazy_limit = 16 * MiB;
    start();
    size_t before = resident();
    for (int i = 0; i < 60; ++i) {
        size_t length = (1 + (i % 7)) * MiB;
        unmap(used(length), length);
        ASSERT_LE(kept().bytes, params.lazy_limit);
        ASSERT_LE(resident(), before + params.lazy_limit + 2 * MiB);
    }
    EXPECT_GT(resident(), before + params.lazy_limit / 2) << "the control";
    nprdma_kept_drop();
    EXPECT_LE(resident(), before + 2 * MiB);
}

/* What the kernel may take when memory is short, it takes here because it is
 * told to. It writes nothing to swap: the contents were given up. */
TEST_F(test_kept, kernel_takes_kept_pages)
{
    const uint64_t swapped = UINT64_C(1) << 62, present = UINT64_C(1) << 63;
    start();
    char *ptr = used();
    ASSERT_TRUE(unmap(ptr));
    ASSERT_EQ(0, syscall(SYS_madvise, ptr, MiB, 21 /* MADV_PAGEOUT */));
    std::vector<uint64_t> words(MiB / page);
    int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    EXPECT_EQ((ssize_t)(words.size() * sizeof(words[0])),
              pread(fd, words.data(), words.size() * sizeof(words[0]),
                    (uintptr_t)ptr / page * sizeof(words[0])));
    close(fd);
    auto is_there = [](uint64_t word) { return (word & present) != 0; };
    auto is_swapped = [](uint64_t word) { return (word & swapped) != 0; };
    EXPECT_EQ(0, std::count_if(words.begin(), words.end(), is_swapped));
    /* Some may be on lists of a CPU, where the kernel does not find them */
    EXPECT_LT(std::count_if(words.begin(), words.end(), is_there),
              (long)words.size() / 8);
    EXPECT_EQ(MiB, kept().bytes);
    ASSERT_EQ((void*)ptr, (void*)block());
    EXPECT_TRUE(is_zero(ptr, MiB));
    memset(ptr, 1, MiB);
    EXPECT_TRUE(unmap(ptr));
}

TEST_F(test_kept, parameters)
{
    for (size_t size : { (size_t)1, 256 * KiB - 1, ((size_t)1 << 40) + 1 }) {
        params.lazy_limit = size;
        EXPECT_EQ(UCS_ERR_INVALID_PARAM,
                  nprdma_monitor_create(&params, &monitor));
    }
    params.lazy_limit = 256 * KiB;
    start();
    EXPECT_TRUE(unmap(used(128 * KiB), 128 * KiB));
    EXPECT_FALSE(unmap(used(128 * KiB + 4096), 128 * KiB + 4096));
}

TEST_F(test_kept, one_pool_for_all_monitors)
{
    nprdma_monitor_t *second;
    start();
    params.lazy_limit = 2 * limit; /* Too late */
    ASSERT_EQ(UCS_OK, nprdma_monitor_create(&params, &second));
    EXPECT_FALSE(unmap(used(limit), limit));
    char *ptr = used();
    ASSERT_TRUE(unmap(ptr));
    EXPECT_EQ(MiB, stats().lazy.bytes);
    nprdma_monitor_destroy(second);
    EXPECT_EQ(MiB, kept().bytes);
    EXPECT_EQ((void*)ptr, (void*)block());
    ASSERT_TRUE(unmap(ptr));
    stop();
    EXPECT_EQ(0u, kept().bytes);
    EXPECT_FALSE(unmap(used()));
}

/* Threads map by mmap() and malloc(), so that hooks run under the allocator's
 * lock, while others register, fork and empty the pool */
TEST_F(test_kept, threads)
{
    constexpr int num_threads = 16;
    /* Emulated CPUs take long for it */
    const int rounds = on_kernel() ? 40 : 150;
    std::atomic<bool> done(false);
    std::atomic<int> wrong(0);
    start();

    std::thread dropping([&]() {
        while (!done) {
            nprdma_kept_drop();
            std::this_thread::yield();
        }
    });
    std::vector<std::thread> threads;
    for (int t = 0; t < num_threads; ++t) {
        threads.emplace_back([&, t]() {
            std::mt19937 random(t);
            nprdma_range_t range;
            for (int i = 0; i < rounds; ++i) {
                size_t length = (1 + random() % 4) * 128 * KiB;
                char *ptr     = (i % 3 == 0) ? (char*)calloc(1, length) :
                                               block(length);
                wrong += !is_zero(ptr, length);
                memset(ptr, t + 1, length);
                if (random() % 2) {
                    wrong += (reg(&range, ptr, length) != UCS_OK) ||
                             (populate_all(&range) != UCS_OK);
                    unreg(&range);
                }
                wrong += (ptr[0] != t + 1) || (ptr[length - 1] != t + 1);
                if (i % 3 == 0) {
                    free(ptr);
                } else {
                    munmap(ptr, length);
                }
            }
        });
    }
    for (int i = 0; i < 5; ++i) {
        int status;
        pid_t pid = fork();
        if (pid == 0) {
            _exit(0);
        }
        ASSERT_EQ(pid, waitpid(pid, &status, 0));
    }
    for (auto &thread : threads) {
        thread.join();
    }
    done = true;
    dropping.join();
    EXPECT_EQ(0, wrong);
    EXPECT_GT(kept().reused, 0u);
    EXPECT_LE(kept().bytes, limit);
}

/* System calls of a child between two calls of getppid() */
template<typename F> static std::vector<long> traced(F func)
{
    std::vector<long> calls;
    bool inside = false, is_entry = true;
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
        raise(SIGSTOP);
        func();
        _exit(0);
    }
    while ((waitpid(pid, &status, 0) == pid) && WIFSTOPPED(status)) {
        if (WSTOPSIG(status) == (SIGTRAP | 0x80)) {
            struct __ptrace_syscall_info info;
            if (is_entry && (ptrace(PTRACE_GET_SYSCALL_INFO, pid, sizeof(info),
                                    &info) > 0)) {
                if (info.entry.nr == SYS_getppid) {
                    inside = !inside;
                } else if (inside) {
                    calls.push_back((long)info.entry.nr);
                }
            }
            is_entry = !is_entry;
        } else {
            ptrace(PTRACE_SETOPTIONS, pid, nullptr, PTRACE_O_TRACESYSGOOD);
        }
        ptrace(PTRACE_SYSCALL, pid, nullptr, nullptr);
    }
    return calls;
}

TEST_F(test_kept, off_makes_no_system_call)
{
    auto run = [this]() {
        nprdma_monitor_t *own = nullptr;
        if (nprdma_monitor_create(&params, &own) == UCS_OK) {
            for (int i = 0; i < 3; ++i) {
                char *ptr = used();
                if (i == 1) {
                    syscall(SYS_getppid);
                }
                munmap(ptr, MiB);
                ptr = block();
                munmap(ptr, MiB);
                if (i == 1) {
                    syscall(SYS_getppid);
                }
            }
        }
    };
    params.lazy_limit = 0;
    EXPECT_EQ((std::vector<long>{ SYS_munmap, SYS_mmap, SYS_munmap }),
              traced(run));
    params.lazy_limit = limit;
    auto calls        = traced(run);
    EXPECT_EQ(0, std::count(calls.begin(), calls.end(), SYS_munmap) -
                 std::count(calls.begin(), calls.end(), SYS_mmap))
            << "the control: it probes for locked memory only";
    EXPECT_GT(calls.size(), 3u);
}

/* A real cgroup, whose limit is too little for what is kept beside what is
 * used. The kernel takes what is kept, and kills nobody. */
class test_kept_group : public limited_test {
protected:
    static constexpr size_t limit = 100 * MiB;
    static constexpr size_t total = 80 * MiB;

    test_kept_group() : limited_test(limit)
    {
    }

    /* `total` bytes of blocks of one size at once, written and then unmapped.
     * @return Whether all had zeros. */
    static bool use(size_t size)
    {
        std::vector<char*> blocks;
        bool is_zero = true;
        for (size_t done = 0; done < total; done += size) {
            char *ptr = block(size);
            is_zero  &= (ptr[0] == 0) && !memcmp(ptr, ptr + 1, size - 1);
            memset(ptr, 1, size);
            blocks.push_back(ptr);
        }
        for (char *ptr : blocks) {
            munmap(ptr, size);
        }
        return is_zero;
    }

    static uint64_t bytes()
    {
        nprdma_lazy_stats_t stats;
        nprdma_kept_query(&stats);
        return stats.bytes;
    }
};

/* Blocks of other sizes, for which what is kept is of no use */
TEST_F(test_kept_group, what_is_kept_makes_room)
{
    params.lazy_limit = 4 * limit;
    EXPECT_EQ(0, status_of(in_group([]() {
        for (size_t size : { 4 * MiB, 16 * MiB, 5 * MiB, 4 * MiB, 16 * MiB,
                             5 * MiB, 2 * MiB }) {
            if (!use(size)) {
                return 1;
            }
        }
        return (bytes() > limit) ? 0 : 2;
    })));
}

/* Another process, which does nothing at that moment, keeps memory */
TEST_F(test_kept_group, others_get_it)
{
    int ready[2], end[2];
    char byte = 0;
    params.lazy_limit = 4 * limit;
    ASSERT_EQ(0, pipe(ready));
    ASSERT_EQ(0, pipe(end));
    pid_t other = in_group([&]() {
        if (!use(4 * MiB) || (bytes() < total / 2)) {
            return 1;
        }
        (void)!write(ready[1], &byte, 1);
        return (read(end[0], &byte, 1) == 1) ? 0 : 2;
    });
    ASSERT_EQ(1, read(ready[0], &byte, 1));
    EXPECT_EQ(0, status_of(in_group([&]() {
        memset(block(total), 1, total);
        return 0;
    })));
    EXPECT_EQ(1, write(end[1], &byte, 1));
    EXPECT_EQ(0, status_of(other));
    for (int fd : { ready[0], ready[1], end[0], end[1] }) {
        close(fd);
    }
}
