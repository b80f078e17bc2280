/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "engine/npemu_send.h"
#include "base/npemu_limits.h"
#include "engine/npemu_cqp.h"
#include "engine/npemu_dma.h"
#include "fabric/npemu_epoch.h"
#include "fabric/npemu_rlock.h"

#include <errno.h>
#include <string.h>

/* SENDs up to this size are eager: their payload is copied to the target's CQ.
 * Two copies by memcpy cost less than one by a system call. Many messages are a
 * page with a header before it. */
#define NPEMU_EAGER_MAX (4096 + 128)

/* SENDs up to this size are eager if the receive is outside of the target's
 * arena, after a check of its keys: two copies still cost less, for two pages
 * with a header. */
#define NPEMU_EAGER_CHECKED_MAX (8192 + 256)

/* A work request that is executed. */
typedef struct {
    npemu_qp_t         *qp;
    const npemu_wqe_t  *wqe;
    npemu_proc_t       *proc;
    npemu_peer_t       *peer;    /* process of the target */
    npemu_qp_shm_t     *remote;  /* the target */
    uint32_t           index;    /* its index there */
    uint32_t           gen;      /* of its slot, UD */
    npemu_dma_list_t   local;
    npemu_map_miss_t   miss;     /* with NPEMU_EXEC_MAP */
    enum ibv_wc_status status;
} npemu_wr_t;

static int npemu_wr_is_ud(const npemu_wr_t *wr)
{
    return wr->qp->super.qp_type == IBV_QPT_UD;
}

/* The responder refuses the request: its QP goes to ERR, and its process raises
 * the events. */
static npemu_exec_t npemu_wr_refused(npemu_wr_t *wr, uint32_t events,
                                     enum ibv_wc_status status)
{
    npemu_qp_fail_remote(wr->proc, wr->peer, wr->index, events);
    wr->status = status;
    return NPEMU_EXEC_DONE;
}

static npemu_exec_t npemu_wr_done(npemu_wr_t *wr, enum ibv_wc_status status)
{
    wr->status = status;
    return NPEMU_EXEC_DONE;
}

/* What a failed copy means to the requester of a one-sided operation. */
static npemu_exec_t npemu_wr_dma_result(npemu_wr_t *wr,
                                        npemu_dma_status_t status)
{
    switch (status) {
    case NPEMU_DMA_OK:
        return npemu_wr_done(wr, IBV_WC_SUCCESS);
    case NPEMU_DMA_LOCAL:
        return npemu_wr_done(wr, IBV_WC_LOC_PROT_ERR);
    case NPEMU_DMA_REMOTE:
        return npemu_wr_refused(wr, NPEMU_EV_QP_ACCESS_ERR, IBV_WC_REM_OP_ERR);
    case NPEMU_DMA_DENIED:
        return npemu_wr_done(wr, IBV_WC_REM_OP_ERR);
    case NPEMU_DMA_GONE:
    default:
        return npemu_wr_done(wr, IBV_WC_RETRY_EXC_ERR);
    }
}

/* --- target ----------------------------------------------------------------*/

/* A responder that is not connected to this QP does not answer: the transport
 * timer decides. A different starting PSN belongs to an earlier or later
 * connection under the same QPN. One that does not exist, or whose process has
 * ended, never answers: it is not waited for. */
static npemu_exec_t npemu_wr_target_rc(npemu_wr_t *wr)
{
    npemu_qp_t *qp = wr->qp;
    uint32_t state;

    wr->peer   = qp->peer;
    wr->remote = qp->remote;
    wr->index  = qp->remote_index;
    if (npemu_unlikely((wr->peer == NULL) || qp->unroutable)) {
        return qp->is_orphan ? npemu_wr_done(wr, IBV_WC_RETRY_EXC_ERR) :
                               NPEMU_EXEC_RETRY;
    }

    if (npemu_unlikely(!npemu_peer_is_alive(wr->peer))) {
        return npemu_wr_done(wr, IBV_WC_RETRY_EXC_ERR);
    }

    if (npemu_unlikely(atomic_load_explicit(&wr->peer->denied,
                                            memory_order_relaxed))) {
        return npemu_wr_done(wr, IBV_WC_REM_OP_ERR);
    }

    if (npemu_unlikely(wr->remote->type == NPEMU_QPT_NONE)) {
        return npemu_wr_done(wr, IBV_WC_RETRY_EXC_ERR);
    }

    state = atomic_load(&wr->remote->state);
    if (npemu_unlikely(((state != IBV_QPS_RTS) && (state != IBV_QPS_RTR)) ||
                       (wr->remote->type != IBV_QPT_RC) ||
                       (wr->remote->dest_qpn != qp->super.qp_num) ||
                       (wr->remote->rq_psn != qp->shm->sq_psn))) {
        return NPEMU_EXEC_RETRY;
    }

    wr->status = IBV_WC_SUCCESS;
    return NPEMU_EXEC_DONE;
}

