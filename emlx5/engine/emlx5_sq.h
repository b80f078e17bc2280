/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Send queues: work requests are carried out in order, one packet at a time, so
 * that those of all queue pairs and functions interleave. */

#ifndef EMLX5_SQ_H
#define EMLX5_SQ_H

#include "engine/emlx5_result.h"

/** Sets what a new queue pair does. */
void emlx5_sq_attach(emlx5_qp_t *qp);

/**
 * The driver's register write: there are new requests. Takes effect later, by
 * the function's queue.
 *
 * @param [in] uar  The page that was written; only the queue pair's own counts.
 * @param [in] qpn  Any number.
 */
void emlx5_sq_ring(emlx5_hca_t *hca, uint32_t uar, uint32_t qpn);

#endif
