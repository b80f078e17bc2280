/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* What a function needs of the computer it is plugged into: memory by DMA, and
 * interrupts. The bus implements it by messages to QEMU, tests by an array. */

#ifndef EMLX5_HOST_H
#define EMLX5_HOST_H

#include <stdint.h>

/* One transaction of the bus (PCIe: transaction layer packet) */
typedef struct {
    uint64_t iova;
    void     *data;
    uint32_t length; /* in bytes, not 0 */
} emlx5_tlp_t;

typedef struct emlx5_host emlx5_host_t;

struct emlx5_host {
    /* Reads, in the order given; returns when the last one is answered. 0, or
     * -1 if any failed: the data of those are zeros. */
    int (*read)(emlx5_host_t *host, const emlx5_tlp_t *tlps, unsigned count);

    /* A posted write: returns before it is carried out. Writes are carried out
     * in order. A failure is not reported; the host counts it. */
    void (*write)(emlx5_host_t *host, const emlx5_tlp_t *tlp);

    /* Returns when all writes were carried out. */
    void (*drain)(emlx5_host_t *host);

    /* Lets some time pass, in us, in which the guest runs. */
    void (*pause)(emlx5_host_t *host, uint32_t us);

    /* Raises the interrupt of a vector below EMLX5_VECTORS. */
    void (*interrupt)(emlx5_host_t *host, unsigned vector);
};

#endif
