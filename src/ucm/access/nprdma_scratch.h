/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_SCRATCH_H_
#define NPRDMA_SCRATCH_H_

#include <ucs/sys/compiler_def.h>
#include <ucs/type/status.h>

#include <stddef.h>
#include <stdint.h>

BEGIN_C_DECLS

/*
 * Stores into memory of this process that may not be mapped, in less than half
 * of the time of process_vm_writev() on the own process. That call looks the
 * process up, asks all security modules whether it may be traced, and pins each
 * page. Here the bytes are copied to a mapped file in memory, and preadv()
 * reads them to their destination. As any system call, it ends early at an
 * address that is not accessible.
 *
 * There is no such fetch. Fetches are from memory that was found absent, and a
 * page fault within a copy costs more than all of process_vm_readv().
 */


/* Most bytes of one store */
#define NPRDMA_SCRATCH_SIZE  8192


/* Create the file, again in a forked child. The caller makes sure that no other
 * thread uses it. After an error nprdma_scratch_store() fails. */
ucs_status_t nprdma_scratch_init(void);


/* May be called after a failed init, and more than once */
void nprdma_scratch_cleanup(void);


/* Store bytes, not none, from memory that cannot fault. May be called by any
 * number of threads. Zero: some of the bytes may have been stored; the caller
 * tries another way, which finds the reason. */
int nprdma_scratch_store(uintptr_t address, const void *data, size_t length);

END_C_DECLS

#endif