/* Returns 1, or 0 if the datagram is lost, without an error as on a network. */
static int npemu_wr_target_ud(npemu_wr_t *wr, npemu_exec_t *result)
{
    const npemu_wqe_t *wqe = wr->wqe;
    unsigned slot          = npemu_qpn_slot(wqe->ud.qpn);
    uint32_t state, qkey;

    wr->status = IBV_WC_SUCCESS;
    *result    = NPEMU_EXEC_DONE;
    if (wqe->ud.av.unroutable || (wqe->ud.qpn >> NPEMU_QPN_BITS)) {
        return 0;
    }

    wr->peer = npemu_peer_find(wr->proc, slot);
    if (npemu_unlikely((wr->peer == NULL) || (wr->peer->gen != wr->gen) ||
                       !npemu_peer_is_alive(wr->peer))) {
        if (npemu_slot_is_alive(&wr->proc->fabric->slots[slot],
                                atomic_load(&wr->proc->fabric->slots[slot]
                                                     .gen))) {
            *result = NPEMU_EXEC_ATTACH;
        }
        return 0;
    }

    wr->index  = npemu_qpn_index(wqe->ud.qpn);
    wr->remote = &wr->peer->shm->qps[wr->index];
    state      = atomic_load(&wr->remote->state);
    /* IBA 10.2.5: the high bit asks for the QP's own Q_Key */
    qkey       = (wqe->ud.qkey & 0x80000000u) ?
                         atomic_load(&wr->qp->shm->qkey) : wqe->ud.qkey;
    return ((state == IBV_QPS_RTS) || (state == IBV_QPS_RTR) ||
            (state == IBV_QPS_SQE)) &&
           (wr->remote->type == IBV_QPT_UD) &&
           (atomic_load(&wr->remote->qkey) == qkey) &&
           !atomic_load(&wr->peer->denied);
}

/* --- two-sided -------------------------------------------------------------*/

static void npemu_wr_fill_recv(npemu_wr_t *wr, npemu_cqe_t *cqe,
                               uint32_t index, enum ibv_wc_status status)
{
    const npemu_wqe_t *wqe = wr->wqe;
    int is_write           = (wqe->opcode == IBV_WR_RDMA_WRITE_WITH_IMM);

    cqe->status     = status;
    cqe->qpn        = (wr->peer->slot_index << NPEMU_QP_BITS) | wr->index;
    cqe->src_qp     = wr->qp->super.qp_num;
    cqe->vendor_err = 0;
    cqe->index      = index;
    cqe->opcode     = is_write ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV;
    cqe->byte_len   = wr->local.length;
    cqe->wc_flags   = 0;
    cqe->imm_data   = wqe->imm_data;
    cqe->ud         = (npemu_ud_t){0};
    if (is_write || (wqe->opcode == IBV_WR_SEND_WITH_IMM)) {
        cqe->wc_flags |= IBV_WC_WITH_IMM;
    }
    if (npemu_wr_is_ud(wr)) {
        cqe->byte_len += sizeof(struct ibv_grh);
        cqe->wc_flags |= wqe->ud.av.is_global ? IBV_WC_GRH : 0;
        cqe->ud        = wqe->ud.av.path;
    }
}

static npemu_exec_t npemu_wr_unpop(npemu_wr_t *wr,
                                   const npemu_rq_entry_t *entry,
                                   npemu_exec_t result)
{
    npemu_rq_unpop(wr->proc, wr->peer->shm,
                   npemu_arena_ptr(wr->peer->shm, wr->remote->rq), entry);
    return result;
}

