/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * ucp_kills PROCESSES KILLS [SEED]
 *
 * Each process is connected to each other one by socket address, and sends it
 * a stream and messages with tags. The parent kills one process after another,
 * each time when data have arrived on all connections, and starts a new one in
 * its place. SEED chooses the victims and the moments.
 *
 * The others get an error for each connection with a process that was killed,
 * close it by force, and connect to the new process. All data that arrive are
 * checked. Receives of messages are canceled at random: none of the messages
 * may be lost. Buffers of receives that ended without data stay as they are.
 */

#define _GNU_SOURCE
#include "ucp_socket.h"

#include <sched.h>
#include <stdatomic.h>

enum {
    MAX_PROCESSES = 16,
    MAX_LINKS     = 1024,       /* That a process has accepted */
    MAX_SIZE      = 300000,
    NUM_ENDED     = 16,         /* Buffers that must not change any more */
    ERROR_SEC     = 100         /* Until an error is reported */
};

/* What each stream begins with */
typedef struct {
    uint32_t slot;              /* Of the sender */
    uint32_t life;
} hello_t;

/* Memory of all processes. A slot is the place of a process, which has one life
 * after the other. */
static struct {
    atomic_uint  life[MAX_PROCESSES];
    atomic_uint  port[MAX_PROCESSES];   /* 0: not yet */
    /* Of the sender's and the receiver's slot: the lives between which data of
     * that kind have last arrived */
    atomic_ulong stream[MAX_PROCESSES][MAX_PROCESSES];
    atomic_ulong message[MAX_PROCESSES][MAX_PROCESSES];
    atomic_ulong num_errors;            /* Connections that failed */
    atomic_ulong num_canceled;          /* Receives */
    atomic_ulong num_cut;               /* Receives that failed */
    atomic_int   is_over;
} *shared;

/* A send or a receive, and its buffer */
typedef struct {
    ucs_status_ptr_t request;
    char             *data;             /* NULL: none is under way */
    size_t           size;
    size_t           received;
} transfer_t;

/* A connection. Data go from the client to the server. */
typedef struct {
    ucp_ep_h     ep;                    /* NULL: none */
    ucs_status_t error;
    hello_t      hello;                 /* Of the client, from position 1 on */
    uint32_t     life;                  /* Of the server */
    uint64_t     position;              /* In the stream */
    uint32_t     number;                /* Of the next message */
    transfer_t   stream;
    transfer_t   message;
} link_t;

static struct {
    unsigned      num_processes;
    hello_t       hello;                /* This process */
    unsigned      seed;
    ucp_context_h context;
    ucp_worker_h  worker;
    link_t        clients[MAX_PROCESSES];
    link_t        servers[MAX_LINKS];
    unsigned      num_servers;
    char          *ended[NUM_ENDED];    /* Buffers, and copies of them behind */
    unsigned      num_ended;
} self;

static unsigned draw(unsigned bound)
{
    return rand_r(&self.seed) % bound;
}

static unsigned long lives(uint32_t sender, uint32_t receiver)
{
    return ((unsigned long)sender << 32) | receiver;
}

/* The place of a stream's first byte, see byte_at() */
static uint64_t place_of(const hello_t *hello)
{
    return ((uint64_t)hello->slot << 56) | ((uint64_t)hello->life << 40);
}

static ucp_tag_t tag_of(const hello_t *hello, uint32_t number)
{
    return place_of(hello) | number;
}

/* A function of the tag, from 1 to MAX_SIZE */
static size_t size_of(ucp_tag_t tag)
{
    return 1 + (tag * 0x9e3779b97f4a7c15ull >> 32) % MAX_SIZE;
}


/* ---- buffers ---- */

static void begin(transfer_t *transfer, size_t size)
{
    transfer->data = new_memory(2 * MAX_SIZE);
    transfer->size = size;
}

static void end(transfer_t *transfer)
{
    munmap(transfer->data, 2 * MAX_SIZE);
    transfer->data = NULL;
}

