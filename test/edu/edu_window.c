/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * The PTE engine, one page at a time: where the device's DMA goes after a page
 * of a window is pointed, before and after the flush. These tests do not need
 * nprdma.ko, because the test module contains the same objects.
 */

#include "edu.h"

#include <stdbool.h>
#include <sys/mman.h>

/* Spans several leaf tables, and is not a multiple of a power of two */
#define NPAGES    1203
#define BORDER    512
#define SIGNATURE 0x5169aa5569aa5516ull

/* The driver's pages, the targets of windows */
static uint8_t *page(int edu, unsigned number)
{
    static uint8_t *pages;

    if (pages == NULL) {
        pages = mmap(NULL, NPRDMA_EDU_PAGES * PAGE, PROT_READ | PROT_WRITE,
                     MAP_SHARED, edu, 0);
        CHECK(pages != MAP_FAILED, "%m");
    }
    return pages + number * PAGE;
}

static uint64_t first_word(int edu, unsigned number, size_t offset)
{
    return *(volatile uint64_t*)(page(edu, number) + offset);
}

static int make_window(int edu, uint64_t npages, bool writable)
{
    struct nprdma_edu_window window = {
        .npages   = npages,
        .pattern  = writable ? 0 : SIGNATURE,
        .writable = writable
    };
    int ret = kmod_call(edu, NPRDMA_EDU_IOC_WINDOW, &window);

    if (ret != 0) {
        printf("no window: %s\n", window.why);
    }
    return ret;
}

static void point_range(int edu, uint64_t index, unsigned count,
                        unsigned number, bool flush)
{
    struct nprdma_edu_point arg = {
        .index = index, .count = count, .page = number, .flush = flush
    };

    CHECK_CALL(edu, NPRDMA_EDU_IOC_POINT, &arg, 0);
}

static void point(int edu, uint64_t index, unsigned number, bool flush)
{
    point_range(edu, index, 1, number, flush);
}

/* The word that the device reads in a page of the window */
static uint64_t seen(int edu, uint64_t index)
{
    return edu_read(edu, index * PAGE);
}

static void test_reads_of_page(int edu, uint64_t index)
{
    /* Absent. From here on, the IOMMU has cached all three. */
    CHECK_EQ(seen(edu, index), SIGNATURE);
    CHECK_EQ(seen(edu, index - 1), SIGNATURE);
    CHECK_EQ(seen(edu, index + 1), SIGNATURE);

    /* Control: without the flush the device still uses the cached entry */
    point(edu, index, 0, false);
    CHECK_EQ(seen(edu, index), SIGNATURE);

    point(edu, index, 0, true);
    CHECK_EQ(seen(edu, index), 0x1111);
    CHECK_EQ(seen(edu, index - 1), SIGNATURE);
    CHECK_EQ(seen(edu, index + 1), SIGNATURE);

    point(edu, index, 1, true);
    CHECK_EQ(seen(edu, index), 0x2222);

    point(edu, index, NPRDMA_EDU_REST, true);
    CHECK_EQ(seen(edu, index), SIGNATURE);
}

static void test_reads(void)
{
    int edu = edu_open();

    edu_fill(page(edu, 0), 0x1111);
    edu_fill(page(edu, 1), 0x2222);
    CHECK_EQ(make_window(edu, NPAGES, false), 0);
    test_reads_of_page(edu, 5);
    test_reads_of_page(edu, BORDER);
    test_reads_of_page(edu, NPAGES - 2);
}

/* One flush covers pages that the IOMMU has cached, wherever the range
 * begins */
static void test_range(int edu, uint64_t index, unsigned count)
{
    unsigned i;

    for (i = 0; i < count; ++i) {
        CHECK_EQ(seen(edu, index + i), SIGNATURE);
    }
    point_range(edu, index, count, 0, true);
    for (i = 0; i < count; ++i) {
        CHECK_EQ(seen(edu, index + i), 0x1000 + i);
    }
    point_range(edu, index, count, NPRDMA_EDU_REST, true);
    for (i = 0; i < count; ++i) {
        CHECK_EQ(seen(edu, index + i), SIGNATURE);
    }
}