/* The receive's completion is lost: the CQ is in error, and the QP with it. */
static npemu_exec_t npemu_wr_overrun(npemu_wr_t *wr)
{
    npemu_cq_shm_t *cq = npemu_arena_ptr(wr->peer->shm, wr->remote->rcq);

    atomic_fetch_or(&cq->events, NPEMU_EV_CQ_ERR);
    atomic_store(&wr->peer->shm->other_events, 1);
    return npemu_wr_refused(wr, NPEMU_EV_QP_FATAL, IBV_WC_REM_OP_ERR);
}

/* Complete the receive, with `eager` together with the payload. Returns
 * NPEMU_CQ_NO_DATA if the CQ has no room for that. */
static npemu_cq_status_t npemu_wr_complete_recv(npemu_wr_t *wr, uint32_t index,
                                                enum ibv_wc_status status,
                                                int eager)
{
    npemu_cq_shm_t *cq = npemu_arena_ptr(wr->peer->shm, wr->remote->rcq);
    npemu_cq_status_t ret;
    npemu_cqe_t *cqe;
    uint8_t *data;

    ret = npemu_cqp_begin(wr->proc, wr->peer->shm, cq, NPEMU_CQE_RECV, 0,
                          eager ? wr->local.length : 0, &cqe, &data);
    if (npemu_unlikely(ret != NPEMU_CQ_OK)) {
        return ret;
    }

    if (eager) {
        npemu_dma_gather(&wr->local, data);
    }
    npemu_wr_fill_recv(wr, cqe, index, status);
    npemu_cqp_end(wr->peer, cq, cqe, wr->wqe->flags & IBV_SEND_SOLICITED);
    wr->qp->next_cqe = cqe + 1;
    return NPEMU_CQ_OK;
}

static npemu_exec_t npemu_wr_finish_recv(npemu_wr_t *wr,
                                         const npemu_rq_entry_t *entry,
                                         enum ibv_wc_status recv_status,
                                         enum ibv_wc_status status)
{
    switch (npemu_wr_complete_recv(wr, entry->index, recv_status, 0)) {
    case NPEMU_CQ_OK:
        break;
    case NPEMU_CQ_BUSY:
        return npemu_wr_unpop(wr, entry, NPEMU_EXEC_BUSY);
    default:
        return npemu_wr_overrun(wr);
    }

    if (recv_status != IBV_WC_SUCCESS) {
        return npemu_wr_refused(wr, 0, status);
    }
    return npemu_wr_done(wr, status);
}

/* Send the payload with the completion. Returns 0 if there is no room for it,
 * or 1 with the result. */
static int npemu_wr_send_eager(npemu_wr_t *wr, const npemu_rq_entry_t *entry,
                               npemu_exec_t *result)
{
    switch (npemu_wr_complete_recv(wr, entry->index, IBV_WC_SUCCESS, 1)) {
    case NPEMU_CQ_OK:
        *result = npemu_wr_done(wr, IBV_WC_SUCCESS);
        return 1;
    case NPEMU_CQ_BUSY:
        *result = npemu_wr_unpop(wr, entry, NPEMU_EXEC_BUSY);
        return 1;
    case NPEMU_CQ_FULL:
        *result = npemu_wr_overrun(wr);
        return 1;
    case NPEMU_CQ_NO_DATA:
    default:
        return 0;
    }
}

/* Does a copy into the receive's buffers take a system call, which costs more
 * than to send the payload with the completion? */
static int npemu_wr_is_costly(const npemu_wr_t *wr,
                              const npemu_dma_list_t *remote)
{
    return remote->outside && !wr->peer->is_self &&
           !(wr->local.tabled | remote->tabled) &&
           (wr->local.length <= NPEMU_EAGER_CHECKED_MAX);
}

