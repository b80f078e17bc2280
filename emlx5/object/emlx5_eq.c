/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "object/emlx5_eq.h"
#include "base/emlx5_bytes.h"
#include "base/emlx5_log.h"

#include <stdlib.h>

enum { EMLX5_EQ_INDEX = 0xffffff };

static void emlx5_eq_doorbell(emlx5_work_t *work)
{
    emlx5_eq_t *eq = emlx5_container_of(work, emlx5_eq_t, doorbell);

    eq->consumer = eq->new_consumer;
    if (!eq->arm) {
        return;
    }
    eq->arm   = 0;
    eq->armed = ((eq->producer & EMLX5_EQ_INDEX) == eq->consumer);
    if (!eq->armed) {
        emlx5_hca_interrupt(eq->hca, eq->vector);
    }
}

emlx5_eq_t *emlx5_eq_create(emlx5_hca_t *hca, const emlx5_pages_t *ring)
{
    emlx5_eq_t *eq = calloc(1, sizeof(*eq));

    if ((eq == NULL) || (emlx5_table_add(&hca->eqs, eq, &eq->number) != 0)) {
        free(eq);
        return NULL;
    }
    eq->hca  = hca;
    eq->ring = *ring;
    emlx5_work_init(&eq->doorbell, emlx5_eq_doorbell);
    return eq;
}

void emlx5_eq_destroy(emlx5_eq_t *eq)
{
    emlx5_table_remove(&eq->hca->eqs, eq->number);
    emlx5_work_cancel(&eq->doorbell);
    emlx5_pages_cleanup(&eq->ring);
    free(eq);
}

/* The ring is full if the driver has not consumed for a whole round. */
static int emlx5_eq_is_full(const emlx5_eq_t *eq)
{
    return ((eq->producer - eq->consumer) & EMLX5_EQ_INDEX) >=
           (1u << eq->log_size);
}

void emlx5_eq_post(emlx5_hca_t *hca, uint32_t eqn, uint8_t type,
                   uint8_t subtype, const uint8_t *data)
{
    emlx5_eq_t *eq    = emlx5_table_get(&hca->eqs, eqn);
    uint8_t entry[64] = {0};

    if (eq == NULL) {
        return;
    }
    if (emlx5_eq_is_full(eq)) {
        eq->overrun = 1;
        emlx5_event("port %u: event queue %u is full: event %#x lost", hca->lid,
                    eqn, type);
        return;
    }
    entry[1] = type;
    entry[3] = subtype;
    memcpy(entry + 32, data, EMLX5_EQE_DATA);
    entry[63] = (eq->producer >> eq->log_size) & 1;
    emlx5_pages_write_entry(&hca->dma, &eq->ring,
                            64 * (uint64_t)(eq->producer &
                                            ((1u << eq->log_size) - 1)),
                            entry);
    ++eq->producer;
    ++hca->stats.eqes;
    if (eq->armed) {
        eq->armed = 0;
        emlx5_hca_interrupt(hca, eq->vector);
    }
}

void emlx5_eq_post_async(emlx5_hca_t *hca, uint8_t type, uint8_t subtype,
                         const uint8_t *data)
{
    uint32_t number = 0;
    emlx5_eq_t *eq;

    while ((eq = emlx5_table_next(&hca->eqs, &number)) != NULL) {
        if ((eq->events[type / 64] >> (type % 64)) & 1) {
            emlx5_eq_post(hca, number, type, subtype, data);
            return;
        }
        ++number;
    }
}

void emlx5_eq_post_queue(emlx5_hca_t *hca, uint8_t type, uint32_t number)
{
    uint8_t data[EMLX5_EQE_DATA] = {0};

    emlx5_put_be32(data + 24, number);
    emlx5_eq_post_async(hca, type, 0, data);
}

void emlx5_eq_ring(emlx5_hca_t *hca, uint32_t uar, uint32_t value, int arm)
{
    emlx5_eq_t *eq = emlx5_table_get(&hca->eqs, value >> 24);

    if ((eq == NULL) || (eq->uar != uar)) {
        ++hca->stats.bad_doorbells;
        emlx5_event("port %u: UAR %u: doorbell for event queue %u refused",
                    hca->lid, uar, value >> 24);
        return;
    }
    eq->new_consumer = value & EMLX5_EQ_INDEX;
    eq->arm         |= arm;
    emlx5_work_add(&hca->queue, &eq->doorbell);
}
