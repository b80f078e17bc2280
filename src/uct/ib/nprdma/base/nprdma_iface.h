/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_IFACE_H_
#define UCT_NPRDMA_IFACE_H_

#include "nprdma_estimate.h"
#include "nprdma_fork.h"
#include "nprdma_idle.h"
#include "nprdma_md.h"
#include "nprdma_stats.h"

#include "uct/ib/nprdma/compat/nprdma_compat.h"
#include "uct/ib/nprdma/rma/nprdma_rma_iface.h"

/* Header of a short active message, with the header of the user */
typedef struct uct_nprdma_inl_hdr {
    uct_nprdma_am_hdr_t am;
    uint64_t            user;
} __attribute__((packed)) uct_nprdma_inl_hdr_t;

/* Elements of a user's gather list; they are copied, so the number is
 * arbitrary */
#define UCT_NPRDMA_MAX_IOV     16


/* Start of a receive slot. UCX stores a pointer of its own in release_desc, or
 * in the headroom */
typedef struct uct_nprdma_rx_head {
    uct_nprdma_slot_t *slot;
    void              *release_desc;
} uct_nprdma_rx_head_t;


/* An interface */
typedef struct uct_nprdma_iface {
    union {
        uct_nprdma_rma_iface_t super;
        uct_nprdma_rma_iface_t rma;         /* named after its floor */
        uct_nprdma_net_iface_t net;         /* its base class */
    };

    struct {                                /* sending of active messages */
        struct ibv_send_wr  wr;             /* template of inline sends */
        struct ibv_sge      sge[UCT_NPRDMA_MAX_SEND_SGE];
        uct_nprdma_inl_hdr_t hdr;           /* sge[0] points here */
    } inl;

    struct {                                /* receiving of active messages */
        uct_nprdma_bounce_t pool;
        unsigned            posted;
        /* Offset in a slot of the payload */
        unsigned            payload_offset;
        unsigned            headroom_offset; /* offset of the user's headroom */
        unsigned            hdr_offset;     /* offset of the received data */
        unsigned            length;         /* of a message, at most */
        uct_recv_desc_t     release_desc;
    } rx;

    /* Also valid in a child, so that progress has one condition to check */
    struct {
        int                 valid;
        int                 is_rx;
        struct ibv_wc       wc;
    /* Completion that event_arm has found */
    } stash;

    /* Calls of progress since the service was polled */
    unsigned                num_busy;
    uct_nprdma_idle_t       idle;
    uct_nprdma_fork_entry_t fork;
    uct_worker_cb_id_t      serve_id;       /* see uct_nprdma_iface_serve() */
    /* Destroyed endpoints with outstanding WRs */
    ucs_list_link_t         closing;
    /* Endpoints whose first pending request is a message that lacks what
     * messages of all endpoints share: see uct_nprdma_ep_try_lacking() */
    ucs_list_link_t         lacking;
    int                     am_lacks;       /* The last message did */
    int                     event_fd;       /* epoll: channel, wakeup_fd */

    struct {
        size_t              max_bcopy;      /* of AM, bytes; slots are larger */
        size_t              max_short;      /* AM with header, bytes */
        /* With fewer free slots, sends are signaled */
        unsigned            tx_slots_low;
        unsigned            rx_max_batch;
        /* Slots that the user cannot keep */
        unsigned            rx_reserve;
        /* With fewer posted receives, post at once */
        unsigned            rx_low;
    } config;
    uct_nprdma_estimate_t   estimate;       /* performance that UCX is told */
    uct_nprdma_stats_entry_t stats;
} uct_nprdma_iface_t;


static inline uct_nprdma_md_t *uct_nprdma_iface_md(uct_nprdma_iface_t *iface)
{
    return ucs_derived_of(iface->net.super.md, uct_nprdma_md_t);
}


/* Longest header of am_zcopy; leaves room for data */
static inline size_t uct_nprdma_iface_max_hdr(const uct_nprdma_iface_t *iface)
{
    return iface->config.max_bcopy / 2;
}


UCS_CLASS_DECLARE(uct_nprdma_iface_t, uct_md_h, uct_worker_h,
                  const uct_iface_params_t *, const uct_iface_config_t *);

UCS_CLASS_DECLARE_NEW_FUNC(uct_nprdma_iface_t, uct_iface_t, uct_md_h,
                           uct_worker_h, const uct_iface_params_t *,
                           const uct_iface_config_t *);

void uct_nprdma_iface_close(uct_iface_h tl_iface);


/* Post free slots to the SRQ, up to a batch of them. Slots that the device
 * refuses are free again. */
ucs_status_t uct_nprdma_iface_post_srq(uct_nprdma_iface_t *iface);

/* Few receives are posted: post the free slots without waiting for a full
 * batch, or add slots */
void uct_nprdma_iface_rx_low(uct_nprdma_iface_t *iface);

void uct_nprdma_iface_init_rx_slots(uct_nprdma_iface_t *iface);

void uct_nprdma_iface_reap_tx(uct_nprdma_iface_t *iface);

/* A peer has a connection of kind SVC to this interface. From now on requests
 * are executed whenever the worker progresses, even if the user has not enabled
 * the progress of the interface: UCP enables it only for an endpoint or a
 * receive. Safe in any thread with the async context blocked. */
void uct_nprdma_iface_serve(uct_nprdma_iface_t *iface);

/* No thread may call progress meanwhile */
void uct_nprdma_iface_serve_no_more(uct_nprdma_iface_t *iface);

/* The user returns a slot that it has kept */
void uct_nprdma_iface_release_desc(uct_recv_desc_t *self, void *desc);


/* Functions of uct_iface_ops_t with the same names; version-neutral where UCX
 * versions differ */

unsigned uct_nprdma_iface_progress(uct_iface_h tl_iface);

ucs_status_t uct_nprdma_iface_query(uct_iface_h tl_iface,
                                    uct_iface_attr_t *attr);

ucs_status_t uct_nprdma_iface_get_device_address(uct_iface_h tl_iface,
                                                 uct_device_addr_t *addr);

ucs_status_t uct_nprdma_iface_get_address(uct_iface_h tl_iface,
                                          uct_iface_addr_t *addr);

int uct_nprdma_iface_is_reachable(const uct_iface_h tl_iface,
                                  const uct_device_addr_t *tl_dev_addr,
                                  const uct_iface_addr_t *tl_iface_addr);

ucs_status_t uct_nprdma_iface_flush(uct_iface_h tl_iface, unsigned flags,
                                    uct_completion_t *comp);

ucs_status_t uct_nprdma_iface_fence(uct_iface_h tl_iface, unsigned flags);

ucs_status_t uct_nprdma_iface_event_fd_get(uct_iface_h tl_iface, int *fd_p);

ucs_status_t uct_nprdma_iface_event_arm(uct_iface_h tl_iface, unsigned events);

ucs_status_t uct_nprdma_iface_estimate_perf(uct_iface_h tl_iface,
                                            uct_perf_attr_t *perf_attr);

void uct_nprdma_iface_vfs_refresh(uct_iface_h tl_iface);

#endif
