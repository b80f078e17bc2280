/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * ucp_late tag|am close|kill|cancel|destroy|memh|unmap|other
 *
 * A receive by rendezvous that ends while the sender's put goes on. The sender
 * stops progress in the middle of the message; then the receiver
 *   close    closes the endpoint by force. Its request ends with an error.
 *   kill     kills the sender. Its request ends with an error.
 *   cancel   cancels the request, which UCX ignores once it is matched: the
 *            request ends with all of the message.
 *   destroy  closes the endpoint by force and destroys the worker at once.
 *   memh     as close, of a buffer that the program has registered and names in
 *            the request. The put goes on: doc/transport.md has the reason.
 *   unmap    the same, and the program ends the registration before it uses the
 *            buffer again.
 *   other    as close. The sender has another endpoint to the same worker,
 *            which must go on: afterwards it sends a message by rendezvous.
 * Then it uses the buffer again, and the sender goes on. Nobody may write to
 * the buffer any more.
 */

#define _GNU_SOURCE
#include "ucp_socket.h"

#include <sched.h>

enum {
    SIZE        = 24 << 20,
    ROUNDS      = 4,
    AM_ID       = 1,
    TAG         = 1,
    OTHER_TAG   = 2,
    ADDRESS_MAX = 4096,
    SENT        = 0x11, /* Each byte of the message */
    REUSED      = 0x77, /* Each byte that the receiver's program stores */
    COMPLETE    = 3     /* Exit status: the message was complete too early */
};

enum {
    SENDER,
    RECEIVER
};

/* What both processes see */
static struct shared {
    volatile int    has_address[2];
    size_t          length[2];
    char            address[2][ADDRESS_MAX];
    volatile int    has_buffer;  /* the receiver waits for the message */
    volatile int    hold;        /* the sender is to make no progress */
    volatile int    is_held;
    volatile int    is_over;     /* the sender's request has ended */
    volatile pid_t  sender;
} *shared;

static struct {
    int              is_am;
    int              has_other;  /* the sender has another endpoint */
    char             *buffer;
    ucp_mem_h        memh;       /* of the buffer; or NULL */
    ucs_status_ptr_t request;
    ucp_context_h    context;
    ucp_worker_h     worker;
    ucp_ep_h         ep;
    ucp_ep_h         other;
    ucs_status_t     error;      /* of the endpoint */
    ucs_status_t     other_error;
} self;


/* Of a receive into the buffer */
static ucp_request_param_t receive_param(void)
{
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FLAG_NO_IMM_CMPL
    };

    if (self.memh != NULL) {
        param.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMH;
        param.memh          = self.memh;
    }
    return param;
}

static ucs_status_t receive_am(void *arg, const void *header,
                               size_t header_length, void *data, size_t length,
                               const ucp_am_recv_param_t *param)
{
    ucp_request_param_t receive = receive_param();

    CHECK(param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV, "no rendezvous");
    self.request = ucp_am_recv_data_nbx(self.worker, data, self.buffer, length,
                                        &receive);
    CHECK(UCS_PTR_IS_PTR(self.request), "no request");
    return UCS_OK;
}

static void open_worker(void)
{
    ucp_am_handler_param_t handler = {
        .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID |
                      UCP_AM_HANDLER_PARAM_FIELD_CB,
        .id         = AM_ID,
        .cb         = receive_am
    };

    open_ucp(UCP_FEATURE_TAG | UCP_FEATURE_AM, &self.context, &self.worker);
    CHECK_OK(ucp_worker_set_am_recv_handler(self.worker, &handler));
    self.buffer = new_memory(SIZE);
    memset(self.buffer, REUSED, SIZE); /* The NIC can write to present pages */
}

/* By worker address, so that nothing but the transport tells of the peer */
static void connect_as(int role)
{
    ucp_address_t *address;

    CHECK_OK(ucp_worker_get_address(self.worker, &address,
                                    &shared->length[role]));
    CHECK(shared->length[role] <= ADDRESS_MAX, "long address");
    memcpy(shared->address[role], address, shared->length[role]);
    ucp_worker_release_address(self.worker, address);
    shared->has_address[role] = 1;
    while (!shared->has_address[!role]) {
        sched_yield();
    }
    self.ep = new_ep_to(self.worker, shared->address[!role], &self.error);
    if (self.has_other && (role == SENDER)) {
        self.other = new_ep_to(self.worker, shared->address[!role],
                               &self.other_error);
    }
}

/* Another message, which is not disturbed */
static void send_other(void)
{
    CHECK_OK(wait_for(self.worker,
                      ucp_tag_send_nbx(self.other, self.buffer, SIZE, OTHER_TAG,
                                       &none)));
    CHECK(self.other_error == UCS_OK, "the other endpoint failed");
    close_ep(self.worker, self.other, UCP_EP_CLOSE_FLAG_FORCE);
}

static void receive_other(void)
{
    CHECK_OK(wait_for(self.worker,
                      ucp_tag_recv_nbx(self.worker, self.buffer, SIZE,
                                       OTHER_TAG, UINT64_MAX, &none)));
}

