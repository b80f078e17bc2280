/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Limits of the device that more than one file uses. */

#ifndef NPEMU_LIMITS_H
#define NPEMU_LIMITS_H

#define NPEMU_MAX_WR        32768         /* of a send or receive queue */
#define NPEMU_MAX_INLINE    1024          /* bytes */
#define NPEMU_MAX_RD_ATOMIC 16
#define NPEMU_MAX_MSG       (1ul << 31)   /* bytes, RC */
#define NPEMU_MTU           4096          /* bytes, UD message */
#define NPEMU_PORT          1
#define NPEMU_LID           1             /* of the port, in all processes */

/* Bytes that one copy moves at most. Memory cannot be taken away while a copy
 * is under way. */
#define NPEMU_DMA_CHUNK     (64 * 1024)

/* Smallest part of a chunk, bytes, that NPEMU_DMA_GRANULE can ask for: the
 * smallest MTU of RDMA. Random evictions tear accesses at multiples of it. */
#define NPEMU_DMA_GRANULE_MIN 256

#endif
