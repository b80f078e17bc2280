/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "nprdma_malloc.h"
#include "ucm/events/nprdma_hook.h"
#include "ucm/events/nprdma_pressure.h"

#include <ucm/api/ucm.h>
#include <ucs/debug/log.h>
#include <ucs/sys/compiler_def.h>

#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>


/* Seconds for which nothing is kept after memory was short */
#define NPRDMA_MALLOC_PAUSE_SECONDS 10

/* Larger blocks are mapped: the most that glibc takes, half of the heap of a
 * thread's arena (HEAP_MAX_SIZE) */
#define NPRDMA_MALLOC_MMAP_THRESHOLD (32 << 20)

/* With these glibc starts (mallopt(3)) */
#define NPRDMA_MALLOC_DEFAULT_TRIM 131072
#define NPRDMA_MALLOC_DEFAULT_MMAP 131072
#define NPRDMA_MALLOC_DEFAULT_MAX  65536

#define NPRDMA_MALLOC_TYPES \
    (UCM_EVENT_MMAP | UCM_EVENT_MREMAP | UCM_EVENT_SBRK | UCM_EVENT_BRK)

/* Of UCM's handlers, the last one before it makes the call itself */
#define NPRDMA_MALLOC_PRIO (-1)

/* Shorter ones are not looked at */
#define NPRDMA_MALLOC_TAKEN_MIN ((size_t)128 << 10)

/* Milliseconds from one time that a hook asks for memory to the next one, if
 * the first was of no use */
#define NPRDMA_MALLOC_ASK_MS 200

/* Milliseconds for which hooks wait at most: for the thread to answer; while it
 * gives nothing back, where it may wait for a lock of malloc() that the hook's
 * own thread has; and for it to begin, in this case */
#define NPRDMA_MALLOC_WAIT_MS        1000
#define NPRDMA_MALLOC_WAIT_LOCKED_MS 10
#define NPRDMA_MALLOC_WAIT_BEGIN_MS  100

/* Nanoseconds between two looks */
#define NPRDMA_MALLOC_LOOK_NS 200000


enum {
    NPRDMA_MALLOC_SHORT, /* Always armed: memory is short */
    NPRDMA_MALLOC_PAUSE, /* Armed while less is kept than was asked for */
    NPRDMA_MALLOC_FIT,   /* A hook has seen that there is less room */
    NPRDMA_MALLOC_ASK,   /* A hook needs memory */
    NPRDMA_MALLOC_NUM_CLIENTS
};

/* M_TOP_PAD stays as it is. It matters for heaps that grow: with 0, each page
 * would be a system call */
static struct {
    pthread_mutex_t          lock; /* Held during fork() */
    unsigned                 users;
    int                      is_refused; /* Its line has been logged */
    int                      is_set;     /* Also in a child */
    int                      is_watched; /* Clients are added */
    int                      is_child;
    int                      has_handler; /* Of UCM; also in a child */
    size_t                   keep;       /* These two: as it is set */
    int                      all;
    double                   pause;
    int                      is_short;   /* Of the thread: told in this tick */
    _Atomic uint64_t         trims;
    int                    (*mallopt)(int param, int value);
    int                    (*trim)(size_t pad);
    nprdma_pressure_client_t clients[NPRDMA_MALLOC_NUM_CLIENTS];

    /* For hooks */
    _Atomic int              is_asking; /* They may ask */
    _Atomic size_t           bound;     /* M_TRIM_THRESHOLD */
    _Atomic size_t           fit_left;  /* With less left, it is too much */
    uint64_t                 asked_at;  /* Of nprdma_hook_now(); atomic */
    pid_t                    pid;       /* Whose thread there is */
    _Atomic uint32_t         asked;     /* Counts */
    _Atomic uint32_t         begun;     /* `asked` as the thread has seen it, */
    _Atomic uint32_t         answered;  /* and has answered it */
} nprdma_malloc = {
    .lock  = PTHREAD_MUTEX_INITIALIZER,
    .pause = NPRDMA_MALLOC_PAUSE_SECONDS
};


