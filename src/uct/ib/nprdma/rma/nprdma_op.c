/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_op.h"
#include "nprdma_bulk.h"
#include "nprdma_held.h"
#include "nprdma_rma_flush.h"
#include "nprdma_rma_req.h"
#include "nprdma_verify.h"
#include "uct/ib/nprdma/mem/nprdma_mem.h"
#include "uct/ib/nprdma/mem/nprdma_mrs.h"
#include "uct/ib/nprdma/net/nprdma_conn.h"


#include "nprdma_assert.h"
#include "nprdma_probe.h"

/* Messages of a rendezvous around its get: a request and an acknowledgement,
 * and as many of one in the other direction. Gets of others have none, and
 * UCP does not tell which is which. */
#define UCT_NPRDMA_OP_OWN_MESSAGES  4u

/* Minimum number of slices of an interface */
#define UCT_NPRDMA_OP_MIN_SLICES  (UCT_NPRDMA_OP_SMALL_SLICES + 4)


static ucs_status_t
uct_nprdma_op_slices_init(uct_nprdma_mem_md_t *md, uct_nprdma_op_iface_t *ops)
{
    ucs_status_t status;
    unsigned i;

    status = uct_nprdma_bounce_init(&ops->states, &md->super,
                                    UCT_NPRDMA_OP_SLICE_PAGES(ops->slice) *
                                            sizeof(uint32_t),
                                    UCT_NPRDMA_OP_MAX_SLICES,
                                    UCT_NPRDMA_OP_MIN_SLICES, "page states");
    if (status != UCS_OK) {
        return status;
    }

    ucs_queue_head_init(&ops->free_slices);
    uct_nprdma_credits_init(&ops->slice_credits, ops->states.num_slots,
                            UCT_NPRDMA_OP_SMALL_SLICES);
    for (i = 0; i < ops->states.num_slots; ++i) {
        ops->slices[i].slot = uct_nprdma_bounce_get(&ops->states);
        ucs_queue_push(&ops->free_slices, &ops->slices[i].queue);
    }
    return UCS_OK;
}

ucs_status_t uct_nprdma_op_iface_init(uct_nprdma_rma_iface_t *iface,
                                      uct_nprdma_op_iface_t *ops)
{
    const uct_nprdma_rma_config_t *config = iface->config;
    uct_nprdma_mem_md_t *md               = uct_nprdma_rma_md(iface);
    ucs_status_t status;
    unsigned i;

    ops->slice           = config->slice;
    ops->prio_max        = config->prio_max;
    ops->num_large       = 0;
    uct_nprdma_sched_init(&ops->sched, config->slice, config->busy_slice,
                          config->slice + NPRDMA_PAGE_SIZE, config->quota);
    ops->scan_max        = config->scan_max;
    ops->max_tries       = config->max_tries;
    ops->cache           = uct_nprdma_state_cache_create(
            uct_nprdma_mem_has_zcopy(md) ? config->state_cache : 0);
    if (ops->cache == NULL) {
        ucs_error("failed to allocate %zu bytes of page states",
                  config->state_cache);
        return UCS_ERR_NO_MEMORY;
    }

    status = uct_nprdma_op_slices_init(md, ops);
    if (status != UCS_OK) {
        uct_nprdma_state_cache_destroy(ops->cache);
        return status;
    }

    uct_nprdma_credits_init(&ops->credits, UCT_NPRDMA_MAX_OPS,
                            UCT_NPRDMA_OP_SMALL_OPS);
    ucs_list_head_init(&ops->free_ops);
    for (i = 0; i < UCT_NPRDMA_MAX_OPS; ++i) {
        ucs_list_head_init(&ops->all[i].slices);
        ucs_list_add_tail(&ops->free_ops, &ops->all[i].list);
    }

    ops->read_wr.opcode     = IBV_WR_RDMA_READ;
    ops->read_wr.sg_list    = &ops->read_sge;
    ops->read_wr.num_sge    = 1;
    ops->read_wr.send_flags = IBV_SEND_SIGNALED;
    return UCS_OK;
}

void uct_nprdma_op_iface_cleanup(uct_nprdma_op_iface_t *ops)
{
    uct_nprdma_bounce_cleanup(&ops->states);
    uct_nprdma_state_cache_destroy(ops->cache);
}

void uct_nprdma_op_ep_init(uct_nprdma_op_ep_t *ops,
                           uct_nprdma_order_mode_t mode)
{
    int i;

    uct_nprdma_order_init(&ops->order, mode);
    for (i = 0; i < 2; ++i) {
        ops->num_ops[i]    = 0;
        ops->num_slices[i] = 0;
        ucs_queue_head_init(&ops->todo[i]);
    }
    ucs_list_head_init(&ops->unsliced);
    uct_nprdma_sched_ep_init(&ops->sched);
    ucs_list_head_init(&ops->unacked);
    ucs_list_head_init(&ops->ready);
}


/* ---- local buffers ---- */

