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
 * None of this waits for a thread that unmaps memory, nor does that wait. The
 * end of a registration waits for accesses (nprdma_reg_retire()): none of them
 * meets what is mapped there later.
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


/*
 * Touches: accesses by the CPU to memory that may not be mapped. These routines
 * are the only ones of this library that load from, or store to, memory of the
 * application. The process may unmap, protect or truncate that memory at any
 * moment, and other processes may truncate its file.
 *
 * They are leaf routines in assembly language that do not change the stack
 * pointer. Two registers hold the range of application memory meanwhile. So the
 * fault handler (nprdma_fault.h) needs only the registers and the address of a
 * fault to make the routine return NPRDMA_TOUCH_FAULT. No recovery point has to
 * be set, so a touch that succeeds has no extra cost.
 *
 * While the handler is not installed, a fault is delivered to the application.
 *
 * No byte is stored twice: the application may poll on it and reset it.
 */

/* Result of a touch that could not access the memory */
#define NPRDMA_TOUCH_FAULT (-1)


/* Of a thread at the time of a signal */
typedef struct nprdma_touch_regs {
    uintptr_t pc;
    uintptr_t start;  /* The range of a touch, if pc is in one */
    uintptr_t length; /* Bytes */
} nprdma_touch_regs_t;


/* Copy bytes to or from application memory, by instructions in ascending order
 * of the addresses. `app` is the one of `to` and `from` that is in application
 * memory. 1, 2, 4 and 8 bytes there, if naturally aligned, are accessed by one
 * instruction. After a fault some of the bytes may have been copied. */
int nprdma_touch_copy(void *to, const void *from, size_t length,
                      const void *app);


/* Compare a naturally aligned word with a value, and store another one if they
 * are equal, as one atomic and sequentially consistent operation. *expected
 * becomes the old value, extended by zeros. 0: they were equal, and the value
 * is stored; 1: they were not. */
int nprdma_touch_cswap4(void *app, uint64_t *expected, uint64_t value);
int nprdma_touch_cswap8(void *app, uint64_t *expected, uint64_t value);


/* Count lines of NPRDMA_LINE_SIZE bytes whose first 8 bytes have a certain
 * value, in memory of any alignment */
long nprdma_touch_lines(const void *app, size_t num_lines, uint64_t value);


/* Whether a thread was in a touch when it received a signal with this
 * ucontext_t. Async-signal-safe. */
int nprdma_touch_is_at(const void *context, nprdma_touch_regs_t *regs);


/* Make that touch return NPRDMA_TOUCH_FAULT when the signal handler returns */
void nprdma_touch_fail(void *context);

END_C_DECLS

#endif
