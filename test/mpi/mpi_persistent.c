/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * Persistent point-to-point requests of each send mode. They are created once
 * and started many times with new data, all together or one by one in changing
 * order.
 */

#include "mpi_test.h"

#include <stdlib.h>
#include <string.h>

#define MAX_LENGTH (128 * 1024)

/* Requests to each peer: standard, synchronous, buffered, ready, standard */
#define KINDS 5

/* Kind 3 is sent in ready mode, after its receive has been posted */
#define READY 3

typedef struct {
    MPI_Request req;
    char       *buffer;
    int         peer;
    int         kind;
    int         length;
} message_t;

typedef int (*send_init_t)(const void *buffer, int count, MPI_Datatype type,
                           int to, int tag, MPI_Comm comm, MPI_Request *req);

static const send_init_t send_init[KINDS] = {
        MPI_Send_init, MPI_Ssend_init, MPI_Bsend_init, MPI_Rsend_init,
        MPI_Send_init};

static uint64_t message_key(int from, int to, int kind, int round)
{
    return (((uint64_t)from * 64 + to) * KINDS + kind) * 65536 + round;
}

/* A persistent request has the same length in each round */
static int message_length(int from, int to, int kind)
{
    uint64_t seed = message_key(from, to, kind, 0);

    /* The last kind always takes a rendezvous */
    return (kind == KINDS - 1) ? MAX_LENGTH - from - to :
                                 (int)mpi_test_length(&seed, MAX_LENGTH);
}

/* Element i in an order that changes from round to round */
static int shuffled(int i, int num, int round)
{
    return (round & 1) ? num - 1 - i : (i + round) % num;
}

static void create(message_t *out, message_t *in, int num)
{
    int i, peer, kind;

    for (i = 0; i < num; ++i) {
        peer      = i / KINDS;
        kind      = i % KINDS;
        in[i]     = (message_t){.peer   = peer,
                                .kind   = kind,
                                .length = message_length(peer, mpi_test_rank,
                                                         kind),
                                .buffer = malloc(MAX_LENGTH)};
        out[i]    = (message_t){.peer   = peer,
                                .kind   = kind,
                                .length = message_length(mpi_test_rank, peer,
                                                         kind),
                                .buffer = malloc(MAX_LENGTH)};
        MPI_Recv_init(in[i].buffer, in[i].length, MPI_BYTE, peer, kind,
                      MPI_COMM_WORLD, &in[i].req);
        send_init[kind](out[i].buffer, out[i].length, MPI_BYTE, peer, kind,
                        MPI_COMM_WORLD, &out[i].req);
    }
}

static void destroy(message_t *messages, int num)
{
    int i;

    for (i = 0; i < num; ++i) {
        MPI_Request_free(&messages[i].req);
        CHECK(messages[i].req == MPI_REQUEST_NULL, "request %d stays", i);
        free(messages[i].buffer);
    }
}

/* Start the requests of the kinds in an interval: one by one, or all at once */
static void start(message_t *messages, int num, int first, int last, int round)
{
    MPI_Request *req = malloc(num * sizeof(*req));
    int *started     = malloc(num * sizeof(*started));
    int i, m, n      = 0;

    for (i = 0; i < num; ++i) {
        m = shuffled(i, num, round);
        if ((messages[m].kind < first) || (messages[m].kind > last)) {
            continue;
        }
        if (round & 2) {
            MPI_Start(&messages[m].req);
        } else {
            req[n]       = messages[m].req;
            started[n++] = m;
        }
    }
    MPI_Startall(n, req);
    for (i = 0; i < n; ++i) {
        messages[started[i]].req = req[i];
    }
    free(started);
    free(req);
}

/* Wait for all in another way each round. Completed requests stay allocated. */
static void complete(message_t *messages, int num, int round)
{
    MPI_Request *req   = malloc(num * sizeof(*req));
    MPI_Status *status = malloc(num * sizeof(*status));
    int *list          = malloc(num * sizeof(*list));
    int i, n, flag, left;

    for (i = 0; i < num; ++i) {
        req[i] = messages[i].req;
    }
    for (left = num; left > 0; left -= n) {
        n = num;
        switch (round % 4) {
        case 0:
            MPI_Waitall(num, req, status);
            break;
        case 1:
            MPI_Waitsome(num, req, &n, list, status);
            break;
        case 2:
            n = 1;
            MPI_Waitany(num, req, list, status);
            CHECK(list[0] != MPI_UNDEFINED, "%d of %d are left", left, num);
            break;
        default:
            MPI_Testall(num, req, &flag, status);
            n = flag ? num : 0;
        }
        CHECK(n != MPI_UNDEFINED, "%d of %d are left", left, num);
    }
    for (i = 0; i < num; ++i) {
        CHECK(req[i] == messages[i].req, "request %d is not the same", i);
        MPI_Test(&req[i], &flag, MPI_STATUS_IGNORE);
        CHECK(flag, "inactive request %d is not complete", i);
    }
    free(list);
    free(status);
    free(req);
}

