/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_md.h"
#include "nprdma_fork.h"
#include "nprdma_stats.h"
#include "uct/ib/nprdma/mem/nprdma_mem.h"
#include "uct/ib/nprdma/mem/nprdma_odp.h"
#include "uct/ib/nprdma/mem/nprdma_tier.h"
#include "uct/ib/nprdma/net/nprdma_bounce.h"

#include <ucs/debug/log.h>
#include <ucs/debug/memtrack_int.h>
#include <ucs/sys/string.h>
#include <ucs/sys/sys.h>
#include <ucs/vfs/base/vfs_obj.h>


/* Number of times that a byte of a region is registered, for the average cost.
 * UCX knows no cost of the first time only, and its own transports leave it
 * out when they cache registrations. */
#define UCT_NPRDMA_MD_REGION_USES 16

typedef struct {
    uct_md_resource_desc_t *resources;
    unsigned               count;
    ucs_status_t           status;
} uct_nprdma_list_md_ctx_t;

static int uct_nprdma_list_md(const uct_nprdma_verbs_t *verbs,
                              struct ibv_device *device, void *arg)
{
    uct_nprdma_list_md_ctx_t *ctx = arg;
    uct_md_resource_desc_t *resources;

    resources = ucs_realloc(ctx->resources,
                            (ctx->count + 1) * sizeof(*resources),
                            "nprdma_md_resources");
    if (resources == NULL) {
        ctx->status = UCS_ERR_NO_MEMORY;
        return 1;
    }

    ctx->resources = resources;
    ucs_snprintf_zero(resources[ctx->count].md_name, UCT_MD_NAME_MAX, "%s",
                      verbs->get_device_name(device));
    ++ctx->count;
    return 0;
}

ucs_status_t
uct_nprdma_query_md_resources(uct_component_t *component,
                              uct_md_resource_desc_t **resources_p,
                              unsigned *num_resources_p)
{
    static atomic_flag warned    = ATOMIC_FLAG_INIT;
    uct_nprdma_list_md_ctx_t ctx = { .status = UCS_OK };
    uct_nprdma_emulation_t emulation;
    uct_md_config_t *config;
    ucs_status_t status;

    /* States, views and their keys are of pages of this size */
    if (ucs_get_page_size() != NPRDMA_PAGE_SIZE) {
        if (!atomic_flag_test_and_set(&warned)) {
            ucs_warn("nprdma is for pages of %lu bytes, and those of this "
                     "kernel have %zu: it is not used",
                     (unsigned long)NPRDMA_PAGE_SIZE, ucs_get_page_size());
        }
        goto out_empty;
    }

    uct_nprdma_config_tell_removed();

    /* The configuration decides which devices are usable */
    status = uct_md_config_read(component, NULL, NULL, &config);
    if (status != UCS_OK) {
        /* UCX has logged which value it is */
        ucs_debug("the configuration of nprdma is invalid, it is not used");
        goto out_empty;
    }

    /* A program that does not require nprdma goes on without it */
    status    = uct_nprdma_md_complete_config((uct_nprdma_md_config_t*)config);
    emulation = ((uct_nprdma_md_config_t*)config)->emulation;
    uct_config_release(config);
    if (status != UCS_OK) {
        goto out_empty;
    }

    uct_nprdma_device_foreach(emulation, uct_nprdma_list_md, &ctx);
    if (ctx.status != UCS_OK) {
        ucs_free(ctx.resources);
        return ctx.status;
    }

    if ((ctx.count == 0) && (emulation == UCT_NPRDMA_EMULATION_NO) &&
        !atomic_flag_test_and_set(&warned)) {
        ucs_warn("UCX_NPRDMA_EMULATION=no, and there is no RDMA device with a "
                 "port that is up: nprdma is not available");
    }

    *resources_p     = ctx.resources;
    *num_resources_p = ctx.count;
    return UCS_OK;

out_empty:
    *resources_p     = NULL;
    *num_resources_p = 0;
    return UCS_OK;
}

static void
uct_nprdma_md_populate_async(uct_nprdma_mem_md_t *mem_md,
                             const uct_nprdma_mem_t *mem, uintptr_t address,
                             size_t length, unsigned flags)
{
    uct_nprdma_md_t *md = ucs_derived_of(mem_md, uct_nprdma_md_t);

    uct_nprdma_service_populate_async(md->service, mem, address, length, flags);
}

