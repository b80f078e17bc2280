/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * ucp_sockaddr [-6|-0 ADDRESS|-1 ADDRESS] [-t TLS] [-s SIZE]... data|refused
 *
 * A server and a client that connects by socket address, with error handling:
 *   data     they exchange messages of all sizes; both sides check them
 *   refused  no listener at the address: the client gets an error
 * Many clients: ucp_leavers. Processes that are killed: ucp_kills.
 *
 * -6: over IPv6. -0, -1: the server or the client alone, between two hosts,
 * where ADDRESS is the server's; half of what they send is paged out before.
 * -t: transports of the client; with TCP's connection manager unless they name
 * nprdma. -s: messages of this many bytes only.
 */

#define _GNU_SOURCE
#include "ucp_pair.h"
#include "ucp_socket.h"

#include <arpa/inet.h>
#include <getopt.h>

enum {
    MAX_SIZE     = 4 << 20,
    PORT         = 20778, /* Between two hosts */
    CONNECT_SEC  = 300,   /* The other host may come later */
    TAG          = 5,
    MAX_SIZES    = 8,
    ERROR_SEC    = 20    /* until an error is reported */
};

static const size_t default_sizes[] = {1, 100, 9000, 65536, 1 << 20, MAX_SIZE};

static struct {
    const char   *mode;
    int          family;
    int          is_alone;      /* The other process is on another host */
    const char   *client_tls;
    size_t       sizes[MAX_SIZES];
    unsigned     num_sizes;
    ucp_ep_h     ep;
    ucs_status_t error;         /* of the endpoint */
} self;

/* ---- UCP objects ---- */

static void open_worker(void)
{
    open_ucp(UCP_FEATURE_TAG, &pair.context, &pair.worker);
}

static void on_request(ucp_conn_request_h request, void *arg)
{
    CHECK(self.ep == NULL, "a second request");
    self.ep = accept_request(pair.worker, request, &self.error);
}

/* ---- messages ---- */

static uint64_t place_of(unsigned size_index)
{
    return (uint64_t)size_index << 32;
}

static void send_one(unsigned i)
{
    char *data = new_memory(self.sizes[i]);

    fill(data, self.sizes[i], place_of(i));
    if (self.is_alone && (i % 2 == 0)) {
        CHECK(!madvise(data, self.sizes[i], MADV_PAGEOUT), "madvise: %m");
    }
    CHECK_OK(wait_for(pair.worker,
                      ucp_tag_send_nbx(self.ep, data, self.sizes[i], TAG,
                                       &none)));
    munmap(data, self.sizes[i]);
}

static void receive_one(unsigned i)
{
    char *data = new_memory(self.sizes[i]);

    CHECK_OK(wait_for(pair.worker,
                      ucp_tag_recv_nbx(pair.worker, data, self.sizes[i], TAG,
                                       -1, &none)));
    expect(data, self.sizes[i], place_of(i));
    munmap(data, self.sizes[i]);
}

/* The client sends first, the server answers with the same data */
static void exchange_all(void)
{
    unsigned i;

    for (i = 0; i < self.num_sizes; ++i) {
        if (pair.number == 1) {
            send_one(i);
            receive_one(i);
        } else {
            receive_one(i);
            send_one(i);
        }
    }
}

/* ---- the server and the client ---- */

static void serve(void)
{
    ucp_listener_h listener;
    uint16_t port;

    open_worker();
    port = listen_anywhere(pair.worker, self.family, on_request, &listener);
    if (!self.is_alone) {
        pair_put(&port, sizeof(port));
    }
    while (self.ep == NULL) {
        ucp_worker_progress(pair.worker);
    }
    exchange_all();
    /* The client closes first: it may still have messages to process, and UCP
     * reports a closed connection before them */
    while (self.error == UCS_OK) {
        ucp_worker_progress(pair.worker);
    }
    close_ep(pair.worker, self.ep, UCP_EP_CLOSE_FLAG_FORCE);
    ucp_listener_destroy(listener);
    close_ucp(pair.context, pair.worker);
}

/* Until the other host listens, a connection is refused: its first message ends
 * with an error. UCP copies messages while it connects, so this one is none. */
