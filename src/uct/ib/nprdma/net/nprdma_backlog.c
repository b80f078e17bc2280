/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_backlog.h"

#include <ucs/debug/log.h>
#include <ucs/debug/memtrack_int.h>

#include <errno.h>

typedef struct uct_nprdma_backlog_wr {
    ucs_queue_elem_t   queue;
    struct ibv_send_wr wr;
    struct ibv_sge     sge[UCT_NPRDMA_MAX_SEND_SGE];
    char               data[];     /* inline data */
} uct_nprdma_backlog_wr_t;


static size_t uct_nprdma_backlog_inline_length(const struct ibv_send_wr *wr)
{
    size_t length = 0;
    int i;

    for (i = 0; (wr->send_flags & IBV_SEND_INLINE) && (i < wr->num_sge); ++i) {
        length += wr->sg_list[i].length;
    }
    return length;
}

/* The caller may reuse inline data when the post returns, so it is copied */
static void uct_nprdma_backlog_copy_inline(uct_nprdma_backlog_wr_t *elem,
                                           const struct ibv_send_wr *wr)
{
    char *dest = elem->data;
    int i;

    for (i = 0; i < wr->num_sge; ++i) {
        memcpy(dest, (const void*)(uintptr_t)wr->sg_list[i].addr,
               wr->sg_list[i].length);
        dest += wr->sg_list[i].length;
    }
    elem->sge[0].addr   = (uintptr_t)elem->data;
    elem->sge[0].length = dest - elem->data;
    elem->sge[0].lkey   = 0;
    elem->wr.num_sge    = 1;
}

static int uct_nprdma_backlog_keep(uct_nprdma_conn_t *conn,
                                   const struct ibv_send_wr *wr)
{
    uct_nprdma_backlog_wr_t *elem;

    ucs_assert(wr->num_sge <= UCT_NPRDMA_MAX_SEND_SGE);
    elem = ucs_malloc(sizeof(*elem) + uct_nprdma_backlog_inline_length(wr),
                      "nprdma_backlog");
    if (elem == NULL) {
        return ENOMEM;
    }

    elem->wr         = *wr;
    elem->wr.next    = NULL;
    elem->wr.sg_list = elem->sge;
    if (wr->send_flags & IBV_SEND_INLINE) {
        uct_nprdma_backlog_copy_inline(elem, wr);
    } else if (wr->num_sge > 0) {
        memcpy(elem->sge, wr->sg_list, wr->num_sge * sizeof(*wr->sg_list));
    }

    ucs_queue_push(&conn->backlog, &elem->queue);
    return 0;
}

int uct_nprdma_backlog_add(uct_nprdma_net_iface_t *iface,
                           uct_nprdma_conn_t *conn, struct ibv_send_wr *wr)
{
    struct ibv_send_wr *bad_wr;
    int ret;

    UCS_ASYNC_BLOCK(iface->super.worker->async);
    if (conn->refused) {
        ret = ECANCELED;
    } else if (conn->established) {
        ret = ibv_post_send(conn->qp, wr, &bad_wr);
    } else {
        ret = uct_nprdma_backlog_keep(conn, wr);
    }
    UCS_ASYNC_UNBLOCK(iface->super.worker->async);
    return ret;
}

ucs_status_t
uct_nprdma_backlog_post(uct_nprdma_net_iface_t *iface, uct_nprdma_conn_t *conn)
{
    uct_nprdma_backlog_wr_t *elem;
    struct ibv_send_wr *bad_wr;
    int ret = 0;

    ucs_queue_for_each_extract(elem, &conn->backlog, queue, ret == 0) {
        ret = ibv_post_send(conn->qp, &elem->wr, &bad_wr);
        ucs_free(elem);
    }

    if (ret == 0) {
        return UCS_OK;
    }

    ucs_debug("iface %p: connection 0x%x refuses what was posted early: %s",
              iface, conn->id, strerror(ret));
    conn->refused = 1;
    uct_nprdma_backlog_drop(conn);
    return UCS_ERR_CONNECTION_RESET;
}

void uct_nprdma_backlog_drop(uct_nprdma_conn_t *conn)
{
    uct_nprdma_backlog_wr_t *elem;

    ucs_queue_for_each_extract(elem, &conn->backlog, queue, 1) {
        ucs_free(elem);
    }
}
