/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "nprdma_events.h"
#include "nprdma_huge.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <unistd.h>


/* A monitor per open memory domain */
#define NPRDMA_EVENTS_NUM_LISTENERS 1024

/* Calls in progress; each call beyond these blocks all addresses */
#define NPRDMA_EVENTS_NUM_CALLS 32

#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif

#define NPRDMA_EVENTS_TYPES \
    (UCM_EVENT_MMAP | UCM_EVENT_MUNMAP | UCM_EVENT_MREMAP | UCM_EVENT_SHMAT | \
     UCM_EVENT_SHMDT | UCM_EVENT_SBRK | UCM_EVENT_BRK | UCM_EVENT_MADVISE)

/* Handlers of other users of UCM run between these two */
#define NPRDMA_EVENTS_PRIO_BEFORE (-1000000)
#define NPRDMA_EVENTS_PRIO_AFTER  1000000


/* A call in progress. The owner is a thread; 0: the element is free. */
typedef struct nprdma_events_call {
    _Atomic uintptr_t owner;
    _Atomic uintptr_t start;      /* Blocked range */
    _Atomic uintptr_t end;
    _Atomic uintptr_t grow_start; /* Range by which the heap grows */
    _Atomic uintptr_t grow_end;
    _Atomic uint32_t  serial;     /* Order in which calls began */
} nprdma_events_call_t;


typedef struct nprdma_events_entry {
    const nprdma_listener_t *_Atomic listener;
    _Atomic uint32_t                 busy; /* Hooks that call its functions */
} nprdma_events_entry_t;


/* In memory that is all zeros in a child, which has no threads and calls */
typedef struct nprdma_events_state {
    uint32_t              is_owner;    /* Zero in a forked child */
    _Atomic uint32_t      blocks;      /* Elements of calls that are taken */
    _Atomic uint32_t      overflow;    /* Calls in progress that have none */
    _Atomic uint32_t      serial;
    _Atomic uint32_t      num_entries; /* Entries that were ever used */
    _Atomic uintptr_t     probe;       /* See nprdma_events_arrive() */
    _Atomic uint32_t      probe_seen;  /* Its events, ucm_event_type_t */
    nprdma_events_call_t  calls[NPRDMA_EVENTS_NUM_CALLS];
    nprdma_events_entry_t entries[NPRDMA_EVENTS_NUM_LISTENERS];
} nprdma_events_state_t;


/* The lock is held during fork(), so that the child inherits neither this lock
 * nor, from a thread that is adding a handler, that of UCM */
static struct {
    pthread_mutex_t        lock;
    unsigned               users;
    uintptr_t              page_size;
    nprdma_events_state_t *state; /* Kept until the process ends */
} nprdma_events = {
    .lock = PTHREAD_MUTEX_INITIALIZER
};

static pthread_once_t nprdma_events_once = PTHREAD_ONCE_INIT;
static int nprdma_events_installed; /* Handlers of fork(): 0 or errno */


NPRDMA_HOOK
static uintptr_t nprdma_events_page_down(uintptr_t address)
{
    return address & ~(nprdma_events.page_size - 1);
}

/* Stays below the end of the address space */
NPRDMA_HOOK
static uintptr_t nprdma_events_page_up(uintptr_t address)
{
    uintptr_t up = nprdma_events_page_down(address + nprdma_events.page_size -
                                           1);

    return (up < address) ? UINTPTR_MAX : up;
}

/* Identifies the calling thread; never 0. Not by gettid(), which is a system
 * call in each hook, and not by a thread-local variable, whose first use may
 * allocate. */
NPRDMA_HOOK
static uintptr_t nprdma_events_self(void)
{
    return (uintptr_t)pthread_self();
}


/* ---- ranges that calls in progress take away ---- */

