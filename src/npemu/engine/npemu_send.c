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
} npemu_op_t;

static int npemu_op_is_ud(const npemu_op_t *op)
{
    return op->qp->super.qp.qp_type == IBV_QPT_UD;
}

/* The responder refuses the request: its QP goes to ERR, and its process raises
 * the events. */
static npemu_exec_t npemu_op_refused(npemu_op_t *op, uint32_t events,
                                     enum ibv_wc_status status)
{
    npemu_qp_fail_remote(op->proc, op->peer, op->index, events);
    op->status = status;
    return NPEMU_EXEC_DONE;
}

static npemu_exec_t npemu_op_done(npemu_op_t *op, enum ibv_wc_status status)
{
    op->status = status;
    return NPEMU_EXEC_DONE;
}

/* What a failed copy means to the requester of a one-sided operation. */
static npemu_exec_t npemu_op_dma_result(npemu_op_t *op,
                                        npemu_dma_status_t status)
{
    switch (status) {
    case NPEMU_DMA_OK:
        return npemu_op_done(op, IBV_WC_SUCCESS);
    case NPEMU_DMA_LOCAL:
        return npemu_op_done(op, IBV_WC_LOC_PROT_ERR);
    case NPEMU_DMA_REMOTE:
        return npemu_op_refused(op, NPEMU_EV_QP_ACCESS_ERR, IBV_WC_REM_OP_ERR);
    case NPEMU_DMA_DENIED:
        return npemu_op_done(op, IBV_WC_REM_OP_ERR);
    case NPEMU_DMA_CUT:
        return NPEMU_EXEC_CUT;
    case NPEMU_DMA_GONE:
    default:
        return npemu_op_done(op, IBV_WC_RETRY_EXC_ERR);
    }
}

/* --- target ----------------------------------------------------------------*/

/* IBA 11.6.3.1: a message that arrives before the responder is in RTS raises
 * the event that the connection is established. Once; not for datagrams, IBA
 * o11-5.1.1. */
static __attribute__((noinline)) void npemu_op_comm_est(npemu_op_t *op)
{
    if (!atomic_exchange(&op->remote->comm_est, 1)) {
        npemu_qp_notify(op->proc, op->peer, op->index, NPEMU_EV_QP_COMM_EST);
    }
}

/* A responder that does not exist, or is not connected to this QP, does not
 * answer: the transport timer decides. A different starting PSN belongs to an
 * earlier or later connection under the same QPN. */
static npemu_exec_t npemu_op_target_rc(npemu_op_t *op)
{
    npemu_qp_t *qp = op->qp;
    uint32_t state;

    op->peer   = qp->peer;
    op->remote = qp->remote;
    op->index  = qp->remote_index;
    if (npemu_unlikely((op->peer == NULL) || qp->unroutable)) {
        return NPEMU_EXEC_RETRY;
    }

    if (npemu_unlikely(!npemu_peer_is_alive(op->peer))) {
        return npemu_op_done(op, IBV_WC_RETRY_EXC_ERR);
    }

    if (npemu_unlikely(atomic_load_explicit(&op->peer->denied,
                                            memory_order_relaxed))) {
        return npemu_op_done(op, IBV_WC_REM_OP_ERR);
    }

    state = atomic_load(&op->remote->state);
    if (npemu_unlikely(((state != IBV_QPS_RTS) && (state != IBV_QPS_RTR) &&
                        (state != IBV_QPS_SQD)) ||
                       (op->remote->type != IBV_QPT_RC) ||
                       (op->remote->dest_qpn != qp->super.qp.qp_num) ||
                       (op->remote->rq_psn != qp->shm->sq_psn))) {
        return NPEMU_EXEC_RETRY;
    }

    if (npemu_unlikely(state == IBV_QPS_RTR)) {
        npemu_op_comm_est(op);
    }

    op->status = IBV_WC_SUCCESS;
    return NPEMU_EXEC_DONE;
}

