/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef RMEM_WINDOW_H_
#define RMEM_WINDOW_H_

/*
 * A window: addresses whose pages come from the server when they are accessed,
 * and leave when the cache is full. userfaultfd reports accesses to absent
 * pages, and the first write to each protected one. The thread that faults does
 * all the work, in its handler of SIGBUS, which userfaultfd sends it. With
 * RMEM_KERNEL_FAULTS one thread of the window does it, also for accesses of the
 * kernel; otherwise system calls fail with EFAULT where a page is absent or
 * protected.
 *
 * Rules, each of which has its test in test_rmem_window.cc:
 * 1. Only what is protected is compared with its twin.
 * 2. A twin is taken before the protection is lifted.
 * 3. A page is not fetched before the ACK of what was last sent of it.
 * 4. A flush ends when all has its ACK.
 * 5. The server stores messages in their order, before it sends their ACKs.
 * 6. After a failure no page that is not here reads as anything.
 * 7. A child of fork() has no window.
 * 8. Pages, twins and buffers never exceed cache_bytes.
 * 9. A page is virgin again only when the server is told to drop it, by a
 *    message in the order of the others.
 */

#include "rmem_session.h"

/* With the mutex. Sends all that was changed. */
int rmem_window_flush(rmem_window_t *window);

/* With the mutex. Pages read as zeros then. */
int rmem_window_discard(rmem_window_t *window, uint32_t first, uint32_t count);

/* Unmaps the window; before its session is closed. */
void rmem_window_close(rmem_window_t *window);

#endif