/* Copy straight into the receive's buffers, unless that is costly. */
static npemu_exec_t npemu_wr_send_direct(npemu_wr_t *wr,
                                         const npemu_rq_entry_t *entry)
{
    npemu_arena_shm_t *shm = wr->peer->shm;
    uint32_t skip          = npemu_wr_is_ud(wr) ? sizeof(struct ibv_grh) : 0;
    npemu_rq_shm_t *rq     = npemu_arena_ptr(shm, wr->remote->rq);
    npemu_dma_list_t remote;
    npemu_dma_status_t status;
    npemu_exec_t ret;

    /* The keys of a shared receive queue belong to its PD, not to the QP's */
    switch (npemu_dma_map_recv(wr->peer, rq->pd,
                               npemu_rq_wqe(shm, rq, entry->index), skip,
                               wr->local.length, &remote, &wr->miss)) {
    case NPEMU_MAP_OK:
        break;
    case NPEMU_MAP_TABLE:
        return npemu_wr_unpop(wr, entry, NPEMU_EXEC_MAP);
    default:
        return npemu_wr_finish_recv(wr, entry, IBV_WC_LOC_PROT_ERR,
                                    IBV_WC_REM_OP_ERR);
    }

    if (npemu_wr_is_costly(wr, &remote) &&
        npemu_wr_send_eager(wr, entry, &ret)) {
        return ret;
    }

    /* The consumer has it in its cache: it is here after the copy */
    __builtin_prefetch(wr->qp->next_cqe, 1);
    status = npemu_dma_copy(wr->peer, &wr->local, &remote, 1);
    switch (status) {
    case NPEMU_DMA_OK:
        return npemu_wr_finish_recv(wr, entry, IBV_WC_SUCCESS,
                                    IBV_WC_SUCCESS);
    case NPEMU_DMA_REMOTE:
        return npemu_wr_finish_recv(wr, entry, IBV_WC_LOC_PROT_ERR,
                                    IBV_WC_REM_OP_ERR);
    default:
        return npemu_wr_unpop(wr, entry, npemu_wr_dma_result(wr, status));
    }
}

/* Take a receive of the target. NPEMU_EXEC_DONE: there is one. */
static npemu_exec_t npemu_wr_pop(npemu_wr_t *wr, npemu_rq_entry_t *entry)
{
    npemu_rq_shm_t *rq = npemu_arena_ptr(wr->peer->shm, wr->remote->rq);
    int limit          = 0;

    switch (npemu_rq_pop(wr->proc, wr->peer->shm, rq, 0, entry, &limit)) {
    case NPEMU_RQ_OK:
        break;
    case NPEMU_RQ_EMPTY:
        return NPEMU_EXEC_RNR;
    case NPEMU_RQ_BUSY:
        return NPEMU_EXEC_BUSY;
    default:
        return NPEMU_EXEC_RETRY; /* as if it did not answer: this times out */
    }

    if (npemu_unlikely(limit)) {
        atomic_fetch_or(&rq->events, NPEMU_EV_SRQ_LIMIT);
        atomic_store(&wr->peer->shm->other_events, 1);
        npemu_peer_wake(wr->proc, wr->peer);
    }
    return NPEMU_EXEC_DONE;
}

static npemu_exec_t npemu_wr_send_plain(npemu_wr_t *wr)
{
    uint64_t room = wr->local.length;
    npemu_rq_entry_t entry;
    npemu_exec_t ret;

    ret = npemu_wr_pop(wr, &entry);
    if (npemu_unlikely(ret != NPEMU_EXEC_DONE)) {
        return ret;
    }

    room += npemu_wr_is_ud(wr) ? sizeof(struct ibv_grh) : 0;
    if (npemu_unlikely(room > entry.length)) {
        if (npemu_wr_is_ud(wr)) {
            /* IBA 9.9.3, class D: dropped silently */
            return npemu_wr_unpop(wr, &entry, NPEMU_EXEC_DONE);
        }
        return npemu_wr_finish_recv(wr, &entry, IBV_WC_LOC_LEN_ERR,
                                    IBV_WC_REM_INV_REQ_ERR);
    }

    if ((wr->local.length <= NPEMU_EAGER_MAX) &&
        !(entry.flags & NPEMU_RQ_CHECK_KEYS) &&
        npemu_wr_send_eager(wr, &entry, &ret)) {
        return ret;
    }

    return npemu_wr_send_direct(wr, &entry);
}

/* Eager payload is copied with the CQ's lock held: obey page states before. */
static __attribute__((noinline)) npemu_exec_t
npemu_wr_send_tabled(npemu_wr_t *wr)
{
    uint8_t buffer[NPEMU_EAGER_MAX];
    npemu_dma_status_t status;

    status = npemu_dma_copy_local(wr->proc, &wr->local, buffer, 0);
    if (status != NPEMU_DMA_OK) {
        return npemu_wr_dma_result(wr, status);
    }

    npemu_dma_list_plain(&wr->local, buffer, wr->local.length);
    return npemu_wr_send_plain(wr);
}

