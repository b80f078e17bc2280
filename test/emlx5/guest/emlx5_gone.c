/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * emlx5_gone FROM TO FILE: FROM writes to memory of TO through views of
 * nprdma.ko while pages come and go, and TO is reset or loses its driver. It
 * prints "traffic" when that may begin. Pages continue to come and go. When
 * FILE exists, TO must be there again, and the region is imported again.
 */

#include "hw_region.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    PAGES    = 16,
    WORDS    = PAGES * HW_WORDS,
    LENGTH   = PAGES * HW_PAGE,
    ENOUGH   = 100, /* WRITEs that were seen in memory */
    PATIENCE = 240, /* seconds */
    PAUSE_US = 2000
};

/* What the CPU writes after the device is gone; no WRITE has such words */
static const uint64_t own = 0x6f776e0000000000ull;

typedef struct {
    hw_region_t   region;
    atomic_int    ends;
    atomic_ulong  turns;
    unsigned long puts;
} gone_t;

static uint64_t gone_load(const gone_t *gone, size_t word)
{
    return __atomic_load_n(&gone->region.memory[word], __ATOMIC_RELAXED);
}

/* Neither call may fail because of what happens to the device */
static void *gone_turn(void *arg)
{
    gone_t *gone         = arg;
    const hw_region_t *r = &gone->region;

    while (!gone->ends) {
        hw_populate(r, 0, PAGES, NPRDMA_IOC_POPULATE_WRITE);
        usleep(PAUSE_US);
        hw_invalidate(r, gone->turns % PAGES, 1);
        usleep(PAUSE_US);
        ++gone->turns;
    }
    return NULL;
}

/* A WRITE to all pages; views has more to say about where it lands */
static enum ibv_wc_status gone_put(gone_t *gone, time_t end)
{
    hw_region_t *r = &gone->region;
    struct ibv_wc wc;
    size_t i;

    ++gone->puts;
    for (i = 0; i < WORDS; ++i) {
        hw_buffer(r)[i] = gone->puts;
    }
    hw_post(r, 1, 0, LENGTH);
    while (ibv_poll_cq(r->pair.a.cq, 1, &wc) == 0) {
        CHECK(time(NULL) < end, "no completion");
    }
    return wc.status;
}

/* WRITEs until enough were seen, or until one fails. @return Its status. */
static enum ibv_wc_status gone_put_until(gone_t *gone, int ends)
{
    time_t end         = time(NULL) + PATIENCE;
    unsigned long seen = 0;
    enum ibv_wc_status status;

    while ((status = gone_put(gone, end)) == IBV_WC_SUCCESS) {
        CHECK(time(NULL) < end, "%lu of %lu WRITEs seen", seen, gone->puts);
        if ((gone_load(gone, gone->puts % WORDS) != gone->puts) ||
            (++seen != ENOUGH)) {
            continue;
        }
        if (ends) {
            return status;
        }
        printf("traffic\n");
    }
    CHECK((seen >= ENOUGH) && !ends, "%s", ibv_wc_status_str(status));
    return status;
}

static void gone_check_own(const gone_t *gone)
{
    size_t i;

    for (i = 0; i < WORDS; ++i) {
        CHECK(gone_load(gone, i) == own + i, "word %zu is %#lx", i,
              gone_load(gone, i));
    }
}

/* The device is gone: what it wrote is what it was told to, and from now on it
 * writes nothing */
static void gone_absence(gone_t *gone, const char *path)
{
    time_t end = time(NULL) + PATIENCE;
    unsigned long turns;
    size_t i;

    for (i = 0; i < WORDS; ++i) {
        CHECK(gone_load(gone, i) <= gone->puts, "word %zu is %#lx", i,
              gone_load(gone, i));
        gone->region.memory[i] = own + i;
    }
    /* The kernel says so in any case, whether there was a request or not */
    side_wait_event(&gone->region.pair.b, IBV_EVENT_DEVICE_FATAL, PATIENCE);
    turns = gone->turns;
    while (access(path, F_OK) != 0) {
        CHECK(time(NULL) < end, "no %s", path);
        usleep(PAUSE_US);
    }
    gone_check_own(gone);
    CHECK(gone->turns > turns, "the pages did not move");
    printf("absence: %lu turns of %lu, after %lu WRITEs\n", gone->turns - turns,
           (unsigned long)gone->turns, gone->puts);
}

int main(int argc, char **argv)
{
    gone_t gone    = {.puts = 0};
    hw_region_t *r = &gone.region;
    pthread_t thread;

    if (argc != 4) {
        fprintf(stderr, "usage: emlx5_gone FROM TO FILE\n");
        return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    hw_open(r, argv[1], argv[2], LENGTH);
    memset(r->memory, 0, LENGTH);
    CHECK(pthread_create(&thread, NULL, gone_turn, &gone) == 0, "no thread");
    printf("gone: %s\n", ibv_wc_status_str(gone_put_until(&gone, 0)));
    gone_absence(&gone, argv[3]);

    /* Objects of the old context are void, and remain until the process ends */
    pair_open(&r->pair, argv[1], argv[2]);
    pair_connect(&r->pair);
    hw_import(r);
    gone_check_own(&gone);
    gone_put_until(&gone, 1);
    gone.ends = 1;
    pthread_join(thread, NULL);
    printf("again: %lu WRITEs\n", gone.puts);
    hw_close(r);
    return 0;
}
