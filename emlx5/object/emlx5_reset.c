/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "object/emlx5_reset.h"
#include "base/emlx5_log.h"
#include "object/emlx5_cq.h"
#include "object/emlx5_eq.h"
#include "object/emlx5_mkey.h"
#include "object/emlx5_qp.h"
#include "object/emlx5_srq.h"

/* IBA 14.2.5.6: communication management, client reregistration */
static const uint32_t emlx5_cap_mask = 0x02010000;

/* State of the driver's interface. It is disabled until the driver gives the
 * address of its command queue. So a driver notices a reset that it has not
 * made itself, and learns when one that it has asked for is complete. */
enum { EMLX5_INTERFACE_DISABLED = 1 };

static void emlx5_reset_numbers(emlx5_table_t *numbers)
{
    uint32_t number = 0;

    while (emlx5_table_next(numbers, &number) != NULL) {
        emlx5_table_remove(numbers, number);
    }
}

void emlx5_reset(emlx5_hca_t *hca)
{
    uint32_t number;
    void *object;

    for (number = 0; (object = emlx5_table_next(&hca->qps, &number)) != NULL;) {
        emlx5_qp_destroy(object);
    }
    for (number = 0;
         (object = emlx5_table_next(&hca->srqs, &number)) != NULL;) {
        emlx5_srq_destroy(object);
    }
    for (number = 0; (object = emlx5_table_next(&hca->cqs, &number)) != NULL;) {
        emlx5_cq_destroy(object);
    }
    for (number = 0; (object = emlx5_table_next(&hca->eqs, &number)) != NULL;) {
        emlx5_eq_destroy(object);
    }
    for (number = 0;
         (object = emlx5_table_next(&hca->mkeys, &number)) != NULL;) {
        emlx5_mkey_destroy(object);
    }
    emlx5_reset_numbers(&hca->pds);
    emlx5_reset_numbers(&hca->tds);
    emlx5_reset_numbers(&hca->xrcds);
    emlx5_reset_numbers(&hca->uars);
    emlx5_reset_numbers(&hca->counters);
    emlx5_queue_clear(&hca->queue);
    emlx5_dma_reset(&hca->dma);
    hca->cmdq       = 0;
    hca->cmdq_high  = 0;
    hca->cmdq_state = EMLX5_INTERFACE_DISABLED;
    hca->cmd_eqn    = 0;
    hca->issi       = 0;
    hca->caps_are_set = 0;
    hca->cap_mask   = emlx5_cap_mask;
    hca->resetting  = 0;
    emlx5_hca_set_bus_master(hca, hca->bus_master);
}

static void emlx5_reset_work(emlx5_work_t *work)
{
    emlx5_reset(emlx5_container_of(work, emlx5_hca_t, reset_work));
}

void emlx5_reset_later(emlx5_hca_t *hca)
{
    emlx5_event("port %u: reset", hca->lid);
    hca->resetting   = 1;
    hca->dma.enabled = 0;
    emlx5_queue_clear(&hca->queue);
    emlx5_work_init(&hca->reset_work, emlx5_reset_work);
    emlx5_work_add(&hca->queue, &hca->reset_work);
}
