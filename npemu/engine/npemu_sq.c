/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "engine/npemu_sq.h"
#include "base/npemu_limits.h"
#include "engine/npemu_cq.h"
#include "engine/npemu_cqp.h"
#include "engine/npemu_port.h"
#include "engine/npemu_send.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define NPEMU_USEC 1000ull
#define NPEMU_MSEC 1000000ull

/* Longest interval of retries to a silent or stopped target. */
#define NPEMU_RETRY_STEP_NS (5 * NPEMU_MSEC)

/* A request that is due within this time is not left to pollers. */
#define NPEMU_WIRE_SPIN_NS NPEMU_USEC

/* How often the owner of a send queue that another thread has locked is asked
 * again for what waits for the wire. */
#define NPEMU_WIRE_STEP_NS (50 * NPEMU_USEC)

/* A request that is not executed at once. */
typedef struct {
    npemu_wqe_t    wqe;
    npemu_ticket_t ticket; /* from admission to the wire on */
    struct ibv_sge sge[];  /* max_send_sge, then max_inline_data bytes */
} npemu_sq_entry_t;

static npemu_sq_entry_t *npemu_sq_entry(npemu_qp_t *qp, uint32_t pos)
{
    return (npemu_sq_entry_t*)(qp->sq + (pos & qp->sq_mask) * qp->sq_stride);
}

static void npemu_sq_run_waiting(npemu_wait_t *wait)
{
    npemu_sq_run(npemu_container_of(wait, npemu_qp_t, wait));
}

int npemu_sq_init(npemu_qp_t *qp)
{
    uint32_t size = 1;

    while (size < qp->cap.max_send_wr) {
        size *= 2;
    }
    qp->sq_mask   = size - 1;
    qp->sq_stride = (sizeof(npemu_sq_entry_t) +
                     qp->cap.max_send_sge * sizeof(struct ibv_sge) +
                     qp->cap.max_inline_data + 15) & ~(size_t)15;
    /* Not accessed before a request waits, so it costs address space only */
    qp->sq        = malloc(size * qp->sq_stride);
    if (qp->sq == NULL) {
        return ENOMEM;
    }

    if (npemu_waits_reserve(&qp->send_cq->waits) != 0) {
        free(qp->sq);
        return ENOMEM;
    }

    qp->wait.proc  = qp->proc;
    qp->wait.waits = &qp->send_cq->waits;
    qp->wait.lock  = &qp->sq_lock;
    qp->wait.run   = npemu_sq_run_waiting;
    return 0;
}

void npemu_sq_cleanup(npemu_qp_t *qp)
{
    npemu_waits_unreserve(&qp->send_cq->waits);
    free(qp->sq);
}

/* --- completion ------------------------------------------------------------*/

static uint32_t npemu_sq_wc_opcode(uint32_t opcode)
{
    switch (opcode) {
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM:
        return IBV_WC_RDMA_WRITE;
    case IBV_WR_RDMA_READ:
        return IBV_WC_RDMA_READ;
    case IBV_WR_ATOMIC_CMP_AND_SWP:
        return IBV_WC_COMP_SWAP;
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
        return IBV_WC_FETCH_ADD;
    default:
        return IBV_WC_SEND;
    }
}

/* One more request is done: produce its completion, if one is due. If it has
 * failed, the QP goes to ERR. The entry is reserved before and published after
 * that: nothing that the new state flushes comes before the cause, and a poller
 * that has seen the cause finds the new state. */
static void npemu_sq_complete(npemu_qp_t *qp, const npemu_wqe_t *wqe,
                              enum ibv_wc_status status, uint32_t length)
{
    int is_cause   = (status != IBV_WC_SUCCESS) &&
                     (status != IBV_WC_WR_FLUSH_ERR);
    npemu_cq_t *cq = qp->send_cq;
    npemu_cqe_t *cqe;
    uint8_t *data;

    ++qp->executed;
    if ((status == IBV_WC_SUCCESS) && !qp->sig_all &&
        !(wqe->flags & IBV_SEND_SIGNALED)) {
        return;
    }

    if (npemu_cqp_begin(qp->proc, qp->proc->shm, cq->shm, NPEMU_CQE_SEND, 1, 0,
                        &cqe, &data) != NPEMU_CQ_OK) {
        atomic_fetch_or(&cq->shm->events, NPEMU_EV_CQ_ERR);
        atomic_store(&qp->proc->shm->other_events, 1);
        npemu_qp_fail_remote(qp->proc, npemu_peer_self(qp->proc),
                             npemu_qpn_index(qp->super.qp_num),
                             NPEMU_EV_QP_FATAL);
        return;
    }

