/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_rma.h"
#include "nprdma_held.h"
#include "nprdma_initiator.h"
#include "uct/ib/nprdma/mem/nprdma_mem.h"

#include "ucm/access/nprdma_access.h"

/* Maximum number of bytes of put_short, whatever the device can send inline */
#define UCT_NPRDMA_RMA_MAX_SHORT  256


/* Atomics by their UCT codes */
static const uint8_t uct_nprdma_rma_atomic_ops[] = {
    [UCT_ATOMIC_OP_ADD]   = NPRDMA_ATOMIC_ADD,
    [UCT_ATOMIC_OP_AND]   = NPRDMA_ATOMIC_AND,
    [UCT_ATOMIC_OP_OR]    = NPRDMA_ATOMIC_OR,
    [UCT_ATOMIC_OP_XOR]   = NPRDMA_ATOMIC_XOR,
    [UCT_ATOMIC_OP_SWAP]  = NPRDMA_ATOMIC_SWAP,
    [UCT_ATOMIC_OP_CSWAP] = NPRDMA_ATOMIC_CSWAP
};


static inline uct_nprdma_rma_ep_t *uct_nprdma_rma_ep(uct_ep_h tl_ep)
{
    return ucs_derived_of(tl_ep, uct_nprdma_rma_ep_t);
}

static inline uct_nprdma_rma_iface_t *uct_nprdma_rma_ep_iface(uct_ep_h tl_ep)
{
    return ucs_derived_of(tl_ep->iface, uct_nprdma_rma_iface_t);
}

static size_t uct_nprdma_rma_max_short(const uct_nprdma_rma_iface_t *iface)
{
    size_t max_message = ucs_max(iface->net.config.max_inline,
                                 sizeof(uct_nprdma_svc_request_t));

    return ucs_min(max_message - sizeof(uct_nprdma_svc_request_t),
                   (size_t)UCT_NPRDMA_RMA_MAX_SHORT);
}

void uct_nprdma_rma_query(uct_nprdma_rma_iface_t *iface, uct_iface_attr_t *attr)
{
    uint64_t ops  = UCS_BIT(UCT_ATOMIC_OP_ADD) | UCS_BIT(UCT_ATOMIC_OP_AND) |
                    UCS_BIT(UCT_ATOMIC_OP_OR) | UCS_BIT(UCT_ATOMIC_OP_XOR);
    uint64_t fops = ops | UCS_BIT(UCT_ATOMIC_OP_SWAP) |
                    UCS_BIT(UCT_ATOMIC_OP_CSWAP);

    attr->cap.flags |= UCT_IFACE_FLAG_PUT_SHORT | UCT_IFACE_FLAG_PUT_BCOPY |
                       UCT_IFACE_FLAG_PUT_ZCOPY | UCT_IFACE_FLAG_GET_BCOPY |
                       UCT_IFACE_FLAG_GET_ZCOPY |
                       UCT_IFACE_FLAG_ATOMIC_DEVICE;

    attr->cap.put.max_short       = uct_nprdma_rma_max_short(iface);
    attr->cap.put.max_bcopy       = uct_nprdma_rma_max_payload(iface);
    /* UCP 1.13 can put lists of buffers only in this way, so there is no
     * minimum. A small one is a single STORE like any other small put
     * (ARCHITECTURE 3, exactly once). */
    attr->cap.put.min_zcopy       = 0;
    attr->cap.put.max_zcopy       = SIZE_MAX;
    attr->cap.put.opt_zcopy_align = 1;
    attr->cap.put.align_mtu       = 1;
    attr->cap.put.max_iov         = UCT_NPRDMA_OP_MAX_IOV;

    attr->cap.get.max_short       = 0;
    attr->cap.get.max_bcopy       = uct_nprdma_rma_max_payload(iface);
    attr->cap.get.min_zcopy       = 0;
    attr->cap.get.max_zcopy       = SIZE_MAX;
    attr->cap.get.opt_zcopy_align = 1;
    attr->cap.get.align_mtu       = 1;
    attr->cap.get.max_iov         = UCT_NPRDMA_OP_MAX_IOV;

    attr->cap.atomic32.op_flags   = ops;
    attr->cap.atomic32.fop_flags  = fops;
    attr->cap.atomic64.op_flags   = ops;
    attr->cap.atomic64.fop_flags  = fops;
}

