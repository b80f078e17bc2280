/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * ucp_stress am|close ROUNDS
 *
 * Two processes. Each sends to the other one and checks what it receives:
 *   am      active messages by rendezvous, into untouched memory
 *   close   all kinds outstanding when the endpoint is closed by force: each
 *           request ends, and no buffer changes afterwards
 *
 * UCX_NPRDMA_INJECT in the environment determines how many pages are
 * evicted.
 */

#define _GNU_SOURCE
#include "ucp_common.h"

#include <errno.h>
#include <sys/socket.h>

enum {
    MAX_SIZE   = 2 << 20,
    NUM_FLIGHT = 8,
    AM_ID      = 7
};

static struct {
    int           number;
    int           sock;
    unsigned      seed;
    ucp_context_h context;
    ucp_worker_h  worker;
    ucp_address_t *peer;
    ucp_ep_h      ep;
    ucs_status_t  error;
    ucp_mem_h     memh;
    char          *memory;      /* Exported: the peer has its key */
    uint64_t      peer_memory;
    void          *peer_key;
    unsigned      received;     /* Active messages received and checked */
    int           arriving;     /* Their data is being fetched */
} self;


static size_t random_size(void)
{
    return 1 + rand_r(&self.seed) % MAX_SIZE;
}


/* ---- the two processes ---- */

static void send_blob(const void *data, size_t length)
{
    CHECK((send(self.sock, &length, sizeof(length), 0) == sizeof(length)) &&
          (send(self.sock, data, length, 0) == (ssize_t)length), "send: %m");
}

/* Makes progress while it waits, because the peer may need it */
static void recv_all(void *data, size_t length)
{
    size_t done = 0;
    ssize_t ret;

    while (done < length) {
        ucp_worker_progress(self.worker);
        ret = recv(self.sock, (char*)data + done, length - done, MSG_DONTWAIT);
        CHECK((ret > 0) || ((ret < 0) && ((errno == EAGAIN) ||
                                          (errno == EINTR))),
              "the other side is gone");
        done += (ret > 0) ? ret : 0;
    }
}

static void *recv_blob(void)
{
    size_t length;
    void *data;

    recv_all(&length, sizeof(length));
    data = malloc(length);
    recv_all(data, length);
    return data;
}

static void barrier(void)
{
    char byte = 0;

    CHECK(send(self.sock, &byte, 1, 0) == 1, "send: %m");
    recv_all(&byte, 1);
}

static void connect_to_peer(void)
{
    self.ep = new_ep_to(self.worker, self.peer, &self.error);
}


/* ---- active messages ---- */

typedef struct {
    uint64_t number;
    size_t   length;
    char     *data;
} message_t;

static void on_fetched(void *request, ucs_status_t status, size_t length,
                       void *arg)
{
    message_t *message = arg;

    CHECK(status == UCS_OK, "rendezvous: %s", ucs_status_string(status));
    expect(message->data, message->length, message->number << 32);
    munmap(message->data, message->length);
    free(message);
    ucp_request_free(request);
    ++self.received;
    --self.arriving;
}

static ucs_status_t on_message(void *arg, const void *header, size_t size,
                               void *data, size_t length,
                               const ucp_am_recv_param_t *param)
{
    message_t *message             = malloc(sizeof(*message));
    ucp_request_param_t recv_param = {
        .op_attr_mask    = UCP_OP_ATTR_FIELD_CALLBACK |
                           UCP_OP_ATTR_FIELD_USER_DATA |
                           UCP_OP_ATTR_FLAG_NO_IMM_CMPL,
        .cb.recv_am      = on_fetched,
        .user_data       = message
    };
    ucs_status_ptr_t request;

    CHECK(param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV, "no rendezvous");
    memcpy(&message->number, header, sizeof(message->number));
    message->length = length;
    message->data   = new_memory(length);
    ++self.arriving;
    request = ucp_am_recv_data_nbx(self.worker, data, message->data, length,
                                   &recv_param);
    CHECK(UCS_PTR_IS_PTR(request), "ucp_am_recv_data_nbx");
    return UCS_INPROGRESS;
}

