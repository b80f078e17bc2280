/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "nprdma_monitor_int.h"
#include "ucm/access/nprdma_access.h"
#include "ucm/access/nprdma_pagein.h"

#include <ucs/debug/log.h>

#include <sched.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>


/* End of the address space on x86-64, unless a process asks for higher
 * addresses. A region may end here on other processors, too. */
#define NPRDMA_MONITOR_TOP (((uintptr_t)1 << 47) - NPRDMA_PAGE_SIZE)

/* End of the highest range: the last page of the address space is not used,
 * since the address behind it is 0 */
#define NPRDMA_MONITOR_END (~(uintptr_t)0 & ~(NPRDMA_PAGE_SIZE - 1))


/* Regions use at most RLIMIT_NOFILE divided by this */
#define NPRDMA_MONITOR_FD_SHARE 4

/* Descriptors of the regions of all monitors of this process */
static struct {
    _Atomic uint32_t count;
    _Atomic pid_t    pid;
} nprdma_monitor_fds;


const char *nprdma_reclaim_mode_names[] = {
    [NPRDMA_RECLAIM_OFF]     = "off",
    [NPRDMA_RECLAIM_LOGICAL] = "logical",
    [NPRDMA_RECLAIM_REAL]    = "real",
    [NPRDMA_RECLAIM_LAST]    = NULL
};

const char *nprdma_revoke_mode_names[] = {
    [NPRDMA_REVOKE_NEVER]  = "never",
    [NPRDMA_REVOKE_LAZY]   = "lazy",
    [NPRDMA_REVOKE_STRICT] = "strict",
    [NPRDMA_REVOKE_LAST]   = NULL
};


/* ---- events ---- */

/* @return Whether the kernel invalidates pages, so that hooks need not. */
NPRDMA_HOOK
static int nprdma_monitor_is_notified(const nprdma_monitor_t *monitor)
{
    return monitor->params.backend->notified &&
           (monitor->params.drain == NULL);
}

NPRDMA_HOOK
static void nprdma_monitor_retire(nprdma_region_obj_t *region, void *arg)
{
    const nprdma_span_t *span = arg;

    nprdma_region_retire(region, nprdma_region_pages(region, *span));
}

NPRDMA_HOOK
static void nprdma_monitor_before(void *arg, nprdma_span_t taken,
                                  nprdma_span_t gone)
{
    nprdma_monitor_t *monitor = arg;

    nprdma_monitor_count(&monitor->count.events, 1);
    if (nprdma_monitor_is_notified(monitor)) {
        nprdma_regions_foreach(&monitor->regions, gone, nprdma_monitor_retire,
                               &gone);
    } else {
        nprdma_monitor_invalidate(monitor, taken, gone, NPRDMA_PAGE_BITS);
    }
}

NPRDMA_HOOK
static void nprdma_monitor_readmit(nprdma_region_obj_t *region, void *arg)
{
    const nprdma_span_t *span = arg;

    nprdma_region_readmit(region, nprdma_region_pages(region, *span));
}

NPRDMA_HOOK
static void nprdma_monitor_after(void *arg, nprdma_span_t mapped)
{
    nprdma_monitor_t *monitor = arg;

    nprdma_regions_foreach(&monitor->regions, mapped, nprdma_monitor_readmit,
                           &mapped);
}

/* From fork() on, parent and child share every page, and a write copies the
 * page. So the W bit of all pages is cleared: before fork(), for pages that
 * were populated earlier, and after it, for pages that were populated
 * meanwhile. A back end that the kernel notifies does this itself. A NIC that
 * accesses virtual addresses makes the kernel copy pages as the process
 * does. */
static void nprdma_monitor_fork(void *arg)
{
    nprdma_monitor_t *monitor = arg;

    if (!monitor->params.backend->notified) {
        nprdma_monitor_invalidate(monitor, nprdma_span(0, UINTPTR_MAX),
                                  nprdma_span(0, 0), NPRDMA_PAGE_W);
    }
}


/* ---- regions ---- */

/* Add what the back end has counted */
static void nprdma_monitor_query_region(const nprdma_monitor_t *monitor,
                                        const nprdma_region_obj_t *region,
                                        nprdma_monitor_stats_t *sum)
{
    nprdma_backend_stats_t stats;

    if (monitor->params.backend->query != NULL) {
        monitor->params.backend->query(region->backend_priv, &stats);
        nprdma_monitor_count(&sum->kernel_events, stats.events);
        nprdma_monitor_count(&sum->kernel_invalidated, stats.invalidated);
    }
}

