/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Lists of memory in work requests. */

#ifndef EMLX5_SGL_H
#define EMLX5_SGL_H

#include "base/emlx5_limits.h"

#include <stdint.h>

typedef struct {
    uint64_t va;
    uint32_t length, key;
    uint16_t inlined; /* offset of inline data in the request, 0: none */
} emlx5_sge_t;

typedef struct {
    uint32_t    count;
    uint64_t    total; /* bytes */
    emlx5_sge_t sge[EMLX5_MAX_SGE];
} emlx5_sgl_t;

/** Reads the list from begin to end of a request. @return 0, or -1 if inline
 * data goes beyond the end or there are more than EMLX5_MAX_SGE elements. */
int emlx5_sgl_parse(emlx5_sgl_t *sgl, const uint8_t *wqe, uint32_t begin,
                    uint32_t end);

#endif
