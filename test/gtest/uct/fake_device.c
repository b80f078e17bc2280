/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "config.h"

#include "fake_device.h"

#include "ucm/backend/nprdma_backend.h"
#include "uct/ib/nprdma/mem/nprdma_mrs.h"
#include "uct/ib/nprdma/mem/nprdma_odp.h"
#include "uct/ib/nprdma/mem/nprdma_tier.h"

#include <npemu.h>
#include <npemu_iommu.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Of the self-check */
enum { DATA = 8 * NPRDMA_PAGE_SIZE, STATES = 8 * sizeof(uint32_t) };

int fake_num_open, fake_num_mrs, fake_num_registrations;

static struct {
    fake_device_t            result;
    fake_params_t            params;
    uct_nprdma_mem_md_t      md;
    const uct_nprdma_verbs_t *real;
    uct_nprdma_verbs_t       verbs;
    struct ibv_context_ops   ops;      /* of the emulated RNIC */
    enum ibv_transport_type  transport;

    nprdma_range_t           range;
    int                      has_range;
    uint32_t                 first[8]; /* states that were read first */
    int                      has_first;
    void                     *to, *from; /* copied later */
    char                     data[DATA];

    uct_nprdma_odp_t         *odp;
    uct_nprdma_odp_mrs_t     mrs;
    unsigned                 refuse_after; /* registrations left */
    int                      refuse_error; /* 0: none is refused */
    char                     kept[64 * NPRDMA_PAGE_SIZE];
    int                      is_kept;
} fake;

/* ---- the back end ---- */

static ucs_status_t
fake_backend_open(const char *device UCS_V_UNUSED, char *why)
{
    if (fake.params.open_error) {
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

    region->signature += (fake.params.lie == FAKE_SIGNATURE);
    return status;
}

static size_t fake_invalidate(nprdma_region_t *region, void *priv, size_t first,
                              size_t count, uint32_t bits, int touch)
{
    size_t lost;

    if (fake.params.lie == FAKE_NOT_TAKEN) {
        return 0;
    }
    lost = nprdma_backend_emulated.invalidate(region, priv, first, count, bits,
                                              touch);
    npemu_iommu_drain(fake.md.super.context);
    return lost;
}

static nprdma_backend_t fake_backend;

/* ---- the device ---- */

static struct ibv_mr *fake_counted(struct ibv_mr *mr)
{
    fake_num_mrs           += (mr != NULL);
    fake_num_registrations += (mr != NULL);
    return mr;
}

static struct ibv_mr *fake_refuse(int error)
{
    errno = error;
    return NULL;
}

static struct ibv_mr *fake_reg(struct ibv_pd *pd, uint64_t offset,
                               size_t length, uint64_t iova, int fd, int access)
{
    if (fake.params.mr_error != 0) {
        return fake_refuse(fake.params.mr_error);
    }
    if ((fake.params.too_large != 0) && (length >= fake.params.too_large)) {
        return fake_refuse(EINVAL);
    }
    return fake_counted(npemu_reg_dmabuf_mr(pd, offset, length, iova, fd,
                                            access));
}

static struct ibv_mr *
fake_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
    if ((fake.params.lie == FAKE_REFUSES) ||
        ((fake.params.lie == FAKE_NO_IMPLICIT) && (length == SIZE_MAX))) {
        return fake_refuse(fake.params.mr_error);
    }

    if (fake.refuse_error != 0) {
        if (fake.refuse_after == 0) {
            return fake_refuse(fake.refuse_error);
        }
        --fake.refuse_after;
    }

    return fake_counted(npemu_reg_mr(pd, addr, length, access));
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

    if (nprdma_monitor_register(fake.md.monitor, address, DATA, &range) ==
        UCS_OK) {
        region  = range.region;
        present = uct_nprdma_mrs_is_valid(region, address, DATA,
                                          NPRDMA_PAGE_R);
        nprdma_monitor_unregister(fake.md.monitor, &range, 0);
    }
    return present;
}

static void fake_copy_now(void)
{
    if (fake.to != NULL) {
        memcpy(fake.to, fake.from, DATA);
        fake.to = NULL;
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
    if (is_write && (fake.params.lie == FAKE_WRITES_ABSENT)) {
        memcpy(remote, local, DATA);
    }
    if (!fake_is_present(wr->wr.rdma.remote_addr)) {
        return 0;
    }
    if (is_write && ((fake.params.lie == FAKE_LATE_WRITE) ||
                     (fake.params.lie == FAKE_OVERTAKEN))) {
        memcpy(fake.data, local, DATA);
        fake.to   = remote;
        fake.from = fake.data;
        return 1;
    }
    if (!is_write && (fake.params.lie == FAKE_LATE_READ)) {
        fake.to   = local;
        fake.from = remote;
        return 1;
    }
    return 0;
}

/* After it was executed */
static void fake_after(const struct ibv_send_wr *wr, const struct ibv_sge *sge)
{
    uint32_t *states = (uint32_t*)(uintptr_t)sge->addr;

    if ((wr->opcode == IBV_WR_RDMA_READ) && (sge->length == STATES)) {
        if (!fake.has_first) {
            memcpy(fake.first, states, STATES);
            fake.has_first = 1;
        }
        if (fake.params.lie == FAKE_OLD_STATES) {
            memcpy(states, fake.first, STATES);
        }
    }
}

static int fake_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr,
                          struct ibv_send_wr **bad)
{
    struct ibv_send_wr copy = *wr;
    int ret;

