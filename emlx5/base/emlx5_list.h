/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Doubly linked lists with the links inside of the elements. */

#ifndef EMLX5_LIST_H
#define EMLX5_LIST_H

#include <stddef.h>

typedef struct emlx5_link {
    struct emlx5_link *prev, *next;
} emlx5_link_t;

/* The structure of this type whose member is at _ptr */
#define emlx5_container_of(_ptr, _type, _member) \
    ((_type*)((char*)(_ptr) - offsetof(_type, _member)))

/** Makes an empty list, or an element that is in none. */
static inline void emlx5_list_init(emlx5_link_t *link)
{
    link->prev = link->next = link;
}

/** @return 1 for an empty list, or an element that is in none. */
static inline int emlx5_list_is_empty(const emlx5_link_t *link)
{
    return link->next == link;
}

/** Puts an element before another; before the head is the end of the list. */
static inline void emlx5_list_insert(emlx5_link_t *before, emlx5_link_t *link)
{
    link->prev         = before->prev;
    link->next         = before;
    before->prev->next = link;
    before->prev       = link;
}

/** Takes an element out; nothing happens if it is in no list. */
static inline void emlx5_list_remove(emlx5_link_t *link)
{
    link->prev->next = link->next;
    link->next->prev = link->prev;
    emlx5_list_init(link);
}

#endif
