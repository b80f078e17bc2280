/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_CONN_H_
#define UCT_NPRDMA_CONN_H_

#include "nprdma_verbs.h"
#include "uct/ib/nprdma/wire/nprdma_wire.h"

#include <ucs/datastruct/queue.h>
#include <ucs/sys/compiler_def.h>
#include <ucs/sys/math.h>
#include <ucs/type/status.h>

struct uct_nprdma_net_iface;
struct uct_nprdma_device;
struct uct_nprdma_net_ep;
struct uct_nprdma_slot;

/*
 * A connection: the requester's RC queue pair of one direction, with the
 * accounting of what was posted on it. The responder's side of it lives in the
 * peer (nprdma_cm for kind AM, nprdma_service for kind SVC).
 *
 * Everything here but the fields marked "cm" belongs to the thread that calls
 * the interface's progress.
 */

typedef struct uct_nprdma_conn uct_nprdma_conn_t;
typedef struct uct_nprdma_op   uct_nprdma_op_t;

typedef enum uct_nprdma_conn_state {
    UCT_NPRDMA_CONN_NONE,       /* no QP yet */
    UCT_NPRDMA_CONN_CONNECTING, /* REQ is on its way */
    UCT_NPRDMA_CONN_CONNECTED,
    UCT_NPRDMA_CONN_FAILED,     /* no more posts; may have WRs to be flushed */
    UCT_NPRDMA_CONN_CLOSING     /* endpoint is gone; waits for its last WR */
} uct_nprdma_conn_state_t;


/**
 * Called when the work request that an op was posted with is done, in posting
 * order, from progress. The op may be reused or freed here.
 *
 * @param [in] iface   Interface of the connection.
 * @param [in] conn    Connection it was posted on. Its ep is NULL when the
 *                     endpoint has been destroyed meanwhile.
 * @param [in] op      The op.
 * @param [in] status  UCS_OK, or why the connection failed. With UCS_OK a SEND
 *                     or RDMA WRITE has been placed at the peer.
 */
typedef void (*uct_nprdma_op_func_t)(struct uct_nprdma_net_iface *iface,
                                     uct_nprdma_conn_t *conn,
                                     uct_nprdma_op_t *op, ucs_status_t status);

/* Embed it in whatever has to know about the end of a work request. */
struct uct_nprdma_op {
    ucs_queue_elem_t      queue;
    uct_nprdma_op_func_t  func;
    uint16_t              sn;       /* of its WR; filled when posted */
};

struct uct_nprdma_conn {
    struct ibv_qp             *qp;
    int32_t                   credits;    /* WRs that may be posted; few while
                                             CONNECTING, 0 unless CONNECTED */
    int32_t                   max_credits;
    int32_t                   reserve;    /* credits that are for redo and
                                             verification only */
    int32_t                   cq_reserve; /* places in the CQ that are left for
                                             connections of the other kind */
    uint16_t                  sn;         /* of the last WR posted */
    uint16_t                  done_sn;    /* of the last WR known done */
    uint16_t                  unsignaled; /* WRs since the last signaled one */
    uint16_t                  moderation; /* one of so many is signaled */
    uint16_t                  num_slots;  /* that its WRs hold */
    uint8_t                   kind;       /* enum uct_nprdma_conn_kind */
    uint8_t                   state;      /* uct_nprdma_conn_state_t */
    uint8_t                   established; /* cm: QP is connected, whatever
                                             progress has seen of it */
    uint8_t                   refused;    /* cm: one of the backlog was: there
                                             is no posting past it */
    uint32_t                  id;         /* see UCT_NPRDMA_CONN_INDEX */
    struct uct_nprdma_net_ep      *ep;        /* NULL: destroyed */
    uint8_t                   broken;     /* progress is to fail it; has no
                                             credits until then */
    uint8_t                   owes_fin;   /* CLOSING: last message is to be
                                             sent yet */
    ucs_queue_head_t          ops;        /* posted, in order */
    ucs_queue_head_t          backlog;    /* see nprdma_backlog.h */
    ucs_status_t              status;     /* why FAILED */
    struct uct_nprdma_cm_conn *cm;        /* cm: while connecting */
};

/*
 * A connection id is an index into the interface's table plus a generation, so
 * that late completions and late packets find nothing.
 */
#define UCT_NPRDMA_CONN_INDEX_BITS   20
#define UCT_NPRDMA_CONN_INDEX(_id)   ((_id) & \
                                      ((1u << UCT_NPRDMA_CONN_INDEX_BITS) - 1))
#define UCT_NPRDMA_CONN_NO_INDEX     UINT32_MAX

