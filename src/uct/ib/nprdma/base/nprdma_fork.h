/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_FORK_H_
#define UCT_NPRDMA_FORK_H_

#include "uct/ib/nprdma/compat/nprdma_compat.h"
#include "uct/ib/nprdma/net/nprdma_device.h"

/* A forked child inherits the objects of its parent's interfaces, but they
 * still belong to the parent: the child must not access the device's queues or
 * the file descriptors, and the threads do not exist in it. Therefore the child
 * replaces the functions of these interfaces: operations are refused, and
 * closing does nothing. A child may open devices of its own (ARCHITECTURE 5,
 * fork). */


/* Install the handlers of fork() before a device is opened; later calls do
 * nothing */
ucs_status_t uct_nprdma_fork_init(void);


/* For uct_nprdma_fork_is_child(): does what the handler of fork() does */
int uct_nprdma_fork_missed(void);


/* Whether this is a child by clone(), in which no handler of fork() has run.
 * Called where the interfaces of the parent are closed, and where operations
 * wait: those that are posted before are refused by the device. Nonzero in the
 * first call: the caller does what the functions do that are in place of its
 * own from now on. It is nothing, or UCS_ERR_UNSUPPORTED. */
static UCS_F_ALWAYS_INLINE int uct_nprdma_fork_is_child(void)
{
    return ucs_unlikely(*uct_nprdma_fork_generation == 0) &&
           uct_nprdma_fork_missed();
}


/* An interface that a child must not use. It fills all fields but the list. */
typedef struct uct_nprdma_fork_entry {
    ucs_list_link_t list;
    uct_iface_ops_t *ops;   /* replaced in the child */
    pid_t           owner;  /* process that opened the interface */
    /* Stop functions that are not called through ops. Called in the child's
     * handler of fork(): takes no lock and allocates nothing. */
    void            (*left)(struct uct_nprdma_fork_entry *entry);
} uct_nprdma_fork_entry_t;


/* Called when the initialization of the interface cannot fail any more */
void uct_nprdma_fork_add(uct_nprdma_fork_entry_t *entry);


void uct_nprdma_fork_remove(uct_nprdma_fork_entry_t *entry);



/* Find an interface that is open and belongs to this process. `match` is called
 * with a lock held, so it opens and closes none. */
int uct_nprdma_fork_find(int (*match)(const uct_nprdma_fork_entry_t *entry,
                                      void *arg),
                         void *arg);

#endif
