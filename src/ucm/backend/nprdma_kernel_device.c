/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "nprdma_kernel.h"
#include "ucm/events/nprdma_hook.h"

#include <ucs/debug/log.h>

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The kernel module with a real device. The device imports a region as a
 * dma-buf, and the module re-points the views that it then has. The module
 * flushes the IOMMU before it lets go of a page, and the flush drains the
 * device: nothing else has to wait for it. */


/* A device that is attached already is only checked again */
static ucs_status_t nprdma_device_attach(const char *device, char *why)
{
    struct nprdma_ioc_attach_device attach = { .size = sizeof(attach) };
    int ret;

    if ((device == NULL) || (strlen(device) >= sizeof(attach.name))) {
        snprintf(why, NPRDMA_BACKEND_WHY_MAX,
                 "the device has no PCI address: only PCI functions have "
                 "views");
        return UCS_ERR_NO_DEVICE;
    }

    strcpy(attach.name, device);
    do {
        ret = nprdma_kernel_call(nprdma_kernel_context(),
                                 NPRDMA_IOC_ATTACH_DEVICE, &attach);
    } while ((ret != 0) && (errno == EINTR));
    if (ret != 0) {
        ret = errno;
        attach.why[sizeof(attach.why) - 1] = '\0';
        snprintf(why, NPRDMA_BACKEND_WHY_MAX, "%s: the kernel module refuses "
                 "it: %s", device,
                 (attach.why[0] != '\0') ? attach.why : strerror(ret));
        return UCS_ERR_NO_DEVICE;
    }

    ucs_debug("attached to the kernel module: %s", attach.why);
    return UCS_OK;
}

static ucs_status_t nprdma_device_open(const char *device, char *why)
{
    ucs_status_t status = nprdma_kernel_open(NULL, why);

    if (status != UCS_OK) {
        return status;
    }

    status = nprdma_device_attach(device, why);
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
    .unregister      = nprdma_kernel_unregister,
    .invalidate      = nprdma_device_invalidate,
    .get_revocations = nprdma_kernel_get_revocations,
    .populate        = nprdma_kernel_populate,
    .next_resident   = nprdma_kernel_next_resident,
    .query           = nprdma_kernel_query
};
