/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * ucp_leavers [-n CLIENTS] [-p AT_ONCE] [-d DESCRIPTORS]
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
#include <getopt.h>
#include <poll.h>
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
    int           to_parent[2];   /* pipes: a byte is a signal */
    int           to_server[2];
    int           to_resident[2];
    int           to_leavers[2];
    uint16_t      port;

    ucp_context_h context;
    ucp_worker_h  worker;
    accepted_t    *accepted;      /* the server's endpoints */
} self;


static void tell(const int *fds)
{
    CHECK(write(fds[1], "x", 1) == 1, "write: %m");
}

static void hear(const int *fds)
{
    char byte;

    CHECK(read(fds[0], &byte, 1) == 1, "the other process is gone");
}

static void open_worker(void)
{
    open_ucp(UCP_FEATURE_TAG, &self.context, &self.worker);
}

static void close_worker(void)
{
    close_ucp(self.context, self.worker);
}


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

/* A line of /proc/self/status, in MiB */
static unsigned status_mib(const char *name)
{
    FILE *file       = fopen("/proc/self/status", "r");
    unsigned long kb = 0;
    char line[256];

    CHECK(file != NULL, "fopen: %m");
    while (fgets(line, sizeof(line), file) != NULL) {
        if (!strncmp(line, name, strlen(name))) {
            kb = strtoul(line + strlen(name), NULL, 10);
        }
    }
    fclose(file);
    return kb / 1024;
}

static held_t held(void)
{
    held_t held = {
        .descriptors = count_descriptors(),
        .mib         = status_mib("VmSize:")
    };

    return held;
}

static void report(const char *when, held_t held)
{
    printf("server, %s: %u descriptors, %u MiB of address space, %u MiB "
           "resident\n", when, held.descriptors, held.mib,
           status_mib("VmRSS:"));
    fflush(stdout);
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

/* Until the clients are gone; those that close wait for an answer */
static void await_leave(void)
{
    struct pollfd pfd = {.fd = self.to_server[0], .events = POLLIN};

    while (poll(&pfd, 1, 0) == 0) {
        progress();
    }
    hear(self.to_server);
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
    held_t after;

    do {
        progress();
        after = held();
    } while (!is_released(before, after) && (now() < deadline));
    report("after", after);
    CHECK(is_released(before, after), "clients that are gone are not released");
}

static void serve(void)
{
    const struct rlimit limit = {self.limit, self.limit};
    char *data                = new_memory(SIZE);
    ucp_listener_h listener;
    held_t before;
    unsigned i;

    CHECK(!setrlimit(RLIMIT_NOFILE, &limit), "setrlimit: %m");
    open_worker();
    self.port = listen_anywhere(self.worker, AF_INET, on_request, &listener);
    CHECK(write(self.to_parent[1], &self.port, sizeof(self.port)) ==
          sizeof(self.port), "write: %m");
    receive(data); /* of the one that stays */
    before = held();
    report("before", before);
    tell(self.to_parent);
    for (i = 0; i < self.num_clients; ++i) {
        receive(data);
        tell(self.to_parent); /* what is sent may be lost if its sender ends */
    }

    await_leave();
    expect_release(before);
    tell(self.to_parent);
    receive(data);
    ucp_listener_destroy(listener);
    while (self.accepted != NULL) {
        progress();
    }
    close_worker();
}


/* ---- clients ---- */

static void send_one(ucp_ep_h ep)
{
    char *data               = new_memory(SIZE);

    fill(data, SIZE, 0);
    CHECK_OK(wait_for(self.worker, ucp_tag_send_nbx(ep, data, SIZE, 0, &none)));
    munmap(data, SIZE);
}

static void stay(void)
{
    ucs_status_t error;
    ucp_ep_h ep;

    open_worker();
    ep = connect_to(self.worker, AF_INET, self.port, &error);
    send_one(ep);
    hear(self.to_resident);
    send_one(ep);
    CHECK_OK(error);
    close_ep(self.worker, ep, 0);
    close_worker();
}

static void leave(int how)
{
    ucs_status_t error;
    ucp_ep_h ep;

    open_worker();
    ep = connect_to(self.worker, AF_INET, self.port, &error);
    send_one(ep);
    hear(self.to_leavers);
    if (how <= 1) {
        close_ep(self.worker, ep, 0);
    }
    if (how == 0) {
        close_worker();
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
        hear(self.to_parent);
    }
    for (i = 0; i < count; ++i) {
        tell(self.to_leavers);
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
    CHECK(read(self.to_parent[0], &self.port, sizeof(self.port)) ==
          sizeof(self.port), "the server is gone");
    resident = start_child();
    if (resident == 0) {
        stay();
        exit(0);
    }
    hear(self.to_parent);
    for (i = 0; i < self.num_clients; i += self.at_once) {
        run_leavers(i, (self.num_clients - i < self.at_once) ?
                               self.num_clients - i : self.at_once);
    }
    tell(self.to_server);
    hear(self.to_parent);
    tell(self.to_resident);
    expect_end(resident, 0);
    expect_end(server, 0);
}

int main(int argc, char **argv)
{
    int c;

    self.num_clients = 1;
    self.at_once     = 1;
    self.limit       = 1024;
    while ((c = getopt(argc, argv, "n:p:d:")) != -1) {
        switch (c) {
        case 'n':
            self.num_clients = atoi(optarg);
            break;
        case 'p':
            self.at_once = atoi(optarg);
            break;
        case 'd':
            self.limit = atoi(optarg);
            break;
        default:
            return 2;
        }
    }
    CHECK((argc == optind) && (self.at_once >= 1) &&
          (self.at_once <= MAX_AT_ONCE),
          "usage: ucp_leavers [-n CLIENTS] [-p AT_ONCE] [-d DESCRIPTORS]");
    CHECK(!pipe(self.to_parent) && !pipe(self.to_server) &&
          !pipe(self.to_resident) && !pipe(self.to_leavers), "pipe: %m");
    run();
    return 0;
}
