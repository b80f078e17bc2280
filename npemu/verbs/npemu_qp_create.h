/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Steps of the destruction of a QP that RESET takes as well. */

#ifndef NPEMU_QP_CREATE_H
#define NPEMU_QP_CREATE_H

#include "engine/npemu_qp.h"
#include "fabric/npemu_epoch.h"

/**
 * Discard requests and completions, on the way to RESET or destruction.
 * `control` is held; the state is no longer one that receives.
 */
void npemu_qp_clear(npemu_qp_t *qp);

/** Disconnect from the target. */
void npemu_qp_disconnect(npemu_qp_t *qp);

#endif
