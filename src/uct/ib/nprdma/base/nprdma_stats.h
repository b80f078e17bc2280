/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_STATS_H_
#define UCT_NPRDMA_STATS_H_

#include "uct/ib/nprdma/net/nprdma_counters.h"

#include <ucs/datastruct/string_buffer.h>
#include <ucs/type/status.h>

/* Check a value of UCX_NPRDMA_STATS: "", "summary", "stderr", "stdout" or
 * "file:PATH" */
ucs_status_t uct_nprdma_stats_check(const char *spec);


/* Whether the value asks for one line of the process (nprdma_summary.h) */
int uct_nprdma_stats_is_summary(const char *spec);


/* Write the counters as lines "name value"; nothing for "summary". In PATH %p
 * is the process id and %h the host name. Files are appended to. */
void uct_nprdma_stats_dump(const uct_nprdma_stats_t *stats,
                           const uct_nprdma_mem_stats_t *mem, const char *spec,
                           const char *device);


/* Append memory statistics as lines "name value" */
void uct_nprdma_stats_print_mem(const uct_nprdma_mem_stats_t *stats,
                                ucs_string_buffer_t *strb);


/* Show the counters in the UCS virtual file system, below an object
 * that they outlive */
void uct_nprdma_stats_vfs(void *obj, uct_nprdma_stats_t *stats);

#endif
