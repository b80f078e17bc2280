/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "nprdma_lazy.h"
#include "nprdma_events.h"
#include "nprdma_huge.h"
#include "nprdma_procmap.h"
#include "nprdma_uffd.h"

#include <ucs/debug/log.h>
#include <ucs/sys/math.h>

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>


/* Blocks that are known at most; others are unmapped as ever */
#define NPRDMA_LAZY_NUM_PLACES 512

#define NPRDMA_LAZY_TYPES \
    (UCM_EVENT_MMAP | UCM_EVENT_MUNMAP | UCM_EVENT_MREMAP | UCM_EVENT_SHMAT | \
     UCM_EVENT_SBRK | UCM_EVENT_BRK | UCM_EVENT_MADVISE)

/* UCM makes the call itself between these two */
#define NPRDMA_LAZY_PRIO_BEFORE (-2)
#define NPRDMA_LAZY_PRIO_AFTER  1

/* Pages whose presence is asked for at once: a power of two */
#define NPRDMA_LAZY_BATCH 1024


/* States of a place. A place is claimed by compare-and-swap, and its thread
 * makes only system calls until it ends the claim. So hooks may run in several
 * threads at once, and in a signal handler that has interrupted one of them. */
enum {
    NPRDMA_LAZY_FREE,
    NPRDMA_LAZY_LIVE, /* The block is mapped, and may be kept */
    NPRDMA_LAZY_KEPT,
    NPRDMA_LAZY_CLAIMED /* Or more: the thread that has claimed it */
};


/* A block: what one mmap() has made, as long as it is whole and nothing has
 * been done to it that outlives its contents */
typedef struct nprdma_lazy_place {
    _Atomic uintptr_t state;
    _Atomic uintptr_t start; /* The block changes only while it is claimed */
    _Atomic uintptr_t end;
    _Atomic uint64_t  order; /* Higher: kept later */
} nprdma_lazy_place_t;


/* In memory that is all zeros in a forked child: it has no pool */
typedef struct nprdma_lazy {
    _Atomic uint32_t    users;
    _Atomic size_t      limit; /* Of bytes; zero: nothing is kept any more */
    _Atomic uint64_t    order;
    _Atomic uint64_t    bytes; /* Kept, or about to be or to go */
    _Atomic uint64_t    reused;
    _Atomic uint64_t    dropped;
    nprdma_lazy_place_t places[NPRDMA_LAZY_NUM_PLACES];
} nprdma_lazy_t;


/* They change under nprdma_events_lock(). The pool stays until the process
 * ends, as its handlers of UCM do. */
static nprdma_lazy_t *nprdma_lazy_pool;
static int nprdma_lazy_uffd = -1; /* As nprdma_uffd_is_foreign() needs it */


/* ---- memory of a block, by raw system calls ---- */

/* Also gives the pages the key of new memory, where there are keys */
NPRDMA_HOOK
static int nprdma_lazy_protect(nprdma_span_t block, long prot)
{
    size_t length = block.end - block.start;

    return (syscall(SYS_pkey_mprotect, block.start, length, prot, 0) == 0) ||
           (syscall(SYS_mprotect, block.start, length, prot) == 0);
}

NPRDMA_HOOK
static int nprdma_lazy_advise(nprdma_span_t span, int advice)
{
    return syscall(SYS_madvise, span.start, span.end - span.start, advice) ==
           0;
}

/* The dynamic linker maps libraries by system calls of its own: no hook could
 * give something back for them. What is inaccessible is not of RLIMIT_DATA. */
NPRDMA_HOOK
static int nprdma_lazy_is_limited(void)
{
    struct rlimit limit;

    return (getrlimit(RLIMIT_AS, &limit) != 0) ||
           (limit.rlim_cur != RLIM_INFINITY);
}

/* Make a block inaccessible and let the kernel have its pages. @return Zero if
 * it is to be unmapped. */
