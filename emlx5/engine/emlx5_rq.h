/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Receives: those of the queue pair, or of a shared queue. */

#ifndef EMLX5_RQ_H
#define EMLX5_RQ_H

#include "engine/emlx5_result.h"
#include "object/emlx5_cq.h"
#include "object/emlx5_srq.h"

/** Takes the next receive, into qp->recv: of the shared queue srqn, which may
 * be any number, if the queue pair has none of its own. @return 1, 0 if there
 * is none, -1 if it cannot be read or is malformed: then the queue pair must
 * fail. */
int emlx5_rq_take(emlx5_qp_t *qp, uint32_t srqn);

/** @return The shared queue that has this number, which may be any, or NULL if
 * there is none, or the queue pair may not use it: one of XRC uses those of its
 * domain. */
emlx5_srq_t *emlx5_rq_shared(const emlx5_qp_t *qp, uint32_t srqn);

/** Completes qp->recv. The entry has what is special: bytes, immediate data. */
void emlx5_rq_done(emlx5_qp_t *qp, uint8_t *entry, emlx5_cqe_opcode_t opcode,
                   int solicited);

/** Completes qp->recv with an error. */
void emlx5_rq_error(emlx5_qp_t *qp, emlx5_result_t syndrome);

/** Work of a queue pair in the error state: completes its receives, and looks
 * again later, because a driver rings no doorbell for a receive. */
void emlx5_rq_flush(emlx5_work_t *work);

#endif
