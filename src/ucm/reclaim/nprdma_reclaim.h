/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_RECLAIM_H_
#define NPRDMA_RECLAIM_H_

#include "ucm/nprdma_monitor_int.h"

BEGIN_C_DECLS

/**
 * The reclaimer evicts populated pages at random, so that what rarely happens
 * on a machine with enough memory happens often. The choice of pages is a
 * function of the seed and of what is populated at that moment.
 */


typedef struct nprdma_reclaimer nprdma_reclaimer_t;


/**
 * Start a reclaimer as the parameters of the monitor say; tells its seed.
 *
 * @return UCS_OK or UCS_ERR_NO_MEMORY.
 */
ucs_status_t nprdma_reclaimer_start(nprdma_monitor_t *monitor,
                                    nprdma_reclaimer_t **reclaimer_p);

/** Stop it, and free what belongs to it. */
void nprdma_reclaimer_stop(nprdma_reclaimer_t *reclaimer);

END_C_DECLS

#endif
