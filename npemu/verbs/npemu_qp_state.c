/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Queue pairs: attributes and transitions. */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "base/npemu_limits.h"
#include "engine/npemu_sq.h"
#include "npemu.h"
#include "verbs/npemu_ah.h"
#include "verbs/npemu_qp_create.h"
#include "verbs/npemu_recover.h"

#include <errno.h>

/* Bits for IBV_QP_*, by group. */
#define NPEMU_QP_INIT_RC \
    (IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS)
#define NPEMU_QP_INIT_UD \
    (IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY)
#define NPEMU_QP_LIVE_RC \
    (IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_ALT_PATH | \
     IBV_QP_PATH_MIG_STATE | IBV_QP_MIN_RNR_TIMER)
#define NPEMU_QP_LIVE_UD \
    (IBV_QP_CUR_STATE | IBV_QP_QKEY)

/* IBA 11.2.5.2, table 94: attributes that a transition requires, and those that
 * it allows. Where the specification leaves a choice, as for CUR_STATE, this
 * follows the kernel's qp_state_table (drivers/infiniband/core/verbs.c). */
typedef struct {
    enum ibv_qp_state from;
    enum ibv_qp_state to;
    struct {
        int           allowed;
        int           required;
        int           optional;
    } rc, ud;
} npemu_qp_transition_t;

static const npemu_qp_transition_t npemu_qp_transitions[] = {
    {IBV_QPS_RESET, IBV_QPS_INIT,
     {1, NPEMU_QP_INIT_RC, 0},
     {1, NPEMU_QP_INIT_UD, 0}},
    {IBV_QPS_INIT, IBV_QPS_INIT,
     {1, 0, NPEMU_QP_INIT_RC},
     {1, 0, NPEMU_QP_INIT_UD}},
    {IBV_QPS_INIT, IBV_QPS_RTR,
     {1, IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
         IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
      IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX},
     {1, 0, IBV_QP_PKEY_INDEX | IBV_QP_QKEY}},
    {IBV_QPS_RTR, IBV_QPS_RTS,
     {1, IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
         IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
      NPEMU_QP_LIVE_RC},
     {1, IBV_QP_SQ_PSN, NPEMU_QP_LIVE_UD}},
    {IBV_QPS_RTS, IBV_QPS_RTS,
     {1, 0, NPEMU_QP_LIVE_RC},
     {1, 0, NPEMU_QP_LIVE_UD}},
    {IBV_QPS_SQE, IBV_QPS_RTS,
     {0, 0, 0},
     {1, 0, NPEMU_QP_LIVE_UD}}
};

/* --- checks ----------------------------------------------------------------*/

static int npemu_qp_check_mask(npemu_qp_t *qp, enum ibv_qp_state from,
                               enum ibv_qp_state to, int mask)
{
    int is_ud    = (qp->super.qp_type == IBV_QPT_UD);
    int required = 0;
    int optional = 0;
    const npemu_qp_transition_t *t;
    unsigned i, count;

    mask &= ~IBV_QP_STATE;
    if ((to == IBV_QPS_RESET) || (to == IBV_QPS_ERR)) {
        /* From every state; the kernel's table has no RESET to ERR */
        return ((mask != 0) || ((from == IBV_QPS_RESET) &&
                                (to == IBV_QPS_ERR))) ? EINVAL : 0;
    }

    count = sizeof(npemu_qp_transitions) / sizeof(npemu_qp_transitions[0]);
    for (i = 0; i < count; ++i) {
        t = &npemu_qp_transitions[i];
        if ((t->from == from) && (t->to == to) &&
            (is_ud ? t->ud.allowed : t->rc.allowed)) {
            required = is_ud ? t->ud.required : t->rc.required;
            optional = is_ud ? t->ud.optional : t->rc.optional;
            break;
        }
    }

    if ((i == count) || ((mask & required) != required) ||
        (mask & ~(required | optional))) {
        return EINVAL;
    }
    return 0;
}

