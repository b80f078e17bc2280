/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_UFFD_H_
#define NPRDMA_UFFD_H_

#include "nprdma_hook.h"

BEGIN_C_DECLS

/* Memory that the application watches by a userfaultfd */


/* Open a userfaultfd that is only for nprdma_uffd_is_foreign(). -1: the kernel
 * gives this process none, and so none to the program that it runs; then
 * nothing is foreign. */
int nprdma_uffd_open_probe(void);

/* Find out whether the application watches whole pages of writable private
 * anonymous memory by a userfaultfd of its own. No call tells so. But a mapping
 * that no userfaultfd watches has no pages to continue with (ENOENT), and a
 * range that one watches cannot be registered with another one
 * (ioctl_userfaultfd(2), EBUSY). Nothing watches them by `probe` before or
 * after the call. If one mapping of the kernel covers the span, its page size
 * makes it faster: its first page tells for all. 0: there may be several.
 * Nonzero also if the kernel does not say so. For memory hooks; may change
 * errno. */
int nprdma_uffd_is_foreign(int probe, nprdma_span_t span, size_t page_size);

END_C_DECLS

#endif
