/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * ucp_leavers CLIENTS AT_ONCE DESCRIPTORS
 *
 * A server, limited to DESCRIPTORS, gets one large message of each of CLIENTS
 * processes, AT_ONCE of which are connected at the same time. They leave in
 * turn as an orderly client, by exit after their endpoint is closed, by exit
 * alone, and by a signal. In the end the server has the descriptors and the
 * address space that it had before, and a client that was connected all the
 * time still reaches it.
 */

#define _GNU_SOURCE
#include "ucp_socket.h"

#include <dirent.h>
#include <semaphore.h>
#include <sys/resource.h>

enum {
    SIZE        = 200000, /* by RDMA operations, with all connections */
    MAX_AT_ONCE = 1000,
    RELEASE_SEC = 60,     /* until nothing is left */
    SLACK_MIB   = 4096    /* half of what one client takes */
};

typedef struct {
    unsigned descriptors;
    unsigned mib;          /* of address space */
} held_t;

typedef struct accepted {
    struct accepted *next;
    ucp_ep_h        ep;
    ucs_status_t    error;
} accepted_t;

static struct {
    unsigned      num_clients;
    unsigned      at_once;
    unsigned      limit;          /* of descriptors */

    ucp_context_h context;
    ucp_worker_h  worker;
    accepted_t    *accepted;      /* the server's endpoints */
} self;

/* What all processes see: signals to each, and the server's port */
static struct {
    sem_t    to_parent;
    sem_t    to_server;
    sem_t    to_resident;
    sem_t    to_leavers;
    uint16_t port;
} *shared;

/* ---- server ---- */

static unsigned count_descriptors(void)
{
    unsigned count = 0;
    DIR *dir       = opendir("/proc/self/fd");

    CHECK(dir != NULL, "opendir: %m");
    while (readdir(dir) != NULL) {
        ++count;
    }
    closedir(dir);
    return count;
}

static held_t held(const char *when)
{
    FILE *file          = fopen("/proc/self/statm", "r");
    unsigned long pages = 0;
    held_t held         = {.descriptors = count_descriptors()};

    CHECK((file != NULL) && (fscanf(file, "%lu", &pages) == 1), "statm");
    fclose(file);
    held.mib = pages / 256;
    if (when != NULL) {
        printf("server, %s: %u descriptors, %u MiB of address space\n", when,
               held.descriptors, held.mib);
        fflush(stdout);
    }
    return held;
}

static void on_request(ucp_conn_request_h request, void *arg)
{
    accepted_t *accepted = malloc(sizeof(*accepted));

    CHECK(accepted != NULL, "malloc");
    accepted->ep   = accept_request(self.worker, request, &accepted->error);
    accepted->next = self.accepted;
    self.accepted  = accepted;
}

/* Endpoints whose client has closed, or is gone */
static void close_failed(void)
{
    accepted_t **link = &self.accepted;
    accepted_t *accepted;

    while ((accepted = *link) != NULL) {
        if (accepted->error == UCS_OK) {
            link = &accepted->next;
            continue;
        }
        *link = accepted->next;
        close_ep(self.worker, accepted->ep, UCP_EP_CLOSE_FLAG_FORCE);
        free(accepted);
    }
}

static void progress(void)
{
    ucp_worker_progress(self.worker);
    close_failed();
}

static void receive(char *data)
{
    ucs_status_ptr_t request;

    memset(data, 0, SIZE);
    request = ucp_tag_recv_nbx(self.worker, data, SIZE, 0, 0, &none);
    while (!is_done(request)) {
        progress();
    }
    CHECK_OK(wait_for(self.worker, request));
    expect(data, SIZE, 0);
}

static int is_released(held_t before, held_t after)
{
    return (after.descriptors <= before.descriptors) &&
           (after.mib < before.mib + SLACK_MIB);
}

/* Waits until it holds no more than before */
static void expect_release(held_t before)
{
    double deadline = now() + RELEASE_SEC;

    do {
        progress();
    } while (!is_released(before, held(NULL)) && (now() < deadline));
    CHECK(is_released(before, held("after")),
          "clients that are gone are not released");
}

