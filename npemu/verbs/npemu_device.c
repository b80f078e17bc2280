/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* The device: list, open, close, queries. */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "base/npemu_limits.h"
#include "base/npemu_log.h"
#include "engine/npemu_cq.h"
#include "engine/npemu_qp.h"
#include "engine/npemu_sq.h"
#include "fabric/npemu_epoch.h"
#include "fabric/npemu_event_fd.h"
#include "inject/npemu_fault.h"
#include "npemu.h"
#include "verbs/npemu_context.h"
#include "verbs/npemu_mr.h"
#include "verbs/npemu_srq.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NPEMU_VENDOR_ID   0x6e70

/*
 * rdma-core providers read beyond struct ibv_device, at the operations of their
 * own device type, to find out whether a device is theirs. Zeros mean no.
 */
static struct {
    struct ibv_device device;
    void              *provider_private[64];
} npemu_device = {
    .device = {
        .node_type      = IBV_NODE_CA,
        .transport_type = IBV_TRANSPORT_IB,
        .name           = NPEMU_DEVICE_NAME,
        .dev_name       = "uverbs_" NPEMU_DEVICE_NAME,
        .dev_path       = "/sys/class/infiniband_verbs/uverbs_"
                          NPEMU_DEVICE_NAME,
        .ibdev_path     = "/sys/class/infiniband/" NPEMU_DEVICE_NAME
    }
};

struct ibv_device **npemu_get_device_list(int *num_devices)
{
    struct ibv_device **list = calloc(2, sizeof(*list));

    if (list != NULL) {
        list[0] = &npemu_device.device;
    }
    if (num_devices != NULL) {
        *num_devices = (list != NULL);
    }
    return list;
}

void npemu_free_device_list(struct ibv_device **list)
{
    free(list);
}

int npemu_is_device(const struct ibv_device *device)
{
    return device == &npemu_device.device;
}

const char *npemu_get_device_name(struct ibv_device *device)
{
    return device->name;
}

__be64 npemu_get_device_guid(struct ibv_device *device)
{
    (void)device;
    return htobe64(npemu_guid());
}

/* --- queries ---------------------------------------------------------------*/

/* Fill a structure of the program, whose version may have another size. */
static void npemu_fill(void *to, size_t size, const void *from, size_t known)
{
    memset(to, 0, size);
    memcpy(to, from, (size < known) ? size : known);
}

int npemu_query_device(struct ibv_context *context,
                       struct ibv_device_attr *attr)
{
    (void)context;
    memset(attr, 0, sizeof(*attr));
    snprintf(attr->fw_ver, sizeof(attr->fw_ver), "%d.0", NPEMU_SHM_VERSION);
    attr->node_guid           = htobe64(npemu_guid());
    attr->sys_image_guid      = htobe64(npemu_guid());
    attr->max_mr_size         = UINT64_MAX;
    attr->page_size_cap       = 0xfffff000;
    attr->vendor_id           = NPEMU_VENDOR_ID;
    attr->vendor_part_id      = 1;
    attr->hw_ver              = NPEMU_SHM_VERSION;
    attr->max_qp              = NPEMU_MAX_QPS;
    attr->max_qp_wr           = NPEMU_MAX_WR;
    attr->device_cap_flags    = IBV_DEVICE_CURR_QP_STATE_MOD |
                                IBV_DEVICE_RC_RNR_NAK_GEN |
                                IBV_DEVICE_SYS_IMAGE_GUID;
    attr->max_sge             = NPEMU_MAX_SGE;
    attr->max_sge_rd          = NPEMU_MAX_SGE;
    attr->max_cq              = 2 * NPEMU_MAX_QPS;
    attr->max_cqe             = 1 << 20;
    attr->max_mr              = NPEMU_MAX_MRS - 1;
    attr->max_pd              = 1 << 20;
    attr->max_qp_rd_atom      = NPEMU_MAX_RD_ATOMIC;
    attr->max_res_rd_atom     = NPEMU_MAX_RD_ATOMIC * NPEMU_MAX_QPS;
    attr->max_qp_init_rd_atom = NPEMU_MAX_RD_ATOMIC;
    attr->atomic_cap          = IBV_ATOMIC_HCA;
    attr->max_ah              = 1 << 20;
    attr->max_srq             = NPEMU_MAX_QPS;
    attr->max_srq_wr          = NPEMU_MAX_WR;
    attr->max_srq_sge         = NPEMU_MAX_SGE;
    attr->max_pkeys           = 1;
    attr->phys_port_cnt       = 1;
    return 0;
}

