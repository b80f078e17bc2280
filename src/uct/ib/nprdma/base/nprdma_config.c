/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_config.h"
#include "nprdma_stats.h"
#include "uct/ib/nprdma/mem/nprdma_tier.h"
#include "uct/ib/nprdma/net/nprdma_bounce.h"
#include "uct/ib/nprdma/rma/nprdma_sched.h"
#include "uct/ib/nprdma/wire/nprdma_svc_wire.h"

#include "ucm/events/nprdma_lazy.h"

#include <ucs/datastruct/string_buffer.h>
#include <ucs/debug/log.h>
#include <ucs/debug/memtrack_int.h>
#include <ucs/sys/string.h>
#include <ucs/sys/sys.h>

#include <limits.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* In pages per second: far more than any memory has */
#define UCT_NPRDMA_MAX_RECLAIM_RATE 1e9

/* Longest useful timeout in seconds: one day */
#define UCT_NPRDMA_MAX_SEC    86400

/* UCX's thread for timers sleeps in whole milliseconds: with a shorter timer it
 * would not sleep at all */
#define UCT_NPRDMA_MIN_TIMER  1e-3

/* With short slots: SEG_SIZE, which leaves room for headers; and a slice, whose
 * page states fit into a reply */
#define UCT_NPRDMA_SHORT_SEG    ((size_t)896)
#define UCT_NPRDMA_SHORT_SLICE  (256 * UCS_KBYTE)

