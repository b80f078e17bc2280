/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * ucp_sockaddr [-6|-l] [-c CLIENTS] [-t TLS] [-k KIND] [-s SIZE]...
 *              data|refused
 *
 * A server and clients that connect by socket address, with error handling:
 *   data     each client exchanges data of all kinds and sizes; both sides
 *            check them
 *   refused  no listener at the address: the client gets an error
 * Processes that are killed: ucp_kills.
 *
 * -6: over IPv6. -l: over IPv6, with a link-local address of this host, which
 * is not complete without the number of its interface. -t: transports of the
 * clients; with TCP's connection manager unless they name nprdma. -k: data of
 * this kind only: tag, stream or am. -s: messages of this many bytes only.
 */

#define _GNU_SOURCE
#include "ucp_socket.h"

#include <getopt.h>
#include <ifaddrs.h>
#include <net/if.h>

enum {
    MAX_SIZE     = 4 << 20,
    MAX_CLIENTS  = 32,
    AM_HELLO     = 3,
    AM_DATA      = 4,
    KIND_TAG     = 0,
    KIND_STREAM,
    KIND_AM,
    NUM_KINDS,
    MAX_SIZES    = 8,
    ERROR_SEC    = 20    /* until an error is reported */
};

static const size_t default_sizes[] = {1, 100, 9000, 65536, 1 << 20, MAX_SIZE};
static const char *const kind_names[] = {"tag", "stream", "am"};

static struct {
    int          number;        /* of the client; -1: server */
    unsigned     num_clients;
    int          family;
    const char   *client_tls;
    unsigned     kinds;         /* bit for each kind */
    size_t       sizes[MAX_SIZES];
    unsigned     num_sizes;
    int          port[2];       /* pipe from the server: its port, a client */

    ucp_context_h  context;
    ucp_worker_h   worker;
    ucp_listener_h listener;

    struct {
        ucp_ep_h     ep;
        ucs_status_t error;
        int          said_hello;
    } peers[MAX_CLIENTS];
    unsigned     num_accepted;
    ucp_ep_h     accepted[MAX_CLIENTS];
    ucs_status_t accepted_error[MAX_CLIENTS];

    struct {                    /* active message with data */
        void     *desc;
        size_t   length;
        int      arrived;
        int      is_copy;       /* desc is memory of ours */
    } am;
} self;


/* ---- UCP objects ---- */

static ucs_status_t on_hello(void *arg, const void *header, size_t header_size,
                             void *data, size_t length,
                             const ucp_am_recv_param_t *param)
{
    uint32_t number;

    CHECK(header_size == sizeof(number), "hello with %zu bytes", header_size);
    memcpy(&number, header, sizeof(number));
    CHECK(number < self.num_clients, "hello from %u", number);
    CHECK(param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP, "no reply_ep");
    self.peers[number].ep         = param->reply_ep;
    self.peers[number].said_hello = 1;
    return UCS_OK;
}

static ucs_status_t on_data(void *arg, const void *header, size_t header_size,
                            void *data, size_t length,
                            const ucp_am_recv_param_t *param)
{
    CHECK(!self.am.arrived, "a second active message");
    self.am.arrived = 1;
    self.am.length  = length;
    self.am.is_copy = !(param->recv_attr & (UCP_AM_RECV_ATTR_FLAG_RNDV |
                                            UCP_AM_RECV_ATTR_FLAG_DATA));
    if (!self.am.is_copy) {
        self.am.desc = data;
        return UCS_INPROGRESS;
    }

    self.am.desc = malloc(length);
    memcpy(self.am.desc, data, length);
    return UCS_OK;
}

static void set_am_handler(unsigned id, ucp_am_recv_callback_t cb)
{
    ucp_am_handler_param_t param = {
        .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID |
                      UCP_AM_HANDLER_PARAM_FIELD_CB |
                      UCP_AM_HANDLER_PARAM_FIELD_FLAGS,
        .id         = id,
        .cb         = cb,
        .flags      = UCP_AM_FLAG_WHOLE_MSG
    };

    CHECK_OK(ucp_worker_set_am_recv_handler(self.worker, &param));
}

