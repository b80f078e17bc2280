/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* UCX's internal headers need this one */
#include "config.h"

#include "marks.h"

#include "uct/ib/nprdma/net/nprdma_device.h"

#include <uct/base/uct_iface.h>
#include <uct/base/uct_worker.h>

#include "engine/npemu_av.h"
#include "engine/npemu_qp.h"

#include <pthread.h>

#define MARKS_MAX  256

static struct {
    pthread_mutex_t          lock;
    const uct_nprdma_verbs_t *real;
    uct_nprdma_verbs_t       verbs;
    mark_t                   all[MARKS_MAX];
    unsigned                 count;
} marks = { .lock = PTHREAD_MUTEX_INITIALIZER };


static void marks_add(mark_t mark)
{
    pthread_mutex_lock(&marks.lock);
    if (marks.count < MARKS_MAX) {
        marks.all[marks.count++] = mark;
    }
    pthread_mutex_unlock(&marks.lock);
}

static int marks_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr,
                           int attr_mask)
{
    int ret = marks.real->modify_qp(qp, attr, attr_mask);
    struct ibv_ah_attr *kept;
    mark_t mark = {};

    if ((ret == 0) && (attr_mask & IBV_QP_AV)) {
        kept    = &npemu_qp(qp)->attr.ah_attr;
        mark.sl = kept->sl;
        if (kept->is_global) {
            mark.traffic_class = kept->grh.traffic_class;
        }
        marks_add(mark);
    }
    return ret;
}

static struct ibv_ah *marks_create_ah(struct ibv_pd *pd,
                                      struct ibv_ah_attr *attr)
{
    struct ibv_ah *ah = marks.real->create_ah(pd, attr);
    mark_t mark       = { .is_datagram = 1 };

    if (ah != NULL) {
        mark.sl            = npemu_ah(ah)->av.path.sl;
        mark.traffic_class = npemu_ah(ah)->av.path.flow >> 20;
        marks_add(mark);
    }
    return ah;
}

static int marks_query_port(struct ibv_context *context, uint8_t port_num,
                            struct ibv_port_attr *attr)
{
    int ret = marks.real->query_port_attr(context, port_num, attr);

    attr->link_layer = IBV_LINK_LAYER_ETHERNET;
    return ret;
}

void marks_clear(void)
{
    pthread_mutex_lock(&marks.lock);
    marks.count = 0;
    marks.real  = NULL;
    pthread_mutex_unlock(&marks.lock);
}

void marks_start(uct_md_h md, uct_iface_h iface)
{
    uct_nprdma_device_t *dev   = ucs_derived_of(md, uct_nprdma_device_t);
    ucs_async_context_t *async = ucs_derived_of(iface, uct_base_iface_t)
                                         ->worker->async;

    /* Its thread uses the device while it has this */
    UCS_ASYNC_BLOCK(async);
    if (marks.real == NULL) {
        marks.real            = dev->verbs;
        marks.verbs           = *dev->verbs;
        marks.verbs.modify_qp = marks_modify_qp;
        marks.verbs.create_ah = marks_create_ah;
    }
    dev->verbs = &marks.verbs;
    UCS_ASYNC_UNBLOCK(async);
}

void marks_set_ethernet(void)
{
    marks.verbs.query_port_attr = marks_query_port;
}

unsigned marks_count(void)
{
    unsigned count;

    pthread_mutex_lock(&marks.lock);
    count = marks.count;
    pthread_mutex_unlock(&marks.lock);
    return count;
}

mark_t marks_get(unsigned index)
{
    mark_t mark;

    pthread_mutex_lock(&marks.lock);
    mark = marks.all[index];
    pthread_mutex_unlock(&marks.lock);
    return mark;
}
