/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* UCX's internal headers need this one */
#include "config.h"

#include "hook.h"

#include "uct/ib/nprdma/base/nprdma_ep.h"
#include "uct/ib/nprdma/wire/nprdma_key.h"

#include <ucs/async/async.h>
#include <uct/base/uct_worker.h>

#include "engine/npemu_wqe.h"
#include "engine/npemu_qp.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    HOOK_MAX_QPS   = 512,
    HOOK_MAX_HELD  = 128,
    HOOK_MAX_MARKS = 256
};

/* A work request that waits. The caller may reuse its data when it has
 * posted. */
typedef struct hook_held {
    struct ibv_qp      *qp;
    struct ibv_send_wr wr;
    struct ibv_sge     sge[UCT_NPRDMA_MAX_SEND_SGE];
    char               data[UCT_NPRDMA_MAX_INLINE];
} hook_held_t;

typedef struct hook_qp {
    uint32_t qpn;
    unsigned counts[HOOK_NUM_OPS];
    int      has_refused;

    /* A datagram that waits for the next one. The caller keeps its data until
     * it has completed. */
    struct ibv_send_wr late;
    struct ibv_sge     late_sge;
    int                has_late;
} hook_qp_t;

/* What a test has asked for, and what was recorded */
typedef struct hook_state {
    hook_qp_t          qps[HOOK_MAX_QPS];
    hook_held_t        held[HOOK_MAX_HELD];
    unsigned           first_held;
    hook_numbers_t     numbers;

    struct ibv_qp      *gate;           /* NULL: it is open */
    hook_op_t          from;

    struct ibv_qp      *forging;
    uint64_t           address;
    uint32_t           rkey;

    struct ibv_context *refusing;
    unsigned           after, count;
    struct ibv_pd      *_Atomic without_qps;
    _Atomic unsigned   ah_usec;

    hook_losses_t      losses;
    unsigned           random;

    void               (*call)(void *arg);
    void               *arg;
    int                is_watching, is_svc, is_holding;
    uint32_t           probes[HOOK_MAX_PROBES];
    unsigned           num_probes;

    hook_mark_t        marks[HOOK_MAX_MARKS];
    unsigned           num_marks;
    int                is_ethernet;

    struct ibv_cq      *others[3];      /* Those of the interface */
} hook_state_t;

/* Threads of the component use the device as well */
static pthread_mutex_t hook_lock = PTHREAD_MUTEX_INITIALIZER;
static hook_state_t hook;
static __thread unsigned hook_polls;

/* Of the emulated RNIC: the same for all of its MDs */
static const uct_nprdma_verbs_t *hook_real;
static uct_nprdma_verbs_t hook_verbs;
static struct ibv_context_ops hook_ops;

static unsigned hook_read(const unsigned *counter)
{
    unsigned value;

    pthread_mutex_lock(&hook_lock);
    value = *counter;
    pthread_mutex_unlock(&hook_lock);
    return value;
}

/* Numbers of queue pairs are not used again so soon */
static hook_qp_t *hook_find_qp(uint32_t qpn)
{
    unsigned i;

    for (i = 0; (i < HOOK_MAX_QPS - 1) && (hook.qps[i].qpn != 0) &&
                (hook.qps[i].qpn != qpn); ++i) {
    }
    hook.qps[i].qpn = qpn;
    return &hook.qps[i];
}

/* @return HOOK_NUM_OPS if it moves no data */
static hook_op_t hook_op(const struct ibv_send_wr *wr)
{
    if (wr->num_sge == 0) {
        return HOOK_NUM_OPS;
    }
    return ((wr->opcode == IBV_WR_SEND) ||
            (wr->opcode == IBV_WR_SEND_WITH_IMM)) ? HOOK_SEND :
           (wr->opcode == IBV_WR_RDMA_READ) ? HOOK_READ : HOOK_WRITE;
}

static int hook_hold(struct ibv_qp *qp, const struct ibv_send_wr *wr)
{
    hook_held_t *held = &hook.held[(hook.first_held + hook.numbers.held) %
                                   HOOK_MAX_HELD];
    char *data        = held->data;
    int i;

    if (hook.numbers.held == HOOK_MAX_HELD) {
        return ENOMEM;
    }

    held->qp         = qp;
    held->wr         = *wr;
    held->wr.sg_list = held->sge;
    for (i = 0; i < wr->num_sge; ++i) {
        held->sge[i] = wr->sg_list[i];
        if (wr->send_flags & IBV_SEND_INLINE) {
            memcpy(data, (void*)(uintptr_t)held->sge[i].addr,
                   held->sge[i].length);
            held->sge[i].addr = (uintptr_t)data;
            data             += held->sge[i].length;
        }
    }
    ++hook.numbers.held;
    return 0;
}

