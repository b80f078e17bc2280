/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_NET_H_
#define UCT_NPRDMA_NET_H_

#include "nprdma_bounce.h"
#include "nprdma_cm_types.h"
#include "nprdma_conn_types.h"
#include "nprdma_counters.h"
#include "nprdma_device.h"

#include "uct/ib/nprdma/compat/nprdma_compat.h"

/* The part of an interface and of an endpoint that sends and receives: queues,
 * connections and wire-up. nprdma_rma adds put and get, base the rest. */

typedef struct uct_nprdma_net_iface uct_nprdma_net_iface_t;
typedef struct uct_nprdma_net_ep    uct_nprdma_net_ep_t;

struct uct_nprdma_executed;
struct uct_nprdma_service_conn;

/* Entries of the send CQ beyond the credits: for last messages of endpoints,
 * which get half of them, and for empty WRITEs */
#define UCT_NPRDMA_TX_CQ_SLACK   1024

/* Receives for replies that all connections of an interface have posted, at
 * most */
#define UCT_NPRDMA_RX_CQ_REPLIES 1024


/* Functions that this floor calls in the floors above it. None is called in the
 * fast path. */
typedef struct uct_nprdma_net_ops {
    /* A connection of an endpoint has failed. From progress. */
    void         (*failed)(uct_nprdma_net_iface_t *iface,
                           uct_nprdma_net_ep_t *ep, ucs_status_t status);

    /* Wire-up of the connection of kind BULK of an endpoint has failed. It is
     * in state NONE again. From progress. */
    void         (*no_bulk)(uct_nprdma_net_iface_t *iface,
                            uct_nprdma_net_ep_t *ep, ucs_status_t status);

    /* Build the last message of an SVC connection, of UCT_NPRDMA_FIN_MAX bytes
     * at most */
    size_t       (*build_fin)(uct_nprdma_net_ep_t *ep, void *buf);

    /* A peer connects. What it sent on an earlier connection, which it has
     * left, is executed no more. UCS_ERR_NO_RESOURCE: try later */
    ucs_status_t (*svc_settle)(uct_nprdma_net_iface_t *iface);

    /* Create the responder's side of an SVC connection, with the async context
     * blocked. `executed` counts its requests; NULL: no messages follow
     * requests. */
    ucs_status_t (*svc_accept)(uct_nprdma_net_iface_t *iface,
                               const uct_nprdma_qp_addr_t *peer,
                               uint32_t local_psn,
                               struct uct_nprdma_executed *executed,
                               struct uct_nprdma_service_conn **conn_p,
                               uint32_t *qpn_p);

    void         (*svc_release)(uct_nprdma_net_iface_t *iface,
                                struct uct_nprdma_service_conn *conn);

    /* Probe the requester's QP. Returns at once. */
    void         (*svc_probe)(uct_nprdma_net_iface_t *iface,
                              struct uct_nprdma_service_conn *conn);

    /* Only svc_release() remains */
    int          (*svc_is_closed)(const struct uct_nprdma_service_conn *conn);
} uct_nprdma_net_ops_t;


/* One port, as one worker uses it */
struct uct_nprdma_net_iface {
    uct_base_iface_t           super;
    const uct_nprdma_net_ops_t *ops;

    struct {
        struct ibv_cq          *cq;
        int32_t                cq_avail;     /* free, for completions */
        uint32_t               unsignaled;   /* of all connections */
        uct_nprdma_bounce_t    pool;         /* slots to send from */
        unsigned               num_awaited;  /* that operations wait for */
        /* A post failed for lack of a resource that connections share */
        int                    starved;
        /* Dispatching stopped for lack of it, and none has been returned
         * since */
        int                    exhausted;
        int                    reap;         /* see uct_nprdma_ep_reap() */
        int                    post_failed;  /* some connection is broken */
        /* Its pending requests are being dispatched: do not schedule it */
        uct_nprdma_net_ep_t    *dispatching;
        ucs_arbiter_t          arbiter;
    } tx;

    struct {
        struct ibv_cq          *cq;          /* of messages and of replies */
        struct ibv_srq         *srq;         /* of messages */
        /* Endpoints of peers with messages that wait for requests */
        ucs_list_link_t        waiting;
    } rx;

    uct_nprdma_stats_t         *stats;       /* values of the counters */
    uct_nprdma_counters_t      counters;
    uct_nprdma_cm_t            cm;
    int                        forked;       /* in a child: not used there */

    uct_nprdma_conn_entry_t    *conns;       /* indexed by the id's index */
    unsigned                   num_conns;    /* size of that table */
    uint32_t                   last_free;    /* entry that was freed last */
    unsigned                   num_bulk;     /* connections of kind BULK */
    ucs_list_link_t            eps;

    struct ibv_comp_channel    *channel;     /* of both CQs */
    uint8_t                    port_num;
    uct_nprdma_dev_addr_t      dev_addr;
    uct_nprdma_iface_addr_t    iface_addr;

    struct {
        uint32_t               max_inline;   /* bytes of inline payload */
        uint32_t               tx_queue_len;
        uint32_t               tx_moderation;
        uint32_t               max_unsignaled; /* of all connections */
        /* Of SVC: send WRs, and receives of the own RQ */
        uint32_t               svc_queue_len;
        int32_t                tx_cq_len;
    } config;
};


