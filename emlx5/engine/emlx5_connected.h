/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Messages between connected queue pairs (RC, UC, XRC). */

#ifndef EMLX5_CONNECTED_H
#define EMLX5_CONNECTED_H

#include "engine/emlx5_result.h"

/** Carries out the next part of qp->wqe: at most a packet's bytes. @return
 * EMLX5_MORE if there is more to do, EMLX5_WAIT_RECV or EMLX5_WAIT_PEER if it
 * has to be tried again, else the result. */
emlx5_result_t emlx5_connected_step(emlx5_qp_t *qp);

#endif
