/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* An open device, and its asynchronous events. */

#ifndef NPEMU_CONTEXT_H
#define NPEMU_CONTEXT_H

#include "fabric/npemu_proc.h"

#include <infiniband/verbs.h>

typedef struct npemu_context {
    npemu_proc_t         *proc;
    pthread_mutex_t      events_lock;
    npemu_link_t         events;  /* raised and not delivered yet */
    /* Last, for struct verbs_context grows at its beginning */
    struct verbs_context super;
} npemu_context_t;

NPEMU_HOOK_INLINE npemu_context_t *npemu_context(struct ibv_context *context)
{
    return npemu_container_of(context, npemu_context_t, super.context);
}

/**
 * The process, if the calling one is it that opened the device; else NULL: this
 * is a forked child, and the call must be refused.
 */
NPEMU_HOOK_INLINE npemu_proc_t *
npemu_context_proc(struct ibv_context *context)
{
    npemu_proc_t *proc = npemu_context(context)->proc;

    return npemu_likely(proc == npemu_self()) ? proc : NULL;
}

#endif