static void send_it(void)
{
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
        .flags        = self.is_am ? UCP_AM_SEND_FLAG_RNDV : 0
    };

    memset(self.buffer, SENT, SIZE);
    while (!shared->has_buffer) {
        ucp_worker_progress(self.worker);
    }
    self.request = self.is_am ?
                   ucp_am_send_nbx(self.ep, AM_ID, NULL, 0, self.buffer, SIZE,
                                   &param) :
                   ucp_tag_send_nbx(self.ep, self.buffer, SIZE, TAG, &param);
    while (!is_done(self.request) && (self.error == UCS_OK)) {
        ucp_worker_progress(self.worker);
        while (shared->hold) {
            shared->is_held = 1;
            sched_yield();
        }
    }
    shared->is_held = 1;
    close_ep(self.worker, self.ep, UCP_EP_CLOSE_FLAG_FORCE);
    wait_for(self.worker, self.request);
    shared->is_over = 1;
    if (self.has_other) {
        send_other();
    }
    ucp_worker_destroy(self.worker);
    ucp_cleanup(self.context);
}

/* Returns when the sender has stopped. @return Nonzero in the middle. */
static int receive_half(void)
{
    ucp_request_param_t param = receive_param();
    const volatile char *data = self.buffer;

    if (!self.is_am) {
        self.request = ucp_tag_recv_nbx(self.worker, self.buffer, SIZE, TAG,
                                        UINT64_MAX, &param);
        CHECK(UCS_PTR_IS_PTR(self.request), "no request");
    }
    shared->has_buffer = 1;
    while (data[0] != SENT) {
        ucp_worker_progress(self.worker);
    }
    shared->hold = 1;
    while (!shared->is_held) {
        ucp_worker_progress(self.worker);
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

static void end_receive(const char *how)
{
    static const ucp_request_param_t force = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
        .flags        = UCP_EP_CLOSE_FLAG_FORCE
    };

    if (strcmp(how, "cancel") == 0) {
        ucp_request_cancel(self.worker, self.request);
        CHECK(!is_done(self.request), "a request that is matched ended");
        shared->hold = 0;
        CHECK_OK(wait_for(self.worker, self.request));
        expect_only(SENT);
    } else if (strcmp(how, "destroy") == 0) {
        ucp_ep_close_nbx(self.ep, &force);
        ucp_worker_destroy(self.worker);
        self.worker = NULL;
    } else {
        if (strcmp(how, "kill") == 0) {
            kill(shared->sender, SIGKILL);
            while (self.error == UCS_OK) {
                ucp_worker_progress(self.worker);
            }
            shared->is_over = 1;
        }
        close_ep(self.worker, self.ep, UCP_EP_CLOSE_FLAG_FORCE);
        CHECK(wait_for(self.worker, self.request) != UCS_OK, "no error");
    }
}

static int receive(const char *how)
{
    if ((strcmp(how, "memh") == 0) || (strcmp(how, "unmap") == 0)) {
        self.memh = map_memory(self.context, self.buffer, SIZE);
    }
    if (!receive_half()) {
        shared->hold = 0;
        return COMPLETE;
    }

    end_receive(how);
    if (strcmp(how, "unmap") == 0) {
        CHECK_OK(ucp_mem_unmap(self.context, self.memh));
        self.memh = NULL;
    }
    memset(self.buffer, REUSED, SIZE);
    shared->hold = 0;
    while (!shared->is_over) {
        if (self.worker != NULL) {
            ucp_worker_progress(self.worker);
        }
    }
    expect_only(REUSED);
    if (self.has_other) {
        receive_other();
        expect_only(SENT);
    }
    if (self.memh != NULL) {
        ucp_mem_unmap(self.context, self.memh);
    }
    if (self.worker != NULL) {
        ucp_worker_destroy(self.worker);
    }
    ucp_cleanup(self.context);
    return 0;
}

/* @return Exit status of the receiver. */
static int run(const char *how)
{
    pid_t sender, receiver;
    int status;

    memset(shared, 0, sizeof(*shared));
    sender = start_child();
    if (sender == 0) {
        open_worker();
        connect_as(SENDER);
        send_it();
        _exit(0);
    }
    shared->sender = sender;
    receiver       = start_child();
    if (receiver == 0) {
        open_worker();
        connect_as(RECEIVER);
        exit(receive(how));
    }

    CHECK(waitpid(receiver, &status, 0) == receiver, "waitpid: %m");
    CHECK(WIFEXITED(status), "the receiver was killed");
    if (WEXITSTATUS(status) != 0) {
        kill(sender, SIGKILL);
    }
    CHECK(waitpid(sender, NULL, 0) == sender, "waitpid: %m");
    return WEXITSTATUS(status);
}

int main(int argc, char **argv)
{
    int in_time = 0;
    unsigned major, minor, release;
    int i, status;

    CHECK(argc == 3, "usage: ucp_late tag|am close|kill|cancel|destroy|"
                     "memh|unmap|other");
    self.is_am     = strcmp(argv[1], "am") == 0;
    self.has_other = strcmp(argv[2], "other") == 0;
    if (strcmp(argv[2], "unmap") == 0) {
        ucp_get_version(&major, &minor, &release);
        if ((major > 1) || (minor >= 14)) {
            printf("SKIPPED: UCX keeps the registration in its cache\n");
            return 77;
        }
    }
    shared         = new_shared(sizeof(*shared));
    for (i = 0; i < ROUNDS; ++i) {
        status = run(argv[2]);
        CHECK((status == 0) || (status == COMPLETE), "round %d failed", i);
        in_time += status == 0;
    }
    CHECK(in_time > 0, "no receive ended in the middle of its message");
    printf("%d of %d receives ended in the middle\n", in_time, ROUNDS);
    return 0;
}
