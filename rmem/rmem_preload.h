/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef RMEM_PRELOAD_H_
#define RMEM_PRELOAD_H_

/*
 * librmem_preload.so puts large allocations of a program that knows nothing of
 * it into a window. rmem-run has it loaded into the program and its children.
 * It needs libc alone: librmem and UCX are loaded when the first allocation is
 * large enough, so that other processes pay nothing.
 *
 * Rules:
 * R1. The handler of SIGBUS stays, and SIGBUS is never blocked. The program's
 *     handler is called for other addresses.
 * R2. The window stays one mapping (rmem_window.h), and is not locked.
 * R3. System calls get local memory; the window's is copied to or from it. So
 *     it is with --kernel-faults, which is for other calls: what a device still
 *     writes, for O_DIRECT, must not leave.
 * R4. What librmem and UCX allocate is local, in their threads, too; and what
 *     libc allocates for itself, because it gives that to the kernel.
 * R5. A child of fork() has only local memory. A program that it executes has
 *     a window of its own, if it needs one.
 */

#include "rmem.h"

#include <dlfcn.h>
#include <signal.h>
#include <stdbool.h>

/* A function of the program that has a substitute here */
#define RMEM_PRELOAD_EXPORT __attribute__((visibility("default")))

typedef struct {
    const char *name;
    void       **function;
} rmem_preload_real_t;

/* The function that a substitute stands for. The loader is asked for all of
 * them at the start: a thread of UCX that asked it later would wait for its
 * lock, which a thread that opens the window may have. */
#define RMEM_PRELOAD_REAL(name) \
    ({ \
        static __typeof__(&name) function_; \
        static const rmem_preload_real_t real_ \
                __attribute__((section("rmem_preload_reals"), used)) = { \
            #name, (void**)&function_ \
        }; \
        if (function_ == NULL) { \
            function_ = (__typeof__(function_))rmem_preload_real(#name); \
        } \
        function_; \
    })

typedef struct {
    rmem_t *rmem;
    char   *base;
    size_t bytes;   /* 0: no window */

    /* Functions of librmem, once it is loaded */
    int (*is_inside)(void);
    int (*sigaction)(const struct sigaction *action, struct sigaction *old);
} rmem_preload_t;

extern rmem_preload_t rmem_preload;

void *rmem_preload_real(const char *name);

/* One line to standard error */
__attribute__((format(printf, 1, 2)))
void rmem_preload_say(const char *format, ...);

/* Whether the thread is inside of librmem, or of this library's own work */
bool rmem_preload_is_inside(void);

/* What the program may block; NULL stays NULL */
const sigset_t *rmem_preload_mask(const sigset_t *set, sigset_t *copy);

/* Whether memory is of the window */
static inline bool rmem_preload_owns(const void *ptr)
{
    return (size_t)((const char*)ptr - rmem_preload.base) < rmem_preload.bytes;
}

#endif