static UCS_CONFIG_DEFINE_ARRAY(uct_nprdma_levels, sizeof(unsigned),
                               UCS_CONFIG_TYPE_UINT);

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

    {"MAX_PINNED", "auto",
     "Limit of pinned memory, for all devices and interfaces of the process\n"
     "together. Only the transport's own bounce buffers are ever pinned.\n"
     "auto: 4m, or what the limit of locked memory (ulimit -l) leaves; UCX\n"
     "contexts and workers that find it in use get the least they need. With\n"
     "less than 768k messages are short and slow, and all processes of a job\n"
     "need the same then.",
     ucs_offsetof(uct_nprdma_md_config_t, max_pinned),
     UCS_CONFIG_TYPE_MEMUNITS},

    {"GID_INDEX", "0",
     "Index of the port's GID to use. RoCE networks may need one of their own.",
     ucs_offsetof(uct_nprdma_md_config_t, device.gid_index),
     UCS_CONFIG_TYPE_UINT},

    {"SL", "0",
     "Service level of the packets, 0 to 15. In RoCE networks it is the\n"
     "priority, 0 to 7. A second number is for the slices of large puts and\n"
     "gets, where they have a queue pair of their own: 3,0.",
     ucs_offsetof(uct_nprdma_md_config_t, sl),
     UCS_CONFIG_TYPE_ARRAY(uct_nprdma_levels)},

    {"TRAFFIC_CLASS", "0",
     "Traffic class of the packets, 0 to 255; in RoCE networks the type of\n"
     "service. It is a field of the global route header, which InfiniBand\n"
     "packets have only if it is not 0. A second number as with SL.",
     ucs_offsetof(uct_nprdma_md_config_t, traffic_class),
     UCS_CONFIG_TYPE_ARRAY(uct_nprdma_levels)},

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

    {"MONITOR", "auto",
     "What keeps the device and the pages of the process in step. Memory is\n"
     "not pinned in any case.\n"
     " - auto     : the first of the others that can be had for the device\n"
     " - kernel   : the kernel module, or fail\n"
     " - odp      : on-demand paging of the device, or fail\n"
     " - emulated : the library, for the emulated RNIC only, or fail\n"
     " - copy     : nothing: all data goes through bounce buffers",
     ucs_offsetof(uct_nprdma_md_config_t, mem.monitor),
     UCS_CONFIG_TYPE_ENUM(uct_nprdma_monitor_names)},

    {"REVOKE", "lazy",
     "When pages whose last exported registration has ended become\n"
     "inaccessible to peers that still have the key. Deregistration with\n"
     "invalidation always revokes them before it completes.\n"
     " - lazy   : within 100 ms, unless they are registered again\n"
     " - strict : before deregistration returns\n"
     " - never  : only when the kernel takes the pages or the region ends",
     ucs_offsetof(uct_nprdma_md_config_t, mem.revoke),
     UCS_CONFIG_TYPE_ENUM(nprdma_revoke_mode_names)},

    {"SCHED", "y",
     "Let small puts, gets, atomics and messages pass large puts and gets:\n"
     "these are posted in slices, a few at a time, on a queue pair of their\n"
     "own. Without it they are posted as far as the resources go.",
     ucs_offsetof(uct_nprdma_md_config_t, rma.sched), UCS_CONFIG_TYPE_BOOL},

    {"ORDER", "rc",
     "What waits for earlier operations of its endpoint without a fence.\n"
     "Operations that overlap are in order in any case.\n"
     " - rc     : as on a queue pair of RC: active messages and small puts\n"
     "            for all earlier puts and atomics, atomics also for gets;\n"
     "            right for every program\n"
     " - atomic : atomics for all earlier puts and gets; enough for MPI and\n"
     "            OpenSHMEM, and small operations pass large puts\n"
     " - ucp    : nothing; for programs that fence, as UCP demands",
     ucs_offsetof(uct_nprdma_md_config_t, rma.order),
     UCS_CONFIG_TYPE_ENUM(uct_nprdma_order_modes)},

    {"LAZY_UNMAP", "0",
     "Keep up to this much of the memory that the program unmaps, and give it\n"
     "to its next mappings of the same size, which have no page faults then.\n"
     "It is inaccessible meanwhile, and the kernel takes it when memory is\n"
     "short. Needs REVOKE=strict.",
     ucs_offsetof(uct_nprdma_md_config_t, mem.lazy_unmap),
     UCS_CONFIG_TYPE_MEMUNITS},

    {"CM_TIMEOUT", "30s",
     "Time after which wire-up with a peer that does not answer fails.",
     ucs_offsetof(uct_nprdma_md_config_t, cm.timeout), UCS_CONFIG_TYPE_TIME},

    {"CM_PROBE_INTERVAL", "30s",
     "Time between probes of connected peers. The resources of dead peers are\n"
     "released.",
     ucs_offsetof(uct_nprdma_md_config_t, cm.probe_interval),
     UCS_CONFIG_TYPE_TIME},

    {"SEG_SIZE", "8256",
     "Maximum size of an active message, and size of a bounce buffer without\n"
     "headers.",
     ucs_offsetof(uct_nprdma_md_config_t, iface.seg_size),
     UCS_CONFIG_TYPE_MEMUNITS},

    {"TX_QUEUE_LEN", "64",
     "Maximum number of outstanding messages of an endpoint.",
     ucs_offsetof(uct_nprdma_md_config_t, iface.tx_queue_len),
     UCS_CONFIG_TYPE_UINT},

    {"TX_CQ_LEN", "2048",
     "Maximum number of outstanding messages of all endpoints of an interface.",
     ucs_offsetof(uct_nprdma_md_config_t, iface.tx_cq_len),
     UCS_CONFIG_TYPE_UINT},

    {"PERF", "auto",
     "What operations cost, by which UCX chooses protocols; contrib/bench/\n"
     "calibrate measures it. auto: the values of the device, or items\n"
     "NAME:VALUE between commas, with the names overhead, latency, rendezvous\n"
     "(times), bandwidth, am_bandwidth, lane_bandwidth.",
     ucs_offsetof(uct_nprdma_md_config_t, iface.perf), UCS_CONFIG_TYPE_STRING},

    {"STATS", "",
     "Destination of the counters of an interface when it is closed: stderr,\n"
     "stdout or file:PATH (in which %p is the process id and %h the host); or\n"
     "summary, for one line of the process.",
     ucs_offsetof(uct_nprdma_md_config_t, iface.stats), UCS_CONFIG_TYPE_STRING},

    {"INJECT", "",
     "For tests only: errors to make, and numbers that nobody should have to\n"
     "set; items NAME:VALUE between commas.",
     ucs_offsetof(uct_nprdma_md_config_t, inject), UCS_CONFIG_TYPE_STRING},

    {NULL}
};