NPRDMA_HOOK
static void nprdma_events_begin(nprdma_events_state_t *state,
                                nprdma_span_t span, nprdma_span_t grow)
{
    uintptr_t self = nprdma_events_self();
    nprdma_events_call_t *call;
    uintptr_t expected;
    unsigned i;

    for (i = 0; i < NPRDMA_EVENTS_NUM_CALLS; ++i) {
        call     = &state->calls[i];
        expected = 0;
        if (!atomic_compare_exchange_strong(&call->owner, &expected, self)) {
            continue;
        }

        atomic_store(&call->start, span.start);
        atomic_store(&call->end, span.end);
        atomic_store(&call->grow_start, grow.start);
        atomic_store(&call->grow_end, grow.end);
        atomic_store(&call->serial, atomic_fetch_add(&state->serial, 1));
        /* Sequentially consistent: a later load of `blocks` sees the range */
        atomic_fetch_add(&state->blocks, 1);
        return;
    }

    atomic_fetch_add(&state->overflow, 1);
}

/* Calls of one thread can only be nested: the last one returns first */
NPRDMA_HOOK
static nprdma_events_call_t *nprdma_events_last(nprdma_events_state_t *state)
{
    uintptr_t self             = nprdma_events_self();
    nprdma_events_call_t *last = NULL;
    nprdma_events_call_t *call;
    unsigned i;

    for (i = 0; i < NPRDMA_EVENTS_NUM_CALLS; ++i) {
        call = &state->calls[i];
        if ((atomic_load(&call->owner) == self) &&
            ((last == NULL) || ((int32_t)(call->serial - last->serial) > 0))) {
            last = call;
        }
    }

    return last;
}

NPRDMA_HOOK
static void nprdma_events_end(nprdma_events_state_t *state,
                              nprdma_events_call_t *call)
{
    uint32_t overflow;

    if (call != NULL) {
        atomic_store(&call->end, 0);
        atomic_store(&call->start, UINTPTR_MAX);
        atomic_fetch_sub(&state->blocks, 1);
        atomic_store(&call->owner, 0);
        return;
    }

    overflow = atomic_load(&state->overflow);
    while ((overflow > 0) &&
           !atomic_compare_exchange_weak(&state->overflow, &overflow,
                                         overflow - 1)) {
    }
}

uintptr_t nprdma_events_blocked(uintptr_t start, uintptr_t end)
{
    nprdma_events_state_t *state = nprdma_events.state;
    uintptr_t first              = end;
    uintptr_t call;
    unsigned i;

    if (state == NULL) {
        return end; /* No hooks */
    }

    if (atomic_load(&state->overflow) > 0) {
        return start;
    }

    if (atomic_load(&state->blocks) == 0) {
        return end;
    }

    for (i = 0; i < NPRDMA_EVENTS_NUM_CALLS; ++i) {
        if (atomic_load(&state->calls[i].owner) == 0) {
            continue;
        }

        call = atomic_load(&state->calls[i].start);
        if ((call < first) && (atomic_load(&state->calls[i].end) > start)) {
            first = (call < start) ? start : call;
        }
    }

    return first;
}

NPRDMA_HOOK
void nprdma_events_block(nprdma_span_t span)
{
    if (nprdma_events.state != NULL) {
        nprdma_events_begin(nprdma_events.state, span, nprdma_span(0, 0));
    }
}

NPRDMA_HOOK
void nprdma_events_unblock(void)
{
    nprdma_events_state_t *state = nprdma_events.state;

    if (state != NULL) {
        nprdma_events_end(state, nprdma_events_last(state));
    }
}


/* ---- the segment that shmdt() unmaps, which its event does not tell ---- */

/* Fields of a line of /proc/self/maps: start-end perms offset dev inode path */
enum {
    NPRDMA_MAPS_START,
    NPRDMA_MAPS_END,
    NPRDMA_MAPS_PERMS,
    NPRDMA_MAPS_OFFSET,
    NPRDMA_MAPS_MAJOR,
    NPRDMA_MAPS_MINOR,
    NPRDMA_MAPS_INODE,
    NPRDMA_MAPS_REST
};

/* A line so far. All numbers are read as hexadecimal ones: the inode, which is
 * decimal, is compared only. */
typedef struct nprdma_maps_line {
    unsigned field;
    uint64_t value[NPRDMA_MAPS_REST];
} nprdma_maps_line_t;

