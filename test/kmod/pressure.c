/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * What the kernel and other processes do to a process's memory: reclaim,
 * compaction, migration, KSM. A thread watches the states all the time, and in
 * the end all data is checked.
 */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "watch.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define MIB       ((size_t)1 << 20)
#define CGROUP    "/sys/fs/cgroup/"
#define KSM       "/sys/kernel/mm/ksm/"
#define NUM_PAGES 4096


/* Limit this process and its children to this much memory */
static void enter_memcg(const char *name, unsigned mib)
{
    char path[128], text[32];

    kmod_write_file(CGROUP "cgroup.subtree_control", "+memory");
    snprintf(path, sizeof(path), CGROUP "%s", name);
    CHECK((mkdir(path, 0755) == 0) || (errno == EEXIST), "%s: %m", path);
    snprintf(path, sizeof(path), CGROUP "%s/memory.max", name);
    snprintf(text, sizeof(text), "%uM", mib);
    CHECK_EQ(kmod_write_file(path, text), 0);
    snprintf(path, sizeof(path), CGROUP "%s/cgroup.procs", name);
    CHECK_EQ(kmod_write_file(path, "0"), 0);
}

static uint32_t value_of(size_t page, unsigned seed)
{
    return (uint32_t)page * 2654435761u + seed;
}

static void put_values(kmod_region_t *region, size_t first, size_t count,
                       unsigned seed)
{
    size_t i;

    for (i = first; i < first + count; ++i) {
        *(volatile uint32_t*)(region->memory + i * PAGE) = value_of(i, seed);
    }
}

static void check_values(kmod_region_t *region, size_t first, size_t count,
                         unsigned seed)
{
    size_t i;

    for (i = first; i < first + count; ++i) {
        CHECK_EQ(*(volatile uint32_t*)(region->memory + i * PAGE),
                 value_of(i, seed));
    }
}

/* No page of the process is pinned, by any counter of the kernel */
static void check_nothing_pinned(void)
{
    CHECK_EQ(kmod_read_number("/proc/self/status", "VmPin:"), 0);
    CHECK_EQ(kmod_read_number("/proc/self/status", "VmLck:"), 0);
    CHECK_EQ(kmod_read_number("/proc/vmstat", "nr_foll_pin_acquired "),
             kmod_read_number("/proc/vmstat", "nr_foll_pin_released "));
}

static int watch_has_seen(void *arg)
{
    kmod_watch_t *watch = arg;

    return __atomic_load_n(&watch->repeated, __ATOMIC_ACQUIRE) > 0;
}

/*
 * A region three times as large as the memory, all of it populated for devices:
 * the kernel swaps populated pages out all the same.
 */
static void test_swap(void)
{
    const size_t pages = 48 * MIB / PAGE;
    int ctx            = kmod_open();
    struct nprdma_ioc_stats stats;
    kmod_region_t region;
    kmod_watch_t watch;
    size_t first;

    enter_memcg("swap", 16);
    kmod_region_create(&region, ctx, kmod_map(pages * PAGE), pages * PAGE);
    kmod_watch_start(&watch, &region, getpid());
    put_values(&region, 0, pages, 1);
    for (first = 0; first < pages; first += 256) {
        CHECK_EQ(kmod_populate(&region, first, 256,
                               (first % 512) ? NPRDMA_IOC_POPULATE_WRITE : 0,
                               NULL), 0);
        /* While no page is taken away */
        CHECK(kmod_await(watch_has_seen, &watch));
    }
    check_nothing_pinned();
    check_values(&region, 0, pages, 1);
    kmod_watch_stop(&watch);
    kmod_stats(ctx, region.id, &stats);
    printf("populated %llu, invalidated %llu of %zu pages\n",
           (unsigned long long)stats.populated,
           (unsigned long long)stats.invalidated, pages);
    CHECK(stats.invalidated > pages / 2);
    CHECK(stats.present <= 16 * MIB / PAGE);
    kmod_region_destroy(&region);
}

