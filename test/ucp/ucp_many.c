/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * ucp_many [CLIENTS]
 *
 * A server with many client processes, all connected at once. Each client sends
 * messages of several sizes, and gets an answer of the same size to each. The
 * server answers the first ones only when all clients have sent theirs, so all
 * connections exist at once. A third of the clients closes its endpoint then, a
 * third ends without a close, and a third is killed. Every message is checked.
 *
 * Clients sleep while they wait: there are many more of them than CPUs.
 *
 * Prints the descriptors and the memory of the server: before the first client,
 * with all of them, and when the server has noticed that all of them are gone.
 */

#define _GNU_SOURCE
#include "ucp_socket.h"

#include <dirent.h>
#include <poll.h>
#include <sys/resource.h>

enum {
    AM_ID     = 1,
    MAX_SIZE  = 200000,
    END_CLOSE = 0,
    END_EXIT,
    END_KILLED,
    NUM_ENDS
};

/* A small message, and some that go by rendezvous */
static const size_t sizes[] = {100, MAX_SIZE, 70000, MAX_SIZE - 1};

enum { NUM_SIZES = sizeof(sizes) / sizeof(sizes[0]) };

/* Of an active message */
typedef struct {
    uint32_t client;
    uint32_t round;
} header_t;

/* A message on its way to the server and back, or back to the client */
typedef struct {
    header_t header;
    ucp_ep_h ep;
    char     *data;
} message_t;

static struct {
    unsigned       num_clients;
    int            port[2];         /* Pipe from the server: its port */
    ucp_context_h  context;
    ucp_worker_h   worker;
    ucp_listener_h listener;
    int            is_server;
    unsigned       num_arrived;     /* Messages that have been checked */
    unsigned       num_waiting;     /* Of the first round, at the server */
    unsigned       num_sent;        /* Answers that have been sent */
    unsigned       num_sending;
    unsigned       num_accepted;
    unsigned       num_failed;      /* Endpoints of the server that ended */
    ucp_ep_h       *accepted;
    message_t      **waiting;
} self;


static uint64_t place_of(const header_t *header, int is_answer)
{
    return ((uint64_t)header->client << 40) | ((uint64_t)header->round << 32) |
           ((uint64_t)is_answer << 31);
}

static void on_answered(void *request, ucs_status_t status, void *arg)
{
    message_t *message     = arg;
    const header_t *header = &message->header;

    /* UCP reports the end of a client before the last thing that it has sent,
     * which is that it has the last answer */
    CHECK((status == UCS_OK) || (header->round == NUM_SIZES - 1),
          "answer %u to client %u: %s", header->round, header->client,
          ucs_status_string(status));
    ++self.num_sent;
    --self.num_sending;
    munmap(message->data, MAX_SIZE);
    free(message);
    if (request != NULL) {
        ucp_request_free(request);
    }
}

static void answer(message_t *message)
{
    size_t size               = sizes[message->header.round];
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK |
                        UCP_OP_ATTR_FIELD_USER_DATA,
        .cb.send      = on_answered,
        .user_data    = message
    };
    ucs_status_ptr_t request;

    fill(message->data, size, place_of(&message->header, 1));
    ++self.num_sending;
    request = ucp_am_send_nbx(message->ep, AM_ID, &message->header,
                              sizeof(message->header), message->data, size,
                              &param);
    if (!UCS_PTR_IS_PTR(request)) {
        on_answered(NULL, UCS_PTR_STATUS(request), message);
    }
}

/* The answers to the first messages wait until all of these have arrived */
static void answer_in_time(message_t *message)
{
    if (message->header.round > 0) {
        answer(message);
        return;
    }

    self.waiting[self.num_waiting++] = message;
}

static void check_message(message_t *message)
{
    expect(message->data, sizes[message->header.round],
           place_of(&message->header, !self.is_server));
    ++self.num_arrived;
    if (self.is_server) {
        answer_in_time(message);
    } else {
        munmap(message->data, MAX_SIZE);
        free(message);
    }
}

