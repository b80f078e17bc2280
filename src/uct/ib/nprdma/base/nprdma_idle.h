/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_IDLE_H_
#define UCT_NPRDMA_IDLE_H_

#include <stdint.h>

/*
 * Calls of progress that find nothing take time from the other hardware thread
 * of the core, which may be the peer that this process waits for. So after a
 * while progress pauses in each of them, as libmlx5 does when it finds an empty
 * CQ. A wait of less than some 10 us takes no longer for that, and any other
 * one is longer by 0.1 us at most.
 *
 * The caller may poll other transports in turn, and they wait for the pause as
 * well. So an interface that has had nothing to do for long does not pause.
 */

/* Idle calls in a row without a pause */
#define UCT_NPRDMA_IDLE_FREE   256

/* Idle calls in a row after which there is no pause any more: with a pause this
 * takes half a second */
#define UCT_NPRDMA_IDLE_LIMIT  (1u << 22)


/* One per interface; zeros: there was something to do */
typedef struct uct_nprdma_idle {
    uint32_t count; /* Idle calls in a row, up to the limit */
} uct_nprdma_idle_t;


/* A call of progress has done something */
static inline void uct_nprdma_idle_reset(uct_nprdma_idle_t *idle)
{
    idle->count = 0;
}

/* A call of progress has found nothing to do: whether it should pause */
static inline int uct_nprdma_idle_poll(uct_nprdma_idle_t *idle)
{
    if (idle->count == UCT_NPRDMA_IDLE_LIMIT) {
        return 0;
    }
    return ++idle->count > UCT_NPRDMA_IDLE_FREE;
}

/* Leave the core to its other hardware thread for some 0.1 us */
static inline void uct_nprdma_idle_pause(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield" ::: "memory");
#endif
}

#endif
