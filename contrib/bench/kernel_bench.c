/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * What the kernel module costs, for the lines kernel.* of contrib/bench, as
 * root in a guest:
 *
 *   kernel_bench pages none|region|view BATCH COUNT
 *                  BATCH pages at a time are touched, populated and taken
 *                  away again (MADV_DONTNEED), COUNT times: as they are, in a
 *                  region, or in a region that a device has imported
 *   kernel_bench import BYTES
 *                  a region of untouched memory, imported by a device
 *   kernel_bench cycle BATCH COUNT
 *                  BATCH pages are mapped, touched and unmapped, COUNT times
 *
 * Prints microseconds: the median of each step; all; the median of a cycle.
 */

#include "../../test/edu/edu.h"

#undef CHECK /* bench.h has one of its own */
#include "bench.h"

#define PAGES_BATCHES 16 /* places, used in rotation */
#define CYCLE_BLOCK   64 /* cycles that are timed together */
#define MAX_COUNT     2000

static double times[3][MAX_COUNT];

static void touch(uint8_t *memory, size_t length)
{
    size_t i;

    for (i = 0; i < length; i += PAGE) {
        ((volatile uint8_t*)memory)[i] = 1;
    }
}

/* QEMU's edu, a device behind VT-d, which the module has examined */
static int open_edu(int ctx)
{
    struct nprdma_ioc_check_device check;
    int edu = edu_open();

    CHECK(check_edu(ctx, edu, &check) == 0, "%s", check.why);
    return edu;
}

/* Has it import the region, as an RDMA device would */
static void new_view(kmod_region_t *region, int edu)
{
    int err = import(edu, export(region), NULL);

    CHECK(err == 0, "import: %s", strerror(err));
}

static void import_new(size_t length)
{
    int ctx         = kmod_open();
    int edu         = open_edu(ctx);
    uint8_t *memory = map_memory(length);
    double start    = now_us();
    kmod_region_t region;

    kmod_region_create(&region, ctx, memory, length);
    new_view(&region, edu);
    printf("us %.3f\n", now_us() - start);
}

static void pages(const char *kind, size_t batch, size_t count)
{
    size_t length        = PAGES_BATCHES * batch * PAGE;
    int has_region       = strcmp(kind, "none") != 0;
    uint8_t *memory      = map_small_pages(length);
    kmod_region_t region = {.memory = memory};
    size_t i, first;
    uint8_t *part;
    double start;

    CHECK(count <= MAX_COUNT, "at most %d times", MAX_COUNT);
    if (has_region) {
        kmod_region_create(&region, kmod_open(), memory, length);
    }
    if (strcmp(kind, "view") == 0) {
        new_view(&region, open_edu(region.ctx));
    }
    for (i = 0; i < count; ++i) {
        first = (i % PAGES_BATCHES) * batch;
        part  = memory + first * PAGE;
        start = now_us();
        touch(part, batch * PAGE);
        times[0][i] = now_us() - start;
        if (has_region) {
            start = now_us();
            CHECK(kmod_populate(&region, first, batch, WRITE, NULL) == 0,
                  "populate");
            times[1][i] = now_us() - start;
        }
        start = now_us();
        CHECK(madvise(part, batch * PAGE, MADV_DONTNEED) == 0, "madvise: %m");
        times[2][i] = now_us() - start;
    }
    printf("touch %.3f populate %.3f take %.3f\n", median(times[0], count),
           median(times[1], count), median(times[2], count));
}

static void cycle(size_t batch, size_t count)
{
    size_t blocks = count / CYCLE_BLOCK;
    double start;
    uint8_t *memory;
    size_t i, j;

    CHECK(blocks <= MAX_COUNT, "at most %d blocks", MAX_COUNT);
    for (i = 0; i < blocks; ++i) {
        start = now_us();
        for (j = 0; j < CYCLE_BLOCK; ++j) {
            memory = map_plain(batch * PAGE);
            touch(memory, batch * PAGE);
            munmap(memory, batch * PAGE);
        }
        times[0][i] = (now_us() - start) / CYCLE_BLOCK;
    }
    printf("us %.3f\n", median(times[0], blocks));
}

int main(int argc, char **argv)
{
    if ((argc == 5) && (strcmp(argv[1], "pages") == 0)) {
        pages(argv[2], strtoull(argv[3], NULL, 0), strtoull(argv[4], NULL, 0));
    } else if ((argc == 3) && (strcmp(argv[1], "import") == 0)) {
        import_new(strtoull(argv[2], NULL, 0));
    } else if ((argc == 4) && (strcmp(argv[1], "cycle") == 0)) {
        cycle(strtoull(argv[2], NULL, 0), strtoull(argv[3], NULL, 0));
    } else {
        fprintf(stderr, "usage: kernel_bench pages none|region|view "
                        "BATCH COUNT\n       kernel_bench import BYTES\n"
                        "       kernel_bench cycle BATCH COUNT\n");
        return 2;
    }
    return EXIT_SUCCESS;
}
