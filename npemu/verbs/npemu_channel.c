/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "verbs/npemu_channel.h"
#include "base/npemu_log.h"
#include "engine/npemu_cq.h"
#include "fabric/npemu_epoch.h"
#include "fabric/npemu_event_fd.h"
#include "npemu.h"

#include <errno.h>
#include <stdlib.h>

static int npemu_channel_index(npemu_proc_t *proc)
{
    unsigned i;

    pthread_mutex_lock(&proc->lock);
    for (i = 0; (i < NPEMU_MAX_CHANNELS) && proc->channel_used[i]; ++i) {
    }
    if (i < NPEMU_MAX_CHANNELS) {
        proc->channel_used[i] = 1;
    }
    pthread_mutex_unlock(&proc->lock);
    return (i < NPEMU_MAX_CHANNELS) ? (int)i : -1;
}

struct ibv_comp_channel *
npemu_create_comp_channel(struct ibv_context *context)
{
    npemu_proc_t *proc = npemu_context_proc(context);
    npemu_channel_t *channel;
    npemu_channel_shm_t *shm;
    npemu_event_fd_t event;
    int index;

    if (proc == NULL) {
        errno = NPEMU_ERR_FORKED;
        return NULL;
    }

    channel = calloc(1, sizeof(*channel));
    if (channel == NULL) {
        return NULL;
    }

    /* One read is one event, as with a uverbs channel */
    if (npemu_event_fd_create(&event, 0) < 0) {
        free(channel);
        return NULL;
    }

    index = npemu_channel_index(proc);
    if (index < 0) {
        npemu_warn("more than %d completion channels", NPEMU_MAX_CHANNELS);
        npemu_event_fd_close(&event);
        free(channel);
        errno = ENOMEM;
        return NULL;
    }

    channel->index         = index;
    channel->super.context = context;
    pthread_mutex_init(&channel->lock, NULL);
    npemu_link_init(&channel->cqs);

    shm               = &proc->shm->channels[index];
    shm->event        = event;
    channel->event    = &shm->event;
    channel->super.fd = event.fd;
    atomic_fetch_add(&shm->gen, 1);
    return &channel->super;
}

int npemu_destroy_comp_channel(struct ibv_comp_channel *ibchannel)
{
    npemu_channel_t *channel = npemu_channel(ibchannel);
    npemu_proc_t *proc       = npemu_context_proc(ibchannel->context);

    if (proc == NULL) {
        return NPEMU_ERR_FORKED;
    }

    if (ibchannel->refcnt != 0) {
        return EBUSY;
    }

    atomic_fetch_add(&proc->shm->channels[channel->index].gen, 1);
    npemu_epoch_quiesce(proc, NPEMU_QUIESCE_LOCAL); /* they write to the fd */
    npemu_event_fd_close(channel->event);
    pthread_mutex_lock(&proc->lock);
    proc->channel_used[channel->index] = 0;
    pthread_mutex_unlock(&proc->lock);
    pthread_mutex_destroy(&channel->lock);
    free(channel);
    return 0;
}

/* Take one event: its CQ, or NULL if all have been destroyed. */
static npemu_cq_t *npemu_channel_take(npemu_channel_t *channel)
{
    npemu_cq_t *cq = NULL;
    npemu_link_t *link;

    pthread_mutex_lock(&channel->lock);
    for (link = channel->cqs.next; link != &channel->cqs; link = link->next) {
        cq = npemu_container_of(link, npemu_cq_t, channel_link);
        if (atomic_load(&cq->shm->raised) != cq->taken) {
            break;
        }
    }
    if (cq != NULL) {
        if (link == &channel->cqs) {
            /* Signalled twice. poll() has shown it, so it is an event */
            atomic_fetch_add(&cq->shm->raised, 1);
        }
        ++cq->taken;
        /* Moved to the end, so that no CQ starves another */
        npemu_link_del(&cq->channel_link);
        npemu_link_add(&channel->cqs, &cq->channel_link);
    }
    pthread_mutex_unlock(&channel->lock);
    return cq;
}

int npemu_get_cq_event(struct ibv_comp_channel *ibchannel, struct ibv_cq **cq_p,
                       void **cq_context)
{
    npemu_channel_t *channel = npemu_channel(ibchannel);
    npemu_cq_t *cq;

    if (npemu_context_proc(ibchannel->context) == NULL) {
        errno = NPEMU_ERR_FORKED;
        return -1;
    }

    do {
        if (npemu_event_fd_take(channel->event) < 0) {
            return -1; /* EAGAIN: the program made it non-blocking */
        }
        cq = npemu_channel_take(channel);
    } while (cq == NULL);

    *cq_p       = &cq->super;
    *cq_context = cq->super.cq_context;
    return 0;
}

void npemu_ack_cq_events(struct ibv_cq *cq, unsigned nevents)
{
    pthread_mutex_lock(&cq->mutex);
    cq->comp_events_completed += nevents;
    pthread_cond_broadcast(&cq->cond);
    pthread_mutex_unlock(&cq->mutex);
}
