/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "nprdma_malloc.h"
#include "ucm/events/nprdma_pressure.h"

#include <ucs/debug/log.h>
#include <ucs/sys/compiler_def.h>

#include <dlfcn.h>
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>


/* Seconds for which nothing is kept after memory was short */
#define NPRDMA_MALLOC_PAUSE 10

/* Larger blocks are mapped: the most that glibc takes, half of the heap of a
 * thread's arena (HEAP_MAX_SIZE) */
#define NPRDMA_MALLOC_MMAP_THRESHOLD (32 << 20)

/* With these glibc starts (mallopt(3)) */
#define NPRDMA_MALLOC_DEFAULT_TRIM 131072
#define NPRDMA_MALLOC_DEFAULT_MMAP 131072
#define NPRDMA_MALLOC_DEFAULT_MAX  65536


/* M_TOP_PAD stays as it is. It matters for heaps that grow: with 0, each page
 * would be a system call */
static struct {
    pthread_mutex_t          lock; /* Held during fork() */
    unsigned                 users;
    int                      is_refused; /* Its line has been logged */
    int                      is_set;     /* Also in a child */
    int                      is_watched; /* Clients are added */
    size_t                   keep;       /* These two: as it is set */
    int                      all;
    double                   pause;
    int                      is_short;   /* Of the thread: told in this tick */
    _Atomic uint64_t         trims;
    int                    (*mallopt)(int param, int value);
    int                    (*trim)(size_t pad);
    nprdma_pressure_client_t client;
    nprdma_pressure_client_t pausing; /* Armed during the pause, for its end */
} nprdma_malloc = {
    .lock  = PTHREAD_MUTEX_INITIALIZER,
    .pause = NPRDMA_MALLOC_PAUSE
};


static pthread_once_t nprdma_malloc_once = PTHREAD_ONCE_INIT;
static int nprdma_malloc_installed; /* Handlers of fork() are */


/* ---- on the thread of nprdma_pressure.h ---- */

/*
 * malloc_trim() gives back what is free anywhere in the heap, but not the end
 * of the heap of a thread's arena. That is what free() does, if the threshold
 * is low. So the threshold is low as long as memory is short.
 */
static void nprdma_malloc_give_back(void *arg)
{
    nprdma_malloc.mallopt(M_TRIM_THRESHOLD, NPRDMA_MALLOC_DEFAULT_TRIM);
    nprdma_malloc.trim(0);
    nprdma_malloc.is_short = 1;
    atomic_fetch_add(&nprdma_malloc.trims, 1);
    nprdma_pressure_arm(&nprdma_malloc.pausing);
}

static void nprdma_malloc_tick(void *arg)
{
    if (nprdma_malloc.is_short) {
        nprdma_malloc.is_short = 0;
        return;
    }

    nprdma_pressure_disarm(&nprdma_malloc.pausing);
    nprdma_malloc.mallopt(M_TRIM_THRESHOLD, (int)nprdma_malloc.keep);
}

/* The client that is told when memory is short is always armed. This one is
 * only for ticks. */
static void nprdma_malloc_ignore(void *arg)
{
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

static void nprdma_malloc_set(size_t keep, int all)
{
    nprdma_malloc.mallopt = (int (*)(int, int))dlsym(RTLD_DEFAULT, "mallopt");
    nprdma_malloc.trim    = (int (*)(size_t))dlsym(RTLD_DEFAULT, "malloc_trim");
    nprdma_malloc.keep    = keep;
    nprdma_malloc.all     = all;
    nprdma_malloc.is_set  = 1;
    nprdma_malloc.mallopt(M_MMAP_THRESHOLD, NPRDMA_MALLOC_MMAP_THRESHOLD);
    nprdma_malloc.mallopt(M_TRIM_THRESHOLD, (int)keep);
    if (all) {
        nprdma_malloc.mallopt(M_MMAP_MAX, 0);
    }
    ucs_info("malloc() keeps up to %zu bytes of what is freed, of blocks of %s",
             keep, all ? "every size" : "up to 32 MiB");
}

static void nprdma_malloc_reset(void)
{
    nprdma_malloc.mallopt(M_MMAP_THRESHOLD, NPRDMA_MALLOC_DEFAULT_MMAP);
    nprdma_malloc.mallopt(M_TRIM_THRESHOLD, NPRDMA_MALLOC_DEFAULT_TRIM);
    if (nprdma_malloc.all) {
        nprdma_malloc.mallopt(M_MMAP_MAX, NPRDMA_MALLOC_DEFAULT_MAX);
    }
    nprdma_malloc.trim(0);
    nprdma_malloc.is_set = 0;
}

/* @return Nonzero if there is a thread that gives memory back */
static int nprdma_malloc_watch(void)
{
    nprdma_pressure_client_t *pausing = &nprdma_malloc.pausing;

    memset(&nprdma_malloc.client, 0, sizeof(nprdma_malloc.client));
    memset(pausing, 0, sizeof(*pausing));
    nprdma_malloc.client.give_back = nprdma_malloc_give_back;
    pausing->give_back             = nprdma_malloc_ignore;
    pausing->tick                  = nprdma_malloc_tick;
    pausing->tick_seconds          = nprdma_malloc.pause;
    if (nprdma_pressure_add(&nprdma_malloc.client) != UCS_OK) {
        return 0;
    }

    if (nprdma_pressure_add(pausing) != UCS_OK) {
        nprdma_pressure_remove(&nprdma_malloc.client);
        return 0;
    }

    nprdma_malloc.is_short   = 0;
    nprdma_malloc.is_watched = 1;
    return 1;
}

static void nprdma_malloc_unwatch(void)
{
    nprdma_pressure_remove(&nprdma_malloc.client);
    nprdma_pressure_remove(&nprdma_malloc.pausing);
    nprdma_malloc.is_watched = 0;
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
 * no client */
static void nprdma_malloc_child(void)
{
    nprdma_malloc.users      = 0;
    nprdma_malloc.is_watched = 0;
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
    } else {
        /* In a child, whose parent may have been in a pause */
        nprdma_malloc.mallopt(M_TRIM_THRESHOLD, (int)nprdma_malloc.keep);
    }
    nprdma_pressure_arm(&nprdma_malloc.client);
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
    stats->trims = atomic_load(&nprdma_malloc.trims);
    pthread_mutex_unlock(&nprdma_malloc.lock);
}

void nprdma_malloc_set_pause(double seconds)
{
    pthread_mutex_lock(&nprdma_malloc.lock);
    nprdma_malloc.pause = (seconds > 0) ? seconds : NPRDMA_MALLOC_PAUSE;
    pthread_mutex_unlock(&nprdma_malloc.lock);
}