static void open_worker(void)
{
    open_ucp(UCP_FEATURE_TAG | UCP_FEATURE_STREAM | UCP_FEATURE_AM |
             UCP_FEATURE_RMA, &self.context, &self.worker);
    set_am_handler(AM_HELLO, on_hello);
    set_am_handler(AM_DATA, on_data);
}

static void close_worker(void)
{
    close_ucp(self.context, self.worker);
}

static void on_request(ucp_conn_request_h request, void *arg)
{
    unsigned i = self.num_accepted;

    CHECK(i < MAX_CLIENTS, "too many requests");
    self.accepted[i] = accept_request(self.worker, request,
                                      &self.accepted_error[i]);
    ++self.num_accepted;
}

static uint16_t start_listener(void)
{
    return listen_anywhere(self.worker, self.family, on_request,
                           &self.listener);
}


/* ---- data of one kind and size ---- */

static uint64_t place_of(unsigned client, unsigned kind, unsigned size_index)
{
    return ((uint64_t)client << 40) | ((uint64_t)kind << 36) |
           ((uint64_t)size_index << 32);
}

static ucs_status_t send_data(ucp_ep_h ep, unsigned client, unsigned kind,
                              const char *data, size_t size)
{
    ucs_status_ptr_t request;

    switch (kind) {
    case KIND_TAG:
        request = ucp_tag_send_nbx(ep, data, size, client, &none);
        break;
    case KIND_STREAM:
        request = ucp_stream_send_nbx(ep, data, size, &none);
        break;
    default:
        request = ucp_am_send_nbx(ep, AM_DATA, NULL, 0, data, size, &none);
    }
    return wait_for(self.worker, request);
}

static ucs_status_t receive_am(char *data, size_t size)
{
    while (!self.am.arrived) {
        ucp_worker_progress(self.worker);
    }
    self.am.arrived = 0;
    CHECK(self.am.length == size, "%zu bytes in the place of %zu",
          self.am.length, size);
    if (self.am.is_copy) {
        memcpy(data, self.am.desc, size);
        free(self.am.desc);
        return UCS_OK;
    }
    return wait_for(self.worker,
                    ucp_am_recv_data_nbx(self.worker, self.am.desc, data, size,
                                         &none));
}

static ucs_status_t receive_data(ucp_ep_h ep, unsigned client, unsigned kind,
                                 char *data, size_t size)
{
    ucp_request_param_t wait_all = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
        .flags        = UCP_STREAM_RECV_FLAG_WAITALL
    };
    size_t length;

    switch (kind) {
    case KIND_TAG:
        return wait_for(self.worker,
                        ucp_tag_recv_nbx(self.worker, data, size, client, -1,
                                         &none));
    case KIND_STREAM:
        return wait_for(self.worker,
                        ucp_stream_recv_nbx(ep, data, size, &length,
                                            &wait_all));
    default:
        return receive_am(data, size);
    }
}

static void send_one(ucp_ep_h ep, unsigned client, unsigned kind, unsigned i)
{
    char *data = new_memory(self.sizes[i]);

    fill(data, self.sizes[i], place_of(client, kind, i));
    CHECK_OK(send_data(ep, client, kind, data, self.sizes[i]));
    munmap(data, self.sizes[i]);
}

static void receive_one(ucp_ep_h ep, unsigned client, unsigned kind, unsigned i)
{
    char *data = new_memory(self.sizes[i]);

    CHECK_OK(receive_data(ep, client, kind, data, self.sizes[i]));
    expect(data, self.sizes[i], place_of(client, kind, i));
    munmap(data, self.sizes[i]);
}

