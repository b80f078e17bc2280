/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Shared receive queues. */

#ifndef NPEMU_SRQ_H
#define NPEMU_SRQ_H

#include "engine/npemu_rq.h"
#include "verbs/npemu_async.h"

typedef struct npemu_srq {
    struct ibv_srq      super;
    npemu_rq_t          rq;
    _Atomic uint32_t    refcount; /* QPs */
    npemu_link_t        link;     /* in proc->srqs */
    uint32_t            async_delivered; /* events, under events_lock */
} npemu_srq_t;

static inline npemu_srq_t *npemu_srq(struct ibv_srq *srq)
{
    return npemu_container_of(srq, npemu_srq_t, super);
}

/** ibv_post_srq_recv of this device. */
int npemu_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr,
                        struct ibv_recv_wr **bad_wr);

#endif
