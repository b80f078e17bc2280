/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_stats_ucs.h"

#ifdef ENABLE_STATS


#include <ucs/time/time.h>

#include <stddef.h>

/* Seconds between updates: short enough for a reader of a running program */
#define UCT_NPRDMA_STATS_UCS_INTERVAL 0.1

#define UCT_NPRDMA_STATS_NUM(_type) (sizeof(_type) / sizeof(uint64_t))

/* In uct_nprdma_stats_t the longest waits follow the counts */
#define UCT_NPRDMA_STATS_NUM_COUNTS \
    (offsetof(uct_nprdma_stats_t, longest_us) / sizeof(uint64_t))

_Static_assert(UCT_NPRDMA_STATS_NUM_COUNTS <= 64,
               "UCX writes the first 64 counters of a class only");
_Static_assert(UCT_NPRDMA_STATS_NUM(uct_nprdma_mem_stats_t) <= 64,
               "UCX writes the first 64 counters of a class only");

#define UCT_NPRDMA_STAT_NAME(_name) #_name,

/* The names of the files in the virtual file system */
static ucs_stats_class_t uct_nprdma_stats_counters_class = {
    .name          = "nprdma_counters",
    .num_counters  = UCT_NPRDMA_STATS_NUM_COUNTS,
    .class_id      = UCS_STATS_CLASS_ID_INVALID,
    .counter_names = { UCT_NPRDMA_FOREACH_COUNT(UCT_NPRDMA_STAT_NAME) }
};

static ucs_stats_class_t uct_nprdma_stats_waits_class = {
    .name          = "nprdma_waits",
    .num_counters  = UCT_NPRDMA_STATS_NUM(uct_nprdma_stats_t) -
                     UCT_NPRDMA_STATS_NUM_COUNTS,
    .class_id      = UCS_STATS_CLASS_ID_INVALID,
    .counter_names = { UCT_NPRDMA_FOREACH_LONGEST(UCT_NPRDMA_STAT_NAME) }
};

static ucs_stats_class_t uct_nprdma_stats_memory_class = {
    .name          = "nprdma_memory",
    .num_counters  = UCT_NPRDMA_STATS_NUM(uct_nprdma_mem_stats_t),
    .class_id      = UCS_STATS_CLASS_ID_INVALID,
    .counter_names = { UCT_NPRDMA_FOREACH_MEM_STAT(UCT_NPRDMA_STAT_NAME) }
};

/* Reads counters while another thread writes them, as
 * uct_nprdma_stats_vfs_show() */
__attribute__((no_sanitize("thread")))
static void uct_nprdma_stats_ucs_copy(ucs_stats_node_t *node,
                                      const void *counters)
{
    const uint64_t *values = counters;
    unsigned i;

    for (i = 0; i < node->cls->num_counters; ++i) {
        UCS_STATS_SET_COUNTER(node, i, values[i]);
    }
}

static void uct_nprdma_stats_ucs_copy_all(const uct_nprdma_stats_ucs_t *nodes,
                                          const uct_nprdma_mem_stats_t *mem)
{
    const uct_nprdma_stats_t *stats = nodes->iface->stats;

    uct_nprdma_stats_ucs_copy(nodes->counters, stats);
    uct_nprdma_stats_ucs_copy(nodes->waits, &stats->longest_us);
    uct_nprdma_stats_ucs_copy(nodes->memory, mem);
}

static void uct_nprdma_stats_ucs_handler(int id, ucs_event_set_types_t events,
                                         void *arg)
{
    uct_nprdma_stats_ucs_t *nodes = arg;
    uct_nprdma_mem_stats_t mem;

    if (nodes->iface->forked) {
        return;
    }

    uct_nprdma_md_stats(nodes->md, &mem);
    uct_nprdma_stats_ucs_copy_all(nodes, &mem);
}

/* A signal handler could interrupt its own thread while that holds the locks of
 * the memory statistics. In that mode the nodes are updated only at the end */
static ucs_status_t
uct_nprdma_stats_ucs_start_timer(uct_nprdma_stats_ucs_t *nodes)
{
    ucs_async_context_t *async = nodes->iface->super.worker->async;
    ucs_time_t interval        = ucs_time_from_sec(
                                         UCT_NPRDMA_STATS_UCS_INTERVAL);

    if (async->mode == UCS_ASYNC_MODE_SIGNAL) {
        return UCS_OK;
    }

    return ucs_async_add_timer(async->mode, interval,
                               uct_nprdma_stats_ucs_handler, nodes, async,
                               &nodes->timer_id);
}

ucs_status_t uct_nprdma_stats_ucs_start(uct_nprdma_net_iface_t *iface,
                                        uct_nprdma_md_t *md,
                                        uct_nprdma_stats_ucs_t *nodes)
{
    const char *name = uct_nprdma_net_dev(iface)->name;
    ucs_status_t status;

    nodes->iface    = iface;
    nodes->md       = md;
    nodes->timer_id = -1;
    status          = UCS_STATS_NODE_ALLOC(&nodes->counters,
                                           &uct_nprdma_stats_counters_class,
                                           iface->super.stats, "-%s", name);
    if ((status != UCS_OK) || (nodes->counters == NULL)) {
        nodes->waits  = NULL;
        nodes->memory = NULL;
        return status;
    }

    status = UCS_STATS_NODE_ALLOC(&nodes->waits, &uct_nprdma_stats_waits_class,
                                  iface->super.stats, "-%s", name);
    if (status != UCS_OK) {
        goto err_counters;
    }

    status = UCS_STATS_NODE_ALLOC(&nodes->memory,
                                  &uct_nprdma_stats_memory_class,
                                  iface->super.stats, "-%s", name);
    if (status != UCS_OK) {
        goto err_waits;
    }

    status = uct_nprdma_stats_ucs_start_timer(nodes);
    if (status != UCS_OK) {
        goto err_memory;
    }
    return UCS_OK;

err_memory:
    UCS_STATS_NODE_FREE(nodes->memory);
err_waits:
    UCS_STATS_NODE_FREE(nodes->waits);
err_counters:
    UCS_STATS_NODE_FREE(nodes->counters);
    return status;
}

void uct_nprdma_stats_ucs_end(uct_nprdma_stats_ucs_t *nodes,
                              const uct_nprdma_mem_stats_t *mem)
{
    if (nodes->counters == NULL) {
        return;
    }

    if (nodes->timer_id >= 0) {
        ucs_async_remove_handler(nodes->timer_id, 1);
    }

    uct_nprdma_stats_ucs_copy_all(nodes, mem);
    UCS_STATS_NODE_FREE(nodes->memory);
    UCS_STATS_NODE_FREE(nodes->waits);
    UCS_STATS_NODE_FREE(nodes->counters);
}

#endif
