/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Send queues: work requests are carried out in order, one packet at a time, so
 * that those of all queue pairs and functions interleave. */

#ifndef EMLX5_SQ_H
#define EMLX5_SQ_H

#include "engine/emlx5_result.h"

/** Sets what a new queue pair does. */
void emlx5_sq_attach(emlx5_qp_t *qp);

/** The driver's register write to a page: there are new requests of a queue
 * pair, any number. Only its own page counts. Takes effect later, by the
 * function's queue. */
void emlx5_sq_ring(emlx5_hca_t *hca, uint32_t uar, uint32_t qpn);

#endif