int hook_let_one_go(void)
{
    hook_held_t *held = NULL;
    struct ibv_send_wr *bad_wr;

    pthread_mutex_lock(&hook_lock);
    if (hook.numbers.held > 0) {
        held            = &hook.held[hook.first_held];
        hook.first_held = (hook.first_held + 1) % HOOK_MAX_HELD;
        --hook.numbers.held;
    }
    pthread_mutex_unlock(&hook_lock);
    if (held != NULL) {
        (void)hook_ops.post_send(held->qp, &held->wr, &bad_wr);
    }
    return held != NULL;
}

void hook_let_go(void)
{
    pthread_mutex_lock(&hook_lock);
    hook.gate       = NULL;
    hook.is_holding = 0;
    pthread_mutex_unlock(&hook_lock);
    while (hook_let_one_go()) {
    }
}

static int hook_must_wait(struct ibv_qp *qp, const struct ibv_send_wr *wr,
                          int is_probe)
{
    if (is_probe && hook.is_watching &&
        (uct_nprdma_cm_wr_id_is_probe(wr->wr_id) == !hook.is_svc)) {
        if (hook.num_probes < HOOK_MAX_PROBES) {
            hook.probes[hook.num_probes++] = qp->qp_num;
        }
        return hook.is_holding;
    }
    return (qp == hook.gate) &&
           ((hook.numbers.held > 0) || (hook_op(wr) == hook.from));
}

/* For a single request, because the component posts no lists */
static int hook_is_refused(hook_qp_t *qp, int is_empty)
{
    if (hook.after > 0) {
        --hook.after;
    } else if (hook.count > 0) {
        --hook.count;
        ++hook.numbers.refused;
        qp->has_refused = 1;
        return 1;
    }

    hook.numbers.overtakers += !is_empty && qp->has_refused;
    return 0;
}

/* True in the given percentage of cases */
static int hook_happens(unsigned percent)
{
    int happens = ((unsigned)rand_r(&hook.random) % 100) < percent;

    hook.numbers.losses += happens;
    return happens;
}

/* Each has a completion, as on a real network, where losses are not seen */
static int hook_post_datagram(struct ibv_qp *qp, struct ibv_send_wr *wr,
                              struct ibv_send_wr **bad_wr)
{
    struct ibv_send_wr it = *wr, twin, late;
    struct ibv_sge sge    = *wr->sg_list, late_sge;
    int has_twin          = 0, has_late;
    hook_qp_t *known;
    int ret;

    pthread_mutex_lock(&hook_lock);
    known      = hook_find_qp(qp->qp_num);
    it.sg_list = &sge;
    if (hook_happens(hook.losses.fail)) {
        sge.lkey ^= 1u << 31;
    }

    if (hook_happens(hook.losses.drop)) {
        it.wr.ud.remote_qkey ^= 1; /* The receiver ignores it */
    } else if (!known->has_late && hook_happens(hook.losses.reorder)) {
        known->late     = it;
        known->late_sge = sge;
        known->has_late = 1;
        pthread_mutex_unlock(&hook_lock);
        return 0;
    } else {
        has_twin = hook_happens(hook.losses.dup);
    }

    has_late        = known->has_late;
    late            = known->late;
    late_sge        = known->late_sge;
    known->has_late = 0;
    pthread_mutex_unlock(&hook_lock);

    if (has_twin) {
        twin             = it;
        twin.send_flags &= ~IBV_SEND_SIGNALED;
        (void)hook_ops.post_send(qp, &twin, bad_wr);
    }
    ret = hook_ops.post_send(qp, &it, bad_wr);
    if (has_late) {
        late.sg_list = &late_sge;
        (void)hook_ops.post_send(qp, &late, bad_wr);
    }
    return ret;
}

static int hook_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr,
                          struct ibv_send_wr **bad_wr)
{
    int is_probe            = (wr->opcode == IBV_WR_RDMA_WRITE) &&
                              (wr->num_sge == 0);
    void (*call)(void *arg) = NULL;
    struct ibv_send_wr forged = *wr;
    int must_wait, ret      = 0;
    hook_qp_t *counted;

    if ((qp == hook.forging) && (hook_op(wr) == HOOK_SEND)) {
        forged.opcode              = IBV_WR_RDMA_WRITE_WITH_IMM;
        forged.imm_data            = 0;
        forged.wr.rdma.remote_addr = hook.address;
        forged.wr.rdma.rkey        = hook.rkey;
        wr                         = &forged;
    }
    if (qp->qp_type != IBV_QPT_RC) {
        return hook_post_datagram(qp, wr, bad_wr);
    }