static void uct_nprdma_md_free_strings(uct_nprdma_md_t *md)
{
    ucs_free(md->iface.perf);
    ucs_free(md->iface.stats);
}

/* After an error only the open device is left */
static ucs_status_t
uct_nprdma_md_init(uct_nprdma_md_t *md, const uct_nprdma_md_config_t *config)
{
    ucs_status_t status;

    md->super.populate_async = uct_nprdma_md_populate_async;
    md->super.config         = config->mem;
    md->rma                  = config->rma;
    md->cm                   = config->cm;
    md->iface                = config->iface;
    md->iface.perf           = ucs_strdup(config->iface.perf, "nprdma_perf");
    md->iface.stats          = ucs_strdup(config->iface.stats, "nprdma_stats");
    if ((md->iface.perf == NULL) || (md->iface.stats == NULL)) {
        ucs_error("failed to allocate values of variables");
        status = UCS_ERR_NO_MEMORY;
        goto err_strings;
    }

    status = uct_nprdma_tier_init(&md->super);
    if (status != UCS_OK) {
        goto err_strings;
    }

    uct_nprdma_counters_set_mode(&md->super.super.counters, md->super.mode);
    status = uct_nprdma_mem_init(&md->super);
    if (status != UCS_OK) {
        goto err_region;
    }

    status = uct_nprdma_service_create(&md->super, config->svc_slots,
                                       config->svc_threads, &md->service);
    if (status != UCS_OK) {
        goto err_mem;
    }

    return UCS_OK;

err_mem:
    uct_nprdma_mem_cleanup(&md->super);
err_region:
    uct_nprdma_tier_cleanup(&md->super);
err_strings:
    uct_nprdma_md_free_strings(md);
    return status;
}

ucs_status_t
uct_nprdma_md_open(uct_component_t *component,
                   const uct_nprdma_tables_t *tables, const char *md_name,
                   const uct_md_config_t *md_config, uct_md_h *md_p)
{
    uct_nprdma_md_config_t config = *ucs_derived_of(md_config,
                                                    uct_nprdma_md_config_t);
    ucs_status_t status;
    uct_nprdma_md_t *md;

    ucs_trace_func("md_name=%s", md_name);
    md = ucs_calloc(1, sizeof(*md), "nprdma_md");
    if (md == NULL) {
        ucs_error("failed to allocate a memory domain");
        return UCS_ERR_NO_MEMORY;
    }

    md->tables                      = tables;
    md->super.super.super.ops       = tables->md;
    md->super.super.super.component = component;
    atomic_init(&md->refs, 1);
    status = uct_nprdma_md_complete_config(&config);
    if (status != UCS_OK) {
        goto err_free;
    }

    status = uct_nprdma_fork_init();
    if (status != UCS_OK) {
        goto err_free;
    }

    status = uct_nprdma_device_open(&md->super.super, md_name,
                                    config.emulation, &config.device);
    if (status != UCS_OK) {
        goto err_free;
    }

    uct_nprdma_bounce_set_budget(config.max_pinned);
    status = uct_nprdma_md_init(md, &config);
    if (status != UCS_OK) {
        goto err_close;
    }

    uct_nprdma_stats_md_opened();
    *md_p = &md->super.super.super;
    return UCS_OK;

err_close:
    uct_nprdma_device_close(&md->super.super);
err_free:
    ucs_free(md);
    return status;
}

static void uct_nprdma_md_destroy(uct_nprdma_md_t *md)
{
    uct_nprdma_mem_stats_t stats;

    uct_nprdma_md_stats(md, &stats);
    uct_nprdma_stats_md_closed(&stats);
    uct_nprdma_service_destroy(md->service);
    uct_nprdma_mem_cleanup(&md->super);
    uct_nprdma_tier_cleanup(&md->super);
    uct_nprdma_device_close(&md->super.super);
    uct_nprdma_md_free_strings(md);
    ucs_free(md);
}

void uct_nprdma_md_get(uct_nprdma_md_t *md)
{
    atomic_fetch_add(&md->refs, 1);
}

