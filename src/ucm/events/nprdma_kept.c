/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "nprdma_kept.h"
#include "nprdma_block.h"
#include "nprdma_events.h"
#include "nprdma_huge.h"

#include <ucm/api/ucm.h>
#include <ucs/debug/log.h>
#include <ucs/sys/compiler_def.h>

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>


#define NPRDMA_KEPT_TYPES \
    (UCM_EVENT_MMAP | UCM_EVENT_MUNMAP | UCM_EVENT_MREMAP | UCM_EVENT_SHMAT | \
     UCM_EVENT_SBRK | UCM_EVENT_BRK | UCM_EVENT_MADVISE)

/* UCM makes the call itself between these two */
#define NPRDMA_KEPT_PRIO_BEFORE (-2)
#define NPRDMA_KEPT_PRIO_AFTER  1


/* In memory that is all zeros in a child: it has no pool */
typedef struct nprdma_kept_state {
    uint32_t         is_owner; /* Zero in a forked child */
    _Atomic uint32_t unseen; /* Events that nprdma_kept_arrive() waits for */
    nprdma_lazy_t   *lazy;   /* Behind this */
} nprdma_kept_state_t;


static struct {
    pthread_mutex_t      lock; /* Held during fork() */
    unsigned             users;
    int                  has_handlers; /* Of UCM */
    int                  is_child;     /* They are of the parent */
    size_t               page_size;
    nprdma_kept_state_t *state; /* Kept until the process ends */
} nprdma_kept = {
    .lock = PTHREAD_MUTEX_INITIALIZER
};

static pthread_once_t nprdma_kept_once = PTHREAD_ONCE_INIT;
static int nprdma_kept_installed; /* Handlers of fork(): 0 or errno */


NPRDMA_HOOK
static int nprdma_kept_is_owner(void)
{
    return (nprdma_kept.state != NULL) && nprdma_kept.state->is_owner;
}


/* The dynamic linker maps libraries by system calls of its own: no hook could
 * give something back for them */
NPRDMA_HOOK
static int nprdma_kept_is_limited(void)
{
    static const int resources[] = { RLIMIT_AS, RLIMIT_DATA };
    int saved                    = errno;
    int is_limited               = 0;
    struct rlimit limit;
    unsigned i;

    for (i = 0; i < 2; ++i) {
        is_limited |= (syscall(SYS_prlimit64, 0, resources[i], NULL, &limit) ==
                       0) && (limit.rlim_cur != RLIM_INFINITY);
    }
    errno = saved;
    return is_limited;
}


/* ---- the table's functions ---- */

NPRDMA_HOOK
static nprdma_lazy_result_t nprdma_kept_close(void *arg, nprdma_span_t block)
{
    return nprdma_kept_is_limited() ? NPRDMA_LAZY_REFUSED :
                                      nprdma_block_close(block);
}

/* The addresses are blocked until all bytes are zero, so that no registration
 * shows the NIC what the block had */
NPRDMA_HOOK
static nprdma_lazy_result_t nprdma_kept_open(void *arg, nprdma_span_t block)
{
    nprdma_lazy_result_t result;

    nprdma_events_block(block);
    result = nprdma_block_open(block);
    nprdma_events_unblock();
    return result;
}

NPRDMA_HOOK
static nprdma_lazy_result_t nprdma_kept_release(void *arg, nprdma_span_t block)
{
    nprdma_lazy_result_t result;

    nprdma_events_take(block, block);
    result = nprdma_block_unmap(block);
    nprdma_events_unblock();
    return result;
}

static const nprdma_lazy_ops_t nprdma_kept_ops = {
    .close   = nprdma_kept_close,
    .open    = nprdma_kept_open,
    .release = nprdma_kept_release
};


/* ---- hooks ---- */

NPRDMA_HOOK
static nprdma_span_t nprdma_kept_pages(const void *address, size_t length)
{
    return nprdma_huge_span((uintptr_t)address, length,
                            nprdma_kept.page_size);
}

