/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_config.h"
#include "nprdma_stats.h"
#include "uct/ib/nprdma/net/nprdma_bounce.h"
#include "uct/ib/nprdma/net/nprdma_perf.h"
#include "uct/ib/nprdma/wire/nprdma_key.h"

#include "ucm/events/nprdma_lazy.h"

#include <ucs/debug/log.h>
#include <ucs/sys/sys.h>

/* In pages per second: far more than any memory has */
#define UCT_NPRDMA_MAX_RECLAIM_RATE 1e9

/* Longest useful timeout in seconds: one day */
#define UCT_NPRDMA_MAX_SEC    86400

/* UCX's thread for timers sleeps in whole milliseconds: with a shorter timer it
 * would not sleep at all */
#define UCT_NPRDMA_MIN_TIMER  1e-3

static const char *uct_nprdma_emulation_names[] = {
    [UCT_NPRDMA_EMULATION_AUTO] = "auto",
    [UCT_NPRDMA_EMULATION_YES]  = "yes",
    [UCT_NPRDMA_EMULATION_NO]   = "no",
    [UCT_NPRDMA_EMULATION_LAST] = NULL
};

static const char *uct_nprdma_order_modes[] = {
    [UCT_NPRDMA_ORDER_RC]      = "rc",
    [UCT_NPRDMA_ORDER_ATOMICS] = "atomic",
    [UCT_NPRDMA_ORDER_UCP]     = "ucp",
    [UCT_NPRDMA_ORDER_LAST]    = NULL
};

static const char *uct_nprdma_zcopy_names[] = {
    [UCT_NPRDMA_ZCOPY_AUTO] = "auto",
    [UCT_NPRDMA_ZCOPY_NO]   = "no",
    [UCT_NPRDMA_ZCOPY_LAST] = NULL
};

static const char *uct_nprdma_monitor_names[] = {
    [UCT_NPRDMA_MONITOR_AUTO]     = "auto",
    [UCT_NPRDMA_MONITOR_KERNEL]   = "kernel",
    [UCT_NPRDMA_MONITOR_ODP]      = "odp",
    [UCT_NPRDMA_MONITOR_EMULATED] = "emulated",
    [UCT_NPRDMA_MONITOR_LAST]     = NULL
};

