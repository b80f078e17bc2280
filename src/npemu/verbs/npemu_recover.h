/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Cleaning up what a process held of ours when it died. */

#ifndef NPEMU_RECOVER_H
#define NPEMU_RECOVER_H

#include "fabric/npemu_proc.h"

/**
 * Take back the receives that a dead process had taken and not completed, and
 * wake the users of all completion channels once, for the one notification that
 * it may have owed them. Not inside an epoch, no lock held.
 *
 * @param [in] owner  Its owner word.
 */
void npemu_recover(npemu_proc_t *proc, uint32_t owner);

#endif