/* @return Nonzero at the end of a line, whose numbers are complete then */
NPRDMA_HOOK
static int nprdma_maps_feed(nprdma_maps_line_t *line, char c)
{
    uint64_t *value = &line->value[line->field];

    if ((c == '\n') || (line->field == NPRDMA_MAPS_REST)) {
        return c == '\n';
    }

    if ((c == ' ') || (c == ':') ||
        ((c == '-') && (line->field == NPRDMA_MAPS_START))) {
        ++line->field;
    } else if ((c >= '0') && (c <= '9')) {
        *value = *value * 16 + (c - '0');
    } else if ((c >= 'a') && (c <= 'f')) {
        *value = *value * 16 + (c - 'a' + 10);
    }
    return 0;
}

/* Whether a mapping is a piece of the segment at @a address, of which @a first
 * is one: as shmdt() finds them, also behind a hole or without the first page.
 * The kernel gives each mapping of a file a device. */
NPRDMA_HOOK
static int nprdma_maps_is_piece(const uint64_t *value, const uint64_t *first,
                                uintptr_t address)
{
    return (value[NPRDMA_MAPS_START] >= address) &&
           (value[NPRDMA_MAPS_START] - address == value[NPRDMA_MAPS_OFFSET]) &&
           ((value[NPRDMA_MAPS_MAJOR] | value[NPRDMA_MAPS_MINOR]) != 0) &&
           (value[NPRDMA_MAPS_INODE] == first[NPRDMA_MAPS_INODE]) &&
           (value[NPRDMA_MAPS_MAJOR] == first[NPRDMA_MAPS_MAJOR]) &&
           (value[NPRDMA_MAPS_MINOR] == first[NPRDMA_MAPS_MINOR]);
}

/* First address behind the segment at an address, 0 if there is none, or
 * UINTPTR_MAX if the mappings cannot be read */
NPRDMA_HOOK
static uintptr_t nprdma_maps_segment_end(uintptr_t address)
{
    nprdma_maps_line_t line = { .field = 0 }, first = line;
    uintptr_t end           = 0;
    char buffer[1024];
    long fd, size, i;

    fd = syscall(SYS_openat, AT_FDCWD, "/proc/self/maps", O_RDONLY | O_CLOEXEC);
    while ((size = syscall(SYS_read, fd, buffer, sizeof(buffer))) > 0) {
        for (i = 0; i < size; ++i) {
            if (!nprdma_maps_feed(&line, buffer[i])) {
                continue;
            }

            if (end == 0) {
                first = line;
            }
            if (nprdma_maps_is_piece(line.value, first.value, address)) {
                end = line.value[NPRDMA_MAPS_END];
            }
            memset(&line, 0, sizeof(line));
        }
    }

    syscall(SYS_close, fd);
    return (size < 0) ? UINTPTR_MAX : end;
}


/* ---- what an event means ---- */

/* Advice that does not take pages away */
NPRDMA_HOOK
static int nprdma_events_advice_is_harmless(int advice)
{
    switch (advice) {
    case MADV_NORMAL:
    case MADV_RANDOM:
    case MADV_SEQUENTIAL:
    case MADV_WILLNEED:
    case MADV_DONTFORK:
    case MADV_DOFORK:
    case MADV_DONTDUMP:
    case MADV_DODUMP:
    case MADV_HUGEPAGE:
    case MADV_NOHUGEPAGE:
    case MADV_UNMERGEABLE:
    case 20: /* MADV_COLD */
    case 22: /* MADV_POPULATE_READ */
    case 23: /* MADV_POPULATE_WRITE */
        return 1;
    default:
        /* Unknown advice may make accesses fault (guard regions) */
        return 0;
    }
}

/* Whether a call takes pages away. The same before and after the call. */
NPRDMA_HOOK
static int nprdma_events_takes(ucm_event_type_t type, const ucm_event_t *event)
{
    switch (type) {
    case UCM_EVENT_MMAP:
        return !!(event->mmap.flags & MAP_FIXED);
    case UCM_EVENT_SHMAT:
        return !!(event->shmat.shmflg & SHM_REMAP);
    case UCM_EVENT_MADVISE:
        return !nprdma_events_advice_is_harmless(event->madvise.advice);
    case UCM_EVENT_MUNMAP:
    case UCM_EVENT_MREMAP:
    case UCM_EVENT_SHMDT:
    case UCM_EVENT_SBRK: /* May also add pages: the heap grows */
    case UCM_EVENT_BRK:
        return 1;
    default:
        return 0;
    }
}