static pthread_once_t nprdma_malloc_once = PTHREAD_ONCE_INIT;
static int nprdma_malloc_installed; /* Handlers of fork() are */


/* ---- how much is kept ---- */

static void nprdma_malloc_set_bound(size_t bound)
{
    nprdma_malloc.mallopt(M_TRIM_THRESHOLD, (int)bound);
    atomic_store(&nprdma_malloc.bound, bound);
}

/*
 * At most half of the part that this process has in what its cgroups have left.
 * Each arena keeps that much.
 *
 * @param [out] fit_left_p  With less than this left, it is twice too much.
 */
static size_t nprdma_malloc_fitting(size_t *fit_left_p)
{
    size_t left, part, bound;

    part        = nprdma_pressure_part(NPRDMA_PRESSURE_ROOM_TO_TAKE, &left);
    *fit_left_p = 0;
    if (nprdma_pressure_is_limited()) {
        return NPRDMA_MALLOC_DEFAULT_TRIM;
    }

    if (part == SIZE_MAX) {
        return nprdma_malloc.keep;
    }

    bound = part / 2;
    if (bound <= NPRDMA_MALLOC_DEFAULT_TRIM) {
        return NPRDMA_MALLOC_DEFAULT_TRIM;
    }

    if (bound <= nprdma_malloc.keep) {
        *fit_left_p = left / 2;
        return bound;
    }

    *fit_left_p = (size_t)((double)left / 2 * (double)nprdma_malloc.keep /
                           (double)bound);
    return nprdma_malloc.keep;
}


/* ---- on the thread of nprdma_pressure.h ---- */

/*
 * malloc_trim() gives back what is free anywhere in the heap, but not the end
 * of the heap of a thread's arena. That is what free() does, if the threshold
 * is low. So the threshold is low as long as memory is short.
 */
static void nprdma_malloc_give_back(void *arg)
{
    atomic_store(&nprdma_malloc.fit_left, 0);
    nprdma_malloc_set_bound(NPRDMA_MALLOC_DEFAULT_TRIM);
    nprdma_malloc.trim(0);
    nprdma_malloc.is_short = 1;
    atomic_fetch_add(&nprdma_malloc.trims, 1);
    nprdma_pressure_arm(&nprdma_malloc.clients[NPRDMA_MALLOC_PAUSE]);
}

static void nprdma_malloc_resume(void *arg)
{
    size_t bound, fit_left;

    if (nprdma_malloc.is_short) {
        nprdma_malloc.is_short = 0;
        return;
    }

    bound = nprdma_malloc_fitting(&fit_left);
    nprdma_malloc_set_bound(bound);
    atomic_store(&nprdma_malloc.fit_left, fit_left);
    if (bound == nprdma_malloc.keep) {
        nprdma_pressure_disarm(&nprdma_malloc.clients[NPRDMA_MALLOC_PAUSE]);
    }
}

static void nprdma_malloc_fit(void *arg)
{
    size_t bound, fit_left;

    nprdma_pressure_disarm(&nprdma_malloc.clients[NPRDMA_MALLOC_FIT]);
    bound = nprdma_malloc_fitting(&fit_left);
    if (bound >= atomic_load(&nprdma_malloc.bound)) {
        return;
    }

    nprdma_malloc_set_bound(bound);
    atomic_store(&nprdma_malloc.fit_left, fit_left);
    nprdma_malloc.trim(bound);
    nprdma_malloc.is_short = 1;
    nprdma_pressure_arm(&nprdma_malloc.clients[NPRDMA_MALLOC_PAUSE]);
}

