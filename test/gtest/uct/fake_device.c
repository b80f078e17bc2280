/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "config.h"

#include "fake_device.h"

#include "ucm/backend/nprdma_backend.h"
#include "uct/ib/nprdma/mem/nprdma_mrs.h"
#include "uct/ib/nprdma/mem/nprdma_tier.h"

#include <npemu.h>
#include <npemu_iommu.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of the self-check */
enum { DATA = 8 * NPRDMA_PAGE_SIZE, STATES = 8 * sizeof(uint32_t) };

struct fake_device {
    uct_nprdma_mem_md_t       md;
    uct_nprdma_verbs_t        verbs;
    ucs_status_t              status;
    struct ibv_context_ops    ops;      /* of the emulated RNIC */
    enum ibv_transport_type   transport;
    nprdma_range_t            range;
    int                       has_range;
    uint32_t                  first[8]; /* states that were read first */
    int                       has_first;
    void                      *to, *from; /* copied later */
    char                      data[DATA];
};

int fake_num_open, fake_num_mrs;

static fake_params_t fake_params;
static fake_device_t *fake;


/* ---- the back end ---- */

static ucs_status_t
fake_backend_open(const char *device UCS_V_UNUSED, char *why)
{
    if (fake_params.open_error) {
        snprintf(why, NPRDMA_BACKEND_WHY_MAX, "the fake is refused");
        return UCS_ERR_NO_DEVICE;
    }
    ++fake_num_open;
    return UCS_OK;
}

static void fake_backend_close(void)
{
    --fake_num_open;
}

static ucs_status_t fake_create(nprdma_region_t *region, void **priv)
{
    ucs_status_t status = nprdma_backend_emulated.region_create(region, priv);

    region->signature += (fake_params.lie == FAKE_SIGNATURE);
    return status;
}

static size_t fake_invalidate(nprdma_region_t *region, void *priv, size_t first,
                              size_t count, uint32_t bits, int touch)
{
    size_t lost;

    if (fake_params.lie == FAKE_NOT_TAKEN) {
        return 0;
    }
    lost = nprdma_backend_emulated.invalidate(region, priv, first, count, bits,
                                              touch);
    npemu_iommu_drain(fake->md.super.context);
    return lost;
}

static ucs_status_t fake_populate(void *priv, nprdma_populate_t *populate)
{
    if (fake_params.lie == FAKE_NOT_POPULATED) {
        populate->done = populate->count;
        return UCS_OK;
    }
    return nprdma_backend_emulated.populate(priv, populate);
}

static nprdma_backend_t fake_backend;


/* ---- the device ---- */

static struct ibv_mr *fake_reg(struct ibv_pd *pd, uint64_t offset,
                               size_t length, uint64_t iova, int fd, int access)
{
    struct ibv_mr *mr;

    if (fake_params.mr_error != 0) {
        errno = fake_params.mr_error;
        return NULL;
    }
    if ((fake_params.too_large != 0) && (length >= fake_params.too_large)) {
        errno = EINVAL;
        return NULL;
    }
    mr            = npemu_reg_dmabuf_mr(pd, offset, length, iova, fd, access);
    fake_num_mrs += (mr != NULL);
    return mr;
}

static struct ibv_mr *
fake_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
    struct ibv_mr *mr = npemu_reg_mr(pd, addr, length, access);

    fake_num_mrs += (mr != NULL);
    return mr;
}

static int fake_dereg(struct ibv_mr *mr)
{
    --fake_num_mrs;
    return npemu_dereg_mr(mr);
}

static int fake_is_present(uint64_t address)
{
    const nprdma_region_t *region;
    nprdma_range_t range;
    int present = 0;

    if (nprdma_monitor_register(fake->md.monitor, address, DATA, &range) ==
        UCS_OK) {
        region  = range.region;
        present = uct_nprdma_mrs_is_valid(region, address, DATA,
                                          NPRDMA_PAGE_R);
        nprdma_monitor_unregister(fake->md.monitor, &range, 0);
    }
    return present;
}

static void fake_copy_now(void)
{
    if (fake->to != NULL) {
        memcpy(fake->to, fake->from, DATA);
        fake->to = NULL;
    }
}

