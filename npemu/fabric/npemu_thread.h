/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * The npemu thread, one in each process. It sleeps in poll() on the pidfds of
 * the peers and on `wake`, with a timeout while work waits for a retry. It
 * holds the robust mutex of the process' slot.
 */

#ifndef NPEMU_THREAD_H
#define NPEMU_THREAD_H

#include "fabric/npemu_proc.h"

/** Start the thread; it claims a slot. Returns 0, or an errno value with an
 * error line. */
int npemu_thread_start(npemu_proc_t *proc);

/** Stop it. It releases the slot. */
void npemu_thread_stop(npemu_proc_t *proc);

/** Make it retry waiting work at a time (CLOCK_MONOTONIC, ns) at the latest. No
 * system call if it does so anyway. */
void npemu_thread_set_timer(npemu_proc_t *proc, uint64_t when_ns);

#endif
