/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* npemu_epoch.h calls process_vm_readv() */
#define _GNU_SOURCE

/* UCX's internal headers need this one */
#include "config.h"

#include "calls.h"

#include "uct/ib/nprdma/net/nprdma_device.h"

#include "fabric/npemu_epoch.h"
#include "verbs/npemu_context.h"

/* The device is the one in the component, not the one that is linked with the
 * test, whose npemu_copy_calls() knows no process */
uint64_t calls_count(uct_md_h md)
{
    struct ibv_context *context = ucs_derived_of(md,
                                                 uct_nprdma_device_t)->context;

    return npemu_epoch_calls(npemu_context(context)->proc);
}
