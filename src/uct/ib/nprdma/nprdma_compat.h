/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_COMPAT_H_
#define UCT_NPRDMA_COMPAT_H_

/*
 * The one place that knows how UCX versions differ. The rest of the transport
 * is written against version-neutral shapes; which of UCX's shapes they are
 * put into is decided by compile probes (config/m4/ucx_api.m4), never by a
 * version number: the API does not change monotonically.
 */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include <uct/base/uct_iface.h>
#include <uct/base/uct_iov.inl>
#include <uct/base/uct_log.h>
#include <uct/base/uct_md.h>
#include <ucs/async/async.h>
#include <ucs/datastruct/arbiter.h>
#include <ucs/datastruct/mpool.h>
#include <ucs/sys/string.h>
#include <ucs/type/class.h>

#endif
