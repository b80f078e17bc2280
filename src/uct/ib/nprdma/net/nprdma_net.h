/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_NET_H_
#define UCT_NPRDMA_NET_H_

#include "nprdma_bounce.h"
#include "nprdma_cm_types.h"
#include "nprdma_conn_types.h"
#include "nprdma_counters.h"
#include "nprdma_device.h"

#include "uct/ib/nprdma/compat/nprdma_compat.h"

/*
 * The part of an interface and of an endpoint that sends and receives: queues,
 * connections and wire-up. nprdma_rma adds put and get, base the rest.
 */

typedef struct uct_nprdma_net_iface uct_nprdma_net_iface_t;
typedef struct uct_nprdma_net_ep    uct_nprdma_net_ep_t;

struct uct_nprdma_service_conn;

/* Completion queue entries beyond what credits account for: last messages of
 * endpoints, which get half of them, and empty writes */
#define UCT_NPRDMA_TX_CQ_SLACK   1024

/* Receives for replies that all connections of an interface may have posted */
#define UCT_NPRDMA_RX_CQ_REPLIES 1024


/* What this floor reports to those above it, and asks of them. None of it is
 * called for an operation that goes well. */
typedef struct uct_nprdma_net_ops {
    /** A connection of an endpoint cannot be used any more. From progress. */
    void         (*failed)(uct_nprdma_net_iface_t *iface,
                           uct_nprdma_net_ep_t *ep, ucs_status_t status);

    /**
     * Build the last message of an SVC connection.
     *
     * @param [in]  ep   Endpoint.
     * @param [out] buf  UCT_NPRDMA_FIN_MAX bytes.
     *
     * @return Bytes to send.
     */
    size_t       (*build_fin)(uct_nprdma_net_ep_t *ep, void *buf);

    /**
     * Create the responder's side of an SVC connection. With the async context
     * blocked.
     *
     * @param [in]  iface      Interface that the peer has asked.
     * @param [in]  peer       The requester's side.
     * @param [in]  local_psn  PSN that the requester will be told.
     * @param [out] conn_p     The connection, to be given to svc_release().
     * @param [out] qpn_p      Queue pair number that the requester is told.
     *
     * @return UCS_OK; UCS_ERR_NO_RESOURCE: the requester should try again; or
     *         another error with a logged reason.
     */
    ucs_status_t (*svc_accept)(uct_nprdma_net_iface_t *iface,
                               const uct_nprdma_qp_addr_t *peer,
                               uint32_t local_psn,
                               struct uct_nprdma_service_conn **conn_p,
                               uint32_t *qpn_p);

    /** Drop what svc_accept() has created. */
    void         (*svc_release)(uct_nprdma_net_iface_t *iface,
                                struct uct_nprdma_service_conn *conn);

    /** Find out whether the requester is still there. Returns at once. */
    void         (*svc_probe)(uct_nprdma_net_iface_t *iface,
                              struct uct_nprdma_service_conn *conn);

    /** @return Nonzero if only svc_release() remains. */
    int          (*svc_is_closed)(const struct uct_nprdma_service_conn *conn);
} uct_nprdma_net_ops_t;


/* One port as used by one worker. */
struct uct_nprdma_net_iface {
    uct_base_iface_t           super;
    const uct_nprdma_net_ops_t *ops;

    struct {
        struct ibv_cq          *cq;
        int32_t                cq_avail;     /* WRs that the CQ has room for */
        uint32_t               unsignaled;   /* of all connections */
        uct_nprdma_bounce_t    pool;         /* slots to send from */
        unsigned               num_awaited;  /* completions that an operation
                                                needs to go on */
        int                    starved;      /* a post failed for want of what
                                                the interface shares */
        int                    in_vain;      /* dispatching stopped for that
                                                reason, and nothing came back
                                                since */
        int                    reap;         /* see uct_nprdma_ep_reap() */
        int                    post_failed;  /* some connection is broken */
        uct_nprdma_net_ep_t    *dispatching; /* its pending requests are being
                                                tried: it is scheduled */
        ucs_arbiter_t          arbiter;
    } tx;

    struct {
        struct ibv_cq          *cq;          /* of messages and replies */
        struct ibv_srq         *srq;         /* of messages */
    } rx;

    uct_nprdma_stats_t         stats;
    uct_nprdma_cm_t            cm;
    int                        forked;       /* this is a child's copy, to be
                                                left alone */

    uct_nprdma_conn_entry_t    *conns;       /* by index of the id */
    unsigned                   num_conns;    /* size of that table */
    uint32_t                   free_conn;    /* first free entry */
    ucs_list_link_t            eps;

    struct ibv_comp_channel    *channel;     /* of both CQs */
    uint8_t                    port_num;
    uct_nprdma_dev_addr_t      dev_addr;
    uct_nprdma_iface_addr_t    iface_addr;

    struct {
        uint32_t               max_inline;   /* WR payload that goes inline */
        uint32_t               tx_queue_len;
        uint32_t               tx_moderation;
        uint32_t               max_unsignaled; /* of all connections */
        uint32_t               svc_queue_len;  /* SVC: send WRs and own
                                                  receives */
        int32_t                tx_cq_len;
    } config;
};


