/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_mem.h"
#include "nprdma_rma_req.h"


/* Copy between a slot and the next bytes of the operation's buffers */
static void uct_nprdma_rma_large_copy(uct_nprdma_rma_large_t *large, void *data,
                                      size_t length, int to_buffers)
{
    uct_nprdma_rma_cursor_t *cursor = &large->cursor;
    size_t chunk;
    void *buffer;

    while (length > 0) {
        ucs_assert(cursor->iov < large->iovcnt);
        chunk = ucs_min(length, large->iov[cursor->iov].length -
                                cursor->offset);
        buffer = UCS_PTR_BYTE_OFFSET(large->iov[cursor->iov].buffer,
                                     cursor->offset);
        if (to_buffers) {
            memcpy(buffer, data, chunk);
        } else {
            memcpy(data, buffer, chunk);
        }

        data            = UCS_PTR_BYTE_OFFSET(data, chunk);
        length         -= chunk;
        cursor->offset += chunk;
        if (cursor->offset == large->iov[cursor->iov].length) {
            cursor->offset = 0;
            ++cursor->iov;
        }
    }
}

static uct_completion_t *
uct_nprdma_rma_large_free(uct_nprdma_rma_iface_t *riface,
                          uct_nprdma_rma_large_t *large)
{
    large->next         = riface->free_larges;
    riface->free_larges = large;
    return large->comp;
}

static uct_completion_t *
uct_nprdma_rma_get_reply(uct_nprdma_rma_iface_t *riface,
                         uct_nprdma_rma_wait_t *wait, const void *data,
                         ucs_status_t *status)
{
    uct_nprdma_rma_large_t *large = wait->large;

    /* After an error the rest of the buffer is of no use to anybody */
    if (*status != UCS_OK) {
        large->status = (large->status == UCS_OK) ? *status : large->status;
    } else if (large->status == UCS_OK) {
        uct_nprdma_rma_large_copy(large, (void*)data, wait->length, 1);
    }

    large->arrived += wait->length;
    if (large->arrived < large->length) {
        return NULL;
    }

    *status = large->status;
    return uct_nprdma_rma_large_free(riface, large);
}

static uct_completion_t *
uct_nprdma_rma_put_reply(uct_nprdma_rma_iface_t *riface,
                         uct_nprdma_rma_wait_t *wait, const void *data,
                         ucs_status_t *status)
{
    /* Only the last store has a reply, it tells of the ones before it */
    if (*status == UCS_OK) {
        *status      = wait->failed;
        wait->failed = UCS_OK;
    }
    return uct_nprdma_rma_large_free(riface, wait->large);
}

/*
 * Send the next request of an operation.
 */
static ucs_status_t
uct_nprdma_rma_large_send_get(uct_nprdma_iface_t *iface, uct_nprdma_rma_t *rma,
                              uct_nprdma_rma_large_t *large, size_t length)
{
    uct_nprdma_svc_request_t request;
    uct_nprdma_rma_wait_t *wait;
    uct_nprdma_slot_t *slot;

    if (!uct_nprdma_rma_small_slot(iface, sizeof(request), &slot)) {
        return UCS_ERR_NO_RESOURCE;
    }

    wait = uct_nprdma_rma_wait_add(iface, rma, length,
                                   uct_nprdma_rma_get_reply);
    if (wait == NULL) {
        uct_nprdma_rma_small_slot_put(slot);
        return UCS_ERR_NO_RESOURCE;
    }

    wait->large = large;
    uct_nprdma_rma_fill_request(&request, UCT_NPRDMA_SVC_FETCH,
                                large->address + large->requested, large->key,
                                length);
    return uct_nprdma_rma_send_small(iface, rma, &request, sizeof(request),
                                     slot, wait);
}

