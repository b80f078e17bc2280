/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "verbs/npemu_pin.h"
#include "base/npemu_util.h"
#include "fabric/npemu_shm.h"
#include "npemu.h"

#include <errno.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ  22
#define MADV_POPULATE_WRITE 23
#endif

/* mlock() does not nest, but MRs overlap */
static struct {
    pthread_mutex_t lock; /* held during fork() */
    pid_t           pid;  /* a forked child inherits the list, not the pins */
    npemu_link_t    list; /* of npemu_pin_t */
    size_t          size; /* bytes of all of them */
} npemu_pins = {PTHREAD_MUTEX_INITIALIZER, 0,
                {&npemu_pins.list, &npemu_pins.list}, 0};

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

/* Unlock those pages of a range that no locked pin has. */
static void npemu_pin_unlock(uint64_t start, uint64_t end)
{
    const npemu_pin_t *pin;
    npemu_link_t *link;
    uint64_t next;
    int is_pinned;

    for (; start < end; start = next) {
        next      = end;
        is_pinned = 0;
        for (link = npemu_pins.list.next;
             (link != &npemu_pins.list) && !is_pinned; link = link->next) {
            pin       = npemu_container_of(link, npemu_pin_t, link);
            is_pinned = pin->is_locked && (pin->start <= start) &&
                        (pin->end > start);
            if (is_pinned) {
                next = pin->end;
            } else if (pin->is_locked && (pin->start > start) &&
                       (pin->start < next)) {
                next = pin->start;
            }
        }
        if (!is_pinned) {
            munlock((void*)(uintptr_t)start, next - start);
        }
    }
}

static int npemu_pin_mlock(uint64_t start, uint64_t end)
{
    if (mlock((void*)(uintptr_t)start, end - start) == 0) {
        return 0;
    }

    return (errno == ENOMEM) ? npemu_pin_enomem_reason(start, end) : errno;
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

int npemu_pin(npemu_pin_t *pin, uint64_t start, uint64_t end, int writable,
              int is_locked)
{
    int ret;

    pthread_mutex_lock(&npemu_pins.lock);
    if (npemu_pins.pid != getpid()) {
        npemu_pins.pid  = getpid();
        npemu_pins.size = 0;
        npemu_link_init(&npemu_pins.list);
    }
    ret = is_locked ? npemu_pin_mlock(start, end) : 0;
    if (ret == 0) {
        ret = npemu_pin_populate(start, end, writable);
    }
    if (ret == 0) {
        pin->start       = start;
        pin->end         = end;
        pin->is_locked   = is_locked;
        npemu_pins.size += end - start;
        npemu_link_add(&npemu_pins.list, &pin->link);
    } else if (is_locked) {
        npemu_pin_unlock(start, end);
    }
    pthread_mutex_unlock(&npemu_pins.lock);
    return ret;
}

void npemu_unpin(npemu_pin_t *pin)
{
    pthread_mutex_lock(&npemu_pins.lock);
    npemu_link_del(&pin->link);
    npemu_pins.size -= pin->end - pin->start;
    if (pin->is_locked) {
        npemu_pin_unlock(pin->start, pin->end);
    }
    pthread_mutex_unlock(&npemu_pins.lock);
}

size_t npemu_pinned(void)
{
    size_t size;

    pthread_mutex_lock(&npemu_pins.lock);
    size = (npemu_pins.pid == getpid()) ? npemu_pins.size : 0;
    pthread_mutex_unlock(&npemu_pins.lock);
    return size;
}

void npemu_pin_fork_prepare(void)
{
    pthread_mutex_lock(&npemu_pins.lock);
}

void npemu_pin_fork_done(void)
{
    pthread_mutex_unlock(&npemu_pins.lock);
}
