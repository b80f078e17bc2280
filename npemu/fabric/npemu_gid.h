/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Identity of the device: all processes of a fabric share one port. */

#ifndef NPEMU_GID_H
#define NPEMU_GID_H

#include <infiniband/verbs.h>

/** GUID of the node, in host byte order. */
uint64_t npemu_guid(void);

/** The only GID of the port. */
void npemu_gid(union ibv_gid *gid);

#endif
