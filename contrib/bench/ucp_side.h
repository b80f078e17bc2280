/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Two UCP processes on one machine that talk over a socket: what the
 * benchmarks between an initiator and a target share. */

#ifndef NPRDMA_BENCH_UCP_SIDE_H_
#define NPRDMA_BENCH_UCP_SIDE_H_

#include "bench.h"

#include <ucp/api/ucp.h>

#include <sched.h>
#include <stdbool.h>
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

/* What this process has */
static struct {
    pid_t         target;   /* Its process; 0: this one */
    int           sock;
    ucp_context_h context;
    ucp_worker_h  worker;
    void          *address; /* Of the other worker */
    ucp_ep_h      ep;       /* To that */
    ucp_mem_h     memh;     /* Of the target's memory */
    double        export_us; /* That making it and its key took */
    uint64_t      memory;   /* At the initiator: where that is, and its key */
    void          *packed;
    ucp_rkey_h    rkey;
} side;

static const ucp_request_param_t no_param;


/* ---- socket ---- */

static void send_all(const void *data, size_t length)
{
    CHECK(send(side.sock, data, length, 0) == (ssize_t)length,
          "send to the other process");
}

/* With progress, which the other process may need, to connect for example. The
 * initiator ends with the target's status if that has ended early. */
static void recv_all(void *data, size_t length)
{
    size_t done = 0;
    ssize_t ret;
    int status;

    while (done < length) {
        ucp_worker_progress(side.worker);
        ret = recv(side.sock, (char*)data + done, length - done, MSG_DONTWAIT);
        if (ret > 0) {
            done += ret;
        } else if ((ret == 0) || (errno != EAGAIN)) {
            CHECK((side.target != 0) &&
                  (waitpid(side.target, &status, 0) == side.target) &&
                  WIFEXITED(status) && (WEXITSTATUS(status) != 0),
                  "the other process has gone");
            exit(WEXITSTATUS(status));
        }
    }
}

static void send_blob(const void *data, size_t length)
{
    send_all(&length, sizeof(length));
    send_all(data, length);
}

static void *recv_blob(void)
{
    size_t length;
    void *data;

    recv_all(&length, sizeof(length));
    data = malloc(length);
    recv_all(data, length);
    return data;
}

/* Of the initiator */
static void command(char cmd, void *answer, size_t length)
{
    send_all(&cmd, 1);
    recv_all(answer, length);
}


/* ---- requests ---- */

/* Progress of a polling target, without a system call after each: that would
 * take longer than the operation that it serves */
static inline void progress_some(void)
{
    int i;

    for (i = 0; i < 64; ++i) {
        ucp_worker_progress(side.worker);
    }
}

/* @return Nonzero if a request is done; it is freed then. */
static inline bool is_done(ucs_status_ptr_t *request)
{
    ucs_status_t status;

    if (*request == NULL) {
        return true;
    }
    CHECK(!UCS_PTR_IS_ERR(*request), "%s",
          ucs_status_string(UCS_PTR_STATUS(*request)));
    status = ucp_request_check_status(*request);
    if (status == UCS_INPROGRESS) {
        return false;
    }
    CHECK(status == UCS_OK, "%s", ucs_status_string(status));
    ucp_request_free(*request);
    *request = NULL;
    return true;
}

static void wait_for(ucs_status_ptr_t request)
{
    while (!is_done(&request)) {
        ucp_worker_progress(side.worker);
    }
}

/* With any status: it was cancelled, or the peer may be closing as well */
static void wait_for_end(ucs_status_ptr_t request)
{
    if (UCS_PTR_IS_PTR(request)) {
        while (ucp_request_check_status(request) == UCS_INPROGRESS) {
            ucp_worker_progress(side.worker);
        }
        ucp_request_free(request);
    }
}

/* @param [out] reply  What was there before */
static inline ucs_status_ptr_t
add_one(ucp_ep_h ep, uint64_t address, ucp_rkey_h rkey, uint64_t *reply)
{
    static const uint64_t one = 1;
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_DATATYPE |
                        UCP_OP_ATTR_FIELD_REPLY_BUFFER,
        .datatype     = ucp_dt_make_contig(sizeof(one)),
        .reply_buffer = reply
    };

    return ucp_atomic_op_nbx(ep, UCP_ATOMIC_OP_ADD, &one, 1, address, rkey,
                             &param);
}