static void nprdma_malloc_answer(void *arg)
{
    uint32_t asked = atomic_load(&nprdma_malloc.asked);
    size_t before  = nprdma_pressure_left(NPRDMA_PRESSURE_ROOM_TO_TAKE);
    size_t left;

    nprdma_pressure_disarm(&nprdma_malloc.clients[NPRDMA_MALLOC_ASK]);
    atomic_store(&nprdma_malloc.begun, asked);
    nprdma_malloc_give_back(NULL);
    left = nprdma_pressure_left(NPRDMA_PRESSURE_ROOM_TO_TAKE);
    if ((left > before) && (left - before >= NPRDMA_MALLOC_TAKEN_MIN)) {
        /* Of use, so the next hook may ask again */
        __atomic_store_n(&nprdma_malloc.asked_at, 0, __ATOMIC_RELAXED);
    }
    atomic_store(&nprdma_malloc.answered, asked);
}

/* Clients that are told by their ticks only */
static void nprdma_malloc_ignore(void *arg)
{
}


/* ---- hooks ---- */

/* @return Bytes that a call is about to take, with the heap or without it; 0
 *         if it has been made, or takes nothing that counts */
NPRDMA_HOOK
static size_t nprdma_malloc_taken(ucm_event_type_t type,
                                  const ucm_event_t *event)
{
    intptr_t end;

    switch (type) {
    case UCM_EVENT_MMAP:
        return nprdma_pressure_mapped(event);
    case UCM_EVENT_MREMAP:
        return (event->mremap.new_size > event->mremap.old_size) ?
               event->mremap.new_size - event->mremap.old_size : 0;
    case UCM_EVENT_SBRK:
        return (event->sbrk.increment > 0) ? (size_t)event->sbrk.increment : 0;
    default:
        end = syscall(SYS_brk, 0);
        return ((intptr_t)event->brk.addr > end) ?
               (size_t)((intptr_t)event->brk.addr - end) : 0;
    }
}

/*
 * The thread needs the locks of malloc(), which maps no shorter memory than its
 * threshold. Longer memory may be mapped under such a lock.
 *
 * @param [in] since  When the wait began, or memory was given back last.
 *
 * @return Time at which the wait ends.
 */
NPRDMA_HOOK
static uint64_t nprdma_malloc_wait_end(size_t length, uint64_t since)
{
    if (length < NPRDMA_MALLOC_MMAP_THRESHOLD) {
        return since + NPRDMA_MALLOC_WAIT_MS;
    }

    return since + ((atomic_load(&nprdma_malloc.begun) ==
                     atomic_load(&nprdma_malloc.asked)) ?
                    NPRDMA_MALLOC_WAIT_LOCKED_MS :
                    NPRDMA_MALLOC_WAIT_BEGIN_MS);
}

/* Wait for the thread */
NPRDMA_HOOK
static void nprdma_malloc_await(size_t length)
{
    const struct timespec look = { .tv_nsec = NPRDMA_MALLOC_LOOK_NS };
    uint64_t start = __atomic_load_n(&nprdma_malloc.asked_at, __ATOMIC_RELAXED);
    uint64_t since = start;
    uint64_t now   = nprdma_hook_now();
    size_t most    = nprdma_pressure_left(NPRDMA_PRESSURE_ROOM_TO_TAKE);
    size_t left;

    while ((now < start + NPRDMA_MALLOC_WAIT_MS) &&
           (now < nprdma_malloc_wait_end(length, since)) &&
           (atomic_load(&nprdma_malloc.answered) !=
            atomic_load(&nprdma_malloc.asked))) {
        syscall(SYS_nanosleep, &look, NULL);
        now  = nprdma_hook_now();
        left = nprdma_pressure_left(NPRDMA_PRESSURE_ROOM_TO_TAKE);
        if (left >= length) {
            return;
        }

        if (left > most) {
            most  = left;
            since = now;
        }
    }
}

/* What is kept may be of no use for a call that takes memory. If both are more
 * than a cgroup may have, the kernel kills a process. A hook must not call
 * malloc_trim(), as it may run in malloc(), so the thread does it. */
