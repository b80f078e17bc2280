# Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause

# The UCX interfaces between transport and framework change from release to
# release, and not monotonically: what is there is found out here, member by
# member, and used in src/uct/ib/nprdma/compat/nprdma_compat.h only.

m4_define([NPRDMA_UCX_API_INCLUDES], [[
#include <ucx_config.h>
#include <uct/base/uct_iface.h>
#include <uct/base/uct_md.h>
#include <uct/api/v2/uct_v2.h>
]])

# NPRDMA_UCX_API_SHAPE(MACRO, WHAT, MEMBER-TYPE, FUNCTION-HEAD): defines MACRO
# if a function of that head may be assigned to a pointer of that type.
AC_DEFUN([NPRDMA_UCX_API_SHAPE], [
    AC_MSG_CHECKING([whether $2])
    AC_COMPILE_IFELSE([AC_LANG_PROGRAM([NPRDMA_UCX_API_INCLUDES], [[
        extern $4;
        $3 func = probe;
        (void)func;]])],
        [AC_MSG_RESULT([yes])
         AC_DEFINE([$1], [1], [Define to 1 if $2])],
        [AC_MSG_RESULT([no])])])

AC_DEFUN([NPRDMA_UCX_API], [
    nprdma_save_cppflags=$CPPFLAGS
    nprdma_save_cflags=$CFLAGS
    CPPFLAGS="-DHAVE_CONFIG_H $UCX_CPPFLAGS $VERBS_CPPFLAGS $CPPFLAGS"
    # A pointer of another type is only a warning otherwise
    CFLAGS="$CFLAGS -std=gnu11 -Werror=incompatible-pointer-types"

    # Else every probe would say no
    AC_COMPILE_IFELSE([AC_LANG_PROGRAM([NPRDMA_UCX_API_INCLUDES],
        [[return sizeof(uct_md_ops_t) == 0;]])], [], [AC_MSG_ERROR([
    the UCX headers do not compile for the probes; see config.log])])

    AC_CHECK_HEADERS([ucs/sys/ptr_arith.h], [], [], [NPRDMA_UCX_API_INCLUDES])

    AC_CHECK_MEMBERS([
        uct_component_t.rkey_compare,
        uct_iface_internal_ops_t.iface_query_v2,
        uct_iface_internal_ops_t.iface_mem_element_pack,
        uct_iface_internal_ops_t.iface_is_reachable_v2,
        uct_iface_internal_ops_t.ep_connect_to_ep_v2,
        uct_iface_internal_ops_t.ep_is_connected,
        uct_iface_internal_ops_t.ep_get_device_ep,
        uct_iface_internal_ops_t.ep_put_sgl_zcopy,
        uct_iface_internal_ops_t.ep_get_sgl_zcopy,
        uct_iface_internal_ops_t.ep_outstanding_purge,
        struct uct_md_ops.is_sockaddr_accessible,
        struct uct_md_ops.mem_attach,
        struct uct_md_ops.mem_elem_pack,
        struct uct_md_ops.mem_elem_release,
        uct_md_attr_v2_t.reg_nonblock_mem_types,
        uct_md_attr_v2_t.cache_mem_types,
        uct_md_attr_v2_t.gva_mem_types,
        uct_perf_attr_t.path_bandwidth],
        [], [], [NPRDMA_UCX_API_INCLUDES])

    AC_CHECK_DECLS([uct_md_base_md_query, uct_iface_scope_is_reachable,
                    UCT_IFACE_FLAG_INTER_NODE, UCT_MD_FLAG_INVALIDATE_RMA,
                    UCT_MD_FLAG_INVALIDATE_AMO],
        [], [], [NPRDMA_UCX_API_INCLUDES])

    NPRDMA_UCX_API_SHAPE([NPRDMA_UCX_MD_QUERY_V2],
        [md_query fills uct_md_attr_v2_t], [uct_md_query_func_t],
        [ucs_status_t probe(uct_md_h, uct_md_attr_v2_t *)])
    NPRDMA_UCX_API_SHAPE([NPRDMA_UCX_MEM_REG_PARAMS],
        [mem_reg takes uct_md_mem_reg_params_t], [uct_md_mem_reg_func_t],
        [ucs_status_t probe(uct_md_h, void *, size_t,
                            const uct_md_mem_reg_params_t *, uct_mem_h *)])
    NPRDMA_UCX_API_SHAPE([NPRDMA_UCX_MKEY_PACK_RANGE],
        [mkey_pack takes a range], [uct_md_mkey_pack_func_t],
        [ucs_status_t probe(uct_md_h, uct_mem_h, void *, size_t,
                            const uct_md_mkey_pack_params_t *, void *)])
    NPRDMA_UCX_API_SHAPE([NPRDMA_UCX_RKEY_UNPACK_PARAMS],
        [rkey_unpack takes uct_rkey_unpack_params_t],
        [uct_component_rkey_unpack_func_t],
        [ucs_status_t probe(uct_component_t *, const void *,
                            const uct_rkey_unpack_params_t *, uct_rkey_t *,
                            void **)])
    NPRDMA_UCX_API_SHAPE([NPRDMA_UCX_EP_INVALIDATE_PARAMS],
        [ep_invalidate takes uct_ep_invalidate_params_t],
        [uct_ep_invalidate_func_t],
        [ucs_status_t probe(uct_ep_h, const uct_ep_invalidate_params_t *)])

    CPPFLAGS=$nprdma_save_cppflags
    CFLAGS=$nprdma_save_cflags])
