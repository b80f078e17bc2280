/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * Buffers in the arena: memory for an application that peers have mapped. What
 * is sent to them, and RDMA to and from them, needs no system call.
 */

#ifndef NPEMU_BUF_H
#define NPEMU_BUF_H

#include "fabric/npemu_proc.h"

struct npemu_buf;

/** Take a reference to the buffer that contains a range, for an MR. `buf_p`:
 * the buffer; NULL if the range is outside of the arena. The caller returns it
 * with npemu_buf_put. Returns 0; EFAULT if the range is in the arena in part,
 * or not in one buffer. */
int npemu_buf_get(npemu_proc_t *proc, uint64_t addr, uint64_t length,
                  struct npemu_buf **buf_p);

/** Drop a reference; NULL is ignored. The last one frees the memory: no peer
 * may access it any more. */
void npemu_buf_put(struct npemu_buf *buf);

/** Before fork(): take the lock of the buffers, so that the child does not
 * inherit it from another thread. */
void npemu_buf_fork_prepare(void);

/** After fork(), in parent and child: release the lock. */
void npemu_buf_fork_done(void);

#endif
