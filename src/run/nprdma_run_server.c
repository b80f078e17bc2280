/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_run_server.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

/* Connections at a time; with more, the oldest one is closed */
#define NPRDMA_RUN_MAX_CONNS 256

/* Seconds that a connection may take */
#define NPRDMA_RUN_CONN_SEC  5

/* Milliseconds between checks of that */
#define NPRDMA_RUN_TICK_MS   1000

/* Addresses that a sender tries, at most */
#define NPRDMA_RUN_MAX_ADDRESSES 8

typedef struct {
    time_t   end;       /* when it is closed */
    uint64_t number;    /* order of acceptance */
    size_t   length;
    char     text[NPRDMA_RECORD_MAX + 1];
} nprdma_run_conn_t;

struct nprdma_run_server {
    nprdma_run_job_t    *job;
    nprdma_record_run_t run;
    char                value[1400];
    char                greeting[64];
    uint64_t            num_accepted;
    unsigned            num_conns;
    struct pollfd       fds[3 + NPRDMA_RUN_MAX_CONNS]; /* caller's, Unix, TCP,
                                                        * conns */
    nprdma_run_conn_t   conns[NPRDMA_RUN_MAX_CONNS];
};

static time_t nprdma_run_now(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec;
}

/* ---- setup ---- */

static int nprdma_run_secret(char *text)
{
    unsigned char bytes[NPRDMA_RECORD_SECRET_LEN / 2];
    size_t i;

    if (getrandom(bytes, sizeof(bytes), 0) != sizeof(bytes)) {
        return 0;
    }
    for (i = 0; i < sizeof(bytes); ++i) {
        sprintf(text + (2 * i), "%02x", bytes[i]);
    }
    return 1;
}

static int nprdma_run_listen(const struct sockaddr *address, socklen_t length)
{
    int fd = socket(address->sa_family,
                    SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int off = 0;

    if (fd < 0) {
        return -1;
    }
    if (address->sa_family == AF_INET6) {
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
    }
    if ((bind(fd, address, length) < 0) || (listen(fd, SOMAXCONN) < 0)) {
        close(fd);
        return -1;
    }
    return fd;
}

static int nprdma_run_listen_unix(nprdma_run_server_t *server)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    char secret[NPRDMA_RECORD_SECRET_LEN + 1];
    size_t length;

    if (!nprdma_run_secret(secret)) {
        return -1;
    }
    snprintf(server->run.name, sizeof(server->run.name), "nprdma-run-%s",
             secret);
    length = strlen(server->run.name);
    memcpy(address.sun_path + 1, server->run.name, length);
    return nprdma_run_listen((struct sockaddr*)&address,
                             offsetof(struct sockaddr_un, sun_path) + 1 +
                             length);
}

static int nprdma_run_listen_tcp(nprdma_run_server_t *server)
{
    struct sockaddr_in6 ip6 = { .sin6_family = AF_INET6 };
    struct sockaddr_in ip   = { .sin_family = AF_INET };
    socklen_t length        = sizeof(ip6);
    int fd = nprdma_run_listen((struct sockaddr*)&ip6, sizeof(ip6));

    if (fd < 0) {
        fd = nprdma_run_listen((struct sockaddr*)&ip, sizeof(ip));
    }
    /* The port is at the same place in both */
    if ((fd >= 0) && (getsockname(fd, (struct sockaddr*)&ip6, &length) == 0)) {
        server->run.port = ntohs(ip6.sin6_port);
    }
    return fd;
}