/*
 * An invalidation covers a power of two of pages, aligned to its size. Each of
 * these ranges crosses the end of such a block.
 */
static void test_ranges(void)
{
    struct nprdma_edu_address address = {.offset = 0};
    int edu = edu_open();
    unsigned i;

    for (i = 0; i < NPRDMA_EDU_PAGES; ++i) {
        edu_fill(page(edu, i), 0x1000 + i);
    }
    CHECK_EQ(make_window(edu, NPAGES, false), 0);
    CHECK_CALL(edu, NPRDMA_EDU_IOC_ADDRESS, &address, 0);
    CHECK_EQ(address.address % (BORDER * PAGE), 0);

    test_range(edu, 1, 2);
    test_range(edu, 14, 3);
    test_range(edu, BORDER - 3, 4);
    test_range(edu, NPAGES - 5, 5);
}

static void test_writes(void)
{
    const uint64_t index = BORDER - 1;
    int edu = edu_open();
    unsigned i;

    for (i = 0; i < 4; ++i) {
        edu_fill(page(edu, i), 0x1000 + i);
    }
    CHECK_EQ(make_window(edu, NPAGES, true), 0);

    /* The write arrives in the page, and nowhere else */
    point(edu, index - 1, 0, true);
    point(edu, index, 1, true);
    point(edu, index + 1, 2, true);
    edu_write(edu, index * PAGE + 1024, 0x77);
    CHECK_EQ(first_word(edu, 1, 1024 - 8), 0x1001);
    CHECK_EQ(first_word(edu, 1, 1024), 0x77);
    CHECK_EQ(first_word(edu, 1, 1024 + EDU_DMA - 8), 0x77);
    CHECK_EQ(first_word(edu, 1, 1024 + EDU_DMA), 0x1001);
    CHECK(edu_holds(page(edu, 0), 0x1000) && edu_holds(page(edu, 2), 0x1002));

    /* Control: without the flush the write still arrives */
    edu_fill(page(edu, 1), 0x1001);
    point(edu, index, NPRDMA_EDU_REST, false);
    edu_write(edu, index * PAGE, 0x88);
    CHECK_EQ(first_word(edu, 1, 0), 0x88);

    edu_fill(page(edu, 1), 0x1001);
    point(edu, index, NPRDMA_EDU_REST, true);
    edu_write(edu, index * PAGE, 0x99);
    CHECK(edu_holds(page(edu, 1), 0x1001));

    point(edu, index, 3, true);
    edu_write(edu, index * PAGE, 0xaa);
    CHECK_EQ(first_word(edu, 3, 0), 0xaa);
    CHECK(edu_holds(page(edu, 0), 0x1000) && edu_holds(page(edu, 1), 0x1001) &&
          edu_holds(page(edu, 2), 0x1002));
}

/* More than one DMA mapping, and windows that end while they are pointed */
static void test_pieces(void)
{
    const uint64_t border = 16384, npages = border + 777;
    int edu = edu_open();
    int i;

    edu_fill(page(edu, 0), 0x3333);
    for (i = 0; i < 3; ++i) {
        CHECK_EQ(make_window(edu, npages, false), 0);
        point(edu, border - 1, 0, true);
        point(edu, npages - 1, 0, true);
        CHECK_EQ(seen(edu, border - 1), 0x3333);
        CHECK_EQ(seen(edu, border), SIGNATURE);
        CHECK_EQ(seen(edu, npages - 1), 0x3333);
        edu_release(edu);
    }
}