    cqe->status     = status;
    cqe->wc_flags   = 0;
    cqe->qpn        = qp->super.qp_num;
    cqe->opcode     = npemu_sq_wc_opcode(wqe->opcode);
    cqe->byte_len   = length;
    cqe->imm_data   = 0;
    cqe->src_qp     = 0;
    cqe->vendor_err = 0;
    cqe->wr_id      = wqe->wr_id;
    cqe->index      = qp->executed;
    if (npemu_unlikely(is_cause)) {
        npemu_qp_fail(qp);
    }
    npemu_cqp_end(npemu_peer_self(qp->proc), cq->shm, cqe, 0);
}

/* The oldest request has not been begun. */
static inline void npemu_sq_clear_retry(npemu_qp_t *qp)
{
    qp->wait.retry.kind       = NPEMU_RETRY_NONE;
    qp->wait.retry.is_written = 0;
}

/* What waits for the wire leaves it. */
static void npemu_sq_unwire(npemu_qp_t *qp)
{
    if (qp->is_wired && (qp->admitted != qp->executed)) {
        npemu_port_cancel(qp);
    }
}

void npemu_sq_flush(npemu_qp_t *qp)
{
    npemu_sq_unwire(qp);
    while (qp->executed != qp->posted) {
        npemu_sq_complete(qp, &npemu_sq_entry(qp, qp->executed)->wqe,
                          IBV_WC_WR_FLUSH_ERR, 0);
    }
    npemu_sq_clear_retry(qp);
    qp->admitted = qp->posted;
}

void npemu_sq_reset(npemu_qp_t *qp)
{
    npemu_sq_unwire(qp);
    qp->posted   = 0;
    qp->executed = 0;
    qp->admitted = 0;
    qp->fetched  = 0;
    npemu_sq_clear_retry(qp);
    atomic_store(&qp->sq_done, 0);
}

/* --- retries ---------------------------------------------------------------*/

/* IBA 9.7.5.2.8, table 45, in units of 10 us. */
static uint64_t npemu_rnr_timer_ns(uint32_t code)
{
    static const uint32_t units[32] = {
        65536, 1,    2,    3,    4,    6,    8,     12,    16,    24,   32,
        48,    64,   96,   128,  192,  256,  384,   512,   768,   1024, 1536,
        2048,  3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152
    };

    return units[code & 31] * 10 * NPEMU_USEC;
}

/* Local ACK timeout, IBA 9.7.6.1.3: 4.096 us * 2^timeout, per try. */
static uint64_t npemu_transport_end_ns(npemu_qp_t *qp, uint64_t now)
{
    if (qp->attr.timeout == 0) {
        return UINT64_MAX;
    }

    return now + ((4096ull << qp->attr.timeout) *
                  (qp->attr.retry_cnt + 1ull));
}

static uint64_t npemu_transport_step_ns(npemu_qp_t *qp)
{
    uint64_t timeout = 4096ull << qp->attr.timeout;

    return ((qp->attr.timeout == 0) || (timeout > NPEMU_RETRY_STEP_NS)) ?
                   NPEMU_RETRY_STEP_NS : timeout;
}

/* The oldest request could not be executed: set the time of the next retry.
 * Returns the status if this was the last one, else IBV_WC_SUCCESS. */
static enum ibv_wc_status npemu_sq_retry(npemu_qp_t *qp, npemu_exec_t why,
                                         uint64_t now)
{
    npemu_retry_t *retry = &qp->wait.retry;

    if (why == NPEMU_EXEC_BUSY) {
        /* The NIC of a stopped process would go on, so this does not fail. If
         * the process dies, the lock can be taken. */
        retry->kind     = NPEMU_RETRY_BUSY;
        retry->timer_ns = NPEMU_RETRY_STEP_NS;
        retry->next_ns  = now + retry->timer_ns;
        return IBV_WC_SUCCESS;
    }

    if (why == NPEMU_EXEC_RETRY) {
        if (retry->kind != NPEMU_RETRY_TRANSPORT) {
            retry->kind   = NPEMU_RETRY_TRANSPORT;
            retry->end_ns = npemu_transport_end_ns(qp, now);
        }
        retry->timer_ns = npemu_transport_step_ns(qp);
        retry->next_ns  = now + retry->timer_ns;
        return (now >= retry->end_ns) ? IBV_WC_RETRY_EXC_ERR : IBV_WC_SUCCESS;
    }

    retry->peer = qp->peer;
    retry->rq   = npemu_arena_ptr(qp->peer->shm, qp->remote->rq);
    if (retry->kind != NPEMU_RETRY_RNR) {
        retry->kind = NPEMU_RETRY_RNR;
        retry->left = qp->attr.rnr_retry;
        if (retry->left == 0) {
            return IBV_WC_RNR_RETRY_EXC_ERR;
        }
        retry->next_ns = 0;
    }
    if (now >= retry->next_ns) {
        if ((retry->left != NPEMU_RNR_FOREVER) && (retry->next_ns != 0) &&
            (--retry->left == 0)) {
            return IBV_WC_RNR_RETRY_EXC_ERR;
        }
        retry->timer_ns = npemu_rnr_timer_ns(
                atomic_load(&qp->remote->min_rnr_timer));
        retry->next_ns  = now + retry->timer_ns;
    }
    return IBV_WC_SUCCESS;
}

