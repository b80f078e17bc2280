/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_ACCESS_H_
#define NPRDMA_ACCESS_H_

#include "nprdma_fault.h"

#include <ucs/sys/compiler_def.h>
#include <ucs/type/status.h>

#include <stddef.h>
#include <stdint.h>

BEGIN_C_DECLS

/*
 * Access to application memory, on behalf of a peer or at some time after the
 * application has asked for it. Memory that is unmapped, protected, or behind
 * the end of its file gives an error, never a signal, also if that happens
 * during the access.
 *
 * Stores, fetches and atomics are called between nprdma_fault_enter() and
 * nprdma_fault_leave() of the same thread (nprdma_fault.h). The result of
 * nprdma_fault_enter() can be ignored: the kernel copies the bytes if the CPU
 * must not access the memory.
 *
 * Functions may return UCS_ERR_BUSY: the range is being unmapped now, and has
 * not been accessed. The caller releases what an unmapping thread may wait for
 * (a registration, see nprdma_reg_get()), looks it up again, and tries
 * again.
 */


typedef enum nprdma_atomic_op {
    NPRDMA_ATOMIC_ADD,
    NPRDMA_ATOMIC_AND,
    NPRDMA_ATOMIC_OR,
    NPRDMA_ATOMIC_XOR,
    NPRDMA_ATOMIC_SWAP,
    NPRDMA_ATOMIC_CSWAP,
    NPRDMA_ATOMIC_LAST
} nprdma_atomic_op_t;


/* Prepare the process for accesses, or count one more user.
 * UCS_ERR_UNSUPPORTED: the system does not allow a process to copy to its own
 * memory with process_vm_writev(). */
ucs_status_t nprdma_access_init(void);


void nprdma_access_cleanup(void);


/* Whether accesses of 1, 2, 4 and 8 naturally aligned bytes and atomics are
 * single CPU instructions while the fault handler is installed. Else they are
 * copies, and atomics are atomic only with respect to each other. */
int nprdma_access_is_direct(void);


/* In a child after fork(): release the locks of this file, which another thread
 * of the parent may have held */
void nprdma_access_forked(void);


/* Store bytes from memory that cannot fault. 1, 2, 4 and 8 naturally aligned
 * bytes become visible together if nprdma_access_is_direct().
 * UCS_ERR_INVALID_ADDR: part of the range cannot be written; bytes before that
 * part may have been stored. */
ucs_status_t
nprdma_access_store(uintptr_t address, const void *data, size_t length);


/* Fetch bytes into memory that cannot fault, as nprdma_access_store() stores
 * them. UCS_ERR_INVALID_ADDR: not all of the range can be read; the data is
 * then undefined. */
ucs_status_t nprdma_access_fetch(void *data, uintptr_t address, size_t length);


/* Let the kernel copy bytes between application memory and memory that cannot
 * fault, in any order. May be called by any thread, also outside of
 * nprdma_fault_enter() and _leave(). UCS_ERR_INVALID_ADDR: not all of it can be
 * accessed. */
ucs_status_t nprdma_access_copy(uintptr_t address, void *data, size_t length,
                                int is_store);


/* Do an atomic operation on 4 or 8 naturally aligned bytes of application
 * memory; operands are truncated to that size. NPRDMA_ATOMIC_CSWAP stores the
 * value only over `compare`. *old_p is extended by zeros.
 * UCS_ERR_INVALID_PARAM: a size, an alignment or an operation that does not
 * exist. */
ucs_status_t
nprdma_access_atomic(nprdma_atomic_op_t op, size_t size, uintptr_t address,
                     uint64_t value, uint64_t compare, uint64_t *old_p);

END_C_DECLS

#endif