static ucs_status_ptr_t send_message(const uint64_t *number, const char *data,
                                     size_t size)
{
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
        .flags        = UCP_AM_SEND_FLAG_RNDV
    };

    return ucp_am_send_nbx(self.ep, AM_ID, number, sizeof(*number), data, size,
                           &param);
}

static void active_messages(unsigned rounds)
{
    ucs_status_ptr_t requests[NUM_FLIGHT] = {};
    uint64_t numbers[NUM_FLIGHT];
    char *buffers[NUM_FLIGHT];
    unsigned sent = 0, i;
    size_t size;

    for (i = 0; i < NUM_FLIGHT; ++i) {
        buffers[i] = new_memory(MAX_SIZE);
    }

    for (i = 0; (sent < rounds) || (self.received < rounds);
         i = (i + 1) % NUM_FLIGHT) {
        ucp_worker_progress(self.worker);
        if ((sent < rounds) && is_done(requests[i])) {
            CHECK_OK(wait_for(self.worker, requests[i]));
            size        = random_size();
            numbers[i]  = sent++;
            fill(buffers[i], size, numbers[i] << 32);
            requests[i] = send_message(&numbers[i], buffers[i], size);
        }
    }

    for (i = 0; i < NUM_FLIGHT; ++i) {
        CHECK_OK(wait_for(self.worker, requests[i]));
        munmap(buffers[i], MAX_SIZE);
    }
}


/* ---- close by force ---- */

static void share_memory(void)
{
    uint64_t *address;
    size_t length;
    void *key;

    self.memory = new_memory(MAX_SIZE);
    fill(self.memory, MAX_SIZE, 0);
    self.memh = map_memory(self.context, self.memory, MAX_SIZE);
    CHECK_OK(ucp_rkey_pack(self.context, self.memh, &key, &length));
    send_blob(&self.memory, sizeof(self.memory));
    send_blob(key, length);
    ucp_rkey_buffer_release(key);
    address          = recv_blob();
    self.peer_memory = *address;
    self.peer_key    = recv_blob();
    free(address);
}

enum { NUM_KINDS = 5 };

/*
 * One operation of each kind. The first one writes to a buffer. No fetching
 * atomic: UCP 1.13 does not complete its request when the endpoint is closed by
 * force, not even over tcp.
 */
static void start_all(ucp_rkey_h rkey, char *in, const char *out,
                      ucs_status_ptr_t *requests)
{
    static const uint64_t number = 0;
    const size_t half            = MAX_SIZE / 2;

    requests[0] = ucp_get_nbx(self.ep, in, half, self.peer_memory, rkey, &none);
    requests[1] = ucp_put_nbx(self.ep, out, half, self.peer_memory + half, rkey,
                              &none);
    requests[2] = ucp_tag_send_nbx(self.ep, out, MAX_SIZE, 1, &none);
    requests[3] = ucp_stream_send_nbx(self.ep, out, MAX_SIZE, &none);
    requests[4] = send_message(&number, out, MAX_SIZE);
}

