/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_MEM_MD_H_
#define UCT_NPRDMA_MEM_MD_H_

#include "uct/ib/nprdma/net/nprdma_device.h"

#include "ucm/nprdma_monitor.h"

#include <stdatomic.h>

struct nprdma_reg_table;
struct uct_nprdma_odp;
struct uct_nprdma_mem;
struct uct_nprdma_mem_md;

/* Memory of the process as one device reaches it: the part of a memory domain
 * that nprdma_mem and nprdma_region share */

/* UCX_NPRDMA_MONITOR */
typedef enum uct_nprdma_monitor_kind {
    UCT_NPRDMA_MONITOR_AUTO,     /* the first of these tiers that can be had */
    UCT_NPRDMA_MONITOR_KERNEL,   /* the kernel module */
    UCT_NPRDMA_MONITOR_ODP,      /* none: on-demand paging of the device */
    UCT_NPRDMA_MONITOR_EMULATED, /* the library; emulated RNIC only */
    UCT_NPRDMA_MONITOR_COPY,     /* none: copy mode */
    UCT_NPRDMA_MONITOR_LAST
} uct_nprdma_monitor_kind_t;


typedef struct uct_nprdma_mem_config {
    uct_nprdma_monitor_kind_t monitor;
    int                       selfcheck;    /* of views of a real device */
    size_t                    region_size;  /* smallest region, bytes */
    nprdma_revoke_mode_t      revoke;
    /* Page states of idle regions, bytes at most */
    size_t                    region_cache;
    size_t                    lazy_unmap;   /* bytes; 0: keep nothing */
    nprdma_reclaim_mode_t     reclaim;
    double                    reclaim_rate; /* pages per second */
    unsigned long             seed;         /* of reclaim */
    /* Evictions by the emulated RNIC on accesses of a page */
    double                    fault_rate;   /* probability; 0: none */
    unsigned long             fault_seed;
} uct_nprdma_mem_config_t;


typedef struct uct_nprdma_mem_md {
    uct_nprdma_device_t        super;
    uct_nprdma_mem_config_t    config;
    /* In the floor above: populate pages of a registration in the background,
     * with NPRDMA_POPULATE_xx. Never waits. The registration may end at any
     * time. */
    void                       (*populate_async)(
            struct uct_nprdma_mem_md *md, const struct uct_nprdma_mem *mem,
            uintptr_t address, size_t length, unsigned flags);
    struct nprdma_reg_table    *regs;         /* registrations; nprdma_mem */
    nprdma_monitor_t           *monitor;      /* regions, if not NULL */
    /* On-demand paging in its place; both NULL: copy mode */
    struct uct_nprdma_odp      *odp;
    const char                 *mode;         /* name of the tier, or "copy" */
    /* Seconds that the first region took; 0: not expensive */
    double                     region_time;
    /* Small requests of peers that the service has executed */
    atomic_uint_fast64_t       num_served;
    /* errno of the last region that the device refused */
    atomic_int                 refusal;
    atomic_uint_fast64_t       region_id;     /* of the next region */
    /* Endpoints that have failed or were canceled */
    atomic_uint_fast64_t       ends;
    /* Nonzero: a warning about a missing region was logged */
    atomic_int                 copy_reported;
} uct_nprdma_mem_md_t;


/* Whether the device can access memory of the application */
static inline int uct_nprdma_mem_has_zcopy(const uct_nprdma_mem_md_t *md)
{
    return (md->monitor != NULL) || (md->odp != NULL);
}

#endif