ucs_config_field_t uct_nprdma_md_config_table[] = {
    {"", "", NULL, ucs_offsetof(uct_nprdma_md_config_t, super),
     UCS_CONFIG_TYPE_TABLE(uct_md_config_table)},

    {"EMULATION", "auto",
     "Whether to use the emulated RNIC:\n"
     " - auto : only where no real RDMA device has a port that is up\n"
     " - yes  : use the emulated one, and no other\n"
     " - no   : use real devices only",
     ucs_offsetof(uct_nprdma_md_config_t, emulation),
     UCS_CONFIG_TYPE_ENUM(uct_nprdma_emulation_names)},

    {"MAX_PINNED", "4m",
     "Limit of pinned memory, for all devices and interfaces of the process\n"
     "together. Only the transport's own bounce buffers are ever pinned.",
     ucs_offsetof(uct_nprdma_md_config_t, max_pinned),
     UCS_CONFIG_TYPE_MEMUNITS},

    {"SVC_SLOTS", "32",
     "Number of buffers for requests of peers to the memory of this process.",
     ucs_offsetof(uct_nprdma_md_config_t, svc_slots), UCS_CONFIG_TYPE_UINT},

    {"SVC_THREADS", "4",
     "Maximum number of threads that bring in absent pages for requests of\n"
     "peers. They start when they are needed. 0: the service brings pages in\n"
     "itself, one at a time, and all other requests wait for them.",
     ucs_offsetof(uct_nprdma_md_config_t, svc_threads), UCS_CONFIG_TYPE_UINT},

    {"GID_INDEX", "0",
     "Index of the port's GID to use. RoCE networks may need one of their own.",
     ucs_offsetof(uct_nprdma_md_config_t, device.gid_index),
     UCS_CONFIG_TYPE_UINT},

    {"SL", "0",
     "Service level of the packets, 0 to 15. In RoCE networks it is the\n"
     "priority, 0 to 7.",
     ucs_offsetof(uct_nprdma_md_config_t, device.path.sl),
     UCS_CONFIG_TYPE_UINT},

    {"TRAFFIC_CLASS", "0",
     "Traffic class of the packets, 0 to 255; in RoCE networks the type of\n"
     "service. It is a field of the global route header, which InfiniBand\n"
     "packets have only if it is not 0.",
     ucs_offsetof(uct_nprdma_md_config_t, device.path.traffic_class),
     UCS_CONFIG_TYPE_UINT},

    {"BULK_SL", "0",
     "Service level of the slices of large puts and gets, where they have a\n"
     "queue pair of their own.",
     ucs_offsetof(uct_nprdma_md_config_t, device.bulk_path.sl),
     UCS_CONFIG_TYPE_UINT},

    {"BULK_TRAFFIC_CLASS", "0",
     "Traffic class of the same packets.",
     ucs_offsetof(uct_nprdma_md_config_t, device.bulk_path.traffic_class),
     UCS_CONFIG_TYPE_UINT},

    {"TIMEOUT", "0.1s",
     "Time after which the device repeats a packet that was not acknowledged.",
     ucs_offsetof(uct_nprdma_md_config_t, device.timeout),
     UCS_CONFIG_TYPE_TIME},

    /* Not 7: some devices take 7 for "without limit", as in the count of RNR
     * retries. Soft-RoCE does, see COMPST_ERROR_RETRY in rxe_comp.c */
    {"RETRY_COUNT", "6",
     "Number of times that the device repeats a packet before the peer counts\n"
     "as dead (0 to 7; some devices, such as soft-RoCE, take 7 for no limit).",
     ucs_offsetof(uct_nprdma_md_config_t, device.retry_count),
     UCS_CONFIG_TYPE_UINT},

    {"RNR_TIMEOUT", "20us",
     "Time that a sender waits when the receiver has no buffer posted.",
     ucs_offsetof(uct_nprdma_md_config_t, device.rnr_timeout),
     UCS_CONFIG_TYPE_TIME},

    {"ZCOPY", "auto",
     "Whether the device moves large messages without a copy. Memory is not\n"
     "pinned in either case.\n"
     " - auto : where the device and the memory monitor can\n"
     " - no   : all data goes through bounce buffers",
     ucs_offsetof(uct_nprdma_md_config_t, mem.zcopy),
     UCS_CONFIG_TYPE_ENUM(uct_nprdma_zcopy_names)},

    {"MONITOR", "auto",
     "What keeps the device and the pages of the process in step:\n"
     " - auto     : the first of the others that can be had for the device,\n"
     "              without it all data goes through bounce buffers\n"
     " - kernel   : the kernel module, or fail\n"
     " - odp      : on-demand paging of the device, or fail\n"
     " - emulated : the library, for the emulated RNIC only, or fail",
     ucs_offsetof(uct_nprdma_md_config_t, mem.monitor),
     UCS_CONFIG_TYPE_ENUM(uct_nprdma_monitor_names)},

    {"SELFCHECK", "y",
     "Check the windows of a real device before they are used. For tests that\n"
     "need a broken device only, n.",
     ucs_offsetof(uct_nprdma_md_config_t, mem.selfcheck),
     UCS_CONFIG_TYPE_BOOL},

    {"REGION_SIZE", "256m",
     "Size of a region, the unit of address space that is made known to the\n"
     "device. Power of two. Registering memory in a region that the device\n"
     "knows is only a lookup.",
     ucs_offsetof(uct_nprdma_md_config_t, mem.region_size),
     UCS_CONFIG_TYPE_MEMUNITS},

    {"REVOKE", "lazy",
     "When pages whose last exported registration has ended become\n"
     "inaccessible to peers that still have the key. Deregistration with\n"
     "invalidation always revokes them before it completes.\n"
     " - lazy   : within 100 ms, unless they are registered again\n"
     " - strict : before deregistration returns\n"
     " - never  : only when the kernel takes the pages or the region ends",
     ucs_offsetof(uct_nprdma_md_config_t, mem.revoke),
     UCS_CONFIG_TYPE_ENUM(nprdma_revoke_mode_names)},

    {"REGION_CACHE", "64m",
     "Maximum size of the page states of regions without registrations.\n"
     "Beyond it, the least recently used regions are destroyed. One byte of\n"
     "page states describes 1 KiB of memory.",
     ucs_offsetof(uct_nprdma_md_config_t, mem.region_cache),
     UCS_CONFIG_TYPE_MEMUNITS},

    {"SLICE", "512k",
     "Zero-copy operations are transferred and verified in slices of this\n"
     "size.",
     ucs_offsetof(uct_nprdma_md_config_t, rma.slice), UCS_CONFIG_TYPE_MEMUNITS},

    {"SCHED", "y",
     "Let small puts, gets, atomics and messages pass large puts and gets:\n"
     "these are posted in slices, a few at a time, on a queue pair of their\n"
     "own. Without it they are posted as far as the resources go.",
     ucs_offsetof(uct_nprdma_md_config_t, rma.sched), UCS_CONFIG_TYPE_BOOL},

    {"SCAN_MAX", "32k",
     "Slices of a get up to this size are verified by a scan of their data,\n"
     "larger ones by the states of the pages.",
     ucs_offsetof(uct_nprdma_md_config_t, rma.scan_max),
     UCS_CONFIG_TYPE_MEMUNITS},

    {"MAX_TRIES", "3",
     "Maximum number of RDMA tries of a slice. If all of them meet absent\n"
     "pages, the slice goes through bounce buffers.",
     ucs_offsetof(uct_nprdma_md_config_t, rma.max_tries), UCS_CONFIG_TYPE_UINT},

    {"ORDER", "rc",
     "What waits for earlier operations of its endpoint without a fence:\n"
     " - rc:     as on a queue pair of RC: active messages and small puts for\n"
     "           all earlier puts and atomics; atomics also for gets.\n"
     " - atomic: atomics for all earlier puts and gets. Enough for MPI.\n"
     " - ucp:    nothing. For programs that fence, as UCP demands.\n"
     "Operations that overlap are in order in any case.",
     ucs_offsetof(uct_nprdma_md_config_t, rma.order),
     UCS_CONFIG_TYPE_ENUM(uct_nprdma_order_modes)},

    {"STATE_CACHE", "1m",
     "Memory of an interface for the page states of its peers.",
     ucs_offsetof(uct_nprdma_md_config_t, rma.state_cache),
     UCS_CONFIG_TYPE_MEMUNITS},

    {"LAZY_UNMAP", "0",
     "Keep up to this much of the memory that the program unmaps, and give it\n"
     "to its next mappings of the same size, which have no page faults then.\n"
     "It is inaccessible meanwhile, and the kernel takes it when memory is\n"
     "short.",
     ucs_offsetof(uct_nprdma_md_config_t, mem.lazy_unmap),
     UCS_CONFIG_TYPE_MEMUNITS},

    {"RECLAIM", "off",
     "For tests, emulated RNIC: evict pages at random.\n"
     " - off     : no eviction\n"
     " - logical : from the device only, the page stays in memory\n"
     " - real    : to swap\n"
     " - sampled : no eviction, but the device asks the kernel which pages\n"
     "             are present",
     ucs_offsetof(uct_nprdma_md_config_t, mem.reclaim),
     UCS_CONFIG_TYPE_ENUM(nprdma_reclaim_mode_names)},

    {"RECLAIM_RATE", "1000",
     "For tests: pages per second that UCX_NPRDMA_RECLAIM evicts.",
     ucs_offsetof(uct_nprdma_md_config_t, mem.reclaim_rate),
     UCS_CONFIG_TYPE_DOUBLE},

    {"SEED", "0",
     "For tests: seed of the random choice of these pages; 0 is random.",
     ucs_offsetof(uct_nprdma_md_config_t, mem.seed), UCS_CONFIG_TYPE_ULONG},

    {"FAULT", "",
     "For tests, emulated RNIC: lose pages in the middle of operations:\n"
     "rate=P,seed=S[,granule=BYTES][,record=FILE][,replay=FILE].",
     ucs_offsetof(uct_nprdma_md_config_t, mem.fault_plan),
     UCS_CONFIG_TYPE_STRING},

    {NULL}
};