static void uct_nprdma_rma_count(uct_nprdma_rma_iface_t *iface, int is_get,
                                 size_t length)
{
    if (is_get) {
        ++iface->net.stats->get;
        iface->net.stats->get_bytes += length;
    } else {
        ++iface->net.stats->put;
        iface->net.stats->put_bytes += length;
    }
}

static ucs_status_t uct_nprdma_rma_no_resource(uct_nprdma_rma_iface_t *iface)
{
    ++iface->net.stats->no_resource;
    return UCS_ERR_NO_RESOURCE;
}

static const uct_nprdma_rma_kind_t uct_nprdma_rma_put_kind = {};

/* Put the data behind the header of a slot by one request, or hold it. The
 * target executes it once, because its software may be polling on the bytes,
 * whatever UCT function the put came by (ARCHITECTURE 3, exactly once). */
static UCS_F_ALWAYS_INLINE ucs_status_t
uct_nprdma_rma_put_slot(uct_nprdma_rma_iface_t *iface, uct_nprdma_rma_t *rma,
                        uct_nprdma_slot_t *slot, size_t length,
                        uint64_t remote_addr, uct_rkey_t rkey,
                        uct_completion_t *comp)
{
    uct_nprdma_svc_request_t *request = (uct_nprdma_svc_request_t*)slot->data;
    uct_nprdma_rma_reply_t *reply     = NULL;
    uct_nprdma_held_message_t message;
    ucs_status_t status;

    if (ucs_unlikely(!uct_nprdma_held_is_clear(rma, UCT_NPRDMA_ORDER_SMALL,
                                               remote_addr, length))) {
        uct_nprdma_rma_fill_request(&message.request, UCT_NPRDMA_SVC_STORE,
                                    remote_addr, uct_nprdma_rkey(rkey)->key,
                                    length);
        status = uct_nprdma_held_request(iface, rma, &message,
                                         UCT_NPRDMA_ORDER_SMALL, slot, NULL,
                                         NULL, uct_nprdma_rkey(rkey), comp);
        if (status != UCS_OK) {
            uct_nprdma_bounce_put(slot);
        }
        return status;
    }

    if (comp != NULL) {
        reply = uct_nprdma_rma_reply_add(iface, rma, 0,
                                         &uct_nprdma_rma_put_kind, 0, NULL);
        if (ucs_unlikely(reply == NULL)) {
            uct_nprdma_bounce_put(slot);
            return uct_nprdma_rma_no_resource(iface);
        }
        reply->comp = comp;
    }

    uct_nprdma_rma_fill_request(request, UCT_NPRDMA_SVC_STORE, remote_addr,
                                uct_nprdma_rkey(rkey)->key, length);
    return uct_nprdma_rma_send(iface, rma, request, sizeof(*request) + length,
                               slot, reply);
}

/* Put by one request whose data is gathered in a slot */
static ucs_status_t
uct_nprdma_rma_put_small(uct_nprdma_rma_iface_t *iface, uct_nprdma_rma_t *rma,
                         const uct_iov_t *iov, size_t iovcnt, size_t length,
                         uint64_t remote_addr, uct_rkey_t rkey,
                         uct_completion_t *comp)
{
    uct_nprdma_slot_t *slot = uct_nprdma_rma_get_slot(iface, rma, 0);
    ucs_status_t status;

    if (ucs_unlikely(slot == NULL)) {
        return uct_nprdma_rma_no_resource(iface);
    }

    status = uct_nprdma_local_gather(&iface->local,
                                     (uct_nprdma_svc_request_t*)slot->data + 1,
                                     iov, iovcnt);
    if (ucs_unlikely(status != UCS_OK)) {
        uct_nprdma_bounce_put(slot);
        uct_nprdma_rma_report_local(iface, rma, 0, iov[0].buffer, length);
        return status;
    }

    return uct_nprdma_rma_put_slot(iface, rma, slot, length, remote_addr, rkey,
                                   comp);
}

/* A put of zero bytes completes without checks, but fails if the peer is
 * gone */
static UCS_F_NOINLINE ucs_status_t
uct_nprdma_rma_put_nothing(uct_nprdma_net_iface_t *iface,
                           uct_nprdma_net_ep_t *ep)
{
    if (ep->am.broken) {
        return UCS_OK; /* the connection fails anyway */
    }

    if ((ep->blocked & UCT_NPRDMA_EP_BLOCK_RMA) ||
        !uct_nprdma_conn_admit_post(iface, &ep->am)) {
        return uct_nprdma_net_ep_refusal(ep);
    }

    return uct_nprdma_conn_post_nop(iface, &ep->am, NULL);
}

