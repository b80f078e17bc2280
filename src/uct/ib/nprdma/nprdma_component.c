/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_glue.h"
#include "uct/ib/nprdma/base/nprdma_sockcm.h"
#include "uct/ib/nprdma/base/nprdma_stats.h"
#include "uct/ib/nprdma/compat/nprdma_abi.h"
#include "uct/ib/nprdma/net/nprdma_record.h"
#include "uct/ib/nprdma/rma/nprdma_rma.h"

#include <ucs/debug/log.h>
#include <ucs/sys/string.h>

/* The interface to UCX: the component, the transport, and the tables of their
 * functions, as far as the UCX of this build has them */

static uct_md_ops_t uct_nprdma_md_ops = {
    .close              = uct_nprdma_md_close,
    .query              = uct_nprdma_md_query,
    .mem_alloc          = UCT_NPRDMA_UNSUPPORTED(uct_md_mem_alloc_func_t),
    .mem_free           = UCT_NPRDMA_UNSUPPORTED(uct_md_mem_free_func_t),
    .mem_advise         = UCT_NPRDMA_CAST(uct_md_mem_advise_func_t,
                                          uct_nprdma_mem_advise),
    .mem_reg            = uct_nprdma_mem_reg_op,
    .mem_dereg          = uct_nprdma_mem_dereg,
    .mem_query          = UCT_NPRDMA_UNSUPPORTED(uct_md_mem_query_func_t),
    .mkey_pack          = uct_nprdma_mkey_pack_op,
    .detect_memory_type = UCT_NPRDMA_UNSUPPORTED(
                                  uct_md_detect_memory_type_func_t),
#ifdef HAVE_STRUCT_UCT_MD_OPS_IS_SOCKADDR_ACCESSIBLE
    .is_sockaddr_accessible = (uct_md_is_sockaddr_accessible_func_t)
                                      ucs_empty_function_return_zero_int,
#endif
#ifdef HAVE_STRUCT_UCT_MD_OPS_MEM_ATTACH
    .mem_attach         = UCT_NPRDMA_UNSUPPORTED(uct_md_mem_attach_func_t),
#endif
#ifdef HAVE_STRUCT_UCT_MD_OPS_MEM_ELEM_PACK
    .mem_elem_pack      = UCT_NPRDMA_UNSUPPORTED(uct_md_mem_elem_pack_func_t),
#endif
#ifdef HAVE_STRUCT_UCT_MD_OPS_MEM_ELEM_RELEASE
    .mem_elem_release   = UCT_NPRDMA_CAST(uct_md_mem_elem_release_func_t,
                                          ucs_empty_function),
#endif
};

static uct_iface_ops_t uct_nprdma_iface_ops = {
    .ep_put_short             = uct_nprdma_ep_put_short,
    .ep_put_bcopy             = uct_nprdma_ep_put_bcopy,
    .ep_put_zcopy             = uct_nprdma_ep_put_zcopy,
    .ep_get_bcopy             = uct_nprdma_ep_get_bcopy,
    .ep_get_zcopy             = uct_nprdma_ep_get_zcopy,
    .ep_am_short              = uct_nprdma_ep_am_short,
    .ep_am_short_iov          = uct_nprdma_ep_am_short_iov,
    .ep_am_bcopy              = uct_nprdma_ep_am_bcopy,
    .ep_am_zcopy              = uct_nprdma_ep_am_zcopy,
    .ep_atomic_cswap64        = uct_nprdma_ep_atomic_cswap64,
    .ep_atomic_cswap32        = uct_nprdma_ep_atomic_cswap32,
    .ep_atomic32_post         = uct_nprdma_ep_atomic32_post,
    .ep_atomic64_post         = uct_nprdma_ep_atomic64_post,
    .ep_atomic32_fetch        = uct_nprdma_ep_atomic32_fetch,
    .ep_atomic64_fetch        = uct_nprdma_ep_atomic64_fetch,
    .ep_pending_add           = uct_nprdma_ep_pending_add,
    .ep_pending_purge         = uct_nprdma_ep_pending_purge,
    .ep_flush                 = uct_nprdma_ep_flush,
    .ep_fence                 = uct_nprdma_ep_fence,
    .ep_check                 = uct_nprdma_ep_check,
    .ep_create                = UCS_CLASS_NEW_FUNC_NAME(uct_nprdma_ep_t),
    .ep_destroy               = uct_nprdma_ep_destroy,
    .iface_flush              = uct_nprdma_iface_flush,
    .iface_fence              = uct_nprdma_iface_fence,
    .iface_progress_enable    = uct_base_iface_progress_enable,
    .iface_progress_disable   = uct_base_iface_progress_disable,
    .iface_progress           = uct_nprdma_iface_progress,
    .iface_event_fd_get       = uct_nprdma_iface_event_fd_get,
    .iface_event_arm          = uct_nprdma_iface_event_arm,
    .iface_close              = uct_nprdma_iface_close,
    .iface_query              = uct_nprdma_iface_query,
    .iface_get_device_address = uct_nprdma_iface_get_device_address,
    .iface_get_address        = uct_nprdma_iface_get_address,
    .iface_is_reachable       = uct_nprdma_iface_is_reachable
};