/* Addresses of this machine that others may know, IPv4 first */
static void nprdma_run_addresses(char *text, size_t size)
{
    static const int families[] = { AF_INET, AF_INET6 };
    struct ifaddrs *list, *entry;
    char address[INET6_ADDRSTRLEN];
    unsigned i, count = 0;
    const void *number;

    text[0] = '\0';
    if (getifaddrs(&list) < 0) {
        return;
    }
    for (i = 0; i < 2; ++i) {
        for (entry = list; entry != NULL; entry = entry->ifa_next) {
            if ((entry->ifa_addr == NULL) ||
                (entry->ifa_addr->sa_family != families[i]) ||
                (entry->ifa_flags & IFF_LOOPBACK) ||
                (count == NPRDMA_RUN_MAX_ADDRESSES)) {
                continue;
            }
            number = (families[i] == AF_INET) ?
                     (void*)&((struct sockaddr_in*)entry->ifa_addr)->sin_addr :
                     &((struct sockaddr_in6*)entry->ifa_addr)->sin6_addr;
            if (inet_ntop(families[i], number, address, sizeof(address)) &&
                strncmp(address, "fe80:", 5) &&
                (strlen(text) + strlen(address) + 2 < size)) {
                sprintf(text + strlen(text), "%s%s", text[0] ? "," : "",
                        address);
                ++count;
            }
        }
    }
    freeifaddrs(list);
}

nprdma_run_server_t *nprdma_run_server_create(nprdma_run_job_t *job)
{
    nprdma_run_server_t *server = calloc(1, sizeof(*server));
    nprdma_record_run_t *run;

    if (server == NULL) {
        fprintf(stderr, "nprdma-run: error: no memory\n");
        return NULL;
    }

    run = &server->run;
    if (!nprdma_run_secret(run->proof) || !nprdma_run_secret(run->token)) {
        fprintf(stderr, "nprdma-run: error: no random numbers: %s\n",
                strerror(errno));
        free(server);
        return NULL;
    }

    server->job       = job;
    server->fds[1].fd = nprdma_run_listen_unix(server);
    server->fds[2].fd = nprdma_run_listen_tcp(server);
    if ((server->fds[1].fd < 0) && (server->fds[2].fd < 0)) {
        fprintf(stderr, "nprdma-run: error: cannot listen for the records of "
                "the job: %s\n", strerror(errno));
        free(server);
        return NULL;
    }

    nprdma_record_boot_id(run->boot, sizeof(run->boot));
    nprdma_run_addresses(run->addresses, sizeof(run->addresses));
    snprintf(server->greeting, sizeof(server->greeting),
             NPRDMA_RECORD_GREETING "%s\n", run->proof);
    snprintf(server->value, sizeof(server->value), "%s/%s/%s/%s/%u/%s",
             run->proof, run->token, run->boot, run->name, run->port,
             run->addresses);
    return server;
}

void nprdma_run_server_destroy(nprdma_run_server_t *server)
{
    unsigned i;

    for (i = 1; i < 3 + server->num_conns; ++i) {
        if (server->fds[i].fd >= 0) {
            close(server->fds[i].fd);
        }
    }
    free(server);
}

const char *nprdma_run_server_name(const nprdma_run_server_t *server)
{
    return server->run.name;
}

const char *nprdma_run_server_value(const nprdma_run_server_t *server)
{
    return server->value;
}

/* ---- connections ---- */

static void nprdma_run_close(nprdma_run_server_t *server, unsigned index)
{
    unsigned last = --server->num_conns;

    close(server->fds[3 + index].fd);
    server->fds[3 + index] = server->fds[3 + last];
    server->conns[index]   = server->conns[last];
}

/* A new connection takes the place of the oldest one: a sender sends at once,
 * and connections that send nothing must not keep it out */
static void nprdma_run_make_room(nprdma_run_server_t *server)
{
    unsigned i, oldest = 0;

    if (server->num_conns < NPRDMA_RUN_MAX_CONNS) {
        return;
    }
    for (i = 1; i < server->num_conns; ++i) {
        if (server->conns[i].number < server->conns[oldest].number) {
            oldest = i;
        }
    }
    nprdma_run_close(server, oldest);
}