ucs_config_field_t uct_nprdma_iface_config_table[] = {
    {"", "", NULL, ucs_offsetof(uct_nprdma_iface_config_t, super),
     UCS_CONFIG_TYPE_TABLE(uct_iface_config_table)},

    {"SEG_SIZE", "8256",
     "Maximum size of an active message, and size of a bounce buffer without\n"
     "headers.",
     ucs_offsetof(uct_nprdma_iface_config_t, seg_size),
     UCS_CONFIG_TYPE_MEMUNITS},

    {"TX_MAX_BUFS", "48",
     "Maximum number of bounce buffers for sends. If a quarter of\n"
     "UCX_NPRDMA_MAX_PINNED is in use, an interface begins with fewer and\n"
     "adds more as needed.",
     ucs_offsetof(uct_nprdma_iface_config_t, tx_slots), UCS_CONFIG_TYPE_UINT},

    {"TX_BUFS_GROW", "1",
     "Initial number of bounce buffers for sends when UCX_NPRDMA_MAX_PINNED\n"
     "is almost exhausted.",
     ucs_offsetof(uct_nprdma_iface_config_t, tx_slots_min),
     UCS_CONFIG_TYPE_UINT},

    {"RX_MAX_BUFS", "64",
     "Maximum number of bounce buffers for receives.",
     ucs_offsetof(uct_nprdma_iface_config_t, rx_slots), UCS_CONFIG_TYPE_UINT},

    {"RX_BUFS_GROW", "2",
     "Initial number of bounce buffers for receives when\n"
     "UCX_NPRDMA_MAX_PINNED is almost exhausted.",
     ucs_offsetof(uct_nprdma_iface_config_t, rx_slots_min),
     UCS_CONFIG_TYPE_UINT},

    {"TX_QUEUE_LEN", "64",
     "Maximum number of outstanding messages of an endpoint.",
     ucs_offsetof(uct_nprdma_iface_config_t, tx_queue_len),
     UCS_CONFIG_TYPE_UINT},

    {"TX_CQ_LEN", "2048",
     "Maximum number of outstanding messages of all endpoints of an interface.",
     ucs_offsetof(uct_nprdma_iface_config_t, tx_cq_len), UCS_CONFIG_TYPE_UINT},

    {"TX_MODERATION", "16",
     "Number of messages of an endpoint for each completion that is requested\n"
     "from the device.",
     ucs_offsetof(uct_nprdma_iface_config_t, tx_moderation),
     UCS_CONFIG_TYPE_UINT},

    {"RX_MAX_BATCH", "16",
     "Number of receive buffers that are posted to the device at once.",
     ucs_offsetof(uct_nprdma_iface_config_t, rx_max_batch),
     UCS_CONFIG_TYPE_UINT},

    {"SVC_QUEUE_LEN", "64",
     "Maximum number of outstanding put, get and atomic requests of an\n"
     "endpoint.",
     ucs_offsetof(uct_nprdma_iface_config_t, svc_queue_len),
     UCS_CONFIG_TYPE_UINT},

    {"MAX_INLINE", "192",
     "Maximum size of a message, with headers, that is sent inline.",
     ucs_offsetof(uct_nprdma_iface_config_t, max_inline),
     UCS_CONFIG_TYPE_MEMUNITS},

    {"PERF", "auto",
     "What operations cost, by which UCX chooses protocols; contrib/bench/\n"
     "calibrate measures it. auto: the values of the device, or items\n"
     "NAME:VALUE between commas, with the names overhead, latency, rendezvous\n"
     "(times), bandwidth, am_bandwidth, lane_bandwidth.",
     ucs_offsetof(uct_nprdma_iface_config_t, perf), UCS_CONFIG_TYPE_STRING},

    {"STATS", "",
     "Destination of the counters of an interface when it is closed: stderr,\n"
     "stdout or file:PATH (in which %p is the process id and %h the host).",
     ucs_offsetof(uct_nprdma_iface_config_t, stats), UCS_CONFIG_TYPE_STRING},

    {"CM_RETRY_INTERVAL", "20ms",
     "Time until an unanswered wire-up packet is repeated; doubles each time.",
     ucs_offsetof(uct_nprdma_iface_config_t, cm.retry_interval),
     UCS_CONFIG_TYPE_TIME},

    {"CM_RETRY_MAX", "1s",
     "Longest time between repeated wire-up packets.",
     ucs_offsetof(uct_nprdma_iface_config_t, cm.retry_max),
     UCS_CONFIG_TYPE_TIME},

    {"CM_TIMEOUT", "30s",
     "Time after which wire-up with a peer that does not answer fails.",
     ucs_offsetof(uct_nprdma_iface_config_t, cm.timeout), UCS_CONFIG_TYPE_TIME},

    {"CM_PROBE_INTERVAL", "30s",
     "Time between probes of connected peers. The resources of dead peers are\n"
     "released.",
     ucs_offsetof(uct_nprdma_iface_config_t, cm.probe_interval),
     UCS_CONFIG_TYPE_TIME},

    {"CM_WINDOW", "32",
     "Maximum number of connections of an interface in wire-up at once.",
     ucs_offsetof(uct_nprdma_iface_config_t, cm.window), UCS_CONFIG_TYPE_UINT},

    {"CM_RX_LEN", "64",
     "Number of receive buffers of an interface for wire-up packets.",
     ucs_offsetof(uct_nprdma_iface_config_t, cm.rx_slots),
     UCS_CONFIG_TYPE_UINT},

    {"CM_DROP", "0",
     "For tests: percentage of wire-up packets to lose.",
     ucs_offsetof(uct_nprdma_iface_config_t, cm.inject.drop),
     UCS_CONFIG_TYPE_UINT},

    {"CM_DUP", "0",
     "For tests: percentage of wire-up packets to send twice.",
     ucs_offsetof(uct_nprdma_iface_config_t, cm.inject.dup),
     UCS_CONFIG_TYPE_UINT},

    {"CM_REORDER", "0",
     "For tests: percentage of wire-up packets to send after the next one.",
     ucs_offsetof(uct_nprdma_iface_config_t, cm.inject.reorder),
     UCS_CONFIG_TYPE_UINT},

    {"CM_FAIL", "0",
     "For tests: percentage of wire-up packets that the device does not send.",
     ucs_offsetof(uct_nprdma_iface_config_t, cm.inject.fail),
     UCS_CONFIG_TYPE_UINT},

    {"CM_SEED", "0",
     "For tests: seed of the random choice of these packets; 0 is random.",
     ucs_offsetof(uct_nprdma_iface_config_t, cm.inject.seed),
     UCS_CONFIG_TYPE_UINT},

    {NULL}
};


