/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_ep.h"
#include "nprdma_rx_wait.h"
#include "uct/ib/nprdma/net/nprdma_cm.h"
#include "uct/ib/nprdma/rma/nprdma_bulk.h"
#include "uct/ib/nprdma/rma/nprdma_initiator.h"
#include "uct/ib/nprdma/rma/nprdma_rma.h"
#include "uct/ib/nprdma/rma/nprdma_rma_watch.h"
#include "uct/ib/nprdma/service/nprdma_service.h"

#include <ucs/debug/log.h>
#include <ucs/debug/memtrack_int.h>
#include <ucs/sys/sys.h>
#include <ucs/time/time.h>

#include <fcntl.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <unistd.h>

/* Largest supported alignment of payloads. Pools begin at pages, so slots with
 * a size that is a multiple of the alignment are aligned, too */
#define UCT_NPRDMA_MAX_AM_ALIGN  4096

/* Receives that an interface begins with if pinned memory is nearly used up */
#define UCT_NPRDMA_RX_MIN_SLOTS  2

/* Seconds that closing an interface waits for last messages */
#define UCT_NPRDMA_LINGER_SEC    0.1

/* For uct_nprdma_iface_release_desc() */
void uct_nprdma_iface_init_rx_slots(uct_nprdma_iface_t *iface)
{
    uct_nprdma_slot_t *slot;

    for (slot = iface->rx.pool.free; slot != NULL; slot = slot->next) {
        ((uct_nprdma_rx_head_t*)slot->data)->slot = slot;
    }
}

/* Layout of a slot: pointer to the descriptor, UCX's pointer for releasing,
 * headroom, payload. The wire header ends where the payload begins, within the
 * headroom. The headroom is written only after the header has been read. */
static ucs_status_t
uct_nprdma_iface_init_rx(uct_nprdma_iface_t *iface,
                         const uct_nprdma_iface_config_t *config,
                         const uct_iface_params_t *params)
{
    size_t headroom = UCT_IFACE_PARAM_VALUE(params, rx_headroom, RX_HEADROOM,
                                            0);
    size_t align, align_offset, slot_size;
    ucs_status_t status;

    iface->rx.payload_offset = uct_nprdma_align_up(
            sizeof(uct_nprdma_rx_head_t) +
            ucs_max(headroom, sizeof(uct_nprdma_am_hdr_t)), sizeof(uint64_t));
    status = uct_iface_param_am_alignment(params, config->seg_size, 0, 0,
                                          &align, &align_offset);
    if (status != UCS_OK) {
        return status;
    }

    if (!ucs_is_pow2(align)) {
        ucs_error("active messages cannot be aligned to %zu bytes: that is not "
                  "a power of two", align);
        return UCS_ERR_INVALID_PARAM;
    }

    slot_size = iface->rx.payload_offset + config->seg_size;
    if ((params->field_mask & UCT_IFACE_PARAM_FIELD_AM_ALIGNMENT) &&
        (align > 1) && (align <= UCT_NPRDMA_MAX_AM_ALIGN)) {
        /* Make payload_offset + align_offset a multiple of align */
        iface->rx.payload_offset = uct_nprdma_align_up(
                iface->rx.payload_offset + align_offset, align) - align_offset;
        slot_size = uct_nprdma_align_up(iface->rx.payload_offset +
                                      config->seg_size, align);
    }

    iface->rx.headroom_offset      = iface->rx.payload_offset - headroom;
    iface->rx.hdr_offset           = iface->rx.payload_offset -
                                     sizeof(uct_nprdma_am_hdr_t);
    iface->rx.length               = sizeof(uct_nprdma_am_hdr_t) +
                                     config->seg_size;
    iface->rx.posted               = 0;
    iface->rx.release_desc.cb      = uct_nprdma_iface_release_desc;
    status = uct_nprdma_bounce_init(&iface->rx.pool,
                                    uct_nprdma_net_dev(&iface->net), slot_size,
                                    config->rx_slots, UCT_NPRDMA_RX_MIN_SLOTS,
                                    "receiving");
    if (status == UCS_OK) {
        uct_nprdma_iface_init_rx_slots(iface);
    }
    return status;
}