NPRDMA_HOOK
static void nprdma_kept_map(nprdma_lazy_t *lazy, ucm_event_t *event)
{
    nprdma_span_t span;
    uintptr_t block;

    if (event->mmap.address != NULL) {
        /* A hint, or more than that: the addresses count as free */
        nprdma_lazy_forget(lazy, nprdma_huge_mmap(event->mmap.address,
                                                  event->mmap.size,
                                                  event->mmap.flags,
                                                  event->mmap.fd));
        return;
    }

    span = nprdma_kept_pages(NULL, event->mmap.size);
    if ((event->mmap.result == MAP_FAILED) && (event->mmap.size > 0) &&
        nprdma_events_is_plain(event)) {
        block = nprdma_lazy_reuse(lazy, span.end);
        if (block != 0) {
            event->mmap.result = (void*)block;
        }
    }
}

NPRDMA_HOOK
static void nprdma_kept_unmap(nprdma_lazy_t *lazy, ucm_event_t *event)
{
    uintptr_t start    = (uintptr_t)event->munmap.address;
    nprdma_span_t span = nprdma_kept_pages(event->munmap.address,
                                           event->munmap.size);

    if ((event->munmap.result != -1) || (event->munmap.size == 0) ||
        (start != span.start)) {
        return; /* Done already, or an error */
    }

    /* Not mapped, as far as the caller knows */
    nprdma_lazy_forget(lazy, span);
    if (nprdma_lazy_keep(lazy, span)) {
        event->munmap.result = 0;
    }
}

NPRDMA_HOOK
static void nprdma_kept_advise(nprdma_lazy_t *lazy, const ucm_event_t *event)
{
    nprdma_span_t span = nprdma_kept_pages(event->madvise.addr,
                                           event->madvise.length);

    nprdma_lazy_forget(lazy, span);
    switch (event->madvise.advice) {
    case MADV_WILLNEED:
    case 22: /* MADV_POPULATE_READ */
    case 23: /* MADV_POPULATE_WRITE */
        return;
    default:
        /* MADV_HUGEPAGE as well: no advice takes it back */
        nprdma_lazy_taint(lazy, span);
    }
}

NPRDMA_HOOK
static void nprdma_kept_before(ucm_event_type_t type, ucm_event_t *event,
                               void *arg)
{
    nprdma_kept_state_t *state = arg;
    nprdma_lazy_t *lazy        = state->lazy;
    int saved_errno            = errno;
    nprdma_span_t span;

    if (!state->is_owner) {
        return;
    }

    if (ucs_unlikely(atomic_load(&state->unseen) != 0)) {
        atomic_fetch_and(&state->unseen, ~(uint32_t)type);
    }

    switch (type) {
    case UCM_EVENT_MMAP:
        nprdma_kept_map(lazy, event);
        break;
    case UCM_EVENT_MUNMAP:
        nprdma_kept_unmap(lazy, event);
        break;
    case UCM_EVENT_MREMAP:
        span = nprdma_kept_pages(event->mremap.address,
                                 event->mremap.old_size);
        if (event->mremap.flags & MREMAP_FIXED) {
            /* Not all versions of UCM report the target address */
            span = nprdma_span(0, UINTPTR_MAX);
        }
        nprdma_lazy_forget(lazy, span);
        nprdma_lazy_taint(lazy, nprdma_kept_pages(event->mremap.address,
                                                  event->mremap.old_size));
        break;
    case UCM_EVENT_SHMAT:
        if (event->shmat.shmaddr != NULL) {
            nprdma_lazy_forget(lazy, nprdma_span(0, UINTPTR_MAX));
        }
        break;
    case UCM_EVENT_MADVISE:
        nprdma_kept_advise(lazy, event);
        break;
    default:
        break;
    }
    errno = saved_errno;
}

/* Blocks that are neighbours are one mapping. If there are too many mappings,
 * only its ends can be unmapped: the others follow. */
