/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Event queues: what the device tells the driver, with an interrupt. */

#ifndef EMLX5_EQ_H
#define EMLX5_EQ_H

#include "object/emlx5_hca.h"
#include "object/emlx5_pages.h"

enum { EMLX5_EQ_EVENTS = 4, EMLX5_EQE_DATA = 28 };

typedef enum {
    EMLX5_EVENT_COMPLETION    = 0x00,
    EMLX5_EVENT_CQ_ERROR      = 0x04,
    EMLX5_EVENT_WQ_CATASTROPHE = 0x05,
    EMLX5_EVENT_COMMAND       = 0x0a,
    EMLX5_EVENT_WQ_INVALID    = 0x10,
    EMLX5_EVENT_WQ_ACCESS     = 0x11,
    EMLX5_EVENT_LAST_WQE      = 0x13,
    EMLX5_EVENT_SRQ_LIMIT     = 0x14
} emlx5_event_type_t;

typedef struct emlx5_eq {
    emlx5_hca_t   *hca;
    uint32_t      number, uar, vector;
    uint8_t       log_size;
    emlx5_pages_t ring;
    uint32_t      producer, consumer;      /* modulo the size: index */
    int           armed, overrun;
    uint64_t      events[EMLX5_EQ_EVENTS]; /* bit per type it is told of */
    emlx5_work_t  doorbell;
    uint32_t      new_consumer;
    int           arm;
} emlx5_eq_t;

/** Makes an event queue. The ring becomes its own if it is made. @return NULL
 * if there is no number or no memory. */
emlx5_eq_t *emlx5_eq_create(emlx5_hca_t *hca, const emlx5_pages_t *ring);

void emlx5_eq_destroy(emlx5_eq_t *eq);

/** Tells of an event with EMLX5_EQE_DATA bytes. Nothing happens if there is no
 * such queue. */
void emlx5_eq_post(emlx5_hca_t *hca, uint32_t eqn, uint8_t type,
                   uint8_t subtype, const uint8_t *data);

/** Tells the queue that has asked for events of this type. */
void emlx5_eq_post_async(emlx5_hca_t *hca, uint8_t type, uint8_t subtype,
                         const uint8_t *data);

/** Event about a QP (or SRQ) with this number. */
void emlx5_eq_post_queue(emlx5_hca_t *hca, uint8_t type, uint32_t number);

/** The driver's register write: it has consumed events, and perhaps wants an
 * interrupt for the next. The value is the number of the queue << 24 | consumer
 * index. Takes effect later, by the function's queue. */
void emlx5_eq_ring(emlx5_hca_t *hca, uint32_t uar, uint32_t value, int arm);

#endif
