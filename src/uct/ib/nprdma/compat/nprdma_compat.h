/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_COMPAT_H_
#define UCT_NPRDMA_COMPAT_H_

/*
 * Differences between UCX versions. The rest of the transport has
 * version-neutral types and functions; nprdma_glue.h has the thunks that only
 * the tables in nprdma_component.c need. Compile probes (config/m4/ucx_api.m4)
 * select those of UCX, not a version number, because the API does not change
 * monotonically. The one exception is what no declaration shows.
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
#include <ucs/sys/math.h>
#ifdef HAVE_UCS_SYS_PTR_ARITH_H
#  include <ucs/sys/ptr_arith.h> /* Alignment, which math.h had before */
#endif
#include <ucs/sys/string.h>
#include <ucs/type/class.h>

/* Flags that have no meaning for a UCX without them */
#if !HAVE_DECL_UCT_IFACE_FLAG_INTER_NODE
#  ifndef UCT_IFACE_FLAG_INTER_NODE
#    define UCT_IFACE_FLAG_INTER_NODE 0
#  endif
#endif

/* Older UCX has one flag for invalidation; newer UCX has one more for each
 * class of operations */
#if HAVE_DECL_UCT_MD_FLAG_INVALIDATE_RMA
#  define UCT_NPRDMA_MD_FLAG_INVALIDATE (UCT_MD_FLAG_INVALIDATE | \
                                         UCT_MD_FLAG_INVALIDATE_RMA | \
                                         UCT_MD_FLAG_INVALIDATE_AMO)
#else
#  define UCT_NPRDMA_MD_FLAG_INVALIDATE UCT_MD_FLAG_INVALIDATE
#endif

/* Nonzero if the new protocol selection has a threshold for messages with fast
 * completion (UCX_RNDV_SEND_NBR_THRESH), as from 1.16 on. Earlier ones compare
 * them by bandwidth alone, so a lane's share (lane_bandwidth) would exclude
 * rendezvous. No header shows it; rkey_compare has come with the same release.
 */
#ifdef HAVE_UCT_COMPONENT_T_RKEY_COMPARE
#  define UCT_NPRDMA_NEW_PROTO_LANES 1
#else
#  define UCT_NPRDMA_NEW_PROTO_LANES 0
#endif

/* UCX with these flags invalidates only what has a key, and demands an error
 * for anything else; before, it invalidates any registration */
#define UCT_NPRDMA_INVALIDATE_NEEDS_KEY HAVE_DECL_UCT_MD_FLAG_INVALIDATE_RMA

/* Before 1.17 UCP's registration cache does not look for what accesses it has
 * registered memory: what has received by rendezvous, with local access, is
 * sent from later. Registrations with these flags are UCP's, and allow all. */
#if UCT_API < UCT_VERSION(1, 17)
#  define UCT_NPRDMA_MEM_ANY_ACCESS (UCT_MD_MEM_ACCESS_LOCAL_READ | \
                                     UCT_MD_MEM_ACCESS_LOCAL_WRITE | \
                                     UCT_MD_MEM_FLAG_HIDE_ERRORS)
#else
#  define UCT_NPRDMA_MEM_ANY_ACCESS 0
#endif

/* RMA with the old protocols of UCX 1.16 to 1.21 reads the memory handle of the
 * local buffer without asking whether the memory domain needs one, and then
 * there is none. The memory domain cannot know which protocols will be used:
 * a file or ucp_config_modify() may choose them. */
#if (UCT_API >= UCT_VERSION(1, 16)) && (UCT_API < UCT_VERSION(1, 22))
#  define UCT_NPRDMA_MD_FLAG_LOCAL_HANDLE UCT_MD_FLAG_NEED_MEMH
#else
#  define UCT_NPRDMA_MD_FLAG_LOCAL_HANDLE 0
#endif

#endif