/* Pages of the region that were accessed since forget_accesses() */
static long accessed_pages(const kmod_region_t *region)
{
    FILE *file = fopen("/proc/self/smaps", "r");
    long kib   = -1;
    int found  = 0;
    char line[256], range[64];

    CHECK(file != NULL, "%m");
    snprintf(range, sizeof(range), "%lx-%lx ", (unsigned long)region->memory,
             (unsigned long)(region->memory + region->length));
    while ((kib < 0) && (fgets(line, sizeof(line), file) != NULL)) {
        found |= strncmp(line, range, strlen(range)) == 0;
        if (found) {
            sscanf(line, "Referenced: %ld kB", &kib);
        }
    }
    fclose(file);
    CHECK(kib >= 0, "no mapping %s", range);
    return kib * 1024 / PAGE;
}

/* As reclaim does it, which takes pages that are not accessed from then on */
static void forget_accesses(const kmod_region_t *region)
{
    uint8_t *other = kmod_map(MIB);

    memset(other, 1, MIB);
    CHECK_EQ(kmod_write_file("/proc/self/clear_refs", "1"), 0);
    /* A CPU marks no page whose translation it still has. To unmap that many
     * pages makes all CPUs forget all translations of the process. */
    munmap(other, MIB);
    CHECK_EQ(accessed_pages(region), 0);
}

/*
 * The kernel sees no access of a device. Pages count as accessed when they are
 * populated, and when they are populated once more, and no other pages do.
 */
static void test_accessed(void)
{
    const size_t pages = 512, first = 100, count = 200, hole = 130;
    kmod_region_t region;
    unsigned flags;

    for (flags = 0; flags <= (NPRDMA_IOC_POPULATE_WRITE |
                              NPRDMA_IOC_POPULATE_RESIDENT); ++flags) {
        const int resident = !!(flags & NPRDMA_IOC_POPULATE_RESIDENT);

        kmod_region_create(&region, kmod_open(), kmod_map(pages * PAGE),
                           pages * PAGE);
        put_values(&region, 0, pages, 1);
        if (resident) {
            madvise(region.memory + hole * PAGE, PAGE, MADV_DONTNEED);
        }

        forget_accesses(&region);
        CHECK_EQ(kmod_populate(&region, first, count, flags, NULL), 0);
        CHECK_EQ(accessed_pages(&region), count - resident);
        CHECK_EQ(kmod_count(&region, 0, pages, 0), pages - count + resident);

        forget_accesses(&region);
        CHECK_EQ(kmod_populate(&region, first, count / 2, flags, NULL), 0);
        CHECK_EQ(accessed_pages(&region), count / 2 - resident);
        CHECK_EQ(kmod_count(&region, 0, pages, 0), pages - count + resident);
        kmod_region_destroy(&region);
        munmap(region.memory, region.length);
    }
}

static long long memory_pages(void)
{
    return kmod_read_number("/proc/meminfo", "MemTotal:") * 1024 / PAGE;
}

/*
 * A region twice as large as the machine's memory. Each page is populated for
 * devices, and earlier pages are swapped out for it. The pages left in memory
 * are swapped out on request.
 */
static void test_twice_the_memory(void)
{
    const size_t pages = 2 * memory_pages(), part = 1024;
    int ctx            = kmod_open();
    struct nprdma_ioc_stats stats;
    uint64_t end       = kmod_deadline();
    kmod_region_t region;
    size_t first, n;

    kmod_region_create(&region, ctx, kmod_map(pages * PAGE), pages * PAGE);
    for (first = 0; first < pages; first += part) {
        n = (pages - first < part) ? pages - first : part;
        put_values(&region, first, n, 1);
        CHECK_EQ(kmod_populate(&region, first, n, NPRDMA_IOC_POPULATE_WRITE,
                               NULL), 0);
    }
    check_nothing_pinned();
    kmod_stats(ctx, region.id, &stats);
    printf("populated %llu, invalidated %llu of %zu pages\n",
           (unsigned long long)stats.populated,
           (unsigned long long)stats.invalidated, pages);
    CHECK(stats.populated >= pages);
    CHECK(stats.invalidated > pages / 2);
    while ((stats.present > pages / 1000) && (kmod_time_ms() < end)) {
        CHECK(madvise(region.memory, region.length, MADV_PAGEOUT) == 0, "%m");
        kmod_stats(ctx, region.id, &stats);
    }
    CHECK(stats.present <= pages / 1000, "%llu",
          (unsigned long long)stats.present);
    check_values(&region, 0, pages, 1);
    kmod_region_destroy(&region);
}

