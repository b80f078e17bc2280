/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_mrs.h"

#include <ucs/debug/log.h>
#include <ucs/debug/memtrack_int.h>
#include <ucs/sys/sys.h>

#include <errno.h>
#include <string.h>
#include <unistd.h>


/* Others may release what a device or the kernel module limits. The size of a
 * region, and what the device cannot do, stay as they are. */
static ucs_status_t uct_nprdma_mrs_reg_status(int error)
{
    switch (error) {
    case EMFILE:
    case ENFILE:
    case ENOSPC:
    case ENOMEM:
    case EDQUOT:
        return UCS_ERR_EXCEEDS_LIMIT;
    case EINVAL:
        return UCS_ERR_INVALID_PARAM;
    default:
        return UCS_ERR_IO_ERROR;
    }
}

static struct ibv_mr *
uct_nprdma_mrs_reg(uct_nprdma_mem_md_t *md, const nprdma_region_t *region,
                   const char *what, uint64_t offset, size_t length,
                   uint64_t iova, int access, ucs_status_t *status_p)
{
    struct ibv_mr *mr;

    mr = md->super.verbs->register_dmabuf_mr(md->super.pd, offset, length, iova,
                                       region->fd, access);
    if (mr == NULL) {
        atomic_store(&md->refusal, errno);
        *status_p = uct_nprdma_mrs_reg_status(errno);
        ucs_debug("%s: failed to register %s of the region of %zu bytes at "
                  "0x%" PRIxPTR ": %m", md->super.name, what, region->length,
                  region->address);
    }
    return mr;
}

static void uct_nprdma_mrs_dereg(uct_nprdma_mem_md_t *md, struct ibv_mr *mr)
{
    int ret;

    ret = md->super.verbs->dereg_mr(mr);
    if (ret != 0) {
        ucs_warn("%s: failed to deregister a region: %s", md->super.name,
                 strerror(ret));
    }
}

/* The descriptor's offsets are read view, write view, states (ARCHITECTURE 5).
 * Each view has only the rights of its purpose: an absent page reads as the
 * signature in R, and swallows writes in W. Peers have no rights to a local
 * region, and read none of its states. */
ucs_status_t
uct_nprdma_mrs_attach(void *arg, nprdma_region_t *region)
{
    uct_nprdma_mem_md_t *md = arg;
    uct_nprdma_mrs_t *self;
    ucs_status_t status;
    int local = region->is_local;

    self = ucs_malloc(sizeof(*self), "nprdma_region");
    if (self == NULL) {
        return UCS_ERR_NO_MEMORY;
    }

    self->r = uct_nprdma_mrs_reg(md, region, "read view", 0, region->length,
                                 region->address,
                                 local ? 0 : IBV_ACCESS_REMOTE_READ,
                                 &status);
    if (self->r == NULL) {
        goto err_free;
    }

    self->w = uct_nprdma_mrs_reg(md, region, "write view", region->length,
                                 region->length, region->address,
                                 IBV_ACCESS_LOCAL_WRITE |
                                 (local ? 0 : IBV_ACCESS_REMOTE_WRITE),
                                 &status);
    if (self->w == NULL) {
        goto err_r;
    }

    self->s = NULL;
    if (!local) {
        self->s = uct_nprdma_mrs_reg(md, region, "page states",
                                     2 * region->length,
                                     region->length / NPRDMA_PAGE_SIZE *
                                     sizeof(uint32_t), 0,
                                     IBV_ACCESS_REMOTE_READ, &status);
        if (self->s == NULL) {
            goto err_w;
        }
    }

    self->id     = atomic_fetch_add(&md->region_id, 1);
    region->priv = self;
    /* The device holds a reference of its own, and descriptors are scarce */
    close(region->fd);
    region->fd = -1;
    return UCS_OK;

err_w:
    uct_nprdma_mrs_dereg(md, self->w);
err_r:
    uct_nprdma_mrs_dereg(md, self->r);
err_free:
    ucs_free(self);
    return status;
}

void uct_nprdma_mrs_detach(void *arg, nprdma_region_t *region)
{
    uct_nprdma_mem_md_t *md = arg;
    uct_nprdma_mrs_t *self  = region->priv;

    if (self->s != NULL) {
        uct_nprdma_mrs_dereg(md, self->s);
    }
    uct_nprdma_mrs_dereg(md, self->w);
    uct_nprdma_mrs_dereg(md, self->r);
    ucs_free(self);
}

int uct_nprdma_mrs_is_valid(const nprdma_region_t *region, uintptr_t address,
                            size_t length, uint32_t bits)
{
    const uint32_t *states = (const uint32_t*)region->states +
                             nprdma_region_page_index(region, address);
    size_t count           = nprdma_region_num_pages(address, length);
    uint32_t all           = bits;
    size_t i;

    for (i = 0; (i < count) && (all == bits); ++i) {
        all &= __atomic_load_n(&states[i], __ATOMIC_RELAXED);
    }

    return all == bits;
}