static void nprdma_monitor_destroy_region(nprdma_monitor_t *monitor,
                                          nprdma_region_obj_t *region)
{
    const nprdma_backend_t *backend = monitor->params.backend;

    monitor->params.detach(monitor->params.arg, &region->super);
    nprdma_monitor_query_region(monitor, region, &monitor->count);
    atomic_fetch_sub(&monitor->state_bytes,
                     nprdma_region_state_bytes(&region->super));
    backend->region_destroy(&region->super, region->backend_priv);
    nprdma_regions_free(&monitor->regions, region);
    atomic_fetch_sub(&nprdma_monitor_fds.count,
                     backend->has_descriptors ? 1 : 0);
}

/* Under the lock. @return Nonzero if there was an idle region to drop. */
static int nprdma_monitor_evict(nprdma_monitor_t *monitor, int is_closed)
{
    nprdma_region_obj_t *region = nprdma_regions_take_idle(&monitor->regions,
                                                           is_closed);
    uintptr_t start;

    if (region == NULL) {
        return 0;
    }

    /* Hooks find the region until all of its pages are absent */
    start = region->super.address;
    nprdma_monitor_revoke_dying(monitor,
                                nprdma_span(start,
                                            start + region->super.length));
    nprdma_regions_drop(&monitor->regions, region);
    atomic_fetch_sub(&monitor->idle_bytes,
                     nprdma_region_state_bytes(&region->super));
    nprdma_monitor_count(&monitor->count.evicted, 1);
    nprdma_monitor_destroy_region(monitor, region);
    return 1;
}

/* Under the lock: drop idle regions that are closed, and others until they are
 * within the limit */
static void nprdma_monitor_trim(nprdma_monitor_t *monitor)
{
    atomic_store(&monitor->trim, 0);
    while (nprdma_monitor_evict(monitor, 1)) {
    }
    while ((atomic_load(&monitor->idle_bytes) > monitor->params.max_metadata) &&
           nprdma_monitor_evict(monitor, 0)) {
    }
}

/* Let the back end, and then the user, create their parts of a region */
static ucs_status_t
nprdma_monitor_make_region(nprdma_monitor_t *monitor,
                           nprdma_region_obj_t *region)
{
    const nprdma_backend_t *backend = monitor->params.backend;
    ucs_status_t status;

    region->super.has_no_hooks = !monitor->has_hooks;
    status = backend->region_create(&region->super, &region->backend_priv);
    if (status != UCS_OK) {
        return status;
    }

    status = monitor->params.attach(monitor->params.arg, &region->super);
    if (status != UCS_OK) {
        backend->region_destroy(&region->super, region->backend_priv);
    }
    return status;
}

/* On most back ends a region has a file descriptor while it exists, and the
 * program needs some itself. Drops idle regions at the limit, the oldest first.
 * Under the lock. Nonzero if one more region may be created. */
static int nprdma_monitor_may_have_one_more(nprdma_monitor_t *monitor)
{
    struct rlimit limit;

    if (!monitor->params.backend->has_descriptors ||
        (getrlimit(RLIMIT_NOFILE, &limit) != 0)) {
        return 1;
    }

    while (atomic_load(&nprdma_monitor_fds.count) >=
           limit.rlim_cur / NPRDMA_MONITOR_FD_SHARE) {
        if (!nprdma_monitor_evict(monitor, 0)) {
            return 0;
        }
    }

    return 1;
}

static nprdma_region_obj_t *
nprdma_monitor_new_region(nprdma_monitor_t *monitor, uintptr_t start,
                          size_t length, int is_local, ucs_status_t *status_p)
{
    nprdma_region_obj_t *region;

    if (!nprdma_monitor_may_have_one_more(monitor)) {
        *status_p = UCS_ERR_EXCEEDS_LIMIT;
        return NULL;
    }

    region = nprdma_regions_alloc(&monitor->regions, start, length, is_local);
    while ((region == NULL) && nprdma_monitor_evict(monitor, 0)) {
        region = nprdma_regions_alloc(&monitor->regions, start, length,
                                      is_local);
    }
    if (region == NULL) {
        *status_p = UCS_ERR_EXCEEDS_LIMIT;
        return NULL;
    }

    do {
        *status_p = nprdma_monitor_make_region(monitor, region);
    } while ((*status_p == UCS_ERR_EXCEEDS_LIMIT) &&
             nprdma_monitor_evict(monitor, 0));
    if (*status_p != UCS_OK) {
        nprdma_regions_free(&monitor->regions, region);
        return NULL;
    }

    atomic_fetch_add(&nprdma_monitor_fds.count,
                     monitor->params.backend->has_descriptors ? 1 : 0);
    return region;
}

