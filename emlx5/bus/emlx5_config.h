/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* The function's PCI configuration space. */

#ifndef EMLX5_CONFIG_H
#define EMLX5_CONFIG_H

#include <stdint.h>

enum { EMLX5_CONFIG_SIZE = 4096 };

typedef struct {
    uint8_t bytes[EMLX5_CONFIG_SIZE];
} emlx5_config_t;

/** Sets what is there after power-on and after a reset. */
void emlx5_config_init(emlx5_config_t *config);

/** Writes, not beyond EMLX5_CONFIG_SIZE. Bits that are constant keep their
 * value. @return 1 if the write asks for a function-level reset, else 0. */
int emlx5_config_write(emlx5_config_t *config, uint32_t offset,
                       const uint8_t *data, uint32_t length);

/** @return 1 if the function may do DMA. */
int emlx5_config_is_master(const emlx5_config_t *config);

#endif
