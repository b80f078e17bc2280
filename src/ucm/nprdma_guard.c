/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "nprdma_guard.h"

#include <ucm/api/ucm.h>

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <unistd.h>


/* Accesses are made by whoever holds the service of an MD: few at a time */
#define NPRDMA_GUARD_NUM_ACCESSES 16

/* Calls in progress beyond these block every access instead of a range */
#define NPRDMA_GUARD_NUM_UNMAPS 32

/* Looks at a slot before the processor is given away */
#define NPRDMA_GUARD_SPIN 200

#define NPRDMA_GUARD_EVENTS \
    (UCM_EVENT_MMAP | UCM_EVENT_MUNMAP | UCM_EVENT_MREMAP | UCM_EVENT_SHMAT | \
     UCM_EVENT_SHMDT | UCM_EVENT_SBRK | UCM_EVENT_BRK | UCM_EVENT_MADVISE)

/* Far enough out to run before and after the handlers of everybody else */
#define NPRDMA_GUARD_PRIO_BEFORE (-1000000)
#define NPRDMA_GUARD_PRIO_AFTER  1000000


/*
 * The handlers also run in threads that ThreadSanitizer has closed its books
 * on: the C library gives the stack of a thread back, by madvise() or munmap(),
 * at its very end. What runs in the hook is not instrumented, therefore.
 */
#if defined(__has_attribute)
#  if __has_attribute(disable_sanitizer_instrumentation)
#    define NPRDMA_GUARD_HOOK __attribute__((disable_sanitizer_instrumentation))
#  endif
#endif
#ifndef NPRDMA_GUARD_HOOK
#  define NPRDMA_GUARD_HOOK __attribute__((no_sanitize("thread")))
#endif


/* States of an access slot; the owner of an unmap slot is a thread id */
enum {
    NPRDMA_GUARD_FREE   = 0,
    NPRDMA_GUARD_CLAIM  = 1, /* Range not yet valid */
    NPRDMA_GUARD_ACTIVE = 2
};


typedef struct nprdma_guard_slot {
    _Atomic uint32_t  owner;
    _Atomic uint32_t  serial; /* Order in which unmap slots were taken */
    _Atomic uintptr_t start;
    _Atomic uintptr_t end;    /* First byte after the range */
} nprdma_guard_slot_t;


/*
 * Lives in a page of its own that the kernel wipes on fork: a child must not
 * wait for accesses of threads that it does not have.
 */
typedef struct nprdma_guard_state {
    uint32_t            mine;     /* Zero in a child */
    _Atomic uint32_t    live;     /* Handlers are installed */
    _Atomic uint32_t    unmaps;   /* Taken unmap slots */
    _Atomic uint32_t    overflow; /* Calls in progress that found no slot */
    _Atomic uint32_t    serial;
    nprdma_guard_slot_t accesses[NPRDMA_GUARD_NUM_ACCESSES];
    nprdma_guard_slot_t calls[NPRDMA_GUARD_NUM_UNMAPS];
} nprdma_guard_state_t;


static struct {
    pthread_mutex_t       lock;
    unsigned              users;
    nprdma_guard_state_t *state; /* Kept until the process ends */
} nprdma_guard = {
    .lock = PTHREAD_MUTEX_INITIALIZER
};


NPRDMA_GUARD_HOOK
static int nprdma_guard_is_child(const nprdma_guard_state_t *state)
{
    return !state->mine;
}

NPRDMA_GUARD_HOOK
static int nprdma_guard_overlaps(const nprdma_guard_slot_t *slot,
                                 uintptr_t start, uintptr_t end)
{
    return (atomic_load(&slot->start) < end) &&
           (atomic_load(&slot->end) > start);
}

NPRDMA_GUARD_HOOK
static int nprdma_guard_in_progress(const nprdma_guard_slot_t *slot,
                                    uintptr_t start, uintptr_t end)
{
    return (atomic_load(&slot->owner) == NPRDMA_GUARD_ACTIVE) &&
           nprdma_guard_overlaps(slot, start, end);
}

