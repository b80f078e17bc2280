/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* An open device, and its asynchronous events. */

#ifndef NPEMU_CONTEXT_H
#define NPEMU_CONTEXT_H

#include "fabric/npemu_proc.h"

#include <infiniband/verbs.h>

typedef struct npemu_context {
    npemu_proc_t         *proc;
    npemu_event_fd_t     async;   /* asynchronous events; no peer adds any */
    pthread_mutex_t      events_lock;
    npemu_link_t         events;  /* raised and not delivered yet */
    /* Last, since new versions extend struct verbs_context at its beginning */
    struct verbs_context super;
} npemu_context_t;

NPEMU_HOOK_INLINE npemu_context_t *npemu_context(struct ibv_context *context)
{
    return npemu_container_of(context, npemu_context_t, super.context);
}

/**
 * The process, if it has opened the device itself; else NULL: this is a forked
 * child, and the call must fail with NPEMU_ERR_FORKED.
 */
NPEMU_HOOK_INLINE npemu_proc_t *
npemu_context_proc(struct ibv_context *context)
{
    npemu_proc_t *proc = npemu_context(context)->proc;

    return npemu_likely(proc == npemu_self()) ? proc : NULL;
}

/** Attach the process to the fabric, or take one more reference. Returns the
 * process, until npemu_detach; or NULL with errno and an error line. */
npemu_proc_t *npemu_attach(void);

/** Drop a reference; the last one detaches. */
void npemu_detach(npemu_proc_t *proc);

#endif
