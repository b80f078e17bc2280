/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_GLUE_H_
#define UCT_NPRDMA_GLUE_H_

/* Thunks between version-neutral functions and the types of the UCX of this
 * build; see nprdma_compat.h. Only nprdma_component.c includes this file. */

#include "uct/ib/nprdma/base/nprdma_ep.h"
#include "uct/ib/nprdma/compat/nprdma_compat.h"
#include "uct/ib/nprdma/mem/nprdma_mem.h"

/* The intermediate type (void) avoids a warning: newer UCX declares these
 * functions without arguments */
#define UCT_NPRDMA_CAST(_type, _func) ((_type)(void (*)(void))(_func))

#define UCT_NPRDMA_UNSUPPORTED(_type) \
    UCT_NPRDMA_CAST(_type, ucs_empty_function_return_unsupported)


/* Registering pins nothing, and calls the device only for the first buffer in a
 * region, or to export memory with on-demand paging. So UCX need not cache
 * registrations. A peer needs only the unpacked key, and local buffers need no
 * registration, except for UCP. */
#define UCT_NPRDMA_MD_FLAGS \
    (UCT_MD_FLAG_REG | UCT_MD_FLAG_NEED_RKEY | UCT_MD_FLAG_ADVISE | \
     UCT_NPRDMA_MD_FLAG_LOCAL_HANDLE | UCT_NPRDMA_MD_FLAG_INVALIDATE)

#define UCT_NPRDMA_MD_MEM_TYPES  UCS_BIT(UCS_MEMORY_TYPE_HOST)

#ifdef NPRDMA_UCX_MD_QUERY_V2
static ucs_status_t uct_nprdma_md_query(uct_md_h md, uct_md_attr_v2_t *attr)
{
#if HAVE_DECL_UCT_MD_BASE_MD_QUERY
    uct_md_base_md_query(attr);
#else
    memset(&attr->local_cpus, 0xff, sizeof(attr->local_cpus));
    attr->alloc_mem_types  = 0;
    attr->detect_mem_types = 0;
    attr->dmabuf_mem_types = 0;
#endif
    attr->flags                  = UCT_NPRDMA_MD_FLAGS;
    attr->max_alloc              = ULONG_MAX;
    attr->max_reg                = ULONG_MAX;
    attr->reg_mem_types          = UCT_NPRDMA_MD_MEM_TYPES;
#ifdef HAVE_UCT_MD_ATTR_V2_T_REG_NONBLOCK_MEM_TYPES
    attr->reg_nonblock_mem_types = UCT_NPRDMA_MD_MEM_TYPES;
#endif
#ifdef HAVE_UCT_MD_ATTR_V2_T_CACHE_MEM_TYPES
    attr->cache_mem_types        = UCT_NPRDMA_MD_MEM_TYPES;
#endif
    attr->access_mem_types       = UCT_NPRDMA_MD_MEM_TYPES;
    attr->rkey_packed_size       = sizeof(uct_nprdma_rkey_t);
    attr->reg_cost               = uct_nprdma_md_reg_cost(
            ucs_derived_of(md, uct_nprdma_md_t));
    return UCS_OK;
}
#else
static ucs_status_t uct_nprdma_md_query(uct_md_h md, uct_md_attr_t *attr)
{
    memset(&attr->cap, 0, sizeof(attr->cap));
    memset(&attr->local_cpus, 0xff, sizeof(attr->local_cpus));
    attr->cap.flags            = UCT_NPRDMA_MD_FLAGS;
    attr->cap.max_alloc        = ULONG_MAX;
    attr->cap.max_reg          = ULONG_MAX;
    attr->cap.reg_mem_types    = UCT_NPRDMA_MD_MEM_TYPES;
    attr->cap.access_mem_types = UCT_NPRDMA_MD_MEM_TYPES;
    attr->rkey_packed_size     = sizeof(uct_nprdma_rkey_t);
    attr->reg_cost             = uct_nprdma_md_reg_cost(
            ucs_derived_of(md, uct_nprdma_md_t));
    return UCS_OK;
}
#endif


#ifdef NPRDMA_UCX_MEM_REG_PARAMS
static ucs_status_t
uct_nprdma_mem_reg_op(uct_md_h md, void *address, size_t length,
                      const uct_md_mem_reg_params_t *params, uct_mem_h *memh_p)
{
    return uct_nprdma_mem_reg(md, address, length,
                              UCT_MD_MEM_REG_FIELD_VALUE(params, flags,
                                                         FIELD_FLAGS, 0),
                              memh_p);
}
#else
static ucs_status_t
uct_nprdma_mem_reg_op(uct_md_h md, void *address, size_t length, unsigned flags,
                      uct_mem_h *memh_p)
{
    return uct_nprdma_mem_reg(md, address, length, flags, memh_p);
}
#endif


