/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_ep.h"
#include "uct/ib/nprdma/net/nprdma_conn.h"
#include "uct/ib/nprdma/rma/nprdma_rma_flush.h"

#include <endian.h>

/* Sending of active messages. Short ones are sent inline. Larger ones are
 * copied to a bounce slot, so that am_zcopy completes at once (ARCHITECTURE 3,
 * send and receive). */

#define UCT_NPRDMA_AM_CHECK_RES(_iface, _ep, _follows_p) \
    if (ucs_unlikely(!uct_nprdma_am_admit(_iface, _ep, _follows_p))) { \
        return uct_nprdma_ep_refuse_am(_iface, _ep); \
    }


/* Whether a message may be posted, behind *follows_p requests */
static UCS_F_ALWAYS_INLINE int
uct_nprdma_am_admit(uct_nprdma_iface_t *iface, uct_nprdma_ep_t *ep,
                    uint64_t *follows_p)
{
    *follows_p = 0;
    if (ucs_unlikely(ep->net.blocked & UCT_NPRDMA_EP_BLOCK_AM) &&
        ((ep->net.blocked & UCT_NPRDMA_EP_BLOCK_OPS) ||
         !uct_nprdma_rma_admit_message(&iface->rma, &ep->rma, follows_p))) {
        return 0;
    }

    return uct_nprdma_conn_admit_post(&iface->net, &ep->net.am);
}

static UCS_F_ALWAYS_INLINE void
uct_nprdma_am_fill_hdr(void *dest, uint8_t id, size_t length, uint64_t follows)
{
    uct_nprdma_am_hdr_t *hdr = dest;

    hdr->type    = UCT_NPRDMA_AM_DATA;
    hdr->am_id   = id;
    hdr->follows = follows >> UCT_NPRDMA_AM_FOLLOWS_SHIFT;
    hdr->length  = length;
}

/* Immediate data say that the message follows requests */
static UCS_F_ALWAYS_INLINE void
uct_nprdma_am_set_opcode(struct ibv_send_wr *wr, uint64_t follows)
{
    if (ucs_likely(follows == 0)) {
        wr->opcode = IBV_WR_SEND;
    } else {
        wr->opcode   = IBV_WR_SEND_WITH_IMM;
        wr->imm_data = htobe32((uint32_t)follows);
    }
}

/* Trace a message that is sent inline. UCX's tracer needs it in one piece. */
static UCS_F_ALWAYS_INLINE void
uct_nprdma_am_trace_inline(uct_nprdma_iface_t *iface, int num_sge)
{
    char message[UCT_NPRDMA_MAX_INLINE] UCS_V_ALIGNED(8);
    const uct_nprdma_am_hdr_t *hdr UCS_V_UNUSED; /* Used by the tracer only */
    size_t length = 0;
    int i;

    if (!ucs_log_is_enabled(UCS_LOG_LEVEL_TRACE_DATA)) {
        return;
    }

    for (i = 0; i < num_sge; ++i) {
        memcpy(message + length,
               (const void*)(uintptr_t)iface->inl.sge[i].addr,
               iface->inl.sge[i].length);
        length += iface->inl.sge[i].length;
    }

    hdr = (const uct_nprdma_am_hdr_t*)message;
    uct_iface_trace_am(&iface->net.super, UCT_AM_TRACE_TYPE_SEND, hdr->am_id,
                       hdr + 1, hdr->length, "TX: AM_SHORT");
}

/* Send the header in iface->inl.hdr, which is filled here but for the user's
 * part of it, and data */
static UCS_F_ALWAYS_INLINE ucs_status_t
uct_nprdma_am_post_inline(uct_nprdma_iface_t *iface, uct_nprdma_ep_t *ep,
                          uint8_t id, size_t user_length, const void *data,
                          size_t length, uint64_t follows)
{
    int num_sge = (length > 0) ? 2 : 1;
    ucs_status_t status;

    uct_nprdma_am_fill_hdr(&iface->inl.hdr.am, id, user_length + length,
                           follows);
    iface->inl.sge[0].length = sizeof(iface->inl.hdr.am) + user_length;
    iface->inl.sge[1].addr   = (uintptr_t)data;
    iface->inl.sge[1].length = length;
    iface->inl.wr.num_sge    = num_sge;
    iface->inl.wr.send_flags = IBV_SEND_INLINE | IBV_SEND_SOLICITED;
    uct_nprdma_am_set_opcode(&iface->inl.wr, follows);
    uct_nprdma_am_trace_inline(iface, num_sge);
    status = uct_nprdma_conn_post_inl(&iface->net, &ep->net.am, &iface->inl.wr,
                                      NULL, 0);
    if (ucs_likely(status == UCS_OK)) {
        ++iface->net.stats->am_short_tx;
        iface->net.stats->am_bytes_tx += user_length + length;
    }
    return status;
}

