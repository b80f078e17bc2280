/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_SUMMARY_H_
#define UCT_NPRDMA_SUMMARY_H_

#include "uct/ib/nprdma/net/nprdma_counters.h"

#include <ucs/datastruct/list.h>

/* Sums of the counters of all interfaces and memory domains of the process: for
 * UCX_NPRDMA_STATS=summary, and in part for nprdma-run, in the record when the
 * last memory domain is closed. Calls are safe in any thread. A child made by
 * fork() begins with zeros. */

/* Part of an interface */
typedef struct uct_nprdma_summary_entry {
    ucs_list_link_t          list;
    const uct_nprdma_stats_t *stats;
} uct_nprdma_summary_entry_t;


/* The component is loaded: called once, before all other functions */
void uct_nprdma_summary_init(void);


void uct_nprdma_summary_md_opened(void);


/* The interfaces of the memory domain have been closed */
void uct_nprdma_summary_md_closed(const uct_nprdma_mem_stats_t *mem);


/* is_line: the process prints a line when it exits */
void uct_nprdma_summary_iface_opened(uct_nprdma_summary_entry_t *entry,
                                     const uct_nprdma_stats_t *stats,
                                     int is_line);


/* The memory statistics are from before its buffers were freed */
void uct_nprdma_summary_iface_closed(uct_nprdma_summary_entry_t *entry,
                                     const uct_nprdma_mem_stats_t *mem);


/* Interfaces that are still open count with their present counters, and their
 * memory domains do not count: the thread that exits may have interrupted a
 * thread that holds their locks */
void uct_nprdma_summary_exit(void);

#endif
