/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Work requests that change memory keys ("user-mode memory registration"). All
 * registrations of user memory go through them. */

#ifndef EMLX5_UMR_H
#define EMLX5_UMR_H

#include "engine/emlx5_result.h"

/** Carries out qp->wqe. @return The result. */
emlx5_result_t emlx5_umr(emlx5_qp_t *qp);

#endif