/* Runs in the hook, and so does all that it calls: no allocation, no log */
NPRDMA_GUARD_HOOK
static void nprdma_guard_block(nprdma_guard_state_t *state, uintptr_t start,
                               uintptr_t end)
{
    uint32_t tid              = (uint32_t)syscall(SYS_gettid);
    nprdma_guard_slot_t *slot = NULL;
    uint32_t expected;
    unsigned i, spin;

    for (i = 0; i < NPRDMA_GUARD_NUM_UNMAPS; ++i) {
        expected = 0;
        if (atomic_compare_exchange_strong(&state->calls[i].owner, &expected,
                                           tid)) {
            slot = &state->calls[i];
            break;
        }
    }

    if (slot != NULL) {
        atomic_store(&slot->start, start);
        atomic_store(&slot->end, end);
        atomic_store(&slot->serial, atomic_fetch_add(&state->serial, 1));
        atomic_fetch_add(&state->unmaps, 1);
    } else {
        atomic_fetch_add(&state->overflow, 1);
    }

    /*
     * Whoever enters from here on sees the call and backs off. The ranges are
     * published by the sequentially consistent additions above, before the
     * slots below are read; an access publishes its slot before it reads them.
     */
    for (i = 0; i < NPRDMA_GUARD_NUM_ACCESSES; ++i) {
        spin = 0;
        while (nprdma_guard_in_progress(&state->accesses[i], start, end)) {
            if (++spin > NPRDMA_GUARD_SPIN) {
                sched_yield();
            }
        }
    }
}

NPRDMA_GUARD_HOOK
static void nprdma_guard_unblock(nprdma_guard_state_t *state)
{
    uint32_t tid              = (uint32_t)syscall(SYS_gettid);
    nprdma_guard_slot_t *last = NULL;
    nprdma_guard_slot_t *slot;
    uint32_t overflow;
    unsigned i;

    /* Calls of one thread can only be nested: the newest one returns first */
    for (i = 0; i < NPRDMA_GUARD_NUM_UNMAPS; ++i) {
        slot = &state->calls[i];
        if ((atomic_load(&slot->owner) == tid) &&
            ((last == NULL) || ((int32_t)(slot->serial - last->serial) > 0))) {
            last = slot;
        }
    }

    if (last != NULL) {
        atomic_store(&last->end, 0);
        atomic_store(&last->start, UINTPTR_MAX);
        atomic_fetch_sub(&state->unmaps, 1);
        atomic_store(&last->owner, 0);
        return;
    }

    overflow = atomic_load(&state->overflow);
    while ((overflow > 0) &&
           !atomic_compare_exchange_weak(&state->overflow, &overflow,
                                         overflow - 1)) {
    }
}

/*
 * The range that a call takes away. Where the event does not tell the end,
 * everything above the start counts: too much only delays an access a little.
 *
 * @return Nonzero if the call takes anything away.
 */
NPRDMA_GUARD_HOOK
static int nprdma_guard_event_range(ucm_event_type_t event_type,
                                    const ucm_event_t *event,
                                    uintptr_t *start_p, uintptr_t *end_p)
{
    uintptr_t start = 0;
    uintptr_t end   = UINTPTR_MAX;

    switch (event_type) {
    case UCM_EVENT_MMAP:
        if (!(event->mmap.flags & MAP_FIXED)) {
            return 0;
        }
        start = (uintptr_t)event->mmap.address;
        end   = start + event->mmap.size;
        break;
    case UCM_EVENT_MUNMAP:
        start = (uintptr_t)event->munmap.address;
        end   = start + event->munmap.size;
        break;
    case UCM_EVENT_MREMAP:
        /* The target of MREMAP_FIXED is not part of the event everywhere */
        if (!(event->mremap.flags & MREMAP_FIXED)) {
            start = (uintptr_t)event->mremap.address;
            end   = start + event->mremap.old_size;
        }
        break;
    case UCM_EVENT_SHMAT:
        if (!(event->shmat.shmflg & SHM_REMAP)) {
            return 0;
        }
        start = (uintptr_t)event->shmat.shmaddr & ~(uintptr_t)(SHMLBA - 1);
        break;
    case UCM_EVENT_SHMDT:
        start = (uintptr_t)event->shmdt.shmaddr;
        break;
    case UCM_EVENT_SBRK:
        if (event->sbrk.increment >= 0) {
            return 0;
        }
        start = (uintptr_t)syscall(SYS_brk, 0) + event->sbrk.increment;
        break;
    case UCM_EVENT_BRK:
        start = (uintptr_t)event->brk.addr;
        break;
    case UCM_EVENT_MADVISE:
        /* Some advices make an access fault, for good (guard regions) */
        start = (uintptr_t)event->madvise.addr;
        end   = start + event->madvise.length;
        break;
    default:
        return 0;
    }

    *start_p = start;
    *end_p   = (end < start) ? UINTPTR_MAX : end;
    return 1;
}