/* Returns 1, or 0 if the datagram is lost, without an error as on a network. */
static int npemu_op_target_ud(npemu_op_t *op, npemu_exec_t *result)
{
    const npemu_wqe_t *wqe = op->wqe;
    unsigned slot          = npemu_qpn_slot(wqe->ud.qpn);
    uint32_t state, qkey;

    op->status = IBV_WC_SUCCESS;
    *result    = NPEMU_EXEC_DONE;
    if (wqe->ud.av.unroutable || (wqe->ud.qpn >> NPEMU_QPN_BITS)) {
        return 0;
    }

    op->peer = npemu_peer_find(op->proc, slot);
    if (npemu_unlikely((op->peer == NULL) || (op->peer->gen != op->gen) ||
                       !npemu_peer_is_alive(op->peer))) {
        if (npemu_slot_is_alive(&op->proc->fabric->slots[slot],
                                atomic_load(&op->proc->fabric->slots[slot]
                                                     .gen))) {
            *result = NPEMU_EXEC_ATTACH;
        }
        return 0;
    }

    op->index  = npemu_qpn_index(wqe->ud.qpn);
    op->remote = &op->peer->shm->qps[op->index];
    state      = atomic_load(&op->remote->state);
    /* IBA 10.2.5: the high bit asks for the QP's own Q_Key */
    qkey       = (wqe->ud.qkey & 0x80000000u) ?
                         atomic_load(&op->qp->shm->qkey) : wqe->ud.qkey;
    return ((state == IBV_QPS_RTS) || (state == IBV_QPS_RTR) ||
            (state == IBV_QPS_SQD) || (state == IBV_QPS_SQE)) &&
           (op->remote->type == IBV_QPT_UD) &&
           (atomic_load(&op->remote->qkey) == qkey) &&
           !atomic_load(&op->peer->denied);
}

/* --- two-sided -------------------------------------------------------------*/

static void npemu_op_fill_recv(npemu_op_t *op, npemu_cqe_t *cqe,
                               uint32_t index, enum ibv_wc_status status)
{
    const npemu_wqe_t *wqe = op->wqe;
    int is_write           = (wqe->opcode == IBV_WR_RDMA_WRITE_WITH_IMM);

    cqe->status     = status;
    cqe->qpn        = (op->peer->slot_index << NPEMU_QP_BITS) | op->index;
    cqe->src_qp     = op->qp->super.qp.qp_num;
    cqe->vendor_err = 0;
    cqe->index      = index;
    cqe->opcode     = is_write ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV;
    cqe->byte_len   = op->local.length;
    cqe->wc_flags   = 0;
    cqe->imm_data   = wqe->imm_data;
    cqe->ud         = (npemu_ud_t){0};
    if (is_write || (wqe->opcode == IBV_WR_SEND_WITH_IMM)) {
        cqe->wc_flags |= IBV_WC_WITH_IMM;
    }
    if (npemu_op_is_ud(op)) {
        cqe->byte_len += sizeof(struct ibv_grh);
        cqe->wc_flags |= wqe->ud.av.is_global ? IBV_WC_GRH : 0;
        cqe->ud        = wqe->ud.av.path;
    }
}

static npemu_exec_t npemu_op_unpop(npemu_op_t *op,
                                   const npemu_rq_entry_t *entry,
                                   npemu_exec_t result)
{
    npemu_rq_unpop(op->proc, op->peer->shm,
                   npemu_arena_ptr(op->peer->shm, op->remote->rq), entry);
    return result;
}

/* The receive's completion is lost: the CQ is in error, and the QP with it. */
static npemu_exec_t npemu_op_overrun(npemu_op_t *op)
{
    npemu_cq_shm_t *cq = npemu_arena_ptr(op->peer->shm, op->remote->rcq);

    atomic_fetch_or(&cq->events, NPEMU_EV_CQ_ERR);
    atomic_store(&op->peer->shm->other_events, 1);
    return npemu_op_refused(op, NPEMU_EV_QP_FATAL, IBV_WC_REM_OP_ERR);
}

/* Complete the receive, with `eager` together with the payload. Returns
 * NPEMU_CQ_NO_DATA if the CQ has no room for that. */
static npemu_cq_status_t npemu_op_complete_recv(npemu_op_t *op, uint32_t index,
                                                enum ibv_wc_status status,
                                                int eager)
{
    npemu_cq_shm_t *cq = npemu_arena_ptr(op->peer->shm, op->remote->rcq);
    npemu_cq_status_t ret;
    npemu_cqe_t *cqe;
    uint8_t *data;

    ret = npemu_cqp_begin(op->proc, op->peer->shm, cq, NPEMU_CQE_RECV, 0,
                          eager ? op->local.length : 0, &cqe, &data);
    if (npemu_unlikely(ret != NPEMU_CQ_OK)) {
        return ret;
    }

    if (eager) {
        npemu_dma_gather(&op->local, data);
    }
    npemu_op_fill_recv(op, cqe, index, status);
    npemu_cqp_end(op->peer, cq, cqe, op->wqe->flags & IBV_SEND_SOLICITED);
    return NPEMU_CQ_OK;
}