ucs_status_t uct_nprdma_ep_put_short(uct_ep_h tl_ep, const void *buffer,
                                     unsigned length, uint64_t remote_addr,
                                     uct_rkey_t rkey)
{
    uct_nprdma_rma_iface_t *iface = uct_nprdma_rma_ep_iface(tl_ep);
    uct_nprdma_rma_ep_t *ep       = uct_nprdma_rma_ep(tl_ep);
    struct {
        uct_nprdma_svc_request_t request;
        char                     data[UCT_NPRDMA_RMA_MAX_SHORT];
    } UCS_S_PACKED message;
    ucs_status_t status;
    uct_iov_t iov;

    UCT_CHECK_PARAM(length <= uct_nprdma_rma_max_short(iface),
                    "invalid put_short length: %u, at most %zu", length,
                    uct_nprdma_rma_max_short(iface));

    if (ucs_unlikely(length == 0)) {
        return uct_nprdma_rma_put_nothing(&iface->net, &ep->net);
    }

    status = uct_nprdma_rma_begin(iface, ep, UCT_NPRDMA_EP_BLOCK_RMA);
    if (ucs_unlikely(status != UCS_OK)) {
        return status;
    }

    if (ucs_unlikely(!uct_nprdma_held_is_clear(ep->rma, UCT_NPRDMA_ORDER_SMALL,
                                               remote_addr, length))) {
        iov    = (uct_iov_t){
            .buffer = (void*)buffer,
            .length = length,
            .count  = 1
        };
        status = uct_nprdma_rma_put_small(iface, ep->rma, &iov, 1, length,
                                          remote_addr, rkey, NULL);
    } else {
        uct_nprdma_rma_fill_request(&message.request, UCT_NPRDMA_SVC_STORE,
                                    remote_addr, uct_nprdma_rkey(rkey)->key,
                                    length);
        status = uct_nprdma_local_copy(&iface->local, message.data, buffer,
                                       length, buffer);
        if (ucs_unlikely(status != UCS_OK)) {
            uct_nprdma_rma_report_local(iface, ep->rma, 0, buffer, length);
            return status;
        }

        status = uct_nprdma_rma_send(iface, ep->rma, &message.request,
                                     sizeof(message.request) + length, NULL,
                                     NULL);
    }
    if (ucs_likely(status == UCS_OK)) {
        uct_nprdma_rma_count(iface, 0, length);
    }
    return status;
}

ssize_t uct_nprdma_ep_put_bcopy(uct_ep_h tl_ep, uct_pack_callback_t pack_cb,
                                void *arg, uint64_t remote_addr,
                                uct_rkey_t rkey)
{
    uct_nprdma_rma_iface_t *iface = uct_nprdma_rma_ep_iface(tl_ep);
    uct_nprdma_rma_ep_t *ep       = uct_nprdma_rma_ep(tl_ep);
    uct_nprdma_slot_t *slot;
    ucs_status_t status;
    size_t length;

    status = uct_nprdma_rma_begin(iface, ep, UCT_NPRDMA_EP_BLOCK_RMA);
    if (ucs_unlikely(status != UCS_OK)) {
        return status;
    }

    /* Data can be packed only once, so all resources must be there */
    slot = uct_nprdma_held_has_room(iface, ep->rma) ?
           uct_nprdma_rma_get_slot(iface, ep->rma, 0) : NULL;
    if (ucs_unlikely(slot == NULL)) {
        return uct_nprdma_rma_no_resource(iface);
    }

    length = pack_cb((uct_nprdma_svc_request_t*)slot->data + 1, arg);
    if (ucs_unlikely(length == 0)) {
        uct_nprdma_bounce_put(slot);
        return 0;
    }

    ucs_assert(length <= uct_nprdma_rma_max_payload(iface));
    status = uct_nprdma_rma_put_slot(iface, ep->rma, slot, length, remote_addr,
                                     rkey, NULL);
    if (ucs_unlikely(status != UCS_OK)) {
        return status;
    }

    uct_nprdma_rma_count(iface, 0, length);
    return length;
}

