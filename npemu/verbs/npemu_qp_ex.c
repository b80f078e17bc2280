/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "verbs/npemu_qp_ex.h"
#include "engine/npemu_sq.h"
#include "npemu.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* One collected request. */
typedef struct {
    struct ibv_send_wr wr;
    struct ibv_sge     sge[NPEMU_MAX_SGE];
} npemu_batch_wr_t;

/*
 * ibv_wr_start() to ibv_wr_complete() or ibv_wr_abort() is a critical section
 * of the QP, ibv_wr_post(3). Its lock is not sq_lock, which the npemu thread
 * needs as well: code of the program runs within the section, for any time, and
 * may call verbs that wait for the npemu thread. The lock is a mutex, so that
 * threads that wait for the section sleep.
 */
typedef struct npemu_qp_batch {
    pthread_mutex_t  lock;         /* of everything here, and wr_id, wr_flags */
    uint32_t         count;
    uint32_t         size;
    int              error;        /* found while collecting */
    npemu_batch_wr_t dummy;        /* takes what comes after an error */
    size_t           inline_used;
    size_t           inline_size;
    uint8_t          *inline_data; /* of the whole batch */
    npemu_batch_wr_t wrs[];
} npemu_qp_batch_t;

#define NPEMU_EX_UD_OPS \
    (IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM)
#define NPEMU_EX_RC_OPS \
    (NPEMU_EX_UD_OPS | IBV_QP_EX_WITH_RDMA_WRITE | \
     IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ | \
     IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD)

static npemu_qp_t *npemu_ex_qp(struct ibv_qp_ex *ex)
{
    return npemu_container_of(ex, npemu_qp_t, super.ex);
}

/* The first error is the one to report. */
static void npemu_ex_set_error(npemu_qp_batch_t *batch, int error)
{
    if (batch->error == 0) {
        batch->error = error;
    }
}

/* --- collecting ------------------------------------------------------------*/

/* The request that the setters are about. */
static npemu_batch_wr_t *npemu_ex_current(struct ibv_qp_ex *ex)
{
    npemu_qp_batch_t *batch = npemu_ex_qp(ex)->batch;

    if ((batch->error != 0) || (batch->count == 0)) {
        return &batch->dummy;
    }
    return &batch->wrs[batch->count - 1];
}

static struct ibv_send_wr *npemu_ex_begin(struct ibv_qp_ex *ex,
                                          enum ibv_wr_opcode opcode)
{
    npemu_qp_batch_t *batch = npemu_ex_qp(ex)->batch;
    npemu_batch_wr_t *elem;

    if (batch->count == batch->size) {
        npemu_ex_set_error(batch, ENOMEM);
    }
    if (batch->error == 0) {
        ++batch->count;
    }

    elem                = npemu_ex_current(ex);
    elem->wr.wr_id      = ex->wr_id;
    elem->wr.next       = NULL;
    elem->wr.sg_list    = elem->sge;
    elem->wr.num_sge    = 0;
    elem->wr.opcode     = opcode;
    elem->wr.send_flags = ex->wr_flags & ~(unsigned)IBV_SEND_INLINE;
    elem->wr.imm_data   = 0;
    elem->wr.wr.ud.ah   = NULL; /* or one of an earlier batch would be used */
    return &elem->wr;
}

static void npemu_ex_rdma(struct ibv_qp_ex *ex, enum ibv_wr_opcode opcode,
                          uint32_t rkey, uint64_t remote_addr)
{
    struct ibv_send_wr *wr = npemu_ex_begin(ex, opcode);

    wr->wr.rdma.rkey        = rkey;
    wr->wr.rdma.remote_addr = remote_addr;
}

static void npemu_ex_rdma_write(struct ibv_qp_ex *ex, uint32_t rkey,
                                uint64_t remote_addr)
{
    npemu_ex_rdma(ex, IBV_WR_RDMA_WRITE, rkey, remote_addr);
}

static void npemu_ex_rdma_write_imm(struct ibv_qp_ex *ex, uint32_t rkey,
                                    uint64_t remote_addr, __be32 imm_data)
{
    npemu_ex_rdma(ex, IBV_WR_RDMA_WRITE_WITH_IMM, rkey, remote_addr);
    npemu_ex_current(ex)->wr.imm_data = imm_data;
}

static void npemu_ex_rdma_read(struct ibv_qp_ex *ex, uint32_t rkey,
                               uint64_t remote_addr)
{
    npemu_ex_rdma(ex, IBV_WR_RDMA_READ, rkey, remote_addr);
}

