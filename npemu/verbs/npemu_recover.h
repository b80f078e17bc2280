/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* What the npemu thread does for objects of its process: it takes back what a
 * dead process held of them, and handles events that processes have set. */

#ifndef NPEMU_RECOVER_H
#define NPEMU_RECOVER_H

#include "engine/npemu_qp.h"

/**
 * Take back the receives that processes which are gone had taken and not
 * completed, and raise one event on each CQ with a channel, since such a
 * process may have died before it raised one. Connections to such processes
 * end: their requests fail, and descriptors and mappings of these processes are
 * released. Not inside an epoch, no lock held.
 */
void npemu_recover(npemu_proc_t *proc);

/** Handle events that this or other processes have set. */
void npemu_qp_handle_events(npemu_proc_t *proc);

/** Complete all receives of a QP in ERR as flushed. `control` is held. */
void npemu_qp_flush_recv(npemu_qp_t *qp);

#endif
