/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef RMEM_SIDE_H_
#define RMEM_SIDE_H_

/* What client and server of remote memory have in common: a worker of UCP over
 * nprdma, its address by name, the token, and how they wait. */

#include "rmem_wire.h"

#include <stdbool.h>
#include <sys/socket.h>
#include <ucp/api/ucp.h>

typedef struct {
    ucp_context_h context;
    ucp_worker_h  worker;
    int           fd;    /* Readable when the worker has something to do */
    uint64_t      busy;  /* When it last had, in nanoseconds */
} rmem_side_t;

typedef struct {
    struct sockaddr_storage addr;
    socklen_t               length;
} rmem_where_t;

/* At the beginning of each message to standard error: library or program */
extern const char *rmem_log_name;

/* Prints one line. Returns the status, for the caller to return. */
__attribute__((format(printf, 2, 3)))
int rmem_error(int status, const char *format, ...);

/* All functions that return a status print why they fail. */

/* Loads the component that is installed with this library, and makes UCP choose
 * nprdma, also to connect, unless the user's variables say otherwise.
 *
 * There is one callback for each identifier below RMEM_AM_LAST; the first one
 * is called for all others as well: UCX 1.13 jumps to a random address for the
 * lowest identifier that has none. Messages arrive whole. */
int rmem_side_open(rmem_side_t *side, const ucp_am_recv_callback_t *callbacks,
                   void *arg);
void rmem_side_close(rmem_side_t *side);

/* Makes progress. If there was none for a while, sleeps until there is some, or
 * for timeout_ms (-1: no limit), or until `fd` is readable (-1: none).
 * Returns whether there was progress. */
bool rmem_side_progress(rmem_side_t *side, int fd, int timeout_ms);

/* Progress until a request has ended; frees it, and returns how it ended. */
ucs_status_t rmem_side_finish(rmem_side_t *side, ucs_status_ptr_t request);

/* ADDRESS:PORT or [ADDRESS]:PORT, to listen at or to connect to */
int rmem_resolve(const char *text, bool is_server, rmem_where_t *where);

/* NULL: it fails at once. The callback is called at the end of the connection,
 * also if there is no server. */
ucp_ep_h rmem_side_connect(rmem_side_t *side, const rmem_where_t *where,
                           ucp_err_handler_cb_t on_error, void *arg);

/* Bytes, a number that may end in K, M, G or T; 0: not a size of whole pages */
uint64_t rmem_parse_size(const char *text);

int rmem_read_token(const char *path, uint8_t *token);

/* Of the monotonic clock, in nanoseconds */
uint64_t rmem_now(void);

#endif
