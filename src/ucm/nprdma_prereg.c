/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "nprdma_prereg.h"
#include "ucm/events/nprdma_events.h"

#include <nprdma_thread.h>

#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>


/* The C library maps each larger block by itself: it may be a buffer */
#define NPRDMA_PREREG_MIN ((size_t)128 * 1024)

#define NPRDMA_PREREG_NUM 64


enum {
    NPRDMA_PREREG_FREE,
    NPRDMA_PREREG_CLAIMED,
    NPRDMA_PREREG_FULL
};

typedef struct nprdma_prereg_entry {
    _Atomic uint32_t  state;
    _Atomic uintptr_t start;
    _Atomic uintptr_t end;
} nprdma_prereg_entry_t;

struct nprdma_prereg {
    nprdma_prereg_func_t  create;
    void                 *arg; /* Of create */
    pthread_t             thread;
    _Atomic uint32_t      stop;
    _Atomic uint32_t      added; /* Futex: changes with every mapping */
    nprdma_prereg_entry_t entries[NPRDMA_PREREG_NUM];
};


NPRDMA_HOOK
void nprdma_prereg_add(nprdma_prereg_t *prereg, nprdma_span_t span)
{
    nprdma_prereg_entry_t *entry;
    uint32_t expected;
    unsigned i;

    if (span.end - span.start < NPRDMA_PREREG_MIN) {
        return;
    }

    for (i = 0; i < NPRDMA_PREREG_NUM; ++i) {
        entry    = &prereg->entries[i];
        expected = NPRDMA_PREREG_FREE;
        if (atomic_compare_exchange_strong(&entry->state, &expected,
                                           NPRDMA_PREREG_CLAIMED)) {
            atomic_store(&entry->start, span.start);
            atomic_store(&entry->end, span.end);
            atomic_store(&entry->state, NPRDMA_PREREG_FULL);
            atomic_fetch_add(&prereg->added, 1);
            syscall(SYS_futex, &prereg->added, FUTEX_WAKE_PRIVATE, 1);
            return;
        }
    }
}

static void *nprdma_prereg_run(void *arg)
{
    nprdma_prereg_t *prereg = arg;
    nprdma_prereg_entry_t *entry;
    uint32_t added;
    nprdma_span_t span;
    unsigned i;

    while (!atomic_load(&prereg->stop)) {
        added = atomic_load(&prereg->added);
        for (i = 0; i < NPRDMA_PREREG_NUM; ++i) {
            entry = &prereg->entries[i];
            if (atomic_load(&entry->state) != NPRDMA_PREREG_FULL) {
                continue;
            }

            span = nprdma_span(entry->start, entry->end);
            atomic_store(&entry->state, NPRDMA_PREREG_FREE);
            prereg->create(prereg->arg, span);
        }
        syscall(SYS_futex, &prereg->added, FUTEX_WAIT_PRIVATE, added, NULL);
    }

    return NULL;
}

ucs_status_t nprdma_prereg_start(nprdma_prereg_func_t create, void *arg,
                                 nprdma_prereg_t **prereg_p)
{
    nprdma_prereg_t *prereg;

    prereg = nprdma_events_alloc_wiped(sizeof(*prereg));
    if (prereg == NULL) {
        return UCS_ERR_NO_MEMORY;
    }

    prereg->create = create;
    prereg->arg    = arg;
    if (nprdma_thread_start(&prereg->thread, nprdma_prereg_run, prereg) != 0) {
        nprdma_events_free_wiped(prereg, sizeof(*prereg));
        return UCS_ERR_NO_MEMORY;
    }

    *prereg_p = prereg;
    return UCS_OK;
}

void nprdma_prereg_stop(nprdma_prereg_t *prereg)
{
    atomic_store(&prereg->stop, 1);
    atomic_fetch_add(&prereg->added, 1);
    syscall(SYS_futex, &prereg->added, FUTEX_WAKE_PRIVATE, INT_MAX);
    pthread_join(prereg->thread, NULL);
}

void nprdma_prereg_free(nprdma_prereg_t *prereg)
{
    nprdma_events_free_wiped(prereg, sizeof(*prereg));
}
