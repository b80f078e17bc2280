/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * The process joins the fabric with the first device that it opens, and leaves
 * with the last one that it closes. All floors are set up and torn down here.
 */

#ifndef NPEMU_ATTACH_H
#define NPEMU_ATTACH_H

#include "fabric/npemu_proc.h"

/** Attach the process to the fabric, or take one more reference. Returns the
 * process, until npemu_detach; or NULL with errno and an error line. */
npemu_proc_t *npemu_attach(void);

/** Drop a reference; the last one detaches. */
void npemu_detach(npemu_proc_t *proc);

#endif