/* ---- the two processes ---- */

static ucp_ep_h new_ep(void)
{
    ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS,
        .address    = side.address
    };
    ucp_ep_h ep;

    UCP_CHECK(ucp_ep_create(side.worker, &params, &ep));
    return ep;
}

/* Bound to a CPU of its own, if there are two, with all threads that UCX
 * creates. Both have an endpoint, as most programs do: UCP polls no interface
 * that it has not sent or received anything on. features: UCP_FEATURE_* */
static void side_open(uint64_t features)
{
    ucp_params_t params = {
        .field_mask = UCP_PARAM_FIELD_FEATURES,
        .features   = features
    };
    ucp_worker_params_t worker_params = {0};
    ucp_address_t *address;
    size_t length;
    cpu_set_t set;

    CPU_ZERO(&set);
    CPU_SET(side.target ? 0 : 1 % sysconf(_SC_NPROCESSORS_ONLN), &set);
    sched_setaffinity(0, sizeof(set), &set);
    UCP_CHECK(ucp_init(&params, NULL, &side.context));
    UCP_CHECK(ucp_worker_create(side.context, &worker_params, &side.worker));
    UCP_CHECK(ucp_worker_get_address(side.worker, &address, &length));
    send_blob(address, length);
    ucp_worker_release_address(side.worker, address);
    side.address = recv_blob();
    side.ep      = new_ep();
}

/* Lets the initiator know of the memory, which must be there until
 * target_close() */
static void target_open(uint64_t features, void *memory, size_t length)
{
    ucp_mem_map_params_t map = {
        .field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS |
                      UCP_MEM_MAP_PARAM_FIELD_LENGTH,
        .address    = memory,
        .length     = length
    };
    uint64_t address = (uintptr_t)memory;
    size_t rkey_length;
    void *rkey;

    side_open(features);
    side.export_us = now_us();
    UCP_CHECK(ucp_mem_map(side.context, &map, &side.memh));
    UCP_CHECK(ucp_rkey_pack(side.context, side.memh, &rkey, &rkey_length));
    side.export_us = now_us() - side.export_us;
    send_blob(rkey, rkey_length);
    ucp_rkey_buffer_release(rkey);
    wait_for(ucp_ep_flush_nbx(side.ep, &no_param));
    send_all(&address, sizeof(address));
}

static void initiator_open(uint64_t features)
{
    side_open(features);
    side.packed = recv_blob();
    recv_all(&side.memory, sizeof(side.memory));
    UCP_CHECK(ucp_ep_rkey_unpack(side.ep, side.packed, &side.rkey));
}

static void side_close(void)
{
    free(side.packed);
    free(side.address);
    ucp_worker_destroy(side.worker);
    ucp_cleanup(side.context);
}

/* After the initiator's last command, whose answer is `last` */
static void target_close(uint64_t last)
{
    wait_for_end(ucp_ep_close_nb(side.ep, UCP_EP_CLOSE_MODE_FLUSH));
    send_all(&last, sizeof(last));
    ucp_mem_unmap(side.context, side.memh);
    side_close();
}

static void initiator_close(void)
{
    ucp_rkey_destroy(side.rkey);
    wait_for_end(ucp_ep_close_nb(side.ep, UCP_EP_CLOSE_MODE_FLUSH));
    side_close();
}

/* Runs the target in a child; returns what the child has returned */
static int run_both(void (*target_main)(void), void (*initiator_main)(void))
{
    int socks[2], status;

    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, socks) == 0, "socketpair: %m");
    side.target = fork();
    CHECK(side.target >= 0, "fork: %m");
    side.sock = socks[side.target == 0];
    close(socks[side.target != 0]);
    if (side.target == 0) {
        target_main();
        exit(EXIT_SUCCESS);
    }

    initiator_main();
    CHECK((waitpid(side.target, &status, 0) == side.target) &&
          WIFEXITED(status), "the target process was killed");
    return WEXITSTATUS(status);
}

#endif