/* Map a buffer for the NIC: a local registration for this operation alone,
 * which is only a lookup. No key leads to the pages that are populated for it
 * (ARCHITECTURE 3, reach of a key). The user's memory handle cannot be used:
 * UCP creates none for a memory domain that does not require it, and UCP 1.13
 * then passes an undefined value. Zero if the NIC cannot reach the buffer. */
static int uct_nprdma_op_piece_map(uct_nprdma_mem_md_t *md,
                                   uct_nprdma_op_piece_t *piece, int is_get)
{
    uintptr_t address = (uintptr_t)piece->buffer;
    const uct_nprdma_mrs_t *mrs;
    ucs_status_t status;

    if (md->odp != NULL) {
        piece->is_on_demand = 1;
        return 1;
    }

    status = nprdma_monitor_register_local(md->monitor, address, piece->length,
                                           &piece->range);
    if (ucs_unlikely(status != UCS_OK)) {
        piece->range.region = NULL;
        uct_nprdma_mem_no_region(md, address, piece->length, status);
        return 0;
    }

    /* Rule "reach of a key": no key leads to a local region */
    nprdma_assert(piece->range.region->is_local);
    mrs         = uct_nprdma_mrs(piece->range.region);
    piece->lkey = is_get ? mrs->w->lkey : mrs->r->lkey;
    return 1;
}

static void uct_nprdma_op_unmap(uct_nprdma_rma_iface_t *iface,
                                uct_nprdma_op_t *op)
{
    nprdma_monitor_t *monitor = uct_nprdma_rma_md(iface)->monitor;
    unsigned i;

    for (i = 0; i < op->num_pieces; ++i) {
        if (op->pieces[i].range.region != NULL) {
            nprdma_monitor_unregister(monitor, &op->pieces[i].range, 0);
            op->pieces[i].range.region = NULL;
        }
    }
}

/* Set the buffers of an operation, and find out whether the NIC can execute
 * it */
static void uct_nprdma_op_map(uct_nprdma_rma_iface_t *iface,
                              uct_nprdma_op_t *op, const uct_iov_t *iov,
                              size_t iovcnt)
{
    uct_nprdma_mem_md_t *md = uct_nprdma_rma_md(iface);
    uct_nprdma_op_piece_t *piece;
    size_t i, length;

    op->num_pieces = 0;
    op->length     = 0;
    for (i = 0; i < iovcnt; ++i) {
        length = uct_iov_get_length(&iov[i]);
        if (length > 0) {
            piece               = &op->pieces[op->num_pieces++];
            piece->buffer       = iov[i].buffer;
            piece->length       = length;
            piece->range.region = NULL;
            piece->is_on_demand = 0;
            op->length         += length;
        }
    }

    op->by_nic = uct_nprdma_mem_has_zcopy(md) &&
                 ((op->is_get ? op->rkey.r_rkey : op->rkey.w_rkey) != 0) &&
                 uct_nprdma_key_covers(&op->rkey, op->address, op->length);
    for (i = 0, piece = op->pieces; op->by_nic && (i < iovcnt); ++i) {
        if (uct_iov_get_length(&iov[i]) > 0) {
            op->by_nic = uct_nprdma_op_piece_map(md, piece++, op->is_get);
        }
    }
    if (!op->by_nic) {
        uct_nprdma_op_unmap(iface, op);
    }
}


/* ---- operations ---- */

static inline size_t
uct_nprdma_op_cut_length(const uct_nprdma_op_iface_t *ops,
                         const uct_nprdma_op_t *op)
{
    return (op->is_large ? uct_nprdma_sched_slice(&ops->sched) : ops->slice) +
           (-op->address % NPRDMA_PAGE_SIZE);
}

/* Cut the next slice of an operation. A slice ends at the end of a remote page,
 * so that slices share no page there, and all slices of a buffer but the first
 * begin with a line (ARCHITECTURE 3, remote READ). The first slice also has the
 * rest of its page, which would otherwise be one more slice at the end. */
static void uct_nprdma_op_cut(uct_nprdma_op_iface_t *ops,
                              uct_nprdma_op_t *op,
                              uct_nprdma_op_slice_t *slice)
{
    uct_nprdma_op_piece_t *piece = &op->pieces[op->piece];
    size_t length;

    length = ucs_min(uct_nprdma_op_cut_length(ops, op),
                     piece->length - op->offset);

    slice->op         = op;
    slice->piece      = piece;
    slice->buffer     = piece->buffer + op->offset;
    slice->address    = op->address;
    slice->length     = length;
    slice->is_counted = 0;

    op->address   += length;
    op->length    -= length;
    op->offset    += length;
    if (op->offset == piece->length) {
        op->offset = 0;
        ++op->piece;
    }

    ++op->num_slices;
    ucs_list_add_tail(&op->slices, &slice->list);
}

/* One slice is left to large operations while they have none: small ones that
 * are posted again and again must not keep them out for ever */
static inline int uct_nprdma_op_has_slice(const uct_nprdma_op_iface_t *ops,
                                          const uct_nprdma_rma_t *rma,
                                          int is_large)
{
    const uct_nprdma_credits_t *credits = &ops->slice_credits;
    unsigned kept                       = !is_large &&
                                          (credits->num_large == 0);

    return uct_nprdma_credits_admit(credits, rma->ops.num_slices[is_large],
                                    kept, is_large);
}