ucs_config_field_t uct_nprdma_iface_config_table[] = {
    {"", "", NULL, ucs_offsetof(uct_nprdma_bufs_config_t, super),
     UCS_CONFIG_TYPE_TABLE(uct_iface_config_table)},

    {"TX_MAX_BUFS", "48",
     "Maximum number of bounce buffers for sends. If a quarter of\n"
     "UCX_NPRDMA_MAX_PINNED is in use, an interface begins with fewer and\n"
     "adds more as needed.",
     ucs_offsetof(uct_nprdma_bufs_config_t, tx_slots),
     UCS_CONFIG_TYPE_UINT},

    {"TX_BUFS_GROW", "1",
     "Initial number of bounce buffers for sends when UCX_NPRDMA_MAX_PINNED\n"
     "is almost exhausted.",
     ucs_offsetof(uct_nprdma_bufs_config_t, tx_slots_min),
     UCS_CONFIG_TYPE_UINT},

    {"RX_MAX_BUFS", "64",
     "Maximum number of bounce buffers for receives.",
     ucs_offsetof(uct_nprdma_bufs_config_t, rx_slots),
     UCS_CONFIG_TYPE_UINT},

    {NULL}
};

/* An item of UCX_NPRDMA_INJECT, with its value where it is not given */
#define UCT_NPRDMA_INJECT(_name, _default, _field, _type) \
    {_name, _default, "", ucs_offsetof(uct_nprdma_md_config_t, _field), _type}

