/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_PREREG_H_
#define NPRDMA_PREREG_H_

#include "nprdma_monitor_int.h"

BEGIN_C_DECLS

/**
 * Pre-registration, after Gerofi et al.: what the process maps gets its region
 * ahead of use, so that the first registration finds one. A hook must not
 * create regions, so a thread does, which sleeps otherwise.
 */


typedef struct nprdma_prereg nprdma_prereg_t;


/** Start the thread. @return UCS_OK or UCS_ERR_NO_MEMORY. */
ucs_status_t
nprdma_prereg_start(nprdma_monitor_t *monitor, nprdma_prereg_t **prereg_p);

/** Stop it. Hooks may still come. */
void nprdma_prereg_stop(nprdma_prereg_t *prereg);

/** Free what belongs to it once it was stopped, and no hook can come. */
void nprdma_prereg_free(nprdma_prereg_t *prereg);

/**
 * Tell that memory has been mapped. For hooks. Small mappings are ignored, and
 * so is what comes faster than the thread takes it.
 */
void nprdma_prereg_add(nprdma_prereg_t *prereg, nprdma_span_t span);

END_C_DECLS

#endif