static void close_by_force(unsigned rounds)
{
    ucs_status_ptr_t requests[NUM_KINDS];
    char *in, *out, *before;
    unsigned round, i;
    ucp_rkey_h rkey;

    share_memory();
    before = new_memory(MAX_SIZE);
    for (round = 0; (self.number == 0) && (round < rounds); ++round) {
        if (round > 0) {
            connect_to_peer();
        }
        CHECK_OK(ucp_ep_rkey_unpack(self.ep, self.peer_key, &rkey));
        in  = new_memory(MAX_SIZE);
        out = new_memory(MAX_SIZE);
        fill(out, MAX_SIZE, MAX_SIZE / 2);
        start_all(rkey, in, out, requests);
        for (i = rand_r(&self.seed) % 64; i > 0; --i) {
            ucp_worker_progress(self.worker);
        }

        ucp_rkey_destroy(rkey);
        close_ep(self.worker, self.ep, UCP_EP_CLOSE_FLAG_FORCE);
        for (i = 0; i < NUM_KINDS; ++i) {
            wait_for(self.worker, requests[i]);
        }

        /* From now on the buffers must not be written any more */
        memcpy(before, in, MAX_SIZE);
        for (i = 0; i < 100; ++i) {
            ucp_worker_progress(self.worker);
        }
        CHECK(!memcmp(before, in, MAX_SIZE), "written after the close");
        munmap(in, MAX_SIZE);
        munmap(out, MAX_SIZE);
    }

    /* A new endpoint works. The result of a put that was closed by force is not
     * defined, so the memory is written first. */
    if (self.number == 0) {
        ucp_request_param_t none = {};
        connect_to_peer();
        CHECK_OK(ucp_ep_rkey_unpack(self.ep, self.peer_key, &rkey));
        fill(before, MAX_SIZE, 0);
        CHECK_OK(wait_for(self.worker, ucp_put_nbx(self.ep, before, MAX_SIZE,
                                      self.peer_memory, rkey, &none)));
        CHECK_OK(wait_for(self.worker, ucp_ep_flush_nbx(self.ep, &none)));
        memset(before, 0, MAX_SIZE);
        CHECK_OK(wait_for(self.worker, ucp_get_nbx(self.ep, before, MAX_SIZE,
                                      self.peer_memory, rkey, &none)));
        expect(before, MAX_SIZE, 0);
        ucp_rkey_destroy(rkey);
    }
}


/* ---- main ---- */

/* Drops messages that were left by endpoints that were closed by force */
static ucs_status_t drop_message(void *arg, const void *header, size_t size,
                                 void *data, size_t length,
                                 const ucp_am_recv_param_t *param)
{
    return UCS_OK;
}

static void run(const char *mode, unsigned rounds)
{
    int is_close                   = !strcmp(mode, "close");
    ucp_am_handler_param_t handler = {
        .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID |
                      UCP_AM_HANDLER_PARAM_FIELD_CB,
        .id         = AM_ID,
        .cb         = is_close ? drop_message : on_message
    };
    ucp_address_t *address;
    ucs_status_t status;
    size_t length;

    open_ucp(UCP_FEATURE_RMA | UCP_FEATURE_TAG | UCP_FEATURE_STREAM |
             UCP_FEATURE_AM, &self.context, &self.worker);
    CHECK_OK(ucp_worker_set_am_recv_handler(self.worker, &handler));
    CHECK_OK(ucp_worker_get_address(self.worker, &address, &length));
    send_blob(address, length);
    ucp_worker_release_address(self.worker, address);
    self.peer = recv_blob();
    connect_to_peer();
    barrier();

    if (is_close) {
        close_by_force(rounds);
    } else {
        active_messages(rounds);
    }

    barrier();
    status = close_ep(self.worker, self.ep,
                      is_close ? UCP_EP_CLOSE_FLAG_FORCE : 0);
    CHECK((status == UCS_OK) || is_close, "close: %s",
          ucs_status_string(status));
    barrier();
    if (self.memh != NULL) {
        CHECK_OK(ucp_mem_unmap(self.context, self.memh));
    }
    close_ucp(self.context, self.worker);
}

int main(int argc, char **argv)
{
    int socks[2], i;

    CHECK(argc == 3, "usage: ucp_stress am|close ROUNDS");
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, socks) == 0, "socketpair: %m");
    for (i = 0; i < 2; ++i) {
        if (start_child() == 0) {
            self.number = i;
            self.sock   = socks[i];
            self.seed   = i + 1;
            close(socks[1 - i]);
            run(argv[1], atoi(argv[2]));
            return 0;
        }
    }

    close(socks[0]);
    close(socks[1]);
    for (i = 0; i < 2; ++i) {
        expect_end(-1, 0);
    }
    return 0;
}
