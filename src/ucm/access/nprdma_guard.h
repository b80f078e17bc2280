/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_GUARD_H_
#define NPRDMA_GUARD_H_

#include <ucs/sys/compiler_def.h>
#include <ucs/type/status.h>

#include <stddef.h>
#include <stdint.h>

BEGIN_C_DECLS

/*
 * The unmap guard keeps a range of this process's address space mapped while a
 * CPU instruction accesses it, so that the instruction does not fault.
 *
 * It listens to the raw UCM events before and after a system call. A call that
 * takes memory away waits for the accesses in progress on that memory, and no
 * access begins there until the call has returned. Calls that do not overlap an
 * access are not delayed.
 *
 * It does not see system calls that bypass libc, mprotect() (UCM has no event
 * for it), and another process that truncates a shared file.
 */


/* An access in progress */
typedef struct nprdma_guard_ticket {
    unsigned index; /* In the table of accesses in progress */
} nprdma_guard_ticket_t;


/* Listen to the UCM events, in a forked child once more. Has one user.
 * UCS_ERR_UNSUPPORTED: UCM cannot deliver the events (switched off by
 * UCX_MEM_EVENTS=n, or hooks cannot be installed). */
ucs_status_t nprdma_guard_init(void);


void nprdma_guard_cleanup(void);


/* Begin to access a range that is not empty. Does not wait: the caller may hold
 * a resource that the unmapping thread needs, and must release it before it
 * tries again. UCS_ERR_BUSY: the range is being unmapped now or too many
 * accesses are in progress; UCS_ERR_UNSUPPORTED without handlers and in a child
 * made by fork(). */
ucs_status_t nprdma_guard_enter(uintptr_t address, size_t length,
                                nprdma_guard_ticket_t *ticket_p);


void nprdma_guard_leave(const nprdma_guard_ticket_t *ticket);


/* Wait for the accesses in progress on a range. New ones may begin
 * meanwhile. */
void nprdma_guard_wait(uintptr_t address, size_t length);


END_C_DECLS

#endif