NPRDMA_HOOK
static unsigned nprdma_kept_drop_all(nprdma_lazy_t *lazy)
{
    unsigned total = 0;
    unsigned count, i;

    /* Other threads may go on to keep blocks */
    for (i = 0; i < NPRDMA_LAZY_NUM_SLOTS; ++i) {
        count  = nprdma_lazy_drop(lazy);
        total += count;
        if (count == 0) {
            break;
        }
    }

    return total;
}

/* A call that has failed for lack of memory or addresses, which the pool has,
 * is made once more without the pool */
NPRDMA_HOOK
static void nprdma_kept_retry(nprdma_lazy_t *lazy, ucm_event_type_t type,
                              ucm_event_t *event)
{
    int is_failed;

    switch (type) {
    case UCM_EVENT_MMAP:
        is_failed = (event->mmap.result == MAP_FAILED);
        break;
    case UCM_EVENT_MREMAP:
        is_failed = (event->mremap.result == MAP_FAILED) &&
                    !(event->mremap.flags & MREMAP_FIXED);
        break;
    case UCM_EVENT_SHMAT:
        is_failed = (event->shmat.result == MAP_FAILED);
        break;
    case UCM_EVENT_SBRK:
        is_failed = (event->sbrk.result == MAP_FAILED);
        break;
    case UCM_EVENT_BRK:
        is_failed = (event->brk.result == -1);
        break;
    default:
        is_failed = 0;
        break;
    }
    if (!is_failed || (errno != ENOMEM) || (nprdma_kept_drop_all(lazy) == 0)) {
        return;
    }

    errno = ENOMEM;
    switch (type) {
    case UCM_EVENT_MMAP:
        event->mmap.result = (void*)syscall(SYS_mmap, event->mmap.address,
                                            event->mmap.size, event->mmap.prot,
                                            event->mmap.flags, event->mmap.fd,
                                            event->mmap.offset);
        break;
    case UCM_EVENT_MREMAP:
        event->mremap.result = (void*)syscall(SYS_mremap,
                                              event->mremap.address,
                                              event->mremap.old_size,
                                              event->mremap.new_size,
                                              event->mremap.flags);
        break;
    case UCM_EVENT_SHMAT:
        event->shmat.result = (void*)syscall(SYS_shmat, event->shmat.shmid,
                                             event->shmat.shmaddr,
                                             event->shmat.shmflg);
        break;
    case UCM_EVENT_SBRK:
        event->sbrk.result = ucm_orig_sbrk(event->sbrk.increment);
        break;
    default:
        event->brk.result = ucm_orig_brk(event->brk.addr);
        break;
    }
}

NPRDMA_HOOK
static void nprdma_kept_after(ucm_event_type_t type, ucm_event_t *event,
                              void *arg)
{
    nprdma_kept_state_t *state = arg;
    nprdma_lazy_t *lazy        = state->lazy;
    nprdma_span_t span;

    if (!state->is_owner) {
        return;
    }

    nprdma_kept_retry(lazy, type, event);
    if ((type == UCM_EVENT_MMAP) && (event->mmap.result != MAP_FAILED)) {
        span = nprdma_kept_pages(event->mmap.result, event->mmap.size);
        if (nprdma_events_is_plain(event)) {
            nprdma_lazy_made(lazy, span);
        } else {
            nprdma_lazy_mapped(lazy, span);
        }
    } else if ((type == UCM_EVENT_MREMAP) &&
               (event->mremap.result != MAP_FAILED)) {
        nprdma_lazy_mapped(lazy, nprdma_kept_pages(event->mremap.result,
                                                   event->mremap.new_size));
    }
}


/* ---- fork ---- */

/* A child never pays for copies of kept pages: they are unmapped before */
static void nprdma_kept_fork_prepare(void)
{
    pthread_mutex_lock(&nprdma_kept.lock);
    if (nprdma_kept_is_owner()) {
        nprdma_lazy_pause(nprdma_kept.state->lazy);
    }
}