NPRDMA_HOOK
static void nprdma_malloc_make_room(ucm_event_type_t type, size_t length)
{
    if (syscall(SYS_getpid) != nprdma_malloc.pid) {
        return; /* A child, also by a raw clone(), has no thread to wait for */
    }

    if (nprdma_hook_is_due(&nprdma_malloc.asked_at, NPRDMA_MALLOC_ASK_MS)) {
        atomic_fetch_add(&nprdma_malloc.asked, 1);
        nprdma_pressure_arm(&nprdma_malloc.clients[NPRDMA_MALLOC_ASK]);
    }
    if ((type == UCM_EVENT_MMAP) || (type == UCM_EVENT_MREMAP)) {
        nprdma_malloc_await(length);
    }
    if (!nprdma_pressure_has_room(length, NPRDMA_PRESSURE_ROOM_TO_TAKE)) {
        nprdma_pressure_await_room(length, NPRDMA_PRESSURE_ROOM_TO_TAKE);
    }
}

NPRDMA_HOOK
static void nprdma_malloc_before(ucm_event_type_t type, ucm_event_t *event,
                                 void *arg)
{
    int saved_errno = errno;
    size_t length, left;

    if (!atomic_load(&nprdma_malloc.is_asking)) {
        return;
    }

    length = nprdma_malloc_taken(type, event);
    if (length >= NPRDMA_MALLOC_TAKEN_MIN) {
        left = nprdma_pressure_left(NPRDMA_PRESSURE_ROOM_TO_TAKE);
        if (left < length) {
            nprdma_malloc_make_room(type, length);
        } else if (left - length < atomic_load(&nprdma_malloc.fit_left)) {
            nprdma_pressure_arm(&nprdma_malloc.clients[NPRDMA_MALLOC_FIT]);
        }
    }
    errno = saved_errno;
}


/* ---- whether malloc() is glibc's, and free to be set ---- */

/* @return Start of the object in which a global symbol is, or NULL */
static void *nprdma_malloc_object(const char *name)
{
    void *symbol = dlsym(RTLD_DEFAULT, name);
    Dl_info info;

    return ((symbol != NULL) && dladdr(symbol, &info)) ? info.dli_fbase : NULL;
}

/* Sanitizers, allocators that are preloaded or linked, and other C libraries
 * have these functions elsewhere, or not at all */
static int nprdma_malloc_is_glibc(void)
{
    static const char *names[] = { "malloc", "calloc", "realloc", "free",
                                   "mallopt", "malloc_trim" };
    void *glibc                = nprdma_malloc_object("gnu_get_libc_version");
    unsigned i;

    if (glibc == NULL) {
        return 0;
    }

    for (i = 0; i < ucs_static_array_size(names); ++i) {
        if (nprdma_malloc_object(names[i]) != glibc) {
            return 0;
        }
    }

    return 1;
}

/* @return Name of a variable by which the user has set malloc(), or NULL */
static const char *nprdma_malloc_variable(void)
{
    static const char *names[] = { "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_",
                                   "MALLOC_MMAP_THRESHOLD_",
                                   "MALLOC_MMAP_MAX_" };
    const char *tunables       = getenv("GLIBC_TUNABLES");
    unsigned i;

    for (i = 0; i < ucs_static_array_size(names); ++i) {
        if (getenv(names[i]) != NULL) {
            return names[i];
        }
    }

    return ((tunables != NULL) && (strstr(tunables, "glibc.malloc.") != NULL)) ?
           "GLIBC_TUNABLES" : NULL;
}

/* @return Nonzero, or 0 after a warning */
static int nprdma_malloc_may_set(void)
{
    const char *variable;

    if (!nprdma_malloc_is_glibc()) {
        ucs_warn("UCX_NPRDMA_MALLOC_KEEP has no effect: malloc() is not that "
                 "of glibc");
        return 0;
    }

    variable = nprdma_malloc_variable();
    if (variable != NULL) {
        ucs_warn("UCX_NPRDMA_MALLOC_KEEP has no effect: malloc() is set by %s",
                 variable);
        return 0;
    }

    return 1;
}


/* ---- under the lock ---- */