static const ucs_config_field_t uct_nprdma_inject_fields[] = {
    /* Emulated RNIC: lose pages in the middle of operations. A probability and
     * a seed */
    UCT_NPRDMA_INJECT("fault_rate", "0", mem.fault_rate,
                      UCS_CONFIG_TYPE_DOUBLE),
    UCT_NPRDMA_INJECT("fault_seed", "0", mem.fault_seed, UCS_CONFIG_TYPE_ULONG),

    /* Evict pages at random: from the device only, or to swap. Pages per
     * second */
    UCT_NPRDMA_INJECT("reclaim", "off", mem.reclaim,
                      UCS_CONFIG_TYPE_ENUM(nprdma_reclaim_mode_names)),
    UCT_NPRDMA_INJECT("reclaim_rate", "1000", mem.reclaim_rate,
                      UCS_CONFIG_TYPE_DOUBLE),
    UCT_NPRDMA_INJECT("seed", "0", mem.seed, UCS_CONFIG_TYPE_ULONG),

    /* Use views of a real device without a check of them */
    UCT_NPRDMA_INJECT("selfcheck", "y", mem.selfcheck, UCS_CONFIG_TYPE_BOOL),

    /* Time until an unanswered wire-up packet is repeated; doubles each time up
     * to the longest */
    UCT_NPRDMA_INJECT("cm_retry_interval", "20ms", cm.retry_interval,
                      UCS_CONFIG_TYPE_TIME),
    UCT_NPRDMA_INJECT("cm_retry_max", "1s", cm.retry_max, UCS_CONFIG_TYPE_TIME),

    /* Address space that is made known to the device at a time, and page states
     * of such regions without registrations */
    UCT_NPRDMA_INJECT("region_size", "256m", mem.region_size,
                      UCS_CONFIG_TYPE_MEMUNITS),
    UCT_NPRDMA_INJECT("region_cache", "64m", mem.region_cache,
                      UCS_CONFIG_TYPE_MEMUNITS),

    /* Bytes of an operation that are moved and verified at once; up to scan_max
     * of a get by a scan of its data; after max_tries by the service */
    UCT_NPRDMA_INJECT("slice", "512k", rma.slice, UCS_CONFIG_TYPE_MEMUNITS),
    UCT_NPRDMA_INJECT("scan_max", "32k", rma.scan_max,
                      UCS_CONFIG_TYPE_MEMUNITS),
    UCT_NPRDMA_INJECT("max_tries", "3", rma.max_tries, UCS_CONFIG_TYPE_UINT),
    UCT_NPRDMA_INJECT("state_cache", "1m", rma.state_cache,
                      UCS_CONFIG_TYPE_MEMUNITS),

    /* The scheduler. Longest operation that is urgent; bytes in flight of
     * others, 0: by slices; slice while something urgent goes on */
    UCT_NPRDMA_INJECT("prio_max", NULL, rma.prio_max, UCS_CONFIG_TYPE_MEMUNITS),
    UCT_NPRDMA_INJECT("tx_quota", NULL, rma.quota, UCS_CONFIG_TYPE_MEMUNITS),
    UCT_NPRDMA_INJECT("busy_slice", NULL, rma.busy_slice,
                      UCS_CONFIG_TYPE_MEMUNITS),
    UCT_NPRDMA_INJECT("bulk_qp", NULL, rma.has_bulk_qp, UCS_CONFIG_TYPE_BOOL),

    /* Receives of the service; threads that bring in pages for it; requests of
     * an endpoint to it */
    UCT_NPRDMA_INJECT("svc_slots", "32", svc_slots, UCS_CONFIG_TYPE_UINT),
    UCT_NPRDMA_INJECT("svc_threads", "4", svc_threads, UCS_CONFIG_TYPE_UINT),
    UCT_NPRDMA_INJECT("svc_queue_len", "64", iface.svc_queue_len,
                      UCS_CONFIG_TYPE_UINT),

    /* Messages for each completion of the device; receives that are posted at
     * once; bytes that are sent inline */
    UCT_NPRDMA_INJECT("tx_moderation", "16", iface.tx_moderation,
                      UCS_CONFIG_TYPE_UINT),
    UCT_NPRDMA_INJECT("rx_max_batch", "16", iface.rx_max_batch,
                      UCS_CONFIG_TYPE_UINT),
    UCT_NPRDMA_INJECT("max_inline", "192", iface.max_inline,
                      UCS_CONFIG_TYPE_MEMUNITS),

    {NULL}
};