static npemu_exec_t npemu_op_finish_recv(npemu_op_t *op,
                                         const npemu_rq_entry_t *entry,
                                         enum ibv_wc_status recv_status,
                                         enum ibv_wc_status status)
{
    switch (npemu_op_complete_recv(op, entry->index, recv_status, 0)) {
    case NPEMU_CQ_OK:
        break;
    case NPEMU_CQ_BUSY:
        return npemu_op_unpop(op, entry, NPEMU_EXEC_BUSY);
    default:
        return npemu_op_overrun(op);
    }

    if (recv_status != IBV_WC_SUCCESS) {
        return npemu_op_refused(op, 0, status);
    }
    return npemu_op_done(op, status);
}

/* Copy straight into the receive's buffers. */
static npemu_exec_t npemu_op_send_direct(npemu_op_t *op,
                                         const npemu_rq_entry_t *entry)
{
    npemu_arena_shm_t *shm = op->peer->shm;
    uint32_t skip          = npemu_op_is_ud(op) ? sizeof(struct ibv_grh) : 0;
    npemu_rq_shm_t *rq     = npemu_arena_ptr(shm, op->remote->rq);
    npemu_dma_list_t remote;
    npemu_dma_status_t status;

    /* The keys of a shared receive queue belong to its PD, not to the QP's */
    switch (npemu_dma_map_recv(op->peer, rq->pd,
                               npemu_rq_wqe(shm, rq, entry->index), skip,
                               op->local.length, &remote, &op->miss)) {
    case NPEMU_MAP_OK:
        break;
    case NPEMU_MAP_TABLE:
        return npemu_op_unpop(op, entry, NPEMU_EXEC_MAP);
    default:
        return npemu_op_finish_recv(op, entry, IBV_WC_LOC_PROT_ERR,
                                    IBV_WC_REM_OP_ERR);
    }

    status = npemu_dma_copy(op->peer, &op->local, &remote, 1);
    switch (status) {
    case NPEMU_DMA_OK:
        return npemu_op_finish_recv(op, entry, IBV_WC_SUCCESS,
                                    IBV_WC_SUCCESS);
    case NPEMU_DMA_REMOTE:
        return npemu_op_finish_recv(op, entry, IBV_WC_LOC_PROT_ERR,
                                    IBV_WC_REM_OP_ERR);
    default:
        return npemu_op_unpop(op, entry, npemu_op_dma_result(op, status));
    }
}

/* Take a receive of the target. NPEMU_EXEC_DONE: there is one. */
static npemu_exec_t npemu_op_pop(npemu_op_t *op, npemu_rq_entry_t *entry)
{
    npemu_rq_shm_t *rq = npemu_arena_ptr(op->peer->shm, op->remote->rq);
    int limit          = 0;

    switch (npemu_rq_pop(op->proc, op->peer->shm, rq, 0, entry, &limit)) {
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
        atomic_store(&op->peer->shm->other_events, 1);
        npemu_peer_wake(op->proc, op->peer);
    }
    return NPEMU_EXEC_DONE;
}

static npemu_exec_t npemu_op_send_plain(npemu_op_t *op)
{
    uint64_t room = op->local.length;
    npemu_rq_entry_t entry;
    npemu_exec_t ret;

    ret = npemu_op_pop(op, &entry);
    if (npemu_unlikely(ret != NPEMU_EXEC_DONE)) {
        return ret;
    }

    room += npemu_op_is_ud(op) ? sizeof(struct ibv_grh) : 0;
    if (npemu_unlikely(room > entry.length)) {
        if (npemu_op_is_ud(op)) {
            /* IBA 9.9.3, class D: dropped silently */
            return npemu_op_unpop(op, &entry, NPEMU_EXEC_DONE);
        }
        return npemu_op_finish_recv(op, &entry, IBV_WC_LOC_LEN_ERR,
                                    IBV_WC_REM_INV_REQ_ERR);
    }

    if ((op->local.length <= NPEMU_EAGER_MAX) &&
        !(entry.flags & NPEMU_RQ_CHECK_KEYS)) {
        switch (npemu_op_complete_recv(op, entry.index, IBV_WC_SUCCESS, 1)) {
        case NPEMU_CQ_OK:
            return npemu_op_done(op, IBV_WC_SUCCESS);
        case NPEMU_CQ_BUSY:
            return npemu_op_unpop(op, &entry, NPEMU_EXEC_BUSY);
        case NPEMU_CQ_FULL:
            return npemu_op_overrun(op);
        case NPEMU_CQ_NO_DATA:
            break;
        }
    }

    return npemu_op_send_direct(op, &entry);
}