    pthread_mutex_lock(&hook_lock);
    counted = hook_find_qp(qp->qp_num);
    if (hook_op(wr) != HOOK_NUM_OPS) {
        ++counted->counts[hook_op(wr)];
    }
    must_wait = hook_must_wait(qp, wr, is_probe);
    if (must_wait) {
        ret = hook_hold(qp, wr);
    } else if ((qp->context == hook.refusing) &&
               hook_is_refused(counted, is_probe)) {
        ret = ENOMEM;
    } else if (is_probe) {
        call      = hook.call;
        hook.call = NULL;
    }
    pthread_mutex_unlock(&hook_lock);

    if (ret != 0) {
        *bad_wr = wr;
    } else if (!must_wait) {
        ret = hook_ops.post_send(qp, wr, bad_wr);
        if (call != NULL) {
            call(hook.arg);
        }
    }
    return ret;
}

static int hook_poll_cq(struct ibv_cq *cq, int num_entries, struct ibv_wc *wc)
{
    hook_polls += (cq != hook.others[0]) && (cq != hook.others[1]) &&
                  (cq != hook.others[2]);
    return hook_ops.poll_cq(cq, num_entries, wc);
}

static struct ibv_qp *
hook_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
    if (pd == hook.without_qps) {
        errno = ENOMEM;
        return NULL;
    }
    return hook_real->create_qp(pd, attr);
}

static int hook_destroy_qp(struct ibv_qp *qp)
{
    pthread_mutex_lock(&hook_lock);
    if (qp == hook.gate) {
        hook.numbers.is_destroyed = 1;
        hook.numbers.held         = 0;
        hook.gate                 = NULL;
    }
    pthread_mutex_unlock(&hook_lock);
    return hook_real->destroy_qp(qp);
}

static void hook_add_mark(hook_mark_t mark)
{
    pthread_mutex_lock(&hook_lock);
    if (hook.num_marks < HOOK_MAX_MARKS) {
        hook.marks[hook.num_marks++] = mark;
    }
    pthread_mutex_unlock(&hook_lock);
}

static int
hook_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int attr_mask)
{
    int ret = hook_real->modify_qp(qp, attr, attr_mask);
    struct ibv_ah_attr *kept;
    hook_mark_t mark = {};

    if ((ret == 0) && (attr_mask & IBV_QP_AV)) {
        kept    = &npemu_qp(qp)->attr.ah_attr;
        mark.sl = kept->sl;
        if (kept->is_global) {
            mark.traffic_class = kept->grh.traffic_class;
        }
        hook_add_mark(mark);
    }
    return ret;
}

static struct ibv_ah *
hook_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr)
{
    unsigned usec     = hook.ah_usec;
    struct ibv_ah *ah = (usec > 0) ? NULL : hook_real->create_ah(pd, attr);
    hook_mark_t mark  = { .is_datagram = 1 };

    if (usec > 0) {
        usleep(usec);
        pthread_mutex_lock(&hook_lock);
        ++hook.numbers.bad_ahs;
        pthread_mutex_unlock(&hook_lock);
    }
    if (ah != NULL) {
        mark.sl            = npemu_ah(ah)->av.path.sl;
        mark.traffic_class = npemu_ah(ah)->av.path.flow >> 20;
        hook_add_mark(mark);
    }
    return ah;
}

static int hook_query_port(struct ibv_context *context, uint8_t port_num,
                           struct ibv_port_attr *attr)
{
    int ret = hook_real->query_port_attr(context, port_num, attr);

    if (hook.is_ethernet) {
        attr->link_layer = IBV_LINK_LAYER_ETHERNET;
    }
    return ret;
}