/* Check whether a slice of a large operation may start. A slice has up to two
 * WRs at a time: those of all slices together leave a share of the send queue
 * to small operations, also if slices that start with one WR continue with two.
 * An endpoint that has no slice may use the WRs for redo: small operations that
 * are posted again and again may have all others. Like those for redo, they
 * come back without waiting for anything else. */
static int uct_nprdma_op_admit_large(uct_nprdma_rma_iface_t *iface,
                                     const uct_nprdma_op_t *op)
{
    uct_nprdma_rma_t *rma         = op->rma;
    int32_t num_slices            = rma->ops.num_slices[1];
    const uct_nprdma_conn_t *conn = op->by_nic ? uct_nprdma_bulk_conn(rma) :
                                                 &rma->ep->net.svc;

    if (!uct_nprdma_op_has_slice(&iface->res->ops, rma, 1)) {
        return 0;
    }

    return (((2 * (num_slices + 1)) <=
             (conn->max_credits - conn->small_reserve)) &&
            uct_nprdma_rma_admit_large(iface, rma, conn)) ||
           ((num_slices == 0) &&
            (conn->state == UCT_NPRDMA_CONN_CONNECTED) &&
            uct_nprdma_conn_admit_redo(&iface->net, conn, 2) &&
            uct_nprdma_rma_can_count(rma));
}

/* Rule "overlap": nothing that the operation must not overtake is left. For
 * asserts. */
static int uct_nprdma_op_may_start(const uct_nprdma_rma_t *rma,
                                   const uct_nprdma_op_t *op)
{
    return !op->order.is_held &&
           (uct_nprdma_order_find_before(&rma->ops.order, &op->order) ==
            NULL) &&
           (!op->order.awaits_request ||
            UCT_NPRDMA_RMA_SN_CMP(rma->done_sn, >=, op->order.request));
}

/* Cut the next slice; one is free */
static inline uct_nprdma_op_slice_t *
uct_nprdma_op_cut_next(uct_nprdma_op_iface_t *ops, uct_nprdma_op_t *op)
{
    uct_nprdma_op_slice_t *slice;

    nprdma_assert(uct_nprdma_op_may_start(op->rma, op));
    slice = ucs_queue_pull_elem_non_empty(&ops->free_slices,
                                          uct_nprdma_op_slice_t, queue);
    uct_nprdma_credits_take(&ops->slice_credits, op->is_large);
    ++op->rma->ops.num_slices[op->is_large];
    uct_nprdma_op_cut(ops, op, slice);
    return slice;
}

/* Start slices of small operations, oldest first, as long as there are
 * resources */
static unsigned uct_nprdma_op_issue(uct_nprdma_rma_iface_t *iface,
                                    uct_nprdma_rma_t *rma)
{
    uct_nprdma_op_iface_t *ops = &iface->res->ops;
    unsigned count             = 0;
    uct_nprdma_op_t *op;

    while (!ucs_list_is_empty(&rma->ops.unsliced) &&
           uct_nprdma_op_has_slice(ops, rma, 0) &&
           uct_nprdma_rma_admit_post(iface, rma)) {
        op = ucs_list_head(&rma->ops.unsliced, uct_nprdma_op_t, unsliced);
        uct_nprdma_op_slice_start(iface, uct_nprdma_op_cut_next(ops, op));
        if (op->length == 0) {
            ucs_list_del(&op->unsliced);
        }
        ++count;
    }
    return count;
}

unsigned uct_nprdma_op_run(uct_nprdma_rma_iface_t *iface)
{
    uct_nprdma_op_iface_t *ops = &iface->res->ops;
    unsigned count             = 0;
    uct_nprdma_sched_op_t *next;
    uct_nprdma_op_slice_t *slice;
    uct_nprdma_sched_ep_t *ep;
    uct_nprdma_op_t *op;

    while ((next = uct_nprdma_sched_next(&ops->sched, &ep)) != NULL) {
        op = ucs_container_of(next, uct_nprdma_op_t, sched);
        if (!uct_nprdma_op_admit_large(iface, op)) {
            uct_nprdma_sched_block(&ops->sched, ep);
            uct_nprdma_rma_stall(iface->res, op->rma);
            continue;
        }

        slice             = uct_nprdma_op_cut_next(ops, op);
        slice->is_counted = 1;
        uct_nprdma_sched_posted(&ops->sched, ep, next, slice->length,
                                op->length == 0);
        uct_nprdma_op_slice_start(iface, slice);
        ++count;
    }
    return count;
}

void uct_nprdma_op_slice_leaves_nic(uct_nprdma_rma_iface_t *iface,
                                    uct_nprdma_op_slice_t *slice)
{
    if (slice->is_counted) {
        slice->is_counted = 0;
        uct_nprdma_sched_done(&iface->res->ops.sched,
                              &slice->op->rma->ops.sched, slice->length);
    }
}

