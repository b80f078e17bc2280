/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "verbs/npemu_pin.h"
#include "base/npemu_log.h"
#include "base/npemu_util.h"
#include "fabric/npemu_shm.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ  22
#define MADV_POPULATE_WRITE 23
#endif

/* mlock() does not nest, but MRs overlap: sorted, disjoint ranges with a count
 * each. */
typedef struct {
    uint64_t start;
    uint64_t end;
    unsigned count;
} npemu_pin_range_t;

static struct {
    pthread_mutex_t   lock; /* held during fork() */
    pid_t             pid;  /* a forked child inherits the list, not the pins */
    npemu_pin_range_t *ranges;
    size_t            count;
    size_t            capacity;
} npemu_pins = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Index of the first range that ends after an address. */
static size_t npemu_pin_find(uint64_t address)
{
    size_t low = 0, high = npemu_pins.count, mid;

    while (low < high) {
        mid = (low + high) / 2;
        if (npemu_pins.ranges[mid].end <= address) {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    return low;
}

static void npemu_pin_insert(size_t index, uint64_t start, uint64_t end,
                             unsigned count)
{
    memmove(&npemu_pins.ranges[index + 1], &npemu_pins.ranges[index],
            (npemu_pins.count - index) * sizeof(*npemu_pins.ranges));
    npemu_pins.ranges[index] = (npemu_pin_range_t){start, end, count};
    ++npemu_pins.count;
}

static void npemu_pin_remove(size_t index)
{
    --npemu_pins.count;
    memmove(&npemu_pins.ranges[index], &npemu_pins.ranges[index + 1],
            (npemu_pins.count - index) * sizeof(*npemu_pins.ranges));
}

/* Make an address a boundary between ranges. */
static void npemu_pin_split(uint64_t address)
{
    size_t i = npemu_pin_find(address);
    npemu_pin_range_t *range;

    if (i < npemu_pins.count) {
        range = &npemu_pins.ranges[i];
        if (range->start < address) {
            npemu_pin_insert(i + 1, address, range->end, range->count);
            npemu_pins.ranges[i].end = address;
        }
    }
}

/* Join a range with the one before it if they are adjacent and equal. */
static void npemu_pin_join(size_t index)
{
    npemu_pin_range_t *ranges = npemu_pins.ranges;

    if ((index > 0) && (index < npemu_pins.count) &&
        (ranges[index - 1].end == ranges[index].start) &&
        (ranges[index - 1].count == ranges[index].count)) {
        ranges[index - 1].end = ranges[index].end;
        npemu_pin_remove(index);
    }
}

/* Reserve memory for the largest number of ranges that one operation adds: one
 * for every gap, and two splits. */
static int npemu_pin_reserve(void)
{
    size_t needed = npemu_pins.count * 2 + 4;
    npemu_pin_range_t *ranges;

    if (needed <= npemu_pins.capacity) {
        return 0;
    }

    ranges = realloc(npemu_pins.ranges, 2 * needed * sizeof(*ranges));
    if (ranges == NULL) {
        return ENOMEM;
    }

    npemu_pins.ranges   = ranges;
    npemu_pins.capacity = 2 * needed;
    return 0;
}

/* The reason for ENOMEM of mlock() and madvise(): ENOMEM for the limit or lack
 * of memory; EFAULT where nothing is mapped, as the kernel's pinning has it. */
static int npemu_pin_enomem_reason(uint64_t start, uint64_t end)
{
    unsigned char resident;
    uint64_t page;

    for (page = start; page < end; page += NPRDMA_PAGE_SIZE) {
        if ((mincore((void*)(uintptr_t)page, NPRDMA_PAGE_SIZE, &resident) <
             0) && (errno == ENOMEM)) {
            return EFAULT;
        }
    }
    return ENOMEM;
}

static int npemu_pin_mlock(uint64_t start, uint64_t end)
{
    int ret;

    if (mlock((void*)(uintptr_t)start, end - start) == 0) {
        return 0;
    }

    if (errno != ENOMEM) {
        return errno;
    }

    ret = npemu_pin_enomem_reason(start, end);
    munlock((void*)(uintptr_t)start, end - start);
    return ret;
}

/* Drop one count in [start, end), which is bounded by boundaries. */
static void npemu_pin_drop(uint64_t start, uint64_t end)
{
    size_t i = npemu_pin_find(start);
    npemu_pin_range_t *range;

    while ((i < npemu_pins.count) && (npemu_pins.ranges[i].start < end)) {
        range = &npemu_pins.ranges[i];
        if (--range->count == 0) {
            munlock((void*)(uintptr_t)range->start,
                    range->end - range->start);
            npemu_pin_remove(i);
        } else {
            ++i;
        }
    }
    npemu_pin_join(npemu_pin_find(start));
    npemu_pin_join(npemu_pin_find(end));
}

static int npemu_pin_add(uint64_t start, uint64_t end)
{
    size_t i         = npemu_pin_find(start);
    uint64_t address = start;
    uint64_t next;
    int ret;

    while (address < end) {
        if ((i < npemu_pins.count) &&
            (npemu_pins.ranges[i].start == address)) {
            ++npemu_pins.ranges[i].count;
            address = npemu_pins.ranges[i].end;
            ++i;
            continue;
        }

        next = end;
        if ((i < npemu_pins.count) && (npemu_pins.ranges[i].start < end)) {
            next = npemu_pins.ranges[i].start;
        }

        ret = npemu_pin_mlock(address, next);
        if (ret != 0) {
            npemu_pin_drop(start, address);
            return ret;
        }

        npemu_pin_insert(i, address, next, 1);
        address = next;
        ++i;
    }
    npemu_pin_join(npemu_pin_find(start));
    npemu_pin_join(npemu_pin_find(end));
    return 0;
}

/* mlock() does not check for write access, which the pinning for a NIC that
 * writes needs. Kernels before 5.14 have no such advice, and refuse even an
 * empty range. */
static int npemu_pin_populate(uint64_t start, uint64_t end, int writable)
{
    int advice = writable ? MADV_POPULATE_WRITE : MADV_POPULATE_READ;

    if ((npemu_madvise((void*)(uintptr_t)start, 0, advice) < 0) ||
        (npemu_madvise((void*)(uintptr_t)start, end - start, advice) == 0)) {
        return 0;
    }

    return (errno == ENOMEM) ? npemu_pin_enomem_reason(start, end) : EFAULT;
}

int npemu_pin(uint64_t start, uint64_t end, int writable)
{
    int ret;

    pthread_mutex_lock(&npemu_pins.lock);
    if (npemu_pins.pid != getpid()) {
        npemu_pins.pid   = getpid();
        npemu_pins.count = 0;
    }
    ret = npemu_pin_reserve();
    if (ret == 0) {
        npemu_pin_split(start);
        npemu_pin_split(end);
        ret = npemu_pin_add(start, end);
    }
    if (ret == 0) {
        ret = npemu_pin_populate(start, end, writable);
        if (ret != 0) {
            npemu_pin_split(start);
            npemu_pin_split(end);
            npemu_pin_drop(start, end);
        }
    }
    pthread_mutex_unlock(&npemu_pins.lock);
    return ret;
}

void npemu_unpin(uint64_t start, uint64_t end)
{
    pthread_mutex_lock(&npemu_pins.lock);
    if (npemu_pin_reserve() == 0) {
        npemu_pin_split(start);
        npemu_pin_split(end);
        npemu_pin_drop(start, end);
    } else {
        npemu_warn("out of memory: pages remain pinned");
    }
    pthread_mutex_unlock(&npemu_pins.lock);
}

void npemu_pin_fork_prepare(void)
{
    pthread_mutex_lock(&npemu_pins.lock);
}

void npemu_pin_fork_done(void)
{
    pthread_mutex_unlock(&npemu_pins.lock);
}
