/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef RMEM_SIGBUS_H_
#define RMEM_SIGBUS_H_

/* The process's handler of SIGBUS, which serves faults in windows and leaves
 * others to the handler that the program has. */

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>

/* Calls of this library that the thread is inside of: what it allocates there
 * must not be in a window, and what it changes are no acts of the program. */
extern __thread int rmem_inside;

/* Makes an access possible; in the handler. Another status than RMEM_OK: it is
 * the program's fault. */
typedef int (*rmem_sigbus_resolve_t)(void *arg, const void *address,
                                     bool is_write);

/* Faults in this range are resolved from now on. A program that has replaced
 * the handler has lost its other windows, not this one. */
int rmem_sigbus_add(char *base, size_t bytes, rmem_sigbus_resolve_t resolve,
                    void *arg);
void rmem_sigbus_remove(const char *base);

/* Accesses raise SIGBUS from now on, or fail with EFAULT in the kernel. flags:
 * of mmap(), to which the address is given. Returns what that returns. */
void *rmem_sigbus_forbid(void *address, size_t bytes, int flags);

/* All signals but those that an instruction causes: nprdma handles some */
void rmem_sigbus_others(sigset_t *signals);

/* The next two are for librmem_preload.so. */
#pragma GCC visibility push(default)

/* Whether there are such calls */
int rmem_sigbus_is_inside(void);

/* As sigaction(SIGBUS), for accesses outside of windows. Returns -1 if there
 * was no window yet, so the kernel has the action. */
int rmem_sigbus_action(const struct sigaction *action, struct sigaction *old);

#pragma GCC visibility pop

#endif