static void uct_nprdma_iface_init_tx(uct_nprdma_iface_t *iface)
{
    struct ibv_send_wr *wr = &iface->inl.wr;

    iface->net.tx.cq_avail = iface->net.config.tx_cq_len;
    iface->num_busy        = 0;
    iface->idle.count      = 0;
    iface->inl.sge[0].addr = (uintptr_t)&iface->inl.hdr;
    iface->inl.sge[0].lkey = 0;
    iface->inl.sge[1].lkey = 0;
    memset(wr, 0, sizeof(*wr));
    wr->sg_list            = iface->inl.sge;
    ucs_arbiter_init(&iface->net.tx.arbiter);
}

/* A single descriptor for all events that wake a sleeping worker */
static ucs_status_t uct_nprdma_iface_create_event_fd(uct_nprdma_iface_t *iface)
{
    struct epoll_event event = { .events = EPOLLIN };

    iface->event_fd = epoll_create1(EPOLL_CLOEXEC);
    if (iface->event_fd < 0) {
        ucs_error("failed to create an epoll descriptor: %m");
        return UCS_ERR_IO_ERROR;
    }

    if ((epoll_ctl(iface->event_fd, EPOLL_CTL_ADD, iface->net.channel->fd,
                   &event) != 0) ||
        (epoll_ctl(iface->event_fd, EPOLL_CTL_ADD, iface->net.cm.wakeup_fd,
                   &event) != 0) ||
        (iface->net.cm.is_polled &&
         (epoll_ctl(iface->event_fd, EPOLL_CTL_ADD, iface->net.cm.channel->fd,
                    &event) != 0))) {
        ucs_error("failed to fill an epoll descriptor: %m");
        close(iface->event_fd);
        return UCS_ERR_IO_ERROR;
    }

    return UCS_OK;
}

static void uct_nprdma_iface_set_config(uct_nprdma_iface_t *iface,
                                        const uct_nprdma_iface_config_t *config)
{
    iface->net.config.tx_queue_len   = config->tx_queue_len;
    iface->net.config.tx_moderation  = ucs_min(config->tx_moderation,
                                               config->tx_queue_len / 2);
    iface->net.config.svc_queue_len  = config->svc_queue_len;
    iface->net.config.tx_cq_len      = config->tx_cq_len;
    iface->net.config.max_unsignaled = config->tx_cq_len / 2;
    iface->config.max_bcopy          = config->seg_size;
    iface->config.tx_slots_low       = ucs_max(config->tx_slots / 2, 2u);
    iface->config.rx_max_batch       = ucs_min(config->rx_max_batch,
                                               ucs_max(config->rx_slots / 4,
                                                       1u));
    iface->config.rx_reserve         = ucs_max(config->rx_slots / 2, 2u);
    iface->config.rx_low             = ucs_max(config->rx_slots / 8, 2u);
}

static void uct_nprdma_iface_cleanup_device(uct_nprdma_iface_t *iface)
{
    uct_nprdma_net_iface_destroy_queues(&iface->net);
    uct_nprdma_bounce_cleanup(&iface->rx.pool);
    uct_nprdma_bounce_cleanup(&iface->net.tx.pool);
    ucs_arbiter_cleanup(&iface->net.tx.arbiter);
}

/* Create the objects on the device, and the pinned memory. After an error none
 * is left. */
static ucs_status_t
uct_nprdma_iface_init_device(uct_nprdma_iface_t *iface,
                             const uct_nprdma_iface_config_t *config,
                             const uct_iface_params_t *params)
{
    ucs_status_t status;

    status = uct_nprdma_net_iface_create_queues(&iface->net, config->rx_slots,
                                                config->max_inline);
    if (status != UCS_OK) {
        return status;
    }

    iface->config.max_short = iface->net.config.max_inline -
                              sizeof(uct_nprdma_am_hdr_t);
    uct_nprdma_iface_init_tx(iface);
    status = uct_nprdma_bounce_init(&iface->net.tx.pool,
                                    uct_nprdma_net_dev(&iface->net),
                                    sizeof(uct_nprdma_am_hdr_t) +
                                    config->seg_size, config->tx_slots,
                                    config->tx_slots_min, "sending");
    if (status != UCS_OK) {
        goto err_queues;
    }

    status = uct_nprdma_iface_init_rx(iface, config, params);
    if (status != UCS_OK) {
        goto err_tx_pool;
    }

    while (iface->rx.pool.num_free > 0) {
        status = uct_nprdma_iface_post_srq(iface);
        if (status != UCS_OK) {
            uct_nprdma_iface_cleanup_device(iface);
            return status;
        }
    }
    return UCS_OK;

err_tx_pool:
    uct_nprdma_bounce_cleanup(&iface->net.tx.pool);
err_queues:
    uct_nprdma_net_iface_destroy_queues(&iface->net);
    return status;
}

