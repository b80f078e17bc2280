/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_QP_H_
#define UCT_NPRDMA_QP_H_

#include "nprdma_device.h"

/*
 * RC queue pairs of requesters and of responders.
 */

/* Arguments of QP creation that differ between callers */
typedef struct uct_nprdma_qp_params {
    struct ibv_cq  *send_cq;
    struct ibv_cq  *recv_cq;
    struct ibv_srq *srq;        /* NULL: own RQ */
    uint32_t       max_send_wr;
    uint32_t       max_recv_wr; /* own RQ only */
    uint32_t       max_inline;
    void           *qp_context;
    int            is_optional; /* the caller can do without it: that there is
                                 * none is no error in the log */
} uct_nprdma_qp_params_t;


/* rnr_retry of uct_nprdma_qp_connect(): a receiver without receives delays the
 * sender without limit, as back pressure */
#define UCT_NPRDMA_RNR_FOREVER  7


/**
 * Create an RC QP and bring it to INIT on a port.
 *
 * @param [in]  dev       Device; the QP belongs to its PD.
 * @param [in]  port_num  Port.
 * @param [in]  params    See uct_nprdma_qp_params_t.
 * @param [out] qp_p      The QP, owned by the caller; released with
 *                        verbs->destroy_qp().
 * @param [out] inline_p  Granted bytes of inline data; may be NULL.
 *
 * @return UCS_OK; UCS_ERR_NO_MEMORY or UCS_ERR_IO_ERROR with a logged reason.
 */
ucs_status_t
uct_nprdma_qp_create(uct_nprdma_device_t *dev, uint8_t port_num,
                     const uct_nprdma_qp_params_t *params, struct ibv_qp **qp_p,
                     uint32_t *inline_p);


/**
 * Bring a QP from INIT to RTS and connect it to a peer.
 *
 * @param [in] dev        Device of the QP.
 * @param [in] port_num   Port of the QP.
 * @param [in] qp         QP in INIT.
 * @param [in] local_psn  PSN that wire-up sends to the peer.
 * @param [in] peer       Address of the peer's QP.
 * @param [in] path       How the packets of the QP are marked.
 * @param [in] rnr_retry  How often a message is repeated while the peer has no
 *                        receive for it; UCT_NPRDMA_RNR_FOREVER is without
 *                        limit.
 *
 * @return UCS_OK, or UCS_ERR_IO_ERROR with a logged reason.
 */
ucs_status_t
uct_nprdma_qp_connect(uct_nprdma_device_t *dev, uint8_t port_num,
                      struct ibv_qp *qp, uint32_t local_psn,
                      const uct_nprdma_qp_addr_t *peer,
                      const uct_nprdma_path_config_t *path, uint8_t rnr_retry);


/**
 * Bring a QP to ERR: outstanding WRs complete with flush errors.
 *
 * @param [in] dev  Device of the QP.
 * @param [in] qp   QP in any state.
 */
void uct_nprdma_qp_to_err(uct_nprdma_device_t *dev, struct ibv_qp *qp);

#endif
