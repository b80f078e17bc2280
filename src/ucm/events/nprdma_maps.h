/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_MAPS_H_
#define NPRDMA_MAPS_H_

#include <ucs/sys/compiler_def.h>

#include <stdint.h>

BEGIN_C_DECLS

/* First address behind the segment that shmdt() of an address unmaps, or 0;
 * events do not report it. Reads /proc/self/maps by raw system calls: for
 * memory hooks. */
uintptr_t nprdma_maps_segment_end(uintptr_t address);

END_C_DECLS

#endif
