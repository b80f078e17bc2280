/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* The ibv_wr_* way of posting: requests are collected between wr_start and
 * wr_complete, then posted as one list. */

#ifndef NPEMU_QP_EX_H
#define NPEMU_QP_EX_H

#include "engine/npemu_qp.h"

/** Prepare a QP for ibv_wr_*. Returns 0, EOPNOTSUPP if one is not offered for
 * this type, or ENOMEM. */
int npemu_qp_ex_init(npemu_qp_t *qp, uint64_t ops);
void npemu_qp_ex_cleanup(npemu_qp_t *qp);

#endif