static ucs_status_t
uct_nprdma_rma_large_send_put(uct_nprdma_iface_t *iface, uct_nprdma_rma_t *rma,
                              uct_nprdma_rma_large_t *large, size_t length)
{
    int is_last                 = (large->requested + length) == large->length;
    uct_nprdma_rma_wait_t *wait = NULL;
    uct_nprdma_svc_request_t *request;
    uct_nprdma_slot_t *slot;

    slot = uct_nprdma_rma_get_slot(iface);
    if (slot == NULL) {
        return UCS_ERR_NO_RESOURCE;
    }

    if (is_last) {
        wait = uct_nprdma_rma_wait_add(iface, rma, 0, uct_nprdma_rma_put_reply);
        if (wait == NULL) {
            uct_nprdma_bounce_put(slot);
            return UCS_ERR_NO_RESOURCE;
        }
        wait->large = large;
    }

    request = (uct_nprdma_svc_request_t*)slot->data;
    uct_nprdma_rma_fill_request(request, UCT_NPRDMA_SVC_STORE,
                                large->address + large->requested, large->key,
                                length);
    uct_nprdma_rma_large_copy(large, request + 1, length, 0);
    return uct_nprdma_rma_send(iface, rma, request, sizeof(*request) + length,
                               slot, wait);
}

unsigned uct_nprdma_rma_large_send(uct_nprdma_iface_t *iface,
                                   uct_nprdma_rma_t *rma)
{
    uct_nprdma_rma_large_t *large = rma->large;
    unsigned count                = 0;
    ucs_status_t status;
    size_t length;

    while ((large->requested < large->length) &&
           uct_nprdma_rma_can_post(iface, rma)) {
        length = ucs_min(large->length - large->requested,
                         (size_t)UCT_NPRDMA_SVC_MAX_PIECE);
        status = large->is_get ?
                 uct_nprdma_rma_large_send_get(iface, rma, large, length) :
                 uct_nprdma_rma_large_send_put(iface, rma, large, length);
        if (status != UCS_OK) {
            break;
        }

        large->requested += length;
        ++count;
    }

    if (large->requested == large->length) {
        rma->large = NULL;
    }
    return count;
}

ucs_status_t
uct_nprdma_rma_large_start(uct_nprdma_iface_t *iface, uct_nprdma_ep_t *ep,
                           int is_get, const uct_iov_t *iov, size_t iovcnt,
                           uint64_t remote_addr, uct_rkey_t rkey,
                           uct_completion_t *comp)
{
    uct_nprdma_rma_iface_t *riface = iface->rma;
    uct_nprdma_rma_t *rma          = ep->rma;
    uct_nprdma_rma_large_t *large, *next;
    size_t i, length;

    large = riface->free_larges;
    if (large == NULL) {
        iface->tx.starved = 1;
        return UCS_ERR_NO_RESOURCE;
    }

    next = large->next;
    memset(large, 0, sizeof(*large));
    large->next = next;
    for (i = 0; i < iovcnt; ++i) {
        length = iov[i].length * iov[i].count;
        if (length > 0) {
            large->iov[large->iovcnt].buffer   = iov[i].buffer;
            large->iov[large->iovcnt++].length = length;
            large->length                     += length;
        }
    }
    if (large->length == 0) {
        return UCS_OK;
    }

    riface->free_larges = next;
    large->comp         = comp;
    large->address      = remote_addr;
    large->key          = uct_nprdma_rkey(rkey)->key;
    large->is_get       = is_get;
    rma->large          = large;
    if (uct_nprdma_rma_large_send(iface, rma) == 0) {
        rma->large = NULL;
        uct_nprdma_rma_large_free(riface, large);
        return UCS_ERR_NO_RESOURCE;
    }

    if (rma->large != NULL) {
        uct_nprdma_rma_stall(riface, rma);
    }
    return UCS_INPROGRESS;
}

uct_completion_t *
uct_nprdma_rma_large_abort(uct_nprdma_rma_iface_t *riface,
                           uct_nprdma_rma_t *rma)
{
    uct_nprdma_rma_large_t *large = rma->large;

    rma->large    = NULL;
    large->status = rma->status;
    if (large->is_get) {
        /* As if the rest had come: the last reply awaited completes it */
        large->arrived  += large->length - large->requested;
        large->requested = large->length;
        if (large->arrived < large->length) {
            return NULL;
        }
    }

    return uct_nprdma_rma_large_free(riface, large);
}
