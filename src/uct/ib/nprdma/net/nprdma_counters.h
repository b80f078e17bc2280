/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_COUNTERS_H_
#define UCT_NPRDMA_COUNTERS_H_

#include <stdint.h>

/*
 * Counters of one interface. They are plain integers, because only one thread
 * writes each of them: progress, or for cm_xx the async handler under its lock.
 * All of them only increase, except cm_responders, the present number of
 * responders. longest_xx_us is the longest wait of an operation by the kind of
 * wait (nprdma_longest.h).
 */
#define UCT_NPRDMA_FOREACH_COUNT(_macro) \
    _macro(am_short_tx)         \
    _macro(am_bcopy_tx)         \
    _macro(am_zcopy_tx)         \
    _macro(am_bytes_tx)         \
    _macro(am_rx)               \
    _macro(am_bytes_rx)         \
    _macro(am_rx_copied)        \
    _macro(am_rx_malformed)     \
    _macro(no_resource)         \
    _macro(pending)             \
    _macro(flush)               \
    _macro(fence)               \
    _macro(put)                 \
    _macro(put_bytes)           \
    _macro(get)                 \
    _macro(get_bytes)           \
    _macro(atomic)              \
    _macro(svc_requests)        \
    _macro(svc_replies)         \
    _macro(svc_errors)          \
    _macro(svc_probes)          \
    _macro(held_overlaps)       \
    _macro(held_atomics)        \
    _macro(held_requests)       \
    _macro(nic_put)             \
    _macro(nic_get)             \
    _macro(nic_slices)          \
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
    _macro(eps_created)         \
    _macro(eps_destroyed)       \
    _macro(eps_failed)          \
    _macro(cm_tx)               \
    _macro(cm_rx)               \
    _macro(cm_retransmits)      \
    _macro(cm_duplicates)       \
    _macro(cm_stale)            \
    _macro(cm_malformed)        \
    _macro(cm_failed)           \
    _macro(cm_rejected)         \
    _macro(cm_connected)        \
    _macro(cm_accepted)         \
    _macro(cm_responders)       \
    _macro(cm_probes)           \
    _macro(cm_injected)

#define UCT_NPRDMA_FOREACH_LONGEST(_macro) \
    _macro(longest_us)          \
    _macro(longest_connecting_us) \
    _macro(longest_credits_us)  \
    _macro(longest_fence_us)    \
    _macro(longest_send_us)     \
    _macro(longest_reply_us)    \
    _macro(longest_populate_us) \
    _macro(longest_copy_us)     \
    _macro(longest_transfer_us) \
    _macro(longest_verification_us) \
    _macro(longest_held_us)

#define UCT_NPRDMA_FOREACH_STAT(_macro) \
    UCT_NPRDMA_FOREACH_COUNT(_macro) \
    UCT_NPRDMA_FOREACH_LONGEST(_macro)

typedef struct uct_nprdma_stats {
#define UCT_NPRDMA_STAT_FIELD(_name) uint64_t _name;
    UCT_NPRDMA_FOREACH_STAT(UCT_NPRDMA_STAT_FIELD)
} uct_nprdma_stats_t;


/*
 * Memory statistics of an MD: first present values, then counts since it was
 * opened. pinned_bytes counts for the whole process.
 */
#define UCT_NPRDMA_FOREACH_MEM_STAT(_macro) \
    _macro(pinned_bytes)          \
    _macro(registrations)         \
    _macro(registered_bytes)      \
    _macro(registered_peak)       \
    _macro(regions)               \
    _macro(idle_regions)          \
    _macro(state_bytes)           \
    _macro(odp_regions)           \
    _macro(regions_created)       \
    _macro(regions_preregistered) \
    _macro(regions_dropped)       \
    _macro(odp_regions_created)   \
    _macro(pages_populated)       \
    _macro(pages_populate_us)     \
    _macro(populate_faults)       \
    _macro(pages_invalidated)     \
    _macro(pages_revoked)         \
    _macro(pages_reclaimed)       \
    _macro(pages_lost)            \
    _macro(memory_events)         \
    _macro(kernel_events)         \
    _macro(kernel_pages)          \
    _macro(drains)                \
    _macro(served_stores)         \
    _macro(served_fetches)        \
    _macro(served_atomics)        \
    _macro(served_populates)      \
    _macro(served_errors)         \
    _macro(prefetch_jobs)         \
    _macro(prefetch_dropped)      \
    _macro(prefetch_bytes)        \
    _macro(prefetch_waiting)

typedef struct uct_nprdma_mem_stats {
    UCT_NPRDMA_FOREACH_MEM_STAT(UCT_NPRDMA_STAT_FIELD)
#undef UCT_NPRDMA_STAT_FIELD
} uct_nprdma_mem_stats_t;

#endif
