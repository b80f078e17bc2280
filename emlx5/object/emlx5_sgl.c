/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "object/emlx5_sgl.h"
#include "base/emlx5_bytes.h"

enum {
    EMLX5_SGE_SIZE    = 16,
    EMLX5_SGE_INLINE  = 1u << 31, /* in the length */
    EMLX5_SGE_LENGTH  = 0x3ff,    /* of inline data */
    EMLX5_LIST_END    = 0x100     /* key that ends a receive's list */
};

/* Inline data follows the length and is padded to a full element. Returns the
 * offset behind it, 0 if it is too long. */
static uint32_t emlx5_sge_inline(emlx5_sge_t *sge, uint32_t at, uint32_t end)
{
    sge->length  &= EMLX5_SGE_LENGTH;
    sge->inlined  = at + 4;
    if (sge->length > end - at - 4) {
        return 0;
    }
    at += (4 + sge->length + EMLX5_SGE_SIZE - 1) & ~(EMLX5_SGE_SIZE - 1u);
    return (at < end) ? at : end;
}

int emlx5_sgl_parse(emlx5_sgl_t *sgl, const uint8_t *wqe, uint32_t begin,
                    uint32_t end)
{
    emlx5_sge_t sge;
    uint32_t at;

    sgl->count = 0;
    sgl->total = 0;
    for (at = begin; (at < end) && (end - at >= EMLX5_SGE_SIZE);) {
        sge.length  = emlx5_be32(wqe + at);
        sge.key     = emlx5_be32(wqe + at + 4);
        sge.va      = emlx5_be64(wqe + at + 8);
        sge.inlined = 0;
        if (sge.length & (uint32_t)EMLX5_SGE_INLINE) {
            at = emlx5_sge_inline(&sge, at, end);
            if (at == 0) {
                return -1;
            }
        } else {
            if ((sge.length == 0) && (sge.key == EMLX5_LIST_END)) {
                break;
            }
            at += EMLX5_SGE_SIZE;
        }
        if (sge.length == 0) {
            continue;
        }
        if (sgl->count == EMLX5_MAX_SGE) {
            return -1;
        }
        sgl->sge[sgl->count++] = sge;
        sgl->total            += sge.length;
    }
    return 0;
}