static void say_hello(ucp_ep_h ep)
{
    const uint32_t number     = self.number;
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
        .flags        = UCP_AM_SEND_FLAG_REPLY
    };

    CHECK_OK(wait_for(self.worker,
                      ucp_am_send_nbx(ep, AM_HELLO, &number, sizeof(number),
                                      NULL, 0, &param)));
}

static ucp_ep_h wait_for_hello(unsigned client)
{
    while (!self.peers[client].said_hello) {
        ucp_worker_progress(self.worker);
    }
    return self.peers[client].ep;
}

/* Error of the server's endpoint to a client that said hello */
static const ucs_status_t *error_of(unsigned client)
{
    unsigned i;

    for (i = 0; self.accepted[i] != self.peers[client].ep; ++i) {
    }
    return &self.accepted_error[i];
}

/* The client sends first, the server answers with the same data */
static void exchange_all(ucp_ep_h ep, unsigned client)
{
    unsigned kind, i;

    for (kind = 0; kind < NUM_KINDS; ++kind) {
        for (i = 0; (self.kinds & (1u << kind)) && (i < self.num_sizes); ++i) {
            if (self.number >= 0) {
                send_one(ep, client, kind, i);
                receive_one(ep, client, kind, i);
            } else {
                receive_one(ep, client, kind, i);
                send_one(ep, client, kind, i);
            }
        }
    }
}

/* ---- the server and the clients ---- */

/* Tells a client the port */
static void announce(uint16_t port)
{
    CHECK(write(self.port[1], &port, sizeof(port)) == sizeof(port),
          "write: %m");
}

static void serve(void)
{
    unsigned client, i;
    uint16_t port;

    open_worker();
    port = start_listener();
    for (i = 0; i < self.num_clients; ++i) {
        announce(port);
    }

    for (client = 0; client < self.num_clients; ++client) {
        wait_for_hello(client);
        exchange_all(self.peers[client].ep, client);
        /* The client closes first: it may still have messages to process, and
         * UCP reports a closed connection before them */
        while (*error_of(client) == UCS_OK) {
            ucp_worker_progress(self.worker);
        }
    }

    for (i = 0; i < self.num_accepted; ++i) {
        close_ep(self.worker, self.accepted[i], self.accepted_error[i] ?
                                   UCP_EP_CLOSE_FLAG_FORCE : 0);
    }
    ucp_listener_destroy(self.listener);
    close_worker();
}

static uint16_t wait_for_port(void)
{
    uint16_t port;

    CHECK(read(self.port[0], &port, sizeof(port)) == sizeof(port),
          "the server is gone");
    return port;
}

static void be_client(void)
{
    uint16_t port = wait_for_port();
    ucs_status_t error;
    ucp_ep_h ep;

    open_worker();
    ep = connect_to(self.worker, self.family, port, &error);
    say_hello(ep);
    exchange_all(ep, self.number);
    CHECK_OK(error);
    close_ep(self.worker, ep, 0);
    close_worker();
}

/* A port without a listener: bound, so that no other process takes it */
static void be_refused(void)
{
    struct sockaddr_storage storage;
    socklen_t length = make_address(&storage, self.family, 0);
    int fd           = socket(self.family, SOCK_STREAM, 0);
    double deadline  = now() + ERROR_SEC;
    ucs_status_t error;
    ucp_ep_h ep;

    CHECK(!bind(fd, (struct sockaddr*)&storage, length), "bind: %m");
    CHECK(!getsockname(fd, (struct sockaddr*)&storage, &length),
          "getsockname: %m");
    open_worker();
    ep = connect_to(self.worker, self.family,
                    ntohs(((struct sockaddr_in*)&storage)->sin_port), &error);
    while (error == UCS_OK) {
        ucp_worker_progress(self.worker);
        CHECK(now() < deadline, "no error in %d s", ERROR_SEC);
    }
    printf("refused: '%s'\n", ucs_status_string(error));
    CHECK((error == UCS_ERR_NOT_CONNECTED) || (error == UCS_ERR_UNREACHABLE),
          "another error");
    close_ep(self.worker, ep, UCP_EP_CLOSE_FLAG_FORCE);
    close_worker();
    close(fd);
}