void uct_nprdma_op_slice_returns_to_nic(uct_nprdma_rma_iface_t *iface,
                                        uct_nprdma_op_slice_t *slice)
{
    if (slice->op->is_large && !slice->is_counted) {
        slice->is_counted = 1;
        uct_nprdma_sched_again(&iface->res->ops.sched,
                               &slice->op->rma->ops.sched, slice->length);
    }
}

/* Numbers of small operations and active messages so far, also of those that
 * peers ask for: while they change, something urgent goes on. To a rendezvous
 * belong messages, and perhaps a put or get of an end of its buffer, but no
 * atomic, and no request that is served. */
static uct_nprdma_sched_urgent_t
uct_nprdma_op_num_urgent(const uct_nprdma_rma_iface_t *iface)
{
    const uct_nprdma_stats_t *stats = iface->net.stats;
    uct_nprdma_sched_urgent_t urgent;

    urgent.messages = stats->am_short_tx + stats->am_bcopy_tx +
                      stats->am_zcopy_tx + stats->am_rx;
    urgent.ends     = stats->put + stats->get - iface->res->ops.num_large;
    urgent.others   = stats->atomic +
                      atomic_load_explicit(
                              &uct_nprdma_rma_md(iface)->num_served,
                              memory_order_relaxed);
    return urgent;
}

void uct_nprdma_op_begin(uct_nprdma_rma_iface_t *iface)
{
    uct_nprdma_sched_begin(&iface->res->ops.sched,
                           uct_nprdma_op_num_urgent(iface));
}

/* Add an operation to ops.order. Its address and length are set. Nonzero if it
 * is held; uct_nprdma_op_release() starts it later. */
static UCS_F_ALWAYS_INLINE int
uct_nprdma_op_add(uct_nprdma_rma_iface_t *iface, uct_nprdma_rma_t *rma,
                  uct_nprdma_op_t *op)
{
    /* Rules "zero length", "exactly once" and "fence" */
    nprdma_assert(op->length > 0);
    nprdma_assert(op->is_get ||
                  (op->length > uct_nprdma_rma_max_payload(iface)));
    nprdma_assert(!(rma->ep->net.blocked & UCT_NPRDMA_EP_FENCED));
    if (!op->is_get) {
        rma->ep->net.blocked |= rma->behind_flag;
    }
    op->order.area  = uct_nprdma_area(op->address, op->length);
    op->order.flags = (op->is_get ? UCT_NPRDMA_ORDER_READ : 0) |
                      (op->by_nic ? UCT_NPRDMA_ORDER_NIC : 0);
    if (op->by_nic) {
        iface->net.stats->nic_get += op->is_get;
        iface->net.stats->nic_put += !op->is_get;
    }
    ucs_trace_req("ep %p: op %p start: %s of %zu bytes at 0x%" PRIx64 " by %s",
                  rma->ep, op, op->is_get ? "get" : "put", op->length,
                  op->address, op->by_nic ? "nic" : "software");
    NPRDMA_PROBE(operation_start, op, op->is_get, op->address, op->length);
    return uct_nprdma_held_add(iface, rma, &op->order);
}

void uct_nprdma_op_release(uct_nprdma_rma_iface_t *iface,
                           uct_nprdma_op_t *op)
{
    uct_nprdma_op_iface_t *ops = &iface->res->ops;
    uct_nprdma_rma_t *rma      = op->rma;

    if (op->is_large) {
        uct_nprdma_sched_add(&ops->sched, &rma->ops.sched, &op->sched,
                             op->length, uct_nprdma_op_num_urgent(iface),
                             op->is_get ? UCT_NPRDMA_OP_OWN_MESSAGES : 0);
        uct_nprdma_op_run(iface);
        return;
    }

    ucs_list_add_tail(&rma->ops.unsliced, &op->unsliced);
    uct_nprdma_op_issue(iface, rma);
    if (uct_nprdma_op_is_stalled(&rma->ops)) {
        uct_nprdma_rma_stall(iface->res, rma);
    }
}

static UCS_F_ALWAYS_INLINE ucs_status_t
uct_nprdma_op_unpack(uct_nprdma_rma_iface_t *iface, uct_nprdma_op_t *op)
{
    ucs_status_t status;

    if (op->unpack_cb != NULL) {
        op->unpack_cb(op->arg, op->slot->data, op->slot_length);
        return UCS_OK;
    }

    status = uct_nprdma_local_copy(&iface->local, op->arg, op->slot->data,
                                   op->slot_length, op->arg);
    if (ucs_unlikely(status != UCS_OK)) {
        uct_nprdma_rma_report_local(iface, op->rma, 1, op->arg,
                                    op->slot_length);
    }
    return status;
}

/* Release all resources of an operation, and return its status. The slot of a
 * small get contains its data. */
static UCS_F_ALWAYS_INLINE ucs_status_t
uct_nprdma_op_clear(uct_nprdma_rma_iface_t *iface, uct_nprdma_rma_t *rma,
                    uct_nprdma_op_t *op)
{
    ucs_status_t status = op->status;

    if (op->slot != NULL) {
        if (ucs_likely((status == UCS_OK) && !op->is_request)) {
            status = uct_nprdma_op_unpack(iface, op);
        }
        uct_nprdma_bounce_put(op->slot);
        --rma->num_slots;
    } else if (!op->is_request) {
        uct_nprdma_op_unmap(iface, op);
    }
    return status;
}