    if (fake.params.lie == FAKE_OVERTAKEN) {
        fake.to = (wr->sg_list->length == DATA) ? NULL : fake.to;
    }
    if (fake_before(wr, wr->sg_list)) {
        copy.num_sge = 0;
    }
    ret = fake.ops.post_send(qp, &copy, bad);
    fake_after(wr, wr->sg_list);
    return ret;
}

static int fake_poll_cq(struct ibv_cq *cq, int max, struct ibv_wc *wc)
{
    if (fake.params.lie != FAKE_OVERTAKEN) {
        fake_copy_now();
    }
    return fake.ops.poll_cq(cq, max, wc);
}

/* ---- on-demand paging ---- */

static int fake_query_odp(struct ibv_context *context UCS_V_UNUSED,
                          struct ibv_odp_caps *caps)
{
    memset(caps, 0, sizeof(*caps));
    caps->general_caps = IBV_ODP_SUPPORT;
    if (fake.params.lie == FAKE_NOT_THERE) {
        caps->general_caps = 0;
    } else if (fake.params.lie == FAKE_NO_IMPLICIT) {
        caps->general_caps |= IBV_ODP_SUPPORT_IMPLICIT;
    }
    caps->per_transport_caps.rc_odp_caps =
            IBV_ODP_SUPPORT_READ |
            ((fake.params.lie == FAKE_NO_WRITE) ? 0 : IBV_ODP_SUPPORT_WRITE);
    return 0;
}

/* The file whose pages the check maps privately: one of those that it writes */
static void fake_write_to_file(void)
{
    char path[64], name[64];
    ssize_t length;
    int fd;

    for (fd = 0; fd < 1024; ++fd) {
        snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
        length = readlink(path, name, sizeof(name) - 1);
        name[(length < 0) ? 0 : length] = '\0';
        if (strstr(name, "memfd:nprdma-odp") != NULL) {
            (void)!pwrite(fd, "x", 1, 3 * NPRDMA_PAGE_SIZE);
        }
    }
}

static int fake_odp_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr,
                              struct ibv_send_wr **bad)
{
    struct ibv_sge sge         = wr->sg_list[0];
    struct ibv_send_wr changed = *wr;

    if (fake.params.lie == FAKE_SHARED) {
        fake_write_to_file();
    } else if ((fake.params.lie == FAKE_STUCK) &&
               (wr->opcode == IBV_WR_RDMA_WRITE)) {
        /* What it has sent first, again and again */
        if (!fake.is_kept) {
            memcpy(fake.kept, (void*)(uintptr_t)sge.addr, sge.length);
            fake.is_kept = 1;
        }
        memcpy((void*)(uintptr_t)sge.addr, fake.kept, sge.length);
    } else if (fake.params.lie == FAKE_PAGE_STARTS) {
        sge.addr                    -= sge.addr % NPRDMA_PAGE_SIZE;
        changed.wr.rdma.remote_addr -= changed.wr.rdma.remote_addr %
                                       NPRDMA_PAGE_SIZE;
        changed.sg_list              = &sge;
    }
    return fake.ops.post_send(qp, &changed, bad);
}

/* ---- the memory domain ---- */

static int fake_open_device(const fake_params_t *params)
{
    static const uct_nprdma_device_config_t config = {
        .timeout     = 0.1,
        .retry_count = 6,
        .rnr_timeout = 20e-6
    };
    uct_nprdma_device_t *dev = &fake.md.super;

    memset(&fake, 0, sizeof(fake));
    fake.params        = *params;
    fake.result.status = uct_nprdma_device_open(dev, "npemu0",
                                                UCT_NPRDMA_EMULATION_YES,
                                                &config);
    if (fake.result.status != UCS_OK) {
        return 0;
    }

    fake.ops               = dev->context->ops;
    fake.transport         = dev->context->device->transport_type;
    fake.real              = dev->verbs;
    fake.verbs             = *dev->verbs;
    fake.verbs.register_mr = fake_reg_mr;
    fake.verbs.dereg_mr    = fake_dereg;
    dev->verbs             = &fake.verbs;
    return 1;
}

static void fake_close_device(void)
{
    uct_nprdma_device_t *dev = &fake.md.super;

    dev->context->ops                    = fake.ops;
    dev->context->device->transport_type = fake.transport;
    dev->verbs                           = fake.real;
    uct_nprdma_device_close(dev);
}