/* Eager payload is copied with the CQ's lock held: obey page states before. */
static __attribute__((noinline)) npemu_exec_t
npemu_op_send_tabled(npemu_op_t *op)
{
    uint8_t buffer[NPEMU_EAGER_MAX];
    npemu_dma_status_t status;

    status = npemu_dma_copy_local(op->proc, &op->local, buffer, 0);
    if (status != NPEMU_DMA_OK) {
        return npemu_op_dma_result(op, status);
    }

    npemu_dma_list_plain(&op->local, buffer, op->local.length);
    return npemu_op_send_plain(op);
}

static npemu_exec_t npemu_op_send(npemu_op_t *op)
{
    /* This device has no on-demand paging for sends */
    if (npemu_unlikely(op->local.on_demand)) {
        return npemu_op_done(op, IBV_WC_LOC_PROT_ERR);
    }

    return npemu_unlikely(op->local.tabled &&
                          (op->local.length <= NPEMU_EAGER_MAX)) ?
                   npemu_op_send_tabled(op) : npemu_op_send_plain(op);
}

/* --- one-sided -------------------------------------------------------------*/

/* The responder's checks, and its answer if they fail. NPEMU_EXEC_DONE with
 * IBV_WC_SUCCESS: go on. */
static npemu_exec_t npemu_op_check_remote(npemu_op_t *op, uint32_t access,
                                          npemu_dma_list_t *remote)
{
    const npemu_wqe_t *wqe = op->wqe;
    uint64_t length        = op->local.length;

    if (npemu_unlikely(!(atomic_load(&op->remote->access) & access))) {
        return npemu_op_refused(op, NPEMU_EV_QP_REQ_ERR,
                                IBV_WC_REM_INV_REQ_ERR);
    }

    /* IBA 9.7.4.1.2: the key of a zero-length access is not checked */
    if (npemu_unlikely(length == 0)) {
        npemu_dma_list_plain(remote, NULL, 0);
        return npemu_op_done(op, IBV_WC_SUCCESS);
    }

    switch (npemu_dma_map_range(op->peer, op->remote->pd, wqe->remote.rkey,
                                access, wqe->remote.addr, length, remote,
                                &op->miss)) {
    case NPEMU_MAP_OK:
        return npemu_op_done(op, IBV_WC_SUCCESS);
    case NPEMU_MAP_TABLE:
        return NPEMU_EXEC_MAP;
    default:
        return npemu_op_refused(op, NPEMU_EV_QP_ACCESS_ERR,
                                IBV_WC_REM_ACCESS_ERR);
    }
}

static npemu_exec_t npemu_op_write(npemu_op_t *op)
{
    npemu_dma_list_t remote;
    npemu_exec_t ret;

    ret = npemu_op_check_remote(op, IBV_ACCESS_REMOTE_WRITE, &remote);
    if (npemu_unlikely((ret != NPEMU_EXEC_DONE) ||
                       (op->status != IBV_WC_SUCCESS))) {
        return ret;
    }

    return npemu_op_dma_result(op, npemu_dma_copy(op->peer, &op->local,
                                                  &remote, 1));
}

/* The target may see the data before the completion, and use the memory for
 * something else: a retry does not write it again. */
static npemu_exec_t npemu_op_write_imm(npemu_op_t *op)
{
    npemu_retry_t *retry = &op->qp->wait.retry;
    npemu_rq_entry_t entry;
    npemu_exec_t ret;

    /* First the receive: without one, nothing is written */
    ret = npemu_op_pop(op, &entry);
    if (ret != NPEMU_EXEC_DONE) {
        return ret;
    }

    if (!retry->is_written) {
        ret = npemu_op_write(op);
        if ((ret != NPEMU_EXEC_DONE) || (op->status != IBV_WC_SUCCESS)) {
            return npemu_op_unpop(op, &entry, ret);
        }
        retry->is_written = 1;
    }
    return npemu_op_finish_recv(op, &entry, IBV_WC_SUCCESS, IBV_WC_SUCCESS);
}

