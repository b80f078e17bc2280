/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_bulk.h"
#include "nprdma_op.h"
#include "nprdma_rma_copy.h"
#include "nprdma_rma_req.h"
#include "nprdma_verify.h"
#include "uct/ib/nprdma/mem/nprdma_mem.h"
#include "uct/ib/nprdma/net/nprdma_conn.h"

#include "nprdma_assert.h"
#include "nprdma_page_state.h"
#include "nprdma_probe.h"

#include <ucs/time/time.h>

/*
 * The steps of a slice:
 *
 *   TRY ---> (BEFORE) ---> DATA ---> (AFTER) ---> verified
 *    ^          |            |          |     too many tries: COPY
 *    |          +--> POPULATE <---------+
 *    +-----------------+
 *
 * A step posts a WR or a request and returns; its completion selects the next
 * step. A repetition needs no undo of an earlier try: a put writes the same
 * bytes again, a get reads into the same buffer.
 */

_Static_assert(UCT_NPRDMA_MAX_SLICE + NPRDMA_PAGE_SIZE <=
               UCT_NPRDMA_ODP_MAX_ACCESS,
               "a slice is in one memory region with on-demand paging");

/* Result of a step */
typedef enum uct_nprdma_op_result {
    UCT_NPRDMA_OP_NEXT,         /* Continue with slice->step */
    UCT_NPRDMA_OP_WAIT,         /* A completion or a reply continues */
    UCT_NPRDMA_OP_BUSY          /* Resources are missing: try again later */
} uct_nprdma_op_result_t;


