/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "rmem_session.h"
#include "rmem_sigbus.h"

#include <string.h>
#include <sys/param.h>


/* ---- one call at a time ---- */

unsigned rmem_forks;

static void forked(void)
{
    ++rmem_forks;
}

__attribute__((constructor)) static void watch(void)
{
    pthread_atfork(NULL, NULL, forked);
}

static void restore(const rmem_caller_t *caller)
{
    --rmem_inside;
    pthread_setcancelstate(caller->cancel, NULL);
    if (caller->is_masked) {
        pthread_sigmask(SIG_SETMASK, &caller->signals, NULL);
    }
}

int rmem_enter(rmem_t *rmem, bool is_masked)
{
    rmem_caller_t caller = {.is_masked = is_masked};
    sigset_t others;
    int status;

    if (rmem->forks != rmem_forks) {
        return RMEM_ERR_UNSUPPORTED;
    }

    if (is_masked) {
        rmem_sigbus_others(&others);
        pthread_sigmask(SIG_BLOCK, &others, &caller.signals);
    }
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &caller.cancel);
    ++rmem_inside;
    status = pthread_mutex_lock(&rmem->lock);
    if ((status == 0) && !is_masked && (rmem->window != NULL)) {
        pthread_mutex_unlock(&rmem->lock);
        restore(&caller);
        return rmem_enter(rmem, true); /* Another thread has mapped it */
    }
    if (status != 0) {
        restore(&caller);
        return RMEM_ERR_ARG;
    }

    rmem->caller = caller;
    return RMEM_OK;
}

int rmem_leave(rmem_t *rmem, int status)
{
    rmem_caller_t caller = rmem->caller;

    pthread_mutex_unlock(&rmem->lock);
    restore(&caller);
    return status;
}


/* ---- failure ---- */

static void close_ep(rmem_t *rmem)
{
    const ucp_request_param_t force = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
        .flags        = UCP_EP_CLOSE_FLAG_FORCE
    };
    ucp_ep_h ep = rmem->ep;

    if (ep != NULL) {
        rmem->ep = NULL;
        rmem_side_finish(&rmem->side, ucp_ep_close_nbx(ep, &force));
    }
}

/* The first reason counts. Callbacks call this, too, and must not close the
 * endpoint. */
static void fail(rmem_t *rmem, int status, const char *why)
{
    if (rmem->status == RMEM_OK) {
        rmem->status = rmem_error(status, "session ended: %s", why);
    }
}

/* After a failure all requests end, because the endpoint is closed */
static int end_if_failed(rmem_t *rmem)
{
    if ((rmem->status != RMEM_OK) && (rmem->ep != NULL)) {
        /* First: to close waits for a server that is stopped, on npemu */
        if (rmem->params.on_error != NULL) {
            rmem->params.on_error(rmem->status, rmem->params.arg);
        }
        close_ep(rmem);
    }
    return rmem->status;
}

/* One step of waiting, which began at `since`. The time is taken before the
 * progress: if this process was stopped, what came meanwhile is seen first. */
static int step(rmem_t *rmem, uint64_t since)
{
    uint64_t deadline = MAX(since, rmem->heard) +
                        rmem->params.timeout_ms * UINT64_C(1000000);
    uint64_t now      = rmem_now();
    bool is_busy;

    if (rmem->status != RMEM_OK) {
        ucp_worker_progress(rmem->side.worker);
        return rmem->status;
    }

    is_busy = rmem_side_progress(&rmem->side, -1, (now < deadline) ?
                                 (deadline - now) / 1000000 + 1 : 0);
    if (!is_busy && (now >= deadline)) {
        fail(rmem, RMEM_ERR_TIMEOUT, "the server does not answer");
    }
    return end_if_failed(rmem);
}

/* Waits for a request, also after a failure, and frees it */
static int finish(rmem_t *rmem, ucs_status_ptr_t request)
{
    uint64_t since = rmem_now();
    ucs_status_t status;

    if (UCS_PTR_IS_PTR(request)) {
        while (ucp_request_check_status(request) == UCS_INPROGRESS) {
            step(rmem, since);
        }
        status = ucp_request_check_status(request);
        ucp_request_free(request);
    } else {
        status = UCS_PTR_STATUS(request);
    }

    if (status != UCS_OK) {
        /* That the server has no memory there ends the operation alone */
        fail(rmem, (status == UCS_ERR_INVALID_ADDR) ? RMEM_ERR_RANGE :
                   RMEM_ERR_SERVER, ucs_status_string(status));
    }
    return end_if_failed(rmem);
}


