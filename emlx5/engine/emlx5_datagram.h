/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Datagrams (UD, and the management queue pairs). */

#ifndef EMLX5_DATAGRAM_H
#define EMLX5_DATAGRAM_H

#include "engine/emlx5_result.h"

/** Sends qp->wqe. A datagram that nothing waits for is lost, which is no error.
 * */
emlx5_result_t emlx5_datagram_send(emlx5_qp_t *qp);

#endif