static int npemu_qp_check_values(const struct ibv_qp_attr *attr, int mask)
{
    const int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                       IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC |
                       IBV_ACCESS_MW_BIND;
    uint8_t unroutable;

    if (((mask & IBV_QP_PORT) && (attr->port_num != NPEMU_PORT)) ||
        ((mask & IBV_QP_PKEY_INDEX) && (attr->pkey_index != 0)) ||
        ((mask & IBV_QP_ACCESS_FLAGS) && (attr->qp_access_flags & ~access)) ||
        ((mask & IBV_QP_PATH_MTU) && ((attr->path_mtu < IBV_MTU_256) ||
                                      (attr->path_mtu > IBV_MTU_4096))) ||
        ((mask & IBV_QP_DEST_QPN) && (attr->dest_qp_num >> NPEMU_QPN_BITS)) ||
        ((mask & IBV_QP_TIMEOUT) && (attr->timeout > 31)) ||
        ((mask & IBV_QP_RETRY_CNT) && (attr->retry_cnt > 7)) ||
        ((mask & IBV_QP_RNR_RETRY) && (attr->rnr_retry > 7)) ||
        ((mask & IBV_QP_MIN_RNR_TIMER) && (attr->min_rnr_timer > 31)) ||
        ((mask & IBV_QP_MAX_QP_RD_ATOMIC) &&
         (attr->max_rd_atomic > NPEMU_MAX_RD_ATOMIC)) ||
        ((mask & IBV_QP_MAX_DEST_RD_ATOMIC) &&
         (attr->max_dest_rd_atomic > NPEMU_MAX_RD_ATOMIC))) {
        return EINVAL;
    }

    if (mask & (IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE)) {
        return EOPNOTSUPP; /* no automatic path migration */
    }

    if (mask & IBV_QP_AV) {
        return npemu_ah_check(&attr->ah_attr, &unroutable);
    }
    return 0;
}

/* --- apply -----------------------------------------------------------------*/

#define npemu_qp_take(_own, _attr, _mask, _bit, _field) \
    if ((_mask) & (_bit)) { \
        (_own)->_field = (_attr)->_field; \
    }

static void npemu_qp_apply_path(npemu_qp_t *qp, const struct ibv_qp_attr *attr,
                                int mask)
{
    struct ibv_qp_attr *own = &qp->attr;
    uint8_t unroutable      = 0;

    if (mask & IBV_QP_AV) {
        own->ah_attr = attr->ah_attr;
        npemu_ah_check(&attr->ah_attr, &unroutable);
        qp->unroutable = unroutable;
    }
    npemu_qp_take(own, attr, mask, IBV_QP_PORT, port_num);
    npemu_qp_take(own, attr, mask, IBV_QP_PKEY_INDEX, pkey_index);
    npemu_qp_take(own, attr, mask, IBV_QP_PATH_MTU, path_mtu);
    npemu_qp_take(own, attr, mask, IBV_QP_TIMEOUT, timeout);
    npemu_qp_take(own, attr, mask, IBV_QP_RETRY_CNT, retry_cnt);
    npemu_qp_take(own, attr, mask, IBV_QP_RNR_RETRY, rnr_retry);
    npemu_qp_take(own, attr, mask, IBV_QP_MAX_QP_RD_ATOMIC, max_rd_atomic);
}

/* Attributes that peers read. */
static void npemu_qp_apply_shared(npemu_qp_t *qp,
                                  const struct ibv_qp_attr *attr, int mask)
{
    struct ibv_qp_attr *own = &qp->attr;
    npemu_qp_shm_t *shm     = qp->shm;

    if (mask & IBV_QP_ACCESS_FLAGS) {
        own->qp_access_flags = attr->qp_access_flags;
        atomic_store(&shm->access, attr->qp_access_flags);
    }
    if (mask & IBV_QP_QKEY) {
        own->qkey = attr->qkey;
        atomic_store(&shm->qkey, attr->qkey);
    }
    if (mask & IBV_QP_DEST_QPN) {
        own->dest_qp_num = attr->dest_qp_num;
        shm->dest_qpn    = attr->dest_qp_num;
    }
    if (mask & IBV_QP_RQ_PSN) {
        own->rq_psn = attr->rq_psn & 0xffffff;
        shm->rq_psn = own->rq_psn;
    }
    if (mask & IBV_QP_SQ_PSN) {
        own->sq_psn = attr->sq_psn & 0xffffff;
        shm->sq_psn = own->sq_psn;
    }
    if (mask & IBV_QP_MAX_DEST_RD_ATOMIC) {
        own->max_dest_rd_atomic = attr->max_dest_rd_atomic;
        atomic_store(&shm->max_dest_rd_atomic, attr->max_dest_rd_atomic);
    }
    if (mask & IBV_QP_MIN_RNR_TIMER) {
        own->min_rnr_timer = attr->min_rnr_timer;
        atomic_store(&shm->min_rnr_timer, attr->min_rnr_timer);
    }
}

/* Takes over the reference to the peer, if there is one. */
static void npemu_qp_connect(npemu_qp_t *qp, npemu_peer_t **peer_p)
{
    npemu_qp_disconnect(qp);
    qp->remote_index = npemu_qpn_index(qp->attr.dest_qp_num);
    if (*peer_p != NULL) {
        qp->peer   = *peer_p;
        qp->remote = &qp->peer->shm->qps[qp->remote_index];
        *peer_p    = NULL;
    }
}

