/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_mrs.h"
#include "uct/ib/nprdma/wire/nprdma_key.h"

#include "ucm/backend/nprdma_backend.h"

#include <ucs/debug/log.h>
#include <ucs/debug/memtrack_int.h>
#include <ucs/sys/sys.h>

#include <errno.h>
#include <unistd.h>

/* Tick of the thread that revokes, in seconds. A page is revoked within two
 * ticks; the documented bound is 100 ms (ARCHITECTURE 10). */
#define UCT_NPRDMA_REVOKE_TICK 0.04


/* Other processes or regions may release these resources later */
static ucs_status_t uct_nprdma_mrs_reg_status(int error)
{
    switch (error) {
    case EMFILE:
    case ENFILE:
    case ENOSPC:
    case ENOMEM:
        return UCS_ERR_EXCEEDS_LIMIT;
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

/* The descriptor's offsets are R window, W window, states (ARCHITECTURE 5).
 * Each window has only the rights of its purpose: an absent page reads as the
 * signature in R, and swallows writes in W. Peers have no rights to a local
 * region, and read none of its states. */
static ucs_status_t
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

    self->r = uct_nprdma_mrs_reg(md, region, "R window", 0, region->length,
                                 region->address,
                                 local ? 0 : IBV_ACCESS_REMOTE_READ,
                                 &status);
    if (self->r == NULL) {
        goto err_free;
    }

    self->w = uct_nprdma_mrs_reg(md, region, "W window", region->length,
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

static void uct_nprdma_mrs_detach(void *arg, nprdma_region_t *region)
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

static void uct_nprdma_mrs_drain(void *arg)
{
    uct_nprdma_mem_md_t *md = arg;

    md->super.verbs->drain(md->super.context);
}

/* @return Reason why there is no zero copy, or NULL. The rules rest on the
 *         ordering of RC over InfiniBand or RoCE; other transports order
 *         differently (ARCHITECTURE 3, remote WRITE). */
static const char *uct_nprdma_mrs_obstacle(const uct_nprdma_mem_md_t *md)
{
    if (md->config.zcopy == UCT_NPRDMA_ZCOPY_NO) {
        return "UCX_NPRDMA_ZCOPY=no";
    }

    if (md->super.verbs->register_dmabuf_mr == NULL) {
        return "no ibv_reg_dmabuf_mr(): rdma-core is too old";
    }

    if ((md->super.verbs->monitor_backend == NULL) ||
        (md->super.verbs->drain == NULL)) {
        return "nothing watches memory for this kind of device";
    }

    if (md->super.context->device->transport_type != IBV_TRANSPORT_IB) {
        return "the device speaks neither InfiniBand nor RoCE";
    }

    if (md->super.attr.max_qp_rd_atom < 1) {
        return "the device has no RDMA READ";
    }

    return NULL;
}

/* @return Reason why this MD cannot use the kernel module, or NULL. It may be
 *         stored in why, which has room for NPRDMA_KERNEL_WHY_MAX bytes. */
static const char *
uct_nprdma_mrs_no_kernel(const uct_nprdma_mem_md_t *md, char *why)
{
    if (md->super.verbs->kernel_backend == NULL) {
        return "not for this kind of device";
    }

    if (*md->config.fault_plan != '\0') {
        return "UCX_NPRDMA_FAULT is for the emulated one";
    }

    if (md->config.reclaim == NPRDMA_RECLAIM_SAMPLED) {
        return "UCX_NPRDMA_RECLAIM=sampled is for the emulated one";
    }

    return nprdma_kernel_is_usable(why) ? NULL : why;
}

static ucs_status_t
uct_nprdma_mrs_choose(const uct_nprdma_mem_md_t *md,
                      const struct nprdma_backend **backend_p)
{
    char text[NPRDMA_KERNEL_WHY_MAX];
    const char *why;

    *backend_p = md->super.verbs->monitor_backend;
    if (md->config.monitor == UCT_NPRDMA_MONITOR_EMULATED) {
        return UCS_OK;
    }

    why = uct_nprdma_mrs_no_kernel(md, text);
    if (why == NULL) {
        *backend_p = md->super.verbs->kernel_backend;
    } else if (md->config.monitor == UCT_NPRDMA_MONITOR_KERNEL) {
        ucs_error("UCX_NPRDMA_MONITOR=kernel: %s: %s", md->super.name, why);
        return UCS_ERR_INVALID_PARAM;
    }

    ucs_debug("%s: memory is watched by: %s (%s)", md->super.name,
              (*backend_p)->name, (why == NULL) ? "the kernel module" : why);
    return UCS_OK;
}

static ucs_status_t uct_nprdma_mrs_set_fault_plan(uct_nprdma_mem_md_t *md)
{
    if (*md->config.fault_plan == '\0') {
        return UCS_OK;
    }

    if (md->super.verbs->set_fault_plan == NULL) {
        ucs_error("UCX_NPRDMA_FAULT: %s of %s loses no pages on demand",
                  md->super.name, md->super.verbs->name);
        return UCS_ERR_INVALID_PARAM;
    }

    /* The function has logged the reason of an error */
    return (md->super.verbs->set_fault_plan(md->super.context,
                                            md->config.fault_plan) == 0) ?
           UCS_OK : UCS_ERR_INVALID_PARAM;
}

ucs_status_t uct_nprdma_mrs_init(uct_nprdma_mem_md_t *md)
{
    nprdma_monitor_params_t params = {
        .region_size  = md->config.region_size,
        .max_metadata = md->config.region_cache,
        .prereg       = md->config.prereg,
        .revoke       = md->config.revoke,
        .revoke_tick  = UCT_NPRDMA_REVOKE_TICK,
        .reclaim      = md->config.reclaim,
        .reclaim_rate = md->config.reclaim_rate,
        .seed         = md->config.seed,
        .drain        = uct_nprdma_mrs_drain,
        .attach       = uct_nprdma_mrs_attach,
        .detach       = uct_nprdma_mrs_detach,
        .arg          = md
    };
    ucs_log_level_t level = UCS_LOG_LEVEL_INFO;
    const char *obstacle;
    ucs_status_t status;

    status = uct_nprdma_mrs_set_fault_plan(md);
    if (status != UCS_OK) {
        return status;
    }

    /* Another MD, or a child that inherits this one, must have other ids */
    atomic_init(&md->region_id, ucs_generate_uuid((uintptr_t)md));
    atomic_init(&md->copy_reported, 0);
    md->monitor = NULL;
    obstacle    = uct_nprdma_mrs_obstacle(md);
    if (obstacle == NULL) {
        status = uct_nprdma_mrs_choose(md, &params.backend);
        if (status != UCS_OK) {
            return status;
        }

        /* The kernel module sees all changes without a userfaultfd */
        params.uffd = md->config.uffd && !params.backend->notified;
        status      = nprdma_monitor_create(&params, &md->monitor);
        if (status == UCS_ERR_INVALID_PARAM) {
            return status;
        }

        if (status != UCS_OK) {
            md->monitor = NULL;
            obstacle    = ucs_status_string(status);
        }

        if (status == UCS_ERR_UNSUPPORTED) {
            level    = UCS_LOG_LEVEL_WARN;
            obstacle = "UCX does not report what is unmapped (UCX_MEM_EVENTS, "
                       "or hooks of others: Open MPI needs "
                       "OMPI_MCA_opal_common_ucx_opal_mem_hooks=0)";
        }
    }

    if (obstacle != NULL) {
        ucs_log(level,
                "%s: no zero copy, all data goes through bounce buffers: %s",
                md->super.name, obstacle);
    }
    return UCS_OK;
}

void uct_nprdma_mrs_cleanup(uct_nprdma_mem_md_t *md)
{
    if (md->monitor != NULL) {
        nprdma_monitor_destroy(md->monitor);
        md->monitor = NULL;
    }
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
