/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Completion queues: creation, resizing, destruction. */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "engine/npemu_cq.h"
#include "fabric/npemu_event_fd.h"
#include "npemu.h"
#include "verbs/npemu_async.h"
#include "verbs/npemu_channel.h"

#include <errno.h>
#include <stdlib.h>

#define NPEMU_CQ_MAX_CQE   (1 << 20)
#define NPEMU_CQ_DATA_MIN  (16 * 1024)
#define NPEMU_CQ_DATA_MAX  (256 * 1024)

static uint32_t npemu_cq_ring_size(int cqe)
{
    uint32_t size = 4;

    while (size < (uint32_t)cqe) {
        size *= 2;
    }
    return size;
}

static uint32_t npemu_cq_data_size(uint32_t ring_size)
{
    uint32_t size = NPEMU_CQ_DATA_MIN;

    while ((size < NPEMU_CQ_DATA_MAX) && (size < ring_size * 256)) {
        size *= 2;
    }
    return size;
}

static void npemu_cq_destroy_shm(npemu_cq_t *cq)
{
    npemu_arena_t *arena = &cq->proc->arena;

    npemu_arena_free(arena, cq->shm->ring,
                     (cq->shm->mask + 1ul) * sizeof(npemu_cqe_t));
    npemu_arena_free(arena, cq->shm->data, cq->shm->data_size);
    npemu_arena_free(arena, npemu_arena_off(cq->proc->shm, cq->shm),
                     sizeof(npemu_cq_shm_t));
}

/* The record, the ring and the data ring. */
static int npemu_cq_create_shm(npemu_cq_t *cq, int cqe)
{
    npemu_proc_t *proc = cq->proc;
    uint32_t size      = npemu_cq_ring_size(cqe);
    uint64_t offset;

    offset = npemu_arena_alloc(&proc->arena, sizeof(npemu_cq_shm_t));
    if (offset == 0) {
        return ENOMEM;
    }

    cq->shm            = npemu_arena_ptr(proc->shm, offset);
    cq->shm->mask      = size - 1;
    cq->shm->data_size = npemu_cq_data_size(size);
    cq->shm->data      = npemu_arena_alloc(&proc->arena, cq->shm->data_size);
    cq->shm->ring      = npemu_arena_alloc(&proc->arena,
                                           (size_t)size * sizeof(npemu_cqe_t));
    if ((cq->shm->data == 0) || (cq->shm->ring == 0)) {
        npemu_cq_destroy_shm(cq);
        return ENOMEM;
    }

    cq->data      = npemu_arena_ptr(proc->shm, cq->shm->data);
    cq->cqes      = npemu_arena_ptr(proc->shm, cq->shm->ring);
    cq->mask      = size - 1;
    cq->super.cqe = size;
    return 0;
}

static void npemu_cq_attach_channel(npemu_cq_t *cq, npemu_channel_t *channel)
{
    cq->shm->channel = channel->index + 1;
    pthread_mutex_lock(&channel->lock);
    ++channel->super.refcnt;
    npemu_link_add(&channel->cqs, &cq->channel_link);
    pthread_mutex_unlock(&channel->lock);
}

struct ibv_cq *npemu_create_cq(struct ibv_context *context, int cqe,
                               void *cq_context,
                               struct ibv_comp_channel *channel,
                               int comp_vector)
{
    npemu_proc_t *proc = npemu_context_proc(context);
    npemu_cq_t *cq;
    int ret;

    if ((cqe < 1) || (cqe > NPEMU_CQ_MAX_CQE) || (comp_vector < 0) ||
        (comp_vector >= context->num_comp_vectors)) {
        errno = EINVAL;
        return NULL;
    }

    if (proc == NULL) {
        errno = NPEMU_ERR_FORKED;
        return NULL;
    }

    cq = calloc(1, sizeof(*cq));
    if (cq == NULL) {
        return NULL;
    }

    cq->proc = proc;
    ret      = npemu_cq_create_shm(cq, cqe);
    if (ret != 0) {
        free(cq);
        errno = ret;
        return NULL;
    }

    cq->super.context    = context;
    cq->super.channel    = channel;
    cq->super.cq_context = cq_context;
    cq->super.handle     = npemu_arena_off(proc->shm, cq->shm) / 64;
    pthread_mutex_init(&cq->super.mutex, NULL);
    pthread_cond_init(&cq->super.cond, NULL);
    npemu_waits_init(&cq->waits);
    if (channel != NULL) {
        npemu_cq_attach_channel(cq, npemu_channel(channel));
    }
    pthread_mutex_lock(&proc->lock);
    npemu_link_add(&proc->cqs, &cq->link);
    pthread_mutex_unlock(&proc->lock);
    return &cq->super;
}

/* Leave the channel; wait until the program has acknowledged every event that
 * was delivered. */
static void npemu_cq_detach_channel(npemu_cq_t *cq)
{
    npemu_channel_t *channel = npemu_channel(cq->super.channel);
    uint32_t taken, raised;

    pthread_mutex_lock(&channel->lock);
    npemu_link_del(&cq->channel_link);
    --channel->super.refcnt;
    taken = cq->taken;
    /* Discard events that were not delivered: poll() must not report them */
    for (raised = atomic_load(&cq->shm->raised); raised != taken; --raised) {
        npemu_event_fd_unsignal(channel->event);
    }
    pthread_mutex_unlock(&channel->lock);

    pthread_mutex_lock(&cq->super.mutex);
    while (cq->super.comp_events_completed != taken) {
        pthread_cond_wait(&cq->super.cond, &cq->super.mutex);
    }
    pthread_mutex_unlock(&cq->super.mutex);
}

int npemu_destroy_cq(struct ibv_cq *ibcq)
{
    npemu_cq_t *cq     = npemu_cq(ibcq);
    npemu_proc_t *proc = cq->proc;

    if (proc != npemu_self()) {
        return NPEMU_ERR_FORKED;
    }

    if (atomic_load(&cq->refcount) != 0) {
        return EBUSY;
    }

    pthread_mutex_lock(&proc->lock);
    npemu_link_del(&cq->link);
    pthread_mutex_unlock(&proc->lock);
    if (ibcq->channel != NULL) {
        npemu_cq_detach_channel(cq);
    }
    npemu_async_forget_cq(ibcq);

    npemu_cq_destroy_shm(cq);
    pthread_cond_destroy(&ibcq->cond);
    pthread_mutex_destroy(&ibcq->mutex);
    free(cq);
    return 0;
}
