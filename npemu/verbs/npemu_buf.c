/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "verbs/npemu_buf.h"
#include "base/npemu_link.h"
#include "npemu.h"
#include "verbs/npemu_pd.h"

#include <errno.h>
#include <stdlib.h>

/* What the handle of the program, struct ibv_buf, points to. */
typedef struct npemu_buf {
    npemu_link_t  link;
    struct ibv_pd *pd;
    uint64_t      attach_id; /* of the process that has the arena */
    uint64_t      addr;
    uint64_t      size;      /* whole pages */
    unsigned      refcount;  /* the handle, and MRs */
    int           is_freed;  /* the program has no handle any more */
} npemu_buf_t;

/* All buffers of the process. Registration looks them up by address, and a
 * handle is known by its place in the list. */
static struct {
    pthread_mutex_t  lock;  /* held during fork() */
    npemu_link_t     list;
    _Atomic unsigned count;
} npemu_bufs = {PTHREAD_MUTEX_INITIALIZER,
                {&npemu_bufs.list, &npemu_bufs.list}, 0};

static npemu_buf_t *npemu_buf_of_link(npemu_link_t *link)
{
    return npemu_container_of(link, npemu_buf_t, link);
}

/* The buffer of a handle, NULL if it is not one of ours. The lock is held. */
static npemu_buf_t *npemu_buf_find(const struct ibv_buf *handle)
{
    npemu_link_t *link;
    npemu_buf_t *buf;

    for (link = npemu_bufs.list.next; link != &npemu_bufs.list;
         link = link->next) {
        buf = npemu_buf_of_link(link);
        if (((const void*)buf == (const void*)handle) && !buf->is_freed) {
            return buf;
        }
    }
    return NULL;
}

/* Is a range within a buffer? */
static int npemu_buf_contains(const npemu_buf_t *buf, uint64_t addr,
                              uint64_t length)
{
    uint64_t offset = addr - buf->addr;

    return (offset < buf->size) && (length <= buf->size - offset);
}

/* The lock is held. Returns the buffer if the caller must destroy it. */
static npemu_buf_t *npemu_buf_drop(npemu_buf_t *buf)
{
    if (--buf->refcount > 0) {
        return NULL;
    }

    npemu_link_del(&buf->link);
    atomic_fetch_sub(&npemu_bufs.count, 1);
    return buf;
}

static void npemu_buf_destroy(npemu_buf_t *buf)
{
    npemu_proc_t *proc = npemu_self();

    if (buf == NULL) {
        return;
    }

    /* A forked child has no arena, and another attachment has another one */
    if ((proc != NULL) && (proc->attach_id == buf->attach_id)) {
        npemu_arena_free(&proc->arena, buf->addr - (uintptr_t)proc->shm,
                         buf->size);
        atomic_fetch_sub(&npemu_pd(buf->pd)->refcount, 1);
    }
    free(buf);
}

int npemu_buf_get(npemu_proc_t *proc, uint64_t addr, uint64_t length,
                  npemu_buf_t **buf_p)
{
    uint64_t start = (uintptr_t)proc->shm;
    npemu_link_t *link;
    npemu_buf_t *buf;

    *buf_p = NULL;
    if ((addr >= start + proc->arena.size) ||
        ((addr < start) && (length <= start - addr))) {
        return 0;
    }

    pthread_mutex_lock(&npemu_bufs.lock);
    for (link = npemu_bufs.list.next; link != &npemu_bufs.list;
         link = link->next) {
        buf = npemu_buf_of_link(link);
        if ((buf->attach_id == proc->attach_id) && !buf->is_freed &&
            npemu_buf_contains(buf, addr, length)) {
            ++buf->refcount;
            *buf_p = buf;
            break;
        }
    }
    pthread_mutex_unlock(&npemu_bufs.lock);
    return (*buf_p == NULL) ? EFAULT : 0;
}

void npemu_buf_put(npemu_buf_t *buf)
{
    if (buf != NULL) {
        pthread_mutex_lock(&npemu_bufs.lock);
        buf = npemu_buf_drop(buf);
        pthread_mutex_unlock(&npemu_bufs.lock);
        npemu_buf_destroy(buf);
    }
}

void *npemu_alloc_buf(struct ibv_pd *pd, size_t size, struct ibv_buf **buf_p)
{
    npemu_proc_t *proc = npemu_context_proc(pd->context);
    uint64_t offset;
    npemu_buf_t *buf;

    if (proc == NULL) {
        errno = NPEMU_ERR_FORKED;
        return NULL;
    }

    if ((size == 0) || (size > proc->arena.size)) {
        errno = (size == 0) ? EINVAL : ENOMEM;
        return NULL;
    }

    buf = calloc(1, sizeof(*buf));
    if (buf == NULL) {
        return NULL;
    }

    /* Whole pages: pinning it must not pin, and unpin, anything else */
    buf->size = (size + NPRDMA_PAGE_SIZE - 1) & ~(NPRDMA_PAGE_SIZE - 1);
    offset    = npemu_arena_alloc(&proc->arena, buf->size);
    if (offset == 0) {
        free(buf);
        errno = ENOMEM;
        return NULL;
    }

    buf->pd        = pd;
    buf->attach_id = proc->attach_id;
    buf->addr      = (uintptr_t)npemu_arena_ptr(proc->shm, offset);
    buf->refcount  = 1;
    atomic_fetch_add(&npemu_pd(pd)->refcount, 1);
    pthread_mutex_lock(&npemu_bufs.lock);
    npemu_link_add(&npemu_bufs.list, &buf->link);
    atomic_fetch_add(&npemu_bufs.count, 1);
    pthread_mutex_unlock(&npemu_bufs.lock);

    *buf_p = (struct ibv_buf*)buf;
    return (void*)(uintptr_t)buf->addr;
}

int npemu_is_buf(const struct ibv_buf *handle)
{
    int found;

    /* A program may use other devices only: then no handler of fork() is
     * registered, and the lock must not be taken */
    if (atomic_load(&npemu_bufs.count) == 0) {
        return 0;
    }

    pthread_mutex_lock(&npemu_bufs.lock);
    found = npemu_buf_find(handle) != NULL;
    pthread_mutex_unlock(&npemu_bufs.lock);
    return found;
}

void npemu_free_buf(struct ibv_buf *handle)
{
    npemu_buf_t *buf;

    pthread_mutex_lock(&npemu_bufs.lock);
    buf = npemu_buf_find(handle);
    if (buf != NULL) {
        buf->is_freed = 1;
        buf           = npemu_buf_drop(buf);
    }
    pthread_mutex_unlock(&npemu_bufs.lock);
    npemu_buf_destroy(buf);
}

struct ibv_mr *npemu_reg_buf_mr(struct ibv_pd *pd, struct ibv_buf *handle,
                                void *addr, size_t length, int access)
{
    npemu_buf_t *buf;
    int is_good;

    pthread_mutex_lock(&npemu_bufs.lock);
    buf     = npemu_buf_find(handle);
    is_good = (buf != NULL) && (buf->pd == pd) && (length > 0) &&
              npemu_buf_contains(buf, (uintptr_t)addr, length);
    pthread_mutex_unlock(&npemu_bufs.lock);
    if (!is_good) {
        errno = EINVAL;
        return NULL;
    }

    return npemu_reg_mr(pd, addr, length, access);
}

void npemu_buf_fork_prepare(void)
{
    pthread_mutex_lock(&npemu_bufs.lock);
}

void npemu_buf_fork_done(void)
{
    pthread_mutex_unlock(&npemu_bufs.lock);
}
