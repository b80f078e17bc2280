/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_UFFD_H_
#define NPRDMA_UFFD_H_

#include "ucm/nprdma_monitor_int.h"

BEGIN_C_DECLS

/**
 * Events of a userfaultfd, for system calls that bypass libc. It resolves no
 * faults. The kernel tells of MADV_DONTNEED and the like just before, of munmap
 * and mremap just after it is done, and goes on when the event has been read:
 * so this makes the window of the emulation small, but does not close it.
 */


typedef struct nprdma_uffd nprdma_uffd_t;


/**
 * Start the thread that reads events. It never allocates, and never unmaps: it
 * would wait for itself.
 *
 * @return UCS_OK; UCS_ERR_UNSUPPORTED if the system has none for us;
 *         UCS_ERR_NO_MEMORY.
 */
ucs_status_t
nprdma_uffd_start(nprdma_monitor_t *monitor, nprdma_uffd_t **uffd_p);

/** Stop it, and free what belongs to it. */
void nprdma_uffd_stop(nprdma_uffd_t *uffd);

/**
 * Have events of a range reported, as far as it is mapped and the kernel can.
 *
 * @param [in] span  Page aligned.
 */
void nprdma_uffd_watch(nprdma_uffd_t *uffd, nprdma_span_t span);

END_C_DECLS

#endif
