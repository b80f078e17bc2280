/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_FAULT_H_
#define NPRDMA_FAULT_H_

#include <ucs/sys/compiler_def.h>

#include <stdint.h>

BEGIN_C_DECLS

/**
 * The handler of SIGSEGV and SIGBUS that makes a touch (nprdma_touch.h) return
 * an error where the memory is not there. It recognises such a fault by the
 * program counter and by the faulting address, which must be in the range that
 * the touch was told of. Everything else is a matter of the application: the
 * action that was in place before is carried out as the kernel would do it,
 * with its siginfo, its mask, its stack and its flags, including SIG_DFL,
 * SIG_IGN and SA_RESETHAND.
 *
 * The application may install a handler of its own at any time. Then ours is
 * put on top of it when @ref nprdma_fault_install looks next. Until then faults
 * of touches are the other handler's, which is right if it calls what it has
 * replaced. Each time it is another function of ours, which knows what it has
 * replaced itself.
 *
 * The handler stays in the process: the application may have its address. So
 * the library must not be unloaded, see -z nodelete in the component's
 * Makefile.am.
 */


/** Signals of a thread between @ref nprdma_fault_enter and _leave. */
typedef struct nprdma_fault_turn {
    uint64_t blocked; /* Bits of the kernel's mask that are to be set again */
} nprdma_fault_turn_t;


/**
 * Put the handler in place, or on top of whatever the application has put in
 * its place. Any thread may call it. Two system calls if it is in place.
 *
 * @return Nonzero if it is in place. Zero: on processors without touches, while
 *         another thread is installing it, or if the application has installed
 *         more different handlers than there are functions of ours. Then no
 *         memory of the application may be touched.
 */
int nprdma_fault_install(void);


/**
 * Put back what was there before, unless the application has replaced it.
 * Nothing may be touched afterwards until it is installed again.
 */
void nprdma_fault_remove(void);


/**
 * @return What @ref nprdma_fault_install has returned last, in any thread. No
 *         system call. The calling thread must not block the two signals.
 */
int nprdma_fault_is_ready(void);


/**
 * Begin a turn of touches in a thread of the application: unblock the two
 * signals, and see to the handler unless that was done less than 0.1 ms ago.
 * One system call, or three.
 *
 * @param [out] turn  For @ref nprdma_fault_leave.
 *
 * @return As @ref nprdma_fault_install.
 */
int nprdma_fault_enter(nprdma_fault_turn_t *turn);

/** End a turn: block again what was blocked, by a system call if need be. */
void nprdma_fault_leave(const nprdma_fault_turn_t *turn);


/**
 * Ask whether the calling thread may touch memory of the application outside of
 * a turn: as @ref nprdma_fault_install, but zero also if the thread blocks one
 * of the signals; it goes on doing so. Three system calls.
 */
int nprdma_fault_look(void);

END_C_DECLS

#endif
