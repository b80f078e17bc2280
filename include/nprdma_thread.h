/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * How every part of this library starts a thread. All signals are blocked in
 * it: signals that are sent to the process are for threads of the application.
 */

#ifndef NPRDMA_THREAD_H
#define NPRDMA_THREAD_H

#include <pthread.h>
#include <signal.h>

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
    sigset_t all, old;
    int ret;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    ret = pthread_create(thread, NULL, run, arg);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return ret;
}

#endif
