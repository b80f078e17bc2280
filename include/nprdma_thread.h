/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * Every part of this library starts its threads by these functions. Signals are
 * blocked in them: signals that are sent to the process are for threads of the
 * application.
 */

#ifndef NPRDMA_THREAD_H
#define NPRDMA_THREAD_H

#include <pthread.h>
#include <signal.h>

/* Start a thread with the mask of signals */
static inline int
nprdma_thread_start_masked(pthread_t *thread, const sigset_t *mask,
                           void *(*run)(void *arg), void *arg)
{
    sigset_t old;
    int ret;

    pthread_sigmask(SIG_SETMASK, mask, &old);
    ret = pthread_create(thread, NULL, run, arg);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return ret;
}

/**
 * Start a thread with all signals blocked. The mask of the calling thread is
 * the same before and after the call.
 *
 * @param [out] thread  The thread; the caller joins it. Not defined after an
 *                      error.
 * @param [in]  run     Function that the thread executes.
 * @param [in]  arg     Its argument.
 *
 * @return 0, or the errno value of pthread_create(): EAGAIN if the limit of
 *         threads is reached or there is no memory.
 */
static inline int
nprdma_thread_start(pthread_t *thread, void *(*run)(void *arg), void *arg)
{
    sigset_t mask;

    sigfillset(&mask);
    return nprdma_thread_start_masked(thread, &mask, run, arg);
}

/**
 * Start a thread that accesses memory of the application. SIGSEGV and SIGBUS
 * are not blocked, because they report faults of the thread's own accesses:
 * Linux kills a process whose thread raises one of them while it is blocked.
 *
 * The arguments and the result are those of nprdma_thread_start().
 */
static inline int
nprdma_thread_start_accessing(pthread_t *thread, void *(*run)(void *arg),
                              void *arg)
{
    sigset_t mask;

    sigfillset(&mask);
    sigdelset(&mask, SIGSEGV);
    sigdelset(&mask, SIGBUS);
    return nprdma_thread_start_masked(thread, &mask, run, arg);
}

#endif
