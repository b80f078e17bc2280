/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "engine/npemu_cq.h"
#include "base/npemu_limits.h"
#include "engine/npemu_cqp.h"
#include "engine/npemu_dma.h"
#include "engine/npemu_qp.h"
#include "fabric/npemu_epoch.h"
#include "fabric/npemu_event_fd.h"
#include "fabric/npemu_rlock.h"
#include "npemu.h"

#include <endian.h>
#include <string.h>

/* --- polling ---------------------------------------------------------------*/

/* Offset of an element in a receive. */
static uint32_t npemu_cq_sge_offset(const npemu_rq_wqe_t *wqe, uint32_t index)
{
    uint32_t i, offset = 0;

    for (i = 0; i < index; ++i) {
        offset += wqe->sge[i].length;
    }
    return offset;
}

/* npemu_cq_place() for memory that IOMMU tables cover. */
static __attribute__((noinline)) enum ibv_wc_status
npemu_cq_place_tabled(npemu_rq_t *rq, const npemu_rq_wqe_t *wqe, uint32_t skip,
                      const void *data, uint32_t length)
{
    npemu_peer_t *self = npemu_peer_self(rq->proc);
    npemu_map_miss_t miss;
    npemu_dma_list_t list;

    if ((npemu_dma_map_recv(self, rq->pd, wqe, skip, length, &list, &miss) !=
         NPEMU_MAP_OK) ||
        (npemu_dma_copy_local(rq->proc, &list, (void*)data, 1) !=
         NPEMU_DMA_OK)) {
        return IBV_WC_LOC_PROT_ERR;
    }
    return IBV_WC_SUCCESS;
}

/* Copy bytes to the buffers of a receive. Its keys were valid when it was
 * posted; they may have been deregistered since. */
static enum ibv_wc_status
npemu_cq_place(npemu_rq_t *rq, const npemu_rq_wqe_t *wqe, uint32_t skip,
               const void *data, uint32_t left)
{
    const npemu_mr_shm_t *mr;
    const struct ibv_sge *sge;
    uint32_t i, length;
    uint64_t va;

    for (i = 0; (left > 0) && (i < wqe->num_sge); ++i) {
        sge = &wqe->sge[i];
        if (skip >= sge->length) {
            skip -= sge->length;
            continue;
        }

        length = sge->length - skip;
        length = (length < left) ? length : left;
        mr     = npemu_key_find(rq->proc->shm, sge->lkey, rq->pd,
                                IBV_ACCESS_LOCAL_WRITE, sge->addr + skip,
                                length, &va);
        if (npemu_unlikely((mr == NULL) ||
                           (mr->access & IBV_ACCESS_ON_DEMAND))) {
            return IBV_WC_LOC_PROT_ERR;
        }

        if (npemu_unlikely(mr->view != NPEMU_VIEW_NONE)) {
            return npemu_cq_place_tabled(rq, wqe,
                                         npemu_cq_sge_offset(wqe, i) + skip,
                                         data, left);
        }

        memcpy((void*)(uintptr_t)va, data, length);
        data  = (const uint8_t*)data + length;
        left -= length;
        skip  = 0;
    }
    return IBV_WC_SUCCESS;
}

/* IBA 8.3.3: the payload length of a GRH is that of BTH, DETH, immediate data,
 * padded payload and invariant CRC. */
static uint16_t npemu_cq_grh_paylen(const npemu_cqe_t *cqe)
{
    uint32_t payload = cqe->byte_len - sizeof(struct ibv_grh);

    return 12 + 8 + ((cqe->wc_flags & IBV_WC_WITH_IMM) ? 4 : 0) +
           ((payload + 3) & ~3u) + 4;
}

/* The first 40 bytes of a UD receive, if there was a global route. */
static enum ibv_wc_status npemu_cq_place_grh(npemu_rq_t *rq,
                                             const npemu_rq_wqe_t *wqe,
                                             const npemu_cqe_t *cqe)
{
    struct ibv_grh grh = {.next_hdr = 0x1b, .hop_limit = cqe->ud.hop_limit};

    grh.version_tclass_flow = htobe32((6u << 28) | cqe->ud.flow);
    grh.paylen              = htobe16(npemu_cq_grh_paylen(cqe));
    npemu_gid(&grh.sgid);
    grh.dgid = grh.sgid;
    return npemu_cq_place(rq, wqe, 0, &grh, sizeof(grh));
}

/* Place eager payload, unless the completion has failed already; the first
 * error is reported. In an epoch: dereg_mr in another thread waits for this as
 * it waits for initiators. */
