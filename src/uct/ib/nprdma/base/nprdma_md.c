/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_md.h"
#include "nprdma_config.h"
#include "nprdma_fork.h"
#include "uct/ib/nprdma/mem/nprdma_mem.h"
#include "uct/ib/nprdma/mem/nprdma_region.h"
#include "uct/ib/nprdma/net/nprdma_bounce.h"
#include "uct/ib/nprdma/service/nprdma_service.h"

#include <ucs/debug/log.h>
#include <ucs/debug/memtrack_int.h>
#include <ucs/sys/string.h>
#include <ucs/sys/sys.h>

#include <stdatomic.h>

/* A peer's hop limit when a global route header is used */
#define UCT_NPRDMA_HOP_LIMIT  64

/* Called for every device that can be used */
typedef int (*uct_nprdma_device_func_t)(const uct_nprdma_verbs_t *verbs,
                                        struct ibv_device *device, void *arg);

/* Call a function with the usable devices, until it returns nonzero */
static void uct_nprdma_foreach_device(uct_nprdma_emulation_t emulation,
                                      uct_nprdma_device_func_t func, void *arg)
{
    const uct_nprdma_verbs_t *providers[UCT_NPRDMA_MAX_PROVIDERS];
    unsigned i, num_providers;
    struct ibv_device **list;
    int j, num_devices, stop;

    num_providers = uct_nprdma_verbs_providers(emulation, providers);
    stop          = 0;
    for (i = 0; (i < num_providers) && !stop; ++i) {
        list = providers[i]->get_device_list(&num_devices);
        if (list == NULL) {
            ucs_debug("%s: no device list: %m", providers[i]->name);
            continue;
        }

        for (j = 0; (j < num_devices) && !stop; ++j) {
            stop = func(providers[i], list[j], arg);
        }
        providers[i]->free_device_list(list);
    }
}

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

    if (uct_nprdma_config_check_env() != UCS_OK) {
        goto out_empty;
    }

    /* Which devices there are depends on the configuration */
    status = uct_md_config_read(component, NULL, NULL, &config);
    if (status != UCS_OK) {
        /* From a file, and UCX has told which value it is */
        ucs_debug("the configuration of nprdma is invalid, it is not used");
        goto out_empty;
    }

    emulation = ((uct_nprdma_md_config_t*)config)->emulation;
    uct_config_release(config);
    uct_nprdma_foreach_device(emulation, uct_nprdma_list_md, &ctx);
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

typedef struct {
    const char               *name;
    const uct_nprdma_verbs_t *verbs;
    struct ibv_context       *context;
} uct_nprdma_open_ctx_t;

static int uct_nprdma_open_device(const uct_nprdma_verbs_t *verbs,
                                  struct ibv_device *device, void *arg)
{
    uct_nprdma_open_ctx_t *ctx = arg;

    if (strcmp(verbs->get_device_name(device), ctx->name)) {
        return 0;
    }

    ctx->verbs   = verbs;
    ctx->context = verbs->open_device(device);
    if (ctx->context == NULL) {
        ucs_error("%s: failed to open the device: %m", ctx->name);
    }
    return 1;
}

static ucs_status_t uct_nprdma_md_open_device(uct_nprdma_md_t *md)
{
    uct_nprdma_open_ctx_t ctx = { .name = md->name };

    uct_nprdma_foreach_device(md->config.emulation, uct_nprdma_open_device,
                              &ctx);
    if (ctx.context == NULL) {
        if (ctx.verbs == NULL) {
            ucs_error("there is no device %s", md->name);
        }
        return UCS_ERR_NO_DEVICE;
    }

    md->verbs   = ctx.verbs;
    md->context = ctx.context;
    return UCS_OK;
}