/* A receive has ended without data */
static void end_early(transfer_t *transfer)
{
    char **ended = &self.ended[self.num_ended++ % NUM_ENDED];

    if (*ended != NULL) {
        CHECK(!memcmp(*ended, *ended + MAX_SIZE, MAX_SIZE),
              "the buffer of a receive has changed after its end");
        munmap(*ended, 2 * MAX_SIZE);
    }
    *ended = transfer->data;
    memcpy(*ended + MAX_SIZE, *ended, MAX_SIZE);
    transfer->data = NULL;
}


/* ---- the client's side ---- */

static void send_stream(link_t *link)
{
    transfer_t *transfer     = &link->stream;

    begin(transfer, (link->position == 0) ? sizeof(self.hello) :
                                            1 + draw(MAX_SIZE));
    if (link->position == 0) {
        memcpy(transfer->data, &self.hello, sizeof(self.hello));
    } else {
        fill(transfer->data, transfer->size, place_of(&self.hello) +
                                             link->position);
    }
    link->position   += transfer->size;
    transfer->request = ucp_stream_send_nbx(link->ep, transfer->data,
                                            transfer->size, &none);
}

static void send_message(link_t *link)
{
    transfer_t *transfer     = &link->message;
    ucp_tag_t tag            = tag_of(&self.hello, link->number);

    begin(transfer, size_of(tag));
    fill(transfer->data, transfer->size, tag * MAX_SIZE);
    transfer->request = ucp_tag_send_nbx(link->ep, transfer->data,
                                         transfer->size, tag, &none);
    ++link->number;
}

static void end_send(transfer_t *transfer)
{
    if ((transfer->data != NULL) && is_done(transfer->request)) {
        /* After a failure, the error handler is called as well */
        wait_for(self.worker, transfer->request);
        end(transfer);
    }
}

static void progress_client(link_t *link)
{
    end_send(&link->stream);
    end_send(&link->message);
    if (link->error != UCS_OK) {
        return;
    }
    if (link->stream.data == NULL) {
        send_stream(link);
    }
    if (link->message.data == NULL) {
        send_message(link);
    }
}


/* ---- the server's side ---- */

static void receive_stream(link_t *link)
{
    transfer_t *transfer      = &link->stream;
    ucp_request_param_t param = {
        .op_attr_mask = (link->position && draw(2)) ?
                        0 : UCP_OP_ATTR_FIELD_FLAGS,
        .flags        = UCP_STREAM_RECV_FLAG_WAITALL
    };

    begin(transfer, (link->position == 0) ? sizeof(link->hello) :
                                            1 + draw(MAX_SIZE));
    transfer->request = ucp_stream_recv_nbx(link->ep, transfer->data,
                                            transfer->size, &transfer->received,
                                            &param);
}

static void check_stream(link_t *link)
{
    transfer_t *transfer = &link->stream;
    ucs_status_t status;

    if (UCS_PTR_IS_PTR(transfer->request)) {
        ucp_stream_recv_request_test(transfer->request, &transfer->received);
    }
    status = wait_for(self.worker, transfer->request);
    if (status != UCS_OK) {
        CHECK(status != UCS_ERR_MESSAGE_TRUNCATED, "a stream was cut");
        atomic_fetch_add(&shared->num_cut, 1);
        end_early(transfer);
        return;
    }

    if (link->position == 0) {
        memcpy(&link->hello, transfer->data, sizeof(link->hello));
        CHECK(link->hello.slot < self.num_processes, "a hello of %u",
              link->hello.slot);
    } else {
        expect(transfer->data, transfer->received,
               place_of(&link->hello) + link->position);
        atomic_store(&shared->stream[link->hello.slot][self.hello.slot],
                     lives(link->hello.life, self.hello.life));
    }
    link->position += transfer->received;
    end(transfer);
}

static void receive_message(link_t *link)
{
    transfer_t *transfer     = &link->message;
    ucp_tag_t tag            = tag_of(&link->hello, link->number);

    begin(transfer, size_of(tag));
    transfer->request = ucp_tag_recv_nbx(self.worker, transfer->data,
                                         transfer->size, tag, -1, &none);
}