static void npemu_ex_send(struct ibv_qp_ex *ex)
{
    npemu_ex_begin(ex, IBV_WR_SEND);
}

static void npemu_ex_send_imm(struct ibv_qp_ex *ex, __be32 imm_data)
{
    npemu_ex_begin(ex, IBV_WR_SEND_WITH_IMM)->imm_data = imm_data;
}

static void npemu_ex_cmp_swp(struct ibv_qp_ex *ex, uint32_t rkey,
                             uint64_t remote_addr, uint64_t compare,
                             uint64_t swap)
{
    struct ibv_send_wr *wr = npemu_ex_begin(ex, IBV_WR_ATOMIC_CMP_AND_SWP);

    wr->wr.atomic.rkey        = rkey;
    wr->wr.atomic.remote_addr = remote_addr;
    wr->wr.atomic.compare_add = compare;
    wr->wr.atomic.swap        = swap;
}

static void npemu_ex_fetch_add(struct ibv_qp_ex *ex, uint32_t rkey,
                               uint64_t remote_addr, uint64_t add)
{
    struct ibv_send_wr *wr = npemu_ex_begin(ex, IBV_WR_ATOMIC_FETCH_AND_ADD);

    wr->wr.atomic.rkey        = rkey;
    wr->wr.atomic.remote_addr = remote_addr;
    wr->wr.atomic.compare_add = add;
}

/* --- setters ---------------------------------------------------------------*/

static void npemu_ex_set_ud_addr(struct ibv_qp_ex *ex, struct ibv_ah *ah,
                                 uint32_t remote_qpn, uint32_t remote_qkey)
{
    struct ibv_send_wr *wr = &npemu_ex_current(ex)->wr;

    wr->wr.ud.ah          = ah;
    wr->wr.ud.remote_qpn  = remote_qpn;
    wr->wr.ud.remote_qkey = remote_qkey;
}

static void npemu_ex_set_sge_list(struct ibv_qp_ex *ex, size_t num_sge,
                                  const struct ibv_sge *sg_list)
{
    npemu_batch_wr_t *elem = npemu_ex_current(ex);

    if (num_sge > npemu_ex_qp(ex)->cap.max_send_sge) {
        npemu_ex_set_error(npemu_ex_qp(ex)->batch, EINVAL);
        return;
    }

    elem->wr.num_sge = num_sge;
    memcpy(elem->sge, sg_list, num_sge * sizeof(*sg_list));
}

static void npemu_ex_set_sge(struct ibv_qp_ex *ex, uint32_t lkey,
                             uint64_t addr, uint32_t length)
{
    const struct ibv_sge sge = {.addr = addr, .length = length, .lkey = lkey};

    npemu_ex_set_sge_list(ex, 1, &sge);
}

/* The buffers may change as soon as this returns, so they are copied. */
static void npemu_ex_set_inline_data_list(struct ibv_qp_ex *ex, size_t num_buf,
                                          const struct ibv_data_buf *bufs)
{
    npemu_qp_batch_t *batch = npemu_ex_qp(ex)->batch;
    npemu_batch_wr_t *elem  = npemu_ex_current(ex);
    size_t length           = 0;
    uint8_t *data;
    size_t i;

    for (i = 0; i < num_buf; ++i) {
        length += bufs[i].length;
    }
    if (batch->error != 0) {
        return;
    } else if ((length > npemu_ex_qp(ex)->cap.max_inline_data) ||
               (length > batch->inline_size - batch->inline_used)) {
        npemu_ex_set_error(batch, EINVAL);
        return;
    }

    data                 = batch->inline_data + batch->inline_used;
    batch->inline_used  += length;
    elem->sge[0].addr    = (uintptr_t)data;
    elem->sge[0].length  = length;
    elem->sge[0].lkey    = 0;
    elem->wr.num_sge     = 1;
    elem->wr.send_flags |= IBV_SEND_INLINE;
    for (i = 0; i < num_buf; ++i) {
        memcpy(data, bufs[i].addr, bufs[i].length);
        data += bufs[i].length;
    }
}

static void npemu_ex_set_inline_data(struct ibv_qp_ex *ex, void *addr,
                                     size_t length)
{
    const struct ibv_data_buf buf = {.addr = addr, .length = length};

    npemu_ex_set_inline_data_list(ex, 1, &buf);
}

/* --- batch -----------------------------------------------------------------*/

