/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_FAULT_H_
#define NPRDMA_FAULT_H_

#include <ucs/sys/compiler_def.h>

#include <stdint.h>

BEGIN_C_DECLS

/*
 * The fault handler: the handler of SIGSEGV and SIGBUS that makes a touch
 * (nprdma_access.h) return an error if the memory is not accessible. It
 * recognises such a fault by the program counter and by the faulting address,
 * which must be in the range of the touch. For all other signals it executes
 * the action that it has replaced as the kernel would: with its siginfo, mask,
 * stack and flags, including SIG_DFL, SIG_IGN and SA_RESETHAND.
 *
 * The application may install a handler at any time. Then the kernel copies the
 * bytes, from the next check on and until ours is restored. Until that check
 * the other handler receives the faults of touches; this works if it calls the
 * handler that it has replaced, which is ours.
 *
 * The handler stays in the process, since the application may have stored its
 * address. So the library must not be unloaded: see -z nodelete in the
 * component's Makefile.am.
 */


/* Signals of a thread between nprdma_fault_enter() and _leave() */
typedef struct nprdma_fault_section {
    uint64_t blocked; /* Bits of the kernel's signal mask to be set again */
} nprdma_fault_section_t;


/* Install the handler. Callers exclude each other, and those of
 * nprdma_fault_remove(). Zero: another handler of the application has replaced
 * it. Then memory of the application must not be touched. */
int nprdma_fault_install(void);


/* Whether the handler is installed. Any thread may call it. Two system
 * calls. */
int nprdma_fault_check(void);


/* Restore the previous action, unless the application has replaced the handler.
 * Application memory must not be touched until it is installed again. */
void nprdma_fault_remove(void);


/* The result of the last nprdma_fault_check(), in any thread. No system call.
 * The calling thread must not block the two signals. */
int nprdma_fault_is_ready(void);


/* Begin a sequence of touches in a thread of the application: unblock the two
 * signals, and check the handler unless that was done less than 0.1 ms ago. One
 * system call, or three. Returns as nprdma_fault_install(). */
int nprdma_fault_enter(nprdma_fault_section_t *section);

/* End a sequence: block again the signals that nprdma_fault_enter() has
 * unblocked. One system call, or none. */
void nprdma_fault_leave(const nprdma_fault_section_t *section);


/* Whether the calling thread may touch application memory without
 * nprdma_fault_enter(): the handler is installed, and the thread blocks neither
 * signal. Three system calls. */
int nprdma_fault_may_touch(void);

END_C_DECLS

#endif
