/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_device.h"

#include <ucs/debug/log.h>
#include <ucs/sys/string.h>
#include <ucs/sys/sys.h>

#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <unistd.h>

/* Hop limit in a global route header */
#define UCT_NPRDMA_HOP_LIMIT  64

static unsigned uct_nprdma_device_first = UCT_NPRDMA_FORK_FIRST;
unsigned *uct_nprdma_fork_generation    = &uct_nprdma_device_first;


void uct_nprdma_device_foreach(uct_nprdma_emulation_t emulation,
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

static int uct_nprdma_device_open_named(const uct_nprdma_verbs_t *verbs,
                                        struct ibv_device *device, void *arg)
{
    uct_nprdma_device_t *dev = arg;

    if (strcmp(verbs->get_device_name(device), dev->name)) {
        return 0;
    }

    dev->verbs   = verbs;
    dev->context = verbs->open_device(device);
    if (dev->context == NULL) {
        ucs_error("%s: failed to open the device: %m", dev->name);
    }
    return 1;
}

ucs_status_t
uct_nprdma_device_open(uct_nprdma_device_t *dev, const char *name,
                       uct_nprdma_emulation_t emulation,
                       const uct_nprdma_device_config_t *config)
{
    ucs_status_t status = UCS_ERR_IO_ERROR;
    int ret;

    dev->verbs      = NULL;
    dev->context    = NULL;
    dev->config     = *config;
    dev->owner      = getpid();
    dev->generation = *uct_nprdma_fork_generation;
    ucs_snprintf_zero(dev->name, sizeof(dev->name), "%s", name);
    uct_nprdma_device_foreach(emulation, uct_nprdma_device_open_named, dev);
    if (dev->context == NULL) {
        if (dev->verbs == NULL) {
            ucs_error("there is no device %s", dev->name);
        }
        return UCS_ERR_NO_DEVICE;
    }

    ret = dev->verbs->query_device(dev->context, &dev->attr);
    if (ret != 0) {
        ucs_error("%s: failed to query the device: %s", dev->name,
                  strerror(ret));
        goto err_close;
    }

    dev->pd = dev->verbs->alloc_pd(dev->context);
    if (dev->pd == NULL) {
        ucs_error("%s: failed to allocate a protection domain: %m", dev->name);
        goto err_close;
    }

    status = uct_nprdma_counters_open(
            &dev->counters, NPRDMA_COUNTERS_DEVICE, dev->name,
            UCT_NPRDMA_DEVICE_STAT_NAMES, sizeof(UCT_NPRDMA_DEVICE_STAT_NAMES),
            sizeof(*dev->stats) / sizeof(uint64_t));
    if (status != UCS_OK) {
        goto err_dealloc;
    }

    dev->stats = dev->counters.values;
    return UCS_OK;

err_dealloc:
    dev->verbs->dealloc_pd(dev->pd);
err_close:
    dev->verbs->close_device(dev->context);
    return status;
}

void uct_nprdma_device_close(uct_nprdma_device_t *dev)
{
    int ret;

    ret = dev->verbs->dealloc_pd(dev->pd);
    if (ret != 0) {
        ucs_warn("%s: failed to deallocate the protection domain: %s",
                 dev->name, strerror(ret));
    }
    dev->verbs->close_device(dev->context);
    uct_nprdma_counters_close(&dev->counters);
}

struct ibv_comp_channel *
uct_nprdma_device_create_channel(const uct_nprdma_device_t *dev)
{
    struct ibv_comp_channel *channel;

    channel = dev->verbs->create_comp_channel(dev->context);
    if (channel == NULL) {
        ucs_error("%s: failed to create a completion channel: %m", dev->name);
        return NULL;
    }

    if (ucs_sys_fcntl_modfl(channel->fd, O_NONBLOCK, 0) != UCS_OK) {
        dev->verbs->destroy_comp_channel(channel);
        return NULL;
    }

    return channel;
}

unsigned uct_nprdma_device_take_events(const uct_nprdma_device_t *dev,
                                       struct ibv_comp_channel *channel)
{
    unsigned count = 0;
    struct ibv_cq *cq;
    void *cq_context;

    while (dev->verbs->get_cq_event(channel, &cq, &cq_context) == 0) {
        dev->verbs->ack_cq_events(cq, 1);
        ++count;
    }
    return count;
}

ucs_status_t
uct_nprdma_device_port_addr(uct_nprdma_device_t *dev, uint8_t port_num,
                            uct_nprdma_dev_addr_t *addr)
{
    struct ibv_port_attr port_attr = {};
    union ibv_gid gid;
    int ret;

    ret = dev->verbs->query_port_attr(dev->context, port_num, &port_attr);
    if (ret != 0) {
        ucs_error("%s: failed to query port %u: %s", dev->name, port_num,
                  strerror(ret));
        return UCS_ERR_IO_ERROR;
    }

    ret = dev->verbs->query_gid(dev->context, port_num, dev->config.gid_index,
                                &gid);
    if (ret != 0) {
        ucs_error("%s: port %u has no GID with index %u "
                  "(see UCX_NPRDMA_GID_INDEX)", dev->name, port_num,
                  dev->config.gid_index);
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

static int uct_nprdma_device_is_pci_address(const char *name)
{
    unsigned domain, bus, slot, function;
    int length = 0;

    return (sscanf(name, "%x:%2x:%2x.%1x%n", &domain, &bus, &slot, &function,
                   &length) == 4) && (name[length] == '\0');
}

const char *uct_nprdma_device_pci_address(const uct_nprdma_device_t *dev,
                                          char *address, size_t max)
{
    const char *result = NULL;
    char link[PATH_MAX];
    char *path, *name;

    ucs_snprintf_zero(link, sizeof(link), "%s/device",
                      dev->context->device->ibdev_path);
    path = realpath(link, NULL);
    if (path == NULL) {
        return NULL;
    }

    /* The path ends with the function, or with a subfunction of it */
    while ((result == NULL) && ((name = strrchr(path, '/')) != NULL)) {
        if (uct_nprdma_device_is_pci_address(name + 1) &&
            (strlen(name + 1) < max)) {
            result = strcpy(address, name + 1);
        }
        *name = '\0';
    }

    free(path);
    return result;
}

int uct_nprdma_device_port_is_active(const uct_nprdma_device_t *dev,
                                     uint8_t port_num)
{
    struct ibv_port_attr port_attr = {};

    return (dev->verbs->query_port_attr(dev->context, port_num,
                                        &port_attr) == 0) &&
           (port_attr.state == IBV_PORT_ACTIVE);
}

void uct_nprdma_device_port_perf(const uct_nprdma_device_t *dev,
                                 uint8_t port_num, uct_nprdma_perf_t *perf)
{
    struct ibv_port_attr port_attr = {};
    uint64_t rate, latency_ns;
    char text[64] = "";
    int is_shared;

    *perf = *dev->verbs->perf;
    rate  = (dev->verbs->query_link == NULL) ? 0 :
            dev->verbs->query_link(dev->context, &latency_ns, &is_shared);
    if (rate != 0) {
        uct_nprdma_perf_add_wire(perf, rate, latency_ns * 1e-9, is_shared);
    }

    if (perf->bandwidth != 0) {
        return;
    }

    if (dev->verbs->query_port_attr(dev->context, port_num, &port_attr) != 0) {
        ucs_debug("%s: no speed of port %u: %m", dev->name, port_num);
        memset(&port_attr, 0, sizeof(port_attr));
    }

    (void)ucs_read_file_str(text, sizeof(text), 1,
                            "/sys/class/infiniband/%s/ports/%u/rate",
                            dev->name, port_num);
    perf->bandwidth = uct_nprdma_perf_port_bandwidth(text, &port_attr);
}

ucs_status_t uct_nprdma_device_check_path(const uct_nprdma_path_config_t *path,
                                          const uct_nprdma_dev_addr_t *local)
{
    if ((local->flags & UCT_NPRDMA_DEV_ADDR_ETH) &&
        (path->sl > UCT_NPRDMA_MAX_ETH_SL)) {
        ucs_error("UCX_NPRDMA_SL: %u is not in the range 0..%u of a RoCE port",
                  path->sl, UCT_NPRDMA_MAX_ETH_SL);
        return UCS_ERR_INVALID_PARAM;
    }

    return UCS_OK;
}

void uct_nprdma_device_fill_ah_attr(const uct_nprdma_device_t *dev,
                                    uint8_t port_num,
                                    const uct_nprdma_dev_addr_t *dev_addr,
                                    const uct_nprdma_path_config_t *path,
                                    struct ibv_ah_attr *ah_attr)
{
    memset(ah_attr, 0, sizeof(*ah_attr));
    ah_attr->port_num = port_num;
    ah_attr->dlid     = dev_addr->lid;
    ah_attr->sl       = path->sl;
    if ((dev_addr->flags & UCT_NPRDMA_DEV_ADDR_ETH) ||
        (path->traffic_class != 0)) {
        ah_attr->is_global         = 1;
        ah_attr->grh.sgid_index    = dev->config.gid_index;
        ah_attr->grh.hop_limit     = UCT_NPRDMA_HOP_LIMIT;
        ah_attr->grh.traffic_class = path->traffic_class;
        memcpy(ah_attr->grh.dgid.raw, dev_addr->gid, sizeof(dev_addr->gid));
    }
}