/* An item of UCX_NPRDMA_PERF */
#define UCT_NPRDMA_PERF(_name, _type) \
    {#_name, NULL, "", ucs_offsetof(uct_nprdma_perf_t, _name), _type}

static const ucs_config_field_t uct_nprdma_perf_fields[] = {
    UCT_NPRDMA_PERF(overhead, UCS_CONFIG_TYPE_TIME),
    UCT_NPRDMA_PERF(latency, UCS_CONFIG_TYPE_TIME),
    UCT_NPRDMA_PERF(rendezvous, UCS_CONFIG_TYPE_TIME),
    UCT_NPRDMA_PERF(bandwidth, UCS_CONFIG_TYPE_BW),
    UCT_NPRDMA_PERF(am_bandwidth, UCS_CONFIG_TYPE_BW),
    UCT_NPRDMA_PERF(lane_bandwidth, UCS_CONFIG_TYPE_BW),
    {NULL}
};

/* Changes the item */
static ucs_status_t
uct_nprdma_config_set_item(const char *variable, char *item,
                           const ucs_config_field_t *fields, void *dest)
{
    const char *name                = strsep(&item, ":");
    const ucs_config_field_t *field = fields;
    UCS_STRING_BUFFER_ONSTACK(names, 512);
    char help[128];

    while ((field->name != NULL) && strcmp(field->name, name)) {
        ++field;
    }

    if ((field->name == NULL) || (item == NULL)) {
        for (field = fields; field->name != NULL; ++field) {
            ucs_string_buffer_appendf(&names, " %s", field->name);
        }
        ucs_error("UCX_NPRDMA_%s: '%.80s' is not NAME:VALUE with one of the "
                  "names%s", variable, name, ucs_string_buffer_cstr(&names));
        return UCS_ERR_INVALID_PARAM;
    }

    if (!field->parser.read(item, UCS_PTR_BYTE_OFFSET(dest, field->offset),
                            field->parser.arg)) {
        field->parser.help(help, sizeof(help), field->parser.arg);
        ucs_error("UCX_NPRDMA_%s: '%.80s' is not valid for %s, expected: %s",
                  variable, item, name, help);
        return UCS_ERR_INVALID_PARAM;
    }

    return UCS_OK;
}

/* Set fields of a structure, none of which owns memory, from items NAME:VALUE
 * between commas */
static ucs_status_t
uct_nprdma_config_set_items(const char *variable, const char *text,
                            const ucs_config_field_t *fields, void *dest)
{
    ucs_status_t status = UCS_OK;
    char *copy, *rest, *item;

    copy = rest = ucs_strdup(text, "nprdma_items");
    if (copy == NULL) {
        return UCS_ERR_NO_MEMORY;
    }

    while ((status == UCS_OK) && (*text != '\0') &&
           ((item = strsep(&rest, ",")) != NULL)) {
        status = uct_nprdma_config_set_item(variable, item, fields, dest);
    }
    ucs_free(copy);
    return status;
}

ucs_status_t
uct_nprdma_config_set_perf(const char *text, uct_nprdma_perf_t *perf)
{
    return !strcasecmp(text, UCS_VALUE_AUTO_STR) ? UCS_OK :
           uct_nprdma_config_set_items("PERF", text, uct_nprdma_perf_fields,
                                       perf);
}

/* Values from min to max are valid. Times are in seconds. A double keeps 53
 * bits of a number, and all finite limits have fewer. */
typedef struct {
    const char *name;
    double     value;
    double     min;
    double     max;
} uct_nprdma_config_range_t;

static ucs_status_t
uct_nprdma_config_check_ranges(const uct_nprdma_config_range_t *ranges,
                               unsigned count)
{
    const uct_nprdma_config_range_t *range;

    for (range = ranges; range < ranges + count; ++range) {
        /* UCX parses "nan", which compares false with all numbers */
        if (!((range->value >= range->min) && (range->value <= range->max))) {
            ucs_error("UCX_NPRDMA_%s: %.15g is not in the range %.15g..%.15g",
                      range->name, range->value, range->min, range->max);
            return UCS_ERR_INVALID_PARAM;
        }
    }

    return UCS_OK;
}

/* One number, or one and another for bulk connections */
static ucs_status_t
uct_nprdma_config_set_levels(const char *name,
                             const uct_nprdma_levels_t *levels, unsigned max,
                             unsigned *value, unsigned *bulk_value)
{
    unsigned i;

    if ((levels->count < 1) || (levels->count > 2)) {
        ucs_error("UCX_NPRDMA_%s: %u numbers, expected one or two", name,
                  levels->count);
        return UCS_ERR_INVALID_PARAM;
    }

    for (i = 0; i < levels->count; ++i) {
        if (levels->values[i] > max) {
            ucs_error("UCX_NPRDMA_%s: %u is not in the range 0..%u", name,
                      levels->values[i], max);
            return UCS_ERR_INVALID_PARAM;
        }
    }

    *value      = levels->values[0];
    *bulk_value = levels->values[levels->count - 1];
    return UCS_OK;
}

static ucs_status_t
uct_nprdma_config_set_paths(uct_nprdma_md_config_t *config)
{
    uct_nprdma_path_config_t *path = &config->device.path;
    uct_nprdma_path_config_t *bulk = &config->device.bulk_path;
    ucs_status_t status;

    status = uct_nprdma_config_set_levels("SL", &config->sl, UCT_NPRDMA_MAX_SL,
                                          &path->sl, &bulk->sl);
    return (status != UCS_OK) ? status :
           uct_nprdma_config_set_levels("TRAFFIC_CLASS", &config->traffic_class,
                                        UINT8_MAX, &path->traffic_class,
                                        &bulk->traffic_class);
}

/* What users do not set: the defaults, then what tests set */
static ucs_status_t uct_nprdma_config_inject(uct_nprdma_md_config_t *config)
{
    uct_nprdma_rma_config_t *rma = &config->rma;
    const ucs_config_field_t *field;

    /* Without the scheduler large operations are posted as far as the resources
     * go, on the queue pair of requests */
    rma->prio_max            = rma->sched ? UCT_NPRDMA_PRIO_MAX : 0;
    rma->quota               = rma->sched ? UCT_NPRDMA_SCHED_AUTO :
                                            UCT_NPRDMA_SCHED_NO_QUOTA;
    rma->busy_slice          = rma->sched ? UCT_NPRDMA_BUSY_SLICE :
                                            UCT_NPRDMA_MAX_SLICE;
    rma->has_bulk_qp         = rma->sched;
    for (field = uct_nprdma_inject_fields; field->name != NULL; ++field) {
        if (field->dfl_value != NULL) {
            field->parser.read(field->dfl_value,
                               UCS_PTR_BYTE_OFFSET(config, field->offset),
                               field->parser.arg);
        }
    }

    return uct_nprdma_config_set_items("INJECT", config->inject,
                                       uct_nprdma_inject_fields, config);
}

static ucs_status_t
uct_nprdma_md_check_numbers(const uct_nprdma_md_config_t *config,
                            const uct_nprdma_perf_t *perf)
{
    const uct_nprdma_config_range_t ranges[] = {
        {"MAX_PINNED", config->max_pinned, UCT_NPRDMA_MIN_PINNED, INFINITY},
        {"GID_INDEX", config->device.gid_index, 0, UINT8_MAX},
        {"SEG_SIZE", config->iface.seg_size, 1024, UCS_MBYTE},
        {"TX_QUEUE_LEN", config->iface.tx_queue_len, 2, 16384},
        {"TX_CQ_LEN", config->iface.tx_cq_len, 16, 1048576},
        {"RETRY_COUNT", config->device.retry_count, 0, 7},
        {"LAZY_UNMAP", config->mem.lazy_unmap,
         (config->mem.lazy_unmap == 0) ? 0 : 2 * NPRDMA_LAZY_MIN,
         UCS_TBYTE},
        {"INJECT: svc_slots", config->svc_slots, 1, 4096},
        {"INJECT: svc_threads", config->svc_threads, 1, 64},
        {"INJECT: svc_queue_len", config->iface.svc_queue_len, 2, 16384},
        {"INJECT: tx_moderation", config->iface.tx_moderation, 1, 16384},
        {"INJECT: rx_max_batch", config->iface.rx_max_batch, 1,
         UCT_NPRDMA_RX_MAX_BATCH},
        {"INJECT: max_inline", config->iface.max_inline, UCT_NPRDMA_FIN_MAX,
         UCT_NPRDMA_MAX_INLINE},
        {"INJECT: region_size", config->mem.region_size, 2 * UCS_MBYTE,
         UCS_TBYTE},
        {"INJECT: region_cache", config->mem.region_cache, 0, UCS_TBYTE},
        {"INJECT: slice", config->rma.slice, UCT_NPRDMA_MIN_SLICE,
         UCT_NPRDMA_MAX_SLICE},
        {"INJECT: scan_max", config->rma.scan_max, 0, UCT_NPRDMA_MAX_SLICE},
        {"INJECT: max_tries", config->rma.max_tries, 1, 1000},
        {"INJECT: state_cache", config->rma.state_cache, 0, UCS_GBYTE},
        {"INJECT: reclaim_rate", config->mem.reclaim_rate, 0,
         UCT_NPRDMA_MAX_RECLAIM_RATE},
        {"INJECT: fault_rate", config->mem.fault_rate, 0, 1},
        /* The first two: what verbs can represent */
        {"TIMEOUT", config->device.timeout, 1e-6, 8796},
        {"RNR_TIMEOUT", config->device.rnr_timeout, 1e-6, 0.65536},
        {"INJECT: cm_retry_interval", config->cm.retry_interval,
         UCT_NPRDMA_MIN_TIMER, UCT_NPRDMA_MAX_SEC},
        {"INJECT: cm_retry_max", config->cm.retry_max, UCT_NPRDMA_MIN_TIMER,
         UCT_NPRDMA_MAX_SEC},
        {"CM_TIMEOUT", config->cm.timeout, UCT_NPRDMA_MIN_TIMER,
         UCT_NPRDMA_MAX_SEC},
        {"CM_PROBE_INTERVAL", config->cm.probe_interval,
         UCT_NPRDMA_MIN_TIMER, UCT_NPRDMA_MAX_SEC},
        /* UCX divides by bandwidths */
        {"PERF: overhead", perf->overhead, 0, 1},
        {"PERF: latency", perf->latency, 0, 1},
        {"PERF: rendezvous", perf->rendezvous, 0, 1},
        {"PERF: bandwidth", perf->bandwidth, 1e6, 1e13},
        {"PERF: am_bandwidth", perf->am_bandwidth, 1e6, 1e13},
        {"PERF: lane_bandwidth", perf->lane_bandwidth, 1e6, 1e13}
    };

    return uct_nprdma_config_check_ranges(ranges,
                                          ucs_static_array_size(ranges));
}

/* What a range does not say */
static ucs_status_t
uct_nprdma_md_check_others(const uct_nprdma_md_config_t *config)
{
    /* UCX represents negative numbers by such numbers */
    if ((config->max_pinned > SSIZE_MAX) &&
        (config->max_pinned != UCS_MEMUNITS_INF)) {
        ucs_error("UCX_NPRDMA_MAX_PINNED: a negative number is not a limit");
        return UCS_ERR_INVALID_PARAM;
    }

    if (!ucs_is_pow2(config->mem.region_size)) {
        ucs_error("UCX_NPRDMA_INJECT: region_size: %zu is not a power of two",
                  config->mem.region_size);
        return UCS_ERR_INVALID_PARAM;
    }

    if (config->rma.slice % NPRDMA_PAGE_SIZE) {
        ucs_error("UCX_NPRDMA_INJECT: slice: %zu is not a multiple of %lu",
                  config->rma.slice, NPRDMA_PAGE_SIZE);
        return UCS_ERR_INVALID_PARAM;
    }

    if ((config->cm.retry_interval > config->cm.retry_max) ||
        (config->cm.retry_interval > config->cm.timeout)) {
        ucs_error("UCX_NPRDMA_INJECT: cm_retry_interval: %g s is longer than "
                  "cm_retry_max or UCX_NPRDMA_CM_TIMEOUT, %g s and %g s",
                  config->cm.retry_interval, config->cm.retry_max,
                  config->cm.timeout);
        return UCS_ERR_INVALID_PARAM;
    }

    return UCS_OK;
}

/* With little memory to pin, all slots are short: a page has four of them. What
 * is sent inline is received into a slot as well, and so are the page states of
 * a slice. */
static void uct_nprdma_config_set_lengths(uct_nprdma_md_config_t *config)
{
    uct_nprdma_iface_config_t *iface = &config->iface;

    config->device.max_piece = UCT_NPRDMA_SVC_MAX_PIECE;
    if (config->max_pinned < UCT_NPRDMA_FULL_PINNED) {
        config->device.max_piece = UCT_NPRDMA_SVC_SHORT_PIECE;
        iface->seg_size          = ucs_min(iface->seg_size,
                                           UCT_NPRDMA_SHORT_SEG);
        iface->max_inline        = ucs_min(iface->max_inline,
                                           UCT_NPRDMA_SHORT_SEG);
        config->rma.slice        = ucs_min(config->rma.slice,
                                           UCT_NPRDMA_SHORT_SLICE);
    }
}

ucs_status_t uct_nprdma_md_complete_config(uct_nprdma_md_config_t *config)
{
    uct_nprdma_perf_t perf = uct_nprdma_perf_emulated; /* All are valid */
    ucs_status_t status;

    if (config->max_pinned == UCS_MEMUNITS_AUTO) {
        config->max_pinned = uct_nprdma_bounce_auto();
    }
    status = uct_nprdma_config_set_paths(config);
    if (status == UCS_OK) {
        status = uct_nprdma_config_inject(config);
    }
    if (status == UCS_OK) {
        status = uct_nprdma_config_set_perf(config->iface.perf, &perf);
    }
    if (status == UCS_OK) {
        status = uct_nprdma_md_check_numbers(config, &perf);
    }
    if (status == UCS_OK) {
        status = uct_nprdma_md_check_others(config);
    }
    uct_nprdma_config_set_lengths(config);
    return (status != UCS_OK) ? status :
           uct_nprdma_stats_check(config->iface.stats);
}

ucs_status_t uct_nprdma_iface_check_config(const uct_nprdma_bufs_config_t *bufs)
{
    const uct_nprdma_config_range_t ranges[] = {
        {"TX_MAX_BUFS", bufs->tx_slots, 1, 65536},
        {"TX_BUFS_GROW", bufs->tx_slots_min, 1, bufs->tx_slots},
        {"RX_MAX_BUFS", bufs->rx_slots, 2, 16384}
    };

    return uct_nprdma_config_check_ranges(ranges,
                                          ucs_static_array_size(ranges));
}

/* Variables that earlier versions had, by what to use instead */
typedef struct {
    const char *instead;
    const char *names;
} uct_nprdma_config_removed_t;

static const uct_nprdma_config_removed_t uct_nprdma_config_removed[] = {
    {"UCX_NPRDMA_ORDER", "ATOMIC_ORDER"},
    {"UCX_NPRDMA_MONITOR=copy", "ZCOPY"},
    {"a second number of UCX_NPRDMA_SL", "BULK_SL"},
    {"a second number of UCX_NPRDMA_TRAFFIC_CLASS", "BULK_TRAFFIC_CLASS"},
    {"UCX_NPRDMA_SCHED", "PRIO_MAX TX_QUOTA BUSY_SLICE WEIGHT BULK_QP"},
    {"GLIBC_TUNABLES, see nprdma(7)", "MALLOC_KEEP"},
    {"UCX_NPRDMA_LAZY_UNMAP", "LAZY_AGE LAZY_HUGE"},
    {"nothing: it is chosen by itself",
     "EARLY_PAGEIN PREREG UFFD SVC_SLOTS SVC_THREADS SVC_QUEUE_LEN REGION_SIZE "
     "REGION_CACHE SLICE SCAN_MAX MAX_TRIES STATE_CACHE RX_BUFS_GROW "
     "TX_MODERATION RX_MAX_BATCH MAX_INLINE CM_RETRY_INTERVAL CM_RETRY_MAX "
     "CM_WINDOW CM_RX_LEN"},
    {"nothing: tests of nprdma do it",
     "CM_DROP CM_DUP CM_REORDER CM_FAIL CM_SEED"},
    {"UCX_NPRDMA_INJECT, for tests",
     "SELFCHECK RECLAIM RECLAIM_RATE SEED FAULT"}
};

void uct_nprdma_config_tell_removed(void)
{
    static atomic_flag told = ATOMIC_FLAG_INIT;
    const char *name;
    char variable[64];
    size_t i, length;

    if (atomic_flag_test_and_set(&told)) {
        return;
    }

    for (i = 0; i < ucs_static_array_size(uct_nprdma_config_removed); ++i) {
        name = uct_nprdma_config_removed[i].names;
        for (; *name != '\0'; name += length + strspn(name + length, " ")) {
            length = strcspn(name, " ");
            ucs_snprintf_zero(variable, sizeof(variable), "UCX_NPRDMA_%.*s",
                              (int)length, name);
            if (getenv(variable) != NULL) {
                ucs_warn("%s is no longer a variable, use %s", variable,
                         uct_nprdma_config_removed[i].instead);
            }
        }
    }
}
