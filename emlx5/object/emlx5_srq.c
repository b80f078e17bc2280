/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "object/emlx5_srq.h"
#include "object/emlx5_eq.h"

#include <stdlib.h>

emlx5_srq_t *emlx5_srq_create(emlx5_hca_t *hca, const emlx5_pages_t *ring)
{
    emlx5_srq_t *srq = calloc(1, sizeof(*srq));

    if ((srq == NULL) ||
        (emlx5_table_add(&hca->srqs, srq, &srq->number) != 0)) {
        free(srq);
        return NULL;
    }
    srq->hca  = hca;
    srq->ring = *ring;
    return srq;
}

void emlx5_srq_destroy(emlx5_srq_t *srq)
{
    emlx5_table_remove(&srq->hca->srqs, srq->number);
    emlx5_pages_cleanup(&srq->ring);
    free(srq);
}

void emlx5_srq_check_limit(emlx5_srq_t *srq, uint16_t posted)
{
    if ((srq->limit == 0) || ((uint16_t)(posted - srq->taken) >= srq->limit)) {
        return;
    }
    srq->limit = 0;
    emlx5_eq_post_queue(srq->hca, EMLX5_EVENT_SRQ_LIMIT, srq->number);
}