static void npemu_cq_place_recv(npemu_cq_t *cq, npemu_qp_t *qp,
                                const npemu_rq_wqe_t *wqe,
                                const npemu_cqe_t *cqe, struct ibv_wc *wc)
{
    const uint8_t *data = cqe->data;
    uint32_t skip       = 0;

    npemu_epoch_enter(cq->proc, cq->proc->slot_index, cq->proc->gen);
    if (qp->super.qp_type == IBV_QPT_UD) {
        skip = sizeof(struct ibv_grh);
        if ((wc->wc_flags & IBV_WC_GRH) && (wc->status == IBV_WC_SUCCESS)) {
            wc->status = npemu_cq_place_grh(qp->rq, wqe, cqe);
        }
    }
    if ((cqe->data_len > 0) && (wc->status == IBV_WC_SUCCESS)) {
        if (cqe->data_len > NPEMU_CQE_INLINE) {
            data = cq->data + cqe->data_off;
        }
        wc->status = npemu_cq_place(qp->rq, wqe, skip, data, cqe->data_len);
    }
    npemu_epoch_exit(cq->proc);
}

static void npemu_cq_take_recv(npemu_cq_t *cq, npemu_qp_t *qp,
                               const npemu_cqe_t *cqe, struct ibv_wc *wc)
{
    npemu_rq_t *rq      = qp->rq;
    npemu_rq_wqe_t *wqe = npemu_rq_own_wqe(rq, cqe->index);

    wc->wr_id = wqe->wr_id;
    wc->sl    = cqe->ud.sl;
    if ((cqe->data_len > 0) || (wc->wc_flags & IBV_WC_GRH)) {
        npemu_cq_place_recv(cq, qp, wqe, cqe, wc);
    }
    if (npemu_unlikely(wc->status != cqe->status)) {
        /* The sender has seen success, but this QP fails as on a NIC */
        npemu_qp_fail_remote(cq->proc, npemu_peer_self(cq->proc),
                             npemu_qpn_index(cqe->qpn), 0);
    }
    npemu_rq_free(rq, cqe->index);
}

/* Returns 1, or 0 if the QP of the entry does not exist any more. */
static int npemu_cq_take(npemu_cq_t *cq, const npemu_cqe_t *cqe,
                         struct ibv_wc *wc)
{
    npemu_cqe_kind_t kind;
    npemu_qp_t *qp;

    kind = atomic_load_explicit(&cqe->kind, memory_order_relaxed);
    if (npemu_unlikely(kind == NPEMU_CQE_SKIP)) {
        return 0;
    }

    wc->status         = cqe->status;
    wc->opcode         = cqe->opcode;
    wc->vendor_err     = cqe->vendor_err;
    wc->byte_len       = cqe->byte_len;
    wc->imm_data       = cqe->imm_data;
    wc->qp_num         = cqe->qpn;
    wc->src_qp         = cqe->src_qp;
    wc->wc_flags       = cqe->wc_flags;
    wc->pkey_index     = 0;
    wc->slid           = NPEMU_LID;
    wc->sl             = 0;
    wc->dlid_path_bits = 0;

    /* In general the QP exists: its entries become SKIP when it is destroyed.
     * The load acquires, so that the QP's creation is ordered before this even
     * though the peer that wrote the entry is another process */
    qp = atomic_load_explicit(&cq->proc->qps[npemu_qpn_index(cqe->qpn)],
                              memory_order_acquire);
    if (npemu_unlikely(qp == NULL)) {
        return 0;
    }
    if (kind == NPEMU_CQE_SEND) {
        wc->wr_id = cqe->wr_id;
        atomic_store_explicit(&qp->sq_done, cqe->index, memory_order_release);
    } else {
        npemu_cq_take_recv(cq, qp, cqe, wc);
    }
    return 1;
}

static int npemu_cq_poll_locked(npemu_cq_t *cq, int num_entries,
                                struct ibv_wc *wc)
{
    uint32_t pos = atomic_load_explicit(&cq->head, memory_order_relaxed);
    int count    = 0;
    npemu_cqe_t *cqe;

    while (count < num_entries) {
        cqe = &cq->cqes[pos & cq->mask];
        if (atomic_load_explicit(&cqe->seq, memory_order_acquire) !=
            pos + 1) {
            break;
        }

        count += npemu_cq_take(cq, cqe, &wc[count]);
        if (cqe->data_len > NPEMU_CQE_INLINE) {
            atomic_store_explicit(&cq->shm->data_head, cqe->data_end,
                                  memory_order_release);
        }
        ++pos;
    }

    atomic_store_explicit(&cq->head, pos, memory_order_relaxed);
    atomic_store_explicit(&cq->shm->head, pos, memory_order_release);
    return count;
}

static inline int npemu_cq_is_empty(npemu_cq_t *cq)
{
    uint32_t pos = atomic_load_explicit(&cq->head, memory_order_relaxed);

    return atomic_load_explicit(&cq->cqes[pos & cq->mask].seq,
                                memory_order_relaxed) != pos + 1;
}

int npemu_poll_cq(struct ibv_cq *ibcq, int num_entries, struct ibv_wc *wc)
{
    npemu_cq_t *cq = npemu_cq(ibcq);
    int count;

    if (npemu_unlikely(cq->proc != npemu_self())) {
        return -1;
    }

    if (npemu_unlikely(atomic_load_explicit(&cq->waits.count,
                                            memory_order_relaxed) != 0)) {
        npemu_waits_progress(&cq->waits);
    }

    if (npemu_cq_is_empty(cq)) {
        return 0;
    }

    npemu_spin_lock(&cq->lock);
    count = npemu_cq_poll_locked(cq, num_entries, wc);
    npemu_spin_unlock(&cq->lock);
    return count;
}

