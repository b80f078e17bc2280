/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "verbs/npemu_pd.h"
#include "npemu.h"

#include <errno.h>
#include <stdlib.h>

struct ibv_pd *npemu_alloc_pd(struct ibv_context *context)
{
    npemu_proc_t *proc = npemu_context_proc(context);
    npemu_pd_t *pd;

    if (proc == NULL) {
        errno = NPEMU_ERR_FORKED;
        return NULL;
    }

    pd = calloc(1, sizeof(*pd));
    if (pd == NULL) {
        return NULL;
    }

    pthread_mutex_lock(&proc->lock);
    pd->id = ++proc->pd_next;
    pthread_mutex_unlock(&proc->lock);
    pd->super.context = context;
    pd->super.handle  = pd->id;
    return &pd->super;
}

int npemu_dealloc_pd(struct ibv_pd *ibpd)
{
    npemu_pd_t *pd = npemu_pd(ibpd);

    if (npemu_context_proc(ibpd->context) == NULL) {
        return NPEMU_ERR_FORKED;
    }

    if (atomic_load(&pd->refcount) != 0) {
        return EBUSY;
    }

    free(pd);
    return 0;
}