/* ---- what the server sends ---- */

static void on_error(void *arg, ucp_ep_h ep, ucs_status_t status)
{
    fail(arg, RMEM_ERR_SERVER, ucs_status_string(status));
}

static ucs_status_t
on_welcome(void *arg, const void *header, size_t header_length, void *data,
           size_t length, const ucp_am_recv_param_t *param)
{
    rmem_t *rmem = arg;
    rmem_welcome_t welcome;
    const char *wrong;

    if ((rmem->rkey != NULL) || (rmem->ep == NULL) ||
        (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV)) {
        fail(rmem, RMEM_ERR_SERVER, "WELCOME was not expected");
        return UCS_OK;
    }

    wrong = rmem_wire_parse_welcome(header, header_length, length, &welcome);
    if (wrong != NULL) {
        fail(rmem, RMEM_ERR_SERVER, wrong);
    } else if (welcome.status != RMEM_OK) {
        fail(rmem, welcome.status, rmem_strerror(welcome.status));
    } else if ((welcome.bytes != rmem->params.bytes) ||
               (ucp_ep_rkey_unpack(rmem->ep, data, &rmem->rkey) != UCS_OK)) {
        fail(rmem, RMEM_ERR_SERVER, "WELCOME to something else");
    }
    rmem->address = welcome.address;
    rmem->heard   = rmem_now();
    return UCS_OK;
}

static ucs_status_t
on_ack(void *arg, const void *header, size_t header_length, void *data,
       size_t length, const ucp_am_recv_param_t *param)
{
    rmem_t *rmem = arg;
    const char *wrong;
    rmem_ack_t ack;

    wrong = rmem_wire_parse_ack(header, header_length, length, &ack);
    if ((wrong == NULL) &&
        (ack.seq - rmem->acked > rmem->sent - rmem->acked)) {
        wrong = "ACK of a message that was not sent";
    }
    if (wrong != NULL) {
        fail(rmem, RMEM_ERR_SERVER, wrong);
        return UCS_OK;
    }

    rmem->acked = ack.seq;
    rmem->heard = rmem_now();
    if (ack.status != RMEM_OK) {
        fail(rmem, ack.status, "the server could not store a message");
    }
    return UCS_OK;
}

static ucs_status_t
on_other(void *arg, const void *header, size_t header_length, void *data,
         size_t length, const ucp_am_recv_param_t *param)
{
    fail(arg, RMEM_ERR_SERVER, "the server sent something else");
    return UCS_OK;
}

static const ucp_am_recv_callback_t session_callbacks[RMEM_AM_LAST] = {
    on_other, on_other, on_welcome, on_other, on_ack
};


/* ---- open and close ---- */

static int say_hello(rmem_t *rmem, rmem_hello_t *hello)
{
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
        .flags        = UCP_AM_SEND_FLAG_REPLY | UCP_AM_SEND_FLAG_EAGER
    };
    uint64_t since = rmem_now();
    int status;

    status = finish(rmem, ucp_am_send_nbx(
            rmem->ep, RMEM_AM_HELLO, hello, sizeof(*hello), NULL, 0, &param));
    while ((status == RMEM_OK) && (rmem->rkey == NULL)) {
        status = step(rmem, since);
    }
    return status;
}

int rmem_session_open(rmem_t *rmem, const char *where)
{
    rmem_hello_t hello = {
        .magic   = RMEM_WIRE_MAGIC,
        .version = RMEM_WIRE_VERSION,
        .bytes   = rmem->params.bytes
    };
    rmem_where_t address;
    int status;

    if ((rmem_resolve(where, false, &address) != RMEM_OK) ||
        (rmem_read_token(rmem->params.token_file, hello.token) != RMEM_OK)) {
        return RMEM_ERR_ARG;
    }
    status = rmem_side_open(&rmem->side, session_callbacks, rmem);
    if (status != RMEM_OK) {
        return status;
    }

    rmem->ep = rmem_side_connect(&rmem->side, &address, on_error, rmem);
    status   = (rmem->ep == NULL) ?
               rmem_error(RMEM_ERR_SERVER, "cannot connect to %s", where) :
               say_hello(rmem, &hello);
    if (status != RMEM_OK) {
        rmem_session_close(rmem);
    }
    return status;
}

void rmem_session_close(rmem_t *rmem)
{
    unsigned i;

    close_ep(rmem);
    for (i = 0; i < RMEM_SESSION_BUFFERS; ++i) {
        rmem_side_finish(&rmem->side, rmem->buffers[i].request);
    }
    if (rmem->rkey != NULL) {
        ucp_rkey_destroy(rmem->rkey);
    }
    rmem_side_close(&rmem->side);
}