static void fake_fill_md(void)
{
    fake_backend               = nprdma_backend_emulated;
    fake_backend.name          = "fake";
    fake_backend.notified      = 1;
    fake_backend.open          = fake_backend_open;
    fake_backend.close         = fake_backend_close;
    fake_backend.region_create = fake_create;
    fake_backend.invalidate    = fake_invalidate;

    fake.verbs.drain              = NULL;
    fake.verbs.query_odp          = NULL;
    fake.verbs.emulated_backend   = NULL;
    fake.verbs.kernel_backend     = fake.params.no_backend ? NULL :
                                    &fake_backend;
    fake.verbs.register_dmabuf_mr = fake.params.no_dmabuf ? NULL : fake_reg;

    fake.md.config.monitor      = (uct_nprdma_monitor_kind_t)
            ((fake.params.monitor == FAKE_AUTO) ? UCT_NPRDMA_MONITOR_AUTO :
             (fake.params.monitor == FAKE_KERNEL) ?
             UCT_NPRDMA_MONITOR_KERNEL : UCT_NPRDMA_MONITOR_EMULATED);
    fake.md.config.selfcheck    = 1;
    fake.md.config.region_size  = fake.params.region_size;
    fake.md.config.revoke       = NPRDMA_REVOKE_STRICT;
    fake.md.config.region_cache = 64 * UCS_MBYTE;
}

fake_device_t *fake_open(const fake_params_t *params)
{
    uct_nprdma_device_t *dev = &fake.md.super;
    nprdma_monitor_stats_t stats;

    if (!fake_open_device(params)) {
        return NULL;
    }

    fake_fill_md();
    dev->context->ops.post_send = fake_post_send;
    dev->context->ops.poll_cq   = fake_poll_cq;
    if (params->is_iwarp) {
        dev->context->device->transport_type = IBV_TRANSPORT_IWARP;
    }
    if (params->no_read) {
        dev->attr.max_qp_rd_atom = 0;
    }
    fake.result.status      = uct_nprdma_tier_init(&fake.md);
    fake.result.has_zcopy   = fake.md.monitor != NULL;
    fake.result.region_size = fake.md.config.region_size;
    fake.result.region_time = fake.md.region_time;
    if (fake.result.has_zcopy) {
        nprdma_monitor_query(fake.md.monitor, &stats);
        fake.result.drains        = stats.drains;
        fake.result.counted_pages = stats.populated + stats.invalidated +
                                    stats.revoked + stats.events +
                                    stats.kernel_events +
                                    stats.kernel_invalidated;
    }
    return &fake.result;
}

void fake_close(void)
{
    if (fake.has_range) {
        nprdma_monitor_unregister(fake.md.monitor, &fake.range, 0);
    }
    uct_nprdma_tier_cleanup(&fake.md);
    fake_close_device();
}

size_t fake_register(uint64_t address, size_t length)
{
    fake.has_range = nprdma_monitor_register(fake.md.monitor, address, length,
                                             &fake.range) == UCS_OK;
    return fake.has_range ? fake.range.region->length : 0;
}

fake_device_t *fake_odp_open(fake_lie_t lie, int error)
{
    const fake_params_t params = { .lie = lie, .mr_error = error };
    const char *why            = NULL;

    if (!fake_open_device(&params)) {
        return &fake.result;
    }

    fake_num_registrations               = 0;
    fake.verbs.query_odp                 = fake_query_odp;
    fake.md.super.context->ops.post_send = fake_odp_post_send;
    fake.result.status = uct_nprdma_odp_open(&fake.md.super, FAKE_ODP_PART_SIZE,
                                             &fake.odp, &why);
    snprintf(fake.result.why, sizeof(fake.result.why), "%s",
             (why == NULL) ? "" : why);
    if (fake.result.status != UCS_OK) {
        fake_close_device();
        return &fake.result;
    }

    fake.result.is_implicit = (fake.odp->implicit.r != NULL);
    fake.result.reg_cost    = fake.odp->reg_cost;
    return &fake.result;
}

void fake_odp_close(void)
{
    uct_nprdma_odp_close(fake.odp);
    fake_close_device();
}

void fake_odp_refuse(unsigned after, int error)
{
    fake.refuse_after = after;
    fake.refuse_error = error;
}

ucs_status_t fake_odp_export(uintptr_t address, size_t length, uint32_t access)
{
    return uct_nprdma_odp_export(fake.odp, address, length, access, &fake.mrs);
}

void fake_odp_unexport(void)
{
    uct_nprdma_odp_unexport(fake.odp, &fake.mrs);
}

uint32_t fake_odp_lkey(uintptr_t address, size_t length, int is_write)
{
    return uct_nprdma_odp_lkey(fake.odp, address, length, is_write);
}

unsigned fake_odp_max_parts(void)
{
    return UCT_NPRDMA_ODP_MAX_PARTS;
}