static inline void uct_nprdma_op_put(uct_nprdma_rma_iface_t *iface,
                                     uct_nprdma_rma_t *rma,
                                     uct_nprdma_op_t *op)
{
    uct_nprdma_order_remove(&rma->ops.order, &op->order);
    if (ucs_unlikely(!ucs_list_is_empty(&op->order.waiters))) {
        uct_nprdma_held_release(iface, rma, &op->order);
    }

    /* The next operation takes this one while it is in the CPU's cache */
    ucs_list_add_head(&iface->res->ops.free_ops, &op->list);
    uct_nprdma_credits_put(&iface->res->ops.credits, op->is_large);
    --rma->ops.num_ops[op->is_large];
}

void uct_nprdma_op_sent(uct_nprdma_rma_iface_t *iface,
                        uct_nprdma_op_t *op)
{
    uct_nprdma_rma_t *rma = op->rma;

    uct_nprdma_op_put(iface, rma, op);
    /* Messages that waited for it may be pending */
    uct_nprdma_net_ep_schedule(&iface->net, &rma->ep->net);
}

void uct_nprdma_op_complete(uct_nprdma_rma_iface_t *iface,
                            uct_nprdma_op_t *op)
{
    uct_nprdma_rma_t *rma  = op->rma;
    uct_completion_t *comp = op->comp;
    ucs_status_t status;

    /* Rule "completion means verified": no slice is left that is not */
    nprdma_assert((op->num_slices == 0) && (op->length == 0));
    nprdma_assert(!op->order.is_held || (rma->status != UCS_OK));
    uct_nprdma_rma_enter(rma);
    status = uct_nprdma_op_clear(iface, rma, op);
    ucs_trace_req("ep %p: op %p complete: %s", rma->ep, op,
                  ucs_status_string(status));
    NPRDMA_PROBE(operation_end, op, status);
    uct_nprdma_op_put(iface, rma, op);
    if (comp != NULL) {
        uct_invoke_completion(comp, status);
    } else if ((status != UCS_OK) && (rma->status == UCS_OK)) {
        rma->error = status;
    }
    uct_nprdma_rma_check(iface, rma);
    uct_nprdma_rma_leave(rma);
}


/* ---- gets into a slot ---- */

/* Make the slot the only buffer of the operation */
static void uct_nprdma_op_slot_piece(uct_nprdma_op_t *op)
{
    uct_nprdma_op_piece_t *piece = &op->pieces[0];

    op->num_pieces      = 1;
    piece->buffer       = op->slot->data;
    piece->length       = op->slot_length;
    piece->range.region = NULL;
    piece->lkey         = op->slot->lkey;
    piece->is_on_demand = 0;
}

/* Continue a single READ with slices, as far as resources allow */
static void uct_nprdma_op_slice_up(uct_nprdma_rma_iface_t *iface,
                                   uct_nprdma_op_t *op)
{
    op->length = op->slot_length;
    uct_nprdma_op_slot_piece(op);
    uct_nprdma_op_release(iface, op);
}

static void
uct_nprdma_op_fetched(uct_nprdma_rma_iface_t *iface,
                      uct_nprdma_rma_reply_t *reply, const void *data,
                      ucs_status_t *status)
{
    uct_nprdma_op_t *op = reply->op;

    if (op->rma->status != UCS_OK) {
        return; /* The end of the connection completes all operations */
    }

    iface->net.stats->copy_us += ucs_time_to_usec(ucs_get_time() - op->start);
    if (*status != UCS_OK) {
        /* The memory may be about to be mapped again. If not, the slice has the
         * error */
        uct_nprdma_op_slice_up(iface, op);
        return;
    }

    /* Mostly the reply is in the same slot, behind its header. A CPU has copied
     * the data, so it is real even if it equals the signature. */
    memmove(op->slot->data, data, op->slot_length);
    iface->net.stats->false_suspects +=
            uct_nprdma_verify_is_suspect(op->slot->data, op->address,
                                         op->slot_length, op->rkey.signature);
    uct_nprdma_op_complete(iface, op);
}

static const uct_nprdma_rma_kind_t uct_nprdma_op_fetch_kind = {
    .func        = uct_nprdma_op_fetched,
    .is_ordered  = 1,
    .is_of_slice = 1
};

/* The READ is suspect: the target's software sends the data, into the slot of
 * the get, and populates the page for the next one */
