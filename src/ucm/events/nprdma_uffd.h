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


/**
 * Open a userfaultfd that is only for @ref nprdma_uffd_is_foreign.
 *
 * @return Descriptor, to be closed by the caller, or -1: the kernel gives this
 *         process none, and so none to the program that it runs.
 */
int nprdma_uffd_open_probe(void);

/**
 * Find out whether the application watches memory by a userfaultfd of its own.
 * No call tells so. But a mapping that no userfaultfd watches has no pages to
 * continue with (ENOENT), and a range that one watches cannot be registered
 * with another one (ioctl_userfaultfd(2), EBUSY). For memory hooks; may change
 * errno.
 *
 * @param [in] probe      From @ref nprdma_uffd_open_probe, in this process.
 * @param [in] span       Whole pages of writable private anonymous memory.
 *                        Nothing watches them by @a probe before or after the
 *                        call.
 * @param [in] page_size  Bytes of a page if one mapping of the kernel covers
 *                        the span: then its first page tells for all, which is
 *                        faster. 0: there may be several.
 *
 * @return Nonzero if any page is watched, or if the kernel does not say so.
 *         What @ref nprdma_uffd_watch has registered counts as not watched.
 */
int nprdma_uffd_is_foreign(int probe, nprdma_span_t span, size_t page_size);

END_C_DECLS

#endif
