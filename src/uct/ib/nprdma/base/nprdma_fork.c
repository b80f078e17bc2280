/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_fork.h"
#include "uct/ib/nprdma/net/nprdma_bounce.h"

#include "ucm/nprdma_monitor.h"
#include "ucm/events/nprdma_events.h"

#include <ucs/debug/log.h>

#include <pthread.h>
#include <stdatomic.h>

static struct {
    pthread_mutex_t lock;      /* held during fork() */
    ucs_list_link_t ifaces;
    pid_t           owner;     /* process that the abandoned interfaces belong
                                * to */
    atomic_int      is_reported;
    unsigned        generation; /* as *uct_nprdma_fork_generation, and it is
                                 * not wiped */
} uct_nprdma_fork = {
    .lock        = PTHREAD_MUTEX_INITIALIZER,
    .ifaces      = UCS_LIST_INITIALIZER(&uct_nprdma_fork.ifaces,
                                        &uct_nprdma_fork.ifaces),
    .is_reported = 1,
    .generation  = UCT_NPRDMA_FORK_FIRST
};


/* ---- functions of the parent's interfaces in a child ---- */

static void uct_nprdma_fork_ignore(void)
{
    if (!atomic_exchange(&uct_nprdma_fork.is_reported, 1)) {
        ucs_warn("interfaces of nprdma were opened before fork() and belong to "
                 "process %d: in this child they refuse all operations, and "
                 "closing them does nothing", uct_nprdma_fork.owner);
    }
}

static ucs_status_t uct_nprdma_fork_refuse(void)
{
    uct_nprdma_fork_ignore();
    return UCS_ERR_UNSUPPORTED;
}

static ssize_t uct_nprdma_fork_refuse_bcopy(void)
{
    return uct_nprdma_fork_refuse();
}

/* No resource will become free. UCS_ERR_BUSY makes the user try the operation
 * again, which is then refused */
static ucs_status_t uct_nprdma_fork_refuse_pending(void)
{
    return UCS_ERR_BUSY;
}

#define UCT_NPRDMA_FORK_SET(_ops, _member, _func) \
    (_ops)->_member = (__typeof__((_ops)->_member))(void (*)(void))(_func)

static void uct_nprdma_fork_set_ep_ops(uct_iface_ops_t *ops)
{
    UCT_NPRDMA_FORK_SET(ops, ep_put_short, uct_nprdma_fork_refuse);
    UCT_NPRDMA_FORK_SET(ops, ep_put_bcopy, uct_nprdma_fork_refuse_bcopy);
    UCT_NPRDMA_FORK_SET(ops, ep_put_zcopy, uct_nprdma_fork_refuse);
    UCT_NPRDMA_FORK_SET(ops, ep_get_bcopy, uct_nprdma_fork_refuse);
    UCT_NPRDMA_FORK_SET(ops, ep_get_zcopy, uct_nprdma_fork_refuse);
    UCT_NPRDMA_FORK_SET(ops, ep_am_short, uct_nprdma_fork_refuse);
    UCT_NPRDMA_FORK_SET(ops, ep_am_short_iov, uct_nprdma_fork_refuse);
    UCT_NPRDMA_FORK_SET(ops, ep_am_bcopy, uct_nprdma_fork_refuse_bcopy);
    UCT_NPRDMA_FORK_SET(ops, ep_am_zcopy, uct_nprdma_fork_refuse);
    UCT_NPRDMA_FORK_SET(ops, ep_atomic_cswap64, uct_nprdma_fork_refuse);
    UCT_NPRDMA_FORK_SET(ops, ep_atomic_cswap32, uct_nprdma_fork_refuse);
    UCT_NPRDMA_FORK_SET(ops, ep_atomic32_post, uct_nprdma_fork_refuse);
    UCT_NPRDMA_FORK_SET(ops, ep_atomic64_post, uct_nprdma_fork_refuse);
    UCT_NPRDMA_FORK_SET(ops, ep_atomic32_fetch, uct_nprdma_fork_refuse);
    UCT_NPRDMA_FORK_SET(ops, ep_atomic64_fetch, uct_nprdma_fork_refuse);
    UCT_NPRDMA_FORK_SET(ops, ep_pending_add, uct_nprdma_fork_refuse_pending);
    UCT_NPRDMA_FORK_SET(ops, ep_flush, uct_nprdma_fork_refuse);
    UCT_NPRDMA_FORK_SET(ops, ep_fence, uct_nprdma_fork_refuse);
    UCT_NPRDMA_FORK_SET(ops, ep_check, uct_nprdma_fork_refuse);
    UCT_NPRDMA_FORK_SET(ops, ep_create, uct_nprdma_fork_refuse);
    UCT_NPRDMA_FORK_SET(ops, ep_destroy, uct_nprdma_fork_ignore);
}