/* @return Address range of the region that is created for [start, end), with
 * multiples of a power of two where possible */
static nprdma_span_t
nprdma_monitor_align(uintptr_t start, uintptr_t end, size_t region_size)
{
    uintptr_t mask = region_size - 1;
    nprdma_span_t span;

    span.start = start & ~mask;
    span.end   = (end + mask) & ~mask;
    if ((end <= NPRDMA_MONITOR_TOP) && (span.end > NPRDMA_MONITOR_TOP)) {
        /* A stack at the end: the kernel module refuses higher addresses */
        span.end = NPRDMA_MONITOR_TOP;
    }
    if (span.end < end) {
        /* The last region of the address space, without its last page */
        span.end = NPRDMA_MONITOR_END;
    }

    return span;
}

/* Under the lock. The caller owns a reference of the new region. */
static nprdma_region_obj_t *
nprdma_monitor_create_region(nprdma_monitor_t *monitor, nprdma_span_t span,
                             int is_local, ucs_status_t *status_p)
{
    size_t length = span.end - span.start;
    nprdma_region_obj_t *region;
    size_t state_bytes;

    region = nprdma_monitor_new_region(monitor, span.start, length, is_local,
                                       status_p);
    if (region == NULL) {
        return NULL;
    }

    state_bytes = nprdma_region_state_bytes(&region->super);
    atomic_store(&region->idle_since, atomic_fetch_add(&monitor->clock, 1));
    atomic_fetch_add(&monitor->state_bytes, state_bytes);
    atomic_fetch_add(&monitor->idle_bytes, state_bytes);
    nprdma_monitor_count(&monitor->count.created, 1);
    nprdma_regions_insert(&monitor->regions, region);
    return region;
}

static nprdma_region_obj_t *
nprdma_monitor_get_region(nprdma_monitor_t *monitor, uintptr_t start,
                          uintptr_t end, int is_local, ucs_status_t *status_p)
{
    size_t region_size = monitor->params.region_size;
    nprdma_region_obj_t *region;
    nprdma_span_t span, tight;

    pthread_mutex_lock(&monitor->lock);
    region = nprdma_regions_get(&monitor->regions, start, end, is_local);
    if (region == NULL) {
        nprdma_monitor_trim(monitor);
        span   = nprdma_monitor_align(start, end, region_size);
        region = nprdma_monitor_create_region(monitor, span, is_local,
                                              status_p);
        tight  = nprdma_monitor_align(start, end, NPRDMA_CHUNK_SIZE);
        if ((region == NULL) && (*status_p == UCS_ERR_INVALID_PARAM) &&
            (tight.end - tight.start < span.end - span.start)) {
            /* Too large for the device: a buffer across the border of two
             * regions needs less */
            region = nprdma_monitor_create_region(monitor, tight, is_local,
                                                  status_p);
        }
    }
    pthread_mutex_unlock(&monitor->lock);
    return region;
}


/* ---- ranges ---- */

static void nprdma_monitor_add_range(nprdma_monitor_t *monitor,
                                     nprdma_region_obj_t *region,
                                     nprdma_range_t *range)
{
    const nprdma_backend_t *backend = monitor->params.backend;
    nprdma_span_t span              = nprdma_span(range->address,
                                                  range->address +
                                                  range->length);
    nprdma_pages_t pages            = nprdma_region_pages(region, span);

    nprdma_region_lock(region);
    if (region->num_ranges++ == 0) {
        atomic_fetch_sub(&monitor->idle_bytes,
                         nprdma_region_state_bytes(&region->super));
    }
    ucs_list_add_tail(&region->ranges, &range->list);
    nprdma_revoker_begin(region, pages);
    nprdma_region_unlock(region);

    nprdma_region_readmit(region, pages);
    if (backend->readmit != NULL) {
        backend->readmit(region->backend_priv, range, pages.first, pages.count);
    }
}