static uct_iface_internal_ops_t uct_nprdma_iface_internal_ops = {
    .iface_estimate_perf = uct_nprdma_iface_estimate_perf,
    .iface_vfs_refresh   = uct_nprdma_iface_vfs_refresh,
    .ep_query            = UCT_NPRDMA_UNSUPPORTED(uct_ep_query_func_t),
    .ep_invalidate       = uct_nprdma_ep_invalidate_op,
#ifdef HAVE_UCT_IFACE_INTERNAL_OPS_T_IFACE_IS_REACHABLE_V2
    .iface_is_reachable_v2 = uct_nprdma_iface_is_reachable_v2,
#endif
#ifdef HAVE_UCT_IFACE_INTERNAL_OPS_T_EP_IS_CONNECTED
    .ep_is_connected     = uct_nprdma_ep_is_connected_op,
#endif
#ifdef HAVE_UCT_IFACE_INTERNAL_OPS_T_IFACE_QUERY_V2
    .iface_query_v2      = uct_iface_base_query_v2,
#endif
#ifdef HAVE_UCT_IFACE_INTERNAL_OPS_T_IFACE_MEM_ELEMENT_PACK
    .iface_mem_element_pack = UCT_NPRDMA_UNSUPPORTED(
                                      uct_iface_mem_element_pack_func_t),
#endif
#ifdef HAVE_UCT_IFACE_INTERNAL_OPS_T_EP_CONNECT_TO_EP_V2
    .ep_connect_to_ep_v2 = UCT_NPRDMA_UNSUPPORTED(
                                   uct_ep_connect_to_ep_v2_func_t),
#endif
#ifdef HAVE_UCT_IFACE_INTERNAL_OPS_T_EP_GET_DEVICE_EP
    .ep_get_device_ep    = UCT_NPRDMA_UNSUPPORTED(uct_ep_get_device_ep_func_t),
#endif
#ifdef HAVE_UCT_IFACE_INTERNAL_OPS_T_EP_PUT_SGL_ZCOPY
    .ep_put_sgl_zcopy    = UCT_NPRDMA_UNSUPPORTED(uct_ep_put_sgl_zcopy_func_t),
#endif
#ifdef HAVE_UCT_IFACE_INTERNAL_OPS_T_EP_GET_SGL_ZCOPY
    .ep_get_sgl_zcopy    = UCT_NPRDMA_UNSUPPORTED(uct_ep_get_sgl_zcopy_func_t),
#endif
#ifdef HAVE_UCT_IFACE_INTERNAL_OPS_T_EP_OUTSTANDING_PURGE
    .ep_outstanding_purge = UCT_NPRDMA_UNSUPPORTED(
                                    uct_ep_outstanding_purge_func_t),
#endif
};