static uint64_t num_invalidated(const kmod_region_t *region)
{
    struct nprdma_ioc_stats stats;

    kmod_stats(region->ctx, region->id, &stats);
    return stats.invalidated;
}

/*
 * Fill, watch, cause the event, check the data, until the event has taken at
 * least this many pages by its counter. Before the first event the watch has
 * seen a page twice in the same state, however slow it is. Otherwise it would
 * not know any page's earlier frame.
 */
static void run_until_gone(kmod_region_t *region, uint64_t pages,
                           uint64_t (*event)(kmod_region_t *region))
{
    uint64_t end  = kmod_deadline();
    uint64_t gone = 0;
    kmod_watch_t watch;

    kmod_region_create(region, kmod_open(), region->memory,
                       region->num_pages * PAGE);
    kmod_watch_start(&watch, region, getpid());
    do {
        CHECK(kmod_time_ms() < end, "only %llu pages were taken",
              (unsigned long long)gone);
        put_values(region, 0, region->num_pages, 2);
        CHECK_EQ(kmod_populate(region, 0, region->num_pages,
                               NPRDMA_IOC_POPULATE_WRITE, NULL), 0);
        CHECK(kmod_await(watch_has_seen, &watch));
        gone += event(region);
        check_values(region, 0, region->num_pages, 2);
    } while (gone < pages);
    kmod_watch_stop(&watch);
    printf("%llu pages taken\n", (unsigned long long)gone);
    kmod_region_destroy(region);
}

static uint64_t event_pageout(kmod_region_t *region)
{
    uint64_t before = num_invalidated(region);

    CHECK(madvise(region->memory, region->length, MADV_PAGEOUT) == 0, "%m");
    return num_invalidated(region) - before;
}

static void test_pageout(void)
{
    kmod_region_t region = {.memory    = kmod_map(NUM_PAGES * PAGE),
                            .num_pages = NUM_PAGES};

    run_until_gone(&region, 3 * NUM_PAGES, event_pageout);
}

/* A byte starts it, and a byte comes back at its end */
static int helper_socket;

static void helper(int fd, pid_t parent, void *memory, size_t length)
{
    struct iovec iov = {memory, length};
    int pidfd        = syscall(SYS_pidfd_open, parent, 0);
    char byte;

    CHECK(pidfd >= 0, "%m");
    while (read(fd, &byte, 1) == 1) {
        CHECK(syscall(SYS_process_madvise, pidfd, &iov, 1, MADV_PAGEOUT, 0) >=
              0, "%m");
        CHECK_EQ(write(fd, &byte, 1), 1);
    }
}

static uint64_t event_process_madvise(kmod_region_t *region)
{
    uint64_t before = num_invalidated(region);
    char byte       = 0;

    CHECK_EQ(write(helper_socket, &byte, 1), 1);
    CHECK_EQ(read(helper_socket, &byte, 1), 1);
    return num_invalidated(region) - before;
}

/* By another process, as daemons that save memory do */
static void test_process_madvise(void)
{
    kmod_region_t region = {.memory    = kmod_map(NUM_PAGES * PAGE),
                            .num_pages = NUM_PAGES};
    pid_t parent = getpid();
    int sockets[2];
    pid_t pid;

    /* Forked before there is memory that the two would share */
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0, "%m");
    pid = fork();
    if (pid == 0) {
        close(sockets[0]);
        helper(sockets[1], parent, region.memory, NUM_PAGES * PAGE);
        _exit(0);
    }
    close(sockets[1]);
    helper_socket = sockets[0];
    run_until_gone(&region, 3 * NUM_PAGES, event_process_madvise);
    close(sockets[0]);
    CHECK_EQ(kmod_wait(pid), 0);
}

/* Moves each page to the other memory node and back */
static uint64_t event_move(kmod_region_t *region)
{
    static void *pages[NUM_PAGES];
    static int nodes[NUM_PAGES], status[NUM_PAGES];
    static int node;
    uint64_t before = num_invalidated(region);
    size_t i, moved = 0;

    node = !node;
    for (i = 0; i < NUM_PAGES; ++i) {
        pages[i] = region->memory + i * PAGE;
        nodes[i] = node;
    }
    CHECK(syscall(SYS_move_pages, 0, NUM_PAGES, pages, nodes, status, 2) >= 0,
          "%m");
    for (i = 0; i < NUM_PAGES; ++i) {
        moved += status[i] == node;
    }
    CHECK(moved > NUM_PAGES / 2, "%zu pages", moved);
    return num_invalidated(region) - before;
}

