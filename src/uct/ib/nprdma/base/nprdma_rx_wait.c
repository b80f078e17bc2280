/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_rx_wait.h"
#include "uct/ib/nprdma/net/nprdma_cm.h"
#include "uct/ib/nprdma/net/nprdma_responder.h"
#include "uct/ib/nprdma/rma/nprdma_rma_flush.h"

#include <ucs/debug/log.h>
#include <ucs/debug/memtrack_int.h>

#include <endian.h>

/* Most messages of a conforming endpoint that wait */
#define UCT_NPRDMA_RX_WAIT_MAX  (2 * UCT_NPRDMA_RMA_MAX_BEHIND)

/* A message that waits */
typedef struct uct_nprdma_rx_wait {
    ucs_queue_elem_t queue;
    uint64_t         follows;
    uint32_t         length;  /* Bytes of data */
    uint8_t          has_follows;
    uint8_t          am_id;
    char             data[] UCS_V_ALIGNED(8);
} uct_nprdma_rx_wait_t;


static uint64_t uct_nprdma_rx_wait_follows(const struct ibv_wc *wc,
                                           const uct_nprdma_am_hdr_t *hdr)
{
    return ((uint64_t)hdr->follows << UCT_NPRDMA_AM_FOLLOWS_SHIFT) |
           be32toh(wc->imm_data);
}

/* Check whether the requests that a message follows have been executed. If they
 * have only arrived, execute them. */
static int uct_nprdma_rx_wait_is_ready(uct_nprdma_service_t *service,
                                       uct_nprdma_executed_t *executed,
                                       uint64_t follows)
{
    if (uct_nprdma_am_may_follow(follows,
                                 uct_nprdma_executed_count(executed))) {
        return 1;
    }

    uct_nprdma_service_progress(service);
    return uct_nprdma_am_may_follow(follows,
                                    uct_nprdma_executed_count(executed));
}

static void uct_nprdma_rx_wait_free(uct_nprdma_executed_t *executed)
{
    uct_nprdma_rx_wait_t *wait;

    ucs_queue_for_each_extract(wait, &executed->waiting, queue, 1) {
        ucs_free(wait);
    }
    executed->num_waiting = 0;
}

/* Drop the messages of an endpoint, which is in the list */
static void uct_nprdma_rx_wait_drop(uct_nprdma_executed_t *executed)
{
    uct_nprdma_rx_wait_free(executed);
    ucs_list_del(&executed->list);
    uct_nprdma_executed_leave(executed);
}

static void uct_nprdma_rx_wait_add(uct_nprdma_net_iface_t *iface,
                                   uct_nprdma_executed_t *executed,
                                   const struct ibv_wc *wc,
                                   const uct_nprdma_am_hdr_t *hdr)
{
    uct_nprdma_rx_wait_t *wait = NULL;

    if (executed->num_waiting < UCT_NPRDMA_RX_WAIT_MAX) {
        wait = ucs_malloc(sizeof(*wait) + hdr->length, "nprdma_rx_wait");
    }
    if (executed->num_waiting == 0) {
        uct_nprdma_executed_join(executed);
        ucs_list_add_tail(&iface->rx.waiting, &executed->list);
    }
    if (wait == NULL) {
        /* No message behind a lost one is delivered. Some may have arrived */
        ucs_error("a message of a peer that follows requests cannot be kept "
                  "(%u wait), closing the connection", executed->num_waiting);
        uct_nprdma_rx_wait_free(executed);
        executed->is_lost = 1;
        uct_nprdma_responder_fin(iface, wc->qp_num);
        return;
    }

    wait->has_follows = !!(wc->wc_flags & IBV_WC_WITH_IMM);
    wait->follows     = uct_nprdma_rx_wait_follows(wc, hdr);
    wait->am_id       = hdr->am_id;
    wait->length      = hdr->length;
    memcpy(wait->data, hdr + 1, hdr->length);
    ucs_queue_push(&executed->waiting, &wait->queue);
    ++executed->num_waiting;
    ++iface->stats->am_rx_waited;
}