ucs_status_t uct_nprdma_ep_am_short(uct_ep_h tl_ep, uint8_t id, uint64_t header,
                                    const void *payload, unsigned length)
{
    uct_nprdma_ep_t *ep       = ucs_derived_of(tl_ep, uct_nprdma_ep_t);
    uct_nprdma_iface_t *iface = ucs_derived_of(tl_ep->iface,
                                               uct_nprdma_iface_t);
    char data[UCT_NPRDMA_MAX_INLINE];
    ucs_status_t status;
    uint64_t follows;

    UCT_CHECK_AM_ID(id);
    UCT_CHECK_LENGTH(sizeof(header) + length, 0, iface->config.max_short,
                     "am_short");
    UCT_NPRDMA_AM_CHECK_RES(iface, ep, &follows);

    /* The device also copies inline data, but does not report memory that is
     * not accessible */
    status = uct_nprdma_local_copy(&iface->rma.local, data, payload, length,
                                   payload);
    if (ucs_unlikely(status != UCS_OK)) {
        return status;
    }

    iface->inl.hdr.user = header;
    return uct_nprdma_am_post_inline(iface, ep, id, sizeof(header), data,
                                     length, follows);
}

ucs_status_t uct_nprdma_ep_am_short_iov(uct_ep_h tl_ep, uint8_t id,
                                        const uct_iov_t *iov, size_t iovcnt)
{
    uct_nprdma_ep_t *ep       = ucs_derived_of(tl_ep, uct_nprdma_ep_t);
    uct_nprdma_iface_t *iface = ucs_derived_of(tl_ep->iface,
                                               uct_nprdma_iface_t);
    size_t length             = uct_iov_total_length(iov, iovcnt);
    char data[UCT_NPRDMA_MAX_INLINE];
    ucs_status_t status;
    uint64_t follows;

    UCT_CHECK_AM_ID(id);
    UCT_CHECK_LENGTH(length, 0, iface->config.max_short, "am_short_iov");
    UCT_NPRDMA_AM_CHECK_RES(iface, ep, &follows);

    /* The device accepts few elements, and it copies inline data anyway */
    status = uct_nprdma_local_gather(&iface->rma.local, data, iov, iovcnt);
    if (ucs_unlikely(status != UCS_OK)) {
        return status;
    }

    return uct_nprdma_am_post_inline(iface, ep, id, 0, data, length, follows);
}

/* Send a slot with data behind the header, which is filled here. `name` is the
 * operation, for the trace. */
static UCS_F_ALWAYS_INLINE ucs_status_t
uct_nprdma_am_post_slot(uct_nprdma_iface_t *iface, uct_nprdma_ep_t *ep,
                        uct_nprdma_slot_t *slot, uint8_t id, size_t length,
                        uint64_t follows, const char *name)
{
    struct ibv_send_wr wr;
    struct ibv_sge sge;
    ucs_status_t status;

    uct_nprdma_am_fill_hdr(slot->data, id, length, follows);
    uct_iface_trace_am(&iface->net.super, UCT_AM_TRACE_TYPE_SEND, id,
                       slot->data + sizeof(uct_nprdma_am_hdr_t), length,
                       "TX: %s", name);
    sge.addr      = (uintptr_t)slot->data;
    sge.length    = sizeof(uct_nprdma_am_hdr_t) + length;
    sge.lkey      = slot->lkey;
    wr.next       = NULL;
    wr.sg_list    = &sge;
    wr.num_sge    = 1;
    wr.send_flags = IBV_SEND_SOLICITED;
    uct_nprdma_am_set_opcode(&wr, follows);

    if (sge.length <= iface->net.config.max_inline) {
        /* Inline data is copied by the post, so the slot is free at once */
        wr.send_flags |= IBV_SEND_INLINE;
        status         = uct_nprdma_conn_post_inl(&iface->net, &ep->net.am, &wr,
                                                  NULL, 0);
        uct_nprdma_bounce_put(slot);
        return status;
    }

    slot->comp.func = uct_nprdma_slot_release_comp;
    status          = uct_nprdma_conn_post_inl(&iface->net, &ep->net.am, &wr,
                                               &slot->comp,
                                               iface->net.tx.pool.num_free <
                                               iface->config.tx_slots_low);
    if (ucs_likely(status == UCS_OK)) {
        ++ep->net.am.num_slots;
    } else {
        uct_nprdma_bounce_put(slot);
    }
    return status;
}