static npemu_exec_t npemu_op_read(npemu_op_t *op)
{
    npemu_dma_list_t remote;
    npemu_exec_t ret;

    if (npemu_unlikely(atomic_load(&op->remote->max_dest_rd_atomic) == 0)) {
        return npemu_op_refused(op, NPEMU_EV_QP_REQ_ERR,
                                IBV_WC_REM_INV_REQ_ERR);
    }

    ret = npemu_op_check_remote(op, IBV_ACCESS_REMOTE_READ, &remote);
    if (npemu_unlikely((ret != NPEMU_EXEC_DONE) ||
                       (op->status != IBV_WC_SUCCESS))) {
        return ret;
    }

    return npemu_op_dma_result(op, npemu_dma_copy(op->peer, &op->local,
                                                  &remote, 0));
}

/*
 * Atomic among the atomics on the target's memory (IBV_ATOMIC_HCA), under a
 * lock of the target. No repair is needed if its owner dies: the value was
 * written, or it was not.
 */
static npemu_exec_t npemu_op_atomic_locked(npemu_op_t *op,
                                           const npemu_dma_list_t *remote)
{
    const npemu_wqe_t *wqe = op->wqe;
    uint64_t old           = 0;
    npemu_dma_list_t buffer;
    npemu_dma_status_t status;
    uint64_t value;

    npemu_dma_list_plain(&buffer, &old, sizeof(old));
    status = npemu_dma_copy(op->peer, &buffer, remote, 0);
    if (status == NPEMU_DMA_OK) {
        value = wqe->remote.swap;
        if (wqe->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
            value = old + wqe->remote.compare_add;
        }
        if ((wqe->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) ||
            (old == wqe->remote.compare_add)) {
            npemu_dma_list_plain(&buffer, &value, sizeof(value));
            status = npemu_dma_copy(op->peer, &buffer, remote, 1);
        }
    }

    if (status == NPEMU_DMA_OK) {
        /* The local buffer may be in pieces */
        status = npemu_dma_copy_local(op->proc, &op->local, &old, 1);
    }
    return npemu_op_dma_result(op, status);
}

static npemu_exec_t npemu_op_atomic(npemu_op_t *op)
{
    npemu_arena_shm_t *shm = op->peer->shm;
    npemu_dma_list_t remote;
    npemu_exec_t ret;

    if (npemu_unlikely((op->local.length != sizeof(uint64_t)))) {
        return npemu_op_done(op, IBV_WC_LOC_LEN_ERR);
    }

    /* IBA 9.7.4.1.3 and 9.4.5: enabled, aligned, else an invalid request */
    if (npemu_unlikely((atomic_load(&op->remote->max_dest_rd_atomic) == 0) ||
                       (op->wqe->remote.addr % sizeof(uint64_t)))) {
        return npemu_op_refused(op, NPEMU_EV_QP_REQ_ERR,
                                IBV_WC_REM_INV_REQ_ERR);
    }

    ret = npemu_op_check_remote(op, IBV_ACCESS_REMOTE_ATOMIC, &remote);
    if (npemu_unlikely((ret != NPEMU_EXEC_DONE) ||
                       (op->status != IBV_WC_SUCCESS))) {
        return ret;
    }

    if (npemu_rlock_take(op->proc, &shm->atomic_lock, 0) == NPEMU_LOCK_BUSY) {
        return NPEMU_EXEC_BUSY;
    }
    ret = npemu_op_atomic_locked(op, &remote);
    npemu_rlock_release(&shm->atomic_lock);
    return ret;
}

/* --- dispatch --------------------------------------------------------------*/

