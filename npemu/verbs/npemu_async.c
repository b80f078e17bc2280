/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "verbs/npemu_async.h"
#include "base/npemu_log.h"
#include "engine/npemu_cq.h"
#include "engine/npemu_qp.h"
#include "fabric/npemu_event_fd.h"
#include "npemu.h"
#include "verbs/npemu_srq.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

typedef struct {
    npemu_link_t           link;
    struct ibv_async_event event;
    void                   *object;
    uint32_t               *delivered;
} npemu_event_t;

static void npemu_async_raise(struct ibv_context *ibcontext,
                              const struct ibv_async_event *ibevent,
                              void *object, uint32_t *delivered)
{
    npemu_context_t *context = npemu_context(ibcontext);
    npemu_event_t *event;

    event = malloc(sizeof(*event));
    if (event == NULL) {
        npemu_error("out of memory: asynchronous event %d is lost",
                    ibevent->event_type);
        return;
    }

    event->event     = *ibevent;
    event->object    = object;
    event->delivered = delivered;
    pthread_mutex_lock(&context->events_lock);
    npemu_link_add(&context->events, &event->link);
    pthread_mutex_unlock(&context->events_lock);
    npemu_event_fd_signal(&context->async, context->async.signal_fd);
}

void npemu_async_raise_qp(struct ibv_qp *qp, enum ibv_event_type type)
{
    struct ibv_async_event event = {.element.qp = qp, .event_type = type};

    npemu_async_raise(qp->context, &event, qp, &npemu_qp(qp)->async_delivered);
}

void npemu_async_raise_cq(struct ibv_cq *cq, enum ibv_event_type type)
{
    struct ibv_async_event event = {.element.cq = cq, .event_type = type};

    npemu_async_raise(cq->context, &event, cq, &npemu_cq(cq)->async_delivered);
}

void npemu_async_raise_srq(struct ibv_srq *srq, enum ibv_event_type type)
{
    struct ibv_async_event event = {.element.srq = srq, .event_type = type};

    npemu_async_raise(srq->context, &event, srq,
                      &npemu_srq(srq)->async_delivered);
}

/* Returns how many of the object's events have been delivered. */
static uint32_t npemu_async_drop(struct ibv_context *ibcontext, void *object,
                                 const uint32_t *delivered_p)
{
    npemu_context_t *context = npemu_context(ibcontext);
    npemu_link_t *link, *next;
    npemu_event_t *event;
    uint32_t delivered;

    pthread_mutex_lock(&context->events_lock);
    for (link = context->events.next; link != &context->events; link = next) {
        next  = link->next;
        event = npemu_container_of(link, npemu_event_t, link);
        if (event->object == object) {
            npemu_link_del(link);
            free(event);
            npemu_event_fd_unsignal(&context->async);
        }
    }
    delivered = *delivered_p;
    pthread_mutex_unlock(&context->events_lock);
    return delivered;
}

static void npemu_async_wait(pthread_mutex_t *mutex, pthread_cond_t *cond,
                             const uint32_t *completed, uint32_t delivered)
{
    pthread_mutex_lock(mutex);
    while (*completed != delivered) {
        pthread_cond_wait(cond, mutex);
    }
    pthread_mutex_unlock(mutex);
}

void npemu_async_forget_qp(struct ibv_qp *qp)
{
    npemu_async_wait(&qp->mutex, &qp->cond, &qp->events_completed,
                     npemu_async_drop(qp->context, qp,
                                      &npemu_qp(qp)->async_delivered));
}

void npemu_async_forget_cq(struct ibv_cq *cq)
{
    npemu_async_wait(&cq->mutex, &cq->cond, &cq->async_events_completed,
                     npemu_async_drop(cq->context, cq,
                                      &npemu_cq(cq)->async_delivered));
}

void npemu_async_forget_srq(struct ibv_srq *srq)
{
    npemu_async_wait(&srq->mutex, &srq->cond, &srq->events_completed,
                     npemu_async_drop(srq->context, srq,
                                      &npemu_srq(srq)->async_delivered));
}

int npemu_get_async_event(struct ibv_context *ibcontext,
                          struct ibv_async_event *ibevent)
{
    npemu_context_t *context = npemu_context(ibcontext);
    npemu_event_t *event;

    if (npemu_context_proc(ibcontext) == NULL) {
        errno = NPEMU_ERR_FORKED;
        return -1;
    }

    for (;;) {
        if (npemu_event_fd_take(&context->async) < 0) {
            return -1; /* EAGAIN: the program made it non-blocking */
        }

        pthread_mutex_lock(&context->events_lock);
        if (npemu_link_is_empty(&context->events)) {
            /* The event was discarded with its object */
            pthread_mutex_unlock(&context->events_lock);
            continue;
        }

        event = npemu_container_of(context->events.next, npemu_event_t, link);
        npemu_link_del(&event->link);
        ++*event->delivered;
        *ibevent = event->event;
        pthread_mutex_unlock(&context->events_lock);
        free(event);
        return 0;
    }
}

static void npemu_async_ack(pthread_mutex_t *mutex, pthread_cond_t *cond,
                            uint32_t *completed)
{
    pthread_mutex_lock(mutex);
    ++*completed;
    pthread_cond_broadcast(cond);
    pthread_mutex_unlock(mutex);
}

void npemu_ack_async_event(struct ibv_async_event *event)
{
    switch (event->event_type) {
    case IBV_EVENT_CQ_ERR:
        npemu_async_ack(&event->element.cq->mutex, &event->element.cq->cond,
                        &event->element.cq->async_events_completed);
        break;
    case IBV_EVENT_SRQ_ERR:
    case IBV_EVENT_SRQ_LIMIT_REACHED:
        npemu_async_ack(&event->element.srq->mutex,
                        &event->element.srq->cond,
                        &event->element.srq->events_completed);
        break;
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_SQ_DRAINED:
    case IBV_EVENT_QP_LAST_WQE_REACHED:
        npemu_async_ack(&event->element.qp->mutex, &event->element.qp->cond,
                        &event->element.qp->events_completed);
        break;
    default:
        break;
    }
}