/* Trace an event of a slice */
#define uct_nprdma_op_trace(_slice, _format, ...) \
    ucs_trace_req("ep %p: op %p slice 0x%" PRIx64 "+%u " _format, \
                  (_slice)->op->rma->ep, (_slice)->op, (_slice)->address, \
                  (_slice)->length, ## __VA_ARGS__)

/* Arguments of the probes "suspect" and "assist" */
#define uct_nprdma_op_probe(_name, _slice, _kind) \
    NPRDMA_PROBE(_name, (_slice)->op, _kind, (_slice)->address, \
                 (_slice)->length)

/* ---- pages ---- */

static inline uint32_t uct_nprdma_op_bits(const uct_nprdma_op_slice_t *slice)
{
    return slice->op->is_get ? NPRDMA_PAGE_R : NPRDMA_PAGE_W;
}

static inline size_t
uct_nprdma_op_num_pages(const uct_nprdma_op_slice_t *slice)
{
    return nprdma_region_num_pages(slice->address, slice->length);
}

/* Number of the slice's first page within the region of the peer */
static inline uint64_t
uct_nprdma_op_first_page(const uct_nprdma_op_slice_t *slice)
{
    return (slice->address - slice->op->rkey.region_address) /
           NPRDMA_PAGE_SIZE;
}

static inline uct_nprdma_peer_region_t
uct_nprdma_op_peer_region(const uct_nprdma_op_slice_t *slice)
{
    const uct_nprdma_rkey_t *rkey   = &slice->op->rkey;
    uct_nprdma_peer_region_t region = {
        .process = rkey->signature,
        .id      = rkey->region_id
    };

    return region;
}

static int uct_nprdma_op_cached(uct_nprdma_rma_iface_t *iface,
                                uct_nprdma_op_slice_t *slice)
{
    uct_nprdma_peer_region_t region = uct_nprdma_op_peer_region(slice);

    return uct_nprdma_state_cache_lookup(iface->res->ops.cache, &region,
                                         uct_nprdma_op_first_page(slice),
                                         uct_nprdma_op_num_pages(slice),
                                         uct_nprdma_op_bits(slice),
                                         slice->before);
}

/* Store states that were read, for later operations */
static void uct_nprdma_op_cache(uct_nprdma_rma_iface_t *iface,
                                uct_nprdma_op_slice_t *slice, size_t first,
                                size_t count, const uint32_t *states)
{
    uct_nprdma_peer_region_t region = uct_nprdma_op_peer_region(slice);

    uct_nprdma_state_cache_store(iface->res->ops.cache, &region,
                                 uct_nprdma_op_first_page(slice) + first,
                                 count, states);
}

/*
 * Rule "local side" (ARCHITECTURE 3), before posting: every local page has the
 * bit that it needs, and its state is remembered.
 *
 * @return UCS_OK; UCS_ERR_BUSY: try again; or the reason why the pages cannot
 *         be populated.
 */
static ucs_status_t uct_nprdma_op_local_begin(uct_nprdma_rma_iface_t *iface,
                                              uct_nprdma_op_slice_t *slice)
{
    nprdma_range_t *range = &slice->piece->range;
    uintptr_t address     = (uintptr_t)slice->buffer;
    uint32_t bits         = slice->op->is_get ? NPRDMA_PAGE_W : NPRDMA_PAGE_R;
    ucs_status_t status;

    if ((range->region == NULL) ||
        nprdma_region_snapshot(range->region, address, slice->length, bits,
                               slice->local)) {
        return UCS_OK;
    }

    ++iface->net.stats->local_populate;
    status = nprdma_monitor_populate(uct_nprdma_rma_md(iface)->monitor,
                                     range, address, slice->length,
                                     slice->op->is_get ? NPRDMA_POPULATE_WRITE :
                                     0);
    if (status != UCS_OK) {
        return status;
    }

    return nprdma_region_snapshot(range->region, address, slice->length, bits,
                                  slice->local) ? UCS_OK : UCS_ERR_BUSY;
}

/*
 * Rule "local side" (ARCHITECTURE 3), after the completion.
 *
 * @return Zero if a page has been taken meanwhile: the data is void.
 */
static int uct_nprdma_op_local_end(uct_nprdma_rma_iface_t *iface,
                                   const uct_nprdma_op_slice_t *slice)
{
    const nprdma_range_t *range = &slice->piece->range;

    if ((range->region == NULL) ||
        nprdma_region_unchanged(range->region, (uintptr_t)slice->buffer,
                                slice->length, slice->local)) {
        return 1;
    }

    uct_nprdma_op_trace(slice, "suspect: a local page was taken");
    uct_nprdma_op_probe(suspect, slice, UCT_NPRDMA_OP_SUSPECT_LOCAL);
    ++iface->net.stats->suspect_local;
    return 0;
}


/* ---- posting ---- */

static int uct_nprdma_op_admit_post(uct_nprdma_rma_iface_t *iface,
                                    const uct_nprdma_op_slice_t *slice,
                                    int32_t count)
{
    return uct_nprdma_conn_admit_redo(&iface->net, slice->conn, count) &&
           uct_nprdma_rma_can_count(slice->op->rma);
}

static void uct_nprdma_op_wr_done(uct_nprdma_net_iface_t *net_iface,
                                  uct_nprdma_conn_t *conn,
                                  uct_nprdma_comp_t *comp, ucs_status_t status);

/*
 * Post a READ or WRITE. The completion of the last one of a step continues.
 *
 * @return Zero: progress fails the connection, and that ends the slice. Then no
 *         later WR of the slice may be posted: states that are read without the
 *         data would verify it.
 */
static int uct_nprdma_op_post(uct_nprdma_rma_iface_t *iface,
                              uct_nprdma_op_slice_t *slice,
                              enum ibv_wr_opcode opcode, struct ibv_sge *sge,
                              uint64_t address, uint32_t rkey, int is_last)
{
    uct_nprdma_comp_t *comp = is_last ? &slice->wr : NULL;
    struct ibv_send_wr wr   = {};

    wr.opcode              = opcode;
    wr.sg_list             = sge;
    wr.num_sge             = 1;
    wr.wr.rdma.remote_addr = address;
    wr.wr.rdma.rkey        = rkey;
    slice->wr.func         = uct_nprdma_op_wr_done;
    if (ucs_unlikely(uct_nprdma_conn_post_inl(&iface->net, slice->conn, &wr,
                                              comp, is_last) != UCS_OK)) {
        return 0;
    }

    iface->net.tx.num_awaited += is_last;
    return 1;
}

/* @return Nonzero if every local page had the bit that it needs when its state
 *         was remembered. */
static int uct_nprdma_op_local_is_usable(const uct_nprdma_op_slice_t *slice)
{
    size_t count = nprdma_region_num_pages((uintptr_t)slice->buffer,
                                           slice->length);

    return (slice->piece->range.region == NULL) ||
           uct_nprdma_verify_usable(slice->local, count,
                                    slice->op->is_get ? NPRDMA_PAGE_W :
                                                        NPRDMA_PAGE_R);
}

/* @return Nonzero if lines of a READ arrive whole, or need not. */
static int uct_nprdma_op_lines_are_whole(const uct_nprdma_op_slice_t *slice,
                                         uint64_t address, size_t length)
{
    size_t head = uct_nprdma_verify_head(address);

    return (slice->verifier != UCT_NPRDMA_OP_VERIFY_SCAN) || (head == 0) ||
           (head >= length);
}

/* @return Nonzero if the last WR of the last step is complete. */
static int uct_nprdma_op_wr_is_complete(const uct_nprdma_op_slice_t *slice)
{
    return (int16_t)(slice->conn->done_sn - slice->wr.sn) >= 0;
}

static int uct_nprdma_op_post_data(uct_nprdma_rma_iface_t *iface,
                                   uct_nprdma_op_slice_t *slice,
                                   size_t offset, size_t length, int is_last)
{
    const uct_nprdma_rkey_t *rkey = &slice->op->rkey;
    int is_get                    = slice->op->is_get;
    struct ibv_sge sge            = {
        .addr   = (uintptr_t)slice->buffer + offset,
        .length = length,
        .lkey   = slice->lkey
    };

    /* Rules "local side", "remote READ" and "remote WRITE" */
    nprdma_assert(uct_nprdma_op_local_is_usable(slice));
    nprdma_assert(!is_get ||
                  uct_nprdma_op_lines_are_whole(slice, slice->address + offset,
                                                length));
    nprdma_assert((slice->verifier != UCT_NPRDMA_OP_VERIFY_STATES) ||
                  uct_nprdma_verify_usable(slice->before,
                                           uct_nprdma_op_num_pages(slice),
                                           uct_nprdma_op_bits(slice)));
    nprdma_assert(is_get || (slice->verifier != UCT_NPRDMA_OP_VERIFY_SCAN));
    return uct_nprdma_op_post(iface, slice,
                              is_get ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE,
                              &sge, slice->address + offset,
                              is_get ? rkey->r_rkey : rkey->w_rkey, is_last);
}

static void uct_nprdma_op_post_states(uct_nprdma_rma_iface_t *iface,
                                      uct_nprdma_op_slice_t *slice)
{
    struct ibv_sge sge = {
        .addr   = (uintptr_t)slice->slot->data,
        .length = uct_nprdma_op_num_pages(slice) * sizeof(uint32_t),
        .lkey   = slice->slot->lkey
    };

    ++iface->net.stats->state_reads;
    uct_nprdma_op_post(iface, slice, IBV_WR_RDMA_READ, &sge,
                       uct_nprdma_op_first_page(slice) * sizeof(uint32_t),
                       slice->op->rkey.s_rkey, 1);
}

/* States that the last READ returned */
static const uint32_t *
uct_nprdma_op_states(const uct_nprdma_op_slice_t *slice)
{
    return (const uint32_t*)slice->slot->data;
}

static void uct_nprdma_op_goto(uct_nprdma_rma_iface_t *iface,
                               uct_nprdma_op_slice_t *slice,
                               uct_nprdma_op_step_t step)
{
    slice->step = step;
    uct_nprdma_op_slice_run(iface, slice);
}


/* ---- verification ---- */

/*
 * Count lines of the data that could be the signature. Zero copy has moved the
 * data to the user's buffer, which may be unmapped.
 */
static ucs_status_t
uct_nprdma_op_count_lines(uct_nprdma_rma_iface_t *iface,
                          const uct_nprdma_op_slice_t *slice, size_t *count_p)
{
    ucs_status_t status;

    if (slice->op->slot != NULL) {
        *count_p = uct_nprdma_verify_scan(slice->buffer, slice->address,
                                          slice->length,
                                          slice->op->rkey.signature);
        return UCS_OK;
    }

    status = uct_nprdma_local_scan(&iface->local, slice->buffer, slice->address,
                                   slice->length, slice->op->rkey.signature,
                                   count_p);
    if (ucs_unlikely(status != UCS_OK)) {
        uct_nprdma_rma_report_local(iface, slice->op->rma, 1, slice->buffer,
                                    slice->length);
    }
    return status;
}

static void uct_nprdma_op_verified(uct_nprdma_rma_iface_t *iface,
                                   uct_nprdma_op_slice_t *slice)
{
    size_t num_lines;

    uct_nprdma_op_trace(slice, "verified at try %u", slice->tries);
    iface->net.stats->nic_hits += (slice->tries == 1) && !slice->is_suspect;
    iface->net.stats->nic_on_demand += (slice->verifier ==
                                        UCT_NPRDMA_OP_VERIFY_NONE);
    if (ucs_unlikely(slice->is_suspect) &&
        (uct_nprdma_op_count_lines(iface, slice, &num_lines) == UCS_OK) &&
        (num_lines > 0)) {
        /* Real data that equals the signature */
        ++iface->net.stats->false_suspects;
    }
    uct_nprdma_op_slice_end(iface, slice, UCS_OK);
}

/*
 * Compare states that were read after the data was in place: for a get after
 * its CQE, for a put behind it on the queue pair (ARCHITECTURE 3).
 */
static void uct_nprdma_op_compare(uct_nprdma_rma_iface_t *iface,
                                  uct_nprdma_op_slice_t *slice)
{
    const uint32_t *after = uct_nprdma_op_states(slice);
    size_t count          = uct_nprdma_op_num_pages(slice);
    uint32_t bits         = uct_nprdma_op_bits(slice);

    if (ucs_likely(uct_nprdma_verify_states(slice->before, after, count,
                                            bits))) {
        uct_nprdma_op_verified(iface, slice);
        return;
    }

    uct_nprdma_op_trace(slice, "suspect: the states have changed");
    uct_nprdma_op_probe(suspect, slice, UCT_NPRDMA_OP_SUSPECT_STATES);
    /* These states are the states before the next try */
    ++iface->net.stats->suspect_states;
    uct_nprdma_op_cache(iface, slice, 0, count, after);
    memcpy(slice->before, after, count * sizeof(*after));
    slice->is_known = uct_nprdma_verify_usable(after, count, bits);
    uct_nprdma_op_goto(iface, slice, slice->is_known ?
                                      UCT_NPRDMA_OP_TRY :
                                      UCT_NPRDMA_OP_POPULATE);
}

static void uct_nprdma_op_before_done(uct_nprdma_rma_iface_t *iface,
                                      uct_nprdma_op_slice_t *slice)
{
    const uint32_t *states = uct_nprdma_op_states(slice);
    size_t count           = uct_nprdma_op_num_pages(slice);

    uct_nprdma_op_cache(iface, slice, 0, count, states);
    memcpy(slice->before, states, count * sizeof(*states));
    slice->is_known = uct_nprdma_verify_usable(states, count,
                                               uct_nprdma_op_bits(slice));
    uct_nprdma_op_goto(iface, slice, slice->is_known ?
                                      UCT_NPRDMA_OP_DATA :
                                      UCT_NPRDMA_OP_POPULATE);
}

static void uct_nprdma_op_scan(uct_nprdma_rma_iface_t *iface,
                               uct_nprdma_op_slice_t *slice)
{
    size_t num_lines;
    ucs_status_t status;

    status = uct_nprdma_op_count_lines(iface, slice, &num_lines);
    if (ucs_unlikely(status != UCS_OK)) {
        uct_nprdma_op_slice_end(iface, slice, status);
        return;
    }

    if (ucs_likely(num_lines == 0)) {
        uct_nprdma_op_verified(iface, slice);
        return;
    }

    /* States distinguish real data from the signature; another scan could
     * not */
    uct_nprdma_op_trace(slice, "suspect: %zu lines have the signature",
                        num_lines);
    uct_nprdma_op_probe(suspect, slice, UCT_NPRDMA_OP_SUSPECT_LINES);
    iface->net.stats->suspect_lines += num_lines;
    slice->is_suspect           = 1;
    slice->verifier             = UCT_NPRDMA_OP_VERIFY_STATES;
    uct_nprdma_op_goto(iface, slice, UCT_NPRDMA_OP_POPULATE);
}

static void uct_nprdma_op_data_done(uct_nprdma_rma_iface_t *iface,
                                    uct_nprdma_op_slice_t *slice)
{
    if (ucs_unlikely(!uct_nprdma_op_local_end(iface, slice))) {
        uct_nprdma_op_goto(iface, slice, UCT_NPRDMA_OP_TRY);
    } else if (slice->verifier == UCT_NPRDMA_OP_VERIFY_NONE) {
        uct_nprdma_op_verified(iface, slice);
    } else if (slice->verifier == UCT_NPRDMA_OP_VERIFY_SCAN) {
        uct_nprdma_op_scan(iface, slice);
    } else if (slice->op->is_get) {
        /* Not earlier: a READ may pass an earlier READ (ARCHITECTURE 3, remote
         * READ) */
        uct_nprdma_op_goto(iface, slice, UCT_NPRDMA_OP_AFTER);
    } else {
        uct_nprdma_op_compare(iface, slice);
    }
}

static void uct_nprdma_op_wr_done(uct_nprdma_net_iface_t *net_iface,
                                  uct_nprdma_conn_t *conn,
                                  uct_nprdma_comp_t *comp, ucs_status_t status)
{
    uct_nprdma_rma_iface_t *iface = ucs_derived_of(net_iface,
                                                   uct_nprdma_rma_iface_t);
    uct_nprdma_op_slice_t *slice  = ucs_container_of(comp,
                                                     uct_nprdma_op_slice_t, wr);

    --iface->net.tx.num_awaited;
    if (ucs_unlikely((status != UCS_OK) ||
                     (slice->op->rma->status != UCS_OK))) {
        if (slice->piece->is_on_demand ||
            (slice->verifier == UCT_NPRDMA_OP_VERIFY_NONE)) {
            uct_nprdma_rma_report_on_demand(iface, slice->op->rma,
                                            slice->op->is_get, slice->buffer,
                                            slice->address, slice->length,
                                            status);
        }
        return; /* The end of the connection ends it */
    }

    switch (slice->step) {
    case UCT_NPRDMA_OP_BEFORE:
        uct_nprdma_op_before_done(iface, slice);
        break;
    case UCT_NPRDMA_OP_AFTER:
        uct_nprdma_op_compare(iface, slice);
        break;
    default:
        uct_nprdma_op_data_done(iface, slice);
        break;
    }
}


/* ---- assists ---- */

/* Store the states of pages that have been populated, as the states before the
 * next try */
static void uct_nprdma_op_take_states(uct_nprdma_rma_iface_t *iface,
                                      uct_nprdma_op_slice_t *slice,
                                      const uct_nprdma_svc_populated_t *part)
{
    uint64_t address = slice->address + slice->populated;
    size_t first     = nprdma_region_num_pages(slice->address,
                                               slice->populated + 1) - 1;
    size_t count     = ucs_min(nprdma_region_num_pages(address, part->length),
                               (size_t)uct_nprdma_svc_num_states(
                                       address, slice->length -
                                                slice->populated));

    memcpy(&slice->before[first], part->states, count * sizeof(uint32_t));
    uct_nprdma_op_cache(iface, slice, first, count, &slice->before[first]);
    slice->populated += part->length;
}

static void
uct_nprdma_op_populated(uct_nprdma_rma_iface_t *iface,
                        uct_nprdma_rma_reply_t *reply, const void *data,
                        ucs_status_t *status)
{
    uct_nprdma_op_slice_t *slice = reply->slice;
    size_t num_pages             = uct_nprdma_op_num_pages(slice);
    const uct_nprdma_svc_populated_t *populated;

    if (slice->op->rma->status != UCS_OK) {
        return;
    }

    iface->net.stats->populate_us +=
            ucs_time_to_usec(ucs_get_time() - slice->start);
    populated = (*status != UCS_OK) ? NULL :
                uct_nprdma_svc_populated_parse(data, slice->length -
                                                     slice->populated);
    if (populated == NULL) {
        /* A copy by software may succeed; if not, it returns the exact error */
        uct_nprdma_op_goto(iface, slice, UCT_NPRDMA_OP_COPY);
    } else if (populated->length == 0) {
        slice->is_known = 0;
        uct_nprdma_op_goto(iface, slice, UCT_NPRDMA_OP_TRY);
    } else {
        uct_nprdma_op_take_states(iface, slice, populated);
        slice->is_known = uct_nprdma_verify_usable(slice->before, num_pages,
                                                   uct_nprdma_op_bits(slice));
        /* A target that serves several peers populates a part at a time */
        uct_nprdma_op_goto(iface, slice, (slice->populated < slice->length) ?
                                          UCT_NPRDMA_OP_POPULATE :
                                          UCT_NPRDMA_OP_TRY);
    }
}

static const uct_nprdma_rma_kind_t uct_nprdma_op_populate_kind = {
    .func        = uct_nprdma_op_populated,
    .is_of_slice = 1
};

/* Bytes of the operation behind a slice; sent to the target once per
 * operation */
static uint32_t uct_nprdma_op_prefetch(const uct_nprdma_op_slice_t *slice)
{
    const uct_nprdma_op_t *op = slice->op;
    uint64_t prefetch         = op->address + op->length -
                                (slice->address + slice->length);

    return op->has_prefetch ? 0 : ucs_min(prefetch, (uint64_t)UINT32_MAX);
}

static uct_nprdma_op_result_t
uct_nprdma_op_step_populate(uct_nprdma_rma_iface_t *iface,
                            uct_nprdma_op_slice_t *slice)
{
    uct_nprdma_rma_t *rma = slice->op->rma;
    uint64_t address      = slice->address + slice->populated;
    uint32_t length       = slice->length - slice->populated;
    uint32_t reply_length = uct_nprdma_svc_populated_length(address, length);
    uct_nprdma_svc_request_t request;
    uct_nprdma_rma_reply_t *reply;
    uct_nprdma_slot_t *slot;
    int has_data;

    if (slice->tries == iface->res->ops.max_tries) {
        slice->step = UCT_NPRDMA_OP_COPY; /* A copy needs no view */
        return UCT_NPRDMA_OP_NEXT;
    }

    uct_nprdma_op_slice_leaves_nic(iface, slice);
    has_data = slice->op->is_large && !uct_nprdma_rma_is_small(reply_length);
    if (!uct_nprdma_rma_admit_redo(iface, rma, 1) ||
        (has_data && !uct_nprdma_rma_copy_may_take(iface, rma)) ||
        !uct_nprdma_rma_small_slot(iface, rma, sizeof(request), 1, &slot)) {
        return UCT_NPRDMA_OP_BUSY;
    }

    reply = uct_nprdma_rma_reply_add(iface, rma, reply_length,
                                     &uct_nprdma_op_populate_kind, 1, NULL);
    if (reply == NULL) {
        uct_nprdma_rma_small_slot_put(slot);
        return UCT_NPRDMA_OP_BUSY;
    }

    if (has_data) {
        uct_nprdma_rma_reply_set_large(iface->res, reply);
    }
    reply->slice = slice;
    slice->start = ucs_get_time();
    uct_nprdma_rma_fill_request(&request, UCT_NPRDMA_SVC_POPULATE, address,
                                slice->op->rkey.key, length);
    request.op              = slice->op->is_get ?
                              0 : UCT_NPRDMA_SVC_POPULATE_WRITE;
    request.prefetch        = uct_nprdma_op_prefetch(slice);
    slice->op->has_prefetch = 1;
    uct_nprdma_op_trace(slice, "assist: populate from 0x%" PRIx64, address);
    uct_nprdma_op_probe(assist, slice, UCT_NPRDMA_OP_ASSIST_POPULATE);
    ++iface->net.stats->assist_populate;
    uct_nprdma_rma_send_small(iface, rma, &request, sizeof(request), slot,
                              reply);
    return UCT_NPRDMA_OP_WAIT;
}

static void uct_nprdma_op_copied(uct_nprdma_rma_iface_t *iface,
                                 uct_nprdma_rma_copy_t *copy,
                                 ucs_status_t status)
{
    uct_nprdma_op_slice_t *slice = ucs_container_of(copy,
                                                    uct_nprdma_op_slice_t,
                                                    copy);

    if (slice->op->by_nic) {
        iface->net.stats->copy_us += ucs_time_to_usec(ucs_get_time() -
                                                     slice->start);
    }
    uct_nprdma_op_slice_end(iface, slice, status);
}

static uct_nprdma_op_result_t
uct_nprdma_op_step_copy(uct_nprdma_rma_iface_t *iface,
                        uct_nprdma_op_slice_t *slice)
{
    uct_nprdma_op_t *op = slice->op;

    uct_nprdma_op_trace(slice, "%s: copy by software",
                        op->by_nic ? "assist" : "start");
    if (op->by_nic) {
        uct_nprdma_op_probe(assist, slice, UCT_NPRDMA_OP_ASSIST_COPY);
        iface->net.stats->assist_fetch += op->is_get;
        iface->net.stats->assist_store += !op->is_get;
        slice->start                   = ucs_get_time();
    }

    uct_nprdma_op_slice_leaves_nic(iface, slice);
    slice->copy.func     = uct_nprdma_op_copied;
    slice->copy.buffer   = slice->buffer;
    slice->copy.address  = slice->address;
    slice->copy.key      = op->rkey.key;
    slice->copy.length   = slice->length;
    slice->copy.is_get   = op->is_get;
    slice->copy.is_large = op->is_large;
    uct_nprdma_rma_copy_add(iface, op->rma, &slice->copy);
    return UCT_NPRDMA_OP_WAIT;
}


/* ---- tries ---- */

static uct_nprdma_op_result_t
uct_nprdma_op_step_try(uct_nprdma_rma_iface_t *iface,
                       uct_nprdma_op_slice_t *slice)
{
    /* Rule "progress is guaranteed" (ARCHITECTURE 3); tries that fail for a
     * local page count as well */
    if (slice->tries == iface->res->ops.max_tries) {
        slice->step = UCT_NPRDMA_OP_COPY;
        return UCT_NPRDMA_OP_NEXT;
    }

    iface->net.stats->redone_slices += (slice->tries > 0);
    ++slice->tries;
    /* Rule "progress is guaranteed" */
    nprdma_assert(slice->tries <= iface->res->ops.max_tries);
    uct_nprdma_op_trace(slice, "%s: try %u",
                        (slice->tries == 1) ? "start" : "redo", slice->tries);
    slice->populated = 0;

    if ((slice->verifier == UCT_NPRDMA_OP_VERIFY_STATES) && !slice->is_known &&
        !uct_nprdma_op_cached(iface, slice)) {
        slice->step = UCT_NPRDMA_OP_BEFORE;
    } else {
        slice->step = UCT_NPRDMA_OP_DATA;
    }
    return UCT_NPRDMA_OP_NEXT;
}

static uct_nprdma_op_result_t
uct_nprdma_op_step_before(uct_nprdma_rma_iface_t *iface,
                          uct_nprdma_op_slice_t *slice)
{
    if (!uct_nprdma_op_admit_post(iface, slice, 1)) {
        return UCT_NPRDMA_OP_BUSY;
    }

    uct_nprdma_op_post_states(iface, slice);
    return UCT_NPRDMA_OP_WAIT;
}

static uct_nprdma_op_result_t
uct_nprdma_op_step_data(uct_nprdma_rma_iface_t *iface,
                        uct_nprdma_op_slice_t *slice)
{
    ucs_status_t status;
    size_t head;

    if (!uct_nprdma_op_admit_post(iface, slice, 2)) {
        return UCT_NPRDMA_OP_BUSY;
    }

    /* Not earlier: pages that are brought in here are still in the CPU's
     * cache */
    status = uct_nprdma_op_local_begin(iface, slice);
    if (ucs_unlikely(status != UCS_OK)) {
        slice->step = (status == UCS_ERR_BUSY) ? UCT_NPRDMA_OP_TRY :
                                                 UCT_NPRDMA_OP_COPY;
        return UCT_NPRDMA_OP_NEXT;
    }

    uct_nprdma_op_slice_returns_to_nic(iface, slice);
    if (!slice->op->is_get && (slice->verifier != UCT_NPRDMA_OP_VERIFY_NONE)) {
        /* A READ does not pass an earlier WRITE on a queue pair. Therefore it
         * returns the states after the data has been written (ARCHITECTURE 3,
         * remote WRITE). */
        if (uct_nprdma_op_post_data(iface, slice, 0, slice->length, 0)) {
            uct_nprdma_op_post_states(iface, slice);
        }
        return UCT_NPRDMA_OP_WAIT;
    }

    /* Lines arrive whole only if the READ begins at one */
    head = (slice->verifier == UCT_NPRDMA_OP_VERIFY_SCAN) ?
           uct_nprdma_verify_head(slice->address) : 0;
    if (ucs_likely((head == 0) || (head >= slice->length))) {
        head = 0;
    } else if (!uct_nprdma_op_post_data(iface, slice, 0, head, 0)) {
        return UCT_NPRDMA_OP_WAIT;
    }
    uct_nprdma_op_post_data(iface, slice, head, slice->length - head, 1);
    return UCT_NPRDMA_OP_WAIT;
}

static uct_nprdma_op_result_t
uct_nprdma_op_step_after(uct_nprdma_rma_iface_t *iface,
                         uct_nprdma_op_slice_t *slice)
{
    if (!uct_nprdma_op_admit_post(iface, slice, 1)) {
        return UCT_NPRDMA_OP_BUSY;
    }

    /* Rule "remote READ": READs are not ordered among themselves */
    nprdma_assert(slice->op->is_get &&
                  (slice->verifier == UCT_NPRDMA_OP_VERIFY_STATES));
    nprdma_assert(uct_nprdma_op_wr_is_complete(slice));
    uct_nprdma_op_post_states(iface, slice);
    return UCT_NPRDMA_OP_WAIT;
}

void uct_nprdma_op_slice_run(uct_nprdma_rma_iface_t *iface,
                             uct_nprdma_op_slice_t *slice)
{
    static uct_nprdma_op_result_t (*const steps[])(uct_nprdma_rma_iface_t*,
                                                   uct_nprdma_op_slice_t*) = {
        [UCT_NPRDMA_OP_TRY]      = uct_nprdma_op_step_try,
        [UCT_NPRDMA_OP_BEFORE]   = uct_nprdma_op_step_before,
        [UCT_NPRDMA_OP_DATA]     = uct_nprdma_op_step_data,
        [UCT_NPRDMA_OP_AFTER]    = uct_nprdma_op_step_after,
        [UCT_NPRDMA_OP_POPULATE] = uct_nprdma_op_step_populate,
        [UCT_NPRDMA_OP_COPY]     = uct_nprdma_op_step_copy
    };
    uct_nprdma_rma_t *rma = slice->op->rma;
    uct_nprdma_op_result_t result;

    do {
        result = steps[slice->step](iface, slice);
    } while (result == UCT_NPRDMA_OP_NEXT);

    if (result == UCT_NPRDMA_OP_BUSY) {
        ucs_queue_push(&rma->ops.todo[slice->op->is_large], &slice->queue);
        uct_nprdma_rma_stall(iface->res, rma);
    }
}

/*
 * Find the local key of a slice. With on-demand paging only; other memory has
 * its key.
 *
 * @return Zero if software has to copy the slice.
 */
static int uct_nprdma_op_find_lkey(uct_nprdma_rma_iface_t *iface,
                                   uct_nprdma_op_slice_t *slice)
{
    uct_nprdma_mem_md_t *md = uct_nprdma_rma_md(iface);
    uintptr_t buffer        = (uintptr_t)slice->buffer;

    slice->lkey = slice->piece->lkey;
    if (slice->piece->is_on_demand) {
        slice->lkey = uct_nprdma_odp_lkey(md->odp, buffer, slice->length,
                                          slice->op->is_get);
        if (ucs_unlikely(slice->lkey == 0)) {
            uct_nprdma_mem_no_region(md, buffer, slice->length,
                                     UCS_ERR_EXCEEDS_LIMIT);
            return 0;
        }
    }

    return 1;
}

static uct_nprdma_op_verifier_t
uct_nprdma_op_verifier(const uct_nprdma_rma_iface_t *iface,
                       const uct_nprdma_op_slice_t *slice)
{
    if (uct_nprdma_key_is_on_demand(&slice->op->rkey)) {
        return UCT_NPRDMA_OP_VERIFY_NONE;
    }

    return (slice->op->is_get &&
            (slice->length <= iface->res->ops.scan_max)) ?
           UCT_NPRDMA_OP_VERIFY_SCAN : UCT_NPRDMA_OP_VERIFY_STATES;
}

void uct_nprdma_op_slice_start(uct_nprdma_rma_iface_t *iface,
                               uct_nprdma_op_slice_t *slice)
{
    const uct_nprdma_op_t *op = slice->op;

    slice->conn       = (op->is_large && op->by_nic) ?
                        uct_nprdma_bulk_use(iface, op->rma) :
                        &op->rma->ep->net.svc;
    slice->tries      = 0;
    slice->is_known   = 0;
    slice->is_suspect = 0;
    slice->verifier   = uct_nprdma_op_verifier(iface, slice);
    slice->step       = (op->by_nic && uct_nprdma_op_find_lkey(iface, slice)) ?
                        UCT_NPRDMA_OP_TRY : UCT_NPRDMA_OP_COPY;
    iface->net.stats->nic_slices  += op->by_nic;
    iface->net.stats->bulk_slices += (slice->conn == &op->rma->ep->net.bulk);
    uct_nprdma_op_slice_run(iface, slice);
}
