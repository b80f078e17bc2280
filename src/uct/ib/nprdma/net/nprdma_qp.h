/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_QP_H_
#define UCT_NPRDMA_QP_H_

#include "nprdma_device.h"

/* RC queue pairs of requesters and of responders */

/* Arguments of QP creation that differ between callers */
typedef struct uct_nprdma_qp_params {
    struct ibv_cq  *send_cq;
    struct ibv_cq  *recv_cq;
    struct ibv_srq *srq;        /* NULL: own RQ */
    uint32_t       max_send_wr;
    uint32_t       max_recv_wr; /* own RQ only */
    uint32_t       max_inline;
    void           *qp_context;
    /* The caller can do without it: that there is none is no error in the
     * log */
    int            is_optional;
} uct_nprdma_qp_params_t;


/* A receiver without receives delays the sender without limit, as back
 * pressure */
#define UCT_NPRDMA_RNR_FOREVER  7


/* Create an RC QP in INIT; inline_p may be NULL */
ucs_status_t
uct_nprdma_qp_create(uct_nprdma_device_t *dev, uint8_t port_num,
                     const uct_nprdma_qp_params_t *params, struct ibv_qp **qp_p,
                     uint32_t *inline_p);


/* Bring a QP from INIT to RTS. rnr_retry: how often a message is repeated while
 * the peer has no receive for it. */
ucs_status_t
uct_nprdma_qp_connect(uct_nprdma_device_t *dev, uint8_t port_num,
                      struct ibv_qp *qp, uint32_t local_psn,
                      const uct_nprdma_qp_addr_t *peer,
                      const uct_nprdma_path_config_t *path, uint8_t rnr_retry);


/* Outstanding WRs of the QP, in any state, complete with flush errors */
void uct_nprdma_qp_to_err(uct_nprdma_device_t *dev, struct ibv_qp *qp);

#endif
