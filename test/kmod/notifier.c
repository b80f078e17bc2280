/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * Changes that the process itself makes to its memory. When such a call
 * returns, it must have taken exactly the affected pages from devices. A thread
 * watches the states all the time.
 */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "watch.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

#define NUM_PAGES 2048
#define ROUNDS    10

/* The range of an event: the middle half, the size of two huge pages. If a
 * mapping is split within a huge page, the whole 2 MiB are taken from
 * devices. */
#define FIRST     (NUM_PAGES / 4)
#define COUNT     (NUM_PAGES / 2)


static void fill(kmod_region_t *region, unsigned seed)
{
    size_t i;

    for (i = 0; i < region->num_pages; ++i) {
        *(volatile uint32_t*)(region->memory + i * PAGE) = seed + i;
    }
}

static void check_data(kmod_region_t *region, size_t first, size_t count,
                       unsigned seed)
{
    size_t i;

    for (i = first; i < first + count; ++i) {
        CHECK_EQ(*(volatile uint32_t*)(region->memory + i * PAGE), seed + i);
    }
}

/* All pages of the middle are absent, and all others are unchanged */
static void check_middle(kmod_region_t *region)
{
    CHECK_EQ(kmod_count(region, FIRST, COUNT, 0), COUNT);
    CHECK_EQ(kmod_count(region, 0, FIRST, NPRDMA_PAGE_BITS), FIRST);
    CHECK_EQ(kmod_count(region, FIRST + COUNT, NUM_PAGES - FIRST - COUNT,
                        NPRDMA_PAGE_BITS), NUM_PAGES - FIRST - COUNT);
}

static int watch_has_seen(void *arg)
{
    kmod_watch_t *watch = arg;

    return __atomic_load_n(&watch->repeated, __ATOMIC_ACQUIRE) > 0;
}

/* Rounds: populate all pages, cause the event, write all pages again */
static void run_event(void *memory,
                      void (*event)(kmod_region_t *region, uint8_t *middle,
                                    size_t length))
{
    int ctx = kmod_open();
    kmod_region_t region;
    kmod_watch_t watch;
    unsigned round;

    kmod_region_create(&region, ctx, memory, NUM_PAGES * PAGE);
    kmod_watch_start(&watch, &region, getpid());
    for (round = 0; round < ROUNDS; ++round) {
        fill(&region, round);
        kmod_populate_all(&region, 0, NUM_PAGES, NPRDMA_IOC_POPULATE_WRITE);
        CHECK(kmod_await(watch_has_seen, &watch));
        event(&region, region.memory + FIRST * PAGE, COUNT * PAGE);
        check_middle(&region);
        check_data(&region, 0, FIRST, round);
    }
    kmod_watch_stop(&watch);
    kmod_region_destroy(&region);
}

