/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * ucp_nodes listen|ADDRESS
 *
 * Two hosts: one listens, the other one connects to it by its IPv4 address.
 * They exchange messages of all sizes, then the one that has connected puts
 * and gets. Both check all data. In every other round, both ask the kernel to
 * take the memory before each transfer (MADV_PAGEOUT), so with swap its pages
 * are absent.
 */

#define _GNU_SOURCE
#include "ucp_socket.h"

#include <arpa/inet.h>

#ifndef MADV_PAGEOUT
#define MADV_PAGEOUT 21
#endif

enum {
    MAX_SIZE    = 1 << 20,
    MAX_KEY     = 512,
    PORT        = 20778,
    ROUNDS      = 3,
    CONNECT_SEC = 300,  /* the other host may come later */
    TAG_DATA    = 1,
    TAG_TARGET,         /* target_t */
    TAG_TURN            /* the other side may look at its memory */
};

static const size_t sizes[] = {8, 4096, 20000, 65536, 300000, MAX_SIZE};

/* What puts and gets need to know */
typedef struct {
    uint64_t address;
    uint64_t key_length;
    char     key[MAX_KEY];
} target_t;

static struct {
    ucp_context_h context;
    ucp_worker_h  worker;
    ucp_ep_h      ep;
    int           is_accepted;
    ucs_status_t  error;
    char          *data;    /* MAX_SIZE bytes */
} self;


static void take(unsigned round)
{
    CHECK((round % 2 != 0) || (madvise(self.data, MAX_SIZE, MADV_PAGEOUT) == 0),
          "madvise: %m");
}

static void on_request(ucp_conn_request_h request, void *arg)
{
    CHECK(!self.is_accepted, "a second request");
    self.ep          = accept_request(self.worker, request, &self.error);
    self.is_accepted = 1;
}


/* ---- messages ---- */

static void send_data(const void *data, size_t size, ucp_tag_t tag)
{
    CHECK_OK(wait_for(self.worker,
                      ucp_tag_send_nbx(self.ep, data, size, tag, &none)));
}

static void receive_data(void *data, size_t size, ucp_tag_t tag)
{
    ucs_status_ptr_t request = ucp_tag_recv_nbx(self.worker, data, size, tag,
                                                -1, &none);

    while (!is_done(request)) {
        ucp_worker_progress(self.worker);
        CHECK(self.error == UCS_OK, "the connection failed: %s",
              ucs_status_string(self.error));
    }
    CHECK_OK(wait_for(self.worker, request));
}

static void flush(void)
{
    CHECK_OK(wait_for(self.worker, ucp_ep_flush_nbx(self.ep, &none)));
}

static void send_turn(void)
{
    char any = 0;

    send_data(&any, sizeof(any), TAG_TURN);
}

static void wait_turn(void)
{
    char any;

    receive_data(&any, sizeof(any), TAG_TURN);
}

static uint64_t place_of(unsigned round, unsigned i, int is_answer)
{
    return ((uint64_t)round << 40) | ((uint64_t)i << 32) |
           ((uint64_t)is_answer << 31);
}

/* The side that has connected sends first, the other one answers */
static void exchange(unsigned round, unsigned i, int is_first)
{
    int turn;

    for (turn = 0; turn < 2; ++turn) {
        if (is_first == !turn) {
            fill(self.data, sizes[i], place_of(round, i, turn));
            take(round);
            send_data(self.data, sizes[i], TAG_DATA);
        } else {
            take(round);
            receive_data(self.data, sizes[i], TAG_DATA);
            expect(self.data, sizes[i], place_of(round, i, turn));
        }
    }
}


/* ---- put and get ---- */

static void provide(void)
{
    target_t target = {.address = (uintptr_t)self.data};
    unsigned round, i;
    ucp_mem_h memh  = map_memory(self.context, self.data, MAX_SIZE);
    size_t length;
    void *key;

    CHECK_OK(ucp_rkey_pack(self.context, memh, &key, &length));
    CHECK(length <= MAX_KEY, "a key of %zu bytes", length);
    memcpy(target.key, key, length);
    target.key_length = length;
    ucp_rkey_buffer_release(key);
    send_data(&target, sizeof(target), TAG_TARGET);

    for (round = 0; round < ROUNDS; ++round) {
        for (i = 0; i < sizeof(sizes) / sizeof(sizes[0]); ++i) {
            memset(self.data, 0, sizes[i]);
            take(round);
            send_turn();
            wait_turn();
            expect(self.data, sizes[i], place_of(round, i, 0));
            fill(self.data, sizes[i], place_of(round, i, 1));
            take(round);
            send_turn();
            wait_turn();
        }
    }
    CHECK_OK(ucp_mem_unmap(self.context, memh));
}