static ucs_status_t
nprdma_monitor_register_kind(nprdma_monitor_t *monitor, uintptr_t address,
                             size_t length, int is_local, nprdma_range_t *range)
{
    uintptr_t end = address + length;
    nprdma_region_obj_t *region;
    ucs_status_t status;

    if (!monitor->is_owner) {
        return UCS_ERR_UNSUPPORTED;
    }

    if ((end <= address) || (end > NPRDMA_MONITOR_END)) {
        return UCS_ERR_INVALID_PARAM;
    }

    region = nprdma_regions_get(&monitor->regions, address, end, is_local);
    if (region == NULL) {
        region = nprdma_monitor_get_region(monitor, address, end, is_local,
                                           &status);
        if (region == NULL) {
            return status;
        }
    }

    range->region  = &region->super;
    range->address = address;
    range->length  = length;
    range->backend = 0;
    nprdma_monitor_add_range(monitor, region, range);

    if (atomic_load_explicit(&monitor->trim, memory_order_relaxed)) {
        /* Done here, since regions become idle in memory hooks as well */
        pthread_mutex_lock(&monitor->lock);
        nprdma_monitor_trim(monitor);
        pthread_mutex_unlock(&monitor->lock);
    }

    return UCS_OK;
}

/* @return NPRDMA_REVOKER_xx */
static uint32_t nprdma_monitor_revoker(const nprdma_monitor_t *monitor)
{
    return atomic_load_explicit(&monitor->revoker.state, memory_order_relaxed);
}

ucs_status_t nprdma_monitor_register(nprdma_monitor_t *monitor,
                                     uintptr_t address, size_t length,
                                     nprdma_range_t *range)
{
    if ((monitor->params.revoke == NPRDMA_REVOKE_LAZY) &&
        ucs_unlikely(nprdma_monitor_revoker(monitor) == NPRDMA_REVOKER_NONE) &&
        monitor->is_owner) {
        pthread_mutex_lock(&monitor->lock);
        nprdma_revoker_start(monitor);
        pthread_mutex_unlock(&monitor->lock);
    }

    return nprdma_monitor_register_kind(monitor, address, length, 0, range);
}

ucs_status_t nprdma_monitor_register_local(nprdma_monitor_t *monitor,
                                           uintptr_t address, size_t length,
                                           nprdma_range_t *range)
{
    return nprdma_monitor_register_kind(monitor, address, length, 1, range);
}

/* @return Whether the end of a registration revokes its pages at once */
static int nprdma_monitor_is_strict(const nprdma_monitor_t *monitor)
{
    return (monitor->params.revoke == NPRDMA_REVOKE_STRICT) ||
           ((monitor->params.revoke == NPRDMA_REVOKE_LAZY) &&
            (nprdma_monitor_revoker(monitor) == NPRDMA_REVOKER_BROKEN));
}

void nprdma_monitor_unregister(nprdma_monitor_t *monitor, nprdma_range_t *range,
                               int invalidate)
{
    const nprdma_backend_t *backend = monitor->params.backend;
    nprdma_region_obj_t *region     = nprdma_region_obj(range->region);
    nprdma_span_t span              = nprdma_span(range->address,
                                                  range->address +
                                                  range->length);
    size_t state_bytes;
    int is_closed, is_lazy;

    if (!monitor->is_owner) {
        return;
    }

    if (invalidate && !region->super.is_local) {
        atomic_store(&region->is_closed, 1);
    }
    invalidate |= nprdma_monitor_is_strict(monitor);
    invalidate &= !region->super.is_local;
    is_lazy     = !invalidate && !region->super.is_local &&
                  (monitor->params.revoke == NPRDMA_REVOKE_LAZY);
    if (backend->unregister != NULL) {
        backend->unregister(region->backend_priv, range);
    }

    nprdma_region_lock(region);
    ucs_list_del(&range->list);
    if (--region->num_ranges == 0) {
        state_bytes = nprdma_region_state_bytes(&region->super);
        atomic_store(&region->idle_since, atomic_fetch_add(&monitor->clock, 1));
        if (atomic_fetch_add(&monitor->idle_bytes, state_bytes) + state_bytes >
            monitor->params.max_metadata) {
            atomic_store(&monitor->trim, 1);
        }
    }
    if (is_lazy) {
        nprdma_revoker_end(region, nprdma_region_pages(region, span));
    }
    nprdma_region_unlock(region);

    if (ucs_unlikely(invalidate)) {
        nprdma_monitor_revoke(monitor, span);
    }

    is_closed = atomic_load(&region->is_closed);
    /* This, and the load of `awake`, are sequentially consistent: either the
     * revoker sees the mark, or it is seen here that it sleeps */
    nprdma_region_put(region);
    if (ucs_unlikely(is_closed)) {
        atomic_store(&monitor->trim, 1); /* It may be idle now */
    }
    if (is_lazy && !atomic_load(&monitor->revoker.awake)) {
        nprdma_revoker_wake(monitor);
    }
}


