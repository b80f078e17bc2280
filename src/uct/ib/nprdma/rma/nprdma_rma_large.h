/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_RMA_LARGE_H_
#define UCT_NPRDMA_RMA_LARGE_H_

#include "nprdma_rma_iface.h"

#include <ucs/datastruct/queue.h>

/*
 * Ranges that software copies, by as many requests to the target's service as
 * it takes. They never fail for want of a page: the CPUs touch the memory. Any
 * number may be queued on an endpoint, and other requests go in between.
 */

struct uct_nprdma_rma;
struct uct_nprdma_rma_wait;

typedef struct uct_nprdma_rma_large uct_nprdma_rma_large_t;

/**
 * All of a range has been copied, or part of it cannot be. The range may be
 * used again here.
 */
typedef void (*uct_nprdma_rma_large_func_t)(uct_nprdma_rma_iface_t *iface,
                                            uct_nprdma_rma_large_t *large,
                                            ucs_status_t status);

/* A range; embedded in the caller's, who fills the first seven */
struct uct_nprdma_rma_large {
    uct_nprdma_rma_large_func_t func;
    char                        *buffer;
    uint64_t                    address;    /* Remote */
    uint64_t                    key;
    size_t                      length;
    uint8_t                     is_get;
    uint8_t                     populate;   /* Of a get: the pages are wanted
                                               in their window, too */

    ucs_queue_elem_t            queue;      /* Not all of it is requested */
    size_t                      requested;  /* Bytes for which requests are
                                               sent */
    size_t                      done;       /* Bytes whose reply has come */
    ucs_status_t                status;     /* First error */
};


/** Reply to one of its requests; see nprdma_rma_reply.c. */
uct_completion_t *
uct_nprdma_rma_large_reply(uct_nprdma_rma_iface_t *iface,
                           struct uct_nprdma_rma_wait *wait, const void *data,
                           ucs_status_t *status);


/** Queue a range, and send what can be sent at once. */
void uct_nprdma_rma_large_add(uct_nprdma_rma_iface_t *iface,
                              struct uct_nprdma_rma *rma,
                              uct_nprdma_rma_large_t *large);


/**
 * Send requests of queued ranges for as long as there are resources.
 *
 * @return Number of requests sent.
 */
unsigned uct_nprdma_rma_large_send(uct_nprdma_rma_iface_t *iface,
                                   struct uct_nprdma_rma *rma);

#endif
