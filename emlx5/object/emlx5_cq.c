/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "object/emlx5_cq.h"
#include "base/emlx5_field.h"
#include "base/emlx5_log.h"
#include "base/emlx5_time.h"
#include "object/emlx5_eq.h"

#include <stdlib.h>

enum {
    EMLX5_CQ_INDEX     = 0xffffff,
    EMLX5_CQ_SYNDROME_OVERRUN = 1
};

/* --- events ----------------------------------------------------------------*/

static void emlx5_cq_notify(emlx5_cq_t *cq)
{
    uint8_t data[EMLX5_EQE_DATA] = {0};

    cq->armed   = 0;
    cq->waiting = 0;
    emlx5_work_cancel(&cq->moderation);
    emlx5_put_be32(data + 24, cq->number);
    emlx5_eq_post(cq->hca, cq->eqn, EMLX5_EVENT_COMPLETION, 0, data);
}

static void emlx5_cq_moderation_ends(emlx5_work_t *work)
{
    emlx5_cq_t *cq = emlx5_container_of(work, emlx5_cq_t, moderation);

    if (cq->armed) {
        emlx5_cq_notify(cq);
    }
}

/* Entries want an event, and the queue is armed. */
static void emlx5_cq_moderated_notify(emlx5_cq_t *cq, uint32_t entries)
{
    cq->waiting += entries;
    if (((cq->max_count == 0) && (cq->period_us == 0)) ||
        ((cq->max_count > 0) && (cq->waiting >= cq->max_count))) {
        emlx5_cq_notify(cq);
        return;
    }
    if (cq->period_us > 0) {
        emlx5_work_add_at(&cq->hca->queue, &cq->moderation,
                          emlx5_now() + (cq->period_us * 1000ull));
    }
}

static void emlx5_cq_doorbell(emlx5_work_t *work)
{
    emlx5_cq_t *cq    = emlx5_container_of(work, emlx5_cq_t, doorbell);
    uint32_t consumer = cq->doorbell_word & EMLX5_CQ_INDEX;
    uint32_t interesting;

    cq->armed          = 1;
    cq->solicited_only = (cq->doorbell_word >> 24) & 1;
    interesting = cq->solicited_only ? cq->last_solicited : cq->producer;
    /* Entries that the driver has not seen when it armed */
    interesting = (interesting - consumer) & EMLX5_CQ_INDEX;
    cq->waiting = 0;
    if ((interesting != 0) && (interesting <= (1u << cq->log_size))) {
        emlx5_cq_moderated_notify(cq, interesting);
    }
}

void emlx5_cq_moderate(emlx5_cq_t *cq, uint32_t period_us, uint32_t count)
{
    cq->period_us = period_us;
    cq->max_count = count;
    if (cq->armed && (cq->waiting > 0)) {
        emlx5_cq_notify(cq);
    }
}

void emlx5_cq_ring(emlx5_hca_t *hca, uint32_t uar, uint32_t word, uint32_t cqn)
{
    emlx5_cq_t *cq = emlx5_table_get(&hca->cqs, cqn & EMLX5_CQ_INDEX);

    if ((cq == NULL) || (cq->uar != uar)) {
        ++hca->stats.bad_doorbells;
        emlx5_event("port %u: UAR %u: doorbell for CQ %u refused", hca->lid,
                    uar, cqn & EMLX5_CQ_INDEX);
        return;
    }
    cq->doorbell_word = word;
    emlx5_work_add(&hca->queue, &cq->doorbell);
}

/* --- entries ---------------------------------------------------------------*/

static void emlx5_cq_overrun(emlx5_cq_t *cq)
{
    uint8_t data[EMLX5_EQE_DATA] = {0};

    cq->failed = 1;
    emlx5_event("port %u: CQ %u is full", cq->hca->lid, cq->number);
    emlx5_put_be32(data, cq->number);
    data[11] = EMLX5_CQ_SYNDROME_OVERRUN;
    emlx5_eq_post_async(cq->hca, EMLX5_EVENT_CQ_ERROR, 0, data);
}

/* Reads the consumer index from the guest's memory. -1 if that fails. */
static int emlx5_cq_update(emlx5_cq_t *cq)
{
    uint8_t record[4];

    if (emlx5_dma_read(&cq->hca->dma, cq->dbr, record, sizeof(record)) != 0) {
        return -1;
    }
    cq->consumer = cq->producer -
                   ((cq->producer - emlx5_be32(record)) & EMLX5_CQ_INDEX);
    return 0;
}