/* The end of the heap moves: it shrinks by *gone_p or grows by *grow_p */
NPRDMA_HOOK
static void nprdma_events_heap(uintptr_t now, uintptr_t then,
                               nprdma_span_t *gone_p, nprdma_span_t *grow_p)
{
    /* The page of the end itself stays mapped */
    *gone_p = nprdma_span(nprdma_events_page_up(then),
                          nprdma_events_page_up(now));
    *grow_p = nprdma_span(nprdma_events_page_down(now),
                          nprdma_events_page_up(then));
    if (then >= now) {
        *gone_p = nprdma_span(0, 0);
    } else {
        *grow_p = nprdma_span(0, 0);
    }
}

/* A segment of huge pages is longer than its nominal size: it ends at a
 * multiple of the page size, which is found from the mapping */
NPRDMA_HOOK
static nprdma_span_t nprdma_events_segment(int shmid, const void *address)
{
    uintptr_t start = (uintptr_t)address & ~(uintptr_t)(SHMLBA - 1);
    struct shmid_ds ds;

    return (shmctl(shmid, IPC_STAT, &ds) < 0) ?
           nprdma_span(start, start) :
           nprdma_huge_mapped((void*)start, ds.shm_segsz);
}

/* Addresses that a call will take away. If the event is not exact, *taken_p is
 * too large and *gone_p is empty. */
NPRDMA_HOOK
static void nprdma_events_spans(ucm_event_type_t type, const ucm_event_t *event,
                                nprdma_span_t *taken_p, nprdma_span_t *gone_p,
                                nprdma_span_t *grow_p)
{
    uintptr_t brk;

    *gone_p = *grow_p = nprdma_span(0, 0);
    switch (type) {
    case UCM_EVENT_MMAP:
        *gone_p = nprdma_huge_mmap(event->mmap.address, event->mmap.size,
                                   event->mmap.flags, event->mmap.fd);
        break;
    case UCM_EVENT_MUNMAP:
        *gone_p = nprdma_huge_pages(event->munmap.address, event->munmap.size);
        break;
    case UCM_EVENT_MREMAP:
        *gone_p = *taken_p = nprdma_huge_mapped(event->mremap.address,
                                                event->mremap.old_size);
        if (event->mremap.flags & MREMAP_FIXED) {
            /* Not all versions of UCM report the target address */
            *taken_p = nprdma_span(0, UINTPTR_MAX);
        }
        if (event->mremap.flags & MREMAP_DONTUNMAP) {
            /* The pages move; the old range stays mapped, but empty */
            *gone_p = nprdma_span(0, 0);
        }
        return;
    case UCM_EVENT_SHMAT:
        *gone_p  = nprdma_events_segment(event->shmat.shmid,
                                         event->shmat.shmaddr);
        *taken_p = nprdma_huge_widen(*gone_p);
        return;
    case UCM_EVENT_SHMDT:
        gone_p->start = (uintptr_t)event->shmdt.shmaddr;
        gone_p->end   = nprdma_maps_segment_end(gone_p->start);
        if (gone_p->end == UINTPTR_MAX) {
            /* All above may be taken, but most of that stays mapped */
            *taken_p = *gone_p;
            *gone_p  = nprdma_span(0, 0);
            return;
        }
        break;
    case UCM_EVENT_SBRK:
    case UCM_EVENT_BRK:
        brk = (uintptr_t)syscall(SYS_brk, 0);
        if ((type == UCM_EVENT_BRK) && (event->brk.addr == NULL)) {
            break; /* A question, as which UCM tests its hooks */
        }
        nprdma_events_heap(brk,
                           (type == UCM_EVENT_BRK) ?
                           (uintptr_t)event->brk.addr :
                           brk + event->sbrk.increment, gone_p, grow_p);
        break;
    default:
        *taken_p = nprdma_huge_pages(event->madvise.addr,
                                     event->madvise.length);
        return;
    }

    *taken_p = *gone_p;
}

