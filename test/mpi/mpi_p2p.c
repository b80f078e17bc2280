/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * Point to point: messages of random length between all pairs of ranks, each
 * rank and itself included. Several are outstanding, and they are received in
 * another order than sent, with wildcards, probes and synchronous sends.
 */

#include "mpi_test.h"

#include <stdlib.h>

#define WINDOW     6
#define MAX_LENGTH (1024 * 1024)

/* Above the tags of flood(), which other ranks may have begun to send */
#define RING_TAG   5000

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

/* A ring in which the receiver learns source and length from a probe */
static uint64_t probed_ring(int round)
{
    int right     = (mpi_test_rank + 1) % mpi_test_size;
    int left      = (mpi_test_rank + mpi_test_size - 1) % mpi_test_size;
    size_t length = message_length(mpi_test_rank, right, round, WINDOW);
    char *out     = malloc(length + 1);
    MPI_Request req;
    MPI_Status status;
    char *in;
    int count;

    mpi_test_fill(out, length, message_key(mpi_test_rank, right, round, 0));
    MPI_Isend(out, length, MPI_BYTE, right, RING_TAG, MPI_COMM_WORLD, &req);
    MPI_Probe(MPI_ANY_SOURCE, RING_TAG, MPI_COMM_WORLD, &status);
    MPI_Get_count(&status, MPI_BYTE, &count);
    CHECK(status.MPI_SOURCE == left, "message from %d", status.MPI_SOURCE);
    CHECK((size_t)count == message_length(left, mpi_test_rank, round, WINDOW),
          "probed length %d", count);
    in = malloc(count + 1);
    MPI_Recv(in, count, MPI_BYTE, left, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
    CHECK(status.MPI_TAG == RING_TAG, "message with tag %d", status.MPI_TAG);
    mpi_test_verify(in, count, message_key(left, mpi_test_rank, round, 0),
                    "probed message");
    MPI_Wait(&req, MPI_STATUS_IGNORE);
    free(in);
    free(out);
    return mpi_test_size > 1 ? length : 0;
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
        bytes += probed_ring(round);
        if (round < 2) {
            bytes += flood(round);
        }
    }
    return mpi_test_done(bytes);
}