ssize_t uct_nprdma_ep_am_bcopy(uct_ep_h tl_ep, uint8_t id,
                               uct_pack_callback_t pack_cb, void *arg,
                               unsigned flags)
{
    uct_nprdma_ep_t *ep       = ucs_derived_of(tl_ep, uct_nprdma_ep_t);
    uct_nprdma_iface_t *iface = ucs_derived_of(tl_ep->iface,
                                               uct_nprdma_iface_t);
    uct_nprdma_slot_t *slot;
    ucs_status_t status;
    uint64_t follows;
    size_t length;

    UCT_CHECK_AM_ID(id);
    UCT_NPRDMA_AM_CHECK_RES(iface, ep, &follows);
    slot = uct_nprdma_conn_tx_slot(&iface->net, &ep->net.am);
    if (ucs_unlikely(slot == NULL)) {
        return uct_nprdma_ep_refuse_am(iface, ep);
    }

    length = pack_cb(slot->data + sizeof(uct_nprdma_am_hdr_t), arg);
    ucs_assert(length <= iface->config.max_bcopy);
    status = uct_nprdma_am_post_slot(iface, ep, slot, id, length, follows,
                                     "AM_BCOPY");
    if (ucs_unlikely(status != UCS_OK)) {
        return status;
    }

    ++iface->net.stats->am_bcopy_tx;
    iface->net.stats->am_bytes_tx += length;
    return length;
}

ucs_status_t uct_nprdma_ep_am_zcopy(uct_ep_h tl_ep, uint8_t id,
                                    const void *header, unsigned header_length,
                                    const uct_iov_t *iov, size_t iovcnt,
                                    unsigned flags, uct_completion_t *comp)
{
    uct_nprdma_ep_t *ep       = ucs_derived_of(tl_ep, uct_nprdma_ep_t);
    uct_nprdma_iface_t *iface = ucs_derived_of(tl_ep->iface,
                                               uct_nprdma_iface_t);
    uct_nprdma_slot_t *slot;
    ucs_status_t status;
    uint64_t follows;
    size_t length;
    char *dest;

    UCT_CHECK_AM_ID(id);
    UCT_CHECK_IOV_SIZE(iovcnt, (unsigned long)UCT_NPRDMA_MAX_IOV, "am_zcopy");
    length = uct_iov_total_length(iov, iovcnt);
    UCT_CHECK_PARAM(header_length <= uct_nprdma_iface_max_hdr(iface),
                    "invalid am_zcopy header length: %u, at most %zu",
                    header_length, uct_nprdma_iface_max_hdr(iface));
    UCT_CHECK_LENGTH(header_length + length, 0, iface->config.max_bcopy,
                     "am_zcopy");
    UCT_NPRDMA_AM_CHECK_RES(iface, ep, &follows);
    slot = uct_nprdma_conn_tx_slot(&iface->net, &ep->net.am);
    if (ucs_unlikely(slot == NULL)) {
        return uct_nprdma_ep_refuse_am(iface, ep);
    }

    dest = slot->data + sizeof(uct_nprdma_am_hdr_t);
    if (header_length > 0) {
        memcpy(dest, header, header_length);
    }
    status = uct_nprdma_local_gather(&iface->rma.local, dest + header_length,
                                     iov, iovcnt);
    if (ucs_unlikely(status != UCS_OK)) {
        uct_nprdma_bounce_put(slot);
        return status;
    }

    length += header_length;
    status  = uct_nprdma_am_post_slot(iface, ep, slot, id, length, follows,
                                      "AM_ZCOPY");
    if (ucs_likely(status == UCS_OK)) {
        ++iface->net.stats->am_zcopy_tx;
        iface->net.stats->am_bytes_tx += length;
    }
    return status;
}