/* Functions that only read memory remain: queries, addresses, purging */
static void uct_nprdma_fork_abandon(uct_nprdma_fork_entry_t *entry)
{
    uct_nprdma_fork_set_ep_ops(entry->ops);
    UCT_NPRDMA_FORK_SET(entry->ops, iface_flush, uct_nprdma_fork_refuse);
    UCT_NPRDMA_FORK_SET(entry->ops, iface_fence, uct_nprdma_fork_refuse);
    UCT_NPRDMA_FORK_SET(entry->ops, iface_event_arm, uct_nprdma_fork_refuse);
    UCT_NPRDMA_FORK_SET(entry->ops, iface_close, uct_nprdma_fork_ignore);
    entry->left(entry);
}


/* ---- around fork() ---- */

static void uct_nprdma_fork_prepare(void)
{
    pthread_mutex_lock(&uct_nprdma_fork.lock);
}

static void uct_nprdma_fork_parent(void)
{
    pthread_mutex_unlock(&uct_nprdma_fork.lock);
}

/* The interfaces stay in the list and are never removed: so their memory stays
 * referenced. It is abandoned, not lost. */
static void uct_nprdma_fork_child(void)
{
    uct_nprdma_fork_entry_t *entry;

    *uct_nprdma_fork_generation = ++uct_nprdma_fork.generation;
    ucs_list_for_each(entry, &uct_nprdma_fork.ifaces, list) {
        uct_nprdma_fork_abandon(entry);
        uct_nprdma_fork.owner = entry->owner;
        atomic_store(&uct_nprdma_fork.is_reported, 0);
    }
    uct_nprdma_bounce_forked();
    nprdma_monitor_forked();
    pthread_mutex_unlock(&uct_nprdma_fork.lock);
}

/* The lock may have been held, by a thread that does not exist here */
static void uct_nprdma_fork_catch_up(void)
{
    pthread_mutex_init(&uct_nprdma_fork.lock, NULL);
    uct_nprdma_fork_prepare();
    uct_nprdma_fork_child();
}

int uct_nprdma_fork_missed(void)
{
    uct_nprdma_fork_catch_up();
    uct_nprdma_fork_ignore();
    return 1;
}

/* The lock is held */
static void uct_nprdma_fork_init_generation(void)
{
    unsigned *generation = nprdma_events_alloc_wiped(sizeof(*generation));

    /* Without it, a child by clone() is not found out */
    if (generation != NULL) {
        *generation                = uct_nprdma_fork.generation;
        uct_nprdma_fork_generation = generation;
    }
}

ucs_status_t uct_nprdma_fork_init(void)
{
    static int registered;
    ucs_status_t status = UCS_OK;

    if (*uct_nprdma_fork_generation == 0) {
        uct_nprdma_fork_catch_up();
    }

    pthread_mutex_lock(&uct_nprdma_fork.lock);
    if (!registered && (pthread_atfork(uct_nprdma_fork_prepare,
                                       uct_nprdma_fork_parent,
                                       uct_nprdma_fork_child) != 0)) {
        ucs_error("failed to register what is to be done at fork()");
        status = UCS_ERR_NO_MEMORY;
    } else if (!registered) {
        uct_nprdma_fork_init_generation();
        registered = 1;
    }
    pthread_mutex_unlock(&uct_nprdma_fork.lock);
    return status;
}

void uct_nprdma_fork_add(uct_nprdma_fork_entry_t *entry)
{
    pthread_mutex_lock(&uct_nprdma_fork.lock);
    ucs_list_add_tail(&uct_nprdma_fork.ifaces, &entry->list);
    pthread_mutex_unlock(&uct_nprdma_fork.lock);
}

void uct_nprdma_fork_remove(uct_nprdma_fork_entry_t *entry)
{
    pthread_mutex_lock(&uct_nprdma_fork.lock);
    ucs_list_del(&entry->list);
    pthread_mutex_unlock(&uct_nprdma_fork.lock);
}

int uct_nprdma_fork_find(int (*match)(const uct_nprdma_fork_entry_t *entry,
                                      void *arg),
                         void *arg)
{
    const pid_t self = getpid();
    int found        = 0;
    uct_nprdma_fork_entry_t *entry;

    pthread_mutex_lock(&uct_nprdma_fork.lock);
    ucs_list_for_each(entry, &uct_nprdma_fork.ifaces, list) {
        if ((entry->owner == self) && match(entry, arg)) {
            found = 1;
            break;
        }
    }
    pthread_mutex_unlock(&uct_nprdma_fork.lock);
    return found;
}