/* In a child: progress may be registered with the worker already, and checks
 * these fields */
static void uct_nprdma_iface_left(uct_nprdma_fork_entry_t *entry)
{
    uct_nprdma_iface_t *iface = ucs_container_of(entry, uct_nprdma_iface_t,
                                                 fork);

    iface->net.forked  = 1;
    iface->stash.valid = 1;
}

/* Start wire-up, the event descriptor, and other parts that use the
 * asynchronous context. After an error none is left. */
static ucs_status_t uct_nprdma_iface_init_wireup(uct_nprdma_iface_t *iface)
{
    ucs_status_t status;

    if (iface->net.super.worker->async == NULL) {
        ucs_error("nprdma needs a worker with an asynchronous context");
        return UCS_ERR_INVALID_PARAM;
    }

    status = uct_nprdma_cm_init(&iface->net, &uct_nprdma_iface_md(iface)->cm);
    if (status != UCS_OK) {
        return status;
    }

    status = uct_nprdma_iface_create_event_fd(iface);
    if (status != UCS_OK) {
        goto err_cm;
    }

    if (iface->net.cm.is_polled) {
        uct_nprdma_iface_serve(iface);
    }

    iface->fork.ops   = &iface->net.super.super.ops;
    iface->fork.owner = uct_nprdma_net_dev(&iface->net)->owner;
    iface->fork.left  = uct_nprdma_iface_left;
    uct_nprdma_fork_add(&iface->fork);
    return UCS_OK;

err_cm:
    uct_nprdma_cm_cleanup(&iface->net);
    uct_nprdma_iface_serve_no_more(iface);
    return status;
}

static void uct_nprdma_iface_net_failed(uct_nprdma_net_iface_t *iface,
                                        uct_nprdma_net_ep_t *ep,
                                        ucs_status_t status)
{
    uct_nprdma_ep_fail(ucs_derived_of(iface, uct_nprdma_iface_t),
                       ucs_derived_of(ep, uct_nprdma_ep_t), status);
}

static size_t
uct_nprdma_iface_net_build_fin(uct_nprdma_net_ep_t *ep, void *buf)
{
    return uct_nprdma_rma_build_fin(ucs_derived_of(ep, uct_nprdma_rma_ep_t),
                                    buf);
}

static void uct_nprdma_iface_no_bulk(uct_nprdma_net_iface_t *iface,
                                     uct_nprdma_net_ep_t *ep,
                                     ucs_status_t status)
{
    uct_nprdma_bulk_refused(ucs_derived_of(iface, uct_nprdma_rma_iface_t),
                            ucs_derived_of(ep, uct_nprdma_rma_ep_t)->rma,
                            status);
}

static uct_nprdma_service_t *
uct_nprdma_iface_service(uct_nprdma_net_iface_t *iface)
{
    return ucs_derived_of(iface->super.md, uct_nprdma_md_t)->service;
}

static ucs_status_t uct_nprdma_iface_svc_settle(uct_nprdma_net_iface_t *iface)
{
    unsigned num_accepted;

    return uct_nprdma_service_settle(uct_nprdma_iface_service(iface),
                                     &num_accepted);
}

static ucs_status_t
uct_nprdma_iface_svc_accept(uct_nprdma_net_iface_t *iface,
                            const uct_nprdma_qp_addr_t *peer,
                            uint32_t local_psn,
                            uct_nprdma_executed_t *executed,
                            uct_nprdma_service_conn_t **conn_p, uint32_t *qpn_p)
{
    uct_nprdma_iface_serve(ucs_derived_of(iface, uct_nprdma_iface_t));
    return uct_nprdma_service_accept(uct_nprdma_iface_service(iface),
                                     iface->port_num, peer, local_psn, executed,
                                     conn_p, qpn_p);
}