static UCS_F_NOINLINE void uct_nprdma_op_fetch(uct_nprdma_rma_iface_t *iface,
                                               uct_nprdma_op_t *op)
{
    uct_nprdma_rma_t *rma = op->rma;
    uct_nprdma_svc_request_t request;
    uct_nprdma_rma_reply_t *reply;
    uct_nprdma_slot_t *slot;

    if (!uct_nprdma_rma_admit_redo(iface, rma, 1) ||
        !uct_nprdma_rma_small_slot(iface, rma, sizeof(request), 1, &slot)) {
        uct_nprdma_op_slice_up(iface, op);
        return;
    }

    reply = uct_nprdma_rma_reply_add(iface, rma, op->slot_length,
                                     &uct_nprdma_op_fetch_kind, 1, op->slot);
    if (reply == NULL) {
        uct_nprdma_rma_small_slot_put(slot);
        uct_nprdma_op_slice_up(iface, op);
        return;
    }

    reply->op = op;
    op->start = ucs_get_time();
    uct_nprdma_rma_fill_request(&request, UCT_NPRDMA_SVC_FETCH, op->address,
                                op->rkey.key, op->slot_length);
    request.op = UCT_NPRDMA_SVC_FETCH_POPULATE;
    ucs_trace_req("ep %p: op %p assist: fetch", rma->ep, op);
    NPRDMA_PROBE(assist, op, UCT_NPRDMA_OP_ASSIST_FETCH, op->address,
                 op->slot_length);
    ++iface->net.stats->assist_small;
    /* If the post fails, progress fails the connection, and that completes the
     * operation */
    (void)uct_nprdma_rma_send_small(iface, rma, &request, sizeof(request),
                                    slot, reply);
}

static void uct_nprdma_op_single_read_done(uct_nprdma_net_iface_t *net_iface,
                                           uct_nprdma_conn_t *conn,
                                           uct_nprdma_comp_t *wr,
                                           ucs_status_t status)
{
    uct_nprdma_rma_iface_t *iface = ucs_derived_of(net_iface,
                                                   uct_nprdma_rma_iface_t);
    uct_nprdma_op_t *op           = ucs_container_of(wr, uct_nprdma_op_t,
                                                     wr);
    size_t num_lines;

    --iface->net.tx.num_awaited;
    if (ucs_unlikely((status != UCS_OK) || (op->rma->status != UCS_OK))) {
        if (uct_nprdma_key_is_on_demand(&op->rkey)) {
            uct_nprdma_rma_report_on_demand(iface, op->rma, 1, op->arg,
                                            op->address, op->slot_length,
                                            status);
        }
        return; /* The end of the connection completes it */
    }

    if (uct_nprdma_key_is_on_demand(&op->rkey)) {
        ++iface->net.stats->nic_on_demand;
    } else if (ucs_unlikely(uct_nprdma_verify_is_suspect(op->slot->data,
                                                         op->address,
                                                         op->slot_length,
                                                         op->rkey.signature))) {
        num_lines = uct_nprdma_verify_scan(op->slot->data, op->address,
                                           op->slot_length, op->rkey.signature);
        ucs_trace_req("ep %p: op %p suspect: %zu lines have the signature",
                      op->rma->ep, op, num_lines);
        NPRDMA_PROBE(suspect, op, UCT_NPRDMA_OP_SUSPECT_LINES, op->address,
                     op->slot_length);
        iface->net.stats->suspect_lines += num_lines;
        uct_nprdma_op_fetch(iface, op);
        return;
    }

    ucs_trace_req("ep %p: op %p verified in one READ", op->rma->ep, op);
    ++iface->net.stats->nic_hits;
    uct_nprdma_op_complete(iface, op);
}

/* Bytes before the first line of a get, which have to be a READ of their own
 * (ARCHITECTURE 3, remote READ) */
static inline size_t uct_nprdma_op_head(const uct_nprdma_op_t *op)
{
    size_t head = uct_nprdma_verify_head(op->address);

    return ((head < op->length) && !uct_nprdma_key_is_on_demand(&op->rkey)) ?
           head : 0;
}

/* Check whether a get needs no slice, which is the common case: its data is
 * scanned or needs no verification, and no operation of its class waits for
 * slices. Posting is possible. */
static inline int
uct_nprdma_op_is_single_read(uct_nprdma_rma_iface_t *iface,
                             uct_nprdma_rma_t *rma, const uct_nprdma_op_t *op)
{
    return (op->length <= iface->res->ops.scan_max) &&
           ucs_list_is_empty(op->is_large ? &rma->ops.sched.ops :
                                            &rma->ops.unsliced) &&
           ((uct_nprdma_op_head(op) == 0) ||
            uct_nprdma_conn_admit_redo(&iface->net, &rma->ep->net.svc, 2));
}

/* READ a part of a get into its slot. If the post fails, progress fails the
 * connection, and that completes the operation. */
static UCS_F_ALWAYS_INLINE ucs_status_t
uct_nprdma_op_post_read(uct_nprdma_rma_iface_t *iface, uct_nprdma_op_t *op,
                        size_t offset, size_t length, uct_nprdma_comp_t *comp)
{
    uct_nprdma_op_iface_t *ops = &iface->res->ops;
    struct ibv_send_wr *wr     = &ops->read_wr;

    ops->read_sge.addr      = (uintptr_t)op->slot->data + offset;
    ops->read_sge.length    = length;
    ops->read_sge.lkey      = op->slot->lkey;
    wr->wr.rdma.remote_addr = op->address + offset;
    wr->wr.rdma.rkey        = op->rkey.r_rkey;
    return uct_nprdma_conn_post_inl(&iface->net, &op->rma->ep->net.svc, wr,
                                    comp, comp != NULL);
}

