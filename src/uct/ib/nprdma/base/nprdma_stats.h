/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_STATS_H_
#define UCT_NPRDMA_STATS_H_

#include "uct/ib/nprdma/net/nprdma_counters.h"

#include <ucs/datastruct/list.h>
#include <ucs/datastruct/string_buffer.h>
#include <ucs/type/status.h>

/* Counters for UCX_NPRDMA_STATS and UCX's virtual file system, and the sums
 * over all interfaces and memory domains of the process: for
 * UCX_NPRDMA_STATS=summary, and in part for nprdma-run, in the record when the
 * last memory domain is closed. Calls are safe in any thread. A child made by
 * fork() begins with zeros. */

/* Part of an interface */
typedef struct uct_nprdma_stats_entry {
    ucs_list_link_t          list;
    const uct_nprdma_stats_t *stats;
} uct_nprdma_stats_entry_t;


/* Check a value of UCX_NPRDMA_STATS: "", "summary", "stderr", "stdout" or
 * "file:PATH" */
ucs_status_t uct_nprdma_stats_check(const char *spec);


/* The component is loaded: called once, before all other functions but the
 * check */
void uct_nprdma_stats_init(void);


void uct_nprdma_stats_md_opened(void);


/* The interfaces of the memory domain have been closed */
void uct_nprdma_stats_md_closed(const uct_nprdma_mem_stats_t *mem);


/* spec: UCX_NPRDMA_STATS. With "summary" the process prints a line when it
 * exits. */
void uct_nprdma_stats_iface_opened(uct_nprdma_stats_entry_t *entry,
                                   const uct_nprdma_stats_t *stats,
                                   const char *spec);


/* Unless spec is "summary" or "", write the counters as lines "name value". In
 * PATH %p is the process id and %h the host name. Files are appended to. The
 * memory statistics are from before its buffers were freed. */
void uct_nprdma_stats_iface_closed(uct_nprdma_stats_entry_t *entry,
                                   const uct_nprdma_mem_stats_t *mem,
                                   const char *spec, const char *device);


/* Interfaces that are still open count with their present counters, and their
 * memory domains do not count: the thread that exits may have interrupted a
 * thread that holds their locks */
void uct_nprdma_stats_exit(void);


/* Append memory statistics as lines "name value" */
void uct_nprdma_stats_print_mem(const uct_nprdma_mem_stats_t *stats,
                                ucs_string_buffer_t *strb);


/* Show the counters in the UCS virtual file system, below an object that they
 * outlive */
void uct_nprdma_stats_vfs(void *obj, uct_nprdma_stats_t *stats);

#endif