static UCS_F_ALWAYS_INLINE ucs_status_t
uct_nprdma_rma_zcopy(uct_ep_h tl_ep, int is_get, const uct_iov_t *iov,
                     size_t iovcnt, uint64_t remote_addr, uct_rkey_t rkey,
                     uct_completion_t *comp)
{
    uct_nprdma_rma_iface_t *iface = uct_nprdma_rma_ep_iface(tl_ep);
    uct_nprdma_rma_ep_t *ep       = uct_nprdma_rma_ep(tl_ep);
    ucs_status_t status;
    size_t length;
    int is_small;

    length   = uct_iov_total_length(iov, iovcnt);
    is_small = !is_get && (length <= uct_nprdma_rma_max_payload(iface));
    status   = uct_nprdma_rma_begin(iface, ep,
                                    is_small ? UCT_NPRDMA_EP_BLOCK_RMA :
                                               UCT_NPRDMA_EP_BLOCK_OPS);
    if (ucs_unlikely(status != UCS_OK)) {
        return status;
    }

    if (ucs_unlikely(length == 0)) {
        return UCS_OK;
    }

    if (is_small) {
        status = uct_nprdma_rma_put_small(iface, ep->rma, iov, iovcnt, length,
                                          remote_addr, rkey, comp);
        status = (status == UCS_OK) ? UCS_INPROGRESS : status;
    } else {
        status = uct_nprdma_op_zcopy(iface, ep->rma, is_get, iov, iovcnt,
                                     remote_addr, uct_nprdma_rkey(rkey), comp);
    }
    if (ucs_likely(status == UCS_INPROGRESS)) {
        iface->res->ops.num_large += !is_small &&
                                     uct_nprdma_op_is_large(iface, length);
        uct_nprdma_rma_count(iface, is_get, length);
    }
    return status;
}

ucs_status_t uct_nprdma_ep_put_zcopy(uct_ep_h tl_ep, const uct_iov_t *iov,
                                     size_t iovcnt, uint64_t remote_addr,
                                     uct_rkey_t rkey, uct_completion_t *comp)
{
    UCT_CHECK_IOV_SIZE(iovcnt, (unsigned long)UCT_NPRDMA_OP_MAX_IOV,
                       "put_zcopy");
    return uct_nprdma_rma_zcopy(tl_ep, 0, iov, iovcnt, remote_addr, rkey, comp);
}

ucs_status_t uct_nprdma_ep_get_zcopy(uct_ep_h tl_ep, const uct_iov_t *iov,
                                     size_t iovcnt, uint64_t remote_addr,
                                     uct_rkey_t rkey, uct_completion_t *comp)
{
    UCT_CHECK_IOV_SIZE(iovcnt, (unsigned long)UCT_NPRDMA_OP_MAX_IOV,
                       "get_zcopy");
    return uct_nprdma_rma_zcopy(tl_ep, 1, iov, iovcnt, remote_addr, rkey, comp);
}

/* Send a request with no data but operands behind its header, with a reply
 * unless reply_p is NULL */
static ucs_status_t
uct_nprdma_rma_request_small(uct_nprdma_rma_iface_t *iface,
                             uct_nprdma_rma_ep_t *ep,
                             uct_nprdma_svc_request_t *request, size_t length,
                             const uct_nprdma_rma_kind_t *kind,
                             uct_completion_t *comp,
                             uct_nprdma_rma_reply_t **reply_p)
{
    uct_nprdma_rma_reply_t *reply = NULL;
    uct_nprdma_slot_t *slot;

    if (!uct_nprdma_rma_small_slot(iface, ep->rma, length, 0, &slot)) {
        return uct_nprdma_rma_no_resource(iface);
    }

    if (reply_p != NULL) {
        reply = uct_nprdma_rma_reply_add(iface, ep->rma, request->length, kind,
                                         0, NULL);
        if (ucs_unlikely(reply == NULL)) {
            uct_nprdma_rma_small_slot_put(slot);
            return uct_nprdma_rma_no_resource(iface);
        }

        reply->comp = comp;
        *reply_p    = reply;
    }
    return uct_nprdma_rma_send_small(iface, ep->rma, request, length, slot,
                                     reply);
}