static void nprdma_kept_fork_parent(void)
{
    if (nprdma_kept_is_owner()) {
        nprdma_lazy_resume(nprdma_kept.state->lazy);
    }
    pthread_mutex_unlock(&nprdma_kept.lock);
}

static void nprdma_kept_fork_child(void)
{
    nprdma_kept.is_child = nprdma_kept.has_handlers;
    pthread_mutex_unlock(&nprdma_kept.lock);
}

static void nprdma_kept_install_forks(void)
{
    nprdma_kept_installed = pthread_atfork(nprdma_kept_fork_prepare,
                                           nprdma_kept_fork_parent,
                                           nprdma_kept_fork_child);
}


/* ---- use ---- */

/* @return Name of the sanitizer that follows addresses, or NULL */
static const char *nprdma_kept_sanitizer(void)
{
    static const struct {
        const char *symbol;
        const char *name;
    } known[] = {
        { "__asan_init", "AddressSanitizer" },
        { "__hwasan_init", "HWAddressSanitizer" },
        { "__msan_init", "MemorySanitizer" }
    };
    unsigned i;

    for (i = 0; i < ucs_static_array_size(known); ++i) {
        if (dlsym(RTLD_DEFAULT, known[i].symbol) != NULL) {
            return known[i].name;
        }
    }

    return NULL;
}

/* Check that mmap() and munmap() are reported: an allocator may have an mmap()
 * of its own, or another library may have disconnected one of the hooks. A page
 * is not kept, so nothing is counted. */
