/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_FORK_H_
#define UCT_NPRDMA_FORK_H_

#include "uct/ib/nprdma/compat/nprdma_compat.h"

/*
 * A forked child inherits the objects of its parent's interfaces, but they
 * still belong to the parent: neither the device's queues nor the file
 * descriptors may be touched, and the threads are not there. So the functions
 * of these interfaces are exchanged in the child, which costs the parent
 * nothing: operations are refused, and closing leaves everything as it is. A
 * child may open devices of its own.
 */


/**
 * Begin to notice forks. To be called before a device is opened.
 *
 * @return UCS_OK, or UCS_ERR_NO_MEMORY with a logged reason.
 */
ucs_status_t uct_nprdma_fork_init(void);


/* An interface that a child leaves alone; part of the interface. The caller
 * fills all but the list. */
typedef struct uct_nprdma_fork_entry {
    ucs_list_link_t list;
    uct_iface_ops_t *ops;   /* exchanged in the child */
    pid_t           owner;  /* process that has opened the interface */
    /** Stop what is not called by way of ops. In the child, in its handler of
     * fork(): no locks, no memory. */
    void            (*left)(struct uct_nprdma_fork_entry *entry);
} uct_nprdma_fork_entry_t;


/**
 * Have an interface left alone by children of this process. To be called when
 * nothing can fail any more.
 *
 * @param [in] entry  Of the interface; not copied.
 */
void uct_nprdma_fork_add(uct_nprdma_fork_entry_t *entry);


/**
 * Forget an interface before it is closed.
 *
 * @param [in] entry  As given to @ref uct_nprdma_fork_add.
 */
void uct_nprdma_fork_remove(uct_nprdma_fork_entry_t *entry);

#endif
