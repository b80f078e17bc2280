/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_TOUCH_H_
#define NPRDMA_TOUCH_H_

#include <ucs/sys/compiler_def.h>

#include <stddef.h>
#include <stdint.h>

BEGIN_C_DECLS

/**
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


/** Result of a touch that could not access the memory. */
#define NPRDMA_TOUCH_FAULT (-1)


#if defined(__x86_64__) || defined(__aarch64__)
#  define NPRDMA_TOUCH_SUPPORTED 1
#else
#  define NPRDMA_TOUCH_SUPPORTED 0
#endif


/** Registers of a thread at the time of a signal. */
typedef struct nprdma_touch_regs {
    uintptr_t pc;
    uintptr_t start;  /* The range of a touch, if pc is in one */
    uintptr_t length; /* Bytes */
} nprdma_touch_regs_t;


#if NPRDMA_TOUCH_SUPPORTED

/**
 * Copy bytes to or from application memory, by instructions in ascending order
 * of the addresses.
 *
 * @param [in] to      Destination.
 * @param [in] from    Source.
 * @param [in] length  Bytes; may be zero.
 * @param [in] app     Either @a to or @a from: the one in application memory.
 *
 * @return 0, or NPRDMA_TOUCH_FAULT: some of the bytes may have been copied.
 */
int nprdma_touch_copy(void *to, const void *from, size_t length,
                      const void *app);


/**
 * Load a naturally aligned word by one instruction, with acquire order.
 *
 * @param [in]  app    Application memory.
 * @param [out] value  The word, extended by zeros. Undefined after a fault.
 *
 * @return 0 or NPRDMA_TOUCH_FAULT.
 */
int nprdma_touch_load1(const void *app, uint64_t *value);
int nprdma_touch_load2(const void *app, uint64_t *value);
int nprdma_touch_load4(const void *app, uint64_t *value);
int nprdma_touch_load8(const void *app, uint64_t *value);


/**
 * Store a naturally aligned word by one instruction, with release order.
 *
 * @param [in] app    Application memory.
 * @param [in] value  The word; upper bits are ignored.
 *
 * @return 0 or NPRDMA_TOUCH_FAULT: nothing has been stored.
 */
int nprdma_touch_store1(void *app, uint64_t value);
int nprdma_touch_store2(void *app, uint64_t value);
int nprdma_touch_store4(void *app, uint64_t value);
int nprdma_touch_store8(void *app, uint64_t value);


/**
 * Compare a naturally aligned word with a value, and store another one if they
 * are equal, as one atomic and sequentially consistent operation.
 *
 * @param [in]    app       Application memory.
 * @param [inout] expected  Value to compare with. Replaced by the old value of
 *                          the word, extended by zeros.
 * @param [in]    value     Value to store; upper bits are ignored.
 *
 * @return 0: they were equal, and the value is stored; 1: they were not;
 *         NPRDMA_TOUCH_FAULT: nothing has been stored.
 */
int nprdma_touch_cswap4(void *app, uint64_t *expected, uint64_t value);
int nprdma_touch_cswap8(void *app, uint64_t *expected, uint64_t value);


/**
 * Count lines of NPRDMA_LINE_SIZE bytes whose first 8 bytes have a certain
 * value.
 *
 * @param [in] app        Application memory, of any alignment.
 * @param [in] num_lines  Lines; may be zero.
 * @param [in] value      The value.
 *
 * @return Number of such lines, or NPRDMA_TOUCH_FAULT.
 */
long nprdma_touch_lines(const void *app, size_t num_lines, uint64_t value);

#endif


/**
 * Check whether a thread was in a touch when it received a signal.
 * Async-signal-safe.
 *
 * @param [in]  context  ucontext_t, the argument of the signal handler.
 * @param [out] regs     Filled.
 *
 * @return Nonzero if the thread was in a touch.
 */
int nprdma_touch_is_at(const void *context, nprdma_touch_regs_t *regs);


/**
 * Make a touch return NPRDMA_TOUCH_FAULT when the signal handler returns.
 *
 * @param [inout] context  As for @ref nprdma_touch_is_at, which returned
 *                         nonzero.
 */
void nprdma_touch_fail(void *context);

END_C_DECLS

#endif