/* Entry of the table */
typedef struct uct_nprdma_conn_entry {
    uct_nprdma_conn_t *conn;    /* NULL: free */
    uint32_t          id;       /* of conn, or of the last one here */
    uint32_t          next;     /* free list */
} uct_nprdma_conn_entry_t;

/* Gather elements of a send */
#define UCT_NPRDMA_MAX_SEND_SGE      2

/* WRs of an SVC connection that new operations do not get: what has been
 * started must be verified and redone, whatever the user posts in his
 * callbacks */
#define UCT_NPRDMA_CONN_REDO_WR      4

/* Bytes that the last message of an SVC connection may have */
#define UCT_NPRDMA_FIN_MAX           64

/* UCX has such functions too, but each version has them elsewhere */
static inline size_t uct_nprdma_align_up(size_t value, size_t pow2)
{
    return (value + pow2 - 1) & ~(pow2 - 1);
}


/*
 * wr_id of sends: the connection's id and the sequence number of the WR. wr_id
 * of receives on the interface's receive CQ: a slot pointer (even) for
 * the SRQ; for receives on the own RQ of an SVC connection the id of the
 * connection and a number of the poster's choice.
 */
static inline uint64_t uct_nprdma_wr_id_tx(uint32_t conn_id, uint16_t sn)
{
    return ((uint64_t)conn_id << 32) | sn;
}

static inline uint64_t uct_nprdma_wr_id_svc(uint32_t conn_id, uint32_t index)
{
    return ((uint64_t)conn_id << 32) | (index << 1) | 1;
}

static inline int uct_nprdma_wr_id_is_svc(uint64_t wr_id)
{
    return wr_id & 1;
}

static inline uint32_t uct_nprdma_wr_id_conn(uint64_t wr_id)
{
    return wr_id >> 32;
}

static inline uint32_t uct_nprdma_wr_id_index(uint64_t wr_id)
{
    return (uint32_t)wr_id >> 1;
}


/* QP creation arguments beyond what is always the same. */
typedef struct uct_nprdma_qp_params {
    struct ibv_cq  *send_cq;
    struct ibv_cq  *recv_cq;
    struct ibv_srq *srq;        /* NULL: own RQ */
    uint32_t       max_send_wr;
    uint32_t       max_recv_wr; /* own RQ only */
    uint32_t       max_inline;
    void           *qp_context;
} uct_nprdma_qp_params_t;


/* Of uct_nprdma_qp_connect(): a full receiver is back-pressure */
#define UCT_NPRDMA_RNR_FOREVER  7


/**
 * Create an RC QP and bring it to INIT on a port.
 *
 * @param [in]  dev       Device on whose PD it is created.
 * @param [in]  port_num  Port.
 * @param [in]  params    See uct_nprdma_qp_params_t.
 * @param [out] qp_p      The QP, to be given to verbs->destroy_qp().
 * @param [out] inline_p  Inline size obtained, may be NULL.
 *
 * @return UCS_OK, or UCS_ERR_IO_ERROR / UCS_ERR_NO_MEMORY with a logged reason.
 */
ucs_status_t
uct_nprdma_qp_create(struct uct_nprdma_device *dev, uint8_t port_num,
                     const uct_nprdma_qp_params_t *params, struct ibv_qp **qp_p,
                     uint32_t *inline_p);


/**
 * Bring a QP from INIT to RTS, towards a peer.
 *
 * @param [in] dev        Device of the QP.
 * @param [in] port_num   Port of the QP.
 * @param [in] qp         QP in INIT.
 * @param [in] local_psn  PSN that the peer was or will be told.
 * @param [in] peer       The peer's side.
 * @param [in] rnr_retry  How often a message is sent again that the peer has no
 *                        receive for; UCT_NPRDMA_RNR_FOREVER: until it has one.
 *
 * @return UCS_OK, or UCS_ERR_IO_ERROR with a logged reason.
 */
ucs_status_t
uct_nprdma_qp_connect(struct uct_nprdma_device *dev, uint8_t port_num,
                      struct ibv_qp *qp, uint32_t local_psn,
                      const uct_nprdma_qp_addr_t *peer, uint8_t rnr_retry);


/**
 * Bring a QP to ERR: outstanding WRs complete with flush errors.
 */
void uct_nprdma_qp_to_err(struct uct_nprdma_device *dev, struct ibv_qp *qp);


/**
 * Start connecting. Posting is possible once the state is CONNECTED, which
 * progress brings about together with uct_nprdma_net_ep_schedule().
 *
 * @param [in] iface  Interface.
 * @param [in] ep     Endpoint that the connection is for.
 * @param [in] conn   Connection in state NONE; &ep->am or &ep->svc.
 * @param [in] kind   What for.
 *
 * @return UCS_OK: connecting; or an error with a logged reason.
 */
