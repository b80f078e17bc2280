/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "nprdma_backend.h"
#include "ucm/events/nprdma_events.h"
#include "ucm/access/nprdma_pagein.h"
#include "ucm/regions/nprdma_regions.h"

#include <nprdma_uapi.h>

#include <ucs/debug/log.h>
#include <ucs/sys/math.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Two back ends. The kernel module owns the states of pages. The kernel
 * notifies it of each event that takes a page away, and it checks each page
 * that is populated. These back ends only read the states. They make system
 * calls without the C library, since they also run in memory hooks. */


/* One context per process, so that all regions have the same signature; a
 * forked child opens another one */
static struct {
    pid_t    pid;
    unsigned users;
    int      fd;
} nprdma_kernel = {
    .fd = -1
};


/* Data of the back end for a region */
typedef struct nprdma_kernel_priv {
    int                          ctx;  /* The open module */
    uint32_t                     id;
    struct nprdma_states_header *map;  /* Mapping of the states descriptor */
    size_t                       size; /* of the mapping, bytes */
    const _Atomic uint64_t       *retired; /* Bit per page in it, or NULL */
} nprdma_kernel_priv_t;


/* An ioctl() without the C library */
NPRDMA_HOOK
static int nprdma_kernel_call(int ctx, unsigned long request, void *arg)
{
    return (int)syscall(SYS_ioctl, ctx, request, arg);
}

/* A call that cannot fail, in a function that must not change errno */
NPRDMA_HOOK
static void nprdma_kernel_call_hook(int ctx, unsigned long request, void *arg)
{
    int error = errno;

    nprdma_kernel_call(ctx, request, arg);
    errno = error;
}


/* ---- the device ---- */

/* @return The device, or -1 with the reason in words. */
static int nprdma_kernel_open_module(char *why)
{
    struct nprdma_ioc_query query = { .size = sizeof(query) };
    int fd;

    fd = open(NPRDMA_DEVICE_PATH, O_RDWR | O_CLOEXEC);
    if (fd < 0) {
        snprintf(why, NPRDMA_BACKEND_WHY_MAX, "cannot open %s: %s",
                 NPRDMA_DEVICE_PATH, strerror(errno));
        return -1;
    }

    if (nprdma_kernel_call(fd, NPRDMA_IOC_QUERY, &query) != 0) {
        snprintf(why, NPRDMA_BACKEND_WHY_MAX, "%s does not answer a query: %s",
                 NPRDMA_DEVICE_PATH, strerror(errno));
    } else if (query.abi != NPRDMA_ABI_VERSION) {
        snprintf(why, NPRDMA_BACKEND_WHY_MAX, "the kernel module has version "
                 "%u of its interface, this library needs version %d",
                 query.abi, NPRDMA_ABI_VERSION);
    } else if (!(query.features & NPRDMA_IOC_FEATURE_RETIRE)) {
        snprintf(why, NPRDMA_BACKEND_WHY_MAX, "the kernel module is too old: "
                 "it does not remember what was unmapped");
    } else {
        return fd;
    }

    close(fd);
    return -1;
}

/* Close the context of the parent, unless the child has done that, and has
 * opened another file of this number */
static void nprdma_kernel_close_inherited(int fd)
{
    struct stat own, other;

    if ((fstat(fd, &own) == 0) && (fstat(nprdma_kernel.fd, &other) == 0) &&
        (own.st_dev == other.st_dev) && (own.st_ino == other.st_ino)) {
        close(nprdma_kernel.fd);
    }
}

static ucs_status_t nprdma_kernel_open(const char *device, char *why)
{
    ucs_status_t status = UCS_OK;
    int fd;

    nprdma_events_lock();
    if ((nprdma_kernel.users == 0) || (nprdma_kernel.pid != getpid())) {
        fd = nprdma_kernel_open_module(why);
        if (fd < 0) {
            status = UCS_ERR_NO_DEVICE;
        } else {
            if (nprdma_kernel.users > 0) {
                nprdma_kernel_close_inherited(fd);
            }
            nprdma_kernel.fd    = fd;
            nprdma_kernel.pid   = getpid();
            nprdma_kernel.users = 0;
        }
    }
    if (status == UCS_OK) {
        ++nprdma_kernel.users;
    }
    nprdma_events_unlock();
    return status;
}

