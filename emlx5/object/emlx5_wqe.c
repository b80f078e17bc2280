/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "object/emlx5_wqe.h"
#include "base/emlx5_bytes.h"

/* Segments of a request, in bytes */
enum {
    EMLX5_SEG          = 16,
    EMLX5_SEG_CTRL     = 16,
    EMLX5_SEG_XRC      = 16,
    EMLX5_SEG_RADDR    = 16,
    EMLX5_SEG_ATOMIC   = 16,
    EMLX5_SEG_AV       = 48,
    EMLX5_SEG_UMR      = 48,
    EMLX5_SEG_MKC      = 64,
    EMLX5_AV_GRH       = 1 << 30, /* in the word before the GID */
    EMLX5_CE_ALWAYS    = 2        /* ctrl: completion wanted, or with event */
};

uint32_t emlx5_wqe_size(const uint8_t *head)
{
    return (emlx5_be32(head + 4) & 0x3f) * EMLX5_SEG;
}

/* The next segment; NULL if the request ends before its end. */
static const uint8_t *emlx5_wqe_take(const emlx5_wqe_t *wqe, uint32_t *at,
                                     uint32_t bytes)
{
    const uint8_t *segment = wqe->bytes + *at;

    if (bytes > wqe->size - *at) {
        return NULL;
    }
    *at += bytes;
    return segment;
}

static void emlx5_wqe_parse_ctrl(emlx5_wqe_t *wqe)
{
    const uint8_t *ctrl = wqe->bytes;

    wqe->opcode    = ctrl[3];
    wqe->index     = emlx5_be16(ctrl + 1);
    wqe->qpn       = emlx5_be32(ctrl + 4) >> 8;
    wqe->signaled  = ((ctrl[11] >> 2) & 3) >= EMLX5_CE_ALWAYS;
    wqe->solicited = (ctrl[11] >> 1) & 1;
    wqe->imm       = emlx5_be32(ctrl + 12);
}

static int emlx5_wqe_parse_av(emlx5_wqe_t *wqe, uint32_t *at)
{
    const uint8_t *s = emlx5_wqe_take(wqe, at, EMLX5_SEG_AV);

    if (s == NULL) {
        return -1;
    }
    wqe->av.qkey          = emlx5_be32(s);
    wqe->av.qpn           = emlx5_be32(s + 8) & 0xffffff;
    wqe->av.sl            = s[12] & 15;
    wqe->av.lid           = emlx5_be16(s + 14);
    wqe->av.traffic_class = s[26];
    wqe->av.hop_limit     = s[27];
    wqe->av.global        = (emlx5_be32(s + 28) & EMLX5_AV_GRH) != 0;
    wqe->av.flow          = emlx5_be32(s + 28) & 0xfffff;
    memcpy(wqe->av.gid, s + 32, sizeof(wqe->av.gid));
    return 0;
}

static int emlx5_wqe_parse_remote(emlx5_wqe_t *wqe, uint32_t *at)
{
    const uint8_t *s = emlx5_wqe_take(wqe, at, EMLX5_SEG_RADDR);

    if (s == NULL) {
        return -1;
    }
    wqe->remote_va  = emlx5_be64(s);
    wqe->remote_key = emlx5_be32(s + 8);
    if ((wqe->opcode != EMLX5_WQE_CAS) && (wqe->opcode != EMLX5_WQE_ADD)) {
        return 0;
    }
    s = emlx5_wqe_take(wqe, at, EMLX5_SEG_ATOMIC);
    if (s == NULL) {
        return -1;
    }
    wqe->swap_add = emlx5_be64(s);
    wqe->compare  = emlx5_be64(s + 8);
    return 0;
}

/* The entries are inline, or in memory that the list names. */
static int emlx5_wqe_parse_umr(emlx5_wqe_t *wqe)
{
    uint32_t at      = EMLX5_SEG_CTRL;
    const uint8_t *s = emlx5_wqe_take(wqe, &at, EMLX5_SEG_UMR);
    emlx5_umr_t *umr = &wqe->umr;

    if (s == NULL) {
        return -1;
    }
    umr->flags   = s[0];
    umr->bytes   = emlx5_be16(s + 4) * (uint64_t)16;
    umr->mask    = emlx5_be64(s + 8);
    umr->offset  = 0;
    umr->context = 0;
    umr->data    = 0;
    wqe->sgl.count = 0;
    wqe->sgl.total = 0;
    if (umr->flags & EMLX5_UMR_OFFSET) {
        umr->offset = (((uint64_t)emlx5_be32(s + 16) << 16) |
                       emlx5_be16(s + 6)) * 16;
    }
    if (at == wqe->size) {
        return ((umr->mask == 0) && (umr->bytes == 0)) ? 0 : -1;
    }
    umr->context = at;
    if (emlx5_wqe_take(wqe, &at, EMLX5_SEG_MKC) == NULL) {
        return -1;
    }
    if (umr->bytes == 0) {
        return 0;
    }
    if (umr->flags & EMLX5_UMR_INLINE) {
        umr->data = at;
        return (umr->bytes <= wqe->size - at) ? 0 : -1;
    }
    return emlx5_sgl_parse(&wqe->sgl, wqe->bytes, at, wqe->size);
}

/* Reliable and unreliable connections */
static int emlx5_wqe_parse_connected(emlx5_wqe_t *wqe, emlx5_st_t st,
                                     uint32_t *at)
{
    const uint8_t *s;

    if (st == EMLX5_ST_XRC) {
        s = emlx5_wqe_take(wqe, at, EMLX5_SEG_XRC);
        if (s == NULL) {
            return -1;
        }
        wqe->xrc_srqn = emlx5_be32(s) & 0xffffff;
    }
    switch (wqe->opcode) {
    case EMLX5_WQE_SEND:
    case EMLX5_WQE_SEND_IMM:
    case EMLX5_WQE_SEND_INVAL:
        return 0;
    case EMLX5_WQE_READ:
    case EMLX5_WQE_CAS:
    case EMLX5_WQE_ADD:
        if (st == EMLX5_ST_UC) {
            return -1;
        }
        return emlx5_wqe_parse_remote(wqe, at);
    case EMLX5_WQE_WRITE:
    case EMLX5_WQE_WRITE_IMM:
        return emlx5_wqe_parse_remote(wqe, at);
    default:
        return -1;
    }
}

int emlx5_wqe_parse(emlx5_wqe_t *wqe, emlx5_st_t st)
{
    uint32_t at = EMLX5_SEG_CTRL;
    int status;

    wqe->sgl.count = 0;
    wqe->sgl.total = 0;
    if (wqe->size < EMLX5_SEG_CTRL) {
        return -1;
    }
    emlx5_wqe_parse_ctrl(wqe);
    if (wqe->opcode == EMLX5_WQE_NOP) {
        return 0;
    }
    if (wqe->opcode == EMLX5_WQE_UMR) {
        return (st == EMLX5_ST_UMR) ? emlx5_wqe_parse_umr(wqe) : -1;
    }
    if (emlx5_st_is_datagram(st)) {
        if ((wqe->opcode != EMLX5_WQE_SEND) &&
            (wqe->opcode != EMLX5_WQE_SEND_IMM)) {
            return -1;
        }
        status = emlx5_wqe_parse_av(wqe, &at);
    } else if (st == EMLX5_ST_UMR) {
        status = -1;
    } else {
        status = emlx5_wqe_parse_connected(wqe, st, &at);
    }
    return (status != 0) ? status :
           emlx5_sgl_parse(&wqe->sgl, wqe->bytes, at, wqe->size);
}
