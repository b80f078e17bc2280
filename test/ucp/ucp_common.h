/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCP_COMMON_H_
#define UCP_COMMON_H_

/*
 * What the UCP programs share: checks, memory with known contents, child
 * processes, workers, and waiting for a request.
 */

#include <ucp/api/ucp.h>

#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHECK(_condition, ...) \
    do { \
        if (!(_condition)) { \
            fprintf(stderr, "%s:%d: process %d: ", __FILE__, __LINE__, \
                    getpid()); \
            fprintf(stderr, __VA_ARGS__); \
            fprintf(stderr, "\n"); \
            exit(1); \
        } \
    } while (0)

#define CHECK_OK(_call) \
    do { \
        ucs_status_t _status = (_call); \
        CHECK(_status == UCS_OK, "%s: %s", #_call, \
              ucs_status_string(_status)); \
    } while (0)

/* Parameters of most requests */
static const ucp_request_param_t none = {};

static inline double now(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

static inline void *new_shared(size_t size)
{
    void *ptr = mmap(NULL, size, PROT_READ | PROT_WRITE,
                     MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    CHECK(ptr != MAP_FAILED, "mmap: %m");
    return ptr;
}

static inline char *new_memory(size_t size)
{
    char *ptr = mmap(NULL, size, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    CHECK(ptr != MAP_FAILED, "mmap: %m");
    return ptr;
}

/* The byte at an offset of the stream, or of the message with a number */
static inline char byte_at(uint64_t place)
{
    return (char)((place * 0x9e3779b97f4a7c15ull) >> 56);
}

static inline void fill(char *ptr, size_t size, uint64_t place)
{
    size_t i;

    for (i = 0; i < size; ++i) {
        ptr[i] = byte_at(place + i);
    }
}

static inline void expect(const char *ptr, size_t size, uint64_t place)
{
    size_t i;

    for (i = 0; i < size; ++i) {
        CHECK(ptr[i] == byte_at(place + i), "byte %zu of %zu at %lu is wrong",
              i, size, (unsigned long)place);
    }
}

static inline int is_done(ucs_status_ptr_t request)
{
    return !UCS_PTR_IS_PTR(request) ||
           (ucp_request_check_status(request) != UCS_INPROGRESS);
}

/* @return Status of the request, which is freed. */
static inline ucs_status_t
wait_for(ucp_worker_h worker, ucs_status_ptr_t request)
{
    ucs_status_t status;

    while (!is_done(request)) {
        /* There may be many more processes than CPUs */
        if (ucp_worker_progress(worker) == 0) {
            sched_yield();
        }
    }

    if (!UCS_PTR_IS_PTR(request)) {
        return UCS_PTR_STATUS(request);
    }
    status = ucp_request_check_status(request);
    ucp_request_free(request);
    return status;
}

static inline void
open_ucp(uint64_t features, ucp_context_h *context, ucp_worker_h *worker)
{
    ucp_params_t params               = {
        .field_mask = UCP_PARAM_FIELD_FEATURES,
        .features   = features
    };
    ucp_worker_params_t worker_params = {};

    CHECK_OK(ucp_init(&params, NULL, context));
    CHECK_OK(ucp_worker_create(*context, &worker_params, worker));
}

static inline void close_ucp(ucp_context_h context, ucp_worker_h worker)
{
    ucp_worker_destroy(worker);
    ucp_cleanup(context);
}

static inline ucp_mem_h
map_memory(ucp_context_h context, void *ptr, size_t size)
{
    ucp_mem_map_params_t params = {
        .field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS |
                      UCP_MEM_MAP_PARAM_FIELD_LENGTH,
        .address    = ptr,
        .length     = size
    };
    ucp_mem_h memh;

    CHECK_OK(ucp_mem_map(context, &params, &memh));
    return memh;
}

static inline void
on_error(void *arg, ucp_ep_h ep, ucs_status_t status)
{
    CHECK(status != UCS_OK, "the error handler got no error");
    *(ucs_status_t*)arg = status;
}

/* An endpoint that handles errors.
 * @param [out] error  UCS_OK until it fails. */
static inline ucp_ep_h
new_ep(ucp_worker_h worker, ucp_ep_params_t *params, ucs_status_t *error)
{
    ucp_ep_h ep;

    *error                  = UCS_OK;
    params->field_mask     |= UCP_EP_PARAM_FIELD_ERR_HANDLER |
                              UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
    params->err_mode        = UCP_ERR_HANDLING_MODE_PEER;
    params->err_handler.cb  = on_error;
    params->err_handler.arg = error;
    CHECK_OK(ucp_ep_create(worker, params, &ep));
    return ep;
}

/* To a worker's address */
static inline ucp_ep_h
new_ep_to(ucp_worker_h worker, const void *address, ucs_status_t *error)
{
    ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS,
        .address    = address
    };

    return new_ep(worker, &params, error);
}

/* @return Status of the close. */
static inline ucs_status_t
close_ep(ucp_worker_h worker, ucp_ep_h ep, unsigned flags)
{
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
        .flags        = flags
    };

    return wait_for(worker, ucp_ep_close_nbx(ep, &param));
}

/* As fork(). When the parent fails, so do its children. */
static inline pid_t start_child(void)
{
    pid_t pid = fork();

    CHECK(pid >= 0, "fork: %m");
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
    }
    return pid;
}

/* Waits for a child, or for any one (-1), that ends well or is killed */
static inline void expect_end(pid_t pid, int is_killed)
{
    int status;

    CHECK(waitpid(pid, &status, 0) > 0, "waitpid: %m");
    CHECK(is_killed ? (WIFSIGNALED(status) && (WTERMSIG(status) == SIGKILL)) :
                      (status == 0),
          "a process ended with status 0x%x", status);
}

#endif