static void check_message(link_t *link)
{
    transfer_t *transfer = &link->message;
    ucs_status_t status  = wait_for(self.worker, transfer->request);

    if (status == UCS_OK) {
        expect(transfer->data, transfer->size,
               tag_of(&link->hello, link->number) * MAX_SIZE);
        atomic_store(&shared->message[link->hello.slot][self.hello.slot],
                     lives(link->hello.life, self.hello.life));
        ++link->number;
        end(transfer);
        return;
    }

    /* After a cancel, the message is received again */
    atomic_fetch_add((status == UCS_ERR_CANCELED) ? &shared->num_canceled :
                                                    &shared->num_cut, 1);
    end_early(transfer);
}

static void progress_server(link_t *link)
{
    transfer_t *stream = &link->stream, *message = &link->message;

    if ((stream->data != NULL) && is_done(stream->request)) {
        check_stream(link);
    }
    if (message->data != NULL) {
        /* When a connection fails, UCP ends receives whose message has begun,
         * and no others */
        if (!is_done(message->request) &&
            ((link->error != UCS_OK) || (draw(64) == 0))) {
            ucp_request_cancel(self.worker, message->request);
        }
        if (is_done(message->request)) {
            check_message(link);
        }
    }
    if (link->error != UCS_OK) {
        return;
    }
    if (stream->data == NULL) {
        receive_stream(link);
    } else if (draw(64) == 0) {
        /* Does nothing: UCP cancels receives of messages only */
        ucp_request_cancel(self.worker, stream->request);
    }
    if ((message->data == NULL) && (link->position > 0)) {
        receive_message(link);
    }
}


/* ---- connections ---- */

static void on_request(ucp_conn_request_h request, void *arg)
{
    link_t *link;

    CHECK(self.num_servers < MAX_LINKS, "too many connections");
    link     = &self.servers[self.num_servers++];
    link->ep = accept_request(self.worker, request, &link->error);
}

static void connect_to_new(unsigned slot)
{
    link_t *link  = &self.clients[slot];
    uint32_t port = atomic_load(&shared->port[slot]);

    /* The port is that of a life, or of a later one */
    if ((port == 0) || (link->life == atomic_load(&shared->life[slot]))) {
        return;
    }
    *link      = (link_t){};
    link->life = atomic_load(&shared->life[slot]);
    link->ep   = connect_to(self.worker, AF_INET, port, &link->error);
}

/* All requests of a connection that is closed by force come to an end */
static void close_by_force(link_t *link, void (*go_on)(link_t *link))
{
    double deadline = now() + ERROR_SEC;

    if (link->error == UCS_OK) {
        link->error = UCS_ERR_CANCELED;
    } else if (!atomic_load(&shared->is_over)) {
        atomic_fetch_add(&shared->num_errors, 1);
    }
    close_ep(self.worker, link->ep, UCP_EP_CLOSE_FLAG_FORCE);
    link->ep = NULL;
    for (go_on(link); link->stream.data || link->message.data; go_on(link)) {
        ucp_worker_progress(self.worker);
        CHECK(now() < deadline, "%s: a request does not end: stream %d, "
              "message %d", (go_on == progress_client) ? "client" : "server",
              link->stream.data != NULL, link->message.data != NULL);
    }
}

static void progress_link(link_t *link, void (*go_on)(link_t *link))
{
    if (link->ep == NULL) {
        return;
    }
    if (link->error != UCS_OK) {
        close_by_force(link, go_on);
    } else {
        go_on(link);
    }
}

/* A connection with a process that is gone must fail in time */
static void check_life(link_t *link, unsigned slot)
{
    static double since[MAX_PROCESSES];

    if ((link->ep == NULL) ||
        (link->life == atomic_load(&shared->life[slot]))) {
        since[slot] = 0;
    } else if (since[slot] == 0) {
        since[slot] = now();
    }
    CHECK((since[slot] == 0) || (now() < since[slot] + ERROR_SEC),
          "no error of slot %u in %d s", slot, ERROR_SEC);
}