/* The consumer index is looked for only if the last one that was seen leaves no
 * room. */
static int emlx5_cq_has_room(emlx5_cq_t *cq)
{
    uint32_t size = 1u << cq->log_size;

    if (cq->ignore_overrun || (cq->producer - cq->consumer < size)) {
        return 1;
    }
    return (emlx5_cq_update(cq) == 0) && (cq->producer - cq->consumer < size);
}

static void emlx5_cq_write(emlx5_cq_t *cq, uint8_t *entry,
                           emlx5_cqe_opcode_t opcode)
{
    uint32_t index = cq->producer & ((1u << cq->log_size) - 1);
    uint64_t end   = ((uint64_t)index + 1) << cq->log_stride;

    entry[63] = (opcode << 4) | ((cq->producer >> cq->log_size) & 1);
    emlx5_pages_write_entry(&cq->hca->dma, &cq->ring, end - EMLX5_CQE_SIZE,
                            entry);
    ++cq->producer;
    ++cq->hca->stats.cqes;
}

void emlx5_cq_post(emlx5_hca_t *hca, uint32_t cqn, uint8_t *entry,
                   emlx5_cqe_opcode_t opcode, int solicited)
{
    emlx5_cq_t *cq = emlx5_table_get(&hca->cqs, cqn);
    int is_error   = (opcode == EMLX5_CQE_REQ_ERROR) ||
                     (opcode == EMLX5_CQE_RECV_ERROR);

    if ((cq == NULL) || cq->failed) {
        return;
    }
    if (!emlx5_cq_has_room(cq)) {
        emlx5_cq_overrun(cq);
        return;
    }
    if (!is_error) {
        /* The syndrome of an error is in the same place */
        emlx5_put_be64(entry + 48, emlx5_ticks());
    }
    emlx5_cq_write(cq, entry, opcode);
    if (solicited || is_error) {
        cq->last_solicited = cq->producer;
    }
    if (cq->armed && (!cq->solicited_only || solicited || is_error)) {
        emlx5_cq_moderated_notify(cq, 1);
    }
}

/* --- life ------------------------------------------------------------------*/

emlx5_cq_t *emlx5_cq_create(emlx5_hca_t *hca, const uint8_t *context,
                            const emlx5_pages_t *ring)
{
    emlx5_cq_t *cq = calloc(1, sizeof(*cq));

    if ((cq == NULL) || (emlx5_table_add(&hca->cqs, cq, &cq->number) != 0)) {
        free(cq);
        return NULL;
    }
    cq->hca            = hca;
    cq->ring           = *ring;
    cq->log_size       = EMLX5_GET32(context, cqc, log_cq_size);
    cq->log_stride     = EMLX5_GET32(context, cqc, cqe_sz) ? 7 : 6;
    cq->ignore_overrun = EMLX5_GET32(context, cqc, oi);
    cq->eqn            = EMLX5_GET32(context, cqc, c_eqn_or_apu_element);
    cq->uar            = EMLX5_GET32(context, cqc, uar_page);
    cq->dbr            = EMLX5_GET(context, cqc, dbr_addr);
    cq->period_us      = EMLX5_GET32(context, cqc, cq_period);
    cq->max_count      = EMLX5_GET32(context, cqc, cq_max_count);
    memcpy(cq->context, context, EMLX5_CQC_SIZE);
    emlx5_work_init(&cq->doorbell, emlx5_cq_doorbell);
    emlx5_work_init(&cq->moderation, emlx5_cq_moderation_ends);
    return cq;
}

int emlx5_cq_resize(emlx5_cq_t *cq, const emlx5_pages_t *ring, uint8_t log_size,
                    uint8_t log_stride)
{
    uint8_t entry[EMLX5_CQE_SIZE] = {0};

    if ((emlx5_cq_update(cq) != 0) ||
        (cq->producer - cq->consumer > (1u << log_size))) {
        return -1;
    }
    emlx5_cq_write(cq, entry, EMLX5_CQE_RESIZE);
    emlx5_pages_cleanup(&cq->ring);
    cq->ring       = *ring;
    cq->log_size   = log_size;
    cq->log_stride = log_stride;
    return 0;
}

void emlx5_cq_destroy(emlx5_cq_t *cq)
{
    emlx5_table_remove(&cq->hca->cqs, cq->number);
    emlx5_work_cancel(&cq->doorbell);
    emlx5_work_cancel(&cq->moderation);
    emlx5_pages_cleanup(&cq->ring);
    free(cq);
}
