/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "engine/emlx5_move.h"
#include "object/emlx5_mkey.h"

/* One element's part; exactly one of "to" and "from" is set. */
static int emlx5_buffer_move(const emlx5_buffer_t *buffer,
                             const emlx5_sge_t *sge, uint64_t skip,
                             uint32_t length, uint8_t *to, const uint8_t *from)
{
    emlx5_access_t access;

    if (sge->inlined != 0) {
        if (to == NULL) {
            return -1;
        }
        memcpy(to, buffer->wqe + sge->inlined + skip, length);
        return 0;
    }
    access.key    = sge->key;
    access.pd     = buffer->pd;
    access.rights = (to != NULL) ? EMLX5_LOCAL_READ : EMLX5_LOCAL_WRITE;
    access.va     = sge->va + skip;
    access.length = length;
    access.is_rdma = buffer->is_rdma;
    return (to != NULL) ? emlx5_mkey_get(buffer->hca, &access, to) :
                          emlx5_mkey_put(buffer->hca, &access, from);
}

static int emlx5_buffer_walk(const emlx5_buffer_t *buffer, uint64_t at,
                             uint8_t *to, const uint8_t *from, uint32_t length)
{
    const emlx5_sge_t *sge = buffer->sgl->sge;
    const emlx5_sge_t *end = sge + buffer->sgl->count;
    uint32_t part;

    for (; (sge < end) && (length > 0); ++sge) {
        if (at >= sge->length) {
            at -= sge->length;
            continue;
        }
        part = sge->length - at;
        part = (part < length) ? part : length;
        if (emlx5_buffer_move(buffer, sge, at, part, to, from) != 0) {
            return -1;
        }
        to      = (to != NULL) ? to + part : NULL;
        from    = (from != NULL) ? from + part : NULL;
        length -= part;
        at      = 0;
    }
    return (length == 0) ? 0 : -1;
}

int emlx5_buffer_get(const emlx5_buffer_t *buffer, uint64_t at, uint8_t *data,
                     uint32_t length)
{
    int refused = emlx5_buffer_walk(buffer, at, data, NULL, length);
    int failed  = emlx5_dma_finish(&buffer->hca->dma);

    return (refused || failed) ? -1 : 0;
}

int emlx5_buffer_put(const emlx5_buffer_t *buffer, uint64_t at,
                     const uint8_t *data, uint32_t length)
{
    return emlx5_buffer_walk(buffer, at, NULL, data, length);
}
