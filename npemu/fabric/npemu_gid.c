/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "fabric/npemu_gid.h"
#include "fabric/npemu_fabric.h"

#include <endian.h>

#define NPEMU_GUID_PREFIX 0x026e700000000000ull

uint64_t npemu_guid(void)
{
    return NPEMU_GUID_PREFIX | (npemu_fabric_id() & 0xffffffffffull);
}

/* The subnet prefix names the fabric. Programs that compare prefixes to decide
 * whether a peer is reachable are right, then. */
void npemu_gid(union ibv_gid *gid)
{
    gid->global.subnet_prefix = htobe64(0xfe80000000000000ull |
                                        (npemu_fabric_id() >> 16));
    gid->global.interface_id  = htobe64(npemu_guid());
}