/* ---- messages ---- */

static int wait_ack(rmem_t *rmem, uint32_t seq)
{
    uint64_t since = rmem_now();

    while (((int32_t)(rmem->acked - seq) < 0) &&
           (step(rmem, since) == RMEM_OK)) {
    }
    return rmem->status;
}

static bool has_pages(const rmem_t *rmem, uint32_t seq, uint32_t page,
                      uint32_t count)
{
    const rmem_record_t *record = rmem->unacked[seq % RMEM_MAX_UNACKED].records;
    const rmem_record_t *end    = record +
                                  rmem->unacked[seq % RMEM_MAX_UNACKED].num;

    for (; record < end; ++record) {
        if ((record->page < (uint64_t)page + count) &&
            (page < (uint64_t)record->page + MAX(record->count, 1))) {
            return true;
        }
    }
    return false;
}

/* Waits until the server has stored what messages say of these pages */
static int settle(rmem_t *rmem, uint32_t page, uint32_t count)
{
    uint32_t seq;

    for (seq = rmem->sent; seq != rmem->acked; --seq) {
        if (has_pages(rmem, seq, page, count)) {
            return wait_ack(rmem, seq);
        }
    }
    return rmem->status;
}

uint8_t *rmem_session_buffer(rmem_t *rmem)
{
    rmem_session_buffer_t *buffer = &rmem->buffers[rmem->next];
    ucs_status_ptr_t request = buffer->request;

    buffer->request = NULL;
    return (finish(rmem, request) == RMEM_OK) ? buffer->data :
           NULL;
}

int rmem_session_send(rmem_t *rmem, unsigned records, unsigned flags,
                      size_t length)
{
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
        .flags        = UCP_AM_SEND_FLAG_REPLY | UCP_AM_SEND_FLAG_EAGER
    };
    rmem_session_buffer_t *buffer  = &rmem->buffers[rmem->next];
    unsigned place;

    if (wait_ack(rmem, rmem->sent + 1 - RMEM_MAX_UNACKED) != RMEM_OK) {
        return rmem->status;
    }

    place = ++rmem->sent % RMEM_MAX_UNACKED;
    rmem->unacked[place].num = records;
    memcpy(rmem->unacked[place].records, buffer->data,
           records * sizeof(rmem_record_t));
    buffer->header  = (rmem_lines_t){rmem->sent, records, flags};
    buffer->request = ucp_am_send_nbx(rmem->ep, RMEM_AM_LINES,
                                      &buffer->header, sizeof(buffer->header),
                                      buffer->data, length, &param);
    rmem->next   = (rmem->next + 1) % RMEM_SESSION_BUFFERS;
    ++rmem->stats.messages;
    rmem->stats.sent_bytes += sizeof(buffer->header) + length;
    return UCS_PTR_IS_ERR(buffer->request) ?
           finish(rmem, buffer->request) : RMEM_OK;
}

int rmem_session_drop(rmem_t *rmem, uint32_t page, uint32_t count)
{
    rmem_record_t record = {page, 0, 0};
    int status           = RMEM_OK;
    uint8_t *message;

    for (; (count > 0) && (status == RMEM_OK); count -= record.count) {
        record.page += record.count;
        record.count = MIN(count, RMEM_MAX_CLEAR);
        message      = rmem_session_buffer(rmem);
        if (message == NULL) {
            return rmem->status;
        }

        memcpy(message, &record, sizeof(record));
        status = rmem_session_send(rmem, 1, RMEM_LINES_FREE, sizeof(record));
    }
    return status;
}

int rmem_session_flush(rmem_t *rmem)
{
    return wait_ack(rmem, rmem->sent);
}


/* ---- gets ---- */

int rmem_session_get(rmem_t *rmem, uint64_t offset, void *buffer, size_t length,
                     ucp_mem_h memh)
{
    ucp_request_param_t param = {
        .op_attr_mask = (memh != NULL) ? UCP_OP_ATTR_FIELD_MEMH : 0,
        .memh         = memh
    };
    uint32_t first = offset / RMEM_PAGE_SIZE;
    uint32_t last  = (offset + length - 1) / RMEM_PAGE_SIZE;
    int status     = settle(rmem, first, last - first + 1);

    return (status != RMEM_OK) ? status :
           finish(rmem, ucp_get_nbx(rmem->ep, buffer, length,
                                    rmem->address + offset, rmem->rkey,
                                    &param));
}
