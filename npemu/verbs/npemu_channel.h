/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Completion channels. */

#ifndef NPEMU_CHANNEL_H
#define NPEMU_CHANNEL_H

#include "verbs/npemu_context.h"

typedef struct npemu_channel {
    struct ibv_comp_channel super;
    unsigned                index;  /* in the arena's table */
    npemu_event_fd_t        *event; /* there */
    pthread_mutex_t         lock;
    npemu_link_t            cqs;    /* CQs that use it */
} npemu_channel_t;

static inline npemu_channel_t *npemu_channel(struct ibv_comp_channel *channel)
{
    return npemu_container_of(channel, npemu_channel_t, super);
}

#endif
