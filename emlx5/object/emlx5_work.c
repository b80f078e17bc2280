/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "object/emlx5_work.h"
#include "base/emlx5_time.h"

void emlx5_queue_init(emlx5_queue_t *queue)
{
    emlx5_list_init(&queue->ready);
    emlx5_list_init(&queue->delayed);
}

void emlx5_queue_clear(emlx5_queue_t *queue)
{
    while (!emlx5_list_is_empty(&queue->ready)) {
        emlx5_list_remove(queue->ready.next);
    }
    while (!emlx5_list_is_empty(&queue->delayed)) {
        emlx5_list_remove(queue->delayed.next);
    }
}

void emlx5_work_init(emlx5_work_t *work, void (*run)(emlx5_work_t *work))
{
    emlx5_list_init(&work->link);
    work->when = 0;
    work->run  = run;
}

void emlx5_work_add(emlx5_queue_t *queue, emlx5_work_t *work)
{
    if (!emlx5_list_is_empty(&work->link) && (work->when == 0)) {
        return;
    }
    emlx5_list_remove(&work->link);
    work->when = 0;
    emlx5_list_insert(&queue->ready, &work->link);
}

void emlx5_work_add_at(emlx5_queue_t *queue, emlx5_work_t *work, uint64_t when)
{
    emlx5_link_t *at;

    if (!emlx5_list_is_empty(&work->link) && (work->when <= when)) {
        return;
    }
    emlx5_list_remove(&work->link);
    work->when = when;
    for (at = queue->delayed.next; at != &queue->delayed; at = at->next) {
        if (emlx5_container_of(at, emlx5_work_t, link)->when > when) {
            break;
        }
    }
    emlx5_list_insert(at, &work->link);
}

void emlx5_work_cancel(emlx5_work_t *work)
{
    emlx5_list_remove(&work->link);
    work->when = 0;
}

uint64_t emlx5_queue_next(const emlx5_queue_t *queue)
{
    if (!emlx5_list_is_empty(&queue->ready)) {
        return 0;
    }
    if (emlx5_list_is_empty(&queue->delayed)) {
        return UINT64_MAX;
    }
    return emlx5_container_of(queue->delayed.next, emlx5_work_t, link)->when;
}

static void emlx5_queue_wake(emlx5_queue_t *queue)
{
    uint64_t now = emlx5_now();
    emlx5_work_t *work;

    while (!emlx5_list_is_empty(&queue->delayed)) {
        work = emlx5_container_of(queue->delayed.next, emlx5_work_t, link);
        if (work->when > now) {
            break;
        }
        emlx5_work_add(queue, work);
    }
}

int emlx5_queue_run(emlx5_queue_t *queue)
{
    emlx5_work_t *work;

    emlx5_queue_wake(queue);
    if (emlx5_list_is_empty(&queue->ready)) {
        return 0;
    }
    work = emlx5_container_of(queue->ready.next, emlx5_work_t, link);
    emlx5_list_remove(&work->link);
    work->run(work);
    return 1;
}