/* ---- creation ---- */

static void nprdma_monitor_close_backend(nprdma_monitor_t *monitor)
{
    if (monitor->params.backend->close != NULL) {
        monitor->params.backend->close();
    }
}

/* The fields that need no cleanup */
static void nprdma_monitor_init(nprdma_monitor_t *monitor,
                                const nprdma_monitor_params_t *params)
{
    /* A forked child does not own the regions of its parent */
    if (atomic_exchange(&nprdma_monitor_fds.pid, getpid()) != getpid()) {
        atomic_store(&nprdma_monitor_fds.count, 0);
    }

    monitor->is_owner        = 1;
    monitor->params          = *params;
    monitor->params.device   = NULL;
    monitor->params.why      = NULL;
    monitor->listener.before = nprdma_monitor_before;
    monitor->listener.after  = nprdma_monitor_after;
    monitor->listener.fork   = nprdma_monitor_fork;
    monitor->listener.arg    = monitor;
    pthread_mutex_init(&monitor->lock, NULL);
}

/* Where the kernel tells the back end of each change, only memory that munmap
 * keeps needs hooks. Without these munmap() is what it always was. */
static ucs_status_t nprdma_monitor_start_hooks(nprdma_monitor_t *monitor)
{
    size_t limit        = monitor->params.lazy_limit;
    int needed          = !nprdma_monitor_is_notified(monitor);
    ucs_status_t status = UCS_OK;

    if (needed || (limit > 0)) {
        status             = nprdma_events_add(&monitor->listener);
        monitor->has_hooks = (status == UCS_OK);
    }
    if (monitor->has_hooks) {
        monitor->has_lazy = (limit > 0) && nprdma_lazy_start(limit);
    } else if ((limit > 0) && !needed) {
        ucs_warn("UCX_NPRDMA_LAZY_UNMAP has no effect, munmap() keeps nothing: "
                 "UCX does not report it");
    }
    return needed ? status : UCS_OK;
}

ucs_status_t nprdma_monitor_create(const nprdma_monitor_params_t *params,
                                   nprdma_monitor_t **monitor_p)
{
    nprdma_monitor_t *monitor;
    ucs_status_t status;

    monitor = nprdma_events_alloc_wiped(sizeof(*monitor));
    if (monitor == NULL) {
        return UCS_ERR_NO_MEMORY;
    }

    nprdma_monitor_init(monitor, params);
    status = nprdma_regions_init(&monitor->regions);
    if (status != UCS_OK) {
        goto err_free;
    }

    if (params->backend->open != NULL) {
        status = params->backend->open(params->device, params->why);
        if (status != UCS_OK) {
            goto err_regions;
        }
    }

    status = nprdma_pagein_init();
    if (status != UCS_OK) {
        goto err_backend;
    }

    status = nprdma_reclaimer_start(monitor);
    if (status != UCS_OK) {
        goto err_pagein;
    }

    /* Last: from here on memory hooks use the monitor */
    status = nprdma_monitor_start_hooks(monitor);
    if (status != UCS_OK) {
        goto err_reclaimer;
    }

    *monitor_p = monitor;
    return UCS_OK;

err_reclaimer:
    nprdma_reclaimer_stop(monitor);
err_pagein:
    nprdma_pagein_cleanup();
err_backend:
    nprdma_monitor_close_backend(monitor);
err_regions:
    nprdma_regions_cleanup(&monitor->regions);
err_free:
    nprdma_events_free_wiped(monitor, sizeof(*monitor));
    return status;
}


/* ---- statistics ---- */

typedef struct nprdma_monitor_sum {
    nprdma_monitor_t       *monitor;
    nprdma_monitor_stats_t *stats;
} nprdma_monitor_sum_t;

static void nprdma_monitor_sum(nprdma_region_obj_t *region, void *arg)
{
    nprdma_monitor_sum_t *sum = arg;

    nprdma_region_lock(region);
    sum->stats->ranges       += region->num_ranges;
    sum->stats->idle_regions += (region->num_ranges == 0);
    nprdma_region_unlock(region);

    nprdma_monitor_query_region(sum->monitor, region, sum->stats);
}

