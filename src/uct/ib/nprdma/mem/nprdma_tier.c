/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_tier.h"
#include "nprdma_mrs.h"
#include "nprdma_odp.h"
#include "nprdma_selfcheck.h"

#include "ucm/backend/nprdma_backend.h"
#include "ucm/events/nprdma_hook.h"
#include "ucm/regions/nprdma_regions.h"

#include <ucs/debug/log.h>
#include <ucs/sys/compiler_def.h>
#include <ucs/sys/string.h>
#include <ucs/sys/sys.h>

#include <stdlib.h>

/* Tick of the thread that revokes, in seconds. A page is revoked within two
 * ticks; the documented bound is 100 ms (ARCHITECTURE 10). */
#define UCT_NPRDMA_REVOKE_TICK 0.04

/* Bytes of all reasons together */
#define UCT_NPRDMA_TIER_WHY_ALL 1024


const char *uct_nprdma_monitor_names[] = {
    [UCT_NPRDMA_MONITOR_AUTO]     = "auto",
    [UCT_NPRDMA_MONITOR_KERNEL]   = "kernel",
    [UCT_NPRDMA_MONITOR_ODP]      = "odp",
    [UCT_NPRDMA_MONITOR_EMULATED] = "emulated",
    [UCT_NPRDMA_MONITOR_COPY]     = "copy",
    [UCT_NPRDMA_MONITOR_LAST]     = NULL
};


/* What became of the tiers */
typedef struct uct_nprdma_tier_result {
    char            why[UCT_NPRDMA_TIER_WHY_ALL]; /* the others do not */
    ucs_log_level_t level;  /* with which that is reported */
} uct_nprdma_tier_result_t;


/* Verification by states rests on the ordering of RC over InfiniBand or RoCE;
 * other transports order differently (ARCHITECTURE 3, remote WRITE) */
static const char *uct_nprdma_tier_no_rdma(const uct_nprdma_mem_md_t *md)
{
    const char *unordered = (md->super.verbs->emulated_backend != NULL) ? NULL :
                            getenv("MLX5_RELAXED_PACKET_ORDERING_ON");

    if (md->super.context->device->transport_type != IBV_TRANSPORT_IB) {
        return "the device speaks neither InfiniBand nor RoCE";
    }

    if (md->super.attr.max_qp_rd_atom < 1) {
        return "the device has no RDMA READ";
    }

    if ((unordered != NULL) && (*unordered != '\0')) {
        return "MLX5_RELAXED_PACKET_ORDERING_ON places data out of order";
    }

    return NULL;
}

/* @return Owner of page states and views; NULL for on-demand paging, and if
 *         devices of the provider have none. */
static const nprdma_backend_t *
uct_nprdma_tier_backend(const uct_nprdma_mem_md_t *md,
                        uct_nprdma_monitor_kind_t tier)
{
    return (tier == UCT_NPRDMA_MONITOR_KERNEL) ?
                   md->super.verbs->kernel_backend :
           (tier == UCT_NPRDMA_MONITOR_EMULATED) ?
                   md->super.verbs->emulated_backend : NULL;
}

static int uct_nprdma_tier_is_possible(const uct_nprdma_mem_md_t *md,
                                       uct_nprdma_monitor_kind_t tier)
{
    return (tier == UCT_NPRDMA_MONITOR_ODP) ?
                   (md->super.verbs->query_odp != NULL) :
                   (uct_nprdma_tier_backend(md, tier) != NULL);
}

/* @return Reason why device or settings exclude the tier, or NULL. */
static const char *uct_nprdma_tier_obstacle(const uct_nprdma_mem_md_t *md,
                                            uct_nprdma_monitor_kind_t tier)
{
    int is_odp = (tier == UCT_NPRDMA_MONITOR_ODP);

    if (!uct_nprdma_tier_is_possible(md, tier)) {
        return "not for this kind of device";
    }

    if ((tier != UCT_NPRDMA_MONITOR_EMULATED) && (md->config.fault_rate != 0)) {
        return "UCX_NPRDMA_INJECT=fault_... is for the emulated one";
    }

    if (is_odp && (md->config.reclaim != NPRDMA_RECLAIM_OFF)) {
        return "UCX_NPRDMA_INJECT=reclaim is for memory monitors";
    }

    if (!is_odp && (md->super.verbs->register_dmabuf_mr == NULL)) {
        return "no ibv_reg_dmabuf_mr(): rdma-core is too old";
    }

    return uct_nprdma_tier_no_rdma(md);
}