/* Values from min to max are valid */
typedef struct {
    const char *name;
    size_t     value;
    size_t     min;
    size_t     max;
} uct_nprdma_config_number_t;

/* The same for times in seconds */
typedef struct {
    const char *name;
    double     value;
    double     min;
    double     max;
} uct_nprdma_config_time_t;

static ucs_status_t
uct_nprdma_config_check_numbers(const uct_nprdma_config_number_t *numbers,
                                unsigned count)
{
    unsigned i;

    for (i = 0; i < count; ++i) {
        if ((numbers[i].value < numbers[i].min) ||
            (numbers[i].value > numbers[i].max)) {
            ucs_error("UCX_NPRDMA_%s: %zu is not in the range %zu..%zu",
                      numbers[i].name, numbers[i].value, numbers[i].min,
                      numbers[i].max);
            return UCS_ERR_INVALID_PARAM;
        }
    }

    return UCS_OK;
}

static ucs_status_t
uct_nprdma_config_check_times(const uct_nprdma_config_time_t *times,
                              unsigned count)
{
    unsigned i;

    for (i = 0; i < count; ++i) {
        /* UCX parses "nan", which compares false with all numbers */
        if (!((times[i].value >= times[i].min) &&
              (times[i].value <= times[i].max))) {
            ucs_error("UCX_NPRDMA_%s: %g s is not in the range %g..%g s",
                      times[i].name, times[i].value, times[i].min,
                      times[i].max);
            return UCS_ERR_INVALID_PARAM;
        }
    }

    return UCS_OK;
}