static void nprdma_kernel_close(void)
{
    nprdma_events_lock();
    if (--nprdma_kernel.users == 0) {
        close(nprdma_kernel.fd);
        nprdma_kernel.fd = -1;
    }
    nprdma_events_unlock();
}


/* ---- regions ---- */

static ucs_status_t nprdma_kernel_status(int error)
{
    switch (error) {
    case ENOMEM:
        return UCS_ERR_NO_MEMORY;
    case EMFILE:
    case ENFILE:
    case EDQUOT:
    case ENOSPC:
        return UCS_ERR_EXCEEDS_LIMIT;
    default:
        return UCS_ERR_IO_ERROR;
    }
}

static void nprdma_kernel_destroy_id(int ctx, uint32_t id)
{
    struct nprdma_ioc_region_destroy destroy = {
        .size   = sizeof(destroy),
        .region = id
    };

    if (nprdma_kernel_call(ctx, NPRDMA_IOC_REGION_DESTROY, &destroy) != 0) {
        ucs_warn("the kernel module failed to destroy a region: %m");
    }
}

static ucs_status_t nprdma_kernel_make(nprdma_region_t *region,
                                       nprdma_kernel_priv_t *self, int *fd_p)
{
    struct nprdma_ioc_region_create create = {
        .size    = sizeof(create),
        .flags   = region->has_no_hooks ? NPRDMA_IOC_REGION_RETIRE : 0,
        .address = region->address,
        .length  = region->length
    };
    size_t words = ucs_div_round_up(region->length / NPRDMA_PAGE_SIZE *
                                    sizeof(*region->states), NPRDMA_PAGE_SIZE) *
                   NPRDMA_PAGE_SIZE;
    long map;
    int ret;

    do {
        ret = nprdma_kernel_call(self->ctx, NPRDMA_IOC_REGION_CREATE, &create);
    } while ((ret != 0) && (errno == EINTR));
    if (ret != 0) {
        goto err;
    }

    map = syscall(SYS_mmap, NULL, create.states_size, PROT_READ, MAP_SHARED,
                  create.states_fd, 0);
    if (map == -1) {
        goto err_destroy;
    }

    self->id          = create.region;
    self->map         = (struct nprdma_states_header*)map;
    self->size        = create.states_size;
    region->signature = create.signature;
    region->states    = (const nprdma_page_state_t*)
            ((const char*)self->map + create.states_offset);
    self->retired     = !region->has_no_hooks ? NULL :
                        (const _Atomic uint64_t*)((const char*)region->states +
                                                  words);
    *fd_p             = create.states_fd;
    return UCS_OK;

err_destroy:
    ret = errno;
    nprdma_kernel_destroy_id(self->ctx, create.region);
    close(create.states_fd);
    errno = ret;
err:
    ret = errno;
    ucs_diag("the kernel module refused a region of %zu bytes at 0x%lx: %m",
             region->length, (unsigned long)region->address);
    return nprdma_kernel_status(ret);
}

/* The caller owns the descriptor of the states */
static ucs_status_t
nprdma_kernel_create(nprdma_region_t *region, nprdma_kernel_priv_t **self_p,
                     int *states_fd_p)
{
    nprdma_kernel_priv_t *self;
    ucs_status_t status;

    self = malloc(sizeof(*self));
    if (self == NULL) {
        return UCS_ERR_NO_MEMORY;
    }

    self->ctx = nprdma_kernel.fd;
    status    = nprdma_kernel_make(region, self, states_fd_p);
    if (status != UCS_OK) {
        free(self);
        return status;
    }

    *self_p = self;
    return UCS_OK;
}

/* The emulated NIC maps the states itself, by their descriptor */
static ucs_status_t
nprdma_kernel_region_create(nprdma_region_t *region, void **priv_p)
{
    return nprdma_kernel_create(region, (nprdma_kernel_priv_t**)priv_p,
                                &region->fd);
}