NPRDMA_HOOK
static void uct_nprdma_tier_drain(void *arg)
{
    uct_nprdma_mem_md_t *md = arg;

    md->super.verbs->drain(md->super.context);
}

static ucs_status_t
uct_nprdma_tier_create_monitor(uct_nprdma_mem_md_t *md,
                               uct_nprdma_monitor_kind_t tier, char *why)
{
    nprdma_monitor_params_t params = {
        .backend      = uct_nprdma_tier_backend(md, tier),
        .why          = why,
        .region_size  = md->config.region_size,
        .max_metadata = md->config.region_cache,
        /* The kernel module sees all changes without a userfaultfd */
        .revoke       = md->config.revoke,
        .revoke_tick  = UCT_NPRDMA_REVOKE_TICK,
        .reclaim      = md->config.reclaim,
        .reclaim_rate = md->config.reclaim_rate,
        .seed         = md->config.seed,
        .drain        = (md->super.verbs->drain == NULL) ?
                        NULL : uct_nprdma_tier_drain,
        .attach       = uct_nprdma_mrs_attach,
        .detach       = uct_nprdma_mrs_detach,
        .arg          = md
    };
    char address[32];
    ucs_status_t status;

    /* Kept memory is out of the reach of peers at once, as unmapped memory */
    params.lazy_limit = (md->config.revoke == NPRDMA_REVOKE_STRICT) ?
                        md->config.lazy_unmap : 0;
    params.device     = uct_nprdma_device_pci_address(&md->super, address,
                                                      sizeof(address));
    status            = nprdma_monitor_create(&params, &md->monitor);
    if (status == UCS_OK) {
        return UCS_OK;
    }

    md->monitor = NULL;
    if (status == UCS_ERR_UNSUPPORTED) {
        ucs_snprintf_zero(why, NPRDMA_BACKEND_WHY_MAX, "UCX does not report "
                          "what is unmapped (UCX_MEM_EVENTS, "
                          "UCX_MEM_MMAP_HOOK_MODE, or hooks of others: Open "
                          "MPI needs "
                          "OMPI_MCA_opal_common_ucx_opal_mem_hooks=0)");
    } else if (*why == '\0') {
        ucs_snprintf_zero(why, NPRDMA_BACKEND_WHY_MAX, "%s",
                          ucs_status_string(status));
    }
    return status;
}

/* Check a device whose DMA goes through views, since the kernel and the
 * device may lie about what they can */
static ucs_status_t
uct_nprdma_tier_check(uct_nprdma_mem_md_t *md, char *why)
{
    ucs_status_t status;

    if (md->super.verbs->drain != NULL) {
        return UCS_OK;
    }

    status = uct_nprdma_selfcheck(md, why, NPRDMA_BACKEND_WHY_MAX);
    if (status != UCS_OK) {
        uct_nprdma_tier_cleanup(md);
        return status;
    }

    /* Users and tests read from the counters what became of their own pages */
    nprdma_monitor_restart_stats(md->monitor);
    return UCS_OK;
}

static ucs_status_t
uct_nprdma_tier_try(uct_nprdma_mem_md_t *md, uct_nprdma_monitor_kind_t tier,
                    char *why)
{
    ucs_status_t status;
    int half;

    for (half = 0; half <= 1; ++half) {
        status = uct_nprdma_tier_create_monitor(md, tier, why);
        if (status != UCS_OK) {
            return status;
        }

        status = uct_nprdma_tier_check(md, why);
        if ((status != UCS_ERR_INVALID_PARAM) ||
            (md->config.region_size < 2 * NPRDMA_CHUNK_SIZE)) {
            break;
        }

        /* Some devices need one page less than a region of the usual size: half
         * of it fits */
        if (half == 0) {
            ucs_debug("%s: regions of %zu bytes are too large for the device",
                      md->super.name, md->config.region_size);
            md->config.region_size /= 2;
        }
    }

    return (status == UCS_ERR_INVALID_PARAM) ? UCS_ERR_NO_DEVICE : status;
}

