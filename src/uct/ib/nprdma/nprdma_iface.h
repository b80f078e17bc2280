/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_IFACE_H_
#define UCT_NPRDMA_IFACE_H_

#include "nprdma_bounce.h"
#include "nprdma_cm.h"
#include "nprdma_compat.h"
#include "nprdma_conn.h"
#include "nprdma_md.h"
#include "nprdma_stats.h"

typedef struct uct_nprdma_iface_config {
    uct_iface_config_t     super;
    size_t                 seg_size;
    unsigned               tx_slots;
    unsigned               rx_slots;
    unsigned               tx_queue_len;
    unsigned               tx_cq_len;
    unsigned               tx_moderation;
    unsigned               rx_max_batch;
    unsigned               svc_queue_len;
    size_t                 max_inline;
    unsigned               gid_index;
    unsigned               timeout;         /* 4.096 us << timeout */
    unsigned               retry_count;
    unsigned               rnr_timeout;     /* verbs encoding */
    char                   *stats;
    uct_nprdma_cm_config_t cm;
} uct_nprdma_iface_config_t;


/* An interface: one port as used by one worker. */
typedef struct uct_nprdma_iface {
    uct_base_iface_t        super;

    struct {
        struct ibv_cq       *cq;
        int32_t             cq_avail;       /* WRs that the CQ has room for */
        uint32_t            unsignaled;     /* of all connections */
        uct_nprdma_bounce_t pool;           /* slots to send from, and for the
                                               replies on SVC connections */
        int                 starved;        /* a post failed for want of what
                                               the interface shares */
        ucs_arbiter_t       arbiter;
    } tx;

    struct {
        struct ibv_cq       *cq;
        struct ibv_srq      *srq;
        uct_nprdma_bounce_t pool;
        unsigned            posted;
        unsigned            payload_offset; /* of AM data in a slot */
        unsigned            headroom;
    } rx;

    uct_nprdma_stats_t      stats;
    uct_nprdma_cm_t         cm;

    uct_nprdma_conn_t       **conns;        /* by index of the id */
    unsigned                num_conns;      /* size of that table */
    ucs_list_link_t         eps;
    ucs_list_link_t         closing;        /* connections without endpoint */

    struct ibv_comp_channel *channel;       /* of both CQs */
    int                     event_fd;       /* epoll: channel and cm */
    uint8_t                 port_num;
    uct_nprdma_dev_addr_t   dev_addr;
    uct_nprdma_iface_addr_t iface_addr;

    struct {
        size_t              max_bcopy;      /* of AM; slots are a bit larger */
        uint32_t            max_inline;     /* WR payload that goes inline */
        uint32_t            tx_queue_len;
        uint32_t            tx_moderation;
        uint32_t            svc_queue_len;  /* SVC: send WRs and own receives */
        int32_t             tx_cq_len;
        unsigned            rx_max_batch;
    } config;
} uct_nprdma_iface_t;


static inline uct_nprdma_md_t *uct_nprdma_iface_md(uct_nprdma_iface_t *iface)
{
    return ucs_derived_of(iface->super.md, uct_nprdma_md_t);
}


/**
 * @return Whether one more WR may be posted on a connection. When not, and the
 *         reason is shared by the interface, notes that for the dispatcher of
 *         pending requests.
 */
static inline int
uct_nprdma_conn_can_post(uct_nprdma_iface_t *iface, uct_nprdma_conn_t *conn)
{
    if (ucs_unlikely(conn->credits <= 0)) {
        return 0;
    }
    if (ucs_unlikely(iface->tx.cq_avail <= 0)) {
        iface->tx.starved = 1;
        return 0;
    }
    return 1;
}


/** @return A slot to send from, or NULL, which the dispatcher is told of. */
static inline uct_nprdma_slot_t *
uct_nprdma_iface_tx_slot(uct_nprdma_iface_t *iface)
{
    uct_nprdma_slot_t *slot = uct_nprdma_bounce_get(&iface->tx.pool);

    if (ucs_unlikely(slot == NULL)) {
        iface->tx.starved = 1;
    }
    return slot;
}


/**
 * Post one WR on a connection for which uct_nprdma_conn_can_post() is true.
 * wr_id and IBV_SEND_SIGNALED are decided here (other send_flags, such as
 * IBV_SEND_INLINE, are the caller's).
 *
 * @param [in] iface   Interface.
 * @param [in] conn    Connection.
 * @param [in] wr      The work request; next is NULL.
 * @param [in] op      Called back when it is done; NULL for nobody.
 * @param [in] signal  Ask for its completion at once. Without it the op is
 *                     called back when a later WR of the connection completes:
 *                     at the latest after tx_moderation of them, so whoever
 *                     waits for an op must set this on it or on a later WR.
 *
 * @return UCS_OK, or UCS_ERR_IO_ERROR after which the op is not queued and
 *         the connection will be failed by progress.
 */
ucs_status_t
uct_nprdma_conn_post(uct_nprdma_iface_t *iface, uct_nprdma_conn_t *conn,
                     struct ibv_send_wr *wr, uct_nprdma_op_t *op, int signal);


/**
 * Post one receive on the own RQ of an SVC connection. Its completion goes to
 * uct_nprdma_rma_handle_reply(iface, conn, index, wc).
 *
 * @param [in] conn   Connection of kind SVC with a QP (any state).
 * @param [in] slot   Where the reply goes; slot->data, whole slot.
 * @param [in] index  Number of the caller's choice, below 2^31.
 *
 * @return UCS_OK or UCS_ERR_IO_ERROR.
 */
ucs_status_t
uct_nprdma_conn_post_recv(uct_nprdma_iface_t *iface, uct_nprdma_conn_t *conn,
                          uct_nprdma_slot_t *slot, uint32_t index);


extern ucs_config_field_t uct_nprdma_iface_config_table[];

UCS_CLASS_DECLARE(uct_nprdma_iface_t, uct_md_h, uct_worker_h,
                  const uct_iface_params_t *, const uct_iface_config_t *);

UCS_CLASS_DECLARE_NEW_FUNC(uct_nprdma_iface_t, uct_iface_t, uct_md_h,
                           uct_worker_h, const uct_iface_params_t *,
                           const uct_iface_config_t *);

#endif
