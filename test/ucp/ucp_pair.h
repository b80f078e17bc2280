/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCP_PAIR_H_
#define UCP_PAIR_H_

/*
 * Two processes with a socket between them. Each makes progress while it waits
 * for the other one.
 */

#include "ucp_common.h"

#include <errno.h>
#include <sys/socket.h>

static struct {
    int           number;       /* 0 or 1 */
    int           fd;           /* To the other process */
    int           is_killed;    /* A process may be killed */
    ucp_context_h context;
    ucp_worker_h  worker;       /* Or NULL */
} pair;

/* @return Nonzero if the other process has sent a character. */
static inline int pair_poll(char *character)
{
    ssize_t ret;

    if (pair.worker != NULL) {
        ucp_worker_progress(pair.worker);
    }
    ret = recv(pair.fd, character, 1, MSG_DONTWAIT);
    CHECK((ret == 1) || ((ret < 0) && (errno == EAGAIN)),
          "the other process is gone");
    return ret == 1;
}

static inline void pair_put(const void *data, size_t length)
{
    CHECK(write(pair.fd, data, length) == (ssize_t)length, "write: %m");
}

static inline void pair_get(void *data, size_t length)
{
    size_t done;

    for (done = 0; done < length;) {
        done += pair_poll((char*)data + done);
    }
}

static inline void pair_meet(void)
{
    char byte = 0;

    pair_put(&byte, 1);
    pair_get(&byte, 1);
}

static inline void pair_put_sized(const void *data, size_t length)
{
    pair_put(&length, sizeof(length));
    pair_put(data, length);
}

static inline void *pair_get_sized(void)
{
    size_t length;
    void *data;

    pair_get(&length, sizeof(length));
    data = malloc(length);
    CHECK(data != NULL, "malloc");
    pair_get(data, length);
    return data;
}

/* Address of the other worker */
static inline ucp_address_t *pair_exchange_addresses(void)
{
    ucp_address_t *address;
    size_t length;

    CHECK_OK(ucp_worker_get_address(pair.worker, &address, &length));
    pair_put_sized(address, length);
    ucp_worker_release_address(pair.worker, address);
    return pair_get_sized();
}

/* To the other worker, without error handling */
static inline ucp_ep_h pair_connect(void)
{
    ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS,
        .address    = pair_exchange_addresses()
    };
    ucp_ep_h ep;

    CHECK_OK(ucp_ep_create(pair.worker, &params, &ep));
    return ep;
}

/* The other process gets the key of this memory, and where it is */
static inline ucp_mem_h pair_export(void *memory, size_t size)
{
    ucp_mem_h memh = map_memory(pair.context, memory, size);
    size_t length;
    void *key;

    CHECK_OK(ucp_rkey_pack(pair.context, memh, &key, &length));
    pair_put(&memory, sizeof(memory));
    pair_put_sized(key, length);
    ucp_rkey_buffer_release(key);
    return memh;
}

/* @return The key. */
static inline void *pair_import(uint64_t *address)
{
    pair_get(address, sizeof(*address));
    return pair_get_sized();
}

/* @return Exit status of the program: 77 if it is skipped. */
static inline int run_pair(void (*func)(void))
{
    int result = 0;
    int fds[2], i, status;

    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0, "socketpair: %m");
    for (i = 0; i < 2; ++i) {
        if (start_child() == 0) {
            pair.number = i;
            pair.fd     = fds[i];
            close(fds[1 - i]);
            func();
            exit(0);
        }
    }
    close(fds[0]);
    close(fds[1]);
    for (i = 0; i < 2; ++i) {
        CHECK(wait(&status) > 0, "wait: %m");
        if (WIFEXITED(status) && (WEXITSTATUS(status) == 77)) {
            result = 77;
        } else {
            CHECK((status == 0) ||
                  (pair.is_killed && (status == SIGKILL)),
                  "a process ended with status 0x%x", status);
        }
    }
    return result;
}

#endif
