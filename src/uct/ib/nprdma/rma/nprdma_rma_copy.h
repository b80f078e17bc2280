/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_RMA_COPY_H_
#define UCT_NPRDMA_RMA_COPY_H_

#include "nprdma_rma_types.h"

/* Ranges that software copies, by as many requests to the target's service as
 * necessary. They cannot fail for lack of a page, because CPUs access the
 * memory (ARCHITECTURE 3, progress). Any number of ranges may be queued on an
 * endpoint, and other requests may be sent in between. */

/* Queue a range, and send requests as far as resources allow. The caller owns
 * the range until its function is called. */
void uct_nprdma_rma_copy_add(uct_nprdma_rma_iface_t *iface,
                             uct_nprdma_rma_t *rma,
                             uct_nprdma_rma_copy_t *copy);


/* Send requests of queued ranges as long as there are resources */
unsigned uct_nprdma_rma_copy_send(uct_nprdma_rma_iface_t *iface,
                                  uct_nprdma_rma_t *rma);


/* Whether a request of a large operation may take a slot for data. Large
 * operations leave some to small ones, and an endpoint some to others. An
 * endpoint whose small operations have slots may always have one: they may be
 * held, and wait for the large operation. So may one endpoint of the
 * interface. */
int uct_nprdma_rma_copy_may_take(uct_nprdma_rma_iface_t *iface,
                                 const uct_nprdma_rma_t *rma);

#endif