void uct_nprdma_md_put(uct_nprdma_md_t *md)
{
    if (atomic_fetch_sub(&md->refs, 1) == 1) {
        uct_nprdma_md_destroy(md);
    }
}

void uct_nprdma_md_close(uct_md_h tl_md)
{
    uct_nprdma_md_t *md = ucs_derived_of(tl_md, uct_nprdma_md_t);
    unsigned num_ifaces;

    ucs_trace_func("md=%p", md);
    if (!uct_nprdma_device_is_owner(&md->super.super)) {
        /* Queues and thread belong to the parent; the copy of the memory ends
         * with the process */
        ucs_debug("%s: was opened before fork(), not closed",
                  md->super.super.name);
        return;
    }

    num_ifaces = atomic_load(&md->refs) - 1;
    if (num_ifaces > 0) {
        ucs_warn("%s: closed with %u open interfaces: it is destroyed with the "
                 "last of them", md->super.super.name, num_ifaces);
    }

    uct_nprdma_md_put(md);
}

ucs_status_t uct_nprdma_md_check_owner(const uct_nprdma_md_t *md)
{
    if (!uct_nprdma_device_is_owner(&md->super.super)) {
        ucs_error("%s: was opened before fork() by process %d, a child cannot "
                  "open an interface of it", md->super.super.name,
                  md->super.super.owner);
        return UCS_ERR_UNSUPPORTED;
    }

    return UCS_OK;
}

ucs_linear_func_t uct_nprdma_md_reg_cost(const uct_nprdma_md_t *md)
{
    return ucs_linear_func_make(
            (md->super.odp != NULL) ? md->super.odp->reg_cost : 0,
            md->super.region_time / md->super.config.region_size /
            UCT_NPRDMA_MD_REGION_USES);
}

void uct_nprdma_md_stats(uct_nprdma_md_t *md, uct_nprdma_mem_stats_t *stats)
{
    uct_nprdma_mem_query(&md->super, stats);
    uct_nprdma_service_query(md->service, stats);
}

static void uct_nprdma_md_vfs_show(void *obj, ucs_string_buffer_t *strb,
                                   void *arg_ptr, uint64_t arg_u64)
{
    uct_nprdma_mem_stats_t stats;

    uct_nprdma_md_stats(arg_ptr, &stats);
    uct_nprdma_stats_print_mem(&stats, strb);
}

void uct_nprdma_md_vfs(uct_nprdma_md_t *md, void *obj)
{
    ucs_vfs_obj_add_ro_file(obj, uct_nprdma_md_vfs_show, md, 0,
                            "nprdma_memory");
}

ucs_status_t
uct_nprdma_query_tl_devices(uct_md_h tl_md,
                            uct_tl_device_resource_t **tl_devices_p,
                            unsigned *num_tl_devices_p)
{
    uct_nprdma_device_t *dev = ucs_derived_of(tl_md, uct_nprdma_device_t);
    uct_tl_device_resource_t *devices;
    uct_nprdma_dev_addr_t dev_addr;
    unsigned count;
    uint8_t port;

    devices = ucs_calloc(dev->attr.phys_port_cnt, sizeof(*devices),
                         "nprdma_tl_devices");
    if (devices == NULL) {
        ucs_error("failed to allocate a list of %u ports",
                  dev->attr.phys_port_cnt);
        return UCS_ERR_NO_MEMORY;
    }

    count = 0;
    for (port = 1; port <= dev->attr.phys_port_cnt; ++port) {
        if (!uct_nprdma_device_port_is_active(dev, port)) {
            ucs_debug("%s: port %u is not active", dev->name, port);
            continue;
        }

        /* A port without an address cannot have an interface, so do not offer
         * it */
        if (uct_nprdma_device_port_addr(dev, port, &dev_addr) != UCS_OK) {
            continue;
        }

        ucs_snprintf_zero(devices[count].name, sizeof(devices[count].name),
                          "%s:%u", dev->name, port);
        devices[count].type       = UCT_DEVICE_TYPE_NET;
        devices[count].sys_device = UCS_SYS_DEVICE_ID_UNKNOWN;
        ++count;
    }

    if (count == 0) {
        ucs_free(devices);
        devices = NULL;
    }

    *tl_devices_p     = devices;
    *num_tl_devices_p = count;
    return UCS_OK;
}