static void
uct_nprdma_rma_get_reply(uct_nprdma_rma_iface_t *iface,
                         uct_nprdma_rma_reply_t *reply, const void *data,
                         ucs_status_t *status)
{
    if (*status == UCS_OK) {
        reply->bcopy.unpack_cb(reply->bcopy.arg, data, reply->length);
    }
}

static const uct_nprdma_rma_kind_t uct_nprdma_rma_get_kind = {
    .func = uct_nprdma_rma_get_reply
};

/* The NIC cannot reach the memory, so the target's software sends the data */
static ucs_status_t
uct_nprdma_rma_get_bcopy_fetch(uct_nprdma_rma_iface_t *iface,
                               uct_nprdma_rma_ep_t *ep,
                               uct_unpack_callback_t unpack_cb, void *arg,
                               size_t length, uint64_t remote_addr,
                               uct_rkey_t rkey, uct_completion_t *comp)
{
    uct_nprdma_held_message_t message;
    uct_nprdma_rma_reply_t *reply;
    ucs_status_t status;

    uct_nprdma_rma_fill_request(&message.request, UCT_NPRDMA_SVC_FETCH,
                                remote_addr, uct_nprdma_rkey(rkey)->key,
                                length);
    if (ucs_unlikely(!uct_nprdma_held_is_clear(ep->rma, UCT_NPRDMA_ORDER_READ,
                                               remote_addr, length))) {
        status = uct_nprdma_held_request(iface, ep->rma, &message,
                                         UCT_NPRDMA_ORDER_READ, NULL, unpack_cb,
                                         arg, uct_nprdma_rkey(rkey), comp);
        return (status == UCS_OK) ? UCS_INPROGRESS : status;
    }

    status = uct_nprdma_rma_request_small(iface, ep, &message.request,
                                          sizeof(message.request),
                                          &uct_nprdma_rma_get_kind, comp,
                                          &reply);
    if (ucs_unlikely(status != UCS_OK)) {
        return status;
    }

    reply->bcopy.unpack_cb = unpack_cb;
    reply->bcopy.arg       = arg;
    return UCS_INPROGRESS;
}

ucs_status_t uct_nprdma_ep_get_bcopy(uct_ep_h tl_ep,
                                     uct_unpack_callback_t unpack_cb, void *arg,
                                     size_t length, uint64_t remote_addr,
                                     uct_rkey_t rkey, uct_completion_t *comp)
{
    uct_nprdma_rma_iface_t *iface = uct_nprdma_rma_ep_iface(tl_ep);
    uct_nprdma_rma_ep_t *ep       = uct_nprdma_rma_ep(tl_ep);
    ucs_status_t status;
    int by_nic;

    UCT_CHECK_LENGTH(length, 0, uct_nprdma_rma_max_payload(iface), "get_bcopy");

    if (ucs_unlikely(length == 0)) {
        return UCS_OK; /* Not even the key has to be valid */
    }

    by_nic = uct_nprdma_op_can_get(iface, uct_nprdma_rkey(rkey),
                                   remote_addr, length);
    status = uct_nprdma_rma_begin(iface, ep,
                                  by_nic ? UCT_NPRDMA_EP_BLOCK_OPS :
                                           UCT_NPRDMA_EP_BLOCK_RMA);
    if (ucs_unlikely(status != UCS_OK)) {
        return status;
    }

    status = by_nic ? uct_nprdma_op_get_bcopy(iface, ep->rma, unpack_cb, arg,
                                              length, remote_addr,
                                              uct_nprdma_rkey(rkey), comp) :
                      uct_nprdma_rma_get_bcopy_fetch(iface, ep, unpack_cb, arg,
                                                     length, remote_addr, rkey,
                                                     comp);
    if (ucs_likely(status == UCS_INPROGRESS)) {
        iface->res->ops.num_large += by_nic &&
                                     uct_nprdma_op_is_large(iface, length);
        uct_nprdma_rma_count(iface, 1, length);
    }
    return status;
}


/* ---- atomics ---- */

static void
uct_nprdma_rma_atomic_reply(uct_nprdma_rma_iface_t *iface,
                            uct_nprdma_rma_reply_t *reply, const void *data,
                            ucs_status_t *status)
{
    if (*status == UCS_OK) {
        *status = uct_nprdma_local_copy(&iface->local, reply->result, data,
                                        reply->length, reply->result);
        if (ucs_unlikely(*status != UCS_OK)) {
            uct_nprdma_rma_report_local(iface, reply->rma, 1, reply->result,
                                        reply->length);
        }
    }
}

