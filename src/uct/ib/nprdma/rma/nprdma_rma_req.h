/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_RMA_REQ_H_
#define UCT_NPRDMA_RMA_REQ_H_

#include "nprdma_rma_types.h"

#include "uct/ib/nprdma/net/nprdma_conn.h"

#include <ucs/debug/memtrack_int.h>

/*
 * Requests to the service of a peer, and their replies, for which receives are
 * posted. Replies arrive in the order of the requests, and receives are
 * consumed in the order in which they were posted.
 *
 * An endpoint that repeatedly sends a store and waits until it is done posts
 * the receive for the next reply while the store is in flight. This receive is
 * the spare; with it the next store leaves earlier. A posted receive cannot be
 * taken back, so the next reply consumes the spare, whatever it answers. If
 * that reply does not fit, a NOP is sent first, and its reply consumes the
 * spare.
 *
 * The number of spares is limited, and they do not count as awaited replies.
 * Therefore the spare of an endpoint takes nothing from other endpoints, does
 * not keep the process from sleeping, and causes no probes of the peer.
 */

/* Unacknowledged requests, at most, so that sequence numbers can be compared */
#define UCT_NPRDMA_RMA_MAX_UNACKED  UCS_BIT(30)

static inline int uct_nprdma_rma_can_count(const uct_nprdma_rma_t *rma)
{
    return (rma->sn - rma->done_sn) < UCT_NPRDMA_RMA_MAX_UNACKED;
}


/* Longest operation in bytes that is one request and one reply */
static inline uint32_t
uct_nprdma_rma_max_payload(const uct_nprdma_rma_iface_t *iface)
{
    return ucs_min(uct_nprdma_net_dev(&iface->net)->config.max_piece,
                   UCT_NPRDMA_SVC_MAX_PAYLOAD);
}


/* uct_nprdma_conn_admit_post() for a request of a connected endpoint */
static inline int
uct_nprdma_rma_admit_post(uct_nprdma_rma_iface_t *iface, uct_nprdma_rma_t *rma)
{
    return uct_nprdma_conn_admit_post(&iface->net, &rma->ep->net.svc) &&
           uct_nprdma_rma_can_count(rma);
}


/* uct_nprdma_rma_admit_post() for a large operation, on its connection, which
 * leaves WRs to small ones. The backlog of a connection that is being made is
 * too short for that. */
static inline int
uct_nprdma_rma_admit_large(uct_nprdma_rma_iface_t *iface, uct_nprdma_rma_t *rma,
                           const uct_nprdma_conn_t *conn)
{
    return ((conn->credits > conn->small_reserve) ||
            (conn->state != UCT_NPRDMA_CONN_CONNECTED)) &&
           uct_nprdma_conn_admit_post(&iface->net, conn) &&
           uct_nprdma_rma_can_count(rma);
}


/* uct_nprdma_conn_admit_redo() for an endpoint's requests */
int uct_nprdma_rma_admit_redo(uct_nprdma_rma_iface_t *iface,
                              uct_nprdma_rma_t *rma, int32_t count);


/* Slow path of uct_nprdma_rma_get_slot(): few slots are free */
uct_nprdma_slot_t *uct_nprdma_rma_get_slot_slow(uct_nprdma_rma_iface_t *iface,
                                                uct_nprdma_rma_t *rma,
                                                int is_redo);


/* Slots for data that an endpoint has */
static inline unsigned uct_nprdma_rma_held_slots(const uct_nprdma_rma_t *rma)
{
    return rma->num_slots + rma->ep->net.svc.num_slots;
}


/* Take a slot for data, or NULL. A caller that receives into it counts it in
 * rma->num_slots. is_redo: for redo or verification, which have a reserve. */
static inline uct_nprdma_slot_t *
uct_nprdma_rma_get_slot(uct_nprdma_rma_iface_t *iface, uct_nprdma_rma_t *rma,
                        int is_redo)
{
    uct_nprdma_bounce_t *pool = &iface->res->pool;

    if (ucs_likely((pool->num_free > UCT_NPRDMA_RMA_REDO_SLOTS) &&
                   uct_nprdma_bounce_has_share(pool,
                                               uct_nprdma_rma_held_slots(rma),
                                               UCT_NPRDMA_RMA_REDO_SLOTS))) {
        return uct_nprdma_bounce_get(pool);
    }

    return uct_nprdma_rma_get_slot_slow(iface, rma, is_redo);
}


/* Fill the header of a request; uct_nprdma_rma_send() sets sn and flags */
static inline void
uct_nprdma_rma_fill_request(uct_nprdma_svc_request_t *request, uint8_t type,
                            uint64_t address, uint64_t key, uint32_t length)
{
    request->type     = type;
    request->flags    = 0;
    request->op       = 0;
    request->reserved = 0;
    request->key      = key;
    request->address  = address;
    request->length   = length;
    request->prefetch = 0;
}


/* Send a request, in the slot if there is one, else inline.
 * uct_nprdma_rma_admit_post() is true. The slot returns to its pool after the
 * send, also on error. After UCS_ERR_IO_ERROR progress fails the connection. */
ucs_status_t uct_nprdma_rma_send(uct_nprdma_rma_iface_t *iface,
                                 uct_nprdma_rma_t *rma,
                                 uct_nprdma_svc_request_t *request,
                                 size_t length, uct_nprdma_slot_t *slot,
                                 uct_nprdma_rma_reply_t *reply);


#define UCT_NPRDMA_RMA_SN_CMP(_sn1, _op, _sn2) \
    ((int32_t)((_sn1) - (_sn2)) _op 0)


