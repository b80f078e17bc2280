/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "engine/emlx5_umr.h"
#include "base/emlx5_log.h"
#include "engine/emlx5_move.h"
#include "object/emlx5_mkey.h"

/* Which bit of the mask changes which field of the key's context */
static const struct {
    uint64_t mask;
    uint32_t field;
} emlx5_umr_fields[] = {
    {1ull << 0, EMLX5_FIELD(mkc, len)},
    {1ull << 0, EMLX5_FIELD(mkc, length64)},
    {1ull << 1, EMLX5_FIELD(mkc, log_page_size)},
    {1ull << 6, EMLX5_FIELD(mkc, start_addr)},
    {1ull << 7, EMLX5_FIELD(mkc, pd)},
    {1ull << 13, EMLX5_FIELD(mkc, mkey_7_0)},
    {1ull << 14, EMLX5_FIELD(mkc, qpn)},
    {1ull << 17, EMLX5_FIELD(mkc, lr)},
    {1ull << 18, EMLX5_FIELD(mkc, lw)},
    {1ull << 19, EMLX5_FIELD(mkc, rr)},
    {1ull << 20, EMLX5_FIELD(mkc, rw)},
    {1ull << 21, EMLX5_FIELD(mkc, a)},
    {1ull << 25, EMLX5_FIELD(mkc, relaxed_ordering_write)},
    {1ull << 29, EMLX5_FIELD(mkc, free)},
    {1ull << 47, EMLX5_FIELD(mkc, relaxed_ordering_read)},
};

/* The entries of the translation first: a key must not be usable with old ones.
 * They come in multiples of 64 bytes, the list of them may be shorter. */
static emlx5_result_t emlx5_umr_entries(emlx5_qp_t *qp, emlx5_mkey_t *mkey)
{
    const emlx5_umr_t *umr = &qp->wqe.umr;
    emlx5_buffer_t from    = {qp->hca, qp->pd, &qp->wqe.sgl, qp->wqe.bytes, 0};
    uint8_t *to            = emlx5_mkey_entries(mkey, umr->offset, umr->bytes);
    uint64_t length        = umr->bytes;

    if (to == NULL) {
        return EMLX5_E_LOCAL_QP;
    }
    if (umr->data != 0) {
        memcpy(to, qp->wqe.bytes + umr->data, umr->bytes);
        return EMLX5_OK;
    }
    length = (length < qp->wqe.sgl.total) ? length : qp->wqe.sgl.total;
    return (emlx5_buffer_get(&from, 0, to, length) == 0) ? EMLX5_OK :
                                                           EMLX5_E_LOCAL_PROT;
}

static void emlx5_umr_context(emlx5_mkey_t *mkey, const uint8_t *context,
                              uint64_t mask)
{
    unsigned i;

    for (i = 0; i < sizeof(emlx5_umr_fields) / sizeof(emlx5_umr_fields[0]);
         ++i) {
        if (mask & emlx5_umr_fields[i].mask) {
            emlx5_field_copy(mkey->context, context, emlx5_umr_fields[i].field);
        }
    }
}

emlx5_result_t emlx5_umr(emlx5_qp_t *qp)
{
    const emlx5_umr_t *umr = &qp->wqe.umr;
    emlx5_mkey_t *mkey = emlx5_table_get(&qp->hca->mkeys, qp->wqe.imm >> 8);
    emlx5_result_t result = EMLX5_OK;
    int is_free;

    if ((mkey == NULL) || !EMLX5_GET(mkey->context, mkc, umr_en)) {
        emlx5_event("port %u: no key %#x to be changed", qp->hca->lid,
                    qp->wqe.imm);
        return EMLX5_E_LOCAL_QP;
    }
    is_free = EMLX5_GET(mkey->context, mkc, free);
    if (((umr->flags & EMLX5_UMR_NEEDS_FREE) && !is_free) ||
        ((umr->flags & EMLX5_UMR_NEEDS_USED) && is_free)) {
        emlx5_event("port %u: key %#x is %s", qp->hca->lid, qp->wqe.imm,
                    is_free ? "free" : "in use");
        return EMLX5_E_LOCAL_QP;
    }
    if (umr->bytes > 0) {
        result = emlx5_umr_entries(qp, mkey);
    }
    if ((result == EMLX5_OK) && (umr->context != 0)) {
        emlx5_umr_context(mkey, qp->wqe.bytes + umr->context, umr->mask);
    }
    return result;
}