static void access_peer(void)
{
    unsigned round, i;
    target_t target;
    ucp_rkey_h rkey;

    receive_data(&target, sizeof(target), TAG_TARGET);
    CHECK(target.key_length <= MAX_KEY, "a key of %lu bytes",
          (unsigned long)target.key_length);
    CHECK_OK(ucp_ep_rkey_unpack(self.ep, target.key, &rkey));
    for (round = 0; round < ROUNDS; ++round) {
        for (i = 0; i < sizeof(sizes) / sizeof(sizes[0]); ++i) {
            fill(self.data, sizes[i], place_of(round, i, 0));
            take(round);
            wait_turn();
            CHECK_OK(wait_for(self.worker,
                              ucp_put_nbx(self.ep, self.data, sizes[i],
                                          target.address, rkey, &none)));
            flush();
            send_turn();

            memset(self.data, 0, sizes[i]);
            take(round);
            wait_turn();
            CHECK_OK(wait_for(self.worker,
                              ucp_get_nbx(self.ep, self.data, sizes[i],
                                          target.address, rkey, &none)));
            expect(self.data, sizes[i], place_of(round, i, 1));
            send_turn();
        }
    }
    ucp_rkey_destroy(rkey);
}


/* ---- both sides ---- */

static void run(int is_first)
{
    unsigned round, i;

    for (round = 0; round < ROUNDS; ++round) {
        for (i = 0; i < sizeof(sizes) / sizeof(sizes[0]); ++i) {
            exchange(round, i, is_first);
        }
    }
    if (is_first) {
        access_peer();
    } else {
        provide();
    }

    /* Closing discards what the other side has not polled, so the side that
     * has received the last message closes, and the other one waits for that */
    if (is_first) {
        wait_turn();
    } else {
        send_turn();
        while (self.error == UCS_OK) {
            ucp_worker_progress(self.worker);
        }
    }
}

static void listen_for_other(void)
{
    struct sockaddr_in address   = {
        .sin_family = AF_INET,
        .sin_port   = htons(PORT)
    };
    ucp_listener_params_t params = {
        .field_mask       = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR |
                            UCP_LISTENER_PARAM_FIELD_CONN_HANDLER,
        .sockaddr.addr    = (struct sockaddr*)&address,
        .sockaddr.addrlen = sizeof(address),
        .conn_handler.cb  = on_request
    };
    ucp_listener_h listener;

    CHECK_OK(ucp_listener_create(self.worker, &params, &listener));
    while (!self.is_accepted) {
        ucp_worker_progress(self.worker);
    }
    run(0);
    close_ep(self.worker, self.ep, 0);
    ucp_listener_destroy(listener);
}

/* Until the other host listens, a connection is refused: its first message
 * ends with an error */
static void connect_to_other(struct sockaddr_in *address)
{
    ucp_ep_params_t params   = {
        .field_mask       = UCP_EP_PARAM_FIELD_FLAGS |
                            UCP_EP_PARAM_FIELD_SOCK_ADDR,
        .flags            = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER,
        .sockaddr.addr    = (struct sockaddr*)address,
        .sockaddr.addrlen = sizeof(*address)
    };
    time_t end               = time(NULL) + CONNECT_SEC;
    ucs_status_t status;

    for (;;) {
        self.ep = new_ep(self.worker, &params, &self.error);
        status = wait_for(self.worker, ucp_ep_flush_nbx(self.ep, &none));
        if ((status == UCS_OK) && (self.error == UCS_OK)) {
            return;
        }
        CHECK(time(NULL) < end, "no connection: %s", ucs_status_string(status));
        close_ep(self.worker, self.ep, 0);
        usleep(100000);
    }
}

int main(int argc, char **argv)
{
    struct sockaddr_in address = {
        .sin_family = AF_INET,
        .sin_port   = htons(PORT)
    };

    CHECK(argc == 2, "usage: ucp_nodes listen|ADDRESS");
    self.data = new_memory(MAX_SIZE);
    open_ucp(UCP_FEATURE_TAG | UCP_FEATURE_RMA, &self.context, &self.worker);
    if (strcmp(argv[1], "listen") == 0) {
        listen_for_other();
    } else {
        CHECK(inet_pton(AF_INET, argv[1], &address.sin_addr) == 1,
              "'%s' is no IPv4 address", argv[1]);
        connect_to_other(&address);
        run(1);
        close_ep(self.worker, self.ep, 0);
    }
    close_ucp(self.context, self.worker);
    munmap(self.data, MAX_SIZE);
    return 0;
}
