/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_service_recv.h"
#include <ucs/debug/log.h>

static void uct_nprdma_service_post_recv(uct_nprdma_service_t *service,
                                         uct_nprdma_slot_t *slot,
                                         struct ibv_recv_wr *wr,
                                         struct ibv_sge *sge,
                                         struct ibv_recv_wr *next)
{
    sge->addr   = (uintptr_t)slot->data;
    sge->length = UCT_NPRDMA_SVC_SLOT_SIZE;
    sge->lkey   = slot->lkey;
    wr->wr_id   = (uintptr_t)slot;
    wr->next    = next;
    wr->sg_list = sge;
    wr->num_sge = 1;
}

/* The caller is the executing thread, or the service has not started yet */
ucs_status_t uct_nprdma_service_fill_srq(uct_nprdma_service_t *service)
{
    struct ibv_recv_wr *bad_wr;
    struct ibv_recv_wr wr;
    struct ibv_sge sge;
    uct_nprdma_slot_t *slot;
    int ret;

    while ((slot = uct_nprdma_bounce_get(&service->rx_pool)) != NULL) {
        uct_nprdma_service_post_recv(service, slot, &wr, &sge, NULL);
        ret = ibv_post_srq_recv(service->srq, &wr, &bad_wr);
        if (ret != 0) {
            ucs_error("service: ibv_post_srq_recv() failed: %s", strerror(ret));
            return UCS_ERR_IO_ERROR;
        }
    }

    return UCS_OK;
}

/* Half of the slots have requests at once, so peers may have to wait for a free
 * slot: add slots */
int uct_nprdma_service_grow(uct_nprdma_service_t *service)
{
    if ((service->rx_pool.num_slots == service->rx_pool.max_slots) ||
        (uct_nprdma_bounce_grow(&service->rx_pool) == 0)) {
        return 0;
    }

    return uct_nprdma_service_fill_srq(service) == UCS_OK;
}

void uct_nprdma_service_refill(uct_nprdma_service_t *service, int first,
                               int last)
{
    struct ibv_recv_wr *head = NULL;
    struct ibv_recv_wr *bad_wr;
    int i, ret;

    for (i = first; i < last; ++i) {
        if (ucs_unlikely(service->wcs[i].wr_id == 0)) {
            continue; /* Parked */
        }

        uct_nprdma_service_post_recv(
                service, (uct_nprdma_slot_t*)service->wcs[i].wr_id,
                &service->refill_wrs[i], &service->refill_sges[i], head);
        head = &service->refill_wrs[i];
    }

    ret = (head == NULL) ? 0 : ibv_post_srq_recv(service->srq, head, &bad_wr);
    if (ret != 0) {
        ucs_error("service: ibv_post_srq_recv() failed: %s", strerror(ret));
    }
}

void uct_nprdma_service_repost(uct_nprdma_service_t *service,
                               uct_nprdma_slot_t *slot)
{
    if (slot != NULL) {
        uct_nprdma_bounce_put(slot);
        uct_nprdma_service_fill_srq(service);
    }
}
