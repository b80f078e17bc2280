/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include <ucm/events/nprdma_events.h>

#include "test_child.h"
#include "test_monitor.h"

#include <algorithm>
#include <random>

#include <dlfcn.h>
#include <sys/resource.h>
#include <sys/shm.h>

/*
 * Events on pages 4 to 11 of 16, or on all pages from 4 on. Each page holds a
 * byte that identifies it.
 */
namespace {
struct event {
    const char *name;
    size_t     end;       /* First page that is not affected */
    bool       unmaps;    /* The pages are not mapped afterwards */
    bool       shared;    /* Needs a shared mapping */
    int        (*call)(char *ptr);
};

void PrintTo(const event &what, std::ostream *stream)
{
    *stream << what.name;
}

constexpr size_t page       = 4096;
constexpr size_t moved_size = 64 * page;

/* Destination of mremap(). It may lie in the same region, where another event
 * would disturb the counts. */
void *moved = MAP_FAILED;

const event events[] = {
    { "munmap", 12, true, false,
      [](char *ptr) { return munmap(ptr, 8 * page); } },
    { "munmap_unaligned_length", 12, true, false,
      [](char *ptr) { return munmap(ptr, 8 * page - 100); } },
    { "mmap_fixed", 12, false, false,
      [](char *ptr) {
          return (mmap(ptr, 8 * page, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
                  ptr) ? 0 : -1;
      } },
    { "mremap_moves", 12, true, false,
      [](char *ptr) {
          moved = mremap(ptr, 8 * page, moved_size, MREMAP_MAYMOVE);
          return ((moved != MAP_FAILED) && (moved != ptr)) ? 0 : -1;
      } },
    { "mremap_shrinks", 12, true, false,
      [](char *ptr) {
          /* The first page stays, and the tests do not check it */
          return (mremap(ptr - page, 9 * page, page, 0) == ptr - page) ? 0 : -1;
      } },
    { "madvise_dontneed", 12, false, false,
      [](char *ptr) { return madvise(ptr, 8 * page, MADV_DONTNEED); } },
    { "madvise_free", 12, false, false,
      [](char *ptr) { return madvise(ptr, 8 * page, MADV_FREE); } },
    { "madvise_remove", 12, false, true,
      [](char *ptr) { return madvise(ptr, 8 * page, MADV_REMOVE); } },
    { "madvise_pageout", 12, false, false,
      [](char *ptr) { return madvise(ptr, 8 * page, MADV_PAGEOUT); } },
};
}

class test_monitor_events_kind : public test_monitor,
                                 public ::testing::WithParamInterface<event> {
protected:
    static constexpr size_t first = 4;
    static constexpr size_t count = 16;

    void SetUp() override
    {
        test_monitor::SetUp();
        start();
        ptr = map(count * page, PROT_READ | PROT_WRITE,
                  MAP_ANONYMOUS | (GetParam().shared ? MAP_SHARED :
                                                       MAP_PRIVATE));
        for (size_t i = 0; i < count; ++i) {
            memset(ptr + i * page, 0x40 + i, page);
        }
        ASSERT_EQ(UCS_OK, reg(&range, ptr, count * page));
    }

    void TearDown() override
    {
        on_drain = nullptr;
        unreg(&range);
        if (moved != MAP_FAILED) {
            munmap(moved, moved_size);
            moved = MAP_FAILED;
        }
        test_monitor::TearDown();
    }

    static bool affected(size_t i)
    {
        return (i >= first) && (i < GetParam().end);
    }

    /* The NIC stays busy for all drains until the test releases it */
    NPRDMA_HOOK static void hold_all(test_monitor *arg)
    {
        auto self = static_cast<test_monitor_events_kind*>(arg);
        replace(self->hold, 1, 2);
        while (load(self->hold) == 2) {
            sched_yield();
        }
    }

    void call()
    {
        ASSERT_EQ(0, GetParam().call(ptr + first * page))
                << strerror(errno);
    }

public:
    /* Whether a page has its old contents, called in the hook */
    bool is_old(size_t i) const
    {
        return is_present(ptr + i * page) &&
               (ptr[i * page] == (char)(0x40 + i));
    }

    char             *ptr = nullptr;
    nprdma_range_t   range;
    std::atomic<int> wrong{0};
    std::atomic<int> hold{0};
};

TEST_P(test_monitor_events_kind, bits_then_drain_then_call)
{
    uint32_t before[count];

    ASSERT_EQ(UCS_OK, populate(&range, NPRDMA_POPULATE_WRITE));
    for (size_t i = 0; i < count; ++i) {
        before[i] = state(&range, ptr + i * page);
        ASSERT_EQ(3u, before[i] & NPRDMA_PAGE_BITS);
    }

    on_drain = [](test_monitor *arg) {
        auto self = static_cast<test_monitor_events_kind*>(arg);
        for (size_t i = 0; i < count; ++i) {
            /* The state is cleared, and the page is still present */
            bool cleared = bits(&self->range, self->ptr + i * page) == 0;
            if ((affected(i) && !cleared) || !self->is_old(i)) {
                ++self->wrong;
            }
        }
    };
    call();
    on_drain = nullptr;
    EXPECT_EQ(1, drains);
    EXPECT_EQ(0, wrong);
    for (size_t i = 0; i < count; ++i) {
        uint32_t after = state(&range, ptr + i * page);
        if (affected(i)) {
            EXPECT_EQ((before[i] & ~NPRDMA_PAGE_BITS) + NPRDMA_PAGE_COUNT,
                      after) << i;
        } else if (i != first - 1) { /* Shrunk by mremap() */
            EXPECT_EQ(before[i], after) << i;
        }
    }
    EXPECT_LE(GetParam().end - first, stats().invalidated);
}

/* Two calls take the same page. The second one finds no bit to clear, and must
 * wait for the drain of the first one. */
TEST_P(test_monitor_events_kind, waits_for_the_drain_of_another_thread)
{
    std::atomic<bool> returned(false);

    ASSERT_EQ(UCS_OK, populate(&range, NPRDMA_POPULATE_WRITE));
    hold     = 1;
    on_drain = hold_all;

    std::thread other([&]() {
        madvise(ptr, count * page, MADV_DONTNEED);
    });
    wait_until([&]() { return hold == 2; });
    std::thread thread([&]() {
        call();
        returned = true;
    });
    wait_until([&]() { return drains == 2; });
    EXPECT_FALSE(returned);
    EXPECT_TRUE(is_old(first));
    hold = 3;
    other.join();
    thread.join();
}

TEST_P(test_monitor_events_kind, meets_a_populate)
{
    ONLY_EMULATED("gates");
    /* Absent pages, which the populate has faulted in and not marked yet */
    std::atomic<int> status(-1);
    std::thread thread([&]() {
        npemu_gate_arm(header(&range), NPEMU_GATE_MAP, first + 1);
        status = populate(&range, NPRDMA_POPULATE_WRITE);
    });
    ASSERT_EQ(0, npemu_gate_wait(header(&range), NPEMU_GATE_MAP, 60000));
    EXPECT_TRUE(is_present(ptr + first * page));
    EXPECT_EQ(0, all_bits(&range, ptr, count * page));

    call();
    npemu_gate_release(header(&range), NPEMU_GATE_MAP);
    thread.join();

    for (size_t i = 0; i < count; ++i) {
        uint32_t got = bits(&range, ptr + i * page);
        if (affected(i) && GetParam().unmaps) {
            EXPECT_EQ(0u, got) << i;
        }
        if (got != 0) {
            EXPECT_TRUE(is_present(ptr + i * page)) << i;
        }
    }
    if (GetParam().unmaps) {
        EXPECT_EQ(UCS_ERR_INVALID_ADDR, status);
    } else {
        EXPECT_EQ(UCS_OK, status);
        EXPECT_EQ(3, all_bits(&range, ptr, count * page));
    }
}

TEST_P(test_monitor_events_kind, peers_get_the_new_contents_or_nothing)
{
    nprdma_range_t again;
    char *gone = ptr + first * page;

    ASSERT_EQ(UCS_OK, populate(&range, NPRDMA_POPULATE_WRITE));
    call();
    if (!GetParam().unmaps) {
        /* The same mapping, or one that the hooks have seen replace it */
        EXPECT_EQ(UCS_OK, populate(&range, NPRDMA_POPULATE_WRITE));
        EXPECT_EQ(3, all_bits(&range, ptr, count * page));
        return;
    }

    EXPECT_EQ(UCS_ERR_INVALID_ADDR, populate(&range, gone, 8 * page));
    EXPECT_EQ(0, all_bits(&range, gone, 8 * page));

    /* A mapping that bypasses the hooks is not the registered memory */
    raw_mmap(gone, 8 * page);
    EXPECT_EQ(UCS_ERR_INVALID_ADDR, populate(&range, gone, 8 * page));
    EXPECT_EQ(UCS_ERR_INVALID_ADDR,
              populate(&range, gone + page, page, NPRDMA_POPULATE_WRITE));
    *gone = 1;
    EXPECT_EQ(UCS_OK,
              populate(&range, ptr, count * page, NPRDMA_POPULATE_RESIDENT));
    EXPECT_EQ(0, all_bits(&range, gone, 8 * page));

    /* After another registration, its three pages count as mapped and no
     * others */
    ASSERT_EQ(UCS_OK, reg(&again, gone + page + 10, 2 * page));
    EXPECT_EQ(UCS_OK, populate(&again));
    EXPECT_EQ(UCS_ERR_INVALID_ADDR, populate(&range, gone, page));
    EXPECT_EQ(1, all_bits(&range, gone + page, 3 * page));
    EXPECT_EQ(UCS_ERR_INVALID_ADDR, populate(&range, gone + 4 * page, page));
    unreg(&again);

    /* Mapped through the hooks */
    ASSERT_EQ(gone, mmap(gone, 8 * page, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
    EXPECT_EQ(0, all_bits(&range, gone, 8 * page));
    EXPECT_EQ(UCS_OK, populate(&range, gone, 8 * page));
    EXPECT_EQ(1, all_bits(&range, gone, 8 * page));
}

INSTANTIATE_TEST_SUITE_P(all, test_monitor_events_kind,
                         ::testing::ValuesIn(events),
                         [](const auto &info) { return info.param.name; });

/* Events that take more than one call */
class test_monitor_events : public test_monitor {
};

TEST_F(test_monitor_events, pages_come_back_after_failed_calls)
{
    nprdma_range_t range;
    start();
    char *ptr = map();

    ASSERT_EQ(UCS_OK, reg(&range, ptr, 16 * page));
    ASSERT_EQ(UCS_OK, populate(&range));
    EXPECT_EQ(-1, munmap(ptr + 1, page));
    EXPECT_EQ(-1, munmap(ptr, SIZE_MAX)); /* It would wrap around */
    EXPECT_EQ(MAP_FAILED, mmap(ptr, 16 * page, PROT_READ,
                               MAP_PRIVATE | MAP_FIXED, -1, 0));
    EXPECT_EQ(MAP_FAILED, mremap(ptr, 16 * page, (size_t)1 << 46,
                                 MREMAP_MAYMOVE));
    EXPECT_EQ(UCS_OK, populate(&range, NPRDMA_POPULATE_WRITE));
    EXPECT_EQ(3, all_bits(&range, ptr, 16 * page));
    unreg(&range);
}

TEST_F(test_monitor_events, shmdt_and_shmat)
{
    nprdma_range_t range;
    int shmid = shmget(IPC_PRIVATE, 8 * page, IPC_CREAT | 0600);
    ASSERT_GE(shmid, 0);
    start();
    /* Not at an address where a segment of huge pages could be attached */
    char *ptr = map(17 * page) + page;

    ASSERT_EQ(UCS_OK, reg(&range, ptr, 16 * page));
    ASSERT_EQ(UCS_OK, populate(&range));
    ASSERT_EQ(ptr, shmat(shmid, ptr, SHM_REMAP));
    shmctl(shmid, IPC_RMID, nullptr);
    EXPECT_EQ(0, all_bits(&range, ptr, 8 * page));
    EXPECT_EQ(1, all_bits(&range, ptr + 8 * page, 8 * page));
    EXPECT_EQ(UCS_OK, populate(&range, NPRDMA_POPULATE_WRITE));
    EXPECT_EQ(3, all_bits(&range, ptr, 16 * page));

    /* Only the segment, although the event does not tell its size. Also if a
     * part has another protection, so that the segment is several mappings. */
    mprotect(ptr + 2 * page, page, PROT_READ);
    int before = drains;
    ASSERT_EQ(0, shmdt(ptr));
    EXPECT_EQ(before + 1, drains);
    EXPECT_EQ(0, all_bits(&range, ptr, 8 * page));
    EXPECT_EQ(3, all_bits(&range, ptr + 8 * page, 8 * page));
    raw_mmap(ptr, 8 * page);
    EXPECT_EQ(UCS_ERR_INVALID_ADDR, populate(&range, ptr + 7 * page, page));
    EXPECT_EQ(UCS_OK, populate(&range, ptr + 8 * page, page));
    unreg(&range);
}

/* Some of which the program has unmapped: the kernel takes the others, also if
 * the process may open no file to find them. What lies above stays in use. */
TEST_F(test_monitor_events, shmdt_of_pieces)
{
    for (bool is_limited : {false, true}) {
        nprdma_range_t range, other;
        struct rlimit limit;
        int shmid = shmget(IPC_PRIVATE, 8 * page, IPC_CREAT | 0600);
        ASSERT_GE(shmid, 0);
        start();
        char *hole  = map();
        char *above = hole + 8 * page;
        raw_munmap(hole, 8 * page);
        char *ptr = (char*)shmat(shmid, hole, 0);
        ASSERT_EQ(hole, ptr);
        ASSERT_EQ(UCS_OK, reg(&other, above, page));
        shmctl(shmid, IPC_RMID, nullptr);
        ASSERT_EQ(UCS_OK, reg(&range, ptr, 8 * page));
        ASSERT_EQ(UCS_OK, populate(&range, NPRDMA_POPULATE_WRITE));
        ASSERT_EQ(0, munmap(ptr, page));
        ASSERT_EQ(0, munmap(ptr + 4 * page, page));
        EXPECT_EQ(3, all_bits(&range, ptr + 5 * page, 3 * page));

        ASSERT_EQ(0, getrlimit(RLIMIT_NOFILE, &limit));
        rlimit none = {is_limited ? 0 : limit.rlim_cur, limit.rlim_max};
        ASSERT_EQ(0, setrlimit(RLIMIT_NOFILE, &none));
        int ret = shmdt(ptr);
        ASSERT_EQ(0, setrlimit(RLIMIT_NOFILE, &limit));
        ASSERT_EQ(0, ret);
        EXPECT_EQ(0, all_bits(&range, ptr, 8 * page));
        EXPECT_EQ(UCS_OK, populate(&other, NPRDMA_POPULATE_WRITE));
        raw_mmap(ptr, 8 * page);
        EXPECT_EQ(is_limited ? UCS_OK : UCS_ERR_INVALID_ADDR,
                  populate(&range, ptr + 7 * page, page));
        unreg(&other);
        unreg(&range);
        munmap(ptr, 8 * page);
        stop();
    }
}

TEST_F(test_monitor_events, brk)
{
    static constexpr intptr_t size = 16 * page;
    nprdma_range_t range;
    start();

    char *top = (char*)sbrk(0);
    size_t up = -(uintptr_t)top & (page - 1);
    ASSERT_NE((void*)-1, sbrk(up));
    char *ptr = (char*)sbrk(size);
    ASSERT_EQ(top + up, ptr);
    ASSERT_EQ(UCS_OK, reg(&range, ptr, size));
    ASSERT_EQ(UCS_OK, populate(&range, NPRDMA_POPULATE_WRITE));
    ASSERT_EQ(ptr + size, sbrk(0)) << "something else grew the heap";

    /* A question, as which UCM tests whether hooks work */
    int before = drains;
    ::brk(nullptr);
    EXPECT_EQ(before, drains);
    EXPECT_EQ(3, all_bits(&range, ptr, size));

    /* The page in which the heap ends stays */
    ASSERT_NE((void*)-1, sbrk(-8 * (intptr_t)page + 100));
    EXPECT_EQ(3, all_bits(&range, ptr, 9 * page));
    EXPECT_EQ(0, all_bits(&range, ptr + 9 * page, 7 * page));
    EXPECT_EQ(UCS_ERR_INVALID_ADDR, populate(&range));
    raw_mmap(ptr + 12 * page, page);
    EXPECT_EQ(UCS_ERR_INVALID_ADDR, populate(&range, ptr + 12 * page, page));
    raw_munmap(ptr + 12 * page, page);

    ASSERT_EQ(0, ::brk(ptr + size));
    EXPECT_EQ(UCS_OK, populate(&range));
    ASSERT_EQ(0, ::brk(ptr + 4 * page));
    EXPECT_EQ(0, all_bits(&range, ptr + 4 * page, 12 * page));
    EXPECT_EQ(3, all_bits(&range, ptr, 4 * page));
    ASSERT_EQ(0, ::brk(top));
    unreg(&range);
}

/* Pages that are unmapped and mapped again at random, next to a list of what is
 * unmapped. Memory behind the back makes the others populatable. */
TEST_F(test_monitor_events, retired_and_readmitted_at_random)
{
    static constexpr size_t count = 3 * 512 + 40;
    std::minstd_rand random(1);
    std::vector<bool> is_retired(count, false);
    nprdma_range_t range;

    start();
    char *ptr = map(count * page);
    ASSERT_EQ(UCS_OK, reg(&range, ptr, count * page));
    for (int i = 0; i < 200; ++i) {
        size_t first  = random() % count;
        size_t length = 1 + random() % ((i % 2) ? 80 : count - first);
        length        = std::min(length, count - first);
        bool retires  = (i % 4) < 2;

        if (retires) {
            ASSERT_EQ(0, munmap(ptr + first * page, length * page));
            raw_mmap(ptr + first * page, length * page);
        } else {
            ASSERT_EQ((void*)(ptr + first * page),
                      mmap(ptr + first * page, length * page,
                           PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
        }
        std::fill_n(is_retired.begin() + first, length, retires);
        for (size_t k = (i == 199) ? 0 : count - 100; k < count; ++k) {
            size_t at = (i == 199) ? k : random() % count;
            ASSERT_EQ(is_retired[at] ? UCS_ERR_INVALID_ADDR : UCS_OK,
                      populate(&range, ptr + at * page, page))
                    << "page " << at << " after call " << i;
        }
    }
    unreg(&range);
}

TEST_F(test_monitor_events, fork_leaves_sources_only)
{
    nprdma_range_t range;
    start();
    char *ptr = map();

    memset(ptr, 5, 16 * page);
    ASSERT_EQ(UCS_OK, reg(&range, ptr, 16 * page));
    ASSERT_EQ(UCS_OK, populate(&range, NPRDMA_POPULATE_WRITE));
    int fd = range.region->fd;

    expect_child([&]() {
        /* The monitor belongs to the parent; application memory is
         * accessible */
        nprdma_range_t other;
        nprdma_monitor_stats_t child;
        nprdma_monitor_query(monitor, &child);
        bool good = (reg(&other, ptr, page) == UCS_ERR_UNSUPPORTED) &&
                    (populate(&range) == UCS_ERR_UNSUPPORTED) &&
                    (child.regions == 0) && (ptr[0] == 5);
        unreg(&range, 1);
        munmap(ptr, page);
        madvise(ptr + page, page, MADV_DONTNEED);
        nprdma_monitor_destroy(monitor);
        return good;
    });

    /* Each page may be shared with the child: a write would copy it */
    if (on_kernel()) {
        /* The notifier takes changed pages, so no drain is needed */
        EXPECT_EQ(0, all_bits(&range, ptr, 16 * page));
    } else {
        EXPECT_GE(drains, 1);
        EXPECT_EQ(1, all_bits(&range, ptr, 16 * page));
    }
    EXPECT_EQ(fd, range.region->fd);
    EXPECT_EQ(UCS_OK, populate(&range, NPRDMA_POPULATE_WRITE));
    EXPECT_EQ(3, all_bits(&range, ptr, 16 * page));
    EXPECT_EQ(5, ptr[page]);
    unreg(&range);
}

/* Open MPI patches libc after UCM, which disables UCM's hooks. The monitor
 * notices that, and does not report that handlers are installed. */
TEST(test_monitor_events_hooks, disconnected_hooks_are_noticed)
{
#ifndef __x86_64__
    GTEST_SKIP() << "the patch is machine code of x86-64";
#else
    static const nprdma_listener_t listener = {};
    /* mov $SYS_munmap, %eax; syscall; ret */
    static const unsigned char patch[] = {0xb8, 11, 0, 0, 0, 0x0f, 0x05, 0xc3};

    EXPECT_EQ(0, wait_status([&]() {
        void *libc  = dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD);
        char *code  = (libc == nullptr) ? nullptr :
                      (char*)dlsym(libc, "munmap");
        char *start = (char*)((uintptr_t)code & ~(uintptr_t)4095);

        if ((nprdma_events_add(&listener) != UCS_OK) || (code == nullptr)) {
            return 1;
        }
        nprdma_events_remove(&listener);

        if (mprotect(start, 2 * 4096, PROT_READ | PROT_WRITE | PROT_EXEC)) {
            return 2;
        }
        memcpy(code, patch, sizeof(patch));
        return (nprdma_events_add(&listener) == UCS_ERR_UNSUPPORTED) ? 0 : 3;
    }));
#endif
}
