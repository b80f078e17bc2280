/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Interrupts: an event descriptor per vector, which QEMU gives and takes. */

#ifndef EMLX5_IRQ_H
#define EMLX5_IRQ_H

#include "base/emlx5_limits.h"

#include <stdint.h>

typedef struct {
    int      fd[EMLX5_VECTORS]; /* -1: none */
    uint32_t pending;           /* raised while there was no descriptor */
} emlx5_irq_t;

void emlx5_irq_init(emlx5_irq_t *irq);

/** Takes all descriptors away, and forgets what is pending. */
void emlx5_irq_clear(emlx5_irq_t *irq);

/** Sets the descriptor of a vector, which is its own then; -1: it has none any
 * more. What is pending is raised. */
void emlx5_irq_set(emlx5_irq_t *irq, uint32_t vector, int fd);

/** Raises the interrupt of a vector below EMLX5_VECTORS. */
void emlx5_irq_raise(emlx5_irq_t *irq, uint32_t vector);

#endif