static void uct_nprdma_iface_svc_release(uct_nprdma_net_iface_t *iface,
                                         uct_nprdma_service_conn_t *conn)
{
    uct_nprdma_service_release(uct_nprdma_iface_service(iface), conn);
}

static void uct_nprdma_iface_svc_probe(uct_nprdma_net_iface_t *iface,
                                       uct_nprdma_service_conn_t *conn)
{
    uct_nprdma_service_probe(uct_nprdma_iface_service(iface), conn);
}

static const uct_nprdma_net_ops_t uct_nprdma_iface_net_ops = {
    .failed        = uct_nprdma_iface_net_failed,
    .no_bulk       = uct_nprdma_iface_no_bulk,
    .build_fin     = uct_nprdma_iface_net_build_fin,
    .svc_settle    = uct_nprdma_iface_svc_settle,
    .svc_accept    = uct_nprdma_iface_svc_accept,
    .svc_release   = uct_nprdma_iface_svc_release,
    .svc_probe     = uct_nprdma_iface_svc_probe,
    .svc_is_closed = uct_nprdma_service_conn_is_closed
};

static ucs_status_t
uct_nprdma_iface_check_open(const uct_nprdma_md_t *md,
                            const uct_iface_params_t *params)
{
    UCT_CHECK_PARAM(params->field_mask & UCT_IFACE_PARAM_FIELD_OPEN_MODE,
                    "UCT_IFACE_PARAM_FIELD_OPEN_MODE is not defined");
    if (!(params->open_mode & UCT_IFACE_OPEN_MODE_DEVICE)) {
        ucs_error("nprdma interfaces can be opened on a device only");
        return UCS_ERR_UNSUPPORTED;
    }

    return uct_nprdma_md_check_owner(md);
}

/* Set the port and what it costs. The length of active messages is set. */
static ucs_status_t
uct_nprdma_iface_init_port(uct_nprdma_iface_t *iface,
                           const uct_nprdma_iface_config_t *config,
                           const uct_iface_params_t *params)
{
    uct_nprdma_estimate_t *estimate = &iface->estimate;
    ucs_status_t status;

    status = uct_nprdma_net_iface_set_port(&iface->net,
                                           params->mode.device.dev_name);
    if (status != UCS_OK) {
        return status;
    }

    uct_nprdma_device_port_perf(uct_nprdma_net_dev(&iface->net),
                                iface->net.port_num, &estimate->perf);
    estimate->max_bcopy = iface->config.max_bcopy;
    estimate->has_zcopy = uct_nprdma_mem_has_zcopy(
            &uct_nprdma_iface_md(iface)->super);
    return uct_nprdma_config_set_perf(config->perf, &estimate->perf);
}

UCS_CLASS_INIT_FUNC(uct_nprdma_iface_t, uct_md_h tl_md, uct_worker_h worker,
                    const uct_iface_params_t *params,
                    const uct_iface_config_t *tl_config)
{
    const uct_nprdma_bufs_config_t *bufs = ucs_derived_of(
            tl_config, uct_nprdma_bufs_config_t);
    uct_nprdma_md_t *md                  = ucs_derived_of(tl_md,
                                                          uct_nprdma_md_t);
    uct_nprdma_iface_config_t config     = md->iface;
    ucs_status_t status;

    ucs_trace_func("iface=%p md=%p", self, md);
    status = uct_nprdma_iface_check_open(md, params);
    if (status == UCS_OK) {
        status = uct_nprdma_iface_check_config(bufs);
    }
    if (status != UCS_OK) {
        return status;
    }

    config.tx_slots     = bufs->tx_slots;
    config.tx_slots_min = bufs->tx_slots_min;
    config.rx_slots     = bufs->rx_slots;

    UCS_CLASS_CALL_SUPER_INIT(uct_nprdma_rma_iface_t, &md->rma,
                              &uct_nprdma_iface_net_ops, md->tables->iface,
                              md->tables->iface_internal, tl_md, worker, params,
                              tl_config);

    uct_nprdma_iface_set_config(self, &config);
    self->serve_id    = UCS_CALLBACKQ_ID_NULL;
    self->stash.valid = 0;
    ucs_list_head_init(&self->net.rx.waiting);
    ucs_list_head_init(&self->closing);
    ucs_list_head_init(&self->lacking);
    status = uct_nprdma_iface_init_port(self, &config, params);
    if (status != UCS_OK) {
        return status;
    }

    status = uct_nprdma_iface_init_device(self, &config, params);
    if (status != UCS_OK) {
        return status;
    }

    status = uct_nprdma_iface_init_wireup(self);
    if (status != UCS_OK) {
        goto err_device;
    }

    uct_nprdma_stats_iface_opened(&self->stats, self->net.stats, config.stats);
    uct_nprdma_md_get(md);
    return UCS_OK;

err_device:
    uct_nprdma_iface_cleanup_device(self);
    return status;
}