static ucs_status_t
uct_nprdma_config_check(const uct_nprdma_config_number_t *numbers,
                        unsigned num_numbers,
                        const uct_nprdma_config_time_t *times,
                        unsigned num_times)
{
    ucs_status_t status = uct_nprdma_config_check_numbers(numbers, num_numbers);

    return (status == UCS_OK) ?
                   uct_nprdma_config_check_times(times, num_times) : status;
}

static ucs_status_t
uct_nprdma_md_check_pinned(const uct_nprdma_md_config_t *config)
{
    /* UCX represents it by a number so large that it is no limit */
    if (config->max_pinned == UCS_MEMUNITS_AUTO) {
        ucs_error("UCX_NPRDMA_MAX_PINNED: auto is not a limit");
        return UCS_ERR_INVALID_PARAM;
    }

    return UCS_OK;
}

static ucs_status_t
uct_nprdma_md_check_zcopy(const uct_nprdma_md_config_t *config)
{
    if (!ucs_is_pow2(config->mem.region_size)) {
        ucs_error("UCX_NPRDMA_REGION_SIZE: %zu is not a power of two",
                  config->mem.region_size);
        return UCS_ERR_INVALID_PARAM;
    }

    if (config->rma.slice % NPRDMA_PAGE_SIZE) {
        ucs_error("UCX_NPRDMA_SLICE: %zu is not a multiple of %lu",
                  config->rma.slice, NPRDMA_PAGE_SIZE);
        return UCS_ERR_INVALID_PARAM;
    }

    /* UCX parses "nan", which compares false with all numbers */
    if (!((config->mem.reclaim_rate >= 0) &&
          (config->mem.reclaim_rate <= UCT_NPRDMA_MAX_RECLAIM_RATE))) {
        ucs_error("UCX_NPRDMA_RECLAIM_RATE: %g is not in the range 0..%g",
                  config->mem.reclaim_rate, UCT_NPRDMA_MAX_RECLAIM_RATE);
        return UCS_ERR_INVALID_PARAM;
    }

    return UCS_OK;
}