/* @return UCS_OK, or the error of the tier, with the reason in words. */
static ucs_status_t
uct_nprdma_tier_open(uct_nprdma_mem_md_t *md, uct_nprdma_monitor_kind_t tier,
                     char *why)
{
    const char *obstacle = uct_nprdma_tier_obstacle(md, tier);
    ucs_status_t status;

    why[0] = '\0';
    if (obstacle != NULL) {
        ucs_snprintf_zero(why, NPRDMA_BACKEND_WHY_MAX, "%s", obstacle);
        return UCS_ERR_NO_DEVICE;
    }

    if (tier != UCT_NPRDMA_MONITOR_ODP) {
        return uct_nprdma_tier_try(md, tier, why);
    }

    status = uct_nprdma_odp_open(&md->super, md->config.region_size, &md->odp,
                                 &obstacle);
    if (status != UCS_OK) {
        ucs_snprintf_zero(why, NPRDMA_BACKEND_WHY_MAX, "%s", obstacle);
    }
    return status;
}

static int uct_nprdma_tier_is_wanted(const uct_nprdma_mem_md_t *md,
                                     uct_nprdma_monitor_kind_t tier)
{
    return (md->config.monitor == tier) ||
           ((md->config.monitor == UCT_NPRDMA_MONITOR_AUTO) &&
            uct_nprdma_tier_is_possible(md, tier));
}

/* A device or a program that is not as it should be is worth a warning. A
 * machine that just lacks something is not, because every process says it. */
static int uct_nprdma_tier_is_doubtful(ucs_status_t status)
{
    return status != UCS_ERR_NO_DEVICE;
}

static void uct_nprdma_tier_add_reason(uct_nprdma_tier_result_t *result,
                                       uct_nprdma_monitor_kind_t tier,
                                       const char *why)
{
    size_t length = strlen(result->why);

    ucs_snprintf_zero(result->why + length, sizeof(result->why) - length,
                      "%s%s: %s", (length == 0) ? "" : "; ",
                      uct_nprdma_monitor_names[tier], why);
}

/* Try all tiers that are wanted, and collect the reasons */
static ucs_status_t
uct_nprdma_tier_choose(uct_nprdma_mem_md_t *md,
                       uct_nprdma_tier_result_t *result)
{
    ucs_status_t status = UCS_ERR_NO_DEVICE;
    uct_nprdma_monitor_kind_t tier;
    char why[NPRDMA_BACKEND_WHY_MAX];

    for (tier = UCT_NPRDMA_MONITOR_KERNEL; tier < UCT_NPRDMA_MONITOR_COPY;
         ++tier) {
        if (!uct_nprdma_tier_is_wanted(md, tier)) {
            continue;
        }

        status = uct_nprdma_tier_open(md, tier, why);
        if ((status == UCS_OK) || (status == UCS_ERR_INVALID_PARAM)) {
            md->mode = uct_nprdma_monitor_names[tier];
            return status;
        }

        uct_nprdma_tier_add_reason(result, tier, why);
        if (uct_nprdma_tier_is_doubtful(status)) {
            result->level = UCS_LOG_LEVEL_WARN;
        }
    }

    if (result->why[0] == '\0') {
        ucs_snprintf_zero(result->why, sizeof(result->why), "nothing watches "
                          "memory for this kind of device");
    }
    return status;
}

