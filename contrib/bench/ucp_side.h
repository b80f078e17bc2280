/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Two UCP processes on one machine that talk over a socket: what the
 * benchmarks between an initiator and a target share. */

#ifndef NPRDMA_BENCH_UCP_SIDE_H_
#define NPRDMA_BENCH_UCP_SIDE_H_

#include "bench.h"

#include <ucp/api/ucp.h>

#include <sched.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define UCP_CHECK(_call) \
    do { \
        ucs_status_t _status = (_call); \
        CHECK(_status == UCS_OK, "%s: %s", #_call, \
              ucs_status_string(_status)); \
    } while (0)

typedef struct {
    int           sock;
    ucp_context_h context;
    ucp_worker_h  worker;
} side_t;

static void send_all(int sock, const void *data, size_t length)
{
    CHECK(send(sock, data, length, 0) == (ssize_t)length, "send to the peer");
}

static void recv_all(int sock, void *data, size_t length)
{
    CHECK(recv(sock, data, length, MSG_WAITALL) == (ssize_t)length,
          "the other process has gone");
}

static void send_blob(int sock, const void *data, size_t length)
{
    send_all(sock, &length, sizeof(length));
    send_all(sock, data, length);
}

static void *recv_blob(int sock)
{
    size_t length;
    void *data;

    recv_all(sock, &length, sizeof(length));
    data = malloc(length);
    recv_all(sock, data, length);
    return data;
}

static void side_init(side_t *side, int sock, int cpu)
{
    ucp_params_t params = {
        .field_mask = UCP_PARAM_FIELD_FEATURES,
        .features   = UCP_FEATURE_RMA
    };
    ucp_worker_params_t worker_params = {0};
    ucp_config_t *config;
    cpu_set_t set;

    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    sched_setaffinity(0, sizeof(set), &set);

    side->sock = sock;
    UCP_CHECK(ucp_config_read(NULL, NULL, &config));
    UCP_CHECK(ucp_init(&params, config, &side->context));
    ucp_config_release(config);
    UCP_CHECK(ucp_worker_create(side->context, &worker_params, &side->worker));
}

static void side_cleanup(side_t *side)
{
    ucp_worker_destroy(side->worker);
    ucp_cleanup(side->context);
}

/* What a target does that polls: not a system call after each progress, which
 * would take longer than the operation that it serves */
static inline void progress_some(side_t *side)
{
    int i;

    for (i = 0; i < 64; ++i) {
        ucp_worker_progress(side->worker);
    }
}

static void wait_for(side_t *side, ucs_status_ptr_t request)
{
    ucs_status_t status;

    if (request == NULL) {
        return;
    }
    CHECK(!UCS_PTR_IS_ERR(request), "%s",
          ucs_status_string(UCS_PTR_STATUS(request)));
    do {
        ucp_worker_progress(side->worker);
        status = ucp_request_check_status(request);
    } while (status == UCS_INPROGRESS);
    CHECK(status == UCS_OK, "%s", ucs_status_string(status));
    ucp_request_free(request);
}

static ucp_ep_h make_ep(side_t *side, const ucp_address_t *address)
{
    ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS,
        .address    = address
    };
    ucp_ep_h ep;

    UCP_CHECK(ucp_ep_create(side->worker, &params, &ep));
    return ep;
}

/* Whatever comes of it: the peer may be closing, too */
static void close_ep(side_t *side, ucp_ep_h ep)
{
    ucs_status_ptr_t request = ucp_ep_close_nb(ep, UCP_EP_CLOSE_MODE_FLUSH);

    if (UCS_PTR_IS_PTR(request)) {
        while (ucp_request_check_status(request) == UCS_INPROGRESS) {
            ucp_worker_progress(side->worker);
        }
        ucp_request_free(request);
    }
}

#endif