static void on_fetched(void *request, ucs_status_t status, size_t length,
                       void *arg)
{
    CHECK(status == UCS_OK, "rendezvous: %s", ucs_status_string(status));
    ucp_request_free(request);
    check_message(arg);
}

static ucs_status_t on_message(void *arg, const void *header, size_t size,
                               void *data, size_t length,
                               const ucp_am_recv_param_t *param)
{
    message_t *message             = malloc(sizeof(*message));
    ucp_request_param_t recv_param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK |
                        UCP_OP_ATTR_FIELD_USER_DATA |
                        UCP_OP_ATTR_FLAG_NO_IMM_CMPL,
        .cb.recv_am   = on_fetched,
        .user_data    = message
    };

    CHECK(size == sizeof(message->header), "a header of %zu bytes", size);
    memcpy(&message->header, header, size);
    CHECK((message->header.client < self.num_clients) &&
          (message->header.round < NUM_SIZES) &&
          (length == sizes[message->header.round]), "a strange message");
    message->ep   = param->reply_ep;
    message->data = new_memory(MAX_SIZE);
    if (!(param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV)) {
        memcpy(message->data, data, length);
        check_message(message);
        return UCS_OK;
    }

    CHECK(UCS_PTR_IS_PTR(ucp_am_recv_data_nbx(self.worker, data, message->data,
                                              length, &recv_param)),
          "ucp_am_recv_data_nbx");
    return UCS_INPROGRESS;
}

static void open_worker(void)
{
    ucp_am_handler_param_t handler = {
        .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID |
                      UCP_AM_HANDLER_PARAM_FIELD_CB |
                      UCP_AM_HANDLER_PARAM_FIELD_FLAGS,
        .id         = AM_ID,
        .cb         = on_message,
        .flags      = UCP_AM_FLAG_WHOLE_MSG
    };

    open_ucp(UCP_FEATURE_AM | UCP_FEATURE_WAKEUP, &self.context, &self.worker);
    CHECK_OK(ucp_worker_set_am_recv_handler(self.worker, &handler));
}

/* Progress; sleeps if there is nothing to do */
static void progress(void)
{
    struct pollfd event = {.events = POLLIN};

    if (ucp_worker_progress(self.worker) != 0) {
        return;
    }
    if (ucp_worker_arm(self.worker) == UCS_OK) {
        CHECK_OK(ucp_worker_get_efd(self.worker, &event.fd));
        CHECK(poll(&event, 1, -1) == 1, "poll: %m");
    }
}


/* ---- the server ---- */

static void on_gone(void *arg, ucp_ep_h ep, ucs_status_t status)
{
    ++self.num_failed;
}

static void on_request(ucp_conn_request_h request, void *arg)
{
    ucp_ep_params_t params = {
        .field_mask     = UCP_EP_PARAM_FIELD_CONN_REQUEST |
                          UCP_EP_PARAM_FIELD_ERR_HANDLER |
                          UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE,
        .conn_request   = request,
        .err_mode       = UCP_ERR_HANDLING_MODE_PEER,
        .err_handler.cb = on_gone
    };

    CHECK(self.num_accepted < self.num_clients, "too many requests");
    CHECK_OK(ucp_ep_create(self.worker, &params,
                           &self.accepted[self.num_accepted++]));
}

static unsigned num_descriptors(void)
{
    DIR *dir     = opendir("/proc/self/fd");
    unsigned num = 0;

    CHECK(dir != NULL, "/proc/self/fd: %m");
    while (readdir(dir) != NULL) {
        ++num;
    }
    closedir(dir);
    return num;
}

static void print_resources(const char *when)
{
    FILE *file = fopen("/proc/self/statm", "r");
    unsigned long pages, resident;

    CHECK((file != NULL) && (fscanf(file, "%lu %lu", &pages, &resident) == 2),
          "/proc/self/statm");
    fclose(file);
    printf("%s: %u descriptors, %lu MiB of addresses, %lu MiB resident\n", when,
           num_descriptors(), pages >> 8, resident >> 8);
}

static void answer_all_waiting(void)
{
    unsigned i;

    for (i = 0; i < self.num_waiting; ++i) {
        answer(self.waiting[i]);
    }
}

