/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_SERVICE_RECV_H_
#define UCT_NPRDMA_SERVICE_RECV_H_

#include "nprdma_service_types.h"

/* Receive slots of a service. The executing thread calls these functions. */

ucs_status_t uct_nprdma_service_fill_srq(uct_nprdma_service_t *service);

/* Whether there are more receive slots now */
int uct_nprdma_service_grow(uct_nprdma_service_t *service);

/* Post the slots of completions again: from `first` to before `last` */
void uct_nprdma_service_refill(uct_nprdma_service_t *service, int first,
                               int last);

/* Post a slot of a parked request again. NULL: there is none. */
void uct_nprdma_service_repost(uct_nprdma_service_t *service,
                               uct_nprdma_slot_t *slot);

#endif
