/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Doubly linked lists of objects; the head is a link as well. */

#ifndef NPEMU_LINK_H
#define NPEMU_LINK_H

#include "base/npemu_util.h"

typedef struct npemu_link {
    struct npemu_link *next;
    struct npemu_link *prev;
} npemu_link_t;

static inline void npemu_link_init(npemu_link_t *head)
{
    head->next = head->prev = head;
}

static inline int npemu_link_is_empty(const npemu_link_t *head)
{
    return head->next == head;
}

/** Append an element to a list. */
static inline void npemu_link_add(npemu_link_t *head, npemu_link_t *elem)
{
    elem->prev       = head->prev;
    elem->next       = head;
    head->prev->next = elem;
    head->prev       = elem;
}

static inline void npemu_link_del(npemu_link_t *elem)
{
    elem->prev->next = elem->next;
    elem->next->prev = elem->prev;
}

#endif
