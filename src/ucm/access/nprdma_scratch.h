/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_SCRATCH_H_
#define NPRDMA_SCRATCH_H_

#include <ucs/sys/compiler_def.h>
#include <ucs/type/status.h>

#include <stddef.h>
#include <stdint.h>

BEGIN_C_DECLS

/**
 * Stores into memory of this process that may not be there, in less than half
 * of the time of process_vm_writev() on oneself. That looks the process up,
 * asks all security modules whether it may be traced, and pins each page. Here
 * the bytes go by way of a file in memory, which is read to where they belong:
 * that copies as any system call does, and ends early where nothing is.
 *
 * Not for fetches: those are of memory that has just been found absent, where a
 * page fault costs more within a copy than process_vm_readv() in all.
 */


/* Most bytes of one store */
#define NPRDMA_SCRATCH_SIZE  8192


/**
 * Make the file, anew in a forked child. The caller sees to it that nobody
 * else is here.
 *
 * @return UCS_OK, or UCS_ERR_UNSUPPORTED: there are no stores in this way.
 */
ucs_status_t nprdma_scratch_init(void);


/** Close the file; after a failed init, too, and more than once. */
void nprdma_scratch_cleanup(void);


/**
 * Store bytes. From any number of threads.
 *
 * @param [in] address  Memory that may not be there.
 * @param [in] data     Memory of the caller, which is.
 * @param [in] length   Bytes, not zero.
 *
 * @return Zero if that cannot be done, or not in this way: some of the bytes
 *         may have been stored. Why, another way must find out.
 */
int nprdma_scratch_store(uintptr_t address, const void *data, size_t length);

END_C_DECLS

#endif