/* Addresses that are mapped after a call */
NPRDMA_HOOK
static nprdma_span_t
nprdma_events_mapped(ucm_event_type_t type, const ucm_event_t *event,
                     const nprdma_events_call_t *call)
{
    nprdma_span_t mapped = nprdma_span(0, 0);
    nprdma_span_t taken, grow;
    int failed;

    switch (type) {
    case UCM_EVENT_MMAP:
        failed = (event->mmap.result == MAP_FAILED);
        mapped = nprdma_huge_mmap(event->mmap.result, event->mmap.size,
                                  event->mmap.flags, event->mmap.fd);
        break;
    case UCM_EVENT_MREMAP:
        failed = (event->mremap.result == MAP_FAILED);
        mapped = nprdma_huge_mapped(event->mremap.result,
                                    event->mremap.new_size);
        break;
    case UCM_EVENT_SHMAT:
        failed = (event->shmat.result == MAP_FAILED);
        mapped = nprdma_events_segment(event->shmat.shmid, event->shmat.result);
        break;
    case UCM_EVENT_SBRK:
    case UCM_EVENT_BRK:
        failed = (type == UCM_EVENT_BRK) ? (event->brk.result == -1) :
                 (event->sbrk.result == MAP_FAILED);
        if (call != NULL) {
            mapped = nprdma_span(call->grow_start, call->grow_end);
        }
        break;
    case UCM_EVENT_MUNMAP:
        failed = (event->munmap.result == -1);
        break;
    case UCM_EVENT_SHMDT:
        failed = (event->shmdt.result == -1);
        break;
    default:
        return mapped;
    }

    if (failed) {
        mapped = nprdma_span(0, 0);
        if (nprdma_events_takes(type, event)) {
            nprdma_events_spans(type, event, &taken, &mapped, &grow);
        }
    }
    return mapped;
}


/* ---- hooks ---- */

/* Call a function of all listeners. Removing a listener clears its entry, and
 * then waits until the entry is not busy. */
#define NPRDMA_EVENTS_CALL(_state, _func, ...) \
    do { \
        nprdma_events_entry_t *_entry; \
        const nprdma_listener_t *_listener; \
        \
        for (_entry = (_state)->entries; \
             _entry < (_state)->entries + \
                      atomic_load(&(_state)->num_entries); \
             ++_entry) { \
            if (atomic_load(&_entry->listener) == NULL) { \
                continue; \
            } \
            \
            atomic_fetch_add(&_entry->busy, 1); \
            _listener = atomic_load(&_entry->listener); \
            if ((_listener != NULL) && (_listener->_func != NULL)) { \
                _listener->_func(__VA_ARGS__); \
            } \
            atomic_fetch_sub(&_entry->busy, 1); \
        } \
    } while (0)

NPRDMA_HOOK
void nprdma_events_take(nprdma_span_t taken, nprdma_span_t gone)
{
    nprdma_events_state_t *state = nprdma_events.state;

    nprdma_events_begin(state, taken, nprdma_span(0, 0));
    NPRDMA_EVENTS_CALL(state, before, _listener->arg, taken, gone);
}

NPRDMA_HOOK
static void nprdma_events_before(ucm_event_type_t type, ucm_event_t *event,
                                 void *arg)
{
    nprdma_events_state_t *state = arg;
    nprdma_span_t taken, gone, grow;

    if (!state->is_owner || !nprdma_events_takes(type, event)) {
        return;
    }

    nprdma_events_spans(type, event, &taken, &gone, &grow);
    nprdma_events_begin(state, taken, grow);
    if (taken.start == atomic_load(&state->probe)) {
        atomic_fetch_or(&state->probe_seen, type);
    }
    if (taken.start < taken.end) {
        NPRDMA_EVENTS_CALL(state, before, _listener->arg, taken, gone);
    }
}

NPRDMA_HOOK
static void nprdma_events_after(ucm_event_type_t type, ucm_event_t *event,
                                void *arg)
{
    nprdma_events_state_t *state = arg;
    nprdma_events_call_t *call   = NULL;
    nprdma_span_t mapped;
    int takes;

    if (!state->is_owner) {
        return;
    }

    takes = nprdma_events_takes(type, event);
    if (takes) {
        call = nprdma_events_last(state);
    }

    mapped = nprdma_events_mapped(type, event, call);
    if (mapped.start < mapped.end) {
        NPRDMA_EVENTS_CALL(state, after, _listener->arg, mapped);
    }

    if (takes) {
        nprdma_events_end(state, call);
    }
}