NPRDMA_HOOK
static int nprdma_lazy_close(nprdma_span_t block)
{
    /* The program waits for UFFD_EVENT_UNMAP of what it watches */
    if (nprdma_uffd_is_foreign(nprdma_lazy_uffd, block, 0)) {
        return 0;
    }

    /* No thread writes to the pages any more when the kernel may take them. It
     * refuses this for memory that is sealed, locked, shared or of a file, and
     * holes. A child gets none of it. */
    if (!nprdma_lazy_protect(block, PROT_NONE) ||
        !nprdma_lazy_advise(block, MADV_FREE) ||
        !nprdma_lazy_advise(block, MADV_DONTFORK)) {
        nprdma_lazy_protect(block, PROT_READ | PROT_WRITE);
        return 0;
    }

    /* MPOL_DEFAULT, since no call tells whether there is a policy */
    syscall(SYS_mbind, block.start, block.end - block.start, 0, NULL, 0, 0);
    return nprdma_procmap_is_inaccessible(block);
}

/* As after mlockall(MCL_FUTURE). By a call that fails for locked memory and for
 * holes, and does nothing to private memory: see msync(2) */
NPRDMA_HOOK
static int nprdma_lazy_is_new_locked(void)
{
    size_t size = (size_t)sysconf(_SC_PAGESIZE);
    long page   = syscall(SYS_mmap, NULL, size, PROT_NONE,
                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int is_locked;

    is_locked = syscall(SYS_msync, page, size, MS_ASYNC | MS_INVALIDATE) != 0;
    syscall(SYS_munmap, page, size);
    return is_locked;
}

/* Makes no page present that is not, and writes to no page that is zero: the
 * kernel may have one such page for all. What is absent may be in swap, from
 * where MADV_FREE takes it. Zero if the kernel refuses that. */
NPRDMA_HOOK
static int nprdma_lazy_zero(nprdma_span_t block)
{
    const size_t page_size = (size_t)sysconf(_SC_PAGESIZE);
    unsigned char present[NPRDMA_LAZY_BATCH];
    const size_t bytes = sizeof(present) * page_size;
    nprdma_span_t batch;
    size_t absent, i;
    char *page;

    for (batch = block; batch.start < block.end; batch.start = batch.end) {
        /* The next multiple, so that no huge page is cut into two */
        batch.end = ucs_min((batch.start / bytes + 1) * bytes, block.end);
        if (syscall(SYS_mincore, batch.start, batch.end - batch.start,
                    present) != 0) {
            memset(present, 1, sizeof(present)); /* refused: all are read */
        }
        page = (char*)batch.start;
        for (absent = i = 0; page < (char*)batch.end; ++i, page += page_size) {
            if (!(present[i] & 1)) {
                ++absent;
            } else if ((*page != 0) ||
                       (memcmp(page, page + 1, page_size - 1) != 0)) {
                memset(page, 0, page_size);
            }
        }
        if ((absent > 0) && !nprdma_lazy_advise(batch, MADV_FREE)) {
            return 0;
        }
    }
    return 1;
}

/* Make a kept block as mmap() makes memory. @return Zero if it is to go. */
NPRDMA_HOOK
static int nprdma_lazy_open(nprdma_span_t block)
{
    return nprdma_procmap_is_inaccessible(block) &&
           !nprdma_lazy_is_new_locked() &&
           (syscall(SYS_msync, block.start, block.end - block.start,
                    MS_ASYNC | MS_INVALIDATE) == 0) &&
           nprdma_lazy_advise(block, MADV_DOFORK) &&
           nprdma_lazy_protect(block, PROT_READ | PROT_WRITE) &&
           nprdma_lazy_zero(block);
}


/* ---- places ---- */

/* A signal handler that has interrupted the thread recognizes its claim */
NPRDMA_HOOK
static uintptr_t nprdma_lazy_mine(void)
{
    return (uintptr_t)pthread_self() | NPRDMA_LAZY_CLAIMED;
}

/* @return Nonzero if the place was in a state, and is claimed now */
NPRDMA_HOOK
static int nprdma_lazy_claim(nprdma_lazy_place_t *place, uintptr_t state)
{
    return (atomic_load(&place->state) == state) &&
           atomic_compare_exchange_strong(&place->state, &state,
                                          nprdma_lazy_mine());
}

NPRDMA_HOOK
static nprdma_span_t nprdma_lazy_block(const nprdma_lazy_place_t *place)
{
    return nprdma_span(atomic_load(&place->start), atomic_load(&place->end));
}

/* The block of a claimed place is not kept any more, which is counted */
NPRDMA_HOOK
static void nprdma_lazy_forget(nprdma_lazy_t *lazy, nprdma_lazy_place_t *place,
                               _Atomic uint64_t *counter)
{
    atomic_fetch_add(counter, 1);
    atomic_fetch_sub(&lazy->bytes, place->end - place->start);
    atomic_store(&place->state, NPRDMA_LAZY_FREE);
}

/* Unmap the block of a claimed place, which is free only then: a call that maps
 * other memory there waits for that. Zero if the kernel refuses it for now, and
 * it stays; never if it must go. What has become of something else, or was
 * sealed, is let alone. */
NPRDMA_HOOK
static int nprdma_lazy_release(nprdma_lazy_t *lazy, nprdma_lazy_place_t *place,
                               int must)
{
    nprdma_span_t block = nprdma_lazy_block(place);
    int is_gone;

    nprdma_events_take(block, block);
    is_gone = !nprdma_procmap_is_inaccessible(block) ||
              (syscall(SYS_munmap, block.start, block.end - block.start) ==
               0) || (errno == EPERM) || must;
    nprdma_events_unblock();
    if (is_gone) {
        nprdma_lazy_forget(lazy, place, &lazy->dropped);
    } else {
        atomic_store(&place->order, atomic_fetch_add(&lazy->order, 1));
        atomic_store(&place->state, NPRDMA_LAZY_KEPT);
    }
    return is_gone;
}

/* Claim a place whose block overlaps a span. Waits while another thread has
 * claimed it. @return Its state until then; NPRDMA_LAZY_FREE: it has none. */
NPRDMA_HOOK
static uintptr_t nprdma_lazy_claim_in(nprdma_lazy_place_t *place,
                                      nprdma_span_t span)
{
    uintptr_t state;

    for (;;) {
        state = atomic_load(&place->state);
        if ((state == NPRDMA_LAZY_FREE) || (state == nprdma_lazy_mine()) ||
            !nprdma_span_overlaps(nprdma_lazy_block(place), span)) {
            return NPRDMA_LAZY_FREE;
        }

        if (state >= NPRDMA_LAZY_CLAIMED) {
            sched_yield();
        } else if (nprdma_lazy_claim(place, state)) {
            if (nprdma_span_overlaps(nprdma_lazy_block(place), span)) {
                return state;
            }
            atomic_store(&place->state, state); /* Another block since then */
        }
    }
}

/* Addresses change, or have changed if is_gone: the pool has nothing there when
 * this returns, and what is mapped there is not kept later. If exact_p is not
 * NULL, it gets the place, claimed, of a mapped block that is the span. */
NPRDMA_HOOK
static void nprdma_lazy_clear(nprdma_lazy_t *lazy, nprdma_span_t span,
                              int is_gone, nprdma_lazy_place_t **exact_p)
{
    nprdma_lazy_place_t *place;
    uintptr_t state;

    for (place = lazy->places; place < lazy->places + NPRDMA_LAZY_NUM_PLACES;
         ++place) {
        state = nprdma_lazy_claim_in(place, span);
        if ((state == NPRDMA_LAZY_KEPT) && !is_gone) {
            nprdma_lazy_release(lazy, place, 1);
        } else if (state == NPRDMA_LAZY_KEPT) {
            nprdma_lazy_forget(lazy, place, &lazy->dropped);
        } else if ((state == NPRDMA_LAZY_LIVE) && (exact_p != NULL) &&
                   (*exact_p == NULL) && (place->start == span.start) &&
                   (place->end == span.end)) {
            *exact_p = place;
        } else if (state == NPRDMA_LAZY_LIVE) {
            atomic_store(&place->state, NPRDMA_LAZY_FREE);
        }
    }
}

/* Claim the block that was kept last, or first, of a length if that is not 0.
 * @return NULL if there is none */
NPRDMA_HOOK
static nprdma_lazy_place_t *nprdma_lazy_take(nprdma_lazy_t *lazy, size_t length,
                                             int newest)
{
    nprdma_lazy_place_t *place, *found;

    do {
        found = NULL;
        for (place = lazy->places;
             place < lazy->places + NPRDMA_LAZY_NUM_PLACES; ++place) {
            if ((atomic_load(&place->state) == NPRDMA_LAZY_KEPT) &&
                ((length == 0) || (place->end - place->start == length)) &&
                ((found == NULL) ||
                 (newest == (place->order > found->order)))) {
                found = place;
            }
        }
    } while ((found != NULL) && !nprdma_lazy_claim(found, NPRDMA_LAZY_KEPT));

    return found;
}

/* Unmap kept blocks, the oldest first, until there are no more bytes than a
 * number. Blocks that are neighbours are one mapping. If there are too many
 * mappings, only its ends can be unmapped: the others follow. */
NPRDMA_HOOK
static void nprdma_lazy_trim(nprdma_lazy_t *lazy, size_t bytes)
{
    unsigned failed = 0;
    nprdma_lazy_place_t *place;

    while ((atomic_load(&lazy->bytes) > bytes) &&
           (failed < NPRDMA_LAZY_NUM_PLACES)) {
        place = nprdma_lazy_take(lazy, 0, 0);
        if (place == NULL) {
            return;
        }
        failed = nprdma_lazy_release(lazy, place, 0) ? 0 : (failed + 1);
    }
}

/* mmap() has made a block that may be kept. If there are too many it is not. */
NPRDMA_HOOK
static void nprdma_lazy_made(nprdma_lazy_t *lazy, nprdma_span_t block)
{
    nprdma_lazy_place_t *oldest;
    unsigned i = 0;

    if ((block.end - block.start < NPRDMA_LAZY_MIN) ||
        (block.end - block.start > atomic_load(&lazy->limit) / 2)) {
        return;
    }

    while (!nprdma_lazy_claim(&lazy->places[i], NPRDMA_LAZY_FREE)) {
        if (++i == NPRDMA_LAZY_NUM_PLACES) {
            oldest = nprdma_lazy_take(lazy, 0, 0);
            if ((oldest == NULL) || !nprdma_lazy_release(lazy, oldest, 0)) {
                return;
            }
            i = 0;
        }
    }
    atomic_store(&lazy->places[i].start, block.start);
    atomic_store(&lazy->places[i].end, block.end);
    atomic_store(&lazy->places[i].state, NPRDMA_LAZY_LIVE);
}

/* @return Nonzero if the block of a claimed place is kept. What ends the pool
 * sets the limit to zero, and then waits for the place. */
NPRDMA_HOOK
static int nprdma_lazy_keep(nprdma_lazy_t *lazy, nprdma_lazy_place_t *place)
{
    nprdma_span_t block = nprdma_lazy_block(place);

    /* Counted before it is kept, so that the limit always holds */
    atomic_fetch_add(&lazy->bytes, block.end - block.start);
    nprdma_lazy_trim(lazy, atomic_load(&lazy->limit));
    if ((atomic_load(&lazy->bytes) > atomic_load(&lazy->limit)) ||
        nprdma_lazy_is_limited() || !nprdma_lazy_close(block)) {
        atomic_fetch_sub(&lazy->bytes, block.end - block.start);
        atomic_store(&place->state, NPRDMA_LAZY_FREE);
        return 0;
    }

    atomic_store(&place->order, atomic_fetch_add(&lazy->order, 1));
    atomic_store(&place->state, NPRDMA_LAZY_KEPT);
    return 1;
}

/* @return Address of a block for a new mapping, or MAP_FAILED */
NPRDMA_HOOK
static void *nprdma_lazy_reuse(nprdma_lazy_t *lazy, size_t length)
{
    nprdma_lazy_place_t *place = nprdma_lazy_take(lazy, length, 1);
    void *address              = MAP_FAILED;
    nprdma_span_t block;

    if (place == NULL) {
        return MAP_FAILED;
    }

    /* Blocked until all bytes are zero, so that no registration shows the NIC
     * what the block had */
    block = nprdma_lazy_block(place);
    nprdma_events_block(block);
    if ((block.end - block.start == length) && nprdma_lazy_open(block)) {
        address = (void*)block.start;
        nprdma_lazy_forget(lazy, place, &lazy->reused);
    } else {
        nprdma_lazy_release(lazy, place, 0);
    }
    nprdma_events_unblock();
    return address;
}


/* ---- hooks ---- */

/* Private anonymous memory that may be read and written, at an address that
 * the kernel chooses, and without flags */
NPRDMA_HOOK
static int nprdma_lazy_is_plain(const ucm_event_t *event)
{
    return (event->mmap.address == NULL) && (event->mmap.fd == -1) &&
           (event->mmap.prot == (PROT_READ | PROT_WRITE)) &&
           (event->mmap.flags == (MAP_PRIVATE | MAP_ANONYMOUS)) &&
           (event->mmap.offset == 0) && (event->mmap.size > 0);
}

/* Addresses that a call is about to change, or may */
NPRDMA_HOOK
static nprdma_span_t nprdma_lazy_changed(ucm_event_type_t type,
                                         const ucm_event_t *event)
{
    switch (type) {
    case UCM_EVENT_MMAP: /* A hint, or more than that */
        return nprdma_huge_mmap(event->mmap.address, event->mmap.size,
                                event->mmap.flags, event->mmap.fd);
    case UCM_EVENT_MUNMAP:
        return nprdma_huge_pages(event->munmap.address, event->munmap.size);
    case UCM_EVENT_MREMAP: /* Not all versions of UCM report the target */
        return (event->mremap.flags & MREMAP_FIXED) ?
               nprdma_span(0, UINTPTR_MAX) :
               nprdma_huge_pages(event->mremap.address, event->mremap.old_size);
    case UCM_EVENT_MADVISE: /* What it does may outlive the contents */
        return nprdma_huge_pages(event->madvise.addr, event->madvise.length);
    default:
        return nprdma_span(0, 0);
    }
}

NPRDMA_HOOK
static void nprdma_lazy_before(ucm_event_type_t type, ucm_event_t *event,
                               void *arg)
{
    nprdma_lazy_place_t *exact = NULL;
    nprdma_lazy_t *lazy        = arg;
    int saved_errno            = errno;
    nprdma_span_t span;

    if (atomic_load(&lazy->users) == 0) {
        return;
    }

    /* The call may need what is kept */
    if ((atomic_load(&lazy->bytes) > 0) &&
        ((type == UCM_EVENT_MREMAP) || (type == UCM_EVENT_SHMAT) ||
         nprdma_lazy_is_limited())) {
        nprdma_lazy_trim(lazy, 0);
    }

    span = nprdma_lazy_changed(type, event);
    if ((type == UCM_EVENT_MUNMAP) && (event->munmap.result == -1) &&
        ((uintptr_t)event->munmap.address == span.start)) {
        nprdma_lazy_clear(lazy, span, 0, &exact);
        if ((exact != NULL) && nprdma_lazy_keep(lazy, exact)) {
            event->munmap.result = 0;
        }
    } else if ((type == UCM_EVENT_MMAP) && nprdma_lazy_is_plain(event) &&
               (event->mmap.result == MAP_FAILED)) {
        event->mmap.result = nprdma_lazy_reuse(lazy, span.end);
    } else {
        nprdma_lazy_clear(lazy, span, 0, NULL);
    }
    errno = saved_errno;
}

NPRDMA_HOOK
static void nprdma_lazy_after(ucm_event_type_t type, ucm_event_t *event,
                              void *arg)
{
    nprdma_lazy_t *lazy = arg;
    int saved_errno     = errno;
    nprdma_span_t span;

    if ((atomic_load(&lazy->users) == 0) || (type != UCM_EVENT_MMAP)) {
        return;
    }

    /* Made once more if the pool has had the memory, or mappings */
    if ((event->mmap.result == MAP_FAILED) && (saved_errno == ENOMEM) &&
        (atomic_load(&lazy->bytes) > 0)) {
        nprdma_lazy_trim(lazy, 0);
        event->mmap.result = (void*)syscall(SYS_mmap, event->mmap.address,
                                            event->mmap.size, event->mmap.prot,
                                            event->mmap.flags, event->mmap.fd,
                                            event->mmap.offset);
        saved_errno        = errno;
    }
    if (event->mmap.result != MAP_FAILED) {
        span = nprdma_huge_pages(event->mmap.result, event->mmap.size);
        nprdma_lazy_clear(lazy, span, 1, NULL);
        if (nprdma_lazy_is_plain(event)) {
            nprdma_lazy_made(lazy, span);
        }
    }
    errno = saved_errno;
}


/* ---- use ---- */

/* Handlers stay. A child that removed what it has inherited would wait for ever
 * for a thread of the parent that was in a hook. */
static void nprdma_lazy_uninstall(nprdma_lazy_t *lazy)
{
    atomic_store(&lazy->limit, 0);
    nprdma_lazy_clear(lazy, nprdma_span(0, UINTPTR_MAX), 0, NULL);
    atomic_store(&lazy->users, 0);
    close(nprdma_lazy_uffd);
    nprdma_lazy_uffd = -1;
}

/* Once per process. If UCM refuses a handler, no block comes back. */
static nprdma_lazy_t *nprdma_lazy_prepare(void)
{
    const int types = NPRDMA_LAZY_TYPES | UCM_EVENT_FLAG_NO_INSTALL;
    nprdma_lazy_t *lazy;

    lazy = nprdma_events_alloc_wiped(sizeof(*lazy));
    if (lazy != NULL) {
        ucm_set_event_handler(types, NPRDMA_LAZY_PRIO_AFTER, nprdma_lazy_after,
                              lazy);
        ucm_set_event_handler(types, NPRDMA_LAZY_PRIO_BEFORE,
                              nprdma_lazy_before, lazy);
    }
    return lazy;
}

/* Whether a block is kept and comes back: an allocator may have an mmap() of
 * its own, or another library may have disconnected a hook. Not counted. */
static int nprdma_lazy_works(nprdma_lazy_t *lazy)
{
    int works, i;
    void *ptr;

    for (i = 0; i < 2; ++i) {
        ptr = mmap(NULL, NPRDMA_LAZY_MIN, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (ptr != MAP_FAILED) {
            munmap(ptr, NPRDMA_LAZY_MIN);
        }
    }
    nprdma_lazy_trim(lazy, 0);
    works        = (lazy->reused > 0);
    lazy->reused = lazy->dropped = 0;
    return works;
}

/* @return NULL, or why nothing is kept */
static const char *nprdma_lazy_install(nprdma_lazy_t *lazy, size_t limit)
{
    if ((dlsym(RTLD_DEFAULT, "__asan_init") != NULL) ||
        (dlsym(RTLD_DEFAULT, "__hwasan_init") != NULL) ||
        (dlsym(RTLD_DEFAULT, "__msan_init") != NULL)) {
        return "a sanitizer follows the addresses of this process";
    }

    /* Uninstalled, it is -1; else it is that of the parent, or a file that the
     * child has opened since */
    nprdma_lazy_uffd = nprdma_uffd_open_probe();
    memset(lazy->places, 0, sizeof(lazy->places));
    atomic_store(&lazy->limit, limit);
    if (!nprdma_lazy_works(lazy)) {
        return "UCX does not report mmap() and munmap(), or the kernel refuses "
               "to protect memory, locks it (mlockall) or limits it (ulimit)";
    }

    ucs_info("munmap() keeps up to %zu bytes for reuse", limit);
    return NULL;
}

int nprdma_lazy_start(size_t limit)
{
    const char *why = "no memory";
    nprdma_lazy_t *lazy;

    nprdma_events_lock();
    if (nprdma_lazy_pool == NULL) {
        nprdma_lazy_pool = nprdma_lazy_prepare();
    }
    lazy = nprdma_lazy_pool;
    if (lazy != NULL) {
        why = (lazy->users++ > 0) ? NULL : nprdma_lazy_install(lazy, limit);
        if (why != NULL) {
            nprdma_lazy_uninstall(lazy);
        }
    }
    nprdma_events_unlock();
    if (why != NULL) {
        ucs_warn("UCX_NPRDMA_LAZY_UNMAP has no effect, munmap() keeps nothing: "
                 "%s", why);
    }
    return why == NULL;
}

void nprdma_lazy_stop(void)
{
    nprdma_events_lock();
    if (nprdma_lazy_pool->users > 1) {
        --nprdma_lazy_pool->users;
    } else {
        nprdma_lazy_uninstall(nprdma_lazy_pool);
    }
    nprdma_events_unlock();
}

void nprdma_lazy_query(nprdma_lazy_stats_t *stats)
{
    nprdma_lazy_t *lazy = nprdma_lazy_pool;

    memset(stats, 0, sizeof(*stats));
    if (lazy != NULL) {
        stats->bytes   = lazy->bytes;
        stats->reused  = lazy->reused;
        stats->dropped = lazy->dropped;
    }
}