/* --- execution -------------------------------------------------------------*/

/* Execute one request, and attach its target first if necessary. Returns 1 if
 * it is done, 0 if it waits. */
static int npemu_sq_exec(npemu_qp_t *qp, const npemu_wqe_t *wqe)
{
    enum ibv_wc_status status;
    npemu_exec_t ret;
    uint32_t length;

    do {
        ret = npemu_send_exec(qp, wqe, &status, &length);
        if (npemu_unlikely(ret == NPEMU_EXEC_ATTACH) &&
            (npemu_peer_attach(qp->proc, npemu_qpn_slot(wqe->ud.qpn)) != 0)) {
            ret    = NPEMU_EXEC_DONE; /* no process: the datagram is lost */
            status = IBV_WC_SUCCESS;
        }
    } while (ret == NPEMU_EXEC_ATTACH);

    if (npemu_unlikely(ret != NPEMU_EXEC_DONE)) {
        status = npemu_sq_retry(qp, ret, npemu_time_ns());
        if (status == IBV_WC_SUCCESS) {
            return 0;
        }
    }

    npemu_sq_clear_retry(qp);
    npemu_sq_complete(qp, wqe, status, length);
    if (npemu_unlikely(status != IBV_WC_SUCCESS)) {
        npemu_sq_flush(qp);
    }
    return 1;
}

/* --- wire ------------------------------------------------------------------*/

/* IBA 10.8.3.3: a fenced request begins when earlier RDMA READs and atomics are
 * done. */
static int npemu_sq_may_admit(npemu_qp_t *qp, const npemu_wqe_t *wqe)
{
    return (npemu_qp_state(qp) == IBV_QPS_RTS) &&
           (!(wqe->flags & IBV_SEND_FENCE) || (qp->fetched == qp->executed));
}

/* Put requests on the wire in their order. */
static void npemu_sq_admit(npemu_qp_t *qp)
{
    npemu_sq_entry_t *entry;

    if ((int32_t)(qp->fetched - qp->executed) < 0) {
        qp->fetched = qp->executed;
    }
    while (qp->admitted != qp->posted) {
        entry = npemu_sq_entry(qp, qp->admitted);
        if (!npemu_sq_may_admit(qp, &entry->wqe) ||
            !npemu_port_admit(qp, &entry->wqe, &entry->ticket)) {
            break;
        }

        ++qp->admitted;
        if (npemu_port_is_fetch(&entry->wqe)) {
            qp->fetched = qp->admitted;
        }
    }
}

/* May the oldest request be executed? Else sets the time of the next try. What
 * is on its way to or from a process that is gone does not arrive later. */
static int npemu_sq_is_due(npemu_qp_t *qp, npemu_sq_entry_t *entry,
                           uint64_t now)
{
    npemu_retry_t *retry = &qp->wait.retry;
    uint64_t due         = UINT64_MAX;

    npemu_sq_admit(qp);
    if (qp->admitted != qp->executed) {
        if ((qp->peer != NULL) && !npemu_peer_is_alive(qp->peer)) {
            return 1;
        }
        due = npemu_port_due(qp->proc, &entry->ticket, now);
    }

    if (due <= now) {
        return 1;
    } else if (due == UINT64_MAX) {
        npemu_sq_retry(qp, NPEMU_EXEC_BUSY, now);
        return 0;
    }

    retry->kind     = NPEMU_RETRY_WIRE;
    retry->peer     = qp->peer;
    retry->next_ns  = due;
    retry->timer_ns = NPEMU_WIRE_STEP_NS;
    return 0;
}