/* Also for a child, whose parent may have kept less */
static void nprdma_malloc_set_fitting(void)
{
    size_t bound, fit_left;

    bound = nprdma_malloc_fitting(&fit_left);
    nprdma_malloc_set_bound(bound);
    atomic_store(&nprdma_malloc.fit_left, fit_left);
    if (bound < nprdma_malloc.keep) {
        nprdma_pressure_arm(&nprdma_malloc.clients[NPRDMA_MALLOC_PAUSE]);
    }
}

static void nprdma_malloc_set(size_t keep, int all)
{
    nprdma_malloc.mallopt = (int (*)(int, int))dlsym(RTLD_DEFAULT, "mallopt");
    nprdma_malloc.trim    = (int (*)(size_t))dlsym(RTLD_DEFAULT, "malloc_trim");
    nprdma_malloc.keep    = keep;
    nprdma_malloc.all     = all;
    nprdma_malloc.is_set  = 1;
    nprdma_malloc.mallopt(M_MMAP_THRESHOLD, NPRDMA_MALLOC_MMAP_THRESHOLD);
    if (all) {
        nprdma_malloc.mallopt(M_MMAP_MAX, 0);
    }
    ucs_info("malloc() keeps up to %zu bytes of what is freed, of blocks of %s",
             keep, all ? "every size" : "up to 32 MiB");
}

static void nprdma_malloc_reset(void)
{
    nprdma_malloc.mallopt(M_MMAP_THRESHOLD, NPRDMA_MALLOC_DEFAULT_MMAP);
    nprdma_malloc_set_bound(NPRDMA_MALLOC_DEFAULT_TRIM);
    if (nprdma_malloc.all) {
        nprdma_malloc.mallopt(M_MMAP_MAX, NPRDMA_MALLOC_DEFAULT_MAX);
    }
    nprdma_malloc.trim(0);
    nprdma_malloc.is_set = 0;
}

/* Without the handler, the thread has to notice by itself. A child uses what it
 * has inherited, and has none else: a thread of its parent may have held UCM's
 * lock. */
static void nprdma_malloc_add_handler(void)
{
    if (!nprdma_malloc.has_handler && !nprdma_malloc.is_child) {
        nprdma_malloc.has_handler =
                (ucm_set_event_handler(NPRDMA_MALLOC_TYPES |
                                       UCM_EVENT_FLAG_NO_INSTALL,
                                       NPRDMA_MALLOC_PRIO, nprdma_malloc_before,
                                       NULL) == UCS_OK);
    }
    atomic_store(&nprdma_malloc.is_asking, nprdma_malloc.has_handler);
}

/* Then no hook arms a client any more */
static void nprdma_malloc_remove_handler(void)
{
    atomic_store(&nprdma_malloc.is_asking, 0);
    if (nprdma_malloc.has_handler && !nprdma_malloc.is_child) {
        ucm_unset_event_handler(NPRDMA_MALLOC_TYPES, nprdma_malloc_before,
                                NULL);
        nprdma_malloc.has_handler = 0;
    }
}

static void nprdma_malloc_unwatch(void)
{
    unsigned i;

    nprdma_malloc_remove_handler();
    for (i = 0; i < NPRDMA_MALLOC_NUM_CLIENTS; ++i) {
        nprdma_pressure_remove(&nprdma_malloc.clients[i]);
    }
    nprdma_malloc.is_watched = 0;
}