static void test_move_pages(void)
{
    kmod_region_t region = {.memory    = kmod_map(NUM_PAGES * PAGE),
                            .num_pages = NUM_PAGES};

    if (access("/sys/devices/system/node/node1", F_OK) != 0) {
        kmod_skip("the machine has one memory node only");
    }
    run_until_gone(&region, 3 * NUM_PAGES, event_move);
}

/* The kernel unmaps pages for a moment to find out which node uses them */
static uint64_t event_balance(kmod_region_t *region)
{
    uint64_t before = num_invalidated(region);
    uint64_t end    = kmod_time_ms() + 2000;

    while ((num_invalidated(region) == before) && (kmod_time_ms() < end)) {
        check_values(region, 0, region->num_pages, 2);
    }
    return num_invalidated(region) - before;
}

static void test_numa_balancing(void)
{
    const char *file     = "/proc/sys/kernel/numa_balancing";
    kmod_region_t region = {.memory    = kmod_map(NUM_PAGES * PAGE),
                            .num_pages = NUM_PAGES};

    if (kmod_write_file(file, "1") != 0) {
        kmod_skip("%s cannot be had", file);
    }
    run_until_gone(&region, 100, event_balance);
    CHECK_EQ(kmod_write_file(file, "0"), 0);
}

/*
 * The region's pages lie between pages of other memory, over half of the free
 * memory, and the other pages are freed. Then the lower part of the region has
 * holes above it, too many to be filled by anything else, and compaction moves
 * it there.
 */
static uint64_t event_compact(kmod_region_t *region)
{
    size_t apart  = kmod_read_number("/proc/meminfo", "MemFree:") * 1024 / 2 /
                    region->length;
    size_t length = apart * region->length;
    uint8_t *others;
    uint64_t before;
    size_t i, other;

    CHECK(apart > 0, "there is too little memory for holes");
    others = kmod_map(length);
    madvise(region->memory, region->length, MADV_DONTNEED);
    for (i = 0; i < region->num_pages; ++i) {
        put_values(region, i, 1, 2);
        for (other = 0; other < apart; ++other) {
            *(volatile uint8_t*)(others + (i * apart + other) * PAGE) = 1;
        }
    }
    CHECK_EQ(kmod_populate(region, 0, region->num_pages,
                           NPRDMA_IOC_POPULATE_WRITE, NULL), 0);
    munmap(others, length);
    before = num_invalidated(region);
    CHECK_EQ(kmod_write_file("/proc/sys/vm/compact_memory", "1"), 0);
    return num_invalidated(region) - before;
}

static void test_compaction(void)
{
    kmod_region_t region = {.memory    = kmod_map(NUM_PAGES * PAGE),
                            .num_pages = NUM_PAGES};
    long long before = kmod_read_number("/proc/vmstat", "compact_isolated ");

    run_until_gone(&region, 100, event_compact);
    CHECK(kmod_read_number("/proc/vmstat", "compact_isolated ") > before);
}

/* Number of merged pages, including the pages that are left */
static long long ksm_pages(void)
{
    return kmod_read_number(KSM "pages_shared", "") +
           kmod_read_number(KSM "pages_sharing", "");
}

static void ksm_wait(long long pages)
{
    uint64_t end = kmod_deadline();

    while (ksm_pages() != pages) {
        CHECK(kmod_time_ms() < end, "%lld pages, not %lld", ksm_pages(), pages);
        usleep(10000);
    }
}

