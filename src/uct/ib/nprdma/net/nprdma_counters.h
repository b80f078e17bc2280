/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_COUNTERS_H_
#define UCT_NPRDMA_COUNTERS_H_

#include "ucm/regions/nprdma_reg.h"

#include <nprdma_counters_page.h>

#include <ucs/datastruct/list.h>
#include <ucs/type/status.h>

#include <stddef.h>
#include <stdint.h>

/* Counters of one interface. They are plain integers, because only one thread
 * writes each of them: progress, or for cm_xx the async handler under its lock.
 * All of them only increase, except cm_responders, the present number of
 * responders. */
#define UCT_NPRDMA_FOREACH_STAT(_macro) \
    _macro(am_short_tx)         \
    _macro(am_bcopy_tx)         \
    _macro(am_zcopy_tx)         \
    _macro(am_bytes_tx)         \
    _macro(am_rx)               \
    _macro(am_bytes_rx)         \
    _macro(am_rx_malformed)     \
    _macro(am_rx_waited)        \
    _macro(no_resource)         \
    _macro(put)                 \
    _macro(put_bytes)           \
    _macro(get)                 \
    _macro(get_bytes)           \
    _macro(atomic)              \
    _macro(svc_requests)        \
    _macro(svc_replies)         \
    _macro(svc_probes)          \
    _macro(held_overlaps)       \
    _macro(held_atomics)        \
    _macro(held_requests)       \
    _macro(nic_put)             \
    _macro(nic_get)             \
    _macro(nic_slices)          \
    _macro(bulk_slices)         \
    _macro(nic_hits)            \
    _macro(nic_on_demand)       \
    _macro(suspect_lines)       \
    _macro(suspect_states)      \
    _macro(suspect_local)       \
    _macro(false_suspects)      \
    _macro(redone_slices)       \
    _macro(state_reads)         \
    _macro(assist_populate)     \
    _macro(assist_small)        \
    _macro(assist_fetch)        \
    _macro(assist_store)        \
    _macro(populate_us)         \
    _macro(copy_us)             \
    _macro(local_populate)      \
    _macro(eps_failed)          \
    _macro(bulk_eps)            \
    _macro(bulk_refused)        \
    _macro(cm_retransmits)      \
    _macro(cm_stale)            \
    _macro(cm_malformed)        \
    _macro(cm_failed)           \
    _macro(cm_rejected)         \
    _macro(cm_connected)        \
    _macro(cm_accepted)         \
    _macro(cm_responders)       \
    _macro(cm_probes)           \
    _macro(longest_us)

typedef struct uct_nprdma_stats {
#define UCT_NPRDMA_STAT_FIELD(_name) uint64_t _name;
    UCT_NPRDMA_FOREACH_STAT(UCT_NPRDMA_STAT_FIELD)
} uct_nprdma_stats_t;


/* Memory statistics of an MD: first present values, then counts since it was
 * opened. pinned_bytes and lazy_xx are of the whole process. */
#define UCT_NPRDMA_FOREACH_MEM_STAT(_macro) \
    _macro(pinned_bytes)          \
    _macro(registrations)         \
    _macro(registered_bytes)      \
    _macro(registered_peak)       \
    _macro(regions)               \
    _macro(state_bytes)           \
    _macro(odp_regions)           \
    _macro(regions_created)       \
    _macro(odp_regions_created)   \
    _macro(pages_populated)       \
    _macro(populate_faults)       \
    _macro(pages_revoked)         \
    _macro(pages_reclaimed)       \
    _macro(memory_events)         \
    _macro(kernel_events)         \
    _macro(kernel_pages)          \
    _macro(lazy_reused)           \
    _macro(lazy_dropped)          \
    _macro(served_stores)         \
    _macro(served_fetches)        \
    _macro(served_atomics)        \
    _macro(served_populates)      \
    _macro(served_errors)         \
    _macro(prefetch_jobs)         \
    _macro(prefetch_dropped)      \
    _macro(prefetch_waiting)      \
    _macro(pagein_jobs)           \
    _macro(pagein_slow)           \
    _macro(pagein_peak)           \
    _macro(pagein_threads)

typedef struct uct_nprdma_mem_stats {
    UCT_NPRDMA_FOREACH_MEM_STAT(UCT_NPRDMA_STAT_FIELD)
#undef UCT_NPRDMA_STAT_FIELD
} uct_nprdma_mem_stats_t;


typedef struct uct_nprdma_device_stats {
    uint64_t          pinned_bytes; /* by pools of this device; atomic */
    nprdma_reg_sums_t registered;
} uct_nprdma_device_stats_t;

#define UCT_NPRDMA_DEVICE_STAT_NAMES \
    "pinned_bytes\0registered_bytes\0registered_peak"


/* A page of counters that nprdma-top reads while the process runs. In a run of
 * nprdma-run it is a file of that run, which outlives the process. Else it is a
 * file in memory, which other processes find by the name of the descriptor. A
 * forked child gets a private copy of zeros. */
typedef struct uct_nprdma_counters {
    ucs_list_link_t          list;
    nprdma_counters_header_t *header; /* start of the page */
    void                     *values;
    int                      fd;      /* -1: a private page */
    uint64_t                 inode;   /* of the file */
} uct_nprdma_counters_t;


/* Make a page of zeros. Names are strings that end with 0, in the order of the
 * values of 64 bits; all fit into a page of 4 KiB. Where the process can have
 * no further file, the page is private: counting matters more than showing. */
ucs_status_t
uct_nprdma_counters_open(uct_nprdma_counters_t *counters, const char *kind,
                         const char *device, const char *names,
                         size_t names_size, unsigned num);


/* How a device watches memory: "kernel", "odp", "emulated" or "copy" */
void uct_nprdma_counters_set_mode(uct_nprdma_counters_t *counters,
                                  const char *mode);


void uct_nprdma_counters_close(uct_nprdma_counters_t *counters);

#endif
