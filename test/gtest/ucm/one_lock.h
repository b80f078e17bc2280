/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_TEST_ONE_LOCK_H
#define NPRDMA_TEST_ONE_LOCK_H

#ifdef __cplusplus
extern "C" {
#endif

/*
 * malloc() of glibc behind one lock for all threads, as simple allocators have
 * it. So a memory hook that runs in malloc() holds the lock that every other
 * thread needs to allocate. The rule is that of ARCHITECTURE 4: a hook neither
 * allocates nor waits for a thread that allocates. The process ends with a line
 * that says so when malloc() is called in a hook, or if a thread waits for the
 * lock for longer than 30 seconds.
 *
 * Linked to a program, or preloaded.
 */

/** Hold the lock, as malloc() does when it calls mmap(). */
void one_lock_take(void);

/** Undo @ref one_lock_take. */
void one_lock_release(void);

/** @return Threads that wait for the lock now. */
int one_lock_num_waiting(void);

/**
 * This thread is in a memory hook that malloc() has not called.
 *
 * @param is_inside  Nonzero: from here on; 0: not any more. Nests.
 */
void one_lock_hook(int is_inside);

#ifdef __cplusplus
}
#endif

#endif
