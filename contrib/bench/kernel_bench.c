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

#include "bench.h"

#include "../../test/edu/module/nprdma_edu.h"
#include <nprdma_uapi.h>

#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/ioctl.h>

#define PAGE          ((size_t)NPRDMA_PAGE_SIZE)
#define PAGES_BATCHES 16 /* places, used in rotation */
#define CYCLE_BLOCK   64 /* cycles that are timed together */

#define CALL(_fd, _nr, _arg) CHECK(ioctl(_fd, _nr, _arg) == 0, "%s: %m", #_nr)

static double *new_times(size_t count)
{
    double *times = calloc(count, sizeof(*times));

    CHECK(times != NULL, "no memory");
    return times;
}

static void touch(char *memory, size_t length)
{
    size_t i;

    for (i = 0; i < length; i += PAGE) {
        ((volatile char*)memory)[i] = 1;
    }
}

static int open_context(void)
{
    int ctx = open(NPRDMA_DEVICE_PATH, O_RDWR | O_CLOEXEC);

    CHECK(ctx >= 0, "%s: %m", NPRDMA_DEVICE_PATH);
    return ctx;
}

static uint32_t new_region(int ctx, char *memory, size_t length)
{
    struct nprdma_ioc_region_create create = {
        .size = sizeof(create), .address = (uintptr_t)memory, .length = length
    };
    struct nprdma_ioc_register reg = {
        .size = sizeof(reg), .address = (uintptr_t)memory, .length = length
    };

    CALL(ctx, NPRDMA_IOC_REGION_CREATE, &create);
    reg.region = create.region;
    CALL(ctx, NPRDMA_IOC_REGISTER, &reg);
    return create.region;
}

static void populate(int ctx, uint32_t region, char *memory, size_t length)
{
    struct nprdma_ioc_populate arg = {
        .size    = sizeof(arg),
        .flags   = NPRDMA_IOC_POPULATE_WRITE,
        .region  = region,
        .address = (uintptr_t)memory,
        .length  = length
    };

    CALL(ctx, NPRDMA_IOC_POPULATE, &arg);
}

/* Has the module examine QEMU's edu, a device behind VT-d */
static int attach_edu(int ctx)
{
    struct nprdma_ioc_attach_device attach = {.size = sizeof(attach)};
    struct nprdma_edu_info info;
    int edu = open(NPRDMA_EDU_PATH, O_RDWR | O_CLOEXEC);

    CHECK(edu >= 0, "%s: %m", NPRDMA_EDU_PATH);
    CALL(edu, NPRDMA_EDU_IOC_INFO, &info);
    snprintf(attach.name, sizeof(attach.name), "%s", info.name);
    CALL(ctx, NPRDMA_IOC_ATTACH_DEVICE, &attach);
    return edu;
}

/* Has it import the region, as an RDMA device would */
static void new_view(int ctx, int edu, uint32_t region)
{
    struct nprdma_ioc_export export = {
        .size = sizeof(export), .region = region
    };
    struct nprdma_edu_import import = {0};

    CALL(ctx, NPRDMA_IOC_EXPORT, &export);
    import.fd = export.fd;
    CALL(edu, NPRDMA_EDU_IOC_IMPORT, &import);
}

static void import(size_t length)
{
    int ctx      = open_context();
    int edu      = attach_edu(ctx);
    char *memory = map_memory(length);
    double start = now_us();

    new_view(ctx, edu, new_region(ctx, memory, length));
    printf("us %.3f\n", now_us() - start);
}

static void pages(const char *kind, size_t batch, size_t count)
{
    size_t length   = PAGES_BATCHES * batch * PAGE;
    double *touched = new_times(count);
    double *put_in  = new_times(count);
    double *taken   = new_times(count);
    int has_region  = strcmp(kind, "none") != 0;
    char *memory    = map_small_pages(length);
    uint32_t region = 0;
    double start, end;
    char *part;
    int ctx = -1;
    size_t i;

    if (has_region) {
        ctx    = open_context();
        region = new_region(ctx, memory, length);
    }
    if (strcmp(kind, "view") == 0) {
        new_view(ctx, attach_edu(ctx), region);
    }
    for (i = 0; i < count; ++i) {
        part  = memory + (i % PAGES_BATCHES) * batch * PAGE;
        start = now_us();
        touch(part, batch * PAGE);
        end        = now_us();
        touched[i] = end - start;
        if (has_region) {
            start = now_us();
            populate(ctx, region, part, batch * PAGE);
            put_in[i] = now_us() - start;
        }
        start = now_us();
        CHECK(madvise(part, batch * PAGE, MADV_DONTNEED) == 0, "madvise: %m");
        taken[i] = now_us() - start;
    }
    printf("touch %.3f populate %.3f take %.3f\n", median(touched, count),
           median(put_in, count), median(taken, count));
}

static void cycle(size_t batch, size_t count)
{
    size_t blocks = count / CYCLE_BLOCK;
    double *times = new_times(blocks);
    double start;
    char *memory;
    size_t i, j;

    for (i = 0; i < blocks; ++i) {
        start = now_us();
        for (j = 0; j < CYCLE_BLOCK; ++j) {
            memory = mmap(NULL, batch * PAGE, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            CHECK(memory != MAP_FAILED, "cannot map memory: %m");
            touch(memory, batch * PAGE);
            munmap(memory, batch * PAGE);
        }
        times[i] = (now_us() - start) / CYCLE_BLOCK;
    }
    printf("us %.3f\n", median(times, blocks));
}

int main(int argc, char **argv)
{
    if ((argc == 5) && (strcmp(argv[1], "pages") == 0)) {
        pages(argv[2], strtoull(argv[3], NULL, 0), strtoull(argv[4], NULL, 0));
    } else if ((argc == 3) && (strcmp(argv[1], "import") == 0)) {
        import(strtoull(argv[2], NULL, 0));
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