/* Wait a limited time until the last messages of endpoints are done */
static void uct_nprdma_iface_linger(uct_nprdma_iface_t *iface)
{
    ucs_time_t deadline = ucs_get_time() +
                          ucs_time_from_sec(UCT_NPRDMA_LINGER_SEC);

    uct_nprdma_ep_reap(iface, 0);
    while (!ucs_list_is_empty(&iface->closing) &&
           (ucs_get_time() < deadline)) {
        uct_nprdma_iface_reap_tx(iface);
        uct_nprdma_ep_reap(iface, 0);
    }
    uct_nprdma_ep_reap(iface, 1);
}

/* Destroy endpoints that the user has leaked: through their queue pairs the NIC
 * would access memory that is about to be freed */
static void uct_nprdma_iface_end_eps(uct_nprdma_iface_t *iface)
{
    unsigned long count = ucs_list_length(&iface->net.eps);
    uct_nprdma_ep_t *ep, *tmp;

    if (count > 0) {
        ucs_warn("%s: interface %p is closed with %lu endpoints: they end now, "
                 "their handles must not be used any more",
                 uct_nprdma_net_dev(&iface->net)->name, iface, count);
    }

    ucs_list_for_each_safe(ep, tmp, &iface->net.eps, net.list) {
        uct_nprdma_ep_destroy(&ep->net.super.super);
    }
}

static UCS_CLASS_CLEANUP_FUNC(uct_nprdma_iface_t)
{
    uct_nprdma_mem_stats_t mem_stats;

    ucs_trace_func("iface=%p", self);
    /* Read now, while the pinned memory of this interface counts */
    uct_nprdma_md_stats(uct_nprdma_iface_md(self), &mem_stats);
    uct_base_iface_progress_disable(&self->net.super.super,
                                    UCT_PROGRESS_SEND | UCT_PROGRESS_RECV);
    uct_nprdma_iface_end_eps(self);
    uct_nprdma_fork_remove(&self->fork);
    uct_nprdma_iface_linger(self);
    uct_nprdma_rma_watch_stop(&self->rma);
    uct_nprdma_rx_wait_cleanup(&self->net);
    uct_nprdma_cm_cleanup(&self->net);
    uct_nprdma_iface_serve_no_more(self);
    uct_nprdma_rma_res_cleanup(&self->rma);
    close(self->event_fd);
    uct_nprdma_iface_cleanup_device(self);
    ucs_free(self->net.conns);
    uct_nprdma_stats_iface_closed(&self->stats, &mem_stats,
                                  uct_nprdma_iface_md(self)->iface.stats,
                                  uct_nprdma_net_dev(&self->net)->name);
    uct_nprdma_md_put(uct_nprdma_iface_md(self));
}

UCS_CLASS_DEFINE(uct_nprdma_iface_t, uct_nprdma_rma_iface_t);
UCS_CLASS_DEFINE_NEW_FUNC(uct_nprdma_iface_t, uct_iface_t, uct_md_h,
                          uct_worker_h, const uct_iface_params_t *,
                          const uct_iface_config_t *);
static UCS_CLASS_DEFINE_DELETE_FUNC(uct_nprdma_iface_t, uct_iface_t);