static void event_munmap(kmod_region_t *region, uint8_t *middle, size_t length)
{
    CHECK(munmap(middle, length) == 0, "%m");
    check_middle(region);
    CHECK_EQ(kmod_populate(region, FIRST, 1, 0, NULL), EFAULT);
    CHECK(mmap(middle, length, PROT_READ | PROT_WRITE,
               MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == middle, "%m");
}

static void event_map_fixed(kmod_region_t *region, uint8_t *middle,
                            size_t length)
{
    (void)region;
    CHECK(mmap(middle, length, PROT_READ | PROT_WRITE,
               MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == middle, "%m");
}

static void event_dontneed(kmod_region_t *region, uint8_t *middle,
                           size_t length)
{
    (void)region;
    CHECK(madvise(middle, length, MADV_DONTNEED) == 0, "%m");
}

static void event_free(kmod_region_t *region, uint8_t *middle, size_t length)
{
    (void)region;
    CHECK(madvise(middle, length, MADV_FREE) == 0, "%m");
}

static void event_protect(kmod_region_t *region, uint8_t *middle, size_t length)
{
    CHECK(mprotect(middle, length, PROT_READ) == 0, "%m");
    check_middle(region);
    kmod_populate_all(region, FIRST, COUNT, 0);
    CHECK_EQ(kmod_populate(region, FIRST, COUNT, NPRDMA_IOC_POPULATE_WRITE,
                           NULL), EFAULT);
    CHECK_EQ(kmod_count(region, FIRST, COUNT, NPRDMA_PAGE_R), COUNT);
    CHECK(mprotect(middle, length, PROT_NONE) == 0, "%m");
    check_middle(region);
    CHECK_EQ(kmod_populate(region, FIRST, 1, 0, NULL), EFAULT);
    CHECK(mprotect(middle, length, PROT_READ | PROT_WRITE) == 0, "%m");
}

static void event_mremap(kmod_region_t *region, uint8_t *middle, size_t length)
{
    uint32_t first = *(uint32_t*)middle;
    uint8_t *moved;

    moved = mremap(middle, length, length, MREMAP_MAYMOVE | MREMAP_FIXED,
                   kmod_map(length));
    CHECK(moved != MAP_FAILED, "%m");
    check_middle(region);
    CHECK_EQ(*(uint32_t*)moved, first);
    CHECK_EQ(kmod_populate(region, FIRST, 1, 0, NULL), EFAULT);
    CHECK(mremap(moved, length, length, MREMAP_MAYMOVE | MREMAP_FIXED,
                 middle) == middle, "%m");
    check_data(region, FIRST, COUNT, first - FIRST);
}

/* The parent's pages become read-only; its next write copies them */
static void event_fork(kmod_region_t *region, uint8_t *middle, size_t length)
{
    uint32_t first = *(volatile uint32_t*)middle;
    int pipes[2];
    char byte = 0;
    pid_t pid;

    CHECK(pipe(pipes) == 0, "%m");
    pid = fork();
    if (pid == 0) {
        close(pipes[1]);
        CHECK_EQ(read(pipes[0], &byte, 1), 0);
        CHECK_EQ(*(volatile uint32_t*)middle, first);
        _exit(0);
    }

    CHECK_EQ(kmod_count(region, 0, NUM_PAGES, 0), NUM_PAGES);
    /* Populating for reading copies no page */
    kmod_populate_all(region, FIRST, COUNT, 0);
    *(volatile uint32_t*)middle = first + 1;
    CHECK_EQ(kmod_count(region, FIRST, 1, 0), 1);
    kmod_populate_all(region, 0, NUM_PAGES, NPRDMA_IOC_POPULATE_WRITE);
    *(volatile uint32_t*)middle = first + 2;
    CHECK_EQ(kmod_count(region, FIRST, 1, NPRDMA_PAGE_BITS), 1);
    close(pipes[0]);
    close(pipes[1]);
    CHECK_EQ(kmod_wait(pid), 0);
    CHECK(madvise(middle, length, MADV_DONTNEED) == 0, "%m");
}

static void event_remove(kmod_region_t *region, uint8_t *middle, size_t length)
{
    (void)region;
    CHECK(madvise(middle, length, MADV_REMOVE) == 0, "%m");
}

static void test_munmap(void)
{
    run_event(kmod_map(NUM_PAGES * PAGE), event_munmap);
}

static void test_map_fixed(void)
{
    run_event(kmod_map(NUM_PAGES * PAGE), event_map_fixed);
}

static void test_dontneed(void)
{
    run_event(kmod_map(NUM_PAGES * PAGE), event_dontneed);
}

static void test_free(void)
{
    run_event(kmod_map(NUM_PAGES * PAGE), event_free);
}

static void test_protect(void)
{
    run_event(kmod_map(NUM_PAGES * PAGE), event_protect);
}

static void test_mremap(void)
{
    run_event(kmod_map(NUM_PAGES * PAGE), event_mremap);
}

static void test_fork(void)
{
    run_event(kmod_map(NUM_PAGES * PAGE), event_fork);
}

static void *map_shared(int fd, size_t length)
{
    void *memory = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
                        0);

    CHECK(memory != MAP_FAILED, "%m");
    return memory;
}

static int shared_fd;

static void event_truncate(kmod_region_t *region, uint8_t *middle,
                           size_t length)
{
    (void)length;
    CHECK(ftruncate(shared_fd, FIRST * PAGE) == 0, "%m");
    CHECK_EQ(kmod_count(region, FIRST, NUM_PAGES - FIRST, 0),
             NUM_PAGES - FIRST);
    CHECK_EQ(kmod_count(region, 0, FIRST, NPRDMA_PAGE_BITS), FIRST);
    CHECK_EQ(kmod_populate(region, FIRST, 1, 0, NULL), EFAULT);
    CHECK(ftruncate(shared_fd, NUM_PAGES * PAGE) == 0, "%m");
    kmod_populate_all(region, 0, NUM_PAGES, NPRDMA_IOC_POPULATE_WRITE);
    CHECK(madvise(middle, COUNT * PAGE, MADV_DONTNEED) == 0, "%m");
}

/* Shared memory: a page is taken when the file loses it, by whatever process */
static void test_shmem(void)
{
    shared_fd = memfd_create("kmod", MFD_CLOEXEC);
    CHECK(shared_fd >= 0, "%m");
    CHECK(ftruncate(shared_fd, NUM_PAGES * PAGE) == 0, "%m");
    run_event(map_shared(shared_fd, NUM_PAGES * PAGE), event_remove);
    run_event(map_shared(shared_fd, NUM_PAGES * PAGE), event_truncate);
}

static void hugetlb_in_region(void)
{
    int ctx = kmod_open();
    kmod_region_t region;
    kmod_watch_t watch;

    kmod_region_create(&region, ctx, map_shared(shared_fd, NUM_PAGES * PAGE),
                       NUM_PAGES * PAGE);
    fill(&region, 7);
    kmod_populate_all(&region, 0, NUM_PAGES, NPRDMA_IOC_POPULATE_WRITE);
    kmod_watch_start(&watch, &region, getpid());
    CHECK(kmod_await(watch_has_seen, &watch));
    CHECK(ftruncate(shared_fd, 512 * PAGE) == 0, "%m");
    CHECK_EQ(kmod_count(&region, 512, NUM_PAGES - 512, 0), NUM_PAGES - 512);
    CHECK_EQ(kmod_count(&region, 0, 512, NPRDMA_PAGE_BITS), 512);
    kmod_watch_stop(&watch);
    kmod_region_destroy(&region);
    munmap(region.memory, region.length);
}

/* Memory may be fragmented, and each attempt defragments more of it */
static int has_huge_pages(void *unused)
{
    (void)unused;
    CHECK_EQ(kmod_write_file("/proc/sys/vm/nr_hugepages", "8"), 0);
    return kmod_read_number("/proc/sys/vm/nr_hugepages", "") == 8;
}

static void test_hugetlb(void)
{
    CHECK(kmod_await(has_huge_pages, NULL));
    shared_fd = memfd_create("kmod", MFD_CLOEXEC | MFD_HUGETLB);
    CHECK(shared_fd >= 0, "%m");
    CHECK(ftruncate(shared_fd, NUM_PAGES * PAGE) == 0, "%m");
    hugetlb_in_region();
    close(shared_fd);
    CHECK_EQ(kmod_write_file("/proc/sys/vm/nr_hugepages", "0"), 0);
}

/*
 * Huge pages are formed and split under a region. The kernel skips pages that
 * are in use at that moment, whatever uses them.
 */
static void event_collapse(kmod_region_t *region, uint8_t *middle,
                           size_t length)
{
    uint64_t end = kmod_deadline();
    char text[128];

    CHECK(madvise(middle, length, MADV_HUGEPAGE) == 0, "%m");
    while (madvise(middle, length, MADV_COLLAPSE) != 0) {
        CHECK(((errno == EAGAIN) || (errno == EBUSY)) && (kmod_time_ms() < end),
              "%m");
    }
    check_middle(region);
    /* khugepaged must not make one again, of which the next round would not
     * learn */
    CHECK(madvise(middle, length, MADV_NOHUGEPAGE) == 0, "%m");
    kmod_populate_all(region, 0, NUM_PAGES, NPRDMA_IOC_POPULATE_WRITE);
    snprintf(text, sizeof(text), "%d,%#lx,%#lx", getpid(), (long)middle,
             (long)middle + length);
    while (kmod_count(region, FIRST, COUNT, 0) < COUNT) {
        CHECK(kmod_time_ms() < end);
        CHECK_EQ(kmod_write_file("/sys/kernel/debug/split_huge_pages", text),
                 0);
    }
    check_middle(region);
}

static void test_collapse_and_split(void)
{
    run_event(kmod_map(NUM_PAGES * PAGE), event_collapse);
}

static void event_clear_refs(kmod_region_t *region, uint8_t *middle,
                             size_t length)
{
    (void)middle;
    (void)length;
    CHECK_EQ(kmod_write_file("/proc/self/clear_refs", "4"), 0);
    CHECK_EQ(kmod_count(region, 0, NUM_PAGES, 0), NUM_PAGES);
    kmod_populate_all(region, 0, NUM_PAGES, NPRDMA_IOC_POPULATE_WRITE);
    CHECK(madvise(middle, length, MADV_DONTNEED) == 0, "%m");
}

static void test_soft_dirty(void)
{
    run_event(kmod_map(NUM_PAGES * PAGE), event_clear_refs);
}

typedef struct order {
    kmod_region_t *region;
    int           stop;
    uint64_t      valid;  /* reads with a valid, unchanged state */
    uint64_t      stale;  /* reads that found the page absent */
    uint64_t      wrong;  /* of these, reads of absent pages */
} order_t;

/* Reads like a NIC, with the state before and after */
static void *order_reader(void *arg)
{
    order_t *order        = arg;
    kmod_region_t *region = order->region;
    unsigned seed         = 1;
    volatile unsigned delay;
    uint32_t before, after, data;
    size_t page = 0;

    while (!__atomic_load_n(&order->stop, __ATOMIC_ACQUIRE)) {
        page   = (page + 1) % 4;
        before = __atomic_load_n(&region->words[page], __ATOMIC_ACQUIRE);
        /* Reads in flight take varying times */
        for (delay = rand_r(&seed) % 4096; delay > 0; --delay) {
        }
        data = __atomic_load_n((uint32_t*)(region->memory + page * PAGE),
                               __ATOMIC_ACQUIRE);
        after  = __atomic_load_n(&region->words[page], __ATOMIC_ACQUIRE);
        if (!(before & NPRDMA_PAGE_R)) {
            continue;
        }
        if (before == after) {
            ++order->valid;
            order->wrong += data == 0;
        } else {
            order->stale += data == 0;
        }
    }
    return NULL;
}

/* Frame number of a page of a process */
static uint64_t frame_of(pid_t pid, const void *page)
{
    char path[64];
    uint64_t entry;
    int fd;

    snprintf(path, sizeof(path), "/proc/%d/pagemap", (int)pid);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    CHECK(fd >= 0, "%s: %m", path);
    CHECK_EQ(pread(fd, &entry, sizeof(entry),
                   (uintptr_t)page / PAGE * sizeof(entry)), sizeof(entry));
    close(fd);
    CHECK(entry >> 63, "%#llx", (unsigned long long)entry);
    return entry & (((uint64_t)1 << 55) - 1);
}

/* Populating for reading gives a process no page of its own: pages shared by
 * fork stay shared, and untouched pages are the page of zeros */
static void test_copy_on_write(void)
{
    uint8_t *zeros = kmod_map(PAGE);
    kmod_region_t region;
    int pipes[2];
    char byte;
    pid_t pid;

    kmod_region_create(&region, kmod_open(), kmod_map(2 * PAGE), 2 * PAGE);
    region.memory[0] = 1;
    CHECK_EQ(*(volatile uint8_t*)zeros, 0);
    CHECK(pipe(pipes) == 0, "%m");
    pid = fork();
    if (pid == 0) {
        close(pipes[1]);
        _exit(read(pipes[0], &byte, 1));
    }

    kmod_populate_all(&region, 0, 2, 0);
    CHECK_EQ(frame_of(getpid(), region.memory), frame_of(pid, region.memory));
    CHECK_EQ(frame_of(getpid(), region.memory + PAGE),
             frame_of(getpid(), zeros));
    kmod_populate_all(&region, 0, 2, NPRDMA_IOC_POPULATE_WRITE);
    CHECK(frame_of(getpid(), region.memory) != frame_of(pid, region.memory));
    CHECK(frame_of(getpid(), region.memory + PAGE) !=
          frame_of(getpid(), zeros));
    close(pipes[0]);
    close(pipes[1]);
    CHECK_EQ(kmod_wait(pid), 0);
    kmod_region_destroy(&region);
}

/*
 * The state is cleared before the page is taken. A reader of zeros, which are
 * the page's next contents, must see that the state has changed. As the
 * control, some reads must return zeros.
 */
static void test_order(void)
{
    int ctx = kmod_open();
    kmod_region_t region;
    order_t order = {.region = &region};
    uint64_t end  = kmod_deadline();
    pthread_t thread;
    size_t i;

    kmod_region_create(&region, ctx, kmod_map(4 * PAGE), 4 * PAGE);
    CHECK_EQ(pthread_create(&thread, NULL, order_reader, &order), 0);
    while ((order.stale < 20) && (kmod_time_ms() < end)) {
        for (i = 0; i < 4; ++i) {
            *(volatile uint32_t*)(region.memory + i * PAGE) = 1;
        }
        kmod_populate_all(&region, 0, 4, NPRDMA_IOC_POPULATE_WRITE);
        CHECK(madvise(region.memory, 4 * PAGE, MADV_DONTNEED) == 0, "%m");
    }
    __atomic_store_n(&order.stop, 1, __ATOMIC_RELEASE);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    printf("%llu reads in a valid state, %llu told apart\n",
           (unsigned long long)order.valid, (unsigned long long)order.stale);
    CHECK_EQ(order.wrong, 0);
    CHECK(order.stale >= 20);
}

/* Takes the last page away again and again, present or not */
typedef struct elsewhere {
    kmod_region_t *region;
    int           stop;
} elsewhere_t;

static void *take_last(void *arg)
{
    elsewhere_t *elsewhere = arg;
    uint8_t *last = elsewhere->region->memory + (NUM_PAGES - 1) * PAGE;

    while (!__atomic_load_n(&elsewhere->stop, __ATOMIC_ACQUIRE)) {
        CHECK(madvise(last, PAGE, MADV_DONTNEED) == 0, "%m");
    }
    return NULL;
}

static uint64_t num_events(const kmod_region_t *region)
{
    struct nprdma_ioc_stats stats;

    kmod_stats(region->ctx, region->id, &stats);
    return stats.events;
}

/* Notifications of other pages do not make pages be looked up again */
static void test_elsewhere(void)
{
    enum { PAGES = NUM_PAGES / 2, EVENTS = 1000 };
    kmod_region_t region;
    elsewhere_t elsewhere = {.region = &region};
    struct nprdma_ioc_populate arg;
    uint64_t end = kmod_deadline(), events = 0, before;
    unsigned rounds;
    pthread_t thread;

    kmod_region_create(&region, kmod_open(), kmod_map(NUM_PAGES * PAGE),
                       NUM_PAGES * PAGE);
    CHECK_EQ(pthread_create(&thread, NULL, take_last, &elsewhere), 0);
    for (rounds = 0; (events < EVENTS) || (rounds < ROUNDS); ++rounds) {
        CHECK(kmod_time_ms() < end, "%llu events", (unsigned long long)events);
        CHECK(madvise(region.memory, PAGES * PAGE, MADV_DONTNEED) == 0, "%m");
        before = num_events(&region);
        CHECK_EQ(kmod_populate(&region, 0, PAGES, NPRDMA_IOC_POPULATE_WRITE,
                               &arg), 0);
        events += num_events(&region) - before;
        CHECK_EQ(arg.populated, PAGES);
        CHECK_EQ(arg.retries, 0);
    }
    __atomic_store_n(&elsewhere.stop, 1, __ATOMIC_RELEASE);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    printf("%llu events while %u times %d pages were populated\n",
           (unsigned long long)events, rounds, PAGES);
    kmod_region_destroy(&region);
}

static const kmod_case_t cases[] = {
    {"munmap", test_munmap},
    {"map_fixed", test_map_fixed},
    {"dontneed", test_dontneed},
    {"free", test_free},
    {"protect", test_protect},
    {"mremap", test_mremap},
    {"fork", test_fork},
    {"copy_on_write", test_copy_on_write},
    {"shmem", test_shmem},
    {"hugetlb", test_hugetlb},
    {"collapse_and_split", test_collapse_and_split},
    {"soft_dirty", test_soft_dirty},
    {"order", test_order},
    {"elsewhere", test_elsewhere},
    {NULL, NULL}
};

int main(int argc, char **argv)
{
    return kmod_main(cases, argc, argv);
}