static void connect_to_server(void)
{
    double deadline = now() + CONNECT_SEC;
    uint16_t port   = PORT;
    ucs_status_t status;

    if (!self.is_alone) {
        pair_get(&port, sizeof(port));
    }
    for (;;) {
        self.ep = connect_to(pair.worker, self.family, port, &self.error);
        status  = wait_for(pair.worker, ucp_ep_flush_nbx(self.ep, &none));
        if ((status == UCS_OK) && (self.error == UCS_OK)) {
            return;
        }
        CHECK(self.is_alone && (now() < deadline), "no connection: %s",
              ucs_status_string(status));
        close_ep(pair.worker, self.ep, 0);
        usleep(100000);
    }
}

static void be_client(void)
{

    if (self.client_tls != NULL) {
        setenv("UCX_TLS", self.client_tls, 1);
        if (strstr(self.client_tls, "nprdma") == NULL) {
            setenv("UCX_SOCKADDR_TLS_PRIORITY", "tcp", 1);
        }
    }
    open_worker();
    connect_to_server();
    exchange_all();
    CHECK_OK(self.error);
    close_ep(pair.worker, self.ep, 0);
    close_ucp(pair.context, pair.worker);
}

/* A port without a listener: bound, so that no other process takes it */
static void be_refused(void)
{
    struct sockaddr_storage storage;
    socklen_t length = make_address(&storage, self.family, 0);
    int fd           = socket(self.family, SOCK_STREAM, 0);
    double deadline  = now() + ERROR_SEC;

    CHECK(!bind(fd, (struct sockaddr*)&storage, length), "bind: %m");
    CHECK(!getsockname(fd, (struct sockaddr*)&storage, &length),
          "getsockname: %m");
    open_worker();
    self.ep = connect_to(pair.worker, self.family,
                         ntohs(((struct sockaddr_in*)&storage)->sin_port),
                         &self.error);
    while (self.error == UCS_OK) {
        ucp_worker_progress(pair.worker);
        CHECK(now() < deadline, "no error in %d s", ERROR_SEC);
    }
    printf("refused: '%s'\n", ucs_status_string(self.error));
    CHECK((self.error == UCS_ERR_NOT_CONNECTED) ||
          (self.error == UCS_ERR_UNREACHABLE), "another error");
    close_ep(pair.worker, self.ep, UCP_EP_CLOSE_FLAG_FORCE);
    close_ucp(pair.context, pair.worker);
    close(fd);
}

static void run(void)
{
    if (pair.number == 0) {
        if (!strcmp(self.mode, "data")) {
            serve();
        }
    } else if (!strcmp(self.mode, "refused")) {
        be_refused();
    } else {
        be_client();
    }
}

/* ---- options ---- */

static void add_size(const char *text)
{
    char *end;
    size_t size = strtoul(text, &end, 0);

    CHECK((size > 0) && (*end == '\0'), "no size '%s'", text);
    CHECK(self.num_sizes < MAX_SIZES, "more than %d sizes", MAX_SIZES);
    self.sizes[self.num_sizes++] = size;
}

int main(int argc, char **argv)
{
    int c;

    self.family = AF_INET;
    while ((c = getopt(argc, argv, "60:1:t:s:")) != -1) {
        switch (c) {
        case '6':
            self.family = AF_INET6;
            break;
        case '0':
        case '1':
            self.is_alone       = 1;
            pair.number         = c - '0';
            socket_in.sin_port  = htons(PORT);
            CHECK(inet_pton(AF_INET, optarg, &socket_in.sin_addr) == 1,
                  "'%s' is no IPv4 address", optarg);
            break;
        case 't':
            self.client_tls = optarg;
            break;
        case 's':
            add_size(optarg);
            break;
        default:
            return 2;
        }
    }
    CHECK((argc == optind + 1) && (!strcmp(argv[optind], "data") ||
                                   !strcmp(argv[optind], "refused")),
          "usage: ucp_sockaddr [-6|-0 ADDRESS|-1 ADDRESS] [-t TLS] "
          "[-s SIZE]... data|refused");
    self.mode = argv[optind];
    if (self.num_sizes == 0) {
        self.num_sizes = sizeof(default_sizes) / sizeof(default_sizes[0]);
        memcpy(self.sizes, default_sizes, sizeof(default_sizes));
    }
    if (self.is_alone) {
        run();
        return 0;
    }
    return run_pair(run);
}