/* On failure nothing is left but the opened device */
static ucs_status_t uct_nprdma_md_init(uct_nprdma_md_t *md)
{
    ucs_status_t status;
    int ret;

    ret = md->verbs->query_device(md->context, &md->dev_attr);
    if (ret != 0) {
        ucs_error("%s: failed to query the device: %s", md->name,
                  strerror(ret));
        return UCS_ERR_IO_ERROR;
    }

    md->pd = md->verbs->alloc_pd(md->context);
    if (md->pd == NULL) {
        ucs_error("%s: failed to allocate a protection domain: %m", md->name);
        return UCS_ERR_IO_ERROR;
    }

    status = uct_nprdma_region_init(md);
    if (status != UCS_OK) {
        goto err_pd;
    }

    status = uct_nprdma_mem_init(md);
    if (status != UCS_OK) {
        goto err_region;
    }

    status = uct_nprdma_service_create(md);
    if (status != UCS_OK) {
        goto err_mem;
    }

    return UCS_OK;

err_mem:
    uct_nprdma_mem_cleanup(md);
err_region:
    uct_nprdma_region_cleanup(md);
err_pd:
    md->verbs->dealloc_pd(md->pd);
    return status;
}

ucs_status_t uct_nprdma_md_open(uct_component_t *component, const char *md_name,
                                const uct_md_config_t *config, uct_md_h *md_p)
{
    ucs_status_t status;
    uct_nprdma_md_t *md;

    md = ucs_calloc(1, sizeof(*md), "nprdma_md");
    if (md == NULL) {
        ucs_error("failed to allocate a memory domain");
        return UCS_ERR_NO_MEMORY;
    }

    md->super.ops       = &uct_nprdma_md_ops;
    md->super.component = component;
    md->owner           = getpid();
    md->generation      = uct_nprdma_fork_generation;
    atomic_init(&md->refs, 1);
    md->config          = *ucs_derived_of(config, uct_nprdma_md_config_t);
    ucs_snprintf_zero(md->name, sizeof(md->name), "%s", md_name);
    status = uct_nprdma_md_check_config(&md->config);
    if (status != UCS_OK) {
        goto err_free;
    }

    status = uct_nprdma_fork_init();
    if (status != UCS_OK) {
        goto err_free;
    }

    status = uct_nprdma_md_open_device(md);
    if (status != UCS_OK) {
        goto err_free;
    }

    uct_nprdma_bounce_set_budget(md->config.max_pinned);
    status           = uct_nprdma_md_init(md);
    md->config.fault = NULL; /* UCX frees it with its configuration */
    if (status != UCS_OK) {
        goto err_close;
    }

    *md_p = &md->super;
    return UCS_OK;

err_close:
    md->verbs->close_device(md->context);
err_free:
    ucs_free(md);
    return status;
}

static void uct_nprdma_md_destroy(uct_nprdma_md_t *md)
{
    int ret;

    uct_nprdma_service_destroy(md);
    uct_nprdma_mem_cleanup(md);
    uct_nprdma_region_cleanup(md);
    ret = md->verbs->dealloc_pd(md->pd);
    if (ret != 0) {
        ucs_warn("%s: failed to deallocate the protection domain: %s",
                 md->name, strerror(ret));
    }
    md->verbs->close_device(md->context);
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

    if (!uct_nprdma_md_is_owner(md)) {
        /* Its queues and its thread are the parent's; this copy of the memory
         * goes with the process */
        ucs_debug("%s: was opened before fork(), not closed", md->name);
        return;
    }

    num_ifaces = atomic_load(&md->refs) - 1;
    if (num_ifaces > 0) {
        ucs_warn("%s: closed with %u open interfaces: it goes with the last of "
                 "them", md->name, num_ifaces);
    }

    uct_nprdma_md_put(md);
}

ucs_status_t uct_nprdma_md_check_owner(const uct_nprdma_md_t *md)
{
    if (!uct_nprdma_md_is_owner(md)) {
        ucs_error("%s: was opened before fork() by process %d, a child cannot "
                  "open an interface of it", md->name, md->owner);
        return UCS_ERR_UNSUPPORTED;
    }

    return UCS_OK;
}

void uct_nprdma_md_caps(uct_nprdma_md_t *md, uct_nprdma_md_caps_t *caps)
{
    /* Registering pins nothing and asks nobody: it is as good as free, and
     * UCX need not keep registrations. An unpacked key is all that is needed
     * remotely, and nothing is needed locally. */
    memset(caps, 0, sizeof(*caps));
    caps->flags                  = UCT_MD_FLAG_REG | UCT_MD_FLAG_NEED_RKEY |
                                   UCT_NPRDMA_MD_FLAG_INVALIDATE;
    caps->reg_mem_types          = UCS_BIT(UCS_MEMORY_TYPE_HOST);
    caps->reg_nonblock_mem_types = UCS_BIT(UCS_MEMORY_TYPE_HOST);
    caps->cache_mem_types        = UCS_BIT(UCS_MEMORY_TYPE_HOST);
    caps->access_mem_types       = UCS_BIT(UCS_MEMORY_TYPE_HOST);
    caps->rkey_packed_size       = sizeof(uct_nprdma_packed_rkey_t);
    caps->reg_cost               = ucs_linear_func_make(0, 0);
}