/* Make sure that a reply acknowledges all requests up to now. After
 * UCS_ERR_IO_ERROR progress fails the connection. */
ucs_status_t uct_nprdma_rma_request_ack(uct_nprdma_rma_iface_t *iface,
                                        uct_nprdma_rma_t *rma);


/* Reserve the resources to send a short request: none if it can be sent
 * inline */
static inline int uct_nprdma_rma_small_slot(uct_nprdma_rma_iface_t *iface,
                                            uct_nprdma_rma_t *rma,
                                            size_t length, int is_redo,
                                            uct_nprdma_slot_t **slot_p)
{
    if (ucs_likely(length <= iface->net.config.max_inline)) {
        *slot_p = NULL;
        return 1;
    }

    *slot_p = uct_nprdma_rma_get_slot(iface, rma, is_redo);
    return *slot_p != NULL;
}

static inline void uct_nprdma_rma_small_slot_put(uct_nprdma_slot_t *slot)
{
    if (ucs_unlikely(slot != NULL)) {
        uct_nprdma_bounce_put(slot);
    }
}

/* As uct_nprdma_rma_send(), for a request that is not in the slot yet */
static inline ucs_status_t
uct_nprdma_rma_send_small(uct_nprdma_rma_iface_t *iface, uct_nprdma_rma_t *rma,
                          uct_nprdma_svc_request_t *request, size_t length,
                          uct_nprdma_slot_t *slot,
                          uct_nprdma_rma_reply_t *reply)
{
    if (ucs_unlikely(slot != NULL)) {
        memcpy(slot->data, request, length);
        request = (uct_nprdma_svc_request_t*)slot->data;
    }
    return uct_nprdma_rma_send(iface, rma, request, length, slot, reply);
}


/* Let progress continue an endpoint that lacked resources */
void uct_nprdma_rma_stall(uct_nprdma_rma_res_t *res,
                          uct_nprdma_rma_t *rma);


/* Keep the RMA side of an endpoint during callbacks of the user */
static inline void uct_nprdma_rma_enter(uct_nprdma_rma_t *rma)
{
    ++rma->busy;
}

/* The RMA side may be freed */
static inline void uct_nprdma_rma_leave(uct_nprdma_rma_t *rma)
{
    if ((--rma->busy == 0) && ucs_unlikely(rma->ep == NULL)) {
        ucs_free(rma);
    }
}


/* A reply with this payload needs no slot for data */
static inline int uct_nprdma_rma_is_small(uint32_t length)
{
    return (sizeof(uct_nprdma_svc_reply_t) + length) <=
           UCT_NPRDMA_RMA_SMALL_SLOT;
}


/* Take a reply with a posted receive, or NULL. The caller sets the
 * fields of its kind, and must send the request next. `slot` is the caller's
 * slot for data, into which the reply is received, and which the caller keeps
 * until the reply is freed at least; or NULL. */
uct_nprdma_rma_reply_t *
uct_nprdma_rma_reply_add(uct_nprdma_rma_iface_t *iface, uct_nprdma_rma_t *rma,
                         uint32_t length,
                         const uct_nprdma_rma_kind_t *kind,
                         int is_redo, uct_nprdma_slot_t *slot);


/* The request is one of a large operation, and has a slot for data: for its
 * reply or its message. The slot counts in rma->num_large_slots while the reply
 * is awaited. See uct_nprdma_rma_copy_may_take(). */
void uct_nprdma_rma_reply_set_large(uct_nprdma_rma_res_t *res,
                                    uct_nprdma_rma_reply_t *reply);


/* The queue pair receives no more */
void uct_nprdma_rma_spare_free(uct_nprdma_rma_res_t *res,
                               uct_nprdma_rma_t *rma);


/* Log an operation that failed at the target. Many users do not check the
 * status of each operation, so the first failure of an endpoint is logged as an
 * error, later ones for debugging. */
void uct_nprdma_rma_report(uct_nprdma_rma_iface_t *iface, uct_nprdma_rma_t *rma,
                           const char *name, uint64_t address, size_t length,
                           ucs_status_t status);


/* The same for the part of a local buffer that could not be accessed */
void uct_nprdma_rma_report_local(uct_nprdma_rma_iface_t *iface,
                                 uct_nprdma_rma_t *rma, int is_get,
                                 const void *buffer, size_t length);


/* Report an operation, with the part of both memories, that a device with
 * on-demand paging could not execute. It ends its endpoint. Other reasons than
 * the memory are not reported here. */
void uct_nprdma_rma_report_on_demand(uct_nprdma_rma_iface_t *iface,
                                     uct_nprdma_rma_t *rma, int is_get,
                                     const void *buffer, uint64_t address,
                                     size_t length, ucs_status_t status);


/* Handle the completion of a receive of uct_nprdma_conn_post_recv() */
unsigned
uct_nprdma_rma_handle_reply(uct_nprdma_rma_iface_t *iface,
                            uct_nprdma_conn_t *conn, uint32_t index,
                            const struct ibv_wc *wc);


/* End the first awaited reply of an endpoint, with its payload or an error. The
 * endpoint may be destroyed in the call; the caller keeps its RMA side by
 * uct_nprdma_rma_enter(). */
void uct_nprdma_rma_reply_end(uct_nprdma_rma_iface_t *iface,
                              uct_nprdma_rma_t *rma,
                              uct_nprdma_rma_reply_t *reply, const void *data,
                              ucs_status_t status);

#endif