/* Before the emulated RNIC executes it. @return Nonzero: without data */
static int fake_before(const struct ibv_send_wr *wr, struct ibv_sge *sge)
{
    void *remote = (void*)(uintptr_t)wr->wr.rdma.remote_addr;
    void *local  = (void*)(uintptr_t)sge->addr;
    int is_write = (wr->opcode == IBV_WR_RDMA_WRITE);

    if (sge->length != DATA) {
        return 0;
    }
    if (is_write && (fake_params.lie == FAKE_WRITES_ABSENT)) {
        memcpy(remote, local, DATA);
    }
    if (!fake_is_present(wr->wr.rdma.remote_addr)) {
        return 0;
    }
    if (is_write && ((fake_params.lie == FAKE_LATE_WRITE) ||
                     (fake_params.lie == FAKE_OVERTAKEN))) {
        memcpy(fake->data, local, DATA);
        fake->to   = remote;
        fake->from = fake->data;
        return 1;
    }
    if (!is_write && (fake_params.lie == FAKE_LATE_READ)) {
        fake->to   = local;
        fake->from = remote;
        return 1;
    }
    return 0;
}

/* After it was executed */
static void fake_after(const struct ibv_send_wr *wr, const struct ibv_sge *sge)
{
    void *remote   = (void*)(uintptr_t)wr->wr.rdma.remote_addr;
    uint32_t *data = (uint32_t*)(uintptr_t)sge->addr;

    if (wr->opcode != IBV_WR_RDMA_READ) {
        return;
    }
    if (sge->length == STATES) {
        if (fake_params.lie == FAKE_WRONG_STATES) {
            data[3] ^= NPRDMA_PAGE_COUNT;
        }
        if (!fake->has_first) {
            memcpy(fake->first, data, STATES);
            fake->has_first = 1;
        }
        if (fake_params.lie == FAKE_OLD_STATES) {
            memcpy(data, fake->first, STATES);
        }
    } else if (fake->has_first && (fake_params.lie == FAKE_READS_TAKEN)) {
        memcpy(data, remote, DATA);
    } else if ((fake_params.lie == FAKE_WRONG_DATA) &&
               fake_is_present(wr->wr.rdma.remote_addr)) {
        data[77] ^= 1;
    }
}

static int fake_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr,
                          struct ibv_send_wr **bad)
{
    struct ibv_send_wr copy = *wr;
    int ret;

    if (fake_params.lie == FAKE_OVERTAKEN) {
        fake->to = (wr->sg_list->length == DATA) ? NULL : fake->to;
    }
    if (fake_before(wr, wr->sg_list)) {
        copy.num_sge = 0;
    }
    if (fake_params.lie == FAKE_FAILS) {
        copy.wr.rdma.rkey ^= 0x5555;
    }
    ret = fake->ops.post_send(qp, &copy, bad);
    fake_after(wr, wr->sg_list);
    return ret;
}

static int fake_poll_cq(struct ibv_cq *cq, int max, struct ibv_wc *wc)
{
    if (fake_params.lie != FAKE_OVERTAKEN) {
        fake_copy_now();
    }
    return fake->ops.poll_cq(cq, max, wc);
}


/* ---- the memory domain ---- */

static void fake_fill_verbs(uct_nprdma_verbs_t *verbs)
{
    verbs->name             = "fake";
    verbs->get_device_name  = npemu_get_device_name;
    verbs->query_port_attr  = npemu_query_port;
    verbs->query_gid        = npemu_query_gid;
    verbs->register_mr      = fake_reg_mr;
    verbs->dereg_mr         = fake_dereg;
    verbs->create_cq        = npemu_create_cq;
    verbs->destroy_cq       = npemu_destroy_cq;
    verbs->create_qp        = npemu_create_qp;
    verbs->modify_qp        = npemu_modify_qp;
    verbs->destroy_qp       = npemu_destroy_qp;
    if (!fake_params.no_dmabuf) {
        verbs->register_dmabuf_mr = fake_reg;
    }
    if (!fake_params.no_backend) {
        verbs->kernel_backend = &fake_backend;
    }

    fake_backend               = nprdma_backend_emulated;
    fake_backend.name          = "fake";
    fake_backend.notified      = 1;
    fake_backend.open          = fake_backend_open;
    fake_backend.close         = fake_backend_close;
    fake_backend.region_create = fake_create;
    fake_backend.invalidate    = fake_invalidate;
    fake_backend.populate      = fake_populate;
}

