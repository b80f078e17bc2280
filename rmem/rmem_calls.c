/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "rmem_session.h"
#include "rmem_sigbus.h"
#include "rmem_window.h"

#include <stdlib.h>
#include <string.h>
#include <sys/param.h>
#include <unistd.h>

/* Of one get: longer ones could take longer than the time for an answer */
#define READ_MAX ((size_t)64 << 20)

enum {
    PAGE_LINES = RMEM_PAGE_SIZE / RMEM_LINE_SIZE,
    TIMEOUT_MS = 5000
};

int rmem_open(const char *where, const rmem_params_t *params, rmem_t **rmem_p)
{
    pthread_mutexattr_t attr;
    rmem_t *rmem;
    int status;

    if ((where == NULL) || (params == NULL) || (rmem_p == NULL) ||
        (params->size != sizeof(*params)) || (params->token_file == NULL) ||
        (params->flags & ~(RMEM_PAGES | RMEM_KERNEL_FAULTS)) ||
        (params->bytes == 0) || (params->bytes > RMEM_MAX_BYTES)) {
        return rmem_error(RMEM_ERR_ARG, "wrong parameters of rmem_open()");
    }
    rmem = calloc(1, sizeof(*rmem));
    if (rmem == NULL) {
        return RMEM_ERR_NOMEM;
    }

    rmem->params            = *params;
    rmem->params.bytes      = roundup(params->bytes, RMEM_PAGE_SIZE);
    rmem->params.timeout_ms = params->timeout_ms ? params->timeout_ms :
                              TIMEOUT_MS;
    rmem->params.on_error   = NULL; /* It is not called for what fails here */
    rmem->forks             = rmem_forks;
    pthread_mutexattr_init(&attr);
    pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_ERRORCHECK);
    pthread_mutex_init(&rmem->lock, &attr);
    /* The threads that UCX makes take no signals of the program, whose handlers
     * may touch a window: they could wait there for locks of the thread */
    status = rmem_enter(rmem, true);
    if (status == RMEM_OK) {
        status = rmem_leave(rmem, rmem_session_open(rmem, where));
    }
    if (status != RMEM_OK) {
        free(rmem);
        return status;
    }

    rmem->params.on_error = params->on_error;
    *rmem_p               = rmem;
    return RMEM_OK;
}

void rmem_close(rmem_t *rmem)
{
    if (rmem->forks == rmem_forks) {
        if (rmem->window != NULL) {
            rmem_window_close(rmem->window);
        }
        rmem_session_close(rmem);
    }
    free(rmem);
}

/* Begins a call with offsets */
static int enter_range(rmem_t *rmem, uint64_t offset, size_t length,
                       bool is_write)
{
    int status;

    if ((offset > rmem->params.bytes) ||
        (length > rmem->params.bytes - offset)) {
        return RMEM_ERR_ARG;
    }
    status = rmem_enter(rmem, rmem->window != NULL);
    if (status != RMEM_OK) {
        return status;
    }

    /* Another thread may have mapped it meanwhile */
    status = (is_write && (rmem->window != NULL)) ? RMEM_ERR_ARG : rmem->status;
    return (status == RMEM_OK) ? status : rmem_leave(rmem, status);
}

int rmem_read(rmem_t *rmem, uint64_t offset, void *buffer, size_t length)
{
    int status = enter_range(rmem, offset, length, false);
    size_t part;

    if (status != RMEM_OK) {
        return status;
    }
    while ((length > 0) && (status == RMEM_OK)) {
        part    = MIN(length, READ_MAX);
        status  = rmem_session_get(rmem, offset, buffer, part, NULL);
        buffer  = (char*)buffer + part;
        offset += part;
        length -= part;
    }
    return rmem_leave(rmem, status);
}

/* One message, of lines that follow each other. The server stores whole lines:
 * what the first and the last have beside the buffer is fetched. */
