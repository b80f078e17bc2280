/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * ucp_late close|kill|destroy|memh|other
 *
 * A receive by rendezvous that ends while the sender's put goes on. The sender
 * stops progress in the middle of the message; then the receiver
 *   close    closes the endpoint by force. Its request ends with an error.
 *   kill     kills the sender. Its request ends with an error.
 *   destroy  closes the endpoint by force and destroys the worker at once.
 *   memh     as close, of a buffer that the program has registered and names in
 *            the request. The put goes on: doc/transport.md has the reason.
 *   other    as close. The sender has another endpoint to the same worker,
 *            which must go on: afterwards it sends a message by rendezvous.
 * Then it uses the buffer again, and the sender goes on. Nobody may write to
 * the buffer any more.
 */

#define _GNU_SOURCE
#include "ucp_pair.h"

enum {
    SIZE        = 24 << 20,
    ROUNDS      = 4,
    TAG         = 1,
    OTHER_TAG   = 2,
    SENT        = 0x11, /* Each byte of the message */
    REUSED      = 0x77  /* Each byte that the receiver's program stores */
};

/* What all processes see */
static struct {
    volatile int   hold;        /* The sender is to make no progress */
    volatile int   is_held;
    volatile pid_t sender;
    unsigned       in_time;     /* Rounds that ended in the middle */
} *shared;

static struct {
    const char   *how;
    char         *buffer;
    ucp_ep_h     ep;
    ucs_status_t error;         /* Of the endpoint */
} self;

static int is_way(const char *how)
{
    return strcmp(self.how, how) == 0;
}

static ucs_status_ptr_t start_send(ucp_ep_h ep, ucp_tag_t tag)
{
    return ucp_tag_send_nbx(ep, self.buffer, SIZE, tag, &none);
}

static void send_it(const ucp_address_t *address)
{
    ucp_ep_h other = NULL;
    ucs_status_t other_error;
    ucs_status_ptr_t request;
    char ready;

    if (is_way("other")) {
        other = new_ep_to(pair.worker, address, &other_error);
    }
    memset(self.buffer, SENT, SIZE);
    pair_get(&ready, 1);
    request = start_send(self.ep, TAG);
    while (!is_done(request) && (self.error == UCS_OK)) {
        ucp_worker_progress(pair.worker);
        while (shared->hold) {
            shared->is_held = 1;
            sched_yield();
        }
    }
    shared->is_held = 1;
    close_ep(pair.worker, self.ep, UCP_EP_CLOSE_FLAG_FORCE);
    wait_for(pair.worker, request);
    pair_put(&ready, 1);
    if (other != NULL) {
        CHECK_OK(wait_for(pair.worker, start_send(other, OTHER_TAG)));
        CHECK_OK(other_error);
        close_ep(pair.worker, other, UCP_EP_CLOSE_FLAG_FORCE);
    }
}

static ucs_status_ptr_t start_receive(ucp_tag_t tag, ucp_mem_h memh)
{
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FLAG_NO_IMM_CMPL |
                        ((memh != NULL) ? UCP_OP_ATTR_FIELD_MEMH : 0),
        .memh         = memh
    };

    return ucp_tag_recv_nbx(pair.worker, self.buffer, SIZE, tag, UINT64_MAX,
                            &param);
}

/* Returns when the sender has stopped. @return Nonzero in the middle. */
static int receive_half(void)
{
    const volatile char *data = self.buffer;

    pair_put("r", 1);
    while (data[0] != SENT) {
        ucp_worker_progress(pair.worker);
    }
    shared->hold = 1;
    while (!shared->is_held) {
        ucp_worker_progress(pair.worker);
    }
    return data[SIZE - 1] != SENT;
}

static void expect_only(char byte)
{
    size_t i;

    for (i = 0; i < SIZE; ++i) {
        CHECK(self.buffer[i] == byte, "the buffer has 0x%x at %zu",
              (unsigned char)self.buffer[i], i);
    }
}

static void end_receive(ucs_status_ptr_t request)
{
    static const ucp_request_param_t force = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
        .flags        = UCP_EP_CLOSE_FLAG_FORCE
    };

    if (is_way("destroy")) {
        ucp_ep_close_nbx(self.ep, &force);
        ucp_worker_destroy(pair.worker);
        pair.worker = NULL;
        return;
    }

    if (is_way("kill")) {
        kill(shared->sender, SIGKILL);
        while (self.error == UCS_OK) {
            ucp_worker_progress(pair.worker);
        }
    }
    close_ep(pair.worker, self.ep, UCP_EP_CLOSE_FLAG_FORCE);
    CHECK(wait_for(pair.worker, request) != UCS_OK, "no error");
}

static void receive_it(void)
{
    ucp_mem_h memh = is_way("memh") ?
                     map_memory(pair.context, self.buffer, SIZE) : NULL;
    int is_alive   = 1;
    ucs_status_ptr_t request;
    char is_over;

    request = start_receive(TAG, memh);
    CHECK(UCS_PTR_IS_PTR(request), "no request");
    if (receive_half()) {
        end_receive(request);
        ++shared->in_time;
        is_alive = !is_way("kill");
    } else {
        shared->hold = 0;
        CHECK_OK(wait_for(pair.worker, request));
    }
    memset(self.buffer, REUSED, SIZE);
    shared->hold = 0;
    if (is_alive) {
        pair_get(&is_over, 1);
    }
    expect_only(REUSED);
    if (is_way("other")) {
        CHECK_OK(wait_for(pair.worker, start_receive(OTHER_TAG, NULL)));
        expect_only(SENT);
    }
    if (memh != NULL) {
        ucp_mem_unmap(pair.context, memh);
    }
}

/* By worker address, so that nothing but the transport tells of the peer */
static void run(void)
{
    ucp_address_t *address;

    open_ucp(UCP_FEATURE_TAG, &pair.context, &pair.worker);
    self.buffer = new_memory(SIZE);
    memset(self.buffer, REUSED, SIZE); /* The NIC can write to present pages */
    address = pair_exchange_addresses();
    self.ep = new_ep_to(pair.worker, address, &self.error);
    if (pair.number == 0) {
        shared->sender = getpid();
        send_it(address);
    } else {
        receive_it();
    }
    if (pair.worker != NULL) {
        ucp_worker_destroy(pair.worker);
    }
    ucp_cleanup(pair.context);
}

int main(int argc, char **argv)
{
    int i;

    CHECK(argc == 2, "usage: ucp_late close|kill|destroy|memh|other");
    self.how       = argv[1];
    pair.is_killed = is_way("kill");
    shared         = new_shared(sizeof(*shared));
    for (i = 0; i < ROUNDS; ++i) {
        shared->is_held = 0;
        run_pair(run);
    }
    CHECK(shared->in_time > 0, "no receive ended in the middle of its message");
    printf("%u of %d receives ended in the middle\n", shared->in_time, ROUNDS);
    return 0;
}
