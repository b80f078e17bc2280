/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "bus/emlx5_irq.h"
#include "base/emlx5_log.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

void emlx5_irq_init(emlx5_irq_t *irq)
{
    uint32_t i;

    for (i = 0; i < EMLX5_VECTORS; ++i) {
        irq->fd[i] = -1;
    }
    irq->pending = 0;
}

void emlx5_irq_clear(emlx5_irq_t *irq)
{
    uint32_t i;

    irq->pending = 0;
    for (i = 0; i < EMLX5_VECTORS; ++i) {
        emlx5_irq_set(irq, i, -1);
    }
}

void emlx5_irq_set(emlx5_irq_t *irq, uint32_t vector, int fd)
{
    if (irq->fd[vector] >= 0) {
        close(irq->fd[vector]);
    }
    irq->fd[vector] = fd;
    if ((fd >= 0) && ((irq->pending >> vector) & 1)) {
        emlx5_irq_raise(irq, vector);
    }
}

/* QEMU may take descriptors away for a moment, when the guest enables one more
 * vector. An interrupt that is lost then would be waited for for ever. */
void emlx5_irq_raise(emlx5_irq_t *irq, uint32_t vector)
{
    uint64_t one = 1;
    ssize_t done;

    if (irq->fd[vector] < 0) {
        irq->pending |= 1u << vector;
        return;
    }
    irq->pending &= ~(1u << vector);
    do {
        done = write(irq->fd[vector], &one, sizeof(one));
    } while ((done < 0) && (errno == EINTR));
    if ((done < 0) && (errno != EAGAIN)) {
        emlx5_event("interrupt %u: %s", vector, strerror(errno));
    }
}