/* ---- the processes ---- */

static void start(int number, void (*func)(void))
{
    if (start_child() == 0) {
        self.number = number;
        if ((number >= 0) && (self.client_tls != NULL)) {
            setenv("UCX_TLS", self.client_tls, 1);
            if (strstr(self.client_tls, "nprdma") == NULL) {
                setenv("UCX_SOCKADDR_TLS_PRIORITY", "tcp", 1);
            }
        }
        func();
        exit(0);
    }
}

static void run(const char *mode)
{
    unsigned i;

    if (!strcmp(mode, "refused")) {
        start(0, be_refused);
        expect_end(-1, 0);
        return;
    }

    CHECK(!strcmp(mode, "data"), "no mode '%s'", mode);
    start(-1, serve);
    for (i = 0; i < self.num_clients; ++i) {
        start(i, be_client);
    }
    for (i = 0; i <= self.num_clients; ++i) {
        expect_end(-1, 0);
    }
}

static unsigned kind_of(const char *name)
{
    unsigned kind;

    for (kind = 0; kind < NUM_KINDS; ++kind) {
        if (!strcmp(name, kind_names[kind])) {
            return kind;
        }
    }
    CHECK(0, "no kind '%s'", name);
}

static void add_size(const char *text)
{
    char *end;
    size_t size = strtoul(text, &end, 0);

    CHECK((size > 0) && (*end == '\0'), "no size '%s'", text);
    CHECK(self.num_sizes < MAX_SIZES, "more than %d sizes", MAX_SIZES);
    self.sizes[self.num_sizes++] = size;
}

/* Chooses the first link-local address. @return Whether there is one. */
static int find_link_local(void)
{
    struct ifaddrs *list, *i;

    CHECK(!getifaddrs(&list), "getifaddrs: %m");
    for (i = list; i != NULL; i = i->ifa_next) {
        if ((i->ifa_addr == NULL) || (i->ifa_addr->sa_family != AF_INET6) ||
            !(i->ifa_flags & IFF_UP)) {
            continue;
        }
        memcpy(&socket_in6, i->ifa_addr, sizeof(socket_in6));
        if (IN6_IS_ADDR_LINKLOCAL(&socket_in6.sin6_addr)) {
            fprintf(stderr, "link-local address at %s\n", i->ifa_name);
            break;
        }
    }
    freeifaddrs(list);
    return i != NULL;
}

int main(int argc, char **argv)
{
    int c;

    self.family      = AF_INET;
    self.num_clients = 1;
    self.kinds       = (1u << NUM_KINDS) - 1;
    while ((c = getopt(argc, argv, "6lc:t:k:s:")) != -1) {
        switch (c) {
        case '6':
            self.family = AF_INET6;
            break;
        case 'l':
            self.family = AF_INET6;
            if (!find_link_local()) {
                printf("SKIPPED: no interface has a link-local address\n");
                return 77;
            }
            break;
        case 'c':
            self.num_clients = atoi(optarg);
            break;
        case 't':
            self.client_tls = optarg;
            break;
        case 'k':
            self.kinds = 1u << kind_of(optarg);
            break;
        case 's':
            add_size(optarg);
            break;
        default:
            return 2;
        }
    }
    CHECK((argc == optind + 1) && (self.num_clients >= 1) &&
          (self.num_clients <= MAX_CLIENTS),
          "usage: ucp_sockaddr [-6|-l] [-c CLIENTS] [-t TLS] [-k KIND] "
          "[-s SIZE]... MODE");
    if (self.num_sizes == 0) {
        self.num_sizes = sizeof(default_sizes) / sizeof(default_sizes[0]);
        memcpy(self.sizes, default_sizes, sizeof(default_sizes));
    }

    CHECK(!pipe(self.port), "pipe: %m");
    run(argv[optind]);
    return 0;
}