static void serve(void)
{
    const unsigned total = self.num_clients * NUM_SIZES;
    uint16_t port;
    unsigned i;

    self.is_server = 1;
    self.accepted  = calloc(self.num_clients, sizeof(*self.accepted));
    self.waiting   = calloc(self.num_clients, sizeof(*self.waiting));
    open_worker();
    port = listen_anywhere(self.worker, AF_INET, on_request, &self.listener);
    print_resources("before");
    for (i = 0; i < self.num_clients; ++i) {
        CHECK(write(self.port[1], &port, sizeof(port)) == sizeof(port),
              "write: %m");
    }

    while (self.num_waiting < self.num_clients) {
        progress();
    }
    CHECK(self.num_failed == 0, "%u endpoints failed", self.num_failed);
    print_resources("all connected");
    answer_all_waiting();
    while ((self.num_sent < total) || (self.num_failed < self.num_clients)) {
        progress();
    }
    CHECK(self.num_arrived == total, "%u messages of %u", self.num_arrived,
          total);

    for (i = 0; i < self.num_clients; ++i) {
        close_ep(self.worker, self.accepted[i], UCP_EP_CLOSE_FLAG_FORCE);
    }
    print_resources("all gone");
    ucp_listener_destroy(self.listener);
    close_ucp(self.context, self.worker);
    print_resources("closed");
}


/* ---- a client ---- */

static void exchange(ucp_ep_h ep, uint32_t client, uint32_t round)
{
    header_t header           = {client, round};
    char *data                = new_memory(MAX_SIZE);
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
        .flags        = UCP_AM_SEND_FLAG_REPLY
    };
    ucs_status_ptr_t request;

    fill(data, sizes[round], place_of(&header, 0));
    request = ucp_am_send_nbx(ep, AM_ID, &header, sizeof(header), data,
                              sizes[round], &param);
    while (!is_done(request) || (self.num_arrived <= round)) {
        progress();
    }
    CHECK_OK(wait_for(self.worker, request));
    munmap(data, MAX_SIZE);
}

static void be_client(unsigned client)
{
    ucs_status_t error;
    uint32_t round;
    uint16_t port;
    ucp_ep_h ep;

    CHECK(read(self.port[0], &port, sizeof(port)) == sizeof(port),
          "the server is gone");
    open_worker();
    ep = connect_to(self.worker, AF_INET, port, &error);
    for (round = 0; round < NUM_SIZES; ++round) {
        exchange(ep, client, round);
    }
    CHECK_OK(error);

    if (client % NUM_ENDS == END_KILLED) {
        kill(getpid(), SIGKILL);
    } else if (client % NUM_ENDS == END_EXIT) {
        _exit(0);
    }
    close_ep(self.worker, ep, 0);
    close_ucp(self.context, self.worker);
}


/* ---- the processes ---- */

int main(int argc, char **argv)
{
    struct rlimit limit;
    int status, is_killed;
    unsigned i;

    self.num_clients = (argc > 1) ? atoi(argv[1]) : 30;
    CHECK(self.num_clients > 0, "usage: ucp_many [CLIENTS]");
    CHECK(!getrlimit(RLIMIT_NOFILE, &limit), "getrlimit: %m");
    limit.rlim_cur = limit.rlim_max;
    CHECK(!setrlimit(RLIMIT_NOFILE, &limit), "setrlimit: %m");
    CHECK(!pipe(self.port), "pipe: %m");

    if (start_child() == 0) {
        serve();
        return 0;
    }
    for (i = 0; i < self.num_clients; ++i) {
        if (start_child() == 0) {
            be_client(i);
            return 0;
        }
    }
    for (i = 0; i < self.num_clients + 1; ++i) {
        CHECK(wait(&status) > 0, "wait: %m");
        is_killed = WIFSIGNALED(status) && (WTERMSIG(status) == SIGKILL);
        CHECK((status == 0) || is_killed, "status 0x%x", status);
    }
    printf("%u clients at once\n", self.num_clients);
    return 0;
}