static npemu_exec_t npemu_wr_send(npemu_wr_t *wr)
{
    /* This device has no on-demand paging for sends */
    if (npemu_unlikely(wr->local.on_demand)) {
        return npemu_wr_done(wr, IBV_WC_LOC_PROT_ERR);
    }

    return npemu_unlikely(wr->local.tabled &&
                          (wr->local.length <= NPEMU_EAGER_MAX)) ?
                   npemu_wr_send_tabled(wr) : npemu_wr_send_plain(wr);
}

/* --- one-sided -------------------------------------------------------------*/

/* The responder's checks, and its answer if they fail. NPEMU_EXEC_DONE with
 * IBV_WC_SUCCESS: go on. */
static npemu_exec_t npemu_wr_check_remote(npemu_wr_t *wr, uint32_t access,
                                          npemu_dma_list_t *remote)
{
    const npemu_wqe_t *wqe = wr->wqe;
    uint64_t length        = wr->local.length;

    if (npemu_unlikely(!(atomic_load(&wr->remote->access) & access))) {
        return npemu_wr_refused(wr, NPEMU_EV_QP_REQ_ERR,
                                IBV_WC_REM_INV_REQ_ERR);
    }

    /* IBA 9.7.4.1.2: the key of a zero-length access is not checked */
    if (npemu_unlikely(length == 0)) {
        npemu_dma_list_plain(remote, NULL, 0);
        return npemu_wr_done(wr, IBV_WC_SUCCESS);
    }

    switch (npemu_dma_map_range(wr->peer, wr->remote->pd, wqe->remote.rkey,
                                access, wqe->remote.addr, length, remote,
                                &wr->miss)) {
    case NPEMU_MAP_OK:
        return npemu_wr_done(wr, IBV_WC_SUCCESS);
    case NPEMU_MAP_TABLE:
        return NPEMU_EXEC_MAP;
    default:
        return npemu_wr_refused(wr, NPEMU_EV_QP_ACCESS_ERR,
                                IBV_WC_REM_ACCESS_ERR);
    }
}

static npemu_exec_t npemu_wr_write(npemu_wr_t *wr)
{
    npemu_dma_list_t remote;
    npemu_exec_t ret;

    ret = npemu_wr_check_remote(wr, IBV_ACCESS_REMOTE_WRITE, &remote);
    if (npemu_unlikely((ret != NPEMU_EXEC_DONE) ||
                       (wr->status != IBV_WC_SUCCESS))) {
        return ret;
    }

    return npemu_wr_dma_result(wr, npemu_dma_copy(wr->peer, &wr->local,
                                                  &remote, 1));
}

/* The target may see the data before the completion, and use the memory for
 * something else: a retry does not write it again. */
static npemu_exec_t npemu_wr_write_imm(npemu_wr_t *wr)
{
    npemu_retry_t *retry = &wr->qp->wait.retry;
    npemu_rq_entry_t entry;
    npemu_exec_t ret;

    /* First the receive: without one, nothing is written */
    ret = npemu_wr_pop(wr, &entry);
    if (ret != NPEMU_EXEC_DONE) {
        return ret;
    }

    if (!retry->is_written) {
        ret = npemu_wr_write(wr);
        if ((ret != NPEMU_EXEC_DONE) || (wr->status != IBV_WC_SUCCESS)) {
            return npemu_wr_unpop(wr, &entry, ret);
        }
        retry->is_written = 1;
    }
    return npemu_wr_finish_recv(wr, &entry, IBV_WC_SUCCESS, IBV_WC_SUCCESS);
}

static npemu_exec_t npemu_wr_read(npemu_wr_t *wr)
{
    npemu_dma_list_t remote;
    npemu_exec_t ret;

    if (npemu_unlikely(atomic_load(&wr->remote->max_dest_rd_atomic) == 0)) {
        return npemu_wr_refused(wr, NPEMU_EV_QP_REQ_ERR,
                                IBV_WC_REM_INV_REQ_ERR);
    }

    ret = npemu_wr_check_remote(wr, IBV_ACCESS_REMOTE_READ, &remote);
    if (npemu_unlikely((ret != NPEMU_EXEC_DONE) ||
                       (wr->status != IBV_WC_SUCCESS))) {
        return ret;
    }

    return npemu_wr_dma_result(wr, npemu_dma_copy(wr->peer, &wr->local,
                                                  &remote, 0));
}

