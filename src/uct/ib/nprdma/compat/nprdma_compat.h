/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_COMPAT_H_
#define UCT_NPRDMA_COMPAT_H_

/*
 * The one place that knows how UCX versions differ. The rest of the transport
 * is written against version-neutral shapes; which of UCX's shapes they are
 * put into is decided by compile probes (config/m4/ucx_api.m4), never by a
 * version number: the API does not change monotonically.
 *
 * What only nprdma_component.c needs, the tables and thunks around the
 * version-neutral functions, is in nprdma_glue.h.
 */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include <uct/api/v2/uct_v2.h>
#include <uct/base/uct_iface.h>
#include <uct/base/uct_iov.inl>
#include <uct/base/uct_log.h>
#include <uct/base/uct_md.h>
#include <ucs/async/async.h>
#include <ucs/datastruct/arbiter.h>
#include <ucs/sys/string.h>
#include <ucs/type/class.h>

/* Flags that say nothing to a UCX which does not know them */
#if !HAVE_DECL_UCT_IFACE_FLAG_INTER_NODE
#  ifndef UCT_IFACE_FLAG_INTER_NODE
#    define UCT_IFACE_FLAG_INTER_NODE 0
#  endif
#endif

/* Invalidation was one flag, then one for each class of operations too */
#if HAVE_DECL_UCT_MD_FLAG_INVALIDATE_RMA
#  define UCT_NPRDMA_MD_FLAG_INVALIDATE (UCT_MD_FLAG_INVALIDATE | \
                                         UCT_MD_FLAG_INVALIDATE_RMA | \
                                         UCT_MD_FLAG_INVALIDATE_AMO)
#else
#  define UCT_NPRDMA_MD_FLAG_INVALIDATE UCT_MD_FLAG_INVALIDATE
#endif

/* In a class constructor: initialize the base of an interface */
#define UCT_NPRDMA_IFACE_BASE_INIT(_ops, _internal_ops, _md, _worker, _params, \
                                   _config) \
    UCS_CLASS_CALL_SUPER_INIT(uct_base_iface_t, _ops, _internal_ops, _md, \
                              _worker, _params, \
                              _config UCS_STATS_ARG( \
                                      UCT_IFACE_PARAM_VALUE(_params, \
                                                            stats_root, \
                                                            STATS_ROOT, NULL)) \
                              UCS_STATS_ARG("nprdma"))

#endif
