/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* What a function has to do, at once or at a time. Register writes of the guest
 * only put work into the queue, each object at most once, so a guest cannot
 * fill it. */

#ifndef EMLX5_WORK_H
#define EMLX5_WORK_H

#include "base/emlx5_list.h"

#include <stdint.h>

typedef struct emlx5_work {
    emlx5_link_t link;
    uint64_t     when; /* 0 if ready; emlx5_now() */
    void         (*run)(struct emlx5_work *work);
} emlx5_work_t;

typedef struct {
    emlx5_link_t ready;   /* first come, first served */
    emlx5_link_t delayed; /* the earliest first */
} emlx5_queue_t;

void emlx5_queue_init(emlx5_queue_t *queue);

/** Drops everything. */
void emlx5_queue_clear(emlx5_queue_t *queue);

/** Begins a piece of work, which is in no queue. */
void emlx5_work_init(emlx5_work_t *work, void (*run)(emlx5_work_t *work));

/** Puts work at the end of the queue, unless it is ready already. */
void emlx5_work_add(emlx5_queue_t *queue, emlx5_work_t *work);

/** Puts work into the queue for a time, unless it is in the queue already: then
 * the earlier time counts. */
void emlx5_work_add_at(emlx5_queue_t *queue, emlx5_work_t *work, uint64_t when);

/** Takes work out of its queue, e.g. before its object is freed. */
void emlx5_work_cancel(emlx5_work_t *work);

/** @return When there is something to do: 0 now, UINT64_MAX never. */
uint64_t emlx5_queue_next(const emlx5_queue_t *queue);

/** Does the first piece of work that is ready. @return 0 if there was none. */
int emlx5_queue_run(emlx5_queue_t *queue);

#endif
