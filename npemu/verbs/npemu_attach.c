/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "verbs/npemu_context.h"
#include "base/npemu_log.h"
#include "engine/npemu_cq.h"
#include "engine/npemu_port.h"
#include "fabric/npemu_epoch.h"
#include "fabric/npemu_event_fd.h"
#include "fabric/npemu_peer.h"
#include "fabric/npemu_thread.h"
#include "inject/npemu_fault.h"
#include "iommu/npemu_table.h"
#include "verbs/npemu_buf.h"
#include "verbs/npemu_mr.h"
#include "verbs/npemu_pin.h"
#include "verbs/npemu_recover.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

#ifndef PR_SET_PTRACER
#define PR_SET_PTRACER     0x59616d61
#define PR_SET_PTRACER_ANY ((unsigned long)-1)
#endif

static pthread_mutex_t npemu_attach_lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t npemu_attach_count;
static int npemu_attach_has_handlers; /* of fork() */

static const npemu_proc_ops_t npemu_attach_ops = {
    .peer_died     = npemu_recover,
    .peer_closed   = npemu_table_detach_all,
    .handle_events = npemu_qp_handle_events,
    .progress      = npemu_cq_retry_all
};

static void npemu_attach_init(npemu_proc_t *proc)
{
    pthread_mutex_init(&proc->lock, NULL);
    npemu_link_init(&proc->cqs);
    npemu_link_init(&proc->srqs);
    npemu_epoch_init(proc);
    npemu_peer_init(proc);
    npemu_table_init(proc);
}

static void npemu_attach_cleanup(npemu_proc_t *proc)
{
    npemu_table_cleanup(proc);
    npemu_peer_cleanup(proc);
    npemu_epoch_cleanup(proc);
    pthread_mutex_destroy(&proc->lock);
}

/* Fill in the arena's header and the slot. With `ready` set, peers see this
 * process. */
static void npemu_attach_publish(npemu_proc_t *proc)
{
    proc->slot      = &proc->fabric->slots[proc->slot_index];
    proc->gen       = atomic_load(&proc->slot->gen);
    proc->owner     = npemu_owner_word(proc->slot_index, proc->gen);

    proc->shm->version = NPEMU_SHM_VERSION;
    proc->shm->slot    = proc->slot_index;
    proc->shm->gen     = proc->gen;
    proc->shm->self    = (uintptr_t)proc->shm;
    atomic_store(&proc->shm->magic, NPEMU_ARENA_MAGIC);

    proc->slot->pid      = proc->pid;
    proc->slot->arena_id = proc->arena.id;
    proc->slot->wake     = proc->wake;
    proc->slot->link     = proc->link;
    atomic_store(&proc->slot->ready, proc->gen);
}

static int npemu_attach_fabric(npemu_proc_t *proc)
{
    int ret;

    npemu_port_init(proc);
    proc->ops       = &npemu_attach_ops;
    proc->pid       = getpid();
    proc->attach_id = ++npemu_attach_count;
    proc->fabric    = npemu_fabric_attach();
    if (proc->fabric == NULL) {
        return errno;
    }

    ret = npemu_arena_init(&proc->arena);
    if (ret != 0) {
        goto err_fabric;
    }

    proc->shm = proc->arena.shm;
    ret       = npemu_mr_table_init(proc);
    if (ret != 0) {
        goto err_arena;
    }

    npemu_attach_init(proc);
    ret = npemu_thread_start(proc);
    if (ret != 0) {
        goto err_locks;
    }

    npemu_attach_publish(proc);
    ret = npemu_peer_attach(proc, proc->slot_index);
    if (ret != 0) {
        npemu_thread_stop(proc);
        goto err_locks;
    }

    /* With Yama's ptrace_scope=1 only ancestors may access our memory, unless
     * this allows it to all. Without Yama it fails, and is not needed. */
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
    return 0;

err_locks:
    npemu_attach_cleanup(proc);
    npemu_mr_table_cleanup(proc);
err_arena:
    npemu_arena_cleanup(&proc->arena);
err_fabric:
    npemu_fabric_detach(proc->fabric);
    return ret;
}

/*
 * A forked child frees buffers of its parent, and may open the device itself.
 * It must not inherit a lock that another thread of the parent holds. These are
 * all locks that do not belong to an object of the parent, in their order.
 */
static void npemu_attach_fork_prepare(void)
{
    pthread_mutex_lock(&npemu_attach_lock);
    npemu_buf_fork_prepare();
    npemu_pin_fork_prepare();
}

static void npemu_attach_fork_done(void)
{
    npemu_pin_fork_done();
    npemu_buf_fork_done();
    pthread_mutex_unlock(&npemu_attach_lock);
}

/* What has to be done once, before the first attachment. The lock is held. */
static int npemu_attach_prepare(void)
{
    if (!npemu_attach_has_handlers &&
        (pthread_atfork(npemu_attach_fork_prepare, npemu_attach_fork_done,
                        npemu_attach_fork_done) != 0)) {
        return ENOMEM;
    }

    npemu_attach_has_handlers = 1;
    return npemu_self_init();
}

npemu_proc_t *npemu_attach(void)
{
    npemu_proc_t *proc;
    int ret;

    pthread_mutex_lock(&npemu_attach_lock);
    ret  = npemu_attach_prepare();
    proc = npemu_self();
    if ((ret == 0) && (proc == NULL)) {
        npemu_log_init();
        npemu_random_init();
        proc = calloc(1, sizeof(*proc));
        ret  = (proc == NULL) ? ENOMEM : npemu_attach_fabric(proc);
        if (ret != 0) {
            free(proc);
            proc = NULL;
        }
        atomic_store(npemu_self_ptr, proc);
    }
    if (proc != NULL) {
        ++proc->refcount;
    }
    pthread_mutex_unlock(&npemu_attach_lock);

    errno = ret;
    return proc;
}

/* Peers must not find objects that the program has not destroyed. */
static void npemu_attach_abandon(npemu_proc_t *proc)
{
    unsigned i;

    for (i = 0; i < NPEMU_MAX_QPS; ++i) {
        if (atomic_load(&proc->qps[i]) != NULL) {
            atomic_store(&proc->shm->qps[i].state, IBV_QPS_RESET);
        }
    }
    atomic_store(&proc->slot->ready, 0);
    npemu_epoch_quiesce(proc, NPEMU_QUIESCE_ALL);
}

void npemu_detach(npemu_proc_t *proc)
{
    pthread_mutex_lock(&npemu_attach_lock);
    if (--proc->refcount == 0) {
        npemu_attach_abandon(proc);
        atomic_store(npemu_self_ptr, NULL);
        npemu_thread_stop(proc);
        npemu_attach_cleanup(proc);
        npemu_mr_table_cleanup(proc);
        npemu_arena_cleanup(&proc->arena);
        npemu_fabric_detach(proc->fabric);
        free(proc);
    }
    pthread_mutex_unlock(&npemu_attach_lock);
}
