/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * Point to point: messages of random length between all pairs of ranks, each
 * rank and itself included. Several are outstanding, and they are received in
 * another order than sent, some of them synchronous.
 */

#include "mpi_test.h"

#include <stdlib.h>

#define WINDOW     6
#define MAX_LENGTH (1024 * 1024)

static uint64_t message_key(int from, int to, int round, int index)
{
    return ((((uint64_t)from * 1024 + to) * 65536) + round) * 64 + index;
}

/* Both ranks of a pair draw the same lengths */
static size_t message_length(int from, int to, int round, int index)
{
    uint64_t seed = message_key(from, to, round, index);

    return mpi_test_length(&seed, MAX_LENGTH);
}

/* All ranks send to all ranks at once. Receives are posted last message first,
 * and half of them only after the sends, so that unexpected messages occur. */
static uint64_t all_pairs(int round)
{
    int num          = mpi_test_size * WINDOW;
    MPI_Request *req = calloc(2 * num, sizeof(*req));
    char **in        = calloc(num, sizeof(*in));
    char **out       = calloc(num, sizeof(*out));
    uint64_t bytes   = 0;
    int late, i, peer, index;
    size_t length;

    for (late = 0; late <= 1; ++late) {
        for (i = num - 1; i >= 0; --i) {
            peer  = i / WINDOW;
            index = i % WINDOW;
            if ((index & 1) != late) {
                continue;
            }
            length = message_length(peer, mpi_test_rank, round, index);
            in[i]  = malloc(length + 1);
            MPI_Irecv(in[i], length, MPI_BYTE, peer, index, MPI_COMM_WORLD,
                      &req[i]);
        }
        for (i = 0; (late == 0) && (i < num); ++i) {
            peer   = (mpi_test_rank + i / WINDOW) % mpi_test_size;
            index  = i % WINDOW;
            length = message_length(mpi_test_rank, peer, round, index);
            out[i] = malloc(length + 1);
            mpi_test_fill(out[i], length,
                          message_key(mpi_test_rank, peer, round, index));
            (index == 2 ? MPI_Issend : MPI_Isend)(out[i], length, MPI_BYTE,
                                                  peer, index, MPI_COMM_WORLD,
                                                  &req[num + i]);
            bytes += (peer == mpi_test_rank) ? 0 : length;
        }
    }

    MPI_Waitall(2 * num, req, MPI_STATUSES_IGNORE);
    for (i = 0; i < num; ++i) {
        peer  = i / WINDOW;
        index = i % WINDOW;
        mpi_test_verify(in[i],
                        message_length(peer, mpi_test_rank, round, index),
                        message_key(peer, mpi_test_rank, round, index),
                        "message");
        free(in[i]);
        free(out[i]);
    }

    free(out);
    free(in);
    free(req);
    return bytes;
}

/* No rank receives from rank 0's flooders until all have sent everything. Eager
 * messages must neither get lost nor block the messages of the barrier. */
static uint64_t flood(int round)
{
    enum { MESSAGES = 2000 };
    int length = 1 + (round * 97) % 1500;
    char buffer[1500];
    MPI_Request req[MESSAGES];
    MPI_Request barrier;
    int i, peer;

    if (mpi_test_rank != 0) {
        mpi_test_fill(buffer, length, mpi_test_rank + round);
        for (i = 0; i < MESSAGES; ++i) {
            MPI_Isend(buffer, length, MPI_BYTE, 0, i, MPI_COMM_WORLD, &req[i]);
        }
    }
    MPI_Ibarrier(MPI_COMM_WORLD, &barrier);
    MPI_Wait(&barrier, MPI_STATUS_IGNORE);
    if (mpi_test_rank != 0) {
        MPI_Waitall(MESSAGES, req, MPI_STATUSES_IGNORE);
        return (uint64_t)MESSAGES * length;
    }

    for (peer = 1; peer < mpi_test_size; ++peer) {
        for (i = MESSAGES - 1; i >= 0; --i) {
            MPI_Recv(buffer, sizeof(buffer), MPI_BYTE, peer, i, MPI_COMM_WORLD,
                     MPI_STATUS_IGNORE);
            mpi_test_verify(buffer, length, peer + round, "flooded message");
        }
    }
    return 0;
}

int main(int argc, char **argv)
{
    int rounds     = mpi_test_init(argc, argv, MPI_THREAD_SINGLE, 8);
    uint64_t bytes = 0;
    int round;

    for (round = 0; round < rounds; ++round) {
        bytes += all_pairs(round);
        if (round < 2) {
            bytes += flood(round);
        }
    }
    return mpi_test_done(bytes);
}