static void nprdma_events_fork(void)
{
    nprdma_events_state_t *state = nprdma_events.state;

    if ((state != NULL) && state->is_owner) {
        NPRDMA_EVENTS_CALL(state, fork, _listener->arg);
    }
}

void nprdma_events_unlock(void)
{
    pthread_mutex_unlock(&nprdma_events.lock);
}

static void nprdma_events_fork_prepare(void)
{
    pthread_mutex_lock(&nprdma_events.lock);
    nprdma_events_fork();
}

static void nprdma_events_fork_parent(void)
{
    nprdma_events_fork();
    nprdma_events_unlock();
}

static void nprdma_events_install_forks(void)
{
    nprdma_events_installed = pthread_atfork(nprdma_events_fork_prepare,
                                             nprdma_events_fork_parent,
                                             nprdma_events_unlock);
}

void nprdma_events_lock(void)
{
    /* Before the lock is taken for the first time */
    pthread_once(&nprdma_events_once, nprdma_events_install_forks);
    pthread_mutex_lock(&nprdma_events.lock);
}


/* ---- installation ---- */

void *nprdma_events_alloc_wiped(size_t size)
{
    void *ptr;

    ptr = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
               -1, 0);
    if (ptr == MAP_FAILED) {
        return NULL;
    }

    if (madvise(ptr, size, MADV_WIPEONFORK) != 0) {
        munmap(ptr, size);
        return NULL;
    }

    return ptr;
}

void nprdma_events_free_wiped(void *ptr, size_t size)
{
    munmap(ptr, size);
}

NPRDMA_HOOK
static void nprdma_events_ignore(ucm_event_type_t type, ucm_event_t *event,
                                 void *arg)
{
}

/* Let UCM install its hooks. The request is for the aggregate event, as by
 * other users of UCM. If raw events were requested, UCM would find that
 * malloc() does not cause each of them (UCM_EVENT_SBRK), and would replace
 * malloc(). */
static ucs_status_t nprdma_events_install_hooks(void)
{
    ucs_status_t status;

    status = ucm_set_event_handler(UCM_EVENT_VM_UNMAPPED,
                                   NPRDMA_EVENTS_PRIO_AFTER,
                                   nprdma_events_ignore, NULL);
    if (status != UCS_OK) {
        return status;
    }

    ucm_unset_event_handler(UCM_EVENT_VM_UNMAPPED, nprdma_events_ignore, NULL);
    return UCS_OK;
}

static ucs_status_t nprdma_events_add_handler(int priority,
                                              ucm_event_callback_t callback)
{
    return ucm_set_event_handler(NPRDMA_EVENTS_TYPES |
                                 UCM_EVENT_FLAG_NO_INSTALL, priority, callback,
                                 nprdma_events.state);
}

static void nprdma_events_remove_handler(ucm_event_callback_t callback)
{
    ucm_unset_event_handler(NPRDMA_EVENTS_TYPES, callback, nprdma_events.state);
}

static ucs_status_t nprdma_events_prepare(void)
{
    if (nprdma_events.state == NULL) {
        nprdma_events.page_size = (uintptr_t)sysconf(_SC_PAGESIZE);
        nprdma_huge_init();
        nprdma_events.state     =
                nprdma_events_alloc_wiped(sizeof(*nprdma_events.state));
        if (nprdma_events.state == NULL) {
            return UCS_ERR_NO_MEMORY;
        }
    }

    nprdma_events.state->is_owner = 1;
    return UCS_OK;
}

/* Check that calls of libc are really reported. A library that patches libc
 * after UCM disconnects the hooks of UCM, and UCM 1.13 neither notices nor
 * installs them again. Open MPI does this. It then reports unmapping by an
 * aggregate event, which does not show when the call has returned. */
