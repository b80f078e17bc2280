/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Taking back what a dead process held of this one. */

#ifndef NPEMU_RECOVER_H
#define NPEMU_RECOVER_H

#include "fabric/npemu_proc.h"

/**
 * Take back the receives that processes which are gone had taken and not
 * completed, and raise one event on each CQ with a channel, since such a
 * process may have died before it raised one. Connections to such processes
 * end: their requests fail, and descriptors and mappings of these processes are
 * released. Not inside an epoch, no lock held.
 */
void npemu_recover(npemu_proc_t *proc);

#endif
