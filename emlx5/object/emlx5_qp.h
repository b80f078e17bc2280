/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Queue pairs: their states, and what is in progress. */

#ifndef EMLX5_QP_H
#define EMLX5_QP_H

#include "base/emlx5_field.h"
#include "object/emlx5_hca.h"
#include "object/emlx5_pages.h"
#include "object/emlx5_wqe.h"

/* Numbers of the device interface */
typedef enum {
    EMLX5_QP_RST  = 0,
    EMLX5_QP_INIT = 1,
    EMLX5_QP_RTR  = 2,
    EMLX5_QP_RTS  = 3,
    EMLX5_QP_SQER = 4,
    EMLX5_QP_SQD  = 5,
    EMLX5_QP_ERR  = 6
} emlx5_qp_state_t;

/* Where receives come from (qpc.rq_type) */
enum { EMLX5_RQ_OWN = 0, EMLX5_RQ_SHARED = 1, EMLX5_RQ_NONE = 3 };

/* A receive that a message is filling */
typedef struct {
    int         active;
    uint8_t     bytes[EMLX5_MAX_RQ_WQE];
    emlx5_sgl_t sgl;
    uint16_t    index; /* for the completion */
    uint32_t    pd, srqn, cqn;
} emlx5_recv_t;

typedef struct emlx5_qp {
    emlx5_hca_t      *hca;
    uint32_t         number;
    uint8_t          context[EMLX5_SIZE(qpc)]; /* of the commands */
    emlx5_qp_state_t state;
    emlx5_pages_t    ring;  /* receives, then sends */
    uint64_t         dbr;   /* bus address of the doorbell record */

    /* Copies of what is in the context */
    emlx5_st_t       st;
    uint32_t         rq_type, pd, cqn_send, cqn_recv, srqn, remote, uar;
    uint32_t         log_rq, rq_stride, log_sq;
    int              has_sq;
    uint64_t         sq_offset;

    /* Send queue, in units of EMLX5_WQE_BB bytes */
    uint16_t         sq_consumer, sq_producer;
    emlx5_work_t     sq_work;
    int              doorbell;  /* the record has a new producer */
    emlx5_wqe_t      wqe;       /* the request in progress */
    int              in_progress; /* 2: it has a receive of the peer */
    uint64_t         done;      /* bytes of its message */
    uint64_t         waits_since, wait_time; /* for the peer; 0: does not */

    /* Receives */
    uint16_t         rq_consumer;
    emlx5_recv_t     recv;
    emlx5_work_t     flush_work; /* receives posted in the error state */
} emlx5_qp_t;

/** Makes a queue pair in state RST from the context of a command. The ring
 * becomes its own if it is made. @return NULL if there is no number or no
 * memory. */
emlx5_qp_t *emlx5_qp_create(emlx5_hca_t *hca, const uint8_t *context,
                            const emlx5_pages_t *ring);

void emlx5_qp_destroy(emlx5_qp_t *qp);

/** @return Bytes of the ring that a context describes. */
uint64_t emlx5_qp_ring_size(const uint8_t *context);

/** Changes the state by a command with this opcode, e.g. EMLX5_OP(RST2INIT_QP),
 * context and opt_param_mask. @return 0, or -1 if the state does not permit
 * that. */
int emlx5_qp_modify(emlx5_qp_t *qp, uint16_t op, const uint8_t *context,
                    uint32_t options);

/** @return Its LID's path in the context. */
static inline const uint8_t *emlx5_qp_path(const emlx5_qp_t *qp)
{
    return qp->context + EMLX5_OFFSET(qpc, primary_address_path);
}

#endif