void uct_nprdma_iface_close(uct_iface_h tl_iface)
{
    if (!uct_nprdma_fork_is_child()) {
        UCS_CLASS_DELETE_FUNC_NAME(uct_nprdma_iface_t)(tl_iface);
    }
}

ucs_status_t uct_nprdma_iface_get_device_address(uct_iface_h tl_iface,
                                                 uct_device_addr_t *addr)
{
    uct_nprdma_iface_t *iface = ucs_derived_of(tl_iface, uct_nprdma_iface_t);

    memcpy(addr, &iface->net.dev_addr, sizeof(iface->net.dev_addr));
    return UCS_OK;
}

ucs_status_t
uct_nprdma_iface_get_address(uct_iface_h tl_iface, uct_iface_addr_t *addr)
{
    uct_nprdma_iface_t *iface = ucs_derived_of(tl_iface, uct_nprdma_iface_t);

    memcpy(addr, &iface->net.iface_addr, sizeof(iface->net.iface_addr));
    return UCS_OK;
}

/* UCX only says that there is no transport; this says why, once */
static atomic_flag uct_nprdma_iface_told = ATOMIC_FLAG_INIT;

static int uct_nprdma_iface_has_version(uint8_t version, uint8_t own)
{
    if ((version != own) && !atomic_flag_test_and_set(&uct_nprdma_iface_told)) {
        ucs_warn("a peer cannot be reached by nprdma: it has version %u of the "
                 "protocol, and this process has version %u. Both need the "
                 "same release, and the same UCX_NPRDMA_MAX_PINNED if one is "
                 "less than %zu", version, own, (size_t)UCT_NPRDMA_FULL_PINNED);
    }
    return version == own;
}

int uct_nprdma_iface_is_reachable(const uct_iface_h tl_iface,
                                  const uct_device_addr_t *tl_dev_addr,
                                  const uct_iface_addr_t *tl_iface_addr)
{
    uct_nprdma_iface_t *iface   = ucs_derived_of(tl_iface, uct_nprdma_iface_t);
    const uct_nprdma_dev_addr_t *dev_addr     = (const void*)tl_dev_addr;
    const uct_nprdma_iface_addr_t *iface_addr = (const void*)tl_iface_addr;
    uint8_t link_flags          = UCT_NPRDMA_DEV_ADDR_ETH;

    if ((dev_addr == NULL) ||
        !uct_nprdma_iface_has_version(dev_addr->version,
                                      UCT_NPRDMA_WIRE_VERSION) ||
        ((iface_addr != NULL) &&
         !uct_nprdma_iface_has_version(iface_addr->version,
                                       iface->net.iface_addr.version)) ||
        ((dev_addr->flags ^ iface->net.dev_addr.flags) & link_flags)) {
        return 0;
    }

    /* The subnet prefix, which is the first half of a GID, identifies an
     * InfiniBand subnet. RoCE is routed: any GID may be reachable. */
    if ((dev_addr->flags & UCT_NPRDMA_DEV_ADDR_ETH) ||
        !memcmp(dev_addr->gid, iface->net.dev_addr.gid, 8)) {
        return 1;
    }

    if (!strcmp(uct_nprdma_net_dev(&iface->net)->name, "npemu0") &&
        !atomic_flag_test_and_set(&uct_nprdma_iface_told)) {
        ucs_warn("a peer cannot be reached by nprdma: npemu0 connects processes"
                 " of one user in one IPC, PID and user namespace, and the peer"
                 " is of another one (containers: --ipc=host --pid=host)");
    }
    return 0;
}