/*
 * Atomic among the atomics on the target's memory (IBV_ATOMIC_HCA), under a
 * lock of the target. No repair is needed if its owner dies: the value was
 * written, or it was not.
 */
static npemu_exec_t npemu_wr_atomic_locked(npemu_wr_t *wr,
                                           const npemu_dma_list_t *remote)
{
    const npemu_wqe_t *wqe = wr->wqe;
    uint64_t old           = 0;
    npemu_dma_list_t buffer;
    npemu_dma_status_t status;
    uint64_t value;

    npemu_dma_list_plain(&buffer, &old, sizeof(old));
    status = npemu_dma_copy(wr->peer, &buffer, remote, 0);
    if (status == NPEMU_DMA_OK) {
        value = wqe->remote.swap;
        if (wqe->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
            value = old + wqe->remote.compare_add;
        }
        if ((wqe->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) ||
            (old == wqe->remote.compare_add)) {
            npemu_dma_list_plain(&buffer, &value, sizeof(value));
            status = npemu_dma_copy(wr->peer, &buffer, remote, 1);
        }
    }

    if (status == NPEMU_DMA_OK) {
        /* The local buffer may be in pieces */
        status = npemu_dma_copy_local(wr->proc, &wr->local, &old, 1);
    }
    return npemu_wr_dma_result(wr, status);
}

static npemu_exec_t npemu_wr_atomic(npemu_wr_t *wr)
{
    npemu_arena_shm_t *shm = wr->peer->shm;
    npemu_dma_list_t remote;
    npemu_exec_t ret;

    if (npemu_unlikely((wr->local.length != sizeof(uint64_t)))) {
        return npemu_wr_done(wr, IBV_WC_LOC_LEN_ERR);
    }

    /* IBA 9.7.4.1.3 and 9.4.5: enabled, aligned, else an invalid request */
    if (npemu_unlikely((atomic_load(&wr->remote->max_dest_rd_atomic) == 0) ||
                       (wr->wqe->remote.addr % sizeof(uint64_t)))) {
        return npemu_wr_refused(wr, NPEMU_EV_QP_REQ_ERR,
                                IBV_WC_REM_INV_REQ_ERR);
    }

    ret = npemu_wr_check_remote(wr, IBV_ACCESS_REMOTE_ATOMIC, &remote);
    if (npemu_unlikely((ret != NPEMU_EXEC_DONE) ||
                       (wr->status != IBV_WC_SUCCESS))) {
        return ret;
    }

    if (npemu_rlock_take(wr->proc, &shm->atomic_lock, 0) == NPEMU_LOCK_BUSY) {
        return NPEMU_EXEC_BUSY;
    }
    ret = npemu_wr_atomic_locked(wr, &remote);
    npemu_rlock_release(&shm->atomic_lock);
    return ret;
}

/* --- dispatch --------------------------------------------------------------*/