static int npemu_sq_exec_wired(npemu_qp_t *qp, npemu_sq_entry_t *entry)
{
    uint64_t start = npemu_time_ns();
    int is_done;

    if (!npemu_sq_is_due(qp, entry, start)) {
        return 0;
    }

    is_done = npemu_sq_exec(qp, &entry->wqe);
    if (is_done) {
        npemu_port_account(qp->proc, &entry->ticket, npemu_time_ns() - start);
    }
    return is_done;
}

/* Execute the oldest request, if its data has arrived. Returns 1 if it is done,
 * 0 if it waits. */
static int npemu_sq_exec_kept(npemu_qp_t *qp)
{
    npemu_sq_entry_t *entry = npemu_sq_entry(qp, qp->executed);

    return npemu_unlikely(qp->is_wired) ? npemu_sq_exec_wired(qp, entry) :
                                          npemu_sq_exec(qp, &entry->wqe);
}

void npemu_sq_run(npemu_qp_t *qp)
{
    enum ibv_qp_state state;

    while (qp->executed != qp->posted) {
        state = npemu_qp_state(qp);
        if ((state == IBV_QPS_ERR) || (state == IBV_QPS_SQE)) {
            npemu_sq_flush(qp);
        } else if ((state != IBV_QPS_RTS) || !npemu_sq_exec_kept(qp)) {
            break;
        }
    }
}

/* --- posting ---------------------------------------------------------------*/

static int npemu_sq_opcode_is_good(npemu_qp_t *qp, uint32_t opcode)
{
    switch (opcode) {
    case IBV_WR_SEND:
    case IBV_WR_SEND_WITH_IMM:
        return 1;
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM:
    case IBV_WR_RDMA_READ:
    case IBV_WR_ATOMIC_CMP_AND_SWP:
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
        return qp->super.qp_type == IBV_QPT_RC;
    default:
        return 0;
    }
}

static int npemu_sq_check_inline(npemu_qp_t *qp, const struct ibv_send_wr *wr)
{
    uint64_t length = 0;
    int i;

    if ((wr->opcode == IBV_WR_RDMA_READ) ||
        (wr->opcode == IBV_WR_ATOMIC_CMP_AND_SWP) ||
        (wr->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD)) {
        return EINVAL;
    }

    for (i = 0; i < wr->num_sge; ++i) {
        length += wr->sg_list[i].length;
    }
    return (length > qp->cap.max_inline_data) ? EINVAL : 0;
}

/* Number of requests that can be posted. */
static inline uint32_t npemu_sq_room(npemu_qp_t *qp)
{
    return qp->cap.max_send_wr -
           (qp->posted - atomic_load_explicit(&qp->sq_done,
                                              memory_order_acquire));
}

/* Check a request and convert it to a WQE. Returns 0 or EINVAL. */
static int npemu_sq_parse(npemu_qp_t *qp, const struct ibv_send_wr *wr,
                          npemu_wqe_t *wqe)
{
    if (npemu_unlikely((wr->num_sge < 0) ||
                       ((uint32_t)wr->num_sge > qp->cap.max_send_sge) ||
                       !npemu_sq_opcode_is_good(qp, wr->opcode))) {
        return EINVAL;
    }

    wqe->wr_id    = wr->wr_id;
    wqe->opcode   = wr->opcode;
    wqe->flags    = wr->send_flags;
    wqe->imm_data = wr->imm_data;
    wqe->num_sge  = wr->num_sge;
    wqe->sge      = wr->sg_list;
    if ((wr->send_flags & IBV_SEND_INLINE) &&
        npemu_unlikely(npemu_sq_check_inline(qp, wr) != 0)) {
        return EINVAL;
    }

    if (qp->super.qp_type == IBV_QPT_UD) {
        if (npemu_unlikely((wr->wr.ud.ah == NULL) ||
                           (wr->wr.ud.ah->pd != qp->super.pd))) {
            return EINVAL;
        }
        wqe->ud.qpn  = wr->wr.ud.remote_qpn;
        wqe->ud.qkey = wr->wr.ud.remote_qkey;
        wqe->ud.av   = npemu_ah(wr->wr.ud.ah)->av;
    } else if (wr->opcode >= IBV_WR_ATOMIC_CMP_AND_SWP) {
        wqe->remote.addr        = wr->wr.atomic.remote_addr;
        wqe->remote.rkey        = wr->wr.atomic.rkey;
        wqe->remote.compare_add = wr->wr.atomic.compare_add;
        wqe->remote.swap        = wr->wr.atomic.swap;
    } else {
        wqe->remote.addr = wr->wr.rdma.remote_addr;
        wqe->remote.rkey = wr->wr.rdma.rkey;
    }
    return 0;
}