/* Equal pages are merged, and a write separates them again */
static void test_ksm(void)
{
    const size_t count = 512;
    int ctx            = kmod_open();
    kmod_region_t region;
    kmod_watch_t watch;
    size_t i;

    if (access(KSM "run", F_OK) != 0) {
        kmod_skip("this kernel has no KSM");
    }
    kmod_region_create(&region, ctx, kmod_map(count * PAGE), count * PAGE);
    for (i = 0; i < count; ++i) {
        memset(region.memory + i * PAGE, 5, PAGE);
    }
    kmod_populate_all(&region, 0, count, NPRDMA_IOC_POPULATE_WRITE);
    kmod_watch_start(&watch, &region, getpid());
    CHECK(kmod_await(watch_has_seen, &watch));
    CHECK(madvise(region.memory, region.length, MADV_MERGEABLE) == 0, "%m");
    CHECK_EQ(kmod_write_file(KSM "pages_to_scan", "10000"), 0);
    CHECK_EQ(kmod_write_file(KSM "sleep_millisecs", "10"), 0);
    CHECK_EQ(kmod_write_file(KSM "run", "1"), 0);
    ksm_wait(count);
    CHECK_EQ(kmod_write_file(KSM "run", "0"), 0);
    CHECK_EQ(kmod_count(&region, 0, count, 0), count);

    /* All pages are the same frame now, valid for reading, and not for
     * writing */
    kmod_populate_all(&region, 0, count, 0);
    CHECK_EQ(kmod_count(&region, 0, count, NPRDMA_PAGE_R), count);
    CHECK_EQ(kmod_populate(&region, 0, count, NPRDMA_IOC_POPULATE_WRITE |
                           NPRDMA_IOC_POPULATE_RESIDENT, NULL), 0);
    CHECK_EQ(kmod_count(&region, 0, count, NPRDMA_PAGE_R), count);
    kmod_populate_all(&region, 0, count / 2, NPRDMA_IOC_POPULATE_WRITE);
    memset(region.memory, 6, count / 2 * PAGE);
    CHECK_EQ(kmod_count(&region, 0, count / 2, NPRDMA_PAGE_BITS), count / 2);
    for (i = 0; i < region.length; i += 64) {
        CHECK_EQ(region.memory[i], (i < region.length / 2) ? 6 : 5);
    }
    CHECK_EQ(kmod_write_file(KSM "run", "2"), 0);
    ksm_wait(0);
    CHECK_EQ(kmod_count(&region, count / 2, count / 2, 0), count / 2);
    kmod_watch_stop(&watch);
}

/*
 * Collapse by khugepaged, also while pages are populated. It runs without a
 * pause after the first time.
 */
static uint64_t event_khugepaged(kmod_region_t *region)
{
    uint64_t before = num_invalidated(region);
    uint64_t end    = kmod_time_ms() + 2000;

    madvise(region->memory, region->length, MADV_HUGEPAGE);
    while ((num_invalidated(region) == before) && (kmod_time_ms() < end)) {
        usleep(1000);
    }
    before = num_invalidated(region) - before;
    check_values(region, 0, region->num_pages, 2);
    /* Split into small pages again */
    madvise(region->memory, region->length, MADV_DONTNEED);
    madvise(region->memory, region->length, MADV_NOHUGEPAGE);
    put_values(region, 0, region->num_pages, 2);
    madvise(region->memory, region->length, MADV_HUGEPAGE);
    return before;
}

static void test_khugepaged(void)
{
    const char *dir = "/sys/kernel/mm/transparent_hugepage/khugepaged/";
    kmod_region_t region = {.memory    = kmod_map(NUM_PAGES * PAGE),
                            .num_pages = NUM_PAGES};
    long long before = kmod_read_number("/proc/vmstat", "thp_collapse_alloc ");
    char path[128];

    snprintf(path, sizeof(path), "%sscan_sleep_millisecs", dir);
    CHECK_EQ(kmod_write_file(path, "1"), 0);
    snprintf(path, sizeof(path), "%spages_to_scan", dir);
    CHECK_EQ(kmod_write_file(path, "100000"), 0);
    run_until_gone(&region, NUM_PAGES, event_khugepaged);
    CHECK(kmod_read_number("/proc/vmstat", "thp_collapse_alloc ") > before);
}

static const kmod_case_t cases[] = {
    {"swap", test_swap},
    {"accessed", test_accessed},
    {"twice_the_memory", test_twice_the_memory},
    {"pageout", test_pageout},
    {"process_madvise", test_process_madvise},
    {"move_pages", test_move_pages},
    {"numa_balancing", test_numa_balancing},
    {"compaction", test_compaction},
    {"ksm", test_ksm},
    {"khugepaged", test_khugepaged},
    {NULL, NULL}
};

int main(int argc, char **argv)
{
    return kmod_main(cases, argc, argv);
}