static void nprdma_kernel_region_destroy(nprdma_region_t *region, void *priv)
{
    nprdma_kernel_priv_t *self = priv;

    nprdma_kernel_destroy_id(self->ctx, self->id);
    syscall(SYS_munmap, self->map, self->size);
    if (region->fd >= 0) {
        close(region->fd);
    }
    free(self);
    region->fd     = -1;
    region->states = NULL;
}


/* ---- registrations ---- */

static void nprdma_kernel_end_registration(const nprdma_kernel_priv_t *self,
                                           uint32_t id)
{
    struct nprdma_ioc_unregister unregister = {
        .size         = sizeof(unregister),
        .region       = self->id,
        .registration = id
    };

    nprdma_kernel_call_hook(self->ctx, NPRDMA_IOC_UNREGISTER, &unregister);
}

/* The kernel module learns of a range when it is populated for the first time.
 * So registering memory whose pages are accessible makes no system call. */
static ucs_status_t
nprdma_kernel_register(const nprdma_kernel_priv_t *self,
                       nprdma_range_t *range, unsigned flags)
{
    struct nprdma_ioc_register reg = {
        .size    = sizeof(reg),
        .flags   = flags,
        .region  = self->id,
        .address = range->address,
        .length  = range->length
    };
    uint32_t none                  = 0;

    if (__atomic_load_n(&range->backend, __ATOMIC_ACQUIRE) != 0) {
        return UCS_OK;
    }

    if (nprdma_kernel_call(self->ctx, NPRDMA_IOC_REGISTER, &reg) != 0) {
        ucs_diag("the kernel module failed to register %zu bytes at 0x%lx: %m",
                 range->length, (unsigned long)range->address);
        return UCS_ERR_NO_MEMORY;
    }

    if (!__atomic_compare_exchange_n(&range->backend, &none, reg.registration,
                                     0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
        /* Another thread has registered it meanwhile */
        nprdma_kernel_end_registration(self, reg.registration);
    }
    return UCS_OK;
}

/* If this fails, software copies */
static void nprdma_kernel_readmit(void *priv, nprdma_range_t *range,
                                  size_t first, size_t count)
{
    const nprdma_kernel_priv_t *self = priv;

    if ((self->retired != NULL) &&
        (nprdma_bits_next(self->retired, first, first + count, 1) <
         first + count)) {
        nprdma_kernel_register(self, range, NPRDMA_IOC_REGISTER_READMIT);
    }
}

/* The pages keep their bits. The monitor, which knows all registrations,
 * revokes those that no other registration covers. */
static void nprdma_kernel_unregister(void *priv, nprdma_range_t *range)
{
    if (range->backend != 0) {
        nprdma_kernel_end_registration(priv, range->backend);
        range->backend = 0;
    }
}


/* ---- pages ---- */

NPRDMA_HOOK
static int nprdma_kernel_has_any(const nprdma_region_t *region, size_t first,
                                 size_t count, uint32_t bits)
{
    size_t i;

    for (i = first; i < first + count; ++i) {
        if (nprdma_page_load(&region->states[i]) & bits) {
            return 1;
        }
    }
    return 0;
}

/* By a call of the module. When it returns, no device accesses the pages
 * through views, even if another thread, or the kernel, has taken them. */
NPRDMA_HOOK
static size_t nprdma_kernel_take(const nprdma_region_t *region,
                                 const nprdma_kernel_priv_t *self, size_t first,
                                 size_t count, uint32_t bits, int touch)
{
    struct nprdma_ioc_invalidate invalidate = {
        .size    = sizeof(invalidate),
        .flags   = touch ? NPRDMA_IOC_INVALIDATE_TOUCH : 0,
        .region  = self->id,
        .bits    = bits,
        .address = region->address + (first << NPRDMA_PAGE_SHIFT),
        .length  = count << NPRDMA_PAGE_SHIFT
    };

    nprdma_kernel_call_hook(self->ctx, NPRDMA_IOC_INVALIDATE, &invalidate);
    return invalidate.invalidated;
}

NPRDMA_HOOK
static size_t nprdma_kernel_invalidate(nprdma_region_t *region, void *priv,
                                       size_t first, size_t count,
                                       uint32_t bits, int touch)
{
    size_t lost = 0;

    if (touch || nprdma_kernel_has_any(region, first, count, bits)) {
        lost = nprdma_kernel_take(region, priv, first, count, bits, touch);
    }

    /* A NIC that accesses virtual addresses may still access a page whose bits
     * the kernel has cleared: so never 0 */
    return (lost > 0) ? lost : 1;
}

static ucs_status_t nprdma_kernel_populate_status(int error)
{
    switch (error) {
    case EACCES: /* Retired */
    case EFAULT:
    case ENODATA:
    case EOPNOTSUPP:
        return UCS_ERR_INVALID_ADDR;
    case ESTALE:
        return UCS_ERR_NO_RESOURCE;
    case EBUSY:
        return UCS_ERR_TIMED_OUT;
    default:
        return UCS_ERR_NO_MEMORY;
    }
}

/* A page that a memory hook has invalidated must not be populated before the
 * system call of that hook has returned. The module counts invalidations, and
 * remembers the last one of each group of 64 pages. */
static uint32_t nprdma_kernel_get_revocations(void *priv)
{
    const nprdma_kernel_priv_t *self = priv;

    return __atomic_load_n(&self->map->revocations, __ATOMIC_SEQ_CST);
}

static ucs_status_t
nprdma_kernel_populate(void *priv, nprdma_populate_t *populate)
{
    const nprdma_kernel_priv_t *self = priv;
    struct nprdma_ioc_populate args  = {
        .size        = sizeof(args),
        .flags       = NPRDMA_IOC_POPULATE_UNLESS_REVOKED,
        .region      = self->id,
        .revocations = populate->revocations
    };
    uintptr_t end;
    ucs_status_t status;
    int ret;

    status = nprdma_kernel_register(self, populate->range, 0);
    if (status != UCS_OK) {
        return status;
    }

    if (populate->flags & NPRDMA_POPULATE_WRITE) {
        args.flags |= NPRDMA_IOC_POPULATE_WRITE;
    }
    if (populate->flags & NPRDMA_POPULATE_RESIDENT) {
        args.flags |= NPRDMA_IOC_POPULATE_RESIDENT;
    }

    populate->done = 0;
    args.address   = populate->region->address +
                     (populate->first << NPRDMA_PAGE_SHIFT);
    end            = args.address + (populate->count << NPRDMA_PAGE_SHIFT);
    do {
        args.length = end - args.address;
        args.done   = args.address;
        ret         = nprdma_kernel_call(self->ctx, NPRDMA_IOC_POPULATE, &args);
        populate->pageins   += !(populate->flags & NPRDMA_POPULATE_RESIDENT);
        populate->populated += args.populated;
        populate->done      += (args.done - args.address) >> NPRDMA_PAGE_SHIFT;
        args.address         = args.done;
    } while ((ret != 0) && (errno == EINTR) && (args.address < end));

    return ((ret == 0) || (args.address >= end)) ?
           UCS_OK : nprdma_kernel_populate_status(errno);
}

static void nprdma_kernel_query(void *priv, nprdma_backend_stats_t *stats)
{
    const nprdma_kernel_priv_t *self = priv;
    struct nprdma_ioc_stats args     = {
        .size   = sizeof(args),
        .region = self->id
    };

    memset(stats, 0, sizeof(*stats));
    if (nprdma_kernel_call(self->ctx, NPRDMA_IOC_STATS, &args) == 0) {
        stats->events      = args.events;
        stats->invalidated = args.invalidated;
    }
}

const nprdma_backend_t nprdma_backend_kernel = {
    .name            = "kernel",
    .notified        = 1,
    .has_descriptors = 1,
    .open            = nprdma_kernel_open,
    .close           = nprdma_kernel_close,
    .region_create   = nprdma_kernel_region_create,
    .region_destroy  = nprdma_kernel_region_destroy,
    .readmit         = nprdma_kernel_readmit,
    .unregister      = nprdma_kernel_unregister,
    .invalidate      = nprdma_kernel_invalidate,
    .get_revocations = nprdma_kernel_get_revocations,
    .populate        = nprdma_kernel_populate,
    .query           = nprdma_kernel_query
};


/* ---- a real device ---- */

/* The device imports a region as a dma-buf, and the module re-points the views
 * that it then has. The module flushes the IOMMU before it lets go of a page,
 * and the flush drains the device: nothing else has to wait for it. */


static ucs_status_t nprdma_device_check(const char *device, char *why)
{
    struct nprdma_ioc_check_device check = { .size = sizeof(check) };
    int ret;

    if ((device == NULL) || (strlen(device) >= sizeof(check.name))) {
        snprintf(why, NPRDMA_BACKEND_WHY_MAX,
                 "the device has no PCI address: only PCI functions have "
                 "views");
        return UCS_ERR_NO_DEVICE;
    }

    strcpy(check.name, device);
    do {
        ret = nprdma_kernel_call(nprdma_kernel.fd,
                                 NPRDMA_IOC_CHECK_DEVICE, &check);
    } while ((ret != 0) && (errno == EINTR));
    if (ret != 0) {
        ret = errno;
        check.why[sizeof(check.why) - 1] = '\0';
        snprintf(why, NPRDMA_BACKEND_WHY_MAX, "%s: the kernel module refuses "
                 "it: %s", device,
                 (check.why[0] != '\0') ? check.why : strerror(ret));
        return UCS_ERR_NO_DEVICE;
    }

    ucs_debug("the kernel module accepts the device: %s", check.why);
    return UCS_OK;
}

static ucs_status_t nprdma_device_open(const char *device, char *why)
{
    ucs_status_t status = nprdma_kernel_open(NULL, why);

    if (status != UCS_OK) {
        return status;
    }

    status = nprdma_device_check(device, why);
    if (status != UCS_OK) {
        nprdma_kernel_close();
    }
    return status;
}

static ucs_status_t
nprdma_device_region_create(nprdma_region_t *region, void **priv_p)
{
    struct nprdma_ioc_export export = { .size = sizeof(export) };
    nprdma_kernel_priv_t *self;
    ucs_status_t status;
    int states_fd, error;

    status = nprdma_kernel_create(region, &self, &states_fd);
    if (status != UCS_OK) {
        return status;
    }

    close(states_fd); /* They stay mapped */
    region->fd    = -1;
    export.region = self->id;
    if (nprdma_kernel_call(self->ctx, NPRDMA_IOC_EXPORT, &export) != 0) {
        error = errno;
        ucs_diag("the kernel module did not export a region of %zu bytes at "
                 "0x%lx: %m", region->length, (unsigned long)region->address);
        nprdma_kernel_region_destroy(region, self);
        return nprdma_kernel_status(error);
    }

    region->fd = export.fd;
    *priv_p    = self;
    return UCS_OK;
}

/* The module is called even if no page has a bit. The kernel may have cleared
 * the bits a moment ago, and be about to flush: the call waits for that. */
NPRDMA_HOOK
static size_t nprdma_device_invalidate(nprdma_region_t *region, void *priv,
                                       size_t first, size_t count,
                                       uint32_t bits, int touch)
{
    return nprdma_kernel_take(region, priv, first, count, bits, touch);
}

const nprdma_backend_t nprdma_backend_device = {
    .name            = "device",
    .notified        = 1,
    .open            = nprdma_device_open,
    .close           = nprdma_kernel_close,
    .region_create   = nprdma_device_region_create,
    .region_destroy  = nprdma_kernel_region_destroy,
    .readmit         = nprdma_kernel_readmit,
    .unregister      = nprdma_kernel_unregister,
    .invalidate      = nprdma_device_invalidate,
    .get_revocations = nprdma_kernel_get_revocations,
    .populate        = nprdma_kernel_populate,
    .query           = nprdma_kernel_query
};