/* Keep a request that cannot be executed now, with its inline data. */
static void npemu_sq_keep(npemu_qp_t *qp, uint32_t pos,
                          const npemu_wqe_t *wqe)
{
    npemu_sq_entry_t *entry = npemu_sq_entry(qp, pos);
    uint8_t *data           = (uint8_t*)&entry->sge[qp->cap.max_send_sge];
    uint32_t i;

    entry->wqe     = *wqe;
    entry->wqe.sge = entry->sge;
    for (i = 0; i < wqe->num_sge; ++i) {
        entry->sge[i] = wqe->sge[i];
        if (wqe->flags & IBV_SEND_INLINE) {
            memcpy(data, (void*)(uintptr_t)wqe->sge[i].addr,
                   wqe->sge[i].length);
            entry->sge[i].addr = (uintptr_t)data;
            data              += wqe->sge[i].length;
        }
    }
}

/* Post a request that the wire carries; in RTS. */
static __attribute__((noinline)) void
npemu_sq_post_wired(npemu_qp_t *qp, uint32_t pos, const npemu_wqe_t *wqe)
{
    npemu_retry_t *retry = &qp->wait.retry;

    npemu_sq_keep(qp, pos, wqe);
    qp->posted = pos + 1;
    if (qp->executed != pos) {
        npemu_sq_admit(qp);
        return;
    }

    npemu_sq_run(qp);
    if ((retry->kind == NPEMU_RETRY_WIRE) &&
        (retry->next_ns < npemu_time_ns() + NPEMU_WIRE_SPIN_NS)) {
        while (npemu_time_ns() < retry->next_ns) {
            npemu_cpu_relax();
        }
        npemu_sq_run(qp);
    }
    if (qp->executed != qp->posted) {
        npemu_wait_enlist(&qp->wait);
    }
}

static int npemu_sq_post(npemu_qp_t *qp, const struct ibv_send_wr *wr)
{
    enum ibv_qp_state state = npemu_qp_state(qp);
    uint32_t pos            = qp->posted;
    npemu_wqe_t wqe;
    int ret;

    ret = npemu_sq_parse(qp, wr, &wqe);
    if (npemu_unlikely(ret != 0)) {
        return ret;
    }

    if (npemu_unlikely(npemu_sq_room(qp) == 0)) {
        return ENOMEM;
    }

    if (npemu_likely((state == IBV_QPS_RTS) && (qp->executed == pos) &&
                     !qp->is_wired)) {
        qp->posted = pos + 1;
        if (npemu_unlikely(!npemu_sq_exec(qp, &wqe))) {
            npemu_sq_keep(qp, pos, &wqe);
            npemu_wait_enlist(&qp->wait);
        }
        return 0;
    }

    switch (state) {
    case IBV_QPS_RTS: /* behind requests that wait, or for the wire */
        if (qp->is_wired) {
            npemu_sq_post_wired(qp, pos, &wqe);
            return 0;
        }
        npemu_sq_keep(qp, pos, &wqe);
        qp->posted = pos + 1;
        return 0;
    case IBV_QPS_ERR:
    case IBV_QPS_SQE:
        npemu_sq_keep(qp, pos, &wqe);
        qp->posted = pos + 1;
        npemu_sq_flush(qp);
        return 0;
    default:
        return EINVAL; /* IBA 10.8.2.2.1: not before RTS */
    }
}

int npemu_post_send(struct ibv_qp *ibqp, struct ibv_send_wr *wr,
                    struct ibv_send_wr **bad_wr)
{
    npemu_qp_t *qp = npemu_qp(ibqp);
    int ret        = 0;

    if (npemu_unlikely(qp->proc != npemu_self())) {
        *bad_wr = wr;
        return NPEMU_ERR_FORKED;
    }

    npemu_spin_lock(&qp->sq_lock);
    for (; wr != NULL; wr = wr->next) {
        ret = npemu_sq_post(qp, wr);
        if (npemu_unlikely(ret != 0)) {
            *bad_wr = wr;
            break;
        }
    }
    npemu_spin_unlock(&qp->sq_lock);
    return ret;
}