/* A forked child does not use its copy of the lock: a thread of the parent may
 * hold it. ibv_wr_complete() refuses what the child posts. */
static int npemu_ex_is_forked(struct ibv_qp_ex *ex)
{
    return npemu_unlikely(npemu_ex_qp(ex)->proc != npemu_self());
}

static void npemu_ex_clear(npemu_qp_batch_t *batch)
{
    batch->count       = 0;
    batch->error       = 0;
    batch->inline_used = 0;
}

static void npemu_ex_start(struct ibv_qp_ex *ex)
{
    npemu_qp_batch_t *batch = npemu_ex_qp(ex)->batch;

    if (!npemu_ex_is_forked(ex)) {
        pthread_mutex_lock(&batch->lock);
    }
    npemu_ex_clear(batch);
}

static void npemu_ex_abort(struct ibv_qp_ex *ex)
{
    if (!npemu_ex_is_forked(ex)) {
        pthread_mutex_unlock(&npemu_ex_qp(ex)->batch->lock);
    }
}

static int npemu_ex_post(npemu_qp_t *qp, npemu_qp_batch_t *batch)
{
    uint32_t i;

    if ((batch->error != 0) || (batch->count == 0)) {
        return batch->error;
    }

    for (i = 0; i + 1 < batch->count; ++i) {
        batch->wrs[i].wr.next = &batch->wrs[i + 1].wr;
    }
    return npemu_sq_post_all(qp, &batch->wrs[0].wr, batch->count);
}

static int npemu_ex_complete(struct ibv_qp_ex *ex)
{
    npemu_qp_t *qp          = npemu_ex_qp(ex);
    npemu_qp_batch_t *batch = qp->batch;
    int ret;

    if (npemu_ex_is_forked(ex)) {
        return NPEMU_ERR_FORKED;
    }

    ret = npemu_ex_post(qp, batch);
    pthread_mutex_unlock(&batch->lock);
    return ret;
}

int npemu_qp_ex_init(npemu_qp_t *qp, uint64_t ops)
{
    uint64_t known        = (qp->super.qp.qp_type == IBV_QPT_UD) ?
                                    NPEMU_EX_UD_OPS : NPEMU_EX_RC_OPS;
    struct ibv_qp_ex *ex  = &qp->super.ex;
    uint32_t size         = qp->cap.max_send_wr;
    size_t inline_size    = (size_t)size * qp->cap.max_inline_data;
    npemu_qp_batch_t *batch;

    if (ops & ~known) {
        return EOPNOTSUPP;
    }

    batch = malloc(sizeof(*batch) + size * sizeof(batch->wrs[0]) +
                   inline_size);
    if (batch == NULL) {
        return ENOMEM;
    }

    pthread_mutex_init(&batch->lock, NULL);
    npemu_ex_clear(batch);
    batch->size        = size;
    batch->inline_size = inline_size;
    batch->inline_data = (uint8_t*)&batch->wrs[size];
    qp->batch          = batch;

    ex->wr_start                = npemu_ex_start;
    ex->wr_complete             = npemu_ex_complete;
    ex->wr_abort                = npemu_ex_abort;
    ex->wr_send                 = npemu_ex_send;
    ex->wr_send_imm             = npemu_ex_send_imm;
    ex->wr_rdma_write           = npemu_ex_rdma_write;
    ex->wr_rdma_write_imm       = npemu_ex_rdma_write_imm;
    ex->wr_rdma_read            = npemu_ex_rdma_read;
    ex->wr_atomic_cmp_swp       = npemu_ex_cmp_swp;
    ex->wr_atomic_fetch_add     = npemu_ex_fetch_add;
    ex->wr_set_ud_addr          = npemu_ex_set_ud_addr;
    ex->wr_set_sge              = npemu_ex_set_sge;
    ex->wr_set_sge_list         = npemu_ex_set_sge_list;
    ex->wr_set_inline_data      = npemu_ex_set_inline_data;
    ex->wr_set_inline_data_list = npemu_ex_set_inline_data_list;
    return 0;
}

void npemu_qp_ex_cleanup(npemu_qp_t *qp)
{
    if (qp->batch != NULL) {
        pthread_mutex_destroy(&qp->batch->lock);
        free(qp->batch);
    }
}

struct ibv_qp_ex *npemu_qp_to_qp_ex(struct ibv_qp *qp)
{
    return (npemu_qp(qp)->batch != NULL) ? &npemu_qp(qp)->super.ex : NULL;
}
