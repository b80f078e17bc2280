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

/* What events can be about: a QP, a CQ or an SRQ. */
typedef struct {
    struct ibv_context *context;
    void               *object;
    pthread_mutex_t    *mutex;
    pthread_cond_t     *cond;
    uint32_t           *completed;
    uint32_t           *delivered; /* under events_lock */
} npemu_async_t;

typedef struct {
    npemu_link_t           link;
    struct ibv_async_event event;
    npemu_async_t          about;
} npemu_event_t;

static npemu_async_t npemu_async_qp(struct ibv_qp *qp)
{
    return (npemu_async_t){qp->context, qp, &qp->mutex, &qp->cond,
                           &qp->events_completed,
                           &npemu_qp(qp)->async_delivered};
}

static npemu_async_t npemu_async_cq(struct ibv_cq *cq)
{
    return (npemu_async_t){cq->context, cq, &cq->mutex, &cq->cond,
                           &cq->async_events_completed,
                           &npemu_cq(cq)->async_delivered};
}

static npemu_async_t npemu_async_srq(struct ibv_srq *srq)
{
    return (npemu_async_t){srq->context, srq, &srq->mutex, &srq->cond,
                           &srq->events_completed,
                           &npemu_srq(srq)->async_delivered};
}

static void npemu_async_raise(npemu_async_t about, enum ibv_event_type type)
{
    npemu_context_t *context = npemu_context(about.context);
    npemu_event_t *event;

    event = malloc(sizeof(*event));
    if (event == NULL) {
        npemu_error("out of memory: asynchronous event %d is lost", type);
        return;
    }

    /* All members of the union are pointers */
    event->event = (struct ibv_async_event){.element.qp = about.object,
                                            .event_type = type};
    event->about = about;
    pthread_mutex_lock(&context->events_lock);
    npemu_link_add(&context->events, &event->link);
    pthread_mutex_unlock(&context->events_lock);
    npemu_event_fd_signal(&context->async, context->async.signal_fd);
}

void npemu_async_raise_qp(struct ibv_qp *qp, enum ibv_event_type type)
{
    npemu_async_raise(npemu_async_qp(qp), type);
}

void npemu_async_raise_cq(struct ibv_cq *cq, enum ibv_event_type type)
{
    npemu_async_raise(npemu_async_cq(cq), type);
}

void npemu_async_raise_srq(struct ibv_srq *srq, enum ibv_event_type type)
{
    npemu_async_raise(npemu_async_srq(srq), type);
}

static void npemu_async_forget(npemu_async_t about)
{
    npemu_context_t *context = npemu_context(about.context);
    npemu_link_t *link, *next;
    npemu_event_t *event;
    uint32_t delivered;

    pthread_mutex_lock(&context->events_lock);
    for (link = context->events.next; link != &context->events; link = next) {
        next  = link->next;
        event = npemu_container_of(link, npemu_event_t, link);
        if (event->about.object == about.object) {
            npemu_link_del(link);
            free(event);
            npemu_event_fd_unsignal(&context->async);
        }
    }
    delivered = *about.delivered;
    pthread_mutex_unlock(&context->events_lock);

    pthread_mutex_lock(about.mutex);
    while (*about.completed != delivered) {
        pthread_cond_wait(about.cond, about.mutex);
    }
    pthread_mutex_unlock(about.mutex);
}

void npemu_async_forget_qp(struct ibv_qp *qp)
{
    npemu_async_forget(npemu_async_qp(qp));
}

void npemu_async_forget_cq(struct ibv_cq *cq)
{
    npemu_async_forget(npemu_async_cq(cq));
}

void npemu_async_forget_srq(struct ibv_srq *srq)
{
    npemu_async_forget(npemu_async_srq(srq));
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
        ++*event->about.delivered;
        *ibevent = event->event;
        pthread_mutex_unlock(&context->events_lock);
        free(event);
        return 0;
    }
}

static void npemu_async_ack(npemu_async_t about)
{
    pthread_mutex_lock(about.mutex);
    ++*about.completed;
    pthread_cond_broadcast(about.cond);
    pthread_mutex_unlock(about.mutex);
}

void npemu_ack_async_event(struct ibv_async_event *event)
{
    switch (event->event_type) {
    case IBV_EVENT_CQ_ERR:
        npemu_async_ack(npemu_async_cq(event->element.cq));
        break;
    case IBV_EVENT_SRQ_ERR:
    case IBV_EVENT_SRQ_LIMIT_REACHED:
        npemu_async_ack(npemu_async_srq(event->element.srq));
        break;
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_QP_LAST_WQE_REACHED:
        npemu_async_ack(npemu_async_qp(event->element.qp));
        break;
    default:
        break;
    }
}
