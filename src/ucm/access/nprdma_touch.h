/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_TOUCH_H_
#define NPRDMA_TOUCH_H_

#include <ucs/sys/compiler_def.h>

#include <stddef.h>
#include <stdint.h>

BEGIN_C_DECLS

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


#if defined(__x86_64__) || defined(__aarch64__)
#  define NPRDMA_TOUCH_SUPPORTED 1
#else
#  define NPRDMA_TOUCH_SUPPORTED 0
#endif


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


#if NPRDMA_TOUCH_SUPPORTED

/* Count lines of NPRDMA_LINE_SIZE bytes whose first 8 bytes have a certain
 * value, in memory of any alignment */
long nprdma_touch_lines(const void *app, size_t num_lines, uint64_t value);


/* Whether a thread was in a touch when it received a signal with this
 * ucontext_t. Async-signal-safe. */
int nprdma_touch_is_at(const void *context, nprdma_touch_regs_t *regs);


/* Make that touch return NPRDMA_TOUCH_FAULT when the signal handler returns */
void nprdma_touch_fail(void *context);

#endif

END_C_DECLS

#endif
