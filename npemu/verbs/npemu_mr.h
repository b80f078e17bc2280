/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Memory regions: the key table in the arena and its checks. */

#ifndef NPEMU_MR_H
#define NPEMU_MR_H

#include "fabric/npemu_proc.h"
#include "verbs/npemu_buf.h"
#include "verbs/npemu_pd.h"
#include "verbs/npemu_pin.h"

typedef struct npemu_mr {
    struct ibv_mr    super;
    npemu_pin_t      pin;    /* ends at 0 if no pages are pinned */
    struct npemu_buf *buf;   /* whose memory it is, or NULL */
    int32_t          table;  /* index of its IOMMU table, -1: it has none */
} npemu_mr_t;

/* NPEMU_ODP: on-demand paging of this process's device */
typedef enum npemu_odp_mode {
    NPEMU_ODP_NO,
    NPEMU_ODP_EXPLICIT, /* of ranges */
    NPEMU_ODP_IMPLICIT  /* of ranges, and of the whole address space */
} npemu_odp_mode_t;

/** Set up and tear down the table. Returns 0 or ENOMEM. */
int npemu_mr_table_init(npemu_proc_t *proc);
void npemu_mr_table_cleanup(npemu_proc_t *proc);

/** @return NPEMU_ODP as it was when the device was opened first. */
npemu_odp_mode_t npemu_mr_odp(const npemu_proc_t *proc);

#endif