ucs_status_t uct_nprdma_md_check_config(const uct_nprdma_md_config_t *config)
{
    const uct_nprdma_config_number_t numbers[] = {
        {"MAX_PINNED", config->max_pinned, UCT_NPRDMA_MIN_PINNED, SIZE_MAX},
        {"SVC_SLOTS", config->svc_slots, 1, 4096},
        {"SVC_THREADS", config->svc_threads, 0, 64},
        {"GID_INDEX", config->device.gid_index, 0, UINT8_MAX},
        {"SL", config->device.path.sl, 0, UCT_NPRDMA_MAX_SL},
        {"TRAFFIC_CLASS", config->device.path.traffic_class, 0, UINT8_MAX},
        {"BULK_SL", config->device.bulk_path.sl, 0, UCT_NPRDMA_MAX_SL},
        {"BULK_TRAFFIC_CLASS", config->device.bulk_path.traffic_class, 0,
         UINT8_MAX},
        {"RETRY_COUNT", config->device.retry_count, 0, 7},
        {"REGION_SIZE", config->mem.region_size, 2 * UCS_MBYTE, UCS_TBYTE},
        {"REGION_CACHE", config->mem.region_cache, 0, UCS_TBYTE},
        {"SLICE", config->rma.slice, UCT_NPRDMA_MIN_SLICE,
         UCT_NPRDMA_MAX_SLICE},
        {"SCAN_MAX", config->rma.scan_max, 0, UCT_NPRDMA_MAX_SLICE},
        {"MAX_TRIES", config->rma.max_tries, 1, 1000},
        {"STATE_CACHE", config->rma.state_cache, 0, UCS_GBYTE},
        {"LAZY_UNMAP", config->mem.lazy_unmap,
         (config->mem.lazy_unmap == 0) ? 0 : 2 * NPRDMA_LAZY_MIN,
         NPRDMA_LAZY_MAX}
    };
    /* What verbs can represent */
    const uct_nprdma_config_time_t times[]     = {
        {"TIMEOUT", config->device.timeout, 1e-6, 8796},
        {"RNR_TIMEOUT", config->device.rnr_timeout, 1e-6, 0.65536}
    };
    ucs_status_t status;

    status = uct_nprdma_config_check(numbers, ucs_static_array_size(numbers),
                                     times, ucs_static_array_size(times));
    if (status != UCS_OK) {
        return status;
    }

    status = uct_nprdma_md_check_pinned(config);
    return (status == UCS_OK) ? uct_nprdma_md_check_zcopy(config) : status;
}