/* Post a small get without a slice, because the steps of a slice would add
 * latency */
static UCS_F_ALWAYS_INLINE void
uct_nprdma_op_single_read(uct_nprdma_rma_iface_t *iface, uct_nprdma_op_t *op)
{
    size_t head   = uct_nprdma_op_head(op);
    size_t length = op->length;

    nprdma_assert(uct_nprdma_op_may_start(op->rma, op));
    ++iface->net.stats->nic_slices;
    op->length  = 0;
    op->wr.func = uct_nprdma_op_single_read_done;
    if (ucs_unlikely((head > 0) &&
                     (uct_nprdma_op_post_read(iface, op, 0, head, NULL) !=
                      UCS_OK))) {
        return;
    }

    if (ucs_likely(uct_nprdma_op_post_read(iface, op, head, length - head,
                                           &op->wr) == UCS_OK)) {
        ++iface->net.tx.num_awaited;
    }
}

/* READ into a slot. unpack_cb takes the data from there; if it is NULL, the
 * data is copied to the buffer `arg`. */
static UCS_F_ALWAYS_INLINE ucs_status_t
uct_nprdma_op_get_to_slot(uct_nprdma_rma_iface_t *iface, uct_nprdma_rma_t *rma,
                          uct_nprdma_slot_t *slot,
                          uct_unpack_callback_t unpack_cb, void *arg,
                          size_t length, uint64_t remote_addr,
                          const uct_nprdma_rkey_t *rkey,
                          uct_completion_t *comp)
{
    uct_nprdma_op_t *op;
    int is_held;

    op = uct_nprdma_op_new(iface, rma, 1, uct_nprdma_op_is_large(iface, length),
                           remote_addr, rkey, comp);
    if (ucs_unlikely(op == NULL)) {
        uct_nprdma_bounce_put(slot);
        return UCS_ERR_NO_RESOURCE;
    }

    op->by_nic      = 1;
    op->slot        = slot;
    op->slot_length = length;
    op->length      = length;
    op->unpack_cb   = unpack_cb;
    op->arg         = arg;
    ++rma->num_slots;
    is_held = uct_nprdma_op_add(iface, rma, op);
    if (ucs_likely(!is_held && uct_nprdma_op_is_single_read(iface, rma, op))) {
        uct_nprdma_op_single_read(iface, op);
        return UCS_INPROGRESS;
    }

    uct_nprdma_op_slot_piece(op);
    if (!is_held) {
        uct_nprdma_op_release(iface, op);
    }
    return UCS_INPROGRESS;
}

ucs_status_t
uct_nprdma_op_get_bcopy(uct_nprdma_rma_iface_t *iface, uct_nprdma_rma_t *rma,
                        uct_unpack_callback_t unpack_cb, void *arg,
                        size_t length, uint64_t remote_addr,
                        const uct_nprdma_rkey_t *rkey, uct_completion_t *comp)
{
    uct_nprdma_slot_t *slot = uct_nprdma_rma_get_slot(iface, rma, 0);

    if (ucs_unlikely(slot == NULL)) {
        ++iface->net.stats->no_resource;
        return UCS_ERR_NO_RESOURCE;
    }

    return uct_nprdma_op_get_to_slot(iface, rma, slot, unpack_cb, arg, length,
                                     remote_addr, rkey, comp);
}

/* Check whether to copy a get of one buffer through a slot, as other transports
 * do with small messages. Up to this length a copy costs no more than the
 * lookup of the buffer's region and two comparisons of the states of its pages.
 * And the pages need not be populated. */
static int uct_nprdma_op_is_copied(uct_nprdma_rma_iface_t *iface,
                                   const uct_nprdma_rma_ep_t *ep, int is_get,
                                   const uct_iov_t *iov, size_t iovcnt,
                                   uint64_t remote_addr,
                                   const uct_nprdma_rkey_t *rkey)
{
    return is_get && (iovcnt == 1) &&
           (uct_iov_get_length(iov) <= uct_nprdma_rma_max_payload(iface)) &&
           uct_nprdma_op_can_get(iface, rkey, remote_addr,
                                 uct_iov_get_length(iov));
}

ucs_status_t
uct_nprdma_op_zcopy(uct_nprdma_rma_iface_t *iface, uct_nprdma_rma_t *rma,
                    int is_get, const uct_iov_t *iov, size_t iovcnt,
                    uint64_t remote_addr, const uct_nprdma_rkey_t *rkey,
                    uct_completion_t *comp)
{
    int is_large = uct_nprdma_op_is_large(iface,
                                          uct_iov_total_length(iov, iovcnt));
    uct_nprdma_op_t *op;
    uct_nprdma_slot_t *slot;

    if (uct_nprdma_op_is_copied(iface, rma->ep, is_get, iov, iovcnt,
                                remote_addr, rkey)) {
        slot = uct_nprdma_rma_get_slot(iface, rma, 0);
        if (ucs_likely(slot != NULL)) {
            return uct_nprdma_op_get_to_slot(iface, rma, slot, NULL,
                                             iov->buffer,
                                             uct_iov_get_length(iov),
                                             remote_addr, rkey, comp);
        }
    }

    op = uct_nprdma_op_new(iface, rma, is_get, is_large, remote_addr, rkey,
                           comp);
    if (ucs_unlikely(op == NULL)) {
        return UCS_ERR_NO_RESOURCE;
    }

    uct_nprdma_op_map(iface, op, iov, iovcnt);
    if (!uct_nprdma_op_add(iface, rma, op)) {
        uct_nprdma_op_release(iface, op);
    }
    return UCS_INPROGRESS;
}