static struct ibv_context *fake_open_context(void)
{
    struct ibv_device **list = npemu_get_device_list(NULL);
    struct ibv_context *context;

    if (list == NULL) {
        return NULL;
    }
    context = npemu_open_device(list[0]);
    npemu_free_device_list(list);
    return context;
}

static void fake_fill_md(uct_nprdma_mem_md_t *md)
{
    strcpy(md->super.name, "fake");
    md->super.verbs              = &fake->verbs;
    md->super.config.timeout     = 0.1;
    md->super.config.retry_count = 6;
    md->super.config.rnr_timeout = 20e-6;
    md->config.monitor           = (uct_nprdma_monitor_kind_t)
            ((fake_params.monitor == FAKE_AUTO) ? UCT_NPRDMA_MONITOR_AUTO :
             (fake_params.monitor == FAKE_KERNEL) ?
             UCT_NPRDMA_MONITOR_KERNEL : UCT_NPRDMA_MONITOR_EMULATED);
    md->config.selfcheck    = 1;
    md->config.region_size  = fake_params.region_size;
    md->config.revoke       = NPRDMA_REVOKE_STRICT;
    md->config.region_cache = 64 * UCS_MBYTE;
}

fake_device_t *fake_open(const fake_params_t *params)
{
    uct_nprdma_device_t *dev;

    fake_params = *params;
    fake        = calloc(1, sizeof(*fake));
    dev         = &fake->md.super;
    fake_fill_verbs(&fake->verbs);
    fake_fill_md(&fake->md);
    dev->context = fake_open_context();
    if (dev->context == NULL) {
        free(fake);
        return NULL;
    }

    npemu_query_device(dev->context, &dev->attr);
    dev->pd         = npemu_alloc_pd(dev->context);
    fake->ops       = dev->context->ops;
    fake->transport = dev->context->device->transport_type;
    dev->context->ops.post_send = fake_post_send;
    dev->context->ops.poll_cq   = fake_poll_cq;
    if (params->is_iwarp) {
        dev->context->device->transport_type = IBV_TRANSPORT_IWARP;
    }
    if (params->no_read) {
        dev->attr.max_qp_rd_atom = 0;
    }
    fake->status = uct_nprdma_tier_init(&fake->md);
    return fake;
}

void fake_close(fake_device_t *device)
{
    uct_nprdma_device_t *dev = &device->md.super;

    if (device->has_range) {
        nprdma_monitor_unregister(device->md.monitor, &device->range, 0);
    }
    uct_nprdma_tier_cleanup(&device->md);
    dev->context->ops                    = device->ops;
    dev->context->device->transport_type = device->transport;
    npemu_dealloc_pd(dev->pd);
    npemu_close_device(dev->context);
    free(device);
}

int fake_status(const fake_device_t *device)
{
    return device->status;
}

int fake_has_zcopy(const fake_device_t *device)
{
    return device->md.monitor != NULL;
}

size_t fake_region_size(const fake_device_t *device)
{
    return device->md.config.region_size;
}

double fake_region_time(const fake_device_t *device)
{
    return device->md.region_time;
}

uint64_t fake_drains(const fake_device_t *device)
{
    nprdma_monitor_stats_t stats;

    nprdma_monitor_query(device->md.monitor, &stats);
    return stats.drains;
}

uint64_t fake_counted_pages(const fake_device_t *device)
{
    nprdma_monitor_stats_t stats;

    nprdma_monitor_query(device->md.monitor, &stats);
    return stats.populated + stats.invalidated + stats.revoked + stats.events +
           stats.kernel_events + stats.kernel_invalidated;
}

size_t fake_register(fake_device_t *device, uint64_t address, size_t length)
{
    if (nprdma_monitor_register(device->md.monitor, address, length,
                                &device->range) != UCS_OK) {
        return 0;
    }
    device->has_range = 1;
    return device->range.region->length;
}
