/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_verbs.h"

#include "ucm/backend/nprdma_backend.h"

#include <npemu.h>
#include <npemu_iommu.h>
#include <ucs/debug/log_def.h>
#include <ucs/sys/compiler_def.h>

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>

#define UCT_NPRDMA_VERBS_LIB  "libibverbs.so.1"

/* ibv_query_device_ex() is an inline function that refers to a symbol of
 * libibverbs */
static int uct_nprdma_verbs_query_odp(struct ibv_context *context,
                                      struct ibv_odp_caps *caps)
{
    struct ibv_device_attr_ex attr = {};
    struct verbs_context *verbs;
    int ret;

    verbs = verbs_get_ctx_op(context, query_device_ex);
    if (verbs == NULL) {
        return EOPNOTSUPP;
    }

    ret   = verbs->query_device_ex(context, NULL, &attr, sizeof(attr));
    *caps = attr.odp_caps;
    return ret;
}

static const uct_nprdma_verbs_t uct_nprdma_verbs_emulated = {
    .name               = "emulated RNIC",
    .perf               = &uct_nprdma_perf_emulated,
#define UCT_NPRDMA_VERB_EMULATED(_member, _verb) ._member = npemu_##_verb,
    UCT_NPRDMA_FOREACH_VERB(UCT_NPRDMA_VERB_EMULATED)
#undef UCT_NPRDMA_VERB_EMULATED
    .query_port_attr    = npemu_query_port,
    .alloc_buf          = npemu_alloc_buf,
    .free_buf           = npemu_free_buf,
    .query_link         = npemu_query_link,
    .has_qp             = npemu_has_qp,
    .query_odp          = uct_nprdma_verbs_query_odp,
    .register_dmabuf_mr = npemu_reg_dmabuf_mr,
    .kernel_backend     = &nprdma_backend_kernel,
    .emulated_backend   = &nprdma_backend_emulated,
    .drain              = npemu_iommu_drain,
    .set_faults         = npemu_fault_random
};

static uct_nprdma_verbs_t uct_nprdma_verbs_real = {
    .name           = UCT_NPRDMA_VERBS_LIB,
    .perf           = &uct_nprdma_perf_adapter,
    .query_odp      = uct_nprdma_verbs_query_odp,
    .kernel_backend = &nprdma_backend_device
};

static int uct_nprdma_verbs_real_usable;


/* Real libibverbs is loaded at run time, so that a build that supports it also
 * works without it. It is never unloaded, because drivers do not support
 * that. */
static void uct_nprdma_verbs_load(void)
{
    void *lib = dlopen(UCT_NPRDMA_VERBS_LIB, RTLD_NOW | RTLD_LOCAL);

    if (lib == NULL) {
        ucs_debug("%s cannot be loaded: %s", UCT_NPRDMA_VERBS_LIB, dlerror());
        return;
    }

#define UCT_NPRDMA_VERB_LOAD(_member, _verb) \
    *(void**)&uct_nprdma_verbs_real._member = dlsym(lib, "ibv_" #_verb); \
    if (uct_nprdma_verbs_real._member == NULL) { \
        ucs_diag("%s has no symbol ibv_" #_verb ": not used", \
                 UCT_NPRDMA_VERBS_LIB); \
        dlclose(lib); \
        return; \
    }
    UCT_NPRDMA_FOREACH_VERB(UCT_NPRDMA_VERB_LOAD)
    UCT_NPRDMA_VERB_LOAD(query_port_attr, query_port)
#undef UCT_NPRDMA_VERB_LOAD

    /* rdma-core 34 and later */
    *(void**)&uct_nprdma_verbs_real.register_dmabuf_mr =
            dlsym(lib, "ibv_reg_dmabuf_mr");
    uct_nprdma_verbs_real_usable = 1;
}

/* A device is usable if it has an active port. Otherwise a device without a
 * cable would disable the emulated one. */
static int uct_nprdma_verbs_device_usable(const uct_nprdma_verbs_t *verbs,
                                          struct ibv_device *device)
{
    struct ibv_port_attr port_attr = {};
    struct ibv_device_attr dev_attr;
    struct ibv_context *context;
    int usable = 0;
    uint8_t port;

    context = verbs->open_device(device);
    if (context == NULL) {
        ucs_debug("%s cannot be opened: %m", verbs->get_device_name(device));
        return 0;
    }

    if (verbs->query_device(context, &dev_attr) == 0) {
        for (port = 1; (port <= dev_attr.phys_port_cnt) && !usable; ++port) {
            usable = (verbs->query_port_attr(context, port, &port_attr) == 0) &&
                     (port_attr.state == IBV_PORT_ACTIVE) &&
                     (dev_attr.max_srq > 0);
        }
    }

    verbs->close_device(context);
    return usable;
}

static int uct_nprdma_verbs_any_usable(const uct_nprdma_verbs_t *verbs)
{
    struct ibv_device **list;
    int i, num_devices, usable;

    list = verbs->get_device_list(&num_devices);
    if (list == NULL) {
        return 0;
    }

    usable = 0;
    for (i = 0; (i < num_devices) && !usable; ++i) {
        usable = uct_nprdma_verbs_device_usable(verbs, list[i]);
    }

    verbs->free_device_list(list);
    return usable;
}

unsigned uct_nprdma_verbs_providers(uct_nprdma_emulation_t emulation,
                                    const uct_nprdma_verbs_t **providers)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    unsigned count             = 0;

    if (emulation != UCT_NPRDMA_EMULATION_YES) {
        pthread_once(&once, uct_nprdma_verbs_load);
        if (uct_nprdma_verbs_real_usable &&
            uct_nprdma_verbs_any_usable(&uct_nprdma_verbs_real)) {
            providers[count++] = &uct_nprdma_verbs_real;
        }
    }

    if ((emulation == UCT_NPRDMA_EMULATION_YES) ||
        ((emulation == UCT_NPRDMA_EMULATION_AUTO) && (count == 0))) {
        providers[count++] = &uct_nprdma_verbs_emulated;
    }

    return count;
}