/* --- notification ----------------------------------------------------------*/

/*
 * Is there a completion that has not been polled and raises an event of this
 * kind? The lock of producers is held, so entries that are polled meanwhile are
 * not reused. The lock of consumers must not be taken as well: it is held while
 * an epoch is entered, which may take a mutex that a producer holds.
 */
static int npemu_cq_has_cause(npemu_cq_t *cq, int solicited_only)
{
    uint32_t pos = atomic_load(&cq->head);
    npemu_cqe_t *cqe;

    for (;; ++pos) {
        cqe = &cq->cqes[pos & cq->mask];
        if (atomic_load_explicit(&cqe->seq, memory_order_acquire) !=
            pos + 1) {
            return 0;
        }

        if ((atomic_load_explicit(&cqe->kind, memory_order_relaxed) !=
             NPEMU_CQE_SKIP) && (!solicited_only || cqe->solicited)) {
            return 1;
        }
    }
}

int npemu_req_notify_cq(struct ibv_cq *ibcq, int solicited_only)
{
    npemu_cq_t *cq = npemu_cq(ibcq);
    npemu_event_fd_t *event;
    int fire;

    if (cq->proc != npemu_self()) {
        return NPEMU_ERR_FORKED;
    }

    if (ibcq->channel == NULL) {
        return 0;
    }

    /* Completions that have not been polled raise an event at once, as with
     * mlx5: programs poll the CQ before they arm it, not after */
    npemu_cqp_lock(cq->proc, cq->shm);
    fire = npemu_cq_has_cause(cq, solicited_only);
    if (fire) {
        cq->shm->armed = 0;
    } else if (!solicited_only) {
        cq->shm->armed = NPEMU_CQ_ARMED;
    } else if (cq->shm->armed != NPEMU_CQ_ARMED) {
        cq->shm->armed = NPEMU_CQ_ARMED | NPEMU_CQ_SOLICITED;
    }
    npemu_rlock_release(&cq->shm->lock);

    if (fire) {
        event = &cq->proc->shm->channels[cq->shm->channel - 1].event;
        atomic_fetch_add(&cq->shm->raised, 1);
        npemu_event_fd_signal(event, event->signal_fd);
    } else {
        npemu_waits_sleep(&cq->waits, cq->proc);
    }
    return 0;
}

/* --- entries of a QP -------------------------------------------------------*/

void npemu_cq_clean(npemu_cq_t *cq, uint32_t qpn)
{
    npemu_cqe_t *cqe;
    npemu_qp_t *qp;
    uint32_t pos;

    npemu_spin_lock(&cq->lock);
    qp   = atomic_load(&cq->proc->qps[npemu_qpn_index(qpn)]);
    pos  = atomic_load(&cq->head);
    for (;; ++pos) {
        cqe = &cq->cqes[pos & cq->mask];
        if (atomic_load_explicit(&cqe->seq, memory_order_acquire) !=
            pos + 1) {
            break;
        }

        if ((cqe->qpn == qpn) && (cqe->kind != NPEMU_CQE_SKIP)) {
            if (cqe->kind == NPEMU_CQE_RECV) {
                npemu_rq_free(qp->rq, cqe->index);
            }
            cqe->kind = NPEMU_CQE_SKIP;
        }
    }
    npemu_spin_unlock(&cq->lock);
}

int npemu_cq_refers(npemu_cq_t *cq, uint32_t qpn, uint32_t index)
{
    npemu_cqe_t *cqe;
    uint32_t pos;
    int found = 0;

    npemu_spin_lock(&cq->lock);
    for (pos = atomic_load(&cq->head); !found; ++pos) {
        cqe = &cq->cqes[pos & cq->mask];
        if (atomic_load_explicit(&cqe->seq, memory_order_acquire) !=
            pos + 1) {
            break;
        }
        found = (cqe->kind == NPEMU_CQE_RECV) && (cqe->qpn == qpn) &&
                (cqe->index == index);
    }
    npemu_spin_unlock(&cq->lock);
    return found;
}

/* --- retries ---------------------------------------------------------------*/

uint64_t npemu_cq_retry_all(npemu_proc_t *proc)
{
    uint64_t first = UINT64_MAX;
    uint64_t when;
    npemu_link_t *link;

    pthread_mutex_lock(&proc->lock);
    for (link = proc->cqs.next; link != &proc->cqs; link = link->next) {
        when  = npemu_waits_progress_all(&npemu_container_of(link, npemu_cq_t,
                                                             link)->waits);
        first = (when < first) ? when : first;
    }
    pthread_mutex_unlock(&proc->lock);
    return first;
}

uint64_t npemu_cq_retries(struct ibv_cq *cq)
{
    return atomic_load_explicit(&npemu_cq(cq)->waits.retries,
                                memory_order_relaxed);
}

uint64_t npemu_cq_pauses(struct ibv_cq *cq)
{
    return atomic_load_explicit(&npemu_cq(cq)->waits.pauses,
                                memory_order_relaxed);
}