static void uct_nprdma_op_slice_free(uct_nprdma_rma_iface_t *iface,
                                     uct_nprdma_op_slice_t *slice)
{
    uct_nprdma_op_iface_t *ops = &iface->res->ops;
    uct_nprdma_op_t *op        = slice->op;

    uct_nprdma_op_slice_leaves_nic(iface, slice);
    ucs_list_del(&slice->list);
    --op->num_slices;
    ucs_queue_push_head(&ops->free_slices, &slice->queue);
    uct_nprdma_credits_put(&ops->slice_credits, op->is_large);
    --op->rma->ops.num_slices[op->is_large];
}

/* What is in no slice yet is not transferred any more */
static void uct_nprdma_op_drop_rest(uct_nprdma_rma_iface_t *iface,
                                    uct_nprdma_op_t *op)
{
    if (op->length == 0) {
        return;
    }

    op->length = 0;
    if (op->is_large) {
        uct_nprdma_sched_remove(&iface->res->ops.sched, &op->rma->ops.sched,
                                &op->sched);
    } else {
        ucs_list_del(&op->unsliced);
    }
}

void uct_nprdma_op_slice_end(uct_nprdma_rma_iface_t *iface,
                             uct_nprdma_op_slice_t *slice,
                             ucs_status_t status)
{
    uct_nprdma_op_t *op = slice->op;

    uct_nprdma_op_slice_free(iface, slice);
    if (ucs_unlikely(status != UCS_OK)) {
        uct_nprdma_rma_report(iface, op->rma, op->is_get ? "get" : "put",
                              slice->address, slice->length, status);
        if (op->status == UCS_OK) {
            op->status = status;
        }
        uct_nprdma_op_drop_rest(iface, op);
    }

    if (op->length > 0) {
        /* Progress starts the next slice of a large operation: in a completion,
         * that would delay the completions behind it */
        uct_nprdma_op_issue(iface, op->rma);
    } else if (op->num_slices == 0) {
        uct_nprdma_op_complete(iface, op);
    }
}


/* ---- progress and the end ---- */

static unsigned uct_nprdma_op_redo(uct_nprdma_rma_iface_t *iface,
                                   ucs_queue_head_t *todo)
{
    uct_nprdma_op_slice_t *slice;
    size_t i, length;

    /* A slice that cannot continue is queued again: run each one once */
    length = ucs_queue_length(todo);
    for (i = 0; i < length; ++i) {
        slice = ucs_queue_pull_elem_non_empty(todo, uct_nprdma_op_slice_t,
                                              queue);
        uct_nprdma_op_slice_run(iface, slice);
    }
    return length - ucs_min(length, ucs_queue_length(todo));
}

unsigned uct_nprdma_op_progress(uct_nprdma_rma_iface_t *iface,
                                uct_nprdma_rma_t *rma)
{
    unsigned count = uct_nprdma_op_redo(iface, &rma->ops.todo[0]);

    if (ucs_queue_is_empty(&rma->ops.todo[0])) {
        count += uct_nprdma_op_issue(iface, rma);
    }
    count += uct_nprdma_op_redo(iface, &rma->ops.todo[1]);
    if (ucs_queue_is_empty(&rma->ops.todo[1])) {
        uct_nprdma_sched_unblock(&iface->res->ops.sched, &rma->ops.sched);
    }
    return count;
}

void uct_nprdma_op_stop(uct_nprdma_rma_iface_t *iface, uct_nprdma_rma_t *rma)
{
    int i;

    for (i = 0; i < 2; ++i) {
        ucs_queue_head_init(&rma->ops.todo[i]);
    }
    ucs_list_head_init(&rma->ops.unsliced);
    while (!ucs_list_is_empty(&rma->ops.sched.ops)) {
        uct_nprdma_sched_remove(&iface->res->ops.sched, &rma->ops.sched,
                                ucs_list_head(&rma->ops.sched.ops,
                                              uct_nprdma_sched_op_t, list));
    }
}

void uct_nprdma_op_purge(uct_nprdma_rma_iface_t *iface, uct_nprdma_rma_t *rma)
{
    uct_nprdma_op_slice_t *slice, *tmp;
    uct_nprdma_op_t *op;

    while (!ucs_list_is_empty(&rma->ops.order.ops)) {
        op         = ucs_list_head(&rma->ops.order.ops, uct_nprdma_op_t,
                                   order.list);
        op->length = 0;
        op->status = rma->status;
        ucs_list_for_each_safe(slice, tmp, &op->slices, list) {
            uct_nprdma_op_slice_free(iface, slice);
        }
        uct_nprdma_op_complete(iface, op);
    }
}
