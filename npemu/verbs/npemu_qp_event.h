/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Asynchronous events of QPs, CQs and SRQs, and the flush of receives. */

#ifndef NPEMU_QP_EVENT_H
#define NPEMU_QP_EVENT_H

#include "engine/npemu_qp.h"

/** Complete all receives of a QP in ERR as flushed. `control` is held. */
void npemu_qp_flush_recv(npemu_qp_t *qp);

/** Handle events that this or other processes have set. By the npemu thread. */
void npemu_qp_handle_events(npemu_proc_t *proc);

#endif