ucs_status_t
uct_nprdma_conn_start(struct uct_nprdma_net_iface *iface,
                      struct uct_nprdma_net_ep *ep, uct_nprdma_conn_t *conn,
                      enum uct_nprdma_conn_kind kind);


/** @return Number of WRs posted and not known done. */
static inline unsigned
uct_nprdma_conn_outstanding(const uct_nprdma_conn_t *conn)
{
    return (uint16_t)(conn->sn - conn->done_sn);
}

/**
 * @return Nonzero if a WR is on its way that will have a completion, so that
 *         the death of the peer would be noticed. One without may be done.
 */
static inline int uct_nprdma_conn_is_watched(const uct_nprdma_conn_t *conn)
{
    return uct_nprdma_conn_outstanding(conn) > conn->unsignaled;
}


/**
 * Take a connection out of use after an error. Outstanding ops get the status
 * as their WRs are flushed; the user's error handler is called once per
 * endpoint.
 *
 * @param [in] iface   Interface.
 * @param [in] conn    Connection.
 * @param [in] status  Why.
 */
void uct_nprdma_conn_fail(struct uct_nprdma_net_iface *iface,
                          uct_nprdma_conn_t *conn, ucs_status_t status);

/** Let an op be called when everything posted up to now is done. */
static inline void uct_nprdma_conn_add_drain_op(uct_nprdma_conn_t *conn,
                                                uct_nprdma_op_t *op)
{
    op->sn = conn->sn;
    ucs_queue_push(&conn->ops, &op->queue);
}


/** Initialize a connection in state NONE. */
void uct_nprdma_conn_init(uct_nprdma_conn_t *conn);


/** Wire-up has succeeded: the connection may be used. */
void uct_nprdma_conn_connected(struct uct_nprdma_net_iface *iface,
                               uct_nprdma_conn_t *conn);


/**
 * WRs up to a sequence number are done: return their resources and call their
 * ops.
 */
void uct_nprdma_conn_retire(struct uct_nprdma_net_iface *iface,
                            uct_nprdma_conn_t *conn, uint16_t sn,
                            ucs_status_t status);


/**
 * Post a WR that moves nothing, but completes after all before it, and fails
 * if the peer is gone. May use the WRs that are reserved beyond the credits.
 */
ucs_status_t uct_nprdma_conn_post_nop(struct uct_nprdma_net_iface *iface,
                                      uct_nprdma_conn_t *conn,
                                      uct_nprdma_op_t *op);


/**
 * A connection gets no more slots: see to it that those it has come back, or
 * tell the dispatcher if it has none.
 *
 * @param [in] held  How many it has.
 */
void uct_nprdma_conn_no_slot(struct uct_nprdma_net_iface *iface,
                             uct_nprdma_conn_t *conn, unsigned held);

/** The pool is empty: grow it, or as uct_nprdma_conn_no_slot(). */
struct uct_nprdma_slot *
uct_nprdma_conn_tx_slot_slow(struct uct_nprdma_net_iface *iface,
                             uct_nprdma_conn_t *conn);


/**
 * Post one receive on the own RQ of an SVC connection. The wr_id of its
 * completion tells the connection and the index.
 *
 * @param [in] conn   Connection of kind SVC with a QP (any state).
 * @param [in] slot   Where the reply goes; slot->data, whole slot.
 * @param [in] index  Number of the caller's choice, below 2^31.
 *
 * @return UCS_OK or UCS_ERR_IO_ERROR.
 */
ucs_status_t
uct_nprdma_conn_post_recv(struct uct_nprdma_net_iface *iface,
                          uct_nprdma_conn_t *conn, struct uct_nprdma_slot *slot,
                          uint32_t index);


/** A post was refused by the device: note it, progress fails the endpoint. */
void uct_nprdma_conn_post_failed(struct uct_nprdma_net_iface *iface,
                                 uct_nprdma_conn_t *conn, int error);


/** Take a connection out of use without telling the endpoint. */
void uct_nprdma_conn_stop(struct uct_nprdma_net_iface *iface,
                          uct_nprdma_conn_t *conn, ucs_status_t status);


/**
 * The endpoint is going: say goodbye to the peer if there is one, at once or,
 * when many go at a time, as soon as there is room for it
 * (uct_nprdma_conn_release()).
 */
void uct_nprdma_conn_close(struct uct_nprdma_net_iface *iface,
                           uct_nprdma_conn_t *conn);


/**
 * Destroy the QP once no WR is outstanding, and the last message has been sent.
 *
 * @param [in] force  Destroy it even so; ops get the status that it failed
 *                    with, or UCS_ERR_CANCELED.
 *
 * @return Whether the connection is gone.
 */
int uct_nprdma_conn_release(struct uct_nprdma_net_iface *iface,
                            uct_nprdma_conn_t *conn, int force);

#endif