static int nprdma_kept_arrive(nprdma_kept_state_t *state)
{
    void *ptr;

    atomic_store(&state->unseen, UCM_EVENT_MMAP | UCM_EVENT_MUNMAP);
    ptr = mmap(NULL, nprdma_kept.page_size, PROT_READ | PROT_WRITE,
               MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (ptr != MAP_FAILED) {
        munmap(ptr, nprdma_kept.page_size);
    }
    return atomic_exchange(&state->unseen, 0) == 0;
}

static ucs_status_t nprdma_kept_prepare(void)
{
    if (nprdma_kept.state == NULL) {
        nprdma_kept.state =
                nprdma_events_alloc_wiped(sizeof(*nprdma_kept.state) +
                                          nprdma_lazy_size());
        if (nprdma_kept.state == NULL) {
            return UCS_ERR_NO_MEMORY;
        }
    }

    nprdma_kept.state->lazy = (nprdma_lazy_t*)(nprdma_kept.state + 1);
    return UCS_OK;
}

static ucs_status_t nprdma_kept_add_handler(int priority,
                                            ucm_event_callback_t callback)
{
    return ucm_set_event_handler(NPRDMA_KEPT_TYPES | UCM_EVENT_FLAG_NO_INSTALL,
                                 priority, callback, nprdma_kept.state);
}

static void nprdma_kept_remove_handlers(void)
{
    ucm_unset_event_handler(NPRDMA_KEPT_TYPES, nprdma_kept_before,
                            nprdma_kept.state);
    ucm_unset_event_handler(NPRDMA_KEPT_TYPES, nprdma_kept_after,
                            nprdma_kept.state);
    nprdma_kept.has_handlers = 0;
}

/* In this order: without handlers nothing more is kept. A child does not remove
 * what it has inherited, since UCM would wait for ever for a thread of the
 * parent that was in a hook. */
static void nprdma_kept_uninstall(nprdma_kept_state_t *state)
{
    if (nprdma_kept.is_child) {
        nprdma_lazy_pause(state->lazy);
    } else {
        nprdma_kept_remove_handlers();
    }
    nprdma_lazy_drop(state->lazy);
    state->is_owner = 0;
    nprdma_block_cleanup();
}

static ucs_status_t nprdma_kept_add_handlers(void)
{
    if (nprdma_kept.has_handlers) {
        return UCS_OK; /* Inherited by a child */
    }

    nprdma_kept.has_handlers = 1;
    if ((nprdma_kept_add_handler(NPRDMA_KEPT_PRIO_AFTER, nprdma_kept_after) !=
         UCS_OK) ||
        (nprdma_kept_add_handler(NPRDMA_KEPT_PRIO_BEFORE,
                                 nprdma_kept_before) != UCS_OK)) {
        nprdma_kept_remove_handlers();
        return UCS_ERR_NO_MEMORY;
    }

    return UCS_OK;
}

/* @param [out] why_p  Reason of an error that has not been logged. */
static ucs_status_t nprdma_kept_install(size_t limit, const char **why_p)
{
    nprdma_kept_state_t *state;
    ucs_status_t status;

    nprdma_kept.page_size = (size_t)sysconf(_SC_PAGESIZE);
    status                = nprdma_kept_prepare();
    if (status != UCS_OK) {
        *why_p = ucs_status_string(status);
        return status;
    }

    state = nprdma_kept.state;
    nprdma_block_init();
    nprdma_lazy_init(state->lazy, limit, &nprdma_kept_ops, state);
    state->is_owner = 1;
    status          = nprdma_kept_add_handlers();
    *why_p          = ucs_status_string(status);
    if ((status == UCS_OK) && !nprdma_kept_arrive(state)) {
        *why_p = "UCX does not report mmap() and munmap()";
        status = UCS_ERR_UNSUPPORTED;
    } else if ((status == UCS_OK) && !nprdma_block_works()) {
        *why_p = "the kernel refuses to protect memory, or locks it "
                 "(mlockall)";
        status = UCS_ERR_UNSUPPORTED;
    }
    if (status != UCS_OK) {
        nprdma_kept_uninstall(state);
        return status;
    }

    ucs_info("munmap() keeps up to %zu bytes for reuse", limit);
    return UCS_OK;
}

ucs_status_t nprdma_kept_start(size_t limit)
{
    const char *why     = NULL;
    ucs_status_t status = UCS_OK;
    const char *sanitizer;

    sanitizer = nprdma_kept_sanitizer();
    if (sanitizer != NULL) {
        ucs_warn("UCX_NPRDMA_LAZY_UNMAP has no effect, munmap() keeps nothing: "
                 "%s follows the addresses of this process", sanitizer);
        return UCS_ERR_UNSUPPORTED;
    }

    /* Before the lock is taken for the first time */
    pthread_once(&nprdma_kept_once, nprdma_kept_install_forks);
    pthread_mutex_lock(&nprdma_kept.lock);
    if (!nprdma_kept_is_owner()) {
        nprdma_kept.users = 0;
    }
    if (nprdma_kept_installed != 0) {
        why    = strerror(nprdma_kept_installed);
        status = UCS_ERR_NO_MEMORY;
    } else if (nprdma_kept.users == 0) {
        status = nprdma_kept_install(limit, &why);
    }
    nprdma_kept.users += (status == UCS_OK);
    pthread_mutex_unlock(&nprdma_kept.lock);
    if ((status != UCS_OK) && (why != NULL)) {
        ucs_warn("UCX_NPRDMA_LAZY_UNMAP has no effect, munmap() keeps nothing: "
                 "%s", why);
    }
    return status;
}

void nprdma_kept_stop(void)
{
    pthread_mutex_lock(&nprdma_kept.lock);
    if (--nprdma_kept.users == 0) {
        nprdma_kept_uninstall(nprdma_kept.state);
    }
    pthread_mutex_unlock(&nprdma_kept.lock);
}

unsigned nprdma_kept_drop(void)
{
    unsigned count = 0;

    pthread_mutex_lock(&nprdma_kept.lock);
    if (nprdma_kept_is_owner()) {
        count = nprdma_lazy_drop(nprdma_kept.state->lazy);
    }
    pthread_mutex_unlock(&nprdma_kept.lock);
    return count;
}

void nprdma_kept_query(nprdma_lazy_stats_t *stats)
{
    memset(stats, 0, sizeof(*stats));
    if ((nprdma_kept.state != NULL) && (nprdma_kept.state->lazy != NULL)) {
        nprdma_lazy_query(nprdma_kept.state->lazy, stats);
    }
}