ucs_status_t uct_nprdma_md_port_addr(uct_nprdma_md_t *md, uint8_t port_num,
                                     uct_nprdma_dev_addr_t *addr)
{
    struct ibv_port_attr port_attr = {};
    union ibv_gid gid;
    int ret;

    ret = md->verbs->query_port_attr(md->context, port_num, &port_attr);
    if (ret != 0) {
        ucs_error("%s: failed to query port %u: %s", md->name, port_num,
                  strerror(ret));
        return UCS_ERR_IO_ERROR;
    }

    ret = md->verbs->query_gid(md->context, port_num, md->config.gid_index,
                               &gid);
    if (ret != 0) {
        ucs_error("%s: port %u has no GID with index %u "
                  "(see UCX_NPRDMA_GID_INDEX)", md->name, port_num,
                  md->config.gid_index);
        return UCS_ERR_IO_ERROR;
    }

    memset(addr, 0, sizeof(*addr));
    addr->version = UCT_NPRDMA_WIRE_VERSION;
    addr->lid     = port_attr.lid;
    addr->mtu     = port_attr.active_mtu;
    memcpy(addr->gid, gid.raw, sizeof(addr->gid));
    if (port_attr.link_layer == IBV_LINK_LAYER_ETHERNET) {
        addr->flags |= UCT_NPRDMA_DEV_ADDR_ETH;
    }
    return UCS_OK;
}

void uct_nprdma_md_fill_ah_attr(const uct_nprdma_md_t *md, uint8_t port_num,
                                const uct_nprdma_dev_addr_t *dev_addr,
                                struct ibv_ah_attr *ah_attr)
{
    memset(ah_attr, 0, sizeof(*ah_attr));
    ah_attr->port_num = port_num;
    ah_attr->dlid     = dev_addr->lid;
    if (dev_addr->flags & UCT_NPRDMA_DEV_ADDR_ETH) {
        ah_attr->is_global      = 1;
        ah_attr->grh.sgid_index = md->config.gid_index;
        ah_attr->grh.hop_limit  = UCT_NPRDMA_HOP_LIMIT;
        memcpy(ah_attr->grh.dgid.raw, dev_addr->gid, sizeof(dev_addr->gid));
    }
}

ucs_status_t
uct_nprdma_query_tl_devices(uct_md_h tl_md,
                            uct_tl_device_resource_t **tl_devices_p,
                            unsigned *num_tl_devices_p)
{
    uct_nprdma_md_t *md = ucs_derived_of(tl_md, uct_nprdma_md_t);
    uct_tl_device_resource_t *devices;
    struct ibv_port_attr port_attr;
    uct_nprdma_dev_addr_t dev_addr;
    unsigned count;
    uint8_t port;

    devices = ucs_calloc(md->dev_attr.phys_port_cnt, sizeof(*devices),
                         "nprdma_tl_devices");
    if (devices == NULL) {
        ucs_error("failed to allocate a list of %u ports",
                  md->dev_attr.phys_port_cnt);
        return UCS_ERR_NO_MEMORY;
    }

    count = 0;
    for (port = 1; port <= md->dev_attr.phys_port_cnt; ++port) {
        memset(&port_attr, 0, sizeof(port_attr));
        if ((md->verbs->query_port_attr(md->context, port, &port_attr) != 0) ||
            (port_attr.state != IBV_PORT_ACTIVE)) {
            ucs_debug("%s: port %u is not active", md->name, port);
            continue;
        }

        /* Without an address, no interface: better told before somebody counts
         * on it */
        if (uct_nprdma_md_port_addr(md, port, &dev_addr) != UCS_OK) {
            continue;
        }

        ucs_snprintf_zero(devices[count].name, sizeof(devices[count].name),
                          "%s:%u", md->name, port);
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