ucs_status_t uct_nprdma_iface_query(uct_iface_h tl_iface,
                                    uct_iface_attr_t *attr)
{
    uct_nprdma_iface_t *iface = ucs_derived_of(tl_iface, uct_nprdma_iface_t);

    uct_base_iface_query(&iface->net.super, attr);
    attr->device_addr_len         = sizeof(uct_nprdma_dev_addr_t);
    attr->iface_addr_len          = sizeof(uct_nprdma_iface_addr_t);
    attr->ep_addr_len             = 0;
    attr->cap.flags               = UCT_IFACE_FLAG_AM_SHORT |
                                    UCT_IFACE_FLAG_AM_BCOPY |
                                    UCT_IFACE_FLAG_AM_ZCOPY |
                                    UCT_IFACE_FLAG_PENDING |
                                    UCT_IFACE_FLAG_CB_SYNC |
                                    UCT_IFACE_FLAG_CONNECT_TO_IFACE |
                                    UCT_IFACE_FLAG_EP_CHECK |
                                    UCT_IFACE_FLAG_ERRHANDLE_PEER_FAILURE |
                                    UCT_IFACE_FLAG_INTER_NODE;
    attr->cap.event_flags         = UCT_IFACE_FLAG_EVENT_SEND_COMP |
                                    UCT_IFACE_FLAG_EVENT_RECV |
                                    UCT_IFACE_FLAG_EVENT_FD;
    attr->cap.am.max_short        = iface->config.max_short;
    attr->cap.am.max_bcopy        = iface->config.max_bcopy;
    attr->cap.am.max_zcopy        = iface->config.max_bcopy;
    attr->cap.am.max_hdr          = uct_nprdma_iface_max_hdr(iface);
    attr->cap.am.max_iov          = UCT_NPRDMA_MAX_IOV;
    attr->cap.am.opt_zcopy_align  = 1;
    attr->cap.am.align_mtu        = 1;
    attr->priority                = 0;
    uct_nprdma_estimate_iface(&iface->estimate, attr);
    uct_nprdma_rma_query(&iface->rma, attr);
    return UCS_OK;
}

ucs_status_t uct_nprdma_iface_flush(uct_iface_h tl_iface, unsigned flags,
                                    uct_completion_t *comp)
{
    uct_nprdma_iface_t *iface = ucs_derived_of(tl_iface, uct_nprdma_iface_t);
    int in_progress           = 0;
    ucs_status_t status;
    uct_nprdma_ep_t *ep;

    ucs_trace_func("iface=%p flags=0x%x comp=%p", iface, flags, comp);
    if (comp != NULL) {
        return UCS_ERR_UNSUPPORTED;
    }

    ucs_list_for_each(ep, &iface->net.eps, net.list) {
        status = uct_nprdma_ep_flush(&ep->net.super.super, flags, NULL);
        if ((status == UCS_INPROGRESS) || (status == UCS_ERR_NO_RESOURCE)) {
            in_progress = 1;
        } else if (status != UCS_OK) {
            return status;
        }
    }

    return in_progress ? UCS_INPROGRESS : UCS_OK;
}

ucs_status_t uct_nprdma_iface_fence(uct_iface_h tl_iface, unsigned flags)
{
    uct_nprdma_iface_t *iface = ucs_derived_of(tl_iface, uct_nprdma_iface_t);
    uct_nprdma_ep_t *ep;

    ucs_trace_func("iface=%p", iface);
    ucs_list_for_each(ep, &iface->net.eps, net.list) {
        uct_nprdma_ep_fence(&ep->net.super.super, flags);
    }

    return UCS_OK;
}

ucs_status_t uct_nprdma_iface_event_fd_get(uct_iface_h tl_iface, int *fd_p)
{
    *fd_p = ucs_derived_of(tl_iface, uct_nprdma_iface_t)->event_fd;
    return UCS_OK;
}

ucs_status_t uct_nprdma_iface_estimate_perf(uct_iface_h tl_iface,
                                            uct_perf_attr_t *perf_attr)
{
    uct_nprdma_iface_t *iface = ucs_derived_of(tl_iface, uct_nprdma_iface_t);
    ucs_status_t status;

    status = uct_base_iface_estimate_perf(tl_iface, perf_attr);
    if (status != UCS_OK) {
        return status;
    }

    uct_nprdma_estimate_op(&iface->estimate, perf_attr);
    return UCS_OK;
}

void uct_nprdma_iface_vfs_refresh(uct_iface_h tl_iface)
{
    uct_nprdma_iface_t *iface = ucs_derived_of(tl_iface, uct_nprdma_iface_t);

    uct_nprdma_stats_vfs(iface, iface->net.stats);
    uct_nprdma_md_vfs(uct_nprdma_iface_md(iface), iface);
}
