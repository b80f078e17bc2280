/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Work requests of a send queue, as the driver writes them. */

#ifndef EMLX5_WQE_H
#define EMLX5_WQE_H

#include "object/emlx5_sgl.h"

typedef enum {
    EMLX5_WQE_NOP        = 0x00,
    EMLX5_WQE_SEND_INVAL = 0x01,
    EMLX5_WQE_WRITE      = 0x08,
    EMLX5_WQE_WRITE_IMM  = 0x09,
    EMLX5_WQE_SEND       = 0x0a,
    EMLX5_WQE_SEND_IMM   = 0x0b,
    EMLX5_WQE_READ       = 0x10,
    EMLX5_WQE_CAS        = 0x11,
    EMLX5_WQE_ADD        = 0x12,
    EMLX5_WQE_UMR        = 0x25
} emlx5_wqe_opcode_t;

/* Types of queue pairs (qpc.st) */
typedef enum {
    EMLX5_ST_RC  = 0,
    EMLX5_ST_UC  = 1,
    EMLX5_ST_UD  = 2,
    EMLX5_ST_XRC = 3,
    EMLX5_ST_QP0 = 7,
    EMLX5_ST_QP1 = 8,
    EMLX5_ST_UMR = 12
} emlx5_st_t;

/* Where a datagram goes (address vector) */
typedef struct {
    uint32_t qkey, qpn, flow;
    uint16_t lid;
    uint8_t  sl, traffic_class, hop_limit;
    int      global; /* has a global route header */
    uint8_t  gid[16];
} emlx5_av_t;

enum {
    EMLX5_UMR_INLINE = 1 << 7,
    EMLX5_UMR_OFFSET = 1 << 4,
    EMLX5_UMR_NEEDS_FREE = 1 << 5, /* fails if the key is in use */
    EMLX5_UMR_NEEDS_USED = 1 << 6  /* fails if it is free */
};

/* Changes of a memory key */
typedef struct {
    uint8_t  flags;
    uint64_t bytes;   /* of the translation that change */
    uint64_t offset;  /* where, in bytes */
    uint64_t mask;    /* fields of the context that change */
    uint32_t context; /* offset of the new context in the request, 0: none */
    uint32_t data;    /* offset of the inline entries, 0: in the list */
} emlx5_umr_t;

typedef struct {
    uint8_t            bytes[EMLX5_MAX_SQ_WQE];
    uint32_t           size;
    emlx5_wqe_opcode_t opcode;
    uint16_t           index;
    uint32_t           qpn;
    int                signaled, solicited;
    uint32_t           imm;         /* or the key of SEND_INVAL, UMR */
    uint32_t           xrc_srqn;
    uint64_t           remote_va, swap_add, compare;
    uint32_t           remote_key;
    emlx5_av_t         av;
    emlx5_umr_t        umr;
    emlx5_sgl_t        sgl;
} emlx5_wqe_t;

/** @return Bytes of a request, from its first 8 bytes: a multiple of 16, at
 * most EMLX5_MAX_SQ_WQE, perhaps 0. */
uint32_t emlx5_wqe_size(const uint8_t *head);

/** @return 1 for queue pairs of datagrams. */
static inline int emlx5_st_is_datagram(emlx5_st_t st)
{
    return (st == EMLX5_ST_UD) || (st == EMLX5_ST_QP0) || (st == EMLX5_ST_QP1);
}

/** Understands a request of a queue pair of this type: wqe->bytes and wqe->size
 * are set. @return 0, or -1 if it is too short for what it is, or not known. */
int emlx5_wqe_parse(emlx5_wqe_t *wqe, emlx5_st_t st);

#endif
