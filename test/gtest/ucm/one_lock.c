/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "one_lock.h"

#include <errno.h>
#include <execinfo.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define ONE_LOCK_SECONDS 30

/* What glibc exports for allocators that are built upon its own */
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *ptr, size_t size);
void *__libc_memalign(size_t alignment, size_t size);
void __libc_free(void *ptr);

static _Atomic uintptr_t one_lock_owner; /* Thread; 0: it is free */
static atomic_int one_lock_waiting;

/* The model for objects that are there from the start: its first use does not
 * allocate */
static __thread int one_lock_depth __attribute__((tls_model("initial-exec")));

/* Without stdio, which allocates */
static void one_lock_fail(const char *text)
{
    void *frames[32];

    (void)!write(2, text, strlen(text));
    backtrace_symbols_fd(frames, backtrace(frames, 32), 2);
    abort();
}

void one_lock_take(void)
{
    uintptr_t self = (uintptr_t)pthread_self();
    uintptr_t expected;
    time_t start;

    if ((atomic_load(&one_lock_owner) == self) || (one_lock_depth > 0)) {
        one_lock_fail("one_lock: FAILED: a memory hook allocates\n");
    }

    expected = 0;
    if (atomic_compare_exchange_strong(&one_lock_owner, &expected, self)) {
        return;
    }

    start = time(NULL);
    atomic_fetch_add(&one_lock_waiting, 1);
    do {
        sched_yield();
        if (time(NULL) - start > ONE_LOCK_SECONDS) {
            one_lock_fail("one_lock: FAILED: a thread holds the lock of "
                          "malloc() for ever: a memory hook waits for another "
                          "thread\n");
        }
        expected = 0;
    } while (!atomic_compare_exchange_weak(&one_lock_owner, &expected, self));
    atomic_fetch_sub(&one_lock_waiting, 1);
}

void one_lock_release(void)
{
    atomic_store(&one_lock_owner, 0);
}

int one_lock_num_waiting(void)
{
    return atomic_load(&one_lock_waiting);
}

void one_lock_hook(int is_inside)
{
    one_lock_depth += is_inside ? 1 : -1;
}

/* Registered first, so this is the last one before fork(). The other threads
 * are not in a child. */
static void one_lock_child(void)
{
    atomic_store(&one_lock_waiting, 0);
    one_lock_release();
}

__attribute__((constructor(101))) static void one_lock_init(void)
{
    void *frame;

    backtrace(&frame, 1); /* Allocates the first time */
    pthread_atfork(one_lock_take, one_lock_release, one_lock_child);
}

void *malloc(size_t size)
{
    void *ptr;

    one_lock_take();
    ptr = __libc_malloc(size);
    one_lock_release();
    return ptr;
}

void *calloc(size_t count, size_t size)
{
    void *ptr;

    one_lock_take();
    ptr = __libc_calloc(count, size);
    one_lock_release();
    return ptr;
}

void *realloc(void *old, size_t size)
{
    void *ptr;

    one_lock_take();
    ptr = __libc_realloc(old, size);
    one_lock_release();
    return ptr;
}

void free(void *ptr)
{
    if (ptr != NULL) {
        one_lock_take();
        __libc_free(ptr);
        one_lock_release();
    }
}

void *memalign(size_t alignment, size_t size)
{
    void *ptr;

    one_lock_take();
    ptr = __libc_memalign(alignment, size);
    one_lock_release();
    return ptr;
}

void *aligned_alloc(size_t alignment, size_t size)
{
    return memalign(alignment, size);
}

int posix_memalign(void **ptr_p, size_t alignment, size_t size)
{
    void *ptr = memalign(alignment, size);

    if (ptr == NULL) {
        return ENOMEM;
    }

    *ptr_p = ptr;
    return 0;
}