static void serve(void)
{
    const struct rlimit limit = {self.limit, self.limit};
    char *data                = new_memory(SIZE);
    ucp_listener_h listener;
    held_t before;
    unsigned i;

    CHECK(!setrlimit(RLIMIT_NOFILE, &limit), "setrlimit: %m");
    open_ucp(UCP_FEATURE_TAG, &self.context, &self.worker);
    shared->port = listen_anywhere(self.worker, AF_INET, on_request, &listener);
    sem_post(&shared->to_parent);
    receive(data); /* of the one that stays */
    before = held("before");
    sem_post(&shared->to_parent);
    for (i = 0; i < self.num_clients; ++i) {
        receive(data);
        /* What is sent may be lost if its sender ends */
        sem_post(&shared->to_parent);
    }

    /* Those that close wait for an answer */
    while (sem_trywait(&shared->to_server) != 0) {
        progress();
    }
    expect_release(before);
    sem_post(&shared->to_parent);
    receive(data);
    ucp_listener_destroy(listener);
    while (self.accepted != NULL) {
        progress();
    }
    close_ucp(self.context, self.worker);
}

/* ---- clients ---- */

static void send_one(ucp_ep_h ep)
{
    char *data               = new_memory(SIZE);

    fill(data, SIZE, 0);
    /* UCP uses no RDMA for what is sent before the endpoint is connected */
    CHECK_OK(wait_for(self.worker, ucp_ep_flush_nbx(ep, &none)));
    CHECK_OK(wait_for(self.worker, ucp_tag_send_nbx(ep, data, SIZE, 0, &none)));
    munmap(data, SIZE);
}

static void stay(void)
{
    ucs_status_t error;
    ucp_ep_h ep;

    open_ucp(UCP_FEATURE_TAG, &self.context, &self.worker);
    ep = connect_to(self.worker, AF_INET, shared->port, &error);
    send_one(ep);
    sem_wait(&shared->to_resident);
    send_one(ep);
    CHECK_OK(error);
    close_ep(self.worker, ep, 0);
    close_ucp(self.context, self.worker);
}

static void leave(int how)
{
    ucs_status_t error;
    ucp_ep_h ep;

    open_ucp(UCP_FEATURE_TAG, &self.context, &self.worker);
    ep = connect_to(self.worker, AF_INET, shared->port, &error);
    send_one(ep);
    sem_wait(&shared->to_leavers);
    if (how <= 1) {
        close_ep(self.worker, ep, 0);
    }
    if (how == 0) {
        close_ucp(self.context, self.worker);
    }
    if (how == 3) {
        raise(SIGKILL);
    }
    _exit(0);
}

/* ---- the processes ---- */

/* Clients that are connected at the same time, and leave at the same time */
static void run_leavers(unsigned first, unsigned count)
{
    pid_t pids[MAX_AT_ONCE];
    unsigned i;

    for (i = 0; i < count; ++i) {
        pids[i] = start_child();
        if (pids[i] == 0) {
            leave((first + i) % 4);
        }
    }
    for (i = 0; i < count; ++i) {
        sem_wait(&shared->to_parent);
    }
    for (i = 0; i < count; ++i) {
        sem_post(&shared->to_leavers);
    }
    for (i = 0; i < count; ++i) {
        expect_end(pids[i], (first + i) % 4 == 3);
    }
}

static void run(void)
{
    pid_t server, resident;
    unsigned i;

    server = start_child();
    if (server == 0) {
        serve();
        exit(0);
    }
    sem_wait(&shared->to_parent);
    resident = start_child();
    if (resident == 0) {
        stay();
        exit(0);
    }
    sem_wait(&shared->to_parent);
    for (i = 0; i < self.num_clients; i += self.at_once) {
        run_leavers(i, (self.num_clients - i < self.at_once) ?
                               self.num_clients - i : self.at_once);
    }
    sem_post(&shared->to_server);
    sem_wait(&shared->to_parent);
    sem_post(&shared->to_resident);
    expect_end(resident, 0);
    expect_end(server, 0);
}

int main(int argc, char **argv)
{
    CHECK(argc == 4, "usage: ucp_leavers CLIENTS AT_ONCE DESCRIPTORS");
    self.num_clients = atoi(argv[1]);
    self.at_once     = atoi(argv[2]);
    self.limit       = atoi(argv[3]);
    CHECK((self.at_once >= 1) && (self.at_once <= MAX_AT_ONCE),
          "1 to %d clients at once", MAX_AT_ONCE);
    shared = new_shared(sizeof(*shared));
    CHECK(!sem_init(&shared->to_parent, 1, 0) &&
          !sem_init(&shared->to_server, 1, 0) &&
          !sem_init(&shared->to_resident, 1, 0) &&
          !sem_init(&shared->to_leavers, 1, 0), "sem_init: %m");
    run();
    return 0;
}
