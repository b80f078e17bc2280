/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * emlx5_gone FROM TO FILE: FROM writes to memory of TO through windows of
 * nprdma.ko while pages come and go, and TO is reset or loses its driver. It
 * prints "traffic" when that may begin. Pages continue to come and go. When
 * FILE exists, TO must be there again, and the region is imported again.
 */

#include "hw_access.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    PAGES    = 16,
    WORDS    = PAGES * HW_WORDS,
    LENGTH   = PAGES * HW_PAGE,
    ENOUGH   = 100, /* pages that are verified */
    PATIENCE = 120, /* seconds */
    PAUSE_US = 2000
};

/* What the CPU writes after the device is gone; no WRITE has such words */
static const uint64_t own = 0x6f776e0000000000ull;

typedef struct {
    hw_access_t       access;
    atomic_int        ends;
    atomic_ulong      turns;
    unsigned long     puts, verified;
    enum ibv_wc_status outcome; /* of the WRITE that did not succeed */
} gone_t;

static time_t gone_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec;
}

static uint64_t gone_load(const gone_t *gone, size_t word)
{
    return __atomic_load_n(&gone->access.region.memory[word], __ATOMIC_RELAXED);
}

/* Neither call may fail because of what happens to the device */
static void *gone_turn(void *arg)
{
    gone_t *gone         = arg;
    const hw_region_t *r = &gone->access.region;

    while (!gone->ends) {
        hw_populate(r, 0, PAGES, NPRDMA_IOC_POPULATE_WRITE);
        usleep(PAUSE_US);
        hw_invalidate(r, gone->turns % PAGES, 1);
        usleep(PAUSE_US);
        ++gone->turns;
    }
    return NULL;
}

/* Status of the next completion */
static enum ibv_wc_status gone_wait(gone_t *gone)
{
    time_t end = gone_now() + PATIENCE;
    struct ibv_wc wc;

    while (ibv_poll_cq(gone->access.pair.a.cq, 1, &wc) == 0) {
        CHECK(gone_now() < end, "no completion");
    }
    return wc.status;
}

/* A verified WRITE to all pages. @return 0 if it did not succeed. */
static int gone_put(gone_t *gone)
{
    hw_access_t *a       = &gone->access;
    const hw_region_t *r = &a->region;
    uint32_t before[PAGES], state;
    size_t i, j;

    ++gone->puts;
    for (i = 0; i < WORDS; ++i) {
        hw_buffer(a)[i] = gone->puts;
    }
    for (i = 0; i < PAGES; ++i) {
        before[i] = hw_state(r, i);
    }
    hw_post(a, 1, 0, 0, LENGTH);
    hw_post_states(a, 0, PAGES);
    for (i = 0; i < 2; ++i) {
        gone->outcome = gone_wait(gone);
        if (gone->outcome != IBV_WC_SUCCESS) {
            return 0;
        }
    }
    for (i = 0; i < PAGES; ++i) {
        state = hw_read_state(a, i);
        if (!(state & NPRDMA_PAGE_W) || (state != before[i])) {
            continue;
        }
        ++gone->verified;
        for (j = i * HW_WORDS; j < (i + 1) * HW_WORDS; ++j) {
            CHECK(gone_load(gone, j) == gone->puts, "page %zu: %#lx after %lu",
                  i, gone_load(gone, j), gone->puts);
        }
    }
    return 1;
}

static void gone_put_until(gone_t *gone, int ends)
{
    unsigned long first = gone->verified;
    time_t end          = gone_now() + PATIENCE;
    int is_told         = 0;

    while (gone_put(gone)) {
        CHECK(gone_now() < end, "%lu WRITEs, %lu pages verified", gone->puts,
              gone->verified - first);
        if (gone->verified - first < ENOUGH) {
            continue;
        }
        if (ends) {
            return;
        }
        if (!is_told) {
            printf("traffic\n");
            is_told = 1;
        }
    }
    CHECK(!ends, "%s", ibv_wc_status_str(gone->outcome));
    CHECK(is_told, "%s before the device was gone",
          ibv_wc_status_str(gone->outcome));
}

/* The kernel says so in any case, whether there was a request or not */
static void gone_await_fatal(gone_t *gone)
{
    struct ibv_context *context = gone->access.pair.b.context;
    struct pollfd fd            = {context->async_fd, POLLIN, 0};
    time_t end                  = gone_now() + PATIENCE;
    struct ibv_async_event event;

    do {
        CHECK((poll(&fd, 1, PATIENCE * 1000) == 1) && (gone_now() < end),
              "no event that the device is gone");
        CHECK(ibv_get_async_event(context, &event) == 0, "event");
        ibv_ack_async_event(&event);
    } while (event.event_type != IBV_EVENT_DEVICE_FATAL);
}

static void gone_await_file(const char *path)
{
    time_t end = gone_now() + 2 * PATIENCE;

    while (access(path, F_OK) != 0) {
        CHECK(gone_now() < end, "no %s", path);
        usleep(PAUSE_US);
    }
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
    unsigned long turns;
    size_t i;

    for (i = 0; i < WORDS; ++i) {
        CHECK(gone_load(gone, i) <= gone->puts, "word %zu is %#lx", i,
              gone_load(gone, i));
        gone->access.region.memory[i] = own + i;
    }
    gone_await_fatal(gone);
    turns = gone->turns;
    gone_await_file(path);
    gone_check_own(gone);
    CHECK(gone->turns > turns, "the pages did not move");
    printf("absence: %lu turns of %lu, after %lu WRITEs, %lu pages verified\n",
           gone->turns - turns, (unsigned long)gone->turns, gone->puts,
           gone->verified);
}

/* Objects of the old context are void, and remain until the process ends */
static void gone_again(gone_t *gone, char **argv)
{
    hw_access_t *a = &gone->access;

    pair_open(&a->pair, argv[1], argv[2]);
    pair_connect(&a->pair);
    hw_region_import(&a->region, a->pair.b.pd);
    gone_check_own(gone);
    gone_put_until(gone, 1);
}

int main(int argc, char **argv)
{
    gone_t gone = {.puts = 0};
    pthread_t thread;

    if (argc != 4) {
        fprintf(stderr, "usage: emlx5_gone FROM TO FILE\n");
        return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    hw_access_open(&gone.access, argv[1], argv[2], HW_WINDOWS, LENGTH);
    memset(gone.access.region.memory, 0, LENGTH);
    CHECK(pthread_create(&thread, NULL, gone_turn, &gone) == 0, "no thread");
    gone_put_until(&gone, 0);
    printf("gone: %s\n", ibv_wc_status_str(gone.outcome));
    gone_absence(&gone, argv[3]);
    gone_again(&gone, argv);
    gone.ends = 1;
    pthread_join(thread, NULL);
    printf("again: %lu WRITEs, %lu pages verified\n", gone.puts, gone.verified);
    hw_access_close(&gone.access);
    return 0;
}
