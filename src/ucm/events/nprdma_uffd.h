/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_UFFD_H_
#define NPRDMA_UFFD_H_

#include "nprdma_hook.h"

#include <ucs/type/status.h>

BEGIN_C_DECLS

/**
 * Events of a userfaultfd, for system calls that bypass libc. It resolves no
 * page faults. The kernel reports MADV_DONTNEED and similar calls just before
 * it executes them, and munmap() and mremap() just after. It continues when the
 * event has been read. So a userfaultfd makes the time in which the emulated
 * NIC uses a page that is gone short, but not zero.
 */


typedef struct nprdma_uffd nprdma_uffd_t;


/**
 * Called by the thread of the userfaultfd when addresses have been taken away.
 * Must neither allocate nor unmap memory: the thread would wait for itself.
 */
typedef void (*nprdma_uffd_func_t)(void *arg, nprdma_span_t taken);


/**
 * Open a userfaultfd, and start the thread that reads its events.
 *
 * @param [in]  taken   Function to be called for each event.
 * @param [in]  arg     Its first argument.
 * @param [out] uffd_p  To be passed to @ref nprdma_uffd_stop.
 *
 * @return UCS_OK; UCS_ERR_UNSUPPORTED if the kernel has no userfaultfd or does
 *         not allow this process to use it; UCS_ERR_NO_MEMORY.
 */
ucs_status_t nprdma_uffd_start(nprdma_uffd_func_t taken, void *arg,
                               nprdma_uffd_t **uffd_p);

/** Stop the thread, close the userfaultfd and free @a uffd. */
void nprdma_uffd_stop(nprdma_uffd_t *uffd);

/**
 * Request events of a range. Parts that are not mapped, or that the kernel
 * cannot watch, are ignored.
 *
 * @param [in] uffd  Userfaultfd.
 * @param [in] span  Page aligned.
 */
void nprdma_uffd_watch(nprdma_uffd_t *uffd, nprdma_span_t span);

END_C_DECLS

#endif
