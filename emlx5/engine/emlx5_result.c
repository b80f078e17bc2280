/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "engine/emlx5_result.h"
#include "base/emlx5_log.h"
#include "object/emlx5_eq.h"

void emlx5_qp_entered_error(emlx5_qp_t *qp)
{
    /* Nothing more will come for this QP from a queue that it shares */
    if (qp->rq_type == EMLX5_RQ_SHARED) {
        emlx5_eq_post_queue(qp->hca, EMLX5_EVENT_LAST_WQE, qp->number);
    }
    emlx5_work_add(&qp->hca->queue, &qp->sq_work);
    emlx5_work_add(&qp->hca->queue, &qp->flush_work);
}

void emlx5_qp_fail(emlx5_qp_t *qp, uint8_t event)
{
    if (qp->state == EMLX5_QP_ERR) {
        return;
    }
    emlx5_event("port %u: QP %#x fails", qp->hca->lid, qp->number);
    qp->state = EMLX5_QP_ERR;
    if (event != 0) {
        emlx5_eq_post_queue(qp->hca, event, qp->number);
    }
    emlx5_qp_entered_error(qp);
}