/* One-sided operations, because the CPU that polls a CQ places messages */
static void npemu_query_odp(struct ibv_context *context,
                            struct ibv_odp_caps *caps)
{
    npemu_proc_t *proc   = npemu_context_proc(context);
    npemu_odp_mode_t odp = (proc == NULL) ? NPEMU_ODP_NO : npemu_mr_odp(proc);

    if (odp == NPEMU_ODP_NO) {
        return;
    }

    caps->general_caps = IBV_ODP_SUPPORT;
    if (odp == NPEMU_ODP_IMPLICIT) {
        caps->general_caps |= IBV_ODP_SUPPORT_IMPLICIT;
    }
    caps->per_transport_caps.rc_odp_caps = IBV_ODP_SUPPORT_WRITE |
                                           IBV_ODP_SUPPORT_READ;
}

static int npemu_query_device_ex_op(struct ibv_context *context,
                                    const struct ibv_query_device_ex_input *in,
                                    struct ibv_device_attr_ex *attr,
                                    size_t attr_size)
{
    struct ibv_device_attr_ex full;

    if ((in != NULL) && (in->comp_mask != 0)) {
        return EINVAL;
    }

    memset(&full, 0, sizeof(full));
    npemu_query_device(context, &full.orig_attr);
    full.phys_port_cnt_ex = 1;
    npemu_query_odp(context, &full.odp_caps);
    npemu_fill(attr, attr_size, &full, sizeof(full));
    return 0;
}

int npemu_query_port(struct ibv_context *context, uint8_t port_num,
                     struct ibv_port_attr *attr)
{
    npemu_proc_t *proc = npemu_context_proc(context);

    if (port_num != NPEMU_PORT) {
        return EINVAL;
    }

    memset(attr, 0, sizeof(*attr));
    attr->state        = IBV_PORT_ACTIVE;
    attr->max_mtu      = IBV_MTU_4096;
    attr->active_mtu   = IBV_MTU_4096;
    attr->gid_tbl_len  = 1;
    attr->max_msg_sz   = NPEMU_MAX_MSG;
    attr->pkey_tbl_len = 1;
    attr->lid          = NPEMU_LID;
    attr->sm_lid       = NPEMU_LID;
    attr->max_vl_num   = 1;
    attr->active_width = 2;  /* 4x */
    attr->active_speed = 32; /* EDR */
    attr->phys_state   = 5;  /* LinkUp */
    attr->link_layer   = IBV_LINK_LAYER_INFINIBAND;
    if ((proc != NULL) && (proc->link.rate != 0)) {
        npemu_link_spec_speed(proc->link.rate, &attr->active_width,
                              &attr->active_speed);
    }
    return 0;
}

uint64_t npemu_query_link(struct ibv_context *context, uint64_t *latency_ns,
                          int *is_shared)
{
    npemu_proc_t *proc = npemu_context_proc(context);

    if ((proc == NULL) || (proc->link.rate == 0)) {
        return 0;
    }

    *latency_ns = proc->link.latency_ns;
    *is_shared  = (proc->link.port != 0);
    return proc->link.rate;
}

static int npemu_query_port_op(struct ibv_context *context, uint8_t port_num,
                               struct ibv_port_attr *attr, size_t attr_size)
{
    struct ibv_port_attr full;
    int ret;

    ret = npemu_query_port(context, port_num, &full);
    if (ret == 0) {
        npemu_fill(attr, attr_size, &full, sizeof(full));
    }
    return ret;
}

int npemu_query_gid(struct ibv_context *context, uint8_t port_num, int index,
                    union ibv_gid *gid)
{
    (void)context;
    if ((port_num != NPEMU_PORT) || (index != 0)) {
        errno = EINVAL;
        return -1;
    }

    npemu_gid(gid);
    return 0;
}

int npemu_query_gid_ex(struct ibv_context *context, uint32_t port_num,
                       uint32_t gid_index, struct ibv_gid_entry *entry,
                       uint32_t flags, size_t entry_size)
{
    struct ibv_gid_entry full;

    (void)context;
    if ((flags != 0) || (port_num != NPEMU_PORT) || (gid_index != 0)) {
        return EINVAL;
    }

    memset(&full, 0, sizeof(full));
    npemu_gid(&full.gid);
    full.port_num = port_num;
    full.gid_type = IBV_GID_TYPE_IB;
    npemu_fill(entry, entry_size, &full, sizeof(full));
    return 0;
}

