/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_EXECUTED_H_
#define UCT_NPRDMA_EXECUTED_H_

#include <ucs/datastruct/list.h>
#include <ucs/datastruct/queue.h>
#include <ucs/debug/log.h>
#include <ucs/debug/memtrack_int.h>

#include <stdatomic.h>
#include <stdint.h>

/* How many requests of a peer's endpoint the service has executed. A message on
 * that endpoint's connection of kind AM carries the number of requests that it
 * follows, and is delivered only after these (ARCHITECTURE 3, messages and
 * flags). The responder of that connection, the service's connection, and the
 * messages that wait have a reference each: the number may be needed after the
 * service's connection has ended. */
typedef struct uct_nprdma_executed {
    atomic_uint          refs;
    atomic_uint_fast64_t count;       /* Written by the executing thread */
    atomic_int           is_ended;    /* No more will be executed */
    /* The service counts. Used with the async context blocked */
    int                  has_service;

    /* Used by the progress of the interface only */
    ucs_queue_head_t     waiting;     /* Messages, in order */
    unsigned             num_waiting;
    /* A message is lost: those behind it are dropped */
    int                  is_lost;
    ucs_list_link_t      list;        /* In iface->rx.waiting if there are
                                       * any, or is_lost */
} uct_nprdma_executed_t;


/* With one reference; NULL after a line in the log */
static inline uct_nprdma_executed_t *uct_nprdma_executed_new(void)
{
    uct_nprdma_executed_t *executed;

    executed = ucs_calloc(1, sizeof(*executed), "nprdma_executed");
    if (executed == NULL) {
        ucs_error("failed to allocate the count of a peer's requests");
        return NULL;
    }

    atomic_init(&executed->refs, 1);
    ucs_queue_head_init(&executed->waiting);
    return executed;
}

static inline void uct_nprdma_executed_join(uct_nprdma_executed_t *executed)
{
    atomic_fetch_add_explicit(&executed->refs, 1, memory_order_relaxed);
}

static inline void uct_nprdma_executed_leave(uct_nprdma_executed_t *executed)
{
    if (atomic_fetch_sub(&executed->refs, 1) == 1) {
        ucs_free(executed);
    }
}

/* What the request wrote is visible before the count is. NULL is allowed. */
static inline void uct_nprdma_executed_add(uct_nprdma_executed_t *executed)
{
    /* Not an atomic increment: only the executing thread writes it */
    if (ucs_likely(executed != NULL)) {
        atomic_store_explicit(&executed->count,
                              atomic_load_explicit(&executed->count,
                                                   memory_order_relaxed) + 1,
                              memory_order_release);
    }
}

static inline uint64_t
uct_nprdma_executed_count(const uct_nprdma_executed_t *executed)
{
    return atomic_load_explicit(&executed->count, memory_order_acquire);
}

/* No more requests will be executed: messages that wait for some are lost */
static inline void uct_nprdma_executed_end(uct_nprdma_executed_t *executed)
{
    atomic_store_explicit(&executed->is_ended, 1, memory_order_release);
}

#endif
