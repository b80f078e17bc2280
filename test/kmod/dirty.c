/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * A page that a read brought back from swap is clean. The kernel may drop it,
 * because it is on the disk. A write by a device is lost then, unless the page
 * is marked dirty.
 */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "kmod_test.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef MADV_PAGEOUT
#define MADV_PAGEOUT 21
#endif

#define NUM_PAGES 64
#define OLD       0x01010101u
#define NEW       0x02020202u


static unsigned num_resident(kmod_region_t *region)
{
    uint64_t entries[NUM_PAGES];
    int fd         = open("/proc/self/pagemap", O_RDONLY);
    unsigned count = 0;
    size_t i;

    CHECK_EQ(pread(fd, entries, sizeof(entries),
                   (uintptr_t)region->memory / PAGE * sizeof(entries[0])),
             sizeof(entries));
    close(fd);
    for (i = 0; i < NUM_PAGES; ++i) {
        count += entries[i] >> 63;
    }
    return count;
}

#define CGROUP "/sys/fs/cgroup/"

static void enter_memcg(void)
{
    kmod_write_file(CGROUP "cgroup.subtree_control", "+memory");
    CHECK((mkdir(CGROUP "dirty", 0755) == 0) || (errno == EEXIST), "%m");
    CHECK_EQ(kmod_write_file(CGROUP "dirty/cgroup.procs", "0"), 0);
}

static int none_mapped(void *arg)
{
    kmod_region_t *region = arg;

    CHECK(madvise(region->memory, region->length, MADV_PAGEOUT) == 0, "%m");
    return num_resident(region) == 0;
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

static uint32_t *word(kmod_region_t *region, size_t page)
{
    return (uint32_t*)(region->memory + page * PAGE);
}

/* Number of the device's writes that are intact after all pages were swapped
 * out again */
static unsigned survivors(unsigned flags)
{
    int poke       = open("/dev/nprdma_poke", O_WRONLY);
    int ctx        = kmod_open();
    unsigned count = 0;
    uint32_t value = NEW;
    kmod_region_t region;
    size_t i;

    CHECK(poke >= 0, "%m");
    enter_memcg();
    kmod_region_create(&region, ctx, kmod_map(NUM_PAGES * PAGE),
                       NUM_PAGES * PAGE);
    for (i = 0; i < NUM_PAGES; ++i) {
        *word(&region, i) = OLD;
    }
    swap_out(&region);
    for (i = 0; i < NUM_PAGES; ++i) {
        CHECK_EQ(*(volatile uint32_t*)word(&region, i), OLD);
    }

    kmod_populate_all(&region, 0, NUM_PAGES, flags);
    for (i = 0; i < NUM_PAGES; ++i) {
        CHECK_EQ(pwrite(poke, &value, sizeof(value), (off_t)word(&region, i)),
                 sizeof(value));
        CHECK_EQ(*(volatile uint32_t*)word(&region, i), NEW);
    }
    swap_out(&region);
    CHECK_EQ(kmod_count(&region, 0, NUM_PAGES, 0), NUM_PAGES);
    for (i = 0; i < NUM_PAGES; ++i) {
        count += *(volatile uint32_t*)word(&region, i) == NEW;
    }
    kmod_region_destroy(&region);
    close(poke);
    return count;
}

static void test_written_by_device(void)
{
    CHECK_EQ(survivors(NPRDMA_IOC_POPULATE_WRITE), NUM_PAGES);
}

/* Control: pages populated for reading are not marked, so writes to them do get
 * lost */
static void test_control(void)
{
    unsigned count = survivors(0);

    printf("%u of %u writes survived\n", count, NUM_PAGES);
    CHECK(count < NUM_PAGES);
}

static const kmod_case_t cases[] = {
    {"written_by_device", test_written_by_device},
    {"control", test_control},
    {NULL, NULL}
};

int main(int argc, char **argv)
{
    return kmod_main(cases, argc, argv);
}