/* Reasons why an endpoint refuses operations */
enum {
    UCT_NPRDMA_EP_PENDING = 1 << 0, /* requests are queued and come first */
    /* AM and optimistic RMA wait for the RMA before a fence */
    UCT_NPRDMA_EP_FENCED  = 1 << 1,
    /* The error handler has been or will be called */
    UCT_NPRDMA_EP_FAILED  = 1 << 2,
    /* Requests to the service wait as well */
    UCT_NPRDMA_EP_FENCED_RMA = 1 << 3,
    UCT_NPRDMA_EP_DESTROYED  = 1 << 4, /* no more callbacks of the user */
    UCT_NPRDMA_EP_BEHIND  = 1 << 5, /* AM may have to wait for earlier puts */

    UCT_NPRDMA_EP_BLOCK_OPS = UCT_NPRDMA_EP_PENDING | UCT_NPRDMA_EP_FENCED |
                              UCT_NPRDMA_EP_FAILED,
    UCT_NPRDMA_EP_BLOCK_RMA = UCT_NPRDMA_EP_PENDING | UCT_NPRDMA_EP_FAILED |
                              UCT_NPRDMA_EP_FENCED_RMA,
    UCT_NPRDMA_EP_BLOCK_AM  = UCT_NPRDMA_EP_BLOCK_OPS | UCT_NPRDMA_EP_BEHIND
};

/* Path to one interface of a peer */
struct uct_nprdma_net_ep {
    uct_base_ep_t           super;
    uint32_t                blocked;    /* UCT_NPRDMA_EP_xx */
    ucs_status_t            status;     /* reason of FAILED */
    union {
        uct_nprdma_conn_t   conns[UCT_NPRDMA_CONN_KIND_LAST]; /* by kind */
        struct {
            uct_nprdma_conn_t am;       /* from creation of the endpoint */
            uct_nprdma_conn_t svc;      /* from the first RMA or atomic */
            /* Connects beside the first large put or get; may return to state
             * NONE */
            uct_nprdma_conn_t bulk;
        };
    };
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


/* How packets are marked for the network */
static inline const uct_nprdma_path_config_t *
uct_nprdma_conn_path(const uct_nprdma_device_t *dev, uint8_t kind)
{
    return (kind == UCT_NPRDMA_CONN_BULK) ? &dev->config.bulk_path :
                                            &dev->config.path;
}


/* The live connection with this id, or NULL */
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


/* Set the port "device:port" and its address. UCS_ERR_INVALID_PARAM: packets
 * cannot be marked as configured. */
ucs_status_t uct_nprdma_net_iface_set_port(uct_nprdma_net_iface_t *iface,
                                           const char *dev_name);


/* The configuration except max_inline is set; the device may grant fewer inline
 * bytes than wanted. Nothing is left after an error. */
ucs_status_t
uct_nprdma_net_iface_create_queues(uct_nprdma_net_iface_t *iface,
                                   unsigned rx_slots, size_t max_inline);

/* No queue pair uses the queues */
void uct_nprdma_net_iface_destroy_queues(uct_nprdma_net_iface_t *iface);


/* The CQ has room for the completion of a last message */
static inline int
uct_nprdma_net_iface_can_fin(const uct_nprdma_net_iface_t *iface)
{
    return iface->tx.cq_avail > -(UCT_NPRDMA_TX_CQ_SLACK / 2);
}


/* The CQ has room for the completion that tells the end of a failed connection.
 * Last messages leave half of the slack for these. */
static inline int
uct_nprdma_net_iface_can_stop(const uct_nprdma_net_iface_t *iface)
{
    return iface->tx.cq_avail > -UCT_NPRDMA_TX_CQ_SLACK;
}


/* Dispatch the pending requests of an endpoint at the next progress. Called
 * whenever a resource that they may wait for is back: a connection is
 * established, credits, replies, the end of a fence, a failure. */
static inline void uct_nprdma_net_ep_schedule(uct_nprdma_net_iface_t *iface,
                                              uct_nprdma_net_ep_t *ep)
{
    iface->tx.exhausted = 0;
    if (iface->tx.dispatching != ep) {
        ucs_arbiter_group_schedule(&iface->tx.arbiter, &ep->arb_group);
    }
}


/* Everything that was posted on the service connection before the fence is done
 * and verified (ARCHITECTURE 3, fence) */
static inline void uct_nprdma_net_ep_unfence(uct_nprdma_net_iface_t *iface,
                                             uct_nprdma_net_ep_t *ep)
{
    ep->blocked &= ~(UCT_NPRDMA_EP_FENCED | UCT_NPRDMA_EP_FENCED_RMA);
    uct_nprdma_net_ep_schedule(iface, ep);
}


/* Status of an operation that the endpoint refuses, which is counted: that of a
 * failed endpoint, else UCS_ERR_NO_RESOURCE */
ucs_status_t uct_nprdma_net_ep_refusal(uct_nprdma_net_ep_t *ep);

#endif