static void npemu_qp_to_error(npemu_qp_t *qp)
{
    npemu_spin_lock(&qp->sq_lock);
    atomic_store(&qp->shm->state, IBV_QPS_ERR);
    npemu_sq_flush(qp);
    npemu_spin_unlock(&qp->sq_lock);
    npemu_qp_flush_recv(qp);
}

static void npemu_qp_to_reset(npemu_qp_t *qp)
{
    npemu_spin_lock(&qp->sq_lock);
    atomic_store(&qp->shm->state, IBV_QPS_RESET);
    npemu_spin_unlock(&qp->sq_lock);
    /* The queues are used again, so all threads must have left them */
    npemu_qp_clear(qp);
    npemu_spin_lock(&qp->sq_lock); /* npemu_recover_orphan() */
    npemu_qp_disconnect(qp);
    npemu_spin_unlock(&qp->sq_lock);
    atomic_fetch_add(&qp->shm->gen, 1);
    qp->attr = (struct ibv_qp_attr){0};
}

/* The state changes last, since peers read the rest when they see it, and only
 * if another process has not set it to ERR in between. */
static int npemu_qp_apply(npemu_qp_t *qp, const struct ibv_qp_attr *attr,
                          int mask, enum ibv_qp_state from,
                          enum ibv_qp_state to, npemu_peer_t **peer_p)
{
    uint32_t expected = from;

    if (to == IBV_QPS_RESET) {
        npemu_qp_to_reset(qp);
        return 0;
    } else if (to == IBV_QPS_ERR) {
        if (from != IBV_QPS_ERR) {
            npemu_qp_to_error(qp);
        }
        return 0;
    }

    npemu_spin_lock(&qp->sq_lock);
    if ((from == IBV_QPS_INIT) && (to == IBV_QPS_RTR)) {
        qp->attr.dest_qp_num = attr->dest_qp_num;
        npemu_qp_connect(qp, peer_p);
    }
    npemu_qp_apply_path(qp, attr, mask);
    npemu_qp_apply_shared(qp, attr, mask);
    atomic_compare_exchange_strong(&qp->shm->state, &expected, to);
    npemu_spin_unlock(&qp->sq_lock);
    return (expected == from) ? 0 : EINVAL;
}

int npemu_modify_qp(struct ibv_qp *ibqp, struct ibv_qp_attr *attr, int mask)
{
    npemu_qp_t *qp     = npemu_qp(ibqp);
    npemu_peer_t *peer = NULL;
    enum ibv_qp_state from, to;
    int ret;

    if (qp->proc != npemu_self()) {
        return NPEMU_ERR_FORKED;
    }

    /* Before `control` is taken, for it may have to detach a dead process */
    if ((mask & IBV_QP_DEST_QPN) && (ibqp->qp_type == IBV_QPT_RC) &&
        !(attr->dest_qp_num >> NPEMU_QPN_BITS)) {
        peer = npemu_peer_get(qp->proc, npemu_qpn_slot(attr->dest_qp_num));
    }

    pthread_mutex_lock(&qp->control);
    from = npemu_qp_state(qp);
    to   = (mask & IBV_QP_STATE) ? attr->qp_state : from;
    ret  = npemu_qp_check_mask(qp, from, to, mask);
    if ((ret == 0) && (mask & IBV_QP_CUR_STATE) &&
        (attr->cur_qp_state != from)) {
        ret = EINVAL;
    }
    if (ret == 0) {
        ret = npemu_qp_check_values(attr, mask);
    }
    if (ret == 0) {
        ret = npemu_qp_apply(qp, attr, mask, from, to, &peer);
    }
    ibqp->state = npemu_qp_state(qp);
    pthread_mutex_unlock(&qp->control);

    if (peer != NULL) {
        npemu_peer_put(qp->proc, peer);
    }
    return ret;
}

int npemu_query_qp(struct ibv_qp *ibqp, struct ibv_qp_attr *attr, int mask,
                   struct ibv_qp_init_attr *init_attr)
{
    npemu_qp_t *qp = npemu_qp(ibqp);

    (void)mask; /* a hint; all attributes are filled in */
    if (qp->proc != npemu_self()) {
        return NPEMU_ERR_FORKED;
    }

    pthread_mutex_lock(&qp->control);
    ibqp->state        = npemu_qp_state(qp);
    *attr              = qp->attr;
    attr->qp_state     = ibqp->state;
    attr->cur_qp_state = ibqp->state;
    attr->cap          = qp->cap;
    pthread_mutex_unlock(&qp->control);

    init_attr->qp_context = ibqp->qp_context;
    init_attr->send_cq    = ibqp->send_cq;
    init_attr->recv_cq    = ibqp->recv_cq;
    init_attr->srq        = ibqp->srq;
    init_attr->cap        = qp->cap;
    init_attr->qp_type    = ibqp->qp_type;
    init_attr->sq_sig_all = qp->sig_all;
    return 0;
}