static ucs_status_t
uct_nprdma_component_md_open(uct_component_t *component, const char *md_name,
                             const uct_md_config_t *config, uct_md_h *md_p)
{
    static const uct_nprdma_tables_t tables = {
        .md             = &uct_nprdma_md_ops,
        .iface          = &uct_nprdma_iface_ops,
        .iface_internal = &uct_nprdma_iface_internal_ops
    };

    return uct_nprdma_md_open(component, &tables, md_name, config, md_p);
}

static uct_component_t uct_nprdma_component = {
    .query_md_resources = uct_nprdma_query_md_resources,
    .md_open            = uct_nprdma_component_md_open,
    .cm_open            = uct_nprdma_sockcm_open,
    .rkey_unpack        = uct_nprdma_rkey_unpack_op,
    .rkey_ptr           = UCT_NPRDMA_UNSUPPORTED(
                                  uct_component_rkey_ptr_func_t),
    .rkey_release       = uct_nprdma_rkey_release,
#ifdef HAVE_UCT_COMPONENT_T_RKEY_COMPARE
    .rkey_compare       = uct_nprdma_rkey_compare_op,
#endif
    .name               = "nprdma",
    .md_config          = {
        .name           = "nprdma memory domain",
        .prefix         = "NPRDMA_",
        .table          = uct_nprdma_md_config_table,
        .size           = sizeof(uct_nprdma_md_config_t)
    },
    .cm_config          = {
        .name           = "nprdma connection manager",
        .prefix         = "NPRDMA_",
        .table          = uct_nprdma_sockcm_config_table,
        .size           = sizeof(uct_cm_config_t)
    },
    .tl_list            = UCT_COMPONENT_TL_LIST_INITIALIZER(
                                  &uct_nprdma_component),
    .flags              = UCT_COMPONENT_FLAG_CM,
    .md_vfs_init        = UCT_NPRDMA_CAST(uct_component_md_vfs_init_func_t,
                                          ucs_empty_function)
};

static uct_tl_t uct_nprdma_tl = {
    .name               = "nprdma",
    .query_devices      = uct_nprdma_query_tl_devices,
    .iface_open         = UCS_CLASS_NEW_FUNC_NAME(uct_nprdma_iface_t),
    .config             = {
        .name           = "nprdma transport",
        .prefix         = "NPRDMA_",
        .table          = uct_nprdma_iface_config_table,
        .size           = sizeof(uct_nprdma_bufs_config_t)
    }
};

static int uct_nprdma_registered;

/* Another file with the same component, of another installation or for tests,
 * may be loaded. UCX would list both. */
static int uct_nprdma_is_loaded(void)
{
    uct_component_t *component;

    ucs_list_for_each(component, &uct_components_list, list) {
        if (!strcmp(component->name, uct_nprdma_component.name)) {
            return 1;
        }
    }
    return 0;
}

UCS_F_CTOR static void uct_nprdma_load(void)
{
    char line[512];

    uct_nprdma_record_init();
    if (!uct_nprdma_abi_is_compatible()) {
        ucs_snprintf_zero(line, sizeof(line), "reason %s\n",
                          uct_nprdma_abi_reason());
        uct_nprdma_record_write(UCT_NPRDMA_RECORD_REFUSED, line);
        return;
    }

    if (uct_nprdma_is_loaded()) {
        ucs_debug("nprdma is loaded already, the component built for UCX "
                  NPRDMA_UCX_VERSION " is left out");
        return;
    }

    uct_nprdma_stats_init();
    uct_component_register(&uct_nprdma_component);
    uct_tl_register(&uct_nprdma_component, &uct_nprdma_tl);
    uct_nprdma_record_write(UCT_NPRDMA_RECORD_LOADED, "");
    uct_nprdma_record_listen();
    uct_nprdma_registered = 1;
}

UCS_F_DTOR static void uct_nprdma_unload(void)
{
    if (uct_nprdma_registered) {
        uct_nprdma_stats_exit();
        uct_tl_unregister(&uct_nprdma_tl);
        uct_component_unregister(&uct_nprdma_component);
    }
}