static npemu_exec_t npemu_op_exec(npemu_op_t *op)
{
    const npemu_wqe_t *wqe = op->wqe;
    int is_fetch           = (wqe->opcode == IBV_WR_RDMA_READ) ||
                             (wqe->opcode == IBV_WR_ATOMIC_CMP_AND_SWP) ||
                             (wqe->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD);
    npemu_exec_t ret;

    if (npemu_unlikely(!npemu_dma_map_send(op->proc, op->qp->shm->pd, wqe,
                                           is_fetch ? IBV_ACCESS_LOCAL_WRITE :
                                                      0,
                                           &op->local))) {
        return npemu_op_done(op, IBV_WC_LOC_PROT_ERR);
    }

    if (npemu_op_is_ud(op)) {
        if (op->local.length > NPEMU_MTU) {
            return npemu_op_done(op, IBV_WC_LOC_LEN_ERR);
        }
        if (!npemu_op_target_ud(op, &ret)) {
            return ret;
        }
        /* Without a receive, or if it cannot be taken, the datagram is lost */
        ret = npemu_op_send(op);
        if (npemu_unlikely(ret == NPEMU_EXEC_MAP)) {
            return ret;
        }
        return npemu_op_done(op, IBV_WC_SUCCESS);
    }

    if (npemu_unlikely(op->local.length > NPEMU_MAX_MSG)) {
        return npemu_op_done(op, IBV_WC_LOC_LEN_ERR);
    }

    if (npemu_unlikely(is_fetch && (op->qp->attr.max_rd_atomic == 0))) {
        return npemu_op_done(op, IBV_WC_LOC_QP_OP_ERR);
    }

    ret = npemu_op_target_rc(op);
    if (npemu_unlikely((ret != NPEMU_EXEC_DONE) ||
                       (op->status != IBV_WC_SUCCESS))) {
        return ret;
    }

    switch (wqe->opcode) {
    case IBV_WR_SEND:
    case IBV_WR_SEND_WITH_IMM:
        return npemu_op_send(op);
    case IBV_WR_RDMA_WRITE:
        return npemu_op_write(op);
    case IBV_WR_RDMA_WRITE_WITH_IMM:
        return npemu_op_write_imm(op);
    case IBV_WR_RDMA_READ:
        return npemu_op_read(op);
    default:
        return npemu_op_atomic(op);
    }
}

/* Name the target process in the epoch. A datagram goes to the process that is
 * in the slot now: npemu_op_target_ud() checks that this has not changed. */
static void npemu_op_enter(npemu_op_t *op)
{
    npemu_proc_t *proc = op->proc;
    npemu_peer_t *peer = op->qp->peer;
    unsigned slot;

    if (npemu_op_is_ud(op)) {
        slot    = npemu_qpn_slot(op->wqe->ud.qpn);
        op->gen = atomic_load(&proc->fabric->slots[slot].gen);
        npemu_epoch_enter(proc, slot, op->gen);
    } else if (peer != NULL) {
        npemu_epoch_enter(proc, peer->slot_index, peer->gen);
    } else {
        npemu_epoch_enter(proc, proc->slot_index, proc->gen);
    }
}

/* Execute once. With NPEMU_EXEC_MAP sets the owner of the table, since `peer`
 * is not valid outside of the epoch. */
static npemu_exec_t npemu_op_try(npemu_op_t *op, unsigned *slot, uint32_t *gen)
{
    npemu_exec_t ret;

    npemu_op_enter(op);
    ret = npemu_op_exec(op);
    if (npemu_unlikely(ret == NPEMU_EXEC_MAP)) {
        *slot = op->peer->slot_index;
        *gen  = op->peer->gen;
    }
    npemu_epoch_exit(op->proc);
    return ret;
}

/* Attach tables until none is missing. If one cannot be attached, the target
 * has failed. A request that was cut off checks the target again, whose QP has
 * failed in general. */
static __attribute__((noinline)) npemu_exec_t
npemu_op_try_again(npemu_op_t *op, npemu_exec_t ret, unsigned slot,
                   uint32_t gen)
{
    do {
        if ((ret == NPEMU_EXEC_MAP) &&
            (npemu_table_attach(op->proc, slot, gen, op->miss.index,
                                op->miss.gen) != 0)) {
            return npemu_op_done(op, npemu_op_is_ud(op) ? IBV_WC_SUCCESS :
                                                          IBV_WC_REM_OP_ERR);
        }
        ret = npemu_op_try(op, &slot, &gen);
    } while ((ret == NPEMU_EXEC_MAP) || (ret == NPEMU_EXEC_CUT));
    return ret;
}

npemu_exec_t npemu_send_exec(npemu_qp_t *qp, const npemu_wqe_t *wqe,
                             enum ibv_wc_status *status, uint32_t *length)
{
    unsigned slot = 0;
    uint32_t gen  = 0;
    npemu_op_t op;
    npemu_exec_t ret;

    op.qp           = qp;
    op.wqe          = wqe;
    op.proc         = qp->proc;
    op.status       = IBV_WC_SUCCESS;
    op.local.length = 0;

    ret = npemu_op_try(&op, &slot, &gen);
    if (npemu_unlikely((ret == NPEMU_EXEC_MAP) || (ret == NPEMU_EXEC_CUT))) {
        ret = npemu_op_try_again(&op, ret, slot, gen);
    }

    *status = op.status;
    *length = op.local.length;
    return ret;
}
