/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * Reclaim. A thread watches the states all the time, and in the end all data is
 * checked. test/kernel has KSM, compaction and huge pages.
 */

#include "watch.h"

/* No page of the process is pinned, by any counter of the kernel */
static void check_nothing_pinned(void)
{
    CHECK_EQ(kmod_read_number("/proc/self/status", "VmPin:"), 0);
    CHECK_EQ(kmod_read_number("/proc/self/status", "VmLck:"), 0);
    CHECK_EQ(kmod_read_number("/proc/vmstat", "nr_foll_pin_acquired "),
             kmod_read_number("/proc/vmstat", "nr_foll_pin_released "));
}

/*
 * A region three times as large as the memory, all of it populated for devices:
 * the kernel swaps populated pages out all the same.
 */
KMOD_CASE(pressure, swap)
{
    const size_t pages = 48 * MIB / PAGE;
    struct nprdma_ioc_stats stats;
    kmod_region_t region;
    kmod_watch_t watch;
    size_t first;

    kmod_enter_memcg("swap", 16);
    kmod_region(&region, pages);
    kmod_watch_start(&watch, &region, getpid());
    kmod_put_values(&region, 0, pages, 1);
    for (first = 0; first < pages; first += 256) {
        CHECK_EQ(kmod_populate(&region, first, 256, (first % 512) ? WRITE : 0,
                               NULL), 0);
        /* While no page is taken away */
        kmod_watch_await(&watch);
    }
    check_nothing_pinned();
    kmod_check_values(&region, 0, pages, 1);
    kmod_watch_stop(&watch);
    stats = kmod_stats(region.ctx, region.id);
    printf("populated %llu, invalidated %llu of %zu pages\n",
           (unsigned long long)stats.populated,
           (unsigned long long)stats.invalidated, pages);
    CHECK(stats.invalidated > pages / 2);
    CHECK(stats.present <= 16 * MIB / PAGE);
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
    const size_t length = 4 * MIB;
    uint8_t *other      = kmod_map(length);

    memset(other, 1, length);
    CHECK_EQ(kmod_write_file("/proc/self/clear_refs", "1"), 0);
    /* A CPU marks no page whose translation it still has. To unmap that many
     * pages makes all CPUs forget all translations of the process. */
    munmap(other, length);
    CHECK_EQ(accessed_pages(region), 0);
}

/*
 * The kernel sees no access of a device. Pages count as accessed when they are
 * populated, and when they are populated once more, and no other pages do.
 */
KMOD_CASE(pressure, accessed)
{
    const size_t pages = 512, first = 100, count = 200, hole = 130;
    size_t absent, again;
    kmod_region_t region;
    unsigned flags;

    for (flags = 0; flags <= (WRITE | RESIDENT); ++flags) {
        kmod_region(&region, pages);
        kmod_put_values(&region, 0, pages, 1);
        absent = !!(flags & RESIDENT);
        if (absent) {
            kmod_take(&region, hole, 1);
        }
        for (again = count; again > 0; again -= count / 2) {
            forget_accesses(&region);
            CHECK_EQ(kmod_populate(&region, first, again, flags, NULL), 0);
            CHECK_EQ(accessed_pages(&region), again - absent);
            CHECK_EQ(kmod_count(&region, 0, pages, 0), pages - count + absent);
        }
        kmod_region_destroy(&region);
        munmap(region.memory, region.length);
    }
}

/* --- written pages ------------------------------------------------------- */

/*
 * A page that a read brought back from swap is clean. The kernel may drop it,
 * because it is on the disk. A write by a device is lost then, unless the page
 * is marked dirty. nprdma_poke.ko writes like a device.
 */

#define DIRTY_PAGES 64
#define OLD         0x01010101u
#define NEW         0x02020202u

static volatile uint32_t *word(const kmod_region_t *region, size_t page)
{
    return (uint32_t*)(region->memory + page * PAGE);
}

static int none_mapped(void *arg)
{
    kmod_region_t *region = arg;
    uint64_t entries[DIRTY_PAGES];
    int fd = open("/proc/self/pagemap", O_RDONLY);
    size_t i, count = 0;

    CHECK_OK(madvise(region->memory, region->length, MADV_PAGEOUT));
    CHECK_EQ(pread(fd, entries, sizeof(entries),
                   (uintptr_t)region->memory / PAGE * sizeof(entries[0])),
             sizeof(entries));
    close(fd);
    for (i = 0; i < DIRTY_PAGES; ++i) {
        count += entries[i] >> 63;
    }
    return count == 0;
}

/* Move the pages from the process to swap, and then drop the swap cache */
static void swap_out(kmod_region_t *region)
{
    int i;

    CHECK(kmod_await(none_mapped, region));
    sync();
    for (i = 0; i < 8; ++i) {
        /* Fails with EAGAIN when nothing is left to reclaim */
        kmod_write_file(CGROUP "dirty/memory.reclaim", "64M");
    }
}

/* Number of the device's writes that are intact after all pages were swapped
 * out again */
static unsigned survivors(unsigned flags)
{
    int poke       = open("/dev/nprdma_poke", O_WRONLY);
    uint32_t value = NEW;
    unsigned count = 0;
    kmod_region_t region;
    size_t i;

    CHECK(poke >= 0, "%m");
    kmod_enter_memcg("dirty", 1024);
    kmod_region(&region, DIRTY_PAGES);
    for (i = 0; i < DIRTY_PAGES; ++i) {
        *word(&region, i) = OLD;
    }
    swap_out(&region);
    for (i = 0; i < DIRTY_PAGES; ++i) {
        CHECK_EQ(*word(&region, i), OLD);
    }

    kmod_populate_all(&region, 0, DIRTY_PAGES, flags);
    for (i = 0; i < DIRTY_PAGES; ++i) {
        CHECK_EQ(pwrite(poke, &value, sizeof(value), (off_t)word(&region, i)),
                 sizeof(value));
        CHECK_EQ(*word(&region, i), NEW);
    }
    swap_out(&region);
    CHECK_EQ(kmod_count(&region, 0, DIRTY_PAGES, 0), DIRTY_PAGES);
    for (i = 0; i < DIRTY_PAGES; ++i) {
        count += *word(&region, i) == NEW;
    }
    printf("%u of %u writes survived\n", count, DIRTY_PAGES);
    kmod_region_destroy(&region);
    close(poke);
    return count;
}

KMOD_CASE(dirty, written_by_device)
{
    CHECK_EQ(survivors(WRITE), DIRTY_PAGES);
}

/* Control: pages populated for reading are not marked, so writes to them do get
 * lost */
KMOD_CASE(dirty, control)
{
    CHECK(survivors(0) < DIRTY_PAGES);
}