static void uct_nprdma_rx_wait_deliver(uct_nprdma_net_iface_t *iface,
                                       uct_nprdma_executed_t *executed)
{
    uct_nprdma_rx_wait_t *wait =
            ucs_queue_pull_elem_non_empty(&executed->waiting,
                                          uct_nprdma_rx_wait_t, queue);

    --executed->num_waiting;
    uct_iface_trace_am(&iface->super, UCT_AM_TRACE_TYPE_RECV, wait->am_id,
                       wait->data, wait->length, "RX: AM that waited");
    ++iface->stats->am_rx;
    iface->stats->am_bytes_rx += wait->length;
    uct_iface_invoke_am(&iface->super, wait->am_id, wait->data,
                        wait->length, 0);
    ucs_free(wait);
}

static unsigned uct_nprdma_rx_wait_run(uct_nprdma_net_iface_t *iface,
                                       uct_nprdma_executed_t *executed)
{
    unsigned count = 0;
    const uct_nprdma_rx_wait_t *wait;
    int is_ended;

    if (executed->is_lost && (uct_nprdma_cm_hint(&iface->cm.num_dying) > 0)) {
        return 0; /* Its queue pair may have received more */
    }

    while (executed->num_waiting > 0) {
        /* In this order: what was executed before the end counts */
        is_ended = atomic_load_explicit(&executed->is_ended,
                                        memory_order_acquire);
        wait     = ucs_queue_head_elem_non_empty(&executed->waiting,
                                                 uct_nprdma_rx_wait_t, queue);
        if (wait->has_follows &&
            !uct_nprdma_am_may_follow(wait->follows,
                                      uct_nprdma_executed_count(executed))) {
            if (is_ended) {
                ucs_debug("iface %p: dropped %u messages behind requests of a "
                          "peer that is gone", iface, executed->num_waiting);
                break;
            }
            return count;
        }

        uct_nprdma_rx_wait_deliver(iface, executed);
        ++count;
    }

    uct_nprdma_rx_wait_drop(executed);
    return count;
}

int uct_nprdma_rx_wait_check(uct_nprdma_net_iface_t *iface,
                             uct_nprdma_service_t *service,
                             const struct ibv_wc *wc,
                             const uct_nprdma_am_hdr_t *hdr)
{
    int has_follows = !!(wc->wc_flags & IBV_WC_WITH_IMM);
    uct_nprdma_executed_t *executed;
    int is_ready;

    executed = uct_nprdma_responder_executed(iface, wc->qp_num);
    if (executed == NULL) {
        return 1;
    }

    if (executed->is_lost) {
        uct_nprdma_executed_leave(executed);
        return 0;
    }

    if (executed->num_waiting > 0) {
        /* The peer may know by now that their requests have been executed, and
         * send as many again */
        uct_nprdma_rx_wait_run(iface, executed);
    }
    is_ready = (executed->num_waiting == 0) &&
               (!has_follows ||
                uct_nprdma_rx_wait_is_ready(
                        service, executed,
                        uct_nprdma_rx_wait_follows(wc, hdr)));
    if (!is_ready) {
        uct_nprdma_rx_wait_add(iface, executed, wc, hdr);
    }
    uct_nprdma_executed_leave(executed);
    return is_ready;
}

unsigned uct_nprdma_rx_wait_progress(uct_nprdma_net_iface_t *iface)
{
    unsigned count = 0;
    uct_nprdma_executed_t *executed, *tmp;

    ucs_list_for_each_safe(executed, tmp, &iface->rx.waiting, list) {
        count += uct_nprdma_rx_wait_run(iface, executed);
    }
    return count;
}

void uct_nprdma_rx_wait_cleanup(uct_nprdma_net_iface_t *iface)
{
    uct_nprdma_executed_t *executed, *tmp;

    ucs_list_for_each_safe(executed, tmp, &iface->rx.waiting, list) {
        uct_nprdma_rx_wait_drop(executed);
    }
}