#ifdef NPRDMA_UCX_MKEY_PACK_RANGE
static ucs_status_t
uct_nprdma_mkey_pack_op(uct_md_h md, uct_mem_h memh, void *address,
                        size_t length, const uct_md_mkey_pack_params_t *params,
                        void *buffer)
{
    return uct_nprdma_mkey_pack(md, memh, address, length, buffer);
}
#else
static ucs_status_t
uct_nprdma_mkey_pack_op(uct_md_h md, uct_mem_h memh,
                        const uct_md_mkey_pack_params_t *params, void *buffer)
{
    return uct_nprdma_mkey_pack(md, memh, NULL, 0, buffer);
}
#endif


#ifdef NPRDMA_UCX_RKEY_UNPACK_PARAMS
static ucs_status_t
uct_nprdma_rkey_unpack_op(uct_component_t *component, const void *buffer,
                          const uct_rkey_unpack_params_t *params,
                          uct_rkey_t *rkey_p, void **handle_p)
{
    return uct_nprdma_rkey_unpack(component, buffer, rkey_p, handle_p);
}
#else
#  define uct_nprdma_rkey_unpack_op  uct_nprdma_rkey_unpack
#endif

#ifdef HAVE_UCT_COMPONENT_T_RKEY_COMPARE
static ucs_status_t
uct_nprdma_rkey_compare_op(uct_component_t *component, uct_rkey_t rkey1,
                           uct_rkey_t rkey2,
                           const uct_rkey_compare_params_t *params, int *result)
{
    if ((params->field_mask != 0) || (result == NULL)) {
        return UCS_ERR_INVALID_PARAM;
    }

    *result = uct_nprdma_rkey_order(rkey1, rkey2);
    return UCS_OK;
}
#endif


#ifdef NPRDMA_UCX_EP_INVALIDATE_PARAMS
static ucs_status_t
uct_nprdma_ep_invalidate_op(uct_ep_h ep,
                            const uct_ep_invalidate_params_t *params)
{
    return uct_nprdma_ep_invalidate(ep, 0);
}
#else
#  define uct_nprdma_ep_invalidate_op  uct_nprdma_ep_invalidate
#endif


#ifdef HAVE_UCT_IFACE_INTERNAL_OPS_T_IFACE_IS_REACHABLE_V2
static int
uct_nprdma_iface_is_reachable_v2(const uct_iface_h iface,
                                 const uct_iface_is_reachable_params_t *params)
{
    const uct_device_addr_t *dev_addr;
    const uct_iface_addr_t *iface_addr;

    dev_addr   = UCS_PARAM_VALUE(UCT_IFACE_IS_REACHABLE_FIELD, params,
                                 device_addr, DEVICE_ADDR, NULL);
    iface_addr = UCS_PARAM_VALUE(UCT_IFACE_IS_REACHABLE_FIELD, params,
                                 iface_addr, IFACE_ADDR, NULL);
    if (!uct_nprdma_iface_is_reachable(iface, dev_addr, iface_addr)) {
        return 0;
    }

#if HAVE_DECL_UCT_IFACE_SCOPE_IS_REACHABLE
    return uct_iface_scope_is_reachable(iface, params);
#else
    return 1;
#endif
}
#endif


#ifdef HAVE_UCT_IFACE_INTERNAL_OPS_T_EP_IS_CONNECTED
static int
uct_nprdma_ep_is_connected_op(const uct_ep_h tl_ep,
                              const uct_ep_is_connected_params_t *params)
{
    uct_nprdma_ep_t *ep = ucs_derived_of(tl_ep, uct_nprdma_ep_t);
    const void *dev_addr, *iface_addr;

    dev_addr   = UCS_PARAM_VALUE(UCT_EP_IS_CONNECTED_FIELD, params, device_addr,
                                 DEVICE_ADDR, NULL);
    iface_addr = UCS_PARAM_VALUE(UCT_EP_IS_CONNECTED_FIELD, params, iface_addr,
                                 IFACE_ADDR, NULL);
    return (dev_addr != NULL) && (iface_addr != NULL) &&
           !memcmp(dev_addr, &ep->net.dev_addr, sizeof(ep->net.dev_addr)) &&
           !memcmp(iface_addr, &ep->net.iface_addr, sizeof(ep->net.iface_addr));
}
#endif

#endif