/* A window beyond the device's DMA mask is refused, with the reason */
static void test_full(void)
{
    struct nprdma_edu_info info;
    struct nprdma_edu_window window = {0};
    int edu = edu_open();

    CHECK_CALL(edu, NPRDMA_EDU_IOC_INFO, &info, 0);
    CHECK_EQ(info.dma_mask, ((uint64_t)1 << 28) - 1);
    window.npages = (info.dma_mask + 1) / PAGE;
    CHECK_CALL(edu, NPRDMA_EDU_IOC_WINDOW, &window, ENOMEM);
    CHECK(strstr(window.why, "28 address bits") != NULL, "%s", window.why);

    /* Nothing of it is left */
    edu_fill(page(edu, 0), 0x5555);
    CHECK_EQ(make_window(edu, NPAGES, false), 0);
    point(edu, 0, 0, true);
    CHECK_EQ(seen(edu, 0), 0x5555);
}

/* For each write the IOMMU reports a fault in the kernel's log */
static void test_read_only(void)
{
    int edu = edu_open();

    CHECK_EQ(make_window(edu, NPAGES, false), 0);
    edu_fill(page(edu, 0), 0x4444);
    point(edu, 7, 0, true);
    edu_write(edu, 7 * PAGE, 0x55);
    CHECK(edu_holds(page(edu, 0), 0x4444));
    edu_write(edu, 8 * PAGE, 0x55);
    CHECK_EQ(seen(edu, 8), SIGNATURE);
    CHECK_EQ(seen(edu, 7), 0x4444);
}

/* On a machine that is refused; the script checks the printed reason */
static void test_refused(void)
{
    int edu = edu_open();

    CHECK_EQ(make_window(edu, NPAGES, false), EOPNOTSUPP);
    CHECK_EQ(make_window(edu, NPAGES, true), EOPNOTSUPP);
}

#define TRACING "/sys/kernel/tracing/"

/* Invalidations of IOTLB entries in the trace; each has 2^order pages */
static unsigned count_invalidations(unsigned order)
{
    FILE *file     = fopen(TRACING "trace", "r");
    unsigned count = 0;
    unsigned long long address;
    char line[512];
    char *at;

    CHECK(file != NULL, "%m");
    while (fgets(line, sizeof(line), file) != NULL) {
        at = strstr(line, "iotlb_inv ");
        if ((at == NULL) ||
            (sscanf(at, "%*s %*s %*x %llx", &address) != 1)) {
            continue;
        }
        CHECK_EQ(address & 63, order);
        ++count;
    }
    fclose(file);
    return count;
}

/* Flushing 16 pages takes one invalidation, or more if the unit's largest one
 * is smaller */
static void test_invalidations(void)
{
    const char *limit = getenv("EDU_MAX_ORDER");
    unsigned order    = (limit != NULL) ? atoi(limit) : 18;
    int edu           = edu_open();

    order = (order < 4) ? order : 4;
    CHECK_EQ(make_window(edu, NPAGES, false), 0);
    CHECK_EQ(kmod_write_file(TRACING "trace", ""), 0);
    CHECK_EQ(kmod_write_file(TRACING "events/intel_iommu/qi_submit/enable",
                             "1"), 0);
    /* The device does nothing else meanwhile */
    point_range(edu, 32, 16, 0, true);
    CHECK_EQ(kmod_write_file(TRACING "events/intel_iommu/qi_submit/enable",
                             "0"), 0);
    CHECK_EQ(count_invalidations(order), 16 >> order);
    CHECK_EQ(seen(edu, 32 + 15), first_word(edu, 15, 0));
}

int main(int argc, char **argv)
{
    static const kmod_case_t cases[] = {
        {"reads",         test_reads},
        {"ranges",        test_ranges},
        {"writes",        test_writes},
        {"pieces",        test_pieces},
        {"full",          test_full},
        {"read_only",     test_read_only},
        {"refused",       test_refused},
        {"invalidations", test_invalidations},
        {NULL,            NULL}
    };

    if (argc < 2) {
        printf("usage: edu_window CASE...\n");
        return 2;
    }
    return kmod_main(cases, argc, argv);
}