NPRDMA_GUARD_HOOK
static void nprdma_guard_before(ucm_event_type_t event_type, ucm_event_t *event,
                                void *arg)
{
    nprdma_guard_state_t *state = arg;
    uintptr_t start, end;

    if (!nprdma_guard_is_child(state) &&
        nprdma_guard_event_range(event_type, event, &start, &end)) {
        nprdma_guard_block(state, start, end);
    }
}

NPRDMA_GUARD_HOOK
static void nprdma_guard_after(ucm_event_type_t event_type, ucm_event_t *event,
                               void *arg)
{
    nprdma_guard_state_t *state = arg;
    uintptr_t start, end;

    if (!nprdma_guard_is_child(state) &&
        nprdma_guard_event_range(event_type, event, &start, &end)) {
        nprdma_guard_unblock(state);
    }
}

static nprdma_guard_state_t *nprdma_guard_state_create(void)
{
    nprdma_guard_state_t *state;

    state = mmap(NULL, sizeof(*state), PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (state == MAP_FAILED) {
        return NULL;
    }

    if (madvise(state, sizeof(*state), MADV_WIPEONFORK) != 0) {
        munmap(state, sizeof(*state));
        return NULL;
    }

    state->mine = 1;
    return state;
}

NPRDMA_GUARD_HOOK
static void nprdma_guard_ignore(ucm_event_type_t event_type, ucm_event_t *event,
                                void *arg)
{
}

/*
 * Have UCM install its hooks. It is asked for the aggregate event, as others
 * do: when asked for raw ones, UCM finds that malloc() does not cause each of
 * them (UCM_EVENT_SBRK) and replaces malloc().
 */
static ucs_status_t nprdma_guard_install_hooks(void)
{
    ucs_status_t status;

    status = ucm_set_event_handler(UCM_EVENT_VM_UNMAPPED,
                                   NPRDMA_GUARD_PRIO_AFTER, nprdma_guard_ignore,
                                   NULL);
    if (status != UCS_OK) {
        return status;
    }

    ucm_unset_event_handler(UCM_EVENT_VM_UNMAPPED, nprdma_guard_ignore, NULL);
    return UCS_OK;
}

static ucs_status_t nprdma_guard_add_handler(int priority,
                                             ucm_event_callback_t callback)
{
    return ucm_set_event_handler(NPRDMA_GUARD_EVENTS |
                                 UCM_EVENT_FLAG_NO_INSTALL, priority, callback,
                                 nprdma_guard.state);
}

static void nprdma_guard_remove_handler(ucm_event_callback_t callback)
{
    ucm_unset_event_handler(NPRDMA_GUARD_EVENTS, callback, nprdma_guard.state);
}

/*
 * The handler that unblocks is added first and removed last: in between, calls
 * of other threads then meet an extra unblock, which does nothing, never a lone
 * block.
 */
static ucs_status_t nprdma_guard_install(void)
{
    if (nprdma_guard.state == NULL) {
        nprdma_guard.state = nprdma_guard_state_create();
        if (nprdma_guard.state == NULL) {
            return UCS_ERR_NO_MEMORY;
        }
    }

    if (nprdma_guard_install_hooks() != UCS_OK) {
        goto err;
    }

    if (nprdma_guard_add_handler(NPRDMA_GUARD_PRIO_AFTER,
                                 nprdma_guard_after) != UCS_OK) {
        goto err;
    }

    if (nprdma_guard_add_handler(NPRDMA_GUARD_PRIO_BEFORE,
                                 nprdma_guard_before) != UCS_OK) {
        goto err_remove_after;
    }

    nprdma_guard.state->live = 1;
    return UCS_OK;

err_remove_after:
    nprdma_guard_remove_handler(nprdma_guard_after);
err:
    return UCS_ERR_UNSUPPORTED;
}

static void nprdma_guard_uninstall(void)
{
    nprdma_guard.state->live = 0;
    nprdma_guard_remove_handler(nprdma_guard_before);
    nprdma_guard_remove_handler(nprdma_guard_after);
}

ucs_status_t nprdma_guard_init(void)
{
    ucs_status_t status = UCS_OK;

    pthread_mutex_lock(&nprdma_guard.lock);
    if (nprdma_guard.users == 0) {
        status = nprdma_guard_install();
    } else if (!nprdma_guard.state->mine) {
        /* A forked child has the handlers already, and a state wiped clean */
        nprdma_guard.state->mine = 1;
        nprdma_guard.state->live = 1;
    }
    if (status == UCS_OK) {
        ++nprdma_guard.users;
    }
    pthread_mutex_unlock(&nprdma_guard.lock);
    return status;
}

void nprdma_guard_cleanup(void)
{
    pthread_mutex_lock(&nprdma_guard.lock);
    if (--nprdma_guard.users == 0) {
        nprdma_guard_uninstall();
    }
    pthread_mutex_unlock(&nprdma_guard.lock);
}

static int nprdma_guard_blocked(nprdma_guard_state_t *state, uintptr_t start,
                                uintptr_t end)
{
    unsigned i;

    if (atomic_load(&state->overflow) > 0) {
        return 1;
    }

    if (atomic_load(&state->unmaps) == 0) {
        return 0;
    }

    for (i = 0; i < NPRDMA_GUARD_NUM_UNMAPS; ++i) {
        if ((atomic_load(&state->calls[i].owner) != 0) &&
            nprdma_guard_overlaps(&state->calls[i], start, end)) {
            return 1;
        }
    }

    return 0;
}

ucs_status_t nprdma_guard_enter(uintptr_t address, size_t length,
                                nprdma_guard_ticket_t *ticket_p)
{
    nprdma_guard_state_t *state = nprdma_guard.state;
    nprdma_guard_slot_t *slot;
    uint32_t expected;
    unsigned i;

    if ((state == NULL) || !state->live) {
        return UCS_ERR_UNSUPPORTED;
    }

    for (i = 0; i < NPRDMA_GUARD_NUM_ACCESSES; ++i) {
        slot     = &state->accesses[i];
        expected = NPRDMA_GUARD_FREE;
        if (atomic_compare_exchange_strong(&slot->owner, &expected,
                                           NPRDMA_GUARD_CLAIM)) {
            break;
        }
    }

    if (i == NPRDMA_GUARD_NUM_ACCESSES) {
        return UCS_ERR_BUSY;
    }

    atomic_store_explicit(&slot->start, address, memory_order_relaxed);
    atomic_store_explicit(&slot->end, address + length, memory_order_relaxed);
    atomic_store(&slot->owner, NPRDMA_GUARD_ACTIVE);

    if (nprdma_guard_blocked(state, address, address + length)) {
        atomic_store(&slot->owner, NPRDMA_GUARD_FREE);
        return UCS_ERR_BUSY;
    }

    ticket_p->slot = i;
    return UCS_OK;
}

void nprdma_guard_leave(const nprdma_guard_ticket_t *ticket)
{
    atomic_store(&nprdma_guard.state->accesses[ticket->slot].owner,
                 NPRDMA_GUARD_FREE);
}