ucs_status_t
uct_nprdma_iface_check_config(const uct_nprdma_iface_config_t *config)
{
    const uct_nprdma_config_number_t numbers[] = {
        {"SEG_SIZE", config->seg_size, 1024, UCS_MBYTE},
        {"TX_MAX_BUFS", config->tx_slots, 1, 65536},
        {"TX_BUFS_GROW", config->tx_slots_min, 1, config->tx_slots},
        {"RX_MAX_BUFS", config->rx_slots, 2, 16384},
        {"RX_BUFS_GROW", config->rx_slots_min, 2, config->rx_slots},
        {"TX_QUEUE_LEN", config->tx_queue_len, 2, 16384},
        {"TX_CQ_LEN", config->tx_cq_len, 16, 1048576},
        {"TX_MODERATION", config->tx_moderation, 1, 16384},
        {"RX_MAX_BATCH", config->rx_max_batch, 1, UCT_NPRDMA_RX_MAX_BATCH},
        {"SVC_QUEUE_LEN", config->svc_queue_len, 2, 16384},
        {"MAX_INLINE", config->max_inline, UCT_NPRDMA_FIN_MAX,
         UCT_NPRDMA_MAX_INLINE},
        {"CM_WINDOW", config->cm.window, 1, 65536},
        {"CM_RX_LEN", config->cm.rx_slots, 1, 16384},
        {"CM_DROP", config->cm.inject.drop, 0, 99},
        {"CM_DUP", config->cm.inject.dup, 0, 100},
        {"CM_REORDER", config->cm.inject.reorder, 0, 100},
        {"CM_FAIL", config->cm.inject.fail, 0, 100}
    };
    const uct_nprdma_config_time_t times[]     = {
        {"CM_RETRY_INTERVAL", config->cm.retry_interval,
         UCT_NPRDMA_MIN_TIMER, UCT_NPRDMA_MAX_SEC},
        {"CM_RETRY_MAX", config->cm.retry_max, UCT_NPRDMA_MIN_TIMER,
         UCT_NPRDMA_MAX_SEC},
        {"CM_TIMEOUT", config->cm.timeout, UCT_NPRDMA_MIN_TIMER,
         UCT_NPRDMA_MAX_SEC},
        {"CM_PROBE_INTERVAL", config->cm.probe_interval,
         UCT_NPRDMA_MIN_TIMER, UCT_NPRDMA_MAX_SEC}
    };
    uct_nprdma_perf_t perf = {};
    ucs_status_t status;

    status = uct_nprdma_config_check(numbers, ucs_static_array_size(numbers),
                                     times, ucs_static_array_size(times));
    if (status != UCS_OK) {
        return status;
    }

    status = uct_nprdma_perf_parse(config->perf, &perf);
    if (status != UCS_OK) {
        return status;
    }

    if ((config->cm.retry_interval > config->cm.retry_max) ||
        (config->cm.retry_interval > config->cm.timeout)) {
        ucs_error("UCX_NPRDMA_CM_RETRY_INTERVAL: %g s is longer than "
                  "UCX_NPRDMA_CM_RETRY_MAX or UCX_NPRDMA_CM_TIMEOUT, %g s and "
                  "%g s", config->cm.retry_interval, config->cm.retry_max,
                  config->cm.timeout);
        return UCS_ERR_INVALID_PARAM;
    }

    return uct_nprdma_stats_check(config->stats);
}