void hook_start(uct_md_h md, uct_iface_h tl_iface)
{
    uct_nprdma_device_t *dev  = ucs_derived_of(md, uct_nprdma_device_t);
    uct_nprdma_iface_t *iface = ucs_derived_of(tl_iface, uct_nprdma_iface_t);

    /* Its thread uses the device while it has this */
    UCS_ASYNC_BLOCK(iface->net.super.worker->async);
    if (hook_real == NULL) {
        hook_real                  = dev->verbs;
        hook_ops                   = dev->context->ops;
        hook_verbs                 = *dev->verbs;
        hook_verbs.create_qp       = hook_create_qp;
        hook_verbs.destroy_qp      = hook_destroy_qp;
        hook_verbs.modify_qp       = hook_modify_qp;
        hook_verbs.create_ah       = hook_create_ah;
        hook_verbs.query_port_attr = hook_query_port;
    }
    pthread_mutex_lock(&hook_lock);
    memset(&hook, 0, sizeof(hook));
    hook.others[0] = iface->net.tx.cq;
    hook.others[1] = iface->net.rx.cq;
    hook.others[2] = iface->net.cm.cq;
    pthread_mutex_unlock(&hook_lock);
    dev->verbs                  = &hook_verbs;
    dev->context->ops.post_send = hook_post_send;
    dev->context->ops.poll_cq   = hook_poll_cq;
    UCS_ASYNC_UNBLOCK(iface->net.super.worker->async);
}

static struct ibv_qp *hook_ep_qp(uct_ep_h ep, unsigned kind)
{
    return ucs_derived_of(ep, uct_nprdma_ep_t)->net.conns[kind].qp;
}

void hook_gate_close(uct_ep_h ep, unsigned kind, hook_op_t from)
{
    pthread_mutex_lock(&hook_lock);
    hook.gate                 = hook_ep_qp(ep, kind);
    hook.from                 = from;
    hook.numbers.is_destroyed = 0;
    pthread_mutex_unlock(&hook_lock);
}

void hook_forge(uct_ep_h ep, unsigned kind, uint64_t address, uct_rkey_t rkey)
{
    hook.address = address;
    hook.rkey    = (ep == NULL) ? 0 : ((uct_nprdma_rkey_t*)rkey)->w_rkey;
    hook.forging = (ep == NULL) ? NULL : hook_ep_qp(ep, kind);
}

hook_numbers_t hook_numbers(void)
{
    hook_numbers_t numbers;

    pthread_mutex_lock(&hook_lock);
    numbers = hook.numbers;
    pthread_mutex_unlock(&hook_lock);
    return numbers;
}

unsigned hook_count(uct_ep_h ep, unsigned kind, hook_op_t op)
{
    struct ibv_qp *qp = hook_ep_qp(ep, kind);

    return (qp == NULL) ? 0 :
           hook_read(&hook_find_qp(qp->qp_num)->counts[op]);
}

void hook_refuse(uct_md_h md, unsigned after, unsigned count)
{
    unsigned i;

    pthread_mutex_lock(&hook_lock);
    hook.refusing           = ucs_derived_of(md, uct_nprdma_device_t)->context;
    hook.after              = after;
    hook.count              = count;
    hook.numbers.refused    = 0;
    hook.numbers.overtakers = 0;
    for (i = 0; i < HOOK_MAX_QPS; ++i) {
        hook.qps[i].has_refused = 0;
    }
    pthread_mutex_unlock(&hook_lock);
}

void hook_refuse_qps(uct_md_h md)
{
    hook.without_qps = (md == NULL) ? NULL :
                       ucs_derived_of(md, uct_nprdma_device_t)->pd;
}

void hook_refuse_ahs(unsigned usec)
{
    hook.ah_usec = usec;
}

void hook_lose(hook_losses_t losses)
{
    pthread_mutex_lock(&hook_lock);
    hook.losses = losses;
    hook.random = 42;
    pthread_mutex_unlock(&hook_lock);
}

void hook_probe_arm(void (*call)(void *arg), void *arg)
{
    pthread_mutex_lock(&hook_lock);
    hook.call = call;
    hook.arg  = arg;
    pthread_mutex_unlock(&hook_lock);
}

void hook_watch_probes(int is_svc, int is_holding)
{
    pthread_mutex_lock(&hook_lock);
    hook.is_watching = 1;
    hook.is_svc      = is_svc;
    hook.is_holding  = is_holding;
    hook.num_probes  = 0;
    pthread_mutex_unlock(&hook_lock);
}

unsigned hook_probes(uint32_t *qpns)
{
    unsigned count;

    pthread_mutex_lock(&hook_lock);
    count = hook.num_probes;
    memcpy(qpns, hook.probes, count * sizeof(*qpns));
    pthread_mutex_unlock(&hook_lock);
    return count;
}

int hook_mark(unsigned index, hook_mark_t *mark)
{
    int is_made;

    pthread_mutex_lock(&hook_lock);
    is_made = index < hook.num_marks;
    if (is_made) {
        *mark = hook.marks[index];
    }
    pthread_mutex_unlock(&hook_lock);
    return is_made;
}

void hook_set_ethernet(void)
{
    hook.is_ethernet = 1;
}

unsigned hook_service_polls(void)
{
    return hook_polls;
}