/* Why an endpoint refuses operations for now (or for good). */
enum {
    UCT_NPRDMA_EP_PENDING = 1 << 0, /* requests are queued: keep the order */
    UCT_NPRDMA_EP_FENCED  = 1 << 1, /* AM and optimistic RMA wait for the RMA
                                       before a fence */
    UCT_NPRDMA_EP_FAILED  = 1 << 2, /* error handler has been or will be told */
    UCT_NPRDMA_EP_FENCED_RMA = 1 << 3, /* requests to the service wait, too */
    UCT_NPRDMA_EP_DESTROYED  = 1 << 4, /* the user does not hear of it any
                                          more */

    UCT_NPRDMA_EP_BLOCK_AM  = UCT_NPRDMA_EP_PENDING | UCT_NPRDMA_EP_FENCED |
                              UCT_NPRDMA_EP_FAILED,
    UCT_NPRDMA_EP_BLOCK_RMA = UCT_NPRDMA_EP_PENDING | UCT_NPRDMA_EP_FAILED |
                              UCT_NPRDMA_EP_FENCED_RMA,
    UCT_NPRDMA_EP_BLOCK_OPT = UCT_NPRDMA_EP_BLOCK_AM
};

/* The way to one peer interface. */
struct uct_nprdma_net_ep {
    uct_base_ep_t           super;
    uint32_t                blocked;    /* UCT_NPRDMA_EP_xx */
    ucs_status_t            status;     /* why FAILED */
    uct_nprdma_conn_t       am;         /* connected when ep is created */
    uct_nprdma_conn_t       svc;        /* on the first RMA or atomic */
    ucs_arbiter_group_t     arb_group;  /* pending requests */
    ucs_list_link_t         list;       /* iface->eps */
    uct_nprdma_dev_addr_t   dev_addr;   /* of the peer */
    uct_nprdma_iface_addr_t iface_addr;
};


UCS_CLASS_DECLARE(uct_nprdma_net_iface_t, const uct_nprdma_net_ops_t *,
                  uct_iface_ops_t *, uct_iface_internal_ops_t *, uct_md_h,
                  uct_worker_h, const uct_iface_params_t *,
                  const uct_iface_config_t *);

UCS_CLASS_DECLARE(uct_nprdma_net_ep_t, const uct_ep_params_t *);


static inline uct_nprdma_device_t *
uct_nprdma_net_dev(const uct_nprdma_net_iface_t *iface)
{
    return ucs_derived_of(iface->super.md, uct_nprdma_device_t);
}


/** @return The live connection with this id, or NULL. */
static inline uct_nprdma_conn_t *
uct_nprdma_conn_find(uct_nprdma_net_iface_t *iface, uint32_t conn_id)
{
    uint32_t idx = UCT_NPRDMA_CONN_INDEX(conn_id);

    if (ucs_unlikely((idx >= iface->num_conns) ||
                     (iface->conns[idx].id != conn_id))) {
        return NULL;
    }
    return iface->conns[idx].conn;
}


/**
 * Find the port of an interface.
 *
 * @param [in] iface     Interface; its port and address are filled.
 * @param [in] dev_name  "device:port".
 *
 * @return UCS_OK, or UCS_ERR_NO_DEVICE or UCS_ERR_IO_ERROR with a logged
 *         reason.
 */
ucs_status_t uct_nprdma_net_iface_set_port(uct_nprdma_net_iface_t *iface,
                                           const char *dev_name);


/**
 * Create the queues of an interface, which has its configuration but for
 * max_inline.
 *
 * @param [in] iface       Interface; max_inline is filled.
 * @param [in] rx_slots    Receives on the SRQ, at most.
 * @param [in] max_inline  Bytes that go inline, if the device grants them.
 *
 * @return UCS_OK, or an error with a logged reason; nothing is left then.
 */
ucs_status_t
uct_nprdma_net_iface_create_queues(uct_nprdma_net_iface_t *iface,
                                   unsigned rx_slots, size_t max_inline);

/** Undo uct_nprdma_net_iface_create_queues(). No queue pair uses them. */
void uct_nprdma_net_iface_destroy_queues(uct_nprdma_net_iface_t *iface);


/** @return Whether there is room for the completion of a last message. */
static inline int
uct_nprdma_net_iface_can_fin(const uct_nprdma_net_iface_t *iface)
{
    return iface->tx.cq_avail > -(UCT_NPRDMA_TX_CQ_SLACK / 2);
}


/**
 * Try the pending requests of an endpoint again at the next progress. To be
 * called whenever something that they may wait for has come back: connection
 * established, credits, replies, end of a fence, failure.
 */
static inline void uct_nprdma_net_ep_schedule(uct_nprdma_net_iface_t *iface,
                                              uct_nprdma_net_ep_t *ep)
{
    iface->tx.in_vain = 0;
    if (iface->tx.dispatching != ep) {
        ucs_arbiter_group_schedule(&iface->tx.arbiter, &ep->arb_group);
    }
}


/**
 * The fence of an endpoint has been reached: everything of the service
 * connection that was posted before it is done and verified.
 */
static inline void uct_nprdma_net_ep_unfence(uct_nprdma_net_iface_t *iface,
                                             uct_nprdma_net_ep_t *ep)
{
    ep->blocked &= ~(UCT_NPRDMA_EP_FENCED | UCT_NPRDMA_EP_FENCED_RMA);
    uct_nprdma_net_ep_schedule(iface, ep);
}


/**
 * Status of an operation on an endpoint that refuses it.
 *
 * @return The failure of the endpoint, else UCS_ERR_NO_RESOURCE.
 */
ucs_status_t uct_nprdma_net_ep_refusal(uct_nprdma_net_ep_t *ep);

#endif