void nprdma_monitor_query(nprdma_monitor_t *monitor,
                          nprdma_monitor_stats_t *stats)
{
    const uint64_t *count    = (const uint64_t*)&monitor->count;
    nprdma_monitor_sum_t sum = { .monitor = monitor, .stats = stats };
    size_t i;

    memset(stats, 0, sizeof(*stats));
    if (!monitor->is_owner) {
        return;
    }

    /* Under the lock, so that each region is counted once */
    pthread_mutex_lock(&monitor->lock);
    for (i = 0; i < sizeof(*stats) / sizeof(*count); ++i) {
        ((uint64_t*)stats)[i] = __atomic_load_n(&count[i], __ATOMIC_RELAXED);
    }
    nprdma_regions_foreach(&monitor->regions, nprdma_span(0, UINTPTR_MAX),
                           nprdma_monitor_sum, &sum);
    stats->regions = nprdma_regions_count(&monitor->regions);
    pthread_mutex_unlock(&monitor->lock);

    stats->state_bytes = atomic_load(&monitor->state_bytes);
    nprdma_lazy_query(&stats->lazy);
}

void nprdma_monitor_restart_stats(nprdma_monitor_t *monitor)
{
    nprdma_monitor_stats_t *count = &monitor->count;
    nprdma_monitor_stats_t stats;

    nprdma_monitor_query(monitor, &stats);
    /* What the kernel has counted for regions that exist cannot be reset: with
     * these two the sum wraps around to 0 */
    memset(count, 0, offsetof(nprdma_monitor_stats_t, kernel_events));
    count->created             = stats.created;
    count->evicted             = stats.evicted;
    count->kernel_events      -= stats.kernel_events;
    count->kernel_invalidated -= stats.kernel_invalidated;
}


/* ---- destruction ---- */

/* A range that the caller has leaked may be in memory that was freed: it is not
 * accessed. The back end ends it with its region. */
static void nprdma_monitor_forget_ranges(nprdma_region_obj_t *region, void *arg)
{
    nprdma_monitor_t *monitor = arg;
    uint32_t num_ranges;

    nprdma_region_lock(region);
    num_ranges         = region->num_ranges;
    region->num_ranges = 0;
    ucs_list_head_init(&region->ranges);
    nprdma_region_unlock(region);

    if (num_ranges > 0) {
        atomic_fetch_add(&monitor->idle_bytes,
                         nprdma_region_state_bytes(&region->super));
        atomic_fetch_sub(&region->refs, num_ranges);
    }
}

/* A thread that is using a region drops its reference soon */
static void nprdma_monitor_evict_all(nprdma_monitor_t *monitor)
{
    pthread_mutex_lock(&monitor->lock);
    while (nprdma_regions_count(&monitor->regions) > 0) {
        if (!nprdma_monitor_evict(monitor, 0)) {
            sched_yield();
        }
    }
    pthread_mutex_unlock(&monitor->lock);
}

void nprdma_monitor_destroy(nprdma_monitor_t *monitor)
{
    nprdma_monitor_stats_t stats;

    if (monitor->is_owner) {
        /* They have ranges of their own, and one calls the drain of the user
         * for ranges that have ended */
        nprdma_revoker_stop(monitor);
        nprdma_reclaimer_stop(monitor);
        nprdma_monitor_query(monitor, &stats);
        if (stats.ranges > 0) {
            ucs_warn("memory monitor is closed with %lu live registrations: "
                     "they end now", stats.ranges);
        }

        nprdma_regions_foreach(&monitor->regions, nprdma_span(0, UINTPTR_MAX),
                               nprdma_monitor_forget_ranges, monitor);
        nprdma_monitor_evict_all(monitor);
        if (monitor->has_lazy) {
            nprdma_lazy_stop();
        }
        if (monitor->has_hooks) {
            nprdma_events_remove(&monitor->listener);
        }
        pthread_mutex_destroy(&monitor->lock);
        nprdma_regions_cleanup(&monitor->regions);
        nprdma_pagein_cleanup();
        nprdma_monitor_close_backend(monitor);
    }

    nprdma_events_free_wiped(monitor, sizeof(*monitor));
}


/* ---- fork ---- */

/* That of nprdma_events.c is held during fork(), because its owner may have
 * UCM's. These ones need not be, because the process id shows that all behind
 * them is the parent's. */
void nprdma_monitor_forked(void)
{
    nprdma_access_forked();
    nprdma_pagein_forked();
}
