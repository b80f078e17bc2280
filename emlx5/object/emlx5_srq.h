/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Shared receive queues: what a driver creates as "receive memory pool" (the
 * SRQ of verbs) or as XRC SRQ. */

#ifndef EMLX5_SRQ_H
#define EMLX5_SRQ_H

#include "object/emlx5_hca.h"
#include "object/emlx5_pages.h"

enum { EMLX5_SRQ_CONTEXT = 0x100 };

typedef struct emlx5_srq {
    emlx5_hca_t   *hca;
    uint32_t      number, pd;
    uint32_t      cqn;         /* XRC: where its receives complete; else 0 */
    uint32_t      xrcd;        /* XRC: only for QPs of this domain */
    uint32_t      log_size;
    uint32_t      stride;      /* bytes of a receive */
    emlx5_pages_t ring;
    uint64_t      dbr;         /* bus address of the doorbell record */
    uint32_t      head;        /* next receive; the ring is a linked list */
    uint16_t      taken;       /* receives; the record counts those posted */
    uint32_t      limit;       /* event if fewer are left; 0: none */
    uint8_t       context[EMLX5_SRQ_CONTEXT]; /* of the command */
    uint32_t      context_size;
} emlx5_srq_t;

/** Makes one; the ring becomes its own. @return NULL if there is no number or
 * no memory. */
emlx5_srq_t *emlx5_srq_create(emlx5_hca_t *hca, const emlx5_pages_t *ring);

void emlx5_srq_destroy(emlx5_srq_t *srq);

/** Receives were taken: the limit's event, if fewer than that are left. */
void emlx5_srq_check_limit(emlx5_srq_t *srq, uint16_t posted);

#endif
