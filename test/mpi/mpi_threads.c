/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * MPI_THREAD_MULTIPLE: several threads of each rank communicate with threads of
 * other ranks at the same time: point to point with checked data, and
 * collectives on a communicator of their own.
 */

#include "mpi_test.h"

#include <pthread.h>
#include <stdlib.h>

#define THREADS    4
#define MAX_LENGTH (128 * 1024)

typedef struct {
    pthread_t thread;
    MPI_Comm  comm;
    int       index;
    int       rounds;
    uint64_t  bytes;
} worker_t;

static uint64_t message_key(const worker_t *w, int from, int round)
{
    return ((uint64_t)from * THREADS + w->index) * 4096 + round;
}

static void exchange(worker_t *w, int round)
{
    int distance    = 1 + round % mpi_test_size;
    int to          = (mpi_test_rank + distance) % mpi_test_size;
    int from        = (mpi_test_rank + mpi_test_size * 2 - distance) %
                      mpi_test_size;
    uint64_t seed   = message_key(w, mpi_test_rank, round);
    size_t out_size = mpi_test_length(&seed, MAX_LENGTH);
    char *out       = malloc(out_size + 1);
    char *in        = malloc(MAX_LENGTH);
    MPI_Request req[2];
    MPI_Status status[2];
    int count;

    /* All threads share the communicator; the tag identifies the thread */
    mpi_test_fill(out, out_size, message_key(w, mpi_test_rank, round));
    MPI_Irecv(in, MAX_LENGTH, MPI_BYTE, from, w->index, MPI_COMM_WORLD,
              &req[0]);
    MPI_Isend(out, out_size, MPI_BYTE, to, w->index, MPI_COMM_WORLD, &req[1]);
    MPI_Waitall(2, req, status);
    MPI_Get_count(&status[0], MPI_BYTE, &count);

    seed = message_key(w, from, round);
    CHECK((size_t)count == mpi_test_length(&seed, MAX_LENGTH),
          "thread %d got %d bytes", w->index, count);
    mpi_test_verify(in, count, message_key(w, from, round), "message");
    w->bytes += (to == mpi_test_rank) ? 0 : out_size;
    free(in);
    free(out);
}

static void *worker_main(void *arg)
{
    worker_t *w = arg;
    int round, sum, value;

    for (round = 0; round < w->rounds; ++round) {
        exchange(w, round);
        value = mpi_test_rank * (w->index + 1) + round;
        MPI_Allreduce(&value, &sum, 1, MPI_INT, MPI_SUM, w->comm);
        CHECK(sum == mpi_test_size * (mpi_test_size - 1) / 2 * (w->index + 1) +
                             mpi_test_size * round,
              "thread %d: sum is %d", w->index, sum);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    int rounds = mpi_test_init(argc, argv, MPI_THREAD_MULTIPLE, 60);
    worker_t workers[THREADS];
    uint64_t bytes = 0;
    int i, ret;

    for (i = 0; i < THREADS; ++i) {
        workers[i].index  = i;
        workers[i].rounds = rounds;
        workers[i].bytes  = 0;
        MPI_Comm_dup(MPI_COMM_WORLD, &workers[i].comm);
    }
    for (i = 0; i < THREADS; ++i) {
        ret = pthread_create(&workers[i].thread, NULL, worker_main,
                             &workers[i]);
        CHECK(ret == 0, "pthread_create: %d", ret);
    }
    for (i = 0; i < THREADS; ++i) {
        pthread_join(workers[i].thread, NULL);
        MPI_Comm_free(&workers[i].comm);
        bytes += workers[i].bytes;
    }
    return mpi_test_done(bytes);
}