static const uct_nprdma_rma_kind_t uct_nprdma_rma_atomic_kind = {
    .func = uct_nprdma_rma_atomic_reply
};

/* Without a result, nothing waits for the atomic */
static ucs_status_t
uct_nprdma_rma_atomic(uct_ep_h tl_ep, unsigned opcode, size_t size,
                      uint64_t value, uint64_t compare, void *result,
                      uint64_t remote_addr, uct_rkey_t rkey,
                      uct_completion_t *comp)
{
    uct_nprdma_rma_iface_t *iface = uct_nprdma_rma_ep_iface(tl_ep);
    uct_nprdma_rma_ep_t *ep       = uct_nprdma_rma_ep(tl_ep);
    uct_nprdma_held_message_t message;
    uct_nprdma_rma_reply_t *reply;
    ucs_status_t status;

    if (opcode > ((result == NULL) ? UCT_ATOMIC_OP_XOR : UCT_ATOMIC_OP_CSWAP)) {
        return UCS_ERR_UNSUPPORTED;
    }

    status = uct_nprdma_rma_begin(iface, ep, UCT_NPRDMA_EP_BLOCK_RMA);
    if (ucs_unlikely(status != UCS_OK)) {
        return status;
    }

    uct_nprdma_rma_fill_request(&message.request, UCT_NPRDMA_SVC_ATOMIC,
                                remote_addr, uct_nprdma_rkey(rkey)->key, size);
    message.request.op       = uct_nprdma_rma_atomic_ops[opcode];
    message.operands.value   = value;
    message.operands.compare = compare;
    if (ucs_unlikely(!uct_nprdma_held_is_clear(ep->rma,
                                               UCT_NPRDMA_ORDER_ATOMIC,
                                               remote_addr, size))) {
        status = uct_nprdma_held_request(iface, ep->rma, &message,
                                         UCT_NPRDMA_ORDER_ATOMIC, NULL, NULL,
                                         result, uct_nprdma_rkey(rkey), comp);
    } else {
        status = uct_nprdma_rma_request_small(iface, ep, &message.request,
                                              sizeof(message),
                                              &uct_nprdma_rma_atomic_kind, comp,
                                              (result == NULL) ? NULL : &reply);
        if (ucs_likely(status == UCS_OK) && (result != NULL)) {
            reply->result = result;
        }
    }
    if (ucs_unlikely(status != UCS_OK)) {
        return status;
    }

    ++iface->net.stats->atomic;
    return (result == NULL) ? UCS_OK : UCS_INPROGRESS;
}

/* The functions for integers of one size */
#define UCT_NPRDMA_RMA_ATOMICS(_bits) \
    ucs_status_t uct_nprdma_ep_atomic##_bits##_post( \
            uct_ep_h tl_ep, unsigned opcode, uint##_bits##_t value, \
            uint64_t remote_addr, uct_rkey_t rkey) \
    { \
        return uct_nprdma_rma_atomic(tl_ep, opcode, sizeof(value), value, 0, \
                                     NULL, remote_addr, rkey, NULL); \
    } \
    \
    ucs_status_t uct_nprdma_ep_atomic##_bits##_fetch( \
            uct_ep_h tl_ep, uct_atomic_op_t opcode, uint##_bits##_t value, \
            uint##_bits##_t *result, uint64_t remote_addr, uct_rkey_t rkey, \
            uct_completion_t *comp) \
    { \
        return uct_nprdma_rma_atomic(tl_ep, opcode, sizeof(value), value, 0, \
                                     result, remote_addr, rkey, comp); \
    } \
    \
    ucs_status_t uct_nprdma_ep_atomic_cswap##_bits( \
            uct_ep_h tl_ep, uint##_bits##_t compare, uint##_bits##_t swap, \
            uint64_t remote_addr, uct_rkey_t rkey, uint##_bits##_t *result, \
            uct_completion_t *comp) \
    { \
        return uct_nprdma_rma_atomic(tl_ep, UCT_ATOMIC_OP_CSWAP, \
                                     sizeof(swap), swap, compare, result, \
                                     remote_addr, rkey, comp); \
    }

UCT_NPRDMA_RMA_ATOMICS(32)
UCT_NPRDMA_RMA_ATOMICS(64)