/* @return Nonzero if there is a thread that gives memory back */
static int nprdma_malloc_watch(void)
{
    nprdma_pressure_client_t *clients = nprdma_malloc.clients;
    unsigned i;

    memset(clients, 0, sizeof(nprdma_malloc.clients));
    for (i = 0; i < NPRDMA_MALLOC_NUM_CLIENTS; ++i) {
        clients[i].give_back = nprdma_malloc_ignore;
    }
    clients[NPRDMA_MALLOC_SHORT].give_back    = nprdma_malloc_give_back;
    clients[NPRDMA_MALLOC_PAUSE].tick         = nprdma_malloc_resume;
    clients[NPRDMA_MALLOC_PAUSE].tick_seconds = nprdma_malloc.pause;
    clients[NPRDMA_MALLOC_FIT].tick           = nprdma_malloc_fit;
    clients[NPRDMA_MALLOC_ASK].tick           = nprdma_malloc_answer;
    for (i = 0; i < NPRDMA_MALLOC_NUM_CLIENTS; ++i) {
        if (nprdma_pressure_add(&clients[i]) != UCS_OK) {
            nprdma_malloc_unwatch();
            return 0;
        }
    }

    nprdma_malloc.is_short   = 0;
    nprdma_malloc.asked_at   = 0;
    nprdma_malloc.pid        = (pid_t)syscall(SYS_getpid);
    atomic_store(&nprdma_malloc.answered, atomic_load(&nprdma_malloc.asked));
    nprdma_malloc.is_watched = 1;
    return 1;
}


/* ---- fork ---- */

static void nprdma_malloc_prepare(void)
{
    pthread_mutex_lock(&nprdma_malloc.lock);
}

static void nprdma_malloc_parent(void)
{
    pthread_mutex_unlock(&nprdma_malloc.lock);
}

/* The child has the heap of its parent, and so its settings, but no monitor and
 * no client that hooks could arm */
static void nprdma_malloc_child(void)
{
    nprdma_malloc.users      = 0;
    nprdma_malloc.is_watched = 0;
    nprdma_malloc.is_child   = 1;
    atomic_store(&nprdma_malloc.is_asking, 0);
    pthread_mutex_unlock(&nprdma_malloc.lock);
}

static void nprdma_malloc_install(void)
{
    nprdma_malloc_installed = (nprdma_pressure_init() == 0) &&
                              (pthread_atfork(nprdma_malloc_prepare,
                                              nprdma_malloc_parent,
                                              nprdma_malloc_child) == 0);
}


void nprdma_malloc_begin(size_t keep, int all)
{
    pthread_once(&nprdma_malloc_once, nprdma_malloc_install);
    pthread_mutex_lock(&nprdma_malloc.lock);
    ++nprdma_malloc.users;
    if (nprdma_malloc.is_watched || nprdma_malloc.is_refused) {
        goto out;
    }

    if (!nprdma_malloc.is_set && !nprdma_malloc_may_set()) {
        nprdma_malloc.is_refused = 1;
        goto out;
    }

    if (!nprdma_malloc_installed || !nprdma_malloc_watch()) {
        goto out;
    }

    if (!nprdma_malloc.is_set) {
        nprdma_malloc_set(keep, all);
    }
    nprdma_malloc_set_fitting();
    nprdma_malloc_add_handler();
    nprdma_pressure_arm(&nprdma_malloc.clients[NPRDMA_MALLOC_SHORT]);
out:
    pthread_mutex_unlock(&nprdma_malloc.lock);
}

void nprdma_malloc_end(void)
{
    pthread_mutex_lock(&nprdma_malloc.lock);
    if ((--nprdma_malloc.users == 0) && nprdma_malloc.is_watched) {
        nprdma_malloc_unwatch();
        nprdma_malloc_reset();
    }
    pthread_mutex_unlock(&nprdma_malloc.lock);
}

void nprdma_malloc_query(nprdma_malloc_stats_t *stats)
{
    pthread_mutex_lock(&nprdma_malloc.lock);
    stats->keep  = nprdma_malloc.is_set ? nprdma_malloc.keep : 0;
    stats->bound = nprdma_malloc.is_set ? atomic_load(&nprdma_malloc.bound) : 0;
    stats->trims = atomic_load(&nprdma_malloc.trims);
    stats->asked = atomic_load(&nprdma_malloc.asked);
    pthread_mutex_unlock(&nprdma_malloc.lock);
}

void nprdma_malloc_set_pause(double seconds)
{
    pthread_mutex_lock(&nprdma_malloc.lock);
    nprdma_malloc.pause = (seconds > 0) ? seconds :
                          NPRDMA_MALLOC_PAUSE_SECONDS;
    pthread_mutex_unlock(&nprdma_malloc.lock);
}