ssize_t npemu_query_gid_table(struct ibv_context *context,
                              struct ibv_gid_entry *entries,
                              size_t max_entries, uint32_t flags,
                              size_t entry_size)
{
    int ret;

    if (max_entries == 0) {
        return -EINVAL;
    }

    ret = npemu_query_gid_ex(context, NPEMU_PORT, 0, entries, flags,
                             entry_size);
    return (ret == 0) ? 1 : -ret;
}

int npemu_query_gid_type(struct ibv_context *context, uint8_t port_num,
                         unsigned index, unsigned *type)
{
    (void)context;
    if ((port_num != NPEMU_PORT) || (index != 0)) {
        errno = EINVAL;
        return -1;
    }

    *type = 0;
    return 0;
}

int npemu_query_pkey(struct ibv_context *context, uint8_t port_num, int index,
                     __be16 *pkey)
{
    (void)context;
    if ((port_num != NPEMU_PORT) || (index != 0)) {
        errno = EINVAL;
        return -1;
    }

    *pkey = htobe16(0xffff);
    return 0;
}

int npemu_get_pkey_index(struct ibv_context *context, uint8_t port_num,
                         __be16 pkey)
{
    (void)context;
    if ((port_num != NPEMU_PORT) || (be16toh(pkey) != 0xffff)) {
        errno = EINVAL;
        return -1;
    }

    return 0;
}

/* --- open and close --------------------------------------------------------*/

static void npemu_context_set_ops(struct verbs_context *verbs)
{
    struct ibv_context *context = &verbs->context;

    verbs->sz              = sizeof(*verbs);
    verbs->query_device_ex = npemu_query_device_ex_op;
    verbs->query_port      = npemu_query_port_op;
    verbs->create_qp_ex    = npemu_create_qp_ex;

    context->abi_compat        = __VERBS_ABI_IS_EXTENDED;
    context->ops.poll_cq       = npemu_poll_cq;
    context->ops.req_notify_cq = npemu_req_notify_cq;
    context->ops.post_send     = npemu_post_send;
    context->ops.post_recv     = npemu_post_recv;
    context->ops.post_srq_recv = npemu_post_srq_recv;
}

struct ibv_context *npemu_open_device(struct ibv_device *device)
{
    npemu_context_t *context;
    int saved_errno;

    if (!npemu_is_device(device)) {
        errno = ENODEV;
        return NULL;
    }

    context = calloc(1, sizeof(*context));
    if (context == NULL) {
        return NULL;
    }

    npemu_link_init(&context->events);
    npemu_context_set_ops(&context->super);
    context->super.context.device           = device;
    context->super.context.cmd_fd           = -1;
    context->super.context.num_comp_vectors = 1;
    if (npemu_event_fd_create(&context->async, 0) < 0) {
        npemu_error("cannot open " NPEMU_DEVICE_NAME ": pipe: %s",
                    strerror(errno));
        goto err_free;
    }

    context->super.context.async_fd = context->async.fd;
    context->proc                   = npemu_attach();
    if (context->proc == NULL) {
        goto err_close;
    }

    pthread_mutex_init(&context->events_lock, NULL);
    pthread_mutex_init(&context->super.context.mutex, NULL);
    return &context->super.context;

err_close:
    saved_errno = errno;
    npemu_event_fd_close(&context->async);
    errno = saved_errno;
err_free:
    saved_errno = errno;
    free(context);
    errno = saved_errno;
    return NULL;
}

int npemu_close_device(struct ibv_context *ibcontext)
{
    npemu_context_t *context = npemu_context(ibcontext);

    if (npemu_context_proc(ibcontext) == NULL) {
        return NPEMU_ERR_FORKED;
    }

    npemu_detach(context->proc);
    npemu_event_fd_close(&context->async);
    pthread_mutex_destroy(&ibcontext->mutex);
    pthread_mutex_destroy(&context->events_lock);
    free(context);
    return 0;
}

/* --- what is no verb -------------------------------------------------------*/

NPEMU_HOOK
void npemu_iommu_drain(struct ibv_context *context)
{
    npemu_proc_t *proc = npemu_context_proc(context);

    if (proc != NULL) {
        npemu_epoch_drain(proc);
    }
}

int npemu_fault_random(struct ibv_context *context, double rate, uint64_t seed)
{
    return (npemu_context_proc(context) == NULL) ?
                   NPEMU_ERR_FORKED : npemu_random_configure(rate, seed);
}

uint64_t npemu_copy_calls(struct ibv_context *ibcontext)
{
    npemu_proc_t *proc = npemu_context_proc(ibcontext);

    return (proc == NULL) ? 0 : npemu_epoch_calls(proc);
}
