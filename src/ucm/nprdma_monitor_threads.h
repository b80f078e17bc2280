/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_MONITOR_THREADS_H_
#define NPRDMA_MONITOR_THREADS_H_

#include "nprdma_monitor_types.h"

BEGIN_C_DECLS

/* Connect the revoker to the monitor, whose parameters are set */
void nprdma_monitor_init_revoker(nprdma_monitor_t *monitor);


/* Start the threads that the parameters of a monitor ask for, all but that of
 * the revoker, which starts with the first registration. Without a userfaultfd,
 * a line is logged. */
ucs_status_t nprdma_monitor_start_threads(nprdma_monitor_t *monitor);

/* Memory hooks may still run */
void nprdma_monitor_stop_threads(nprdma_monitor_t *monitor);

END_C_DECLS

#endif