static uint64_t exchange(message_t *out, message_t *in, int num, int round)
{
    uint64_t bytes = 0;
    int i;

    for (i = 0; i < num; ++i) {
        mpi_test_fill(out[i].buffer, out[i].length,
                      message_key(mpi_test_rank, out[i].peer, out[i].kind,
                                  round));
        memset(in[i].buffer, 0xdb, in[i].length);
        bytes += (out[i].peer == mpi_test_rank) ? 0 : out[i].length;
    }

    /* Half of the messages may arrive before their receive is posted */
    start(in, num, READY, KINDS - 1, round);
    MPI_Barrier(MPI_COMM_WORLD);
    start(out, num, 0, KINDS - 1, round + 1);
    start(in, num, 0, READY - 1, round);
    complete(in, num, round);
    complete(out, num, round + 1);

    for (i = 0; i < num; ++i) {
        mpi_test_verify(in[i].buffer, in[i].length,
                        message_key(in[i].peer, mpi_test_rank, in[i].kind,
                                    round),
                        "persistent message");
    }
    return bytes;
}

/* With MPI_PROC_NULL: complete as soon as they are started */
static void no_process(void)
{
    MPI_Request req[2];
    MPI_Status status[2];
    int data = 7, i, count;

    MPI_Send_init(&data, 1, MPI_INT, MPI_PROC_NULL, 1, MPI_COMM_WORLD, &req[0]);
    MPI_Recv_init(&data, 1, MPI_INT, MPI_PROC_NULL, 1, MPI_COMM_WORLD, &req[1]);
    for (i = 0; i < 2; ++i) {
        MPI_Startall(2, req);
        MPI_Waitall(2, req, status);
        MPI_Get_count(&status[1], MPI_INT, &count);
        CHECK((status[1].MPI_SOURCE == MPI_PROC_NULL) && (count == 0),
              "%d from %d", count, status[1].MPI_SOURCE);
        CHECK(data == 7, "got %d from no process", data);
    }
    MPI_Request_free(&req[0]);
    MPI_Request_free(&req[1]);
}

/* A cancelled receive may be started again, and then receives */
static void cancelled(void)
{
    int right = (mpi_test_rank + 1) % mpi_test_size;
    int left  = (mpi_test_rank + mpi_test_size - 1) % mpi_test_size;
    int data  = -1, flag;
    MPI_Status status;
    MPI_Request req;

    MPI_Recv_init(&data, 1, MPI_INT, left, KINDS, MPI_COMM_WORLD, &req);
    MPI_Start(&req);
    MPI_Cancel(&req);
    MPI_Wait(&req, &status);
    MPI_Test_cancelled(&status, &flag);
    CHECK(flag && (data == -1), "cancelled %d, data %d", flag, data);

    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Start(&req);
    MPI_Send(&mpi_test_rank, 1, MPI_INT, right, KINDS, MPI_COMM_WORLD);
    MPI_Wait(&req, &status);
    MPI_Test_cancelled(&status, &flag);
    CHECK(!flag && (data == left), "cancelled %d, data %d", flag, data);
    MPI_Request_free(&req);
}

int main(int argc, char **argv)
{
    int rounds     = mpi_test_init(argc, argv, MPI_THREAD_SINGLE, 40);
    int num        = mpi_test_size * KINDS;
    message_t *out = calloc(num, sizeof(*out));
    message_t *in  = calloc(num, sizeof(*in));
    int attached   = 2 * mpi_test_size * (MAX_LENGTH + MPI_BSEND_OVERHEAD);
    void *buffer   = malloc(attached);
    uint64_t bytes = 0;
    int round;

    MPI_Buffer_attach(buffer, attached);
    create(out, in, num);
    for (round = 0; round < rounds; ++round) {
        bytes += exchange(out, in, num, round);
    }
    destroy(out, num);
    destroy(in, num);
    no_process();
    cancelled();

    MPI_Buffer_detach(&buffer, &attached);
    free(buffer);
    free(in);
    free(out);
    return mpi_test_done(bytes);
}
