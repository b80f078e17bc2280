/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * ucp_kills PROCESSES KILLS [SEED]
 *
 * Each process is connected to each other one by socket address, and sends it
 * messages. The parent kills one process after another, each time when data
 * have arrived on all connections, and starts a new one in its place. SEED
 * chooses the victims and the moments.
 *
 * The others get an error for each connection with a process that was killed,
 * close it by force, and connect to the new process. All data that arrive are
 * checked. Receives are canceled at random: none of the messages may be lost.
 * Buffers of receives that ended without data stay as they are.
 */

#define _GNU_SOURCE
#include "ucp_socket.h"

#include <sched.h>
#include <stdatomic.h>

enum {
    MAX_PROCESSES = 16,
    MAX_ACCEPTED  = 1024,       /* By one process */
    MAX_SIZE      = 300000,
    NUM_ENDED     = 16          /* Buffers that must not change any more */
};

/* Memory of all processes. A slot is the place of a process, which has one life
 * after the other. */
static struct {
    atomic_uint  life[MAX_PROCESSES];
    atomic_uint  port[MAX_PROCESSES];   /* 0: not yet */
    /* Of the sender's and the receiver's slot: the lives between which data
     * have last arrived */
    atomic_ulong arrived[MAX_PROCESSES][MAX_PROCESSES];
    atomic_ulong num_errors;            /* Connections that failed */
    atomic_ulong num_canceled;          /* Receives */
    atomic_ulong num_cut;               /* Receives that failed */
    atomic_int   is_over;
} *shared;

/* A send or a receive, and its buffer */
typedef struct {
    ucs_status_ptr_t request;
    char             *data;             /* NULL: none is under way */
    uint32_t         life;              /* Of the other process */
    uint32_t         number;            /* Of the message */
} transfer_t;

typedef struct {
    ucp_ep_h     ep;                    /* NULL: none */
    ucs_status_t error;
} link_t;

