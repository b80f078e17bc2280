/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* UCX's internal headers need this one */
#include "config.h"

#include "polls.h"

#include "uct/ib/nprdma/base/nprdma_iface.h"
#include "uct/ib/nprdma/rma/nprdma_rma_types.h"

#include <uct/base/uct_worker.h>

static struct {
    int           (*poll_cq)(struct ibv_cq *cq, int num_entries,
                             struct ibv_wc *wc);
    struct ibv_cq *others[3]; /* Of the interface */
} polls;

/* The service's own thread polls as well */
static __thread unsigned polls_count;


static int polls_poll_cq(struct ibv_cq *cq, int num_entries, struct ibv_wc *wc)
{
    polls_count += (cq != polls.others[0]) && (cq != polls.others[1]) &&
                   (cq != polls.others[2]);
    return polls.poll_cq(cq, num_entries, wc);
}

void polls_start(uct_md_h md, uct_iface_h tl_iface)
{
    struct ibv_context *context = ucs_derived_of(md,
                                                 uct_nprdma_device_t)->context;
    uct_nprdma_iface_t *iface   = ucs_derived_of(tl_iface, uct_nprdma_iface_t);

    /* Its thread uses the device while it has this */
    UCS_ASYNC_BLOCK(iface->net.super.worker->async);
    polls.others[0]      = iface->net.tx.cq;
    polls.others[1]      = iface->net.rx.cq;
    polls.others[2]      = iface->net.cm.cq;
    polls.poll_cq        = context->ops.poll_cq;
    context->ops.poll_cq = polls_poll_cq;
    UCS_ASYNC_UNBLOCK(iface->net.super.worker->async);
}

unsigned polls_of_service(void)
{
    return polls_count;
}

int polls_have_slices(uct_iface_h tl_iface)
{
    uct_nprdma_iface_t *iface = ucs_derived_of(tl_iface, uct_nprdma_iface_t);

    return iface->rma.res->ops.sched.in_flight > 0;
}

unsigned polls_idle(uct_iface_h tl_iface)
{
    return ucs_derived_of(tl_iface, uct_nprdma_iface_t)->idle.count;
}