static int nprdma_events_arrive(nprdma_events_state_t *state)
{
    const uint32_t expected = UCM_EVENT_MADVISE | UCM_EVENT_MUNMAP;
    void *ptr;

    ptr = mmap(NULL, nprdma_events.page_size, PROT_READ | PROT_WRITE,
               MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (ptr == MAP_FAILED) {
        return 0;
    }

    atomic_store(&state->probe_seen, 0);
    atomic_store(&state->probe, (uintptr_t)ptr);
    madvise(ptr, nprdma_events.page_size, MADV_DONTNEED);
    munmap(ptr, nprdma_events.page_size);
    atomic_store(&state->probe, 0);
    return (atomic_load(&state->probe_seen) & expected) == expected;
}

static void nprdma_events_uninstall(void)
{
    nprdma_events_remove_handler(nprdma_events_before);
    nprdma_events_remove_handler(nprdma_events_after);
}

/* The handler that unblocks is added first and removed last. So calls of other
 * threads may run an unblock without a block, which does nothing, but never a
 * block without an unblock. */
static ucs_status_t nprdma_events_install(void)
{
    ucs_status_t status;

    status = nprdma_events_prepare();
    if (status != UCS_OK) {
        return status;
    }

    if (nprdma_events_install_hooks() != UCS_OK) {
        return UCS_ERR_UNSUPPORTED;
    }

    if (nprdma_events_add_handler(NPRDMA_EVENTS_PRIO_AFTER,
                                  nprdma_events_after) != UCS_OK) {
        return UCS_ERR_UNSUPPORTED;
    }

    if (nprdma_events_add_handler(NPRDMA_EVENTS_PRIO_BEFORE,
                                  nprdma_events_before) != UCS_OK) {
        nprdma_events_remove_handler(nprdma_events_after);
        return UCS_ERR_UNSUPPORTED;
    }

    if (!nprdma_events_arrive(nprdma_events.state)) {
        nprdma_events_uninstall();
        return UCS_ERR_UNSUPPORTED;
    }

    return UCS_OK;
}

static nprdma_events_entry_t *
nprdma_events_find(const nprdma_listener_t *listener)
{
    nprdma_events_state_t *state = nprdma_events.state;
    unsigned i;

    for (i = 0; i < atomic_load(&state->num_entries); ++i) {
        if (atomic_load(&state->entries[i].listener) == listener) {
            return &state->entries[i];
        }
    }

    return NULL;
}

static nprdma_events_entry_t *nprdma_events_new_entry(void)
{
    nprdma_events_state_t *state = nprdma_events.state;
    nprdma_events_entry_t *entry = nprdma_events_find(NULL);
    uint32_t num_entries         = atomic_load(&state->num_entries);

    if ((entry == NULL) && (num_entries < NPRDMA_EVENTS_NUM_LISTENERS)) {
        entry = &state->entries[num_entries];
        atomic_store(&state->num_entries, num_entries + 1);
    }

    return entry;
}

ucs_status_t nprdma_events_add(const nprdma_listener_t *listener)
{
    ucs_status_t status = UCS_OK;
    nprdma_events_entry_t *entry;

    nprdma_events_lock();
    if (nprdma_events_installed != 0) {
        status = UCS_ERR_NO_MEMORY;
    } else if (nprdma_events.users == 0) {
        status = nprdma_events_install();
    } else if (!nprdma_events.state->is_owner) {
        /* A forked child has the handlers already, and a zeroed state */
        nprdma_events.state->is_owner = 1;
    }

    if (status == UCS_OK) {
        entry = nprdma_events_new_entry();
        if (entry != NULL) {
            atomic_store(&entry->listener, listener);
            ++nprdma_events.users;
        } else {
            status = UCS_ERR_EXCEEDS_LIMIT;
        }
    }
    nprdma_events_unlock();
    return status;
}

void nprdma_events_remove(const nprdma_listener_t *listener)
{
    nprdma_events_entry_t *entry;

    nprdma_events_lock();
    entry = nprdma_events_find(listener);
    if (entry != NULL) {
        atomic_store(&entry->listener, NULL);
        while (atomic_load(&entry->busy) != 0) {
            sched_yield();
        }
    }

    if (--nprdma_events.users == 0) {
        nprdma_events_uninstall();
    }
    nprdma_events_unlock();
}
