/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Moving a message's bytes from and to the memory that its lists name. */

#ifndef EMLX5_MOVE_H
#define EMLX5_MOVE_H

#include "engine/emlx5_result.h"

enum { EMLX5_MAX_CHUNK = 64 << 10 };

/* Memory of a work request */
typedef struct {
    emlx5_hca_t       *hca;
    uint32_t          pd;
    const emlx5_sgl_t *sgl;
    const uint8_t     *wqe; /* of inline data */
    int               is_rdma; /* as in emlx5_access_t */
} emlx5_buffer_t;

/** Reads a part of a buffer, not beyond its end. @return 0, or -1 if a key
 * forbids it or a DMA fails. */
int emlx5_buffer_get(const emlx5_buffer_t *buffer, uint64_t at, uint8_t *data,
                     uint32_t length);

/** Writes a part of a buffer. @return 0, or -1 if a key forbids it. */
int emlx5_buffer_put(const emlx5_buffer_t *buffer, uint64_t at,
                     const uint8_t *data, uint32_t length);

#endif
