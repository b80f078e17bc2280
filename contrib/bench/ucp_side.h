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

typedef struct {
    int           sock;
    ucp_context_h context;
    ucp_worker_h  worker;
} side_t;

typedef struct {
    side_t    side;
    ucp_mem_h memh;
    ucp_ep_h  back; /* To the initiator */
    void      *peer_address;
} target_t;

typedef struct {
    side_t     side;
    void       *address; /* Of the target's worker */
    void       *packed;  /* Key of its memory */
    uint64_t   memory;   /* Where that is */
    pid_t      target;
    ucp_ep_h   ep;
    ucp_rkey_h rkey;
} initiator_t;

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

/* The calling thread, and the threads that it creates later */
static void bind_to(int cpu)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    CPU_SET(cpu % sysconf(_SC_NPROCESSORS_ONLN), &set);
    sched_setaffinity(0, sizeof(set), &set);
}

/* Bound to a CPU of its own, if there are two. features: UCP_FEATURE_* */
static void side_init(side_t *side, int sock, int cpu, uint64_t features)
{
    ucp_params_t params = {
        .field_mask = UCP_PARAM_FIELD_FEATURES,
        .features   = features
    };
    ucp_worker_params_t worker_params = {0};
    ucp_config_t *config;

    bind_to(cpu);
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

/* Progress of a polling target, without a system call after each: that would
 * take longer than the operation that it serves */
static inline void progress_some(side_t *side)
{
    int i;

    for (i = 0; i < 64; ++i) {
        ucp_worker_progress(side->worker);
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

static void wait_for(side_t *side, ucs_status_ptr_t request)
{
    while (!is_done(&request)) {
        ucp_worker_progress(side->worker);
    }
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

/* With any status: the peer may be closing as well */
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

static void send_worker_address(side_t *side)
{
    ucp_address_t *address;
    size_t length;

    UCP_CHECK(ucp_worker_get_address(side->worker, &address, &length));
    send_blob(side->sock, address, length);
    ucp_worker_release_address(side->worker, address);
}


/* ---- the target ---- */

/*
 * Lets the initiator know of the memory, which must be there until
 * target_cleanup(). Makes an endpoint back, as most programs have one: UCP
 * polls no interface that it has not sent or received anything on.
 */
static void target_init(target_t *target, int sock, uint64_t features,
                        void *memory, size_t length)
{
    ucp_mem_map_params_t map = {
        .field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS |
                      UCP_MEM_MAP_PARAM_FIELD_LENGTH,
        .address    = memory,
        .length     = length
    };
    ucp_request_param_t param = {0};
    uint64_t address          = (uintptr_t)memory;
    side_t *side              = &target->side;
    size_t rkey_length;
    void *rkey;

    side_init(side, sock, 1, features);
    send_worker_address(side);
    UCP_CHECK(ucp_mem_map(side->context, &map, &target->memh));
    UCP_CHECK(ucp_rkey_pack(side->context, target->memh, &rkey, &rkey_length));
    send_blob(sock, rkey, rkey_length);
    ucp_rkey_buffer_release(rkey);

    target->peer_address = recv_blob(sock);
    target->back         = make_ep(side, target->peer_address);
    wait_for(side, ucp_ep_flush_nbx(target->back, &param));
    send_all(sock, &address, sizeof(address));
}

/* After the initiator's last command, whose answer is `last` */
static void target_cleanup(target_t *target, uint64_t last)
{
    close_ep(&target->side, target->back);
    free(target->peer_address);
    send_all(target->side.sock, &last, sizeof(last));
    ucp_mem_unmap(target->side.context, target->memh);
    side_cleanup(&target->side);
}


/* ---- the initiator ---- */

/* With progress, which the target may need, to connect for example. Ends with
 * its status if the target has ended early. */
static void await_answer(initiator_t *initiator, void *answer, size_t length)
{
    ssize_t ret;
    int status;

    do {
        ucp_worker_progress(initiator->side.worker);
        ret = recv(initiator->side.sock, answer, length, MSG_DONTWAIT);
        if ((ret == 0) || ((ret < 0) && (errno != EAGAIN))) {
            CHECK((waitpid(initiator->target, &status, 0) ==
                   initiator->target) && WIFEXITED(status) &&
                  (WEXITSTATUS(status) != 0), "the target process was killed");
            exit(WEXITSTATUS(status));
        }
    } while (ret != (ssize_t)length);
}

static void command(initiator_t *initiator, char cmd, void *answer,
                    size_t length)
{
    send_all(initiator->side.sock, &cmd, 1);
    await_answer(initiator, answer, length);
}

static void initiator_init(initiator_t *initiator, int sock, pid_t target,
                           uint64_t features)
{
    side_t *side = &initiator->side;

    initiator->target = target;
    side_init(side, sock, 0, features);
    initiator->address = recv_blob(sock);
    initiator->packed  = recv_blob(sock);
    send_worker_address(side);
    await_answer(initiator, &initiator->memory, sizeof(initiator->memory));
}

static void initiator_connect(initiator_t *initiator)
{
    initiator->ep = make_ep(&initiator->side, initiator->address);
    UCP_CHECK(ucp_ep_rkey_unpack(initiator->ep, initiator->packed,
                                 &initiator->rkey));
}

static void initiator_disconnect(initiator_t *initiator)
{
    ucp_rkey_destroy(initiator->rkey);
    close_ep(&initiator->side, initiator->ep);
}

static void initiator_cleanup(initiator_t *initiator)
{
    free(initiator->packed);
    free(initiator->address);
    side_cleanup(&initiator->side);
}


/* ---- both ---- */

/* Runs the target in a child; returns what the child has returned */
static int run_both(void (*target_main)(int sock),
                    void (*initiator_main)(int sock, pid_t target))
{
    int socks[2], status;
    pid_t child;

    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, socks) == 0, "socketpair: %m");
    child = fork();
    CHECK(child >= 0, "fork: %m");
    if (child == 0) {
        close(socks[0]);
        target_main(socks[1]);
        exit(EXIT_SUCCESS);
    }

    close(socks[1]);
    initiator_main(socks[0], child);
    CHECK((waitpid(child, &status, 0) == child) && WIFEXITED(status),
          "the target process was killed");
    return WEXITSTATUS(status);
}

#endif