static int write_part(rmem_t *rmem, uint64_t offset, const void *buffer,
                      size_t length)
{
    uint64_t first      = offset / RMEM_LINE_SIZE;
    uint64_t last       = (offset + length - 1) / RMEM_LINE_SIZE;
    uint32_t page       = first / PAGE_LINES;
    unsigned records    = last / PAGE_LINES - page + 1;
    size_t bytes        = (last - first + 1) * RMEM_LINE_SIZE;
    uint8_t *message    = rmem_session_buffer(rmem);
    rmem_record_t *record;
    uint8_t *data;
    int status = RMEM_OK;

    if (message == NULL) {
        return rmem->status;
    }

    data = message + records * sizeof(*record);
    if (offset % RMEM_LINE_SIZE != 0) {
        status = rmem_session_get(rmem, first * RMEM_LINE_SIZE, data,
                                  RMEM_LINE_SIZE, NULL);
    }
    if ((status == RMEM_OK) && ((offset + length) % RMEM_LINE_SIZE != 0)) {
        status = rmem_session_get(rmem, last * RMEM_LINE_SIZE,
                                  data + bytes - RMEM_LINE_SIZE,
                                  RMEM_LINE_SIZE, NULL);
    }
    if (status != RMEM_OK) {
        return status;
    }

    memcpy(data + offset % RMEM_LINE_SIZE, buffer, length);
    for (record = (rmem_record_t*)message; record < (rmem_record_t*)data;
         ++record) {
        *record = (rmem_record_t){page++, 0, UINT64_MAX};
    }
    record[-1].mask >>= PAGE_LINES - 1 - last % PAGE_LINES;
    record            = (rmem_record_t*)message;
    record->mask     &= UINT64_MAX << first % PAGE_LINES;
    return rmem_session_send(rmem, records, 0,
                             records * sizeof(*record) + bytes);
}

int rmem_write(rmem_t *rmem, uint64_t offset, const void *buffer, size_t length)
{
    int status = enter_range(rmem, offset, length, true);
    size_t part;

    if (status != RMEM_OK) {
        return status;
    }
    while ((length > 0) && (status == RMEM_OK)) {
        part    = MIN(length, RMEM_MAX_RECORDS * RMEM_PAGE_SIZE -
                              offset % RMEM_PAGE_SIZE);
        status  = write_part(rmem, offset, buffer, part);
        buffer  = (const char*)buffer + part;
        offset += part;
        length -= part;
    }
    return rmem_leave(rmem, status);
}

int rmem_flush(rmem_t *rmem)
{
    int status = rmem_enter(rmem, rmem->window != NULL);

    if (status != RMEM_OK) {
        return status;
    }
    if (rmem->window != NULL) {
        status = rmem_window_flush(rmem->window);
    }
    return rmem_leave(rmem, (status != RMEM_OK) ? status :
                      rmem_session_flush(rmem));
}

int rmem_discard(rmem_t *rmem, void *address, size_t length)
{
    uint64_t offset = (uintptr_t)address - (uintptr_t)rmem->base;
    uint64_t first, end;
    int status;

    status = enter_range(rmem, offset, length, false);
    if (status != RMEM_OK) {
        return status;
    }
    first = howmany(offset, RMEM_PAGE_SIZE);
    end   = (offset + length) / RMEM_PAGE_SIZE;
    if (first < end) {
        status = (rmem->window != NULL) ?
                 rmem_window_discard(rmem->window, first, end - first) :
                 rmem_session_drop(rmem, first, end - first);
    }
    return rmem_leave(rmem, status);
}

void rmem_stats(const rmem_t *rmem, rmem_stats_t *stats)
{
    rmem_t *locked = (rmem_t*)rmem;

    memset(stats, 0, sizeof(*stats));
    if (rmem_enter(locked, rmem->window != NULL) == RMEM_OK) {
        *stats = rmem->stats;
        rmem_leave(locked, RMEM_OK);
    }
}
