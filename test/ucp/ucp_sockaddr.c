/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * ucp_sockaddr [-6|-l|-0 ADDRESS|-1 ADDRESS] [-t TLS] [-k KIND] [-s SIZE]...
 *              data|refused
 *
 * A server and a client that connects by socket address, with error handling:
 *   data     they exchange data of all kinds and sizes; both sides check them
 *   refused  no listener at the address: the client gets an error
 * Many clients: ucp_leavers. Processes that are killed: ucp_kills.
 *
 * -6: over IPv6. -l: over IPv6, with a link-local address of this host, which
 * is not complete without the number of its interface. -0, -1: the server or the
 * client alone, between two hosts, where ADDRESS is the server's; half of what
 * they send is paged out before. -t: transports of the
 * client; with TCP's connection manager unless they name nprdma. -k: data of
 * this kind only: tag, stream or am. -s: messages of this many bytes only.
 */

#define _GNU_SOURCE
#include "ucp_pair.h"
#include "ucp_socket.h"

#include <arpa/inet.h>
#include <getopt.h>
#include <ifaddrs.h>
#include <net/if.h>

#ifndef MADV_PAGEOUT
#define MADV_PAGEOUT 21
#endif

enum {
    MAX_SIZE     = 4 << 20,
    PORT         = 20778, /* Between two hosts */
    CONNECT_SEC  = 300,   /* The other host may come later */
    AM_DATA      = 4,
    TAG          = 5,
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
    const char   *mode;
    int          family;
    int          is_alone;      /* The other process is on another host */
    const char   *client_tls;
    unsigned     kinds;         /* bit for each kind */
    size_t       sizes[MAX_SIZES];
    unsigned     num_sizes;
    ucp_ep_h     ep;
    ucs_status_t error;         /* of the endpoint */

    struct {                    /* active message with data */
        void     *desc;
        size_t   length;
        int      arrived;
        int      is_copy;       /* desc is memory of ours */
    } am;
} self;


/* ---- UCP objects ---- */

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

static void open_worker(void)
{
    ucp_am_handler_param_t param = {
        .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID |
                      UCP_AM_HANDLER_PARAM_FIELD_CB |
                      UCP_AM_HANDLER_PARAM_FIELD_FLAGS,
        .id         = AM_DATA,
        .cb         = on_data,
        .flags      = UCP_AM_FLAG_WHOLE_MSG
    };

    open_ucp(UCP_FEATURE_TAG | UCP_FEATURE_STREAM | UCP_FEATURE_AM |
             UCP_FEATURE_RMA, &pair.context, &pair.worker);
    CHECK_OK(ucp_worker_set_am_recv_handler(pair.worker, &param));
}

static void on_request(ucp_conn_request_h request, void *arg)
{
    CHECK(self.ep == NULL, "a second request");
    self.ep = accept_request(pair.worker, request, &self.error);
}


/* ---- data of one kind and size ---- */

static uint64_t place_of(unsigned kind, unsigned size_index)
{
    return ((uint64_t)kind << 36) | ((uint64_t)size_index << 32);
}

static ucs_status_t send_data(unsigned kind, const char *data, size_t size)
{
    ucs_status_ptr_t request;

    switch (kind) {
    case KIND_TAG:
        request = ucp_tag_send_nbx(self.ep, data, size, TAG, &none);
        break;
    case KIND_STREAM:
        request = ucp_stream_send_nbx(self.ep, data, size, &none);
        break;
    default:
        request = ucp_am_send_nbx(self.ep, AM_DATA, NULL, 0, data, size, &none);
    }
    return wait_for(pair.worker, request);
}

static ucs_status_t receive_am(char *data, size_t size)
{
    while (!self.am.arrived) {
        ucp_worker_progress(pair.worker);
    }
    self.am.arrived = 0;
    CHECK(self.am.length == size, "%zu bytes in the place of %zu",
          self.am.length, size);
    if (self.am.is_copy) {
        memcpy(data, self.am.desc, size);
        free(self.am.desc);
        return UCS_OK;
    }
    return wait_for(pair.worker,
                    ucp_am_recv_data_nbx(pair.worker, self.am.desc, data, size,
                                         &none));
}

static ucs_status_t receive_data(unsigned kind, char *data, size_t size)
{
    ucp_request_param_t wait_all = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
        .flags        = UCP_STREAM_RECV_FLAG_WAITALL
    };
    size_t length;

    switch (kind) {
    case KIND_TAG:
        return wait_for(pair.worker,
                        ucp_tag_recv_nbx(pair.worker, data, size, TAG, -1,
                                         &none));
    case KIND_STREAM:
        return wait_for(pair.worker,
                        ucp_stream_recv_nbx(self.ep, data, size, &length,
                                            &wait_all));
    default:
        return receive_am(data, size);
    }
}

static void send_one(unsigned kind, unsigned i)
{
    char *data = new_memory(self.sizes[i]);

    fill(data, self.sizes[i], place_of(kind, i));
    if (self.is_alone && ((kind + i) % 2 == 0)) {
        CHECK(!madvise(data, self.sizes[i], MADV_PAGEOUT), "madvise: %m");
    }
    CHECK_OK(send_data(kind, data, self.sizes[i]));
    munmap(data, self.sizes[i]);
}

static void receive_one(unsigned kind, unsigned i)
{
    char *data = new_memory(self.sizes[i]);

    CHECK_OK(receive_data(kind, data, self.sizes[i]));
    expect(data, self.sizes[i], place_of(kind, i));
    munmap(data, self.sizes[i]);
}

/* The client sends first, the server answers with the same data */
static void exchange_all(void)
{
    unsigned kind, i;

    for (kind = 0; kind < NUM_KINDS; ++kind) {
        for (i = 0; (self.kinds & (1u << kind)) && (i < self.num_sizes); ++i) {
            if (pair.number == 1) {
                send_one(kind, i);
                receive_one(kind, i);
            } else {
                receive_one(kind, i);
                send_one(kind, i);
            }
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

    self.family = AF_INET;
    self.kinds  = (1u << NUM_KINDS) - 1;
    while ((c = getopt(argc, argv, "6l0:1:t:k:s:")) != -1) {
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
    CHECK((argc == optind + 1) && (!strcmp(argv[optind], "data") ||
                                   !strcmp(argv[optind], "refused")),
          "usage: ucp_sockaddr [-6|-l|-0 ADDRESS|-1 ADDRESS] [-t TLS] "
          "[-k KIND] [-s SIZE]... data|refused");
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