static void be_process(unsigned slot)
{
    ucp_listener_h listener;
    unsigned i;

    self.hello = (hello_t){slot, atomic_load(&shared->life[slot])};
    self.seed  = place_of(&self.hello) >> 40;
    open_ucp(UCP_FEATURE_TAG | UCP_FEATURE_STREAM, &self.context, &self.worker);
    atomic_store(&shared->port[slot],
                 listen_anywhere(self.worker, AF_INET, on_request, &listener));

    while (!atomic_load(&shared->is_over)) {
        if (ucp_worker_progress(self.worker) == 0) {
            sched_yield();
        }
        for (i = 0; i < self.num_processes; ++i) {
            check_life(&self.clients[i], i);
            progress_link(&self.clients[i], progress_client);
            if ((i != slot) && (self.clients[i].ep == NULL)) {
                connect_to_new(i);
            }
        }
        for (i = 0; i < self.num_servers; ++i) {
            progress_link(&self.servers[i], progress_server);
        }
    }

    for (i = 0; i < self.num_processes; ++i) {
        if (self.clients[i].ep != NULL) {
            close_by_force(&self.clients[i], progress_client);
        }
    }
    ucp_listener_destroy(listener);
    for (i = 0; i < self.num_servers; ++i) {
        if (self.servers[i].ep != NULL) {
            close_by_force(&self.servers[i], progress_server);
        }
    }
    close_ucp(self.context, self.worker);
}


/* ---- the parent ---- */

static pid_t start(unsigned slot)
{
    pid_t pid;

    atomic_store(&shared->port[slot], 0);
    atomic_fetch_add(&shared->life[slot], 1);
    pid = start_child();
    if (pid == 0) {
        be_process(slot);
        exit(0);
    }
    return pid;
}

static void pause_us(unsigned us)
{
    struct timespec time = {0, us * 1000l};

    nanosleep(&time, NULL);
}

static void wait_a_moment(void)
{
    int status;

    CHECK(waitpid(-1, &status, WNOHANG) == 0,
          "a process ended with status 0x%x", status);
    pause_us(1000);
}

/* Until each process has got data of both kinds from each other one */
static void wait_for_data(void)
{
    unsigned long expected;
    unsigned i, j;

    for (i = 0; i < self.num_processes; ++i) {
        for (j = 0; j < self.num_processes; ++j) {
            expected = lives(atomic_load(&shared->life[i]),
                             atomic_load(&shared->life[j]));
            while ((i != j) &&
                   ((atomic_load(&shared->stream[i][j]) != expected) ||
                    (atomic_load(&shared->message[i][j]) != expected))) {
                wait_a_moment();
            }
        }
    }
}

int main(int argc, char **argv)
{
    unsigned kills, i, victim;
    pid_t pids[MAX_PROCESSES];

    CHECK(argc >= 3, "usage: ucp_kills PROCESSES KILLS [SEED]");
    self.num_processes = atoi(argv[1]);
    kills              = atoi(argv[2]);
    self.seed          = (argc > 3) ? atoi(argv[3]) : time(NULL);
    CHECK((self.num_processes >= 2) && (self.num_processes <= MAX_PROCESSES),
          "2 to %d processes", MAX_PROCESSES);
    printf("seed %u\n", self.seed);
    fflush(stdout);
    shared = new_shared(sizeof(*shared));

    for (i = 0; i < self.num_processes; ++i) {
        pids[i] = start(i);
    }
    for (i = 0; i < kills; ++i) {
        wait_for_data();
        pause_us(draw(20000));
        victim = draw(self.num_processes);
        kill_child(pids[victim]);
        pids[victim] = start(victim);
    }
    wait_for_data();
    /* Both connections of each other process */
    while (atomic_load(&shared->num_errors) <
           2ul * (self.num_processes - 1) * kills) {
        wait_a_moment();
    }
    atomic_store(&shared->is_over, 1);
    for (i = 0; i < self.num_processes; ++i) {
        expect_end(pids[i], 0);
    }

    printf("%u kills, %lu connections failed, %lu receives canceled, %lu cut\n",
           kills, atomic_load(&shared->num_errors),
           atomic_load(&shared->num_canceled), atomic_load(&shared->num_cut));
    CHECK(atomic_load(&shared->num_canceled) > 0, "nothing was canceled");
    return 0;
}
