/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* The functions of npemu_iommu.h that take an open device. */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "verbs/npemu_context.h"
#include "fabric/npemu_epoch.h"
#include "inject/npemu_fault.h"

NPEMU_HOOK
void npemu_iommu_drain(struct ibv_context *context)
{
    npemu_proc_t *proc = npemu_context_proc(context);

    if (proc != NULL) {
        npemu_epoch_drain(proc);
    }
}

int npemu_fault_random(struct ibv_context *context, const char *spec)
{
    return (npemu_context_proc(context) == NULL) ?
                   NPEMU_ERR_FORKED : npemu_random_configure(spec);
}