static struct {
    unsigned      num_processes;
    unsigned      slot;                 /* This process */
    unsigned      life;
    unsigned      seed;
    ucp_context_h context;
    ucp_worker_h  worker;
    link_t        clients[MAX_PROCESSES];
    transfer_t    sends[MAX_PROCESSES];
    transfer_t    receives[MAX_PROCESSES];
    link_t        accepted[MAX_ACCEPTED];
    unsigned      num_accepted;
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

static ucp_tag_t tag_of(unsigned slot, uint32_t life, uint32_t number)
{
    return ((uint64_t)slot << 56) | ((uint64_t)life << 40) | number;
}

/* A function of the tag, from 1 to MAX_SIZE */
static size_t size_of(ucp_tag_t tag)
{
    return 1 + (tag * 0x9e3779b97f4a7c15ull >> 32) % MAX_SIZE;
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

static void progress_send(unsigned slot)
{
    transfer_t *send = &self.sends[slot];
    link_t *link     = &self.clients[slot];
    ucp_tag_t tag;

    if ((send->data != NULL) && is_done(send->request)) {
        /* After a failure, the error handler is called as well */
        wait_for(self.worker, send->request);
        end(send);
    }
    if ((send->data == NULL) && (link->ep != NULL) && (link->error == UCS_OK)) {
        tag           = tag_of(self.slot, self.life, send->number++);
        send->data    = new_memory(2 * MAX_SIZE);
        fill(send->data, size_of(tag), tag * MAX_SIZE);
        send->request = ucp_tag_send_nbx(link->ep, send->data, size_of(tag),
                                         tag, &none);
    }
}

static void check_message(unsigned slot, ucp_tag_t tag)
{
    transfer_t *receive = &self.receives[slot];
    ucs_status_t status = wait_for(self.worker, receive->request);

    if (status == UCS_OK) {
        expect(receive->data, size_of(tag), tag * MAX_SIZE);
        atomic_store(&shared->arrived[slot][self.slot],
                     lives(receive->life, self.life));
        ++receive->number;
        end(receive);
        return;
    }

    /* After a cancel, the message is received again */
    atomic_fetch_add((status == UCS_ERR_CANCELED) ? &shared->num_canceled :
                                                    &shared->num_cut, 1);
    end_early(receive);
}

static void progress_receive(unsigned slot)
{
    transfer_t *receive = &self.receives[slot];
    uint32_t life       = atomic_load(&shared->life[slot]);
    int is_over         = atomic_load(&shared->is_over);
    ucp_tag_t tag       = tag_of(slot, receive->life, receive->number);

    if (receive->data != NULL) {
        /* When a connection fails, UCP ends receives whose message has begun,
         * and no others */
        if (!is_done(receive->request) &&
            (is_over || (receive->life != life) || (draw(64) == 0))) {
            ucp_request_cancel(self.worker, receive->request);
        }
        if (is_done(receive->request)) {
            check_message(slot, tag);
        }
    }
    if ((receive->data == NULL) && !is_over) {
        if (receive->life != life) {
            receive->life   = life;
            receive->number = 0;
        }
        tag              = tag_of(slot, life, receive->number);
        receive->data    = new_memory(2 * MAX_SIZE);
        receive->request = ucp_tag_recv_nbx(self.worker, receive->data,
                                            size_of(tag), tag, -1, &none);
    }
}

/* ---- connections ---- */

static void on_request(ucp_conn_request_h request, void *arg)
{
    link_t *link;

    CHECK(self.num_accepted < MAX_ACCEPTED, "too many connections");
    link     = &self.accepted[self.num_accepted++];
    link->ep = accept_request(self.worker, request, &link->error);
}

static void connect_to_new(unsigned slot)
{
    transfer_t *send = &self.sends[slot];
    uint32_t port    = atomic_load(&shared->port[slot]);
    uint32_t life    = atomic_load(&shared->life[slot]);

    /* The port is that of a life, or of a later one */
    if ((port != 0) && (send->life != life) && (send->data == NULL)) {
        send->life            = life;
        send->number          = 0;
        self.clients[slot].ep = connect_to(self.worker, AF_INET, port,
                                           &self.clients[slot].error);
    }
}

static void close_failed(link_t *link)
{
    int is_over = atomic_load(&shared->is_over);

    if ((link->ep == NULL) || (!is_over && (link->error == UCS_OK))) {
        return;
    }
    if (!is_over) {
        atomic_fetch_add(&shared->num_errors, 1);
    }
    close_ep(self.worker, link->ep, UCP_EP_CLOSE_FLAG_FORCE);
    link->ep = NULL;
}

/* @return Nonzero if something is still under way. */
static int progress(void)
{
    int is_busy = 0;
    unsigned i;

    if (ucp_worker_progress(self.worker) == 0) {
        sched_yield();
    }
    for (i = 0; i < self.num_processes; ++i) {
        if (i != self.slot) {
            close_failed(&self.clients[i]);
            progress_send(i);
            progress_receive(i);
            is_busy |= (self.sends[i].data != NULL) ||
                       (self.receives[i].data != NULL);
        }
    }
    for (i = 0; i < self.num_accepted; ++i) {
        close_failed(&self.accepted[i]);
    }
    return is_busy;
}

static void be_process(unsigned slot)
{
    ucp_listener_h listener;
    unsigned i;

    self.slot = slot;
    self.life = atomic_load(&shared->life[slot]);
    self.seed = tag_of(slot, self.life, 0) >> 40;
    open_ucp(UCP_FEATURE_TAG, &self.context, &self.worker);
    atomic_store(&shared->port[slot],
                 listen_anywhere(self.worker, AF_INET, on_request, &listener));
    while (!atomic_load(&shared->is_over)) {
        progress();
        for (i = 0; i < self.num_processes; ++i) {
            if ((i != slot) && (self.clients[i].ep == NULL)) {
                connect_to_new(i);
            }
        }
    }

    /* All requests of connections that are closed by force come to an end */
    while (progress()) {
    }
    ucp_listener_destroy(listener);
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

/* Until each process has got data from each other one */
static void wait_for_data(void)
{
    unsigned long expected;
    unsigned i, j;

    for (i = 0; i < self.num_processes; ++i) {
        for (j = 0; j < self.num_processes; ++j) {
            expected = lives(atomic_load(&shared->life[i]),
                             atomic_load(&shared->life[j]));
            while ((i != j) &&
                   (atomic_load(&shared->arrived[i][j]) != expected)) {
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
        kill(pids[victim], SIGKILL);
        expect_end(pids[victim], 1);
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
