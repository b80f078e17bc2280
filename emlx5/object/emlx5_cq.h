/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Completion queues. */

#ifndef EMLX5_CQ_H
#define EMLX5_CQ_H

#include "object/emlx5_hca.h"
#include "object/emlx5_pages.h"

enum { EMLX5_CQC_SIZE = 64, EMLX5_CQE_SIZE = 64 };

typedef enum {
    EMLX5_CQE_REQ         = 0,
    EMLX5_CQE_WRITE_IMM   = 1,
    EMLX5_CQE_SEND        = 2,
    EMLX5_CQE_SEND_IMM    = 3,
    EMLX5_CQE_SEND_INVAL  = 4,
    EMLX5_CQE_RESIZE      = 5,
    EMLX5_CQE_REQ_ERROR   = 13,
    EMLX5_CQE_RECV_ERROR  = 14
} emlx5_cqe_opcode_t;

typedef struct emlx5_cq {
    emlx5_hca_t   *hca;
    uint32_t      number, eqn, uar;
    uint8_t       log_size;
    uint8_t       log_stride;      /* 6, or 7: the CQE is the second half */
    int           ignore_overrun;
    emlx5_pages_t ring;
    uint64_t      dbr;             /* bus address of the doorbell record */
    uint32_t      producer;        /* both count on */
    uint32_t      consumer;        /* as last seen in the doorbell record */
    int           failed;
    uint8_t       context[EMLX5_CQC_SIZE];

    /* Events: armed by a register write, which takes effect in "doorbell" */
    int           armed, solicited_only;
    uint32_t      last_solicited;  /* producer behind the last such entry */
    emlx5_work_t  doorbell;
    uint32_t      doorbell_word;

    /* Moderation: an event waits for this many entries, or this long */
    uint32_t      max_count, period_us, waiting;
    emlx5_work_t  moderation;
} emlx5_cq_t;

/** Makes a completion queue from the context of a command, which was checked.
 * The ring becomes its own if it is made. @return NULL if there is no number or
 * no memory. */
emlx5_cq_t *emlx5_cq_create(emlx5_hca_t *hca, const uint8_t *context,
                            const emlx5_pages_t *ring);

void emlx5_cq_destroy(emlx5_cq_t *cq);

/**
 * Sets the moderation: an event comes after @a count entries, or @a period_us
 * after the first, whichever is earlier. 0 for one of both: the other decides;
 * 0 for both: at once.
 */
void emlx5_cq_moderate(emlx5_cq_t *cq, uint32_t period_us, uint32_t count);

/** Goes on in another ring, which becomes the queue's. The last entry of the
 * old one says so. @return 0, or -1 if the other ring has no room for the
 * entries that the driver has not consumed. */
int emlx5_cq_resize(emlx5_cq_t *cq, const emlx5_pages_t *ring, uint8_t log_size,
                    uint8_t log_stride);

/** Adds an entry of EMLX5_CQE_SIZE bytes; what all entries have is set. Nothing
 * happens if there is no such queue. With solicited, the sender wants the
 * receiver to be woken up. */
void emlx5_cq_post(emlx5_hca_t *hca, uint32_t cqn, uint8_t *entry,
                   emlx5_cqe_opcode_t opcode, int solicited);

/** The driver's register write: it wants an event for the next entry behind
 * those it has consumed. The word is sequence << 28 | solicited only << 24 |
 * consumer index, and of cqn only the lower 24 bits count. Takes effect later,
 * by the function's queue. */
void emlx5_cq_ring(emlx5_hca_t *hca, uint32_t uar, uint32_t word, uint32_t cqn);

#endif