static npemu_exec_t npemu_wr_exec(npemu_wr_t *wr)
{
    const npemu_wqe_t *wqe = wr->wqe;
    int is_fetch           = (wqe->opcode == IBV_WR_RDMA_READ) ||
                             (wqe->opcode == IBV_WR_ATOMIC_CMP_AND_SWP) ||
                             (wqe->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD);
    npemu_exec_t ret;

    if (npemu_unlikely(!npemu_dma_map_send(wr->proc, wr->qp->shm->pd, wqe,
                                           is_fetch ? IBV_ACCESS_LOCAL_WRITE :
                                                      0,
                                           &wr->local))) {
        return npemu_wr_done(wr, IBV_WC_LOC_PROT_ERR);
    }

    if (npemu_wr_is_ud(wr)) {
        if (wr->local.length > NPEMU_MTU) {
            return npemu_wr_done(wr, IBV_WC_LOC_LEN_ERR);
        }
        if (!npemu_wr_target_ud(wr, &ret)) {
            return ret;
        }
        /* Without a receive, or if it cannot be taken, the datagram is lost */
        ret = npemu_wr_send(wr);
        if (npemu_unlikely(ret == NPEMU_EXEC_MAP)) {
            return ret;
        }
        return npemu_wr_done(wr, IBV_WC_SUCCESS);
    }

    if (npemu_unlikely(wr->local.length > NPEMU_MAX_MSG)) {
        return npemu_wr_done(wr, IBV_WC_LOC_LEN_ERR);
    }

    if (npemu_unlikely(is_fetch && (wr->qp->attr.max_rd_atomic == 0))) {
        return npemu_wr_done(wr, IBV_WC_LOC_QP_OP_ERR);
    }

    ret = npemu_wr_target_rc(wr);
    if (npemu_unlikely((ret != NPEMU_EXEC_DONE) ||
                       (wr->status != IBV_WC_SUCCESS))) {
        return ret;
    }

    switch (wqe->opcode) {
    case IBV_WR_SEND:
    case IBV_WR_SEND_WITH_IMM:
        return npemu_wr_send(wr);
    case IBV_WR_RDMA_WRITE:
        return npemu_wr_write(wr);
    case IBV_WR_RDMA_WRITE_WITH_IMM:
        return npemu_wr_write_imm(wr);
    case IBV_WR_RDMA_READ:
        return npemu_wr_read(wr);
    default:
        return npemu_wr_atomic(wr);
    }
}

/* Name the target process in the epoch. A datagram goes to the process that is
 * in the slot now: npemu_wr_target_ud() checks that this has not changed. */
static void npemu_wr_enter(npemu_wr_t *wr)
{
    npemu_proc_t *proc = wr->proc;
    npemu_peer_t *peer = wr->qp->peer;
    unsigned slot;

    if (npemu_wr_is_ud(wr)) {
        slot    = npemu_qpn_slot(wr->wqe->ud.qpn);
        wr->gen = atomic_load(&proc->fabric->slots[slot].gen);
        npemu_epoch_enter(proc, slot, wr->gen);
    } else if (peer != NULL) {
        npemu_epoch_enter(proc, peer->slot_index, peer->gen);
    } else {
        npemu_epoch_enter(proc, proc->slot_index, proc->gen);
    }
}

/* Execute once. With NPEMU_EXEC_MAP sets the owner of the table, since `peer`
 * is not valid outside of the epoch. */
static npemu_exec_t npemu_wr_try(npemu_wr_t *wr, unsigned *slot, uint32_t *gen)
{
    npemu_exec_t ret;

    npemu_wr_enter(wr);
    ret = npemu_wr_exec(wr);
    if (npemu_unlikely(ret == NPEMU_EXEC_MAP)) {
        *slot = wr->peer->slot_index;
        *gen  = wr->peer->gen;
    }
    npemu_epoch_exit(wr->proc);
    return ret;
}

/* Attach tables until none is missing. If one cannot be attached, the target
 * has failed. */
static __attribute__((noinline)) npemu_exec_t
npemu_wr_map(npemu_wr_t *wr, unsigned slot, uint32_t gen)
{
    npemu_exec_t ret;

    do {
        if (npemu_table_attach(wr->proc, slot, gen, wr->miss.index,
                               wr->miss.gen) != 0) {
            return npemu_wr_done(wr, npemu_wr_is_ud(wr) ? IBV_WC_SUCCESS :
                                                          IBV_WC_REM_OP_ERR);
        }
        ret = npemu_wr_try(wr, &slot, &gen);
    } while (ret == NPEMU_EXEC_MAP);
    return ret;
}

npemu_exec_t npemu_send_exec(npemu_qp_t *qp, const npemu_wqe_t *wqe,
                             enum ibv_wc_status *status, uint32_t *length)
{
    unsigned slot = 0;
    uint32_t gen  = 0;
    npemu_wr_t wr;
    npemu_exec_t ret;

    wr.qp           = qp;
    wr.wqe          = wqe;
    wr.proc         = qp->proc;
    wr.status       = IBV_WC_SUCCESS;
    wr.local.length = 0;

    ret = npemu_wr_try(&wr, &slot, &gen);
    if (npemu_unlikely(ret == NPEMU_EXEC_MAP)) {
        ret = npemu_wr_map(&wr, slot, gen);
    }

    *status = wr.status;
    *length = wr.local.length;
    return ret;
}