static ucs_status_t uct_nprdma_tier_set_faults(uct_nprdma_mem_md_t *md)
{
    const uct_nprdma_verbs_t *verbs = md->super.verbs;

    if ((md->config.fault_rate == 0) ||
        ((verbs->set_faults != NULL) &&
         (verbs->set_faults(md->super.context, md->config.fault_rate,
                            md->config.fault_seed) == 0))) {
        return UCS_OK;
    }

    ucs_error("UCX_NPRDMA_INJECT: %s of %s loses no pages on demand",
              md->super.name, verbs->name);
    return UCS_ERR_INVALID_PARAM;
}

/* The one line about zero copy. @return Status of the MD. */
static ucs_status_t
uct_nprdma_tier_report(const uct_nprdma_mem_md_t *md, ucs_status_t status,
                       const uct_nprdma_tier_result_t *result)
{
    ucs_log_level_t level = result->level;

    if (uct_nprdma_mem_has_zcopy(md)) {
        level = (level == UCS_LOG_LEVEL_INFO) ? UCS_LOG_LEVEL_DEBUG : level;
        ucs_log(level, "%s: memory is watched by: %s%s%s", md->super.name,
                md->mode, (result->why[0] == '\0') ? "" : "; not by ",
                result->why);
        return UCS_OK;
    }

    if ((status != UCS_OK) && (md->config.monitor != UCT_NPRDMA_MONITOR_AUTO)) {
        ucs_error("%s: UCX_NPRDMA_MONITOR=%s", md->super.name, result->why);
        return UCS_ERR_INVALID_PARAM;
    }

    ucs_log(level,
            "%s: no zero copy, all data goes through bounce buffers: %s",
            md->super.name, result->why);
    return UCS_OK;
}

/* What the user has asked for, and only a monitor does */
static void
uct_nprdma_tier_report_keep(const uct_nprdma_mem_md_t *md,
                            const uct_nprdma_tier_result_t *result)
{
    const char *why = (md->odp != NULL) ? "on-demand paging" : result->why;

    if (md->config.lazy_unmap == 0) {
        return;
    }

    if (md->monitor == NULL) {
        ucs_warn("%s: UCX_NPRDMA_LAZY_UNMAP has no effect, munmap() keeps "
                 "nothing, because memory is not monitored: %s",
                 md->super.name, why);
    } else if (md->config.revoke != NPRDMA_REVOKE_STRICT) {
        ucs_warn("%s: UCX_NPRDMA_LAZY_UNMAP has no effect, munmap() keeps "
                 "nothing: it needs UCX_NPRDMA_REVOKE=strict", md->super.name);
    }
}

ucs_status_t uct_nprdma_tier_init(uct_nprdma_mem_md_t *md)
{
    uct_nprdma_tier_result_t result = {
        .level = UCS_LOG_LEVEL_INFO
    };
    ucs_status_t status;

    status = uct_nprdma_tier_set_faults(md);
    if (status != UCS_OK) {
        return status;
    }

    /* Another MD, or a child that inherits this one, must have other ids */
    atomic_init(&md->region_id, ucs_generate_uuid((uintptr_t)md));
    atomic_init(&md->copy_reported, 0);
    atomic_init(&md->refusal, 0);
    md->monitor     = NULL;
    md->odp         = NULL;
    md->mode        = uct_nprdma_monitor_names[UCT_NPRDMA_MONITOR_COPY];
    md->region_time = 0;
    if (md->config.monitor == UCT_NPRDMA_MONITOR_COPY) {
        ucs_snprintf_zero(result.why, sizeof(result.why),
                          "UCX_NPRDMA_MONITOR=copy");
    } else {
        status = uct_nprdma_tier_choose(md, &result);
        if (status == UCS_ERR_INVALID_PARAM) {
            return status; /* Logged by the monitor */
        }
    }

    status = uct_nprdma_tier_report(md, status, &result);
    if (status == UCS_OK) {
        uct_nprdma_tier_report_keep(md, &result);
    }
    return status;
}

void uct_nprdma_tier_cleanup(uct_nprdma_mem_md_t *md)
{
    if (md->monitor != NULL) {
        nprdma_monitor_destroy(md->monitor);
        md->monitor = NULL;
    }
    if (md->odp != NULL) {
        uct_nprdma_odp_close(md->odp);
        md->odp = NULL;
    }
}
