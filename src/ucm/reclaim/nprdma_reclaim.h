/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_RECLAIM_H_
#define NPRDMA_RECLAIM_H_

#include "ucm/regions/nprdma_regions.h"

BEGIN_C_DECLS

/* The reclaimer evicts populated pages at random. So operations meet absent
 * pages often, which is rare on a machine with enough memory. The choice of
 * pages is a function of the seed and of the pages populated at that moment. */


typedef struct nprdma_reclaimer nprdma_reclaimer_t;


typedef struct nprdma_reclaimer_params {
    nprdma_regions_t       *regions;   /* Whose pages are evicted */
    const _Atomic uint64_t *num_bytes; /* Of the states of all regions */
    double                  rate;      /* Pages per second */
    uint64_t                seed;      /* 0: random */
    int                     is_real;   /* Nonzero: write the pages out, too */
    const char             *mode;      /* Name of the mode, for the log */

    /* Take a page away from the NIC. Called by the thread of the reclaimer
     * while the page is blocked. */
    void (*evict)(void *arg, nprdma_span_t page);
    void                   *arg;       /* Of evict */
} nprdma_reclaimer_params_t;


/* Its seed is logged */
ucs_status_t nprdma_reclaimer_start(const nprdma_reclaimer_params_t *params,
                                    nprdma_reclaimer_t **reclaimer_p);

void nprdma_reclaimer_stop(nprdma_reclaimer_t *reclaimer);

END_C_DECLS

#endif