static void nprdma_run_accept(nprdma_run_server_t *server, int listener)
{
    nprdma_run_conn_t *conn;
    ssize_t length = strlen(server->greeting);
    int fd, i;

    /* No more at a time, so that connections with data have their turn */
    for (i = 0; i < NPRDMA_RUN_MAX_CONNS / 4; ++i) {
        fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0) {
            return;
        }
        /* A new socket has room for it */
        if (send(fd, server->greeting, length, MSG_NOSIGNAL) != length) {
            close(fd);
            continue;
        }
        nprdma_run_make_room(server);
        conn         = &server->conns[server->num_conns];
        conn->length = 0;
        conn->number = server->num_accepted++;
        conn->end    = nprdma_run_now() + NPRDMA_RUN_CONN_SEC;
        server->fds[3 + server->num_conns] = (struct pollfd){
            .fd = fd, .events = POLLIN
        };
        ++server->num_conns;
    }
}

/* Compares all characters always, so the time tells nothing */
static int nprdma_run_is_token(const nprdma_run_server_t *server,
                               const char *text)
{
    static const char key[] = "token ";
    unsigned char different = 0;
    size_t i;

    if (strncmp(text, key, sizeof(key) - 1) ||
        (strlen(text) < sizeof(key) - 1 + NPRDMA_RECORD_SECRET_LEN)) {
        return 0;
    }
    text += sizeof(key) - 1;
    for (i = 0; i < NPRDMA_RECORD_SECRET_LEN; ++i) {
        different |= text[i] ^ server->run.token[i];
    }
    return (different == 0) && (text[i] == '\n');
}

/* Returns whether the connection stays open */
static int nprdma_run_receive(nprdma_run_server_t *server, unsigned index)
{
    static const char end[] = "\n" NPRDMA_RECORD_END "\n";
    nprdma_run_conn_t *conn = &server->conns[index];
    int fd                  = server->fds[3 + index].fd;
    ssize_t ret;

    ret = recv(fd, conn->text + conn->length,
               NPRDMA_RECORD_MAX - conn->length, 0);
    if ((ret < 0) && ((errno == EAGAIN) || (errno == EINTR))) {
        return 1;
    }
    /* A record that is too long leaves no room, which ends it here */
    if (ret <= 0) {
        return 0;
    }

    conn->length            += ret;
    conn->text[conn->length] = '\0';
    if (strlen(conn->text) != conn->length) {
        return 0; /* Zero bytes */
    }
    if ((conn->length < sizeof(end)) ||
        strcmp(conn->text + conn->length - (sizeof(end) - 1), end)) {
        return 1;
    }
    if (nprdma_run_is_token(server, conn->text)) {
        conn->text[conn->length - (sizeof(end) - 2)] = '\0';
        nprdma_run_job_take(server->job, conn->text);
        send(fd, NPRDMA_RECORD_ACK, strlen(NPRDMA_RECORD_ACK), MSG_NOSIGNAL);
    }
    return 0;
}

int nprdma_run_server_serve(nprdma_run_server_t *server, int fd,
                            int timeout_ms)
{
    unsigned i;
    int wait;

    wait = ((server->num_conns > 0) &&
            ((timeout_ms < 0) || (timeout_ms > NPRDMA_RUN_TICK_MS))) ?
           NPRDMA_RUN_TICK_MS : timeout_ms;
    server->fds[0]        = (struct pollfd){ .fd = fd, .events = POLLIN };
    server->fds[1].events = server->fds[2].events = POLLIN;
    if ((poll(server->fds, 3 + server->num_conns, wait) == 0) &&
        (wait == timeout_ms)) {
        return -1;
    }

    for (i = server->num_conns; i-- > 0;) {
        if ((server->fds[3 + i].revents && !nprdma_run_receive(server, i)) ||
            (nprdma_run_now() >= server->conns[i].end)) {
            nprdma_run_close(server, i);
        }
    }
    for (i = 1; i < 3; ++i) {
        if (server->fds[i].revents & POLLIN) {
            nprdma_run_accept(server, server->fds[i].fd);
        }
    }
    return (server->fds[0].revents != 0);
}
