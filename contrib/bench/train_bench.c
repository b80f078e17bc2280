/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * A loop like the training of a model by data parallel ranks:
 *
 *   train_bench STEPS COMPUTE
 *
 * In a step, buckets of 4 MiB of gradients become ready one after the other, 64
 * MiB in all. For each, a rank takes the number of its input from a counter
 * (MPI_Fetch_and_op), and a parameter from its neighbour (MPI_Get of 8 B), and
 * computes for COMPUTE microseconds. An accelerator would do that, so the CPU
 * has nothing to do but progress. When rank 0 has heard from all that theirs is
 * ready, and has answered, the bucket is summed over the ranks (MPI_Iallreduce)
 * while the next one is computed. So what a small message waits for a large one
 * delays the accelerators.
 *
 * Prints medians over the steps of rank 0: milliseconds of a step, microseconds
 * of a negotiation and of the one-sided part, and the megabytes per second that
 * a rank sends in a ring. The contents are checked.
 */

#include "bench.h"

#include <mpi.h>

#include <stdint.h>
#include <unistd.h>

#define BUCKET_BYTES (4ul << 20)
#define NUM_BUCKETS  16
#define BUCKET_COUNT (BUCKET_BYTES / sizeof(float))
#define MAX_STEPS    1000

/* Between two calls of progress while an accelerator computes */
#define PROGRESS_US  50

enum {
    COUNTER,
    PARAMETER,
    NUM_SHARED
};

typedef struct {
    double step;
    double control;
    double rma;
} times_t;

static int     rank, num_ranks;
static int64_t *shared; /* In the window, of each rank */
static MPI_Win window;
static float   *gradients, *sums;
static int     compute_us; /* For a bucket */

static void fail(const char *what)
{
    fprintf(stderr, "train_bench: error: %s\n", what);
    MPI_Abort(MPI_COMM_WORLD, 1);
    exit(EXIT_FAILURE);
}

/* All ranks have this bucket. */
static void negotiate(int bucket)
{
    int i, value;

    if (rank != 0) {
        MPI_Send(&bucket, 1, MPI_INT, 0, 1, MPI_COMM_WORLD);
        MPI_Recv(&value, 1, MPI_INT, 0, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        return;
    }

    for (i = 1; i < num_ranks; ++i) {
        MPI_Recv(&value, 1, MPI_INT, i, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        if (value != bucket) {
            fail("a message of another bucket");
        }
    }
    for (i = 1; i < num_ranks; ++i) {
        MPI_Send(&bucket, 1, MPI_INT, i, 2, MPI_COMM_WORLD);
    }
}

static void one_sided(void)
{
    const int64_t one = 1;
    int neighbour     = (rank + 1) % num_ranks;
    int64_t number, parameter;

    MPI_Fetch_and_op(&one, &number, MPI_INT64_T, 0, COUNTER, MPI_SUM, window);
    MPI_Win_flush(0, window);
    MPI_Get(&parameter, 1, MPI_INT64_T, neighbour, PARAMETER, 1, MPI_INT64_T,
            window);
    MPI_Win_flush(neighbour, window);
    if (parameter != 1000 + neighbour) {
        fail("wrong parameter");
    }
}

static void compute(int count, MPI_Request *requests)
{
    double start = now_us();
    int is_done;

    while (now_us() - start < compute_us) {
        MPI_Testall(count, requests, &is_done, MPI_STATUSES_IGNORE);
        usleep(PROGRESS_US);
    }
}

static void check_sums(int step)
{
    float sum = num_ranks * step + num_ranks * (num_ranks - 1) / 2.0f;
    size_t i;

    for (i = 0; i < NUM_BUCKETS * BUCKET_COUNT; i += 1021) {
        if (sums[i] != sum) {
            fail("wrong sum");
        }
    }
}

static times_t run_step(int step)
{
    MPI_Request requests[NUM_BUCKETS];
    times_t times = {0};
    double start, from;
    size_t i;

    for (i = 0; i < NUM_BUCKETS * BUCKET_COUNT; ++i) {
        gradients[i] = step + rank;
    }
    MPI_Barrier(MPI_COMM_WORLD);
    start = now_us();
    for (i = 0; i < NUM_BUCKETS; ++i) {
        from           = now_us();
        one_sided();
        times.rma     += (now_us() - from) / NUM_BUCKETS;
        compute(i, requests);
        from           = now_us();
        negotiate(i);
        times.control += (now_us() - from) / NUM_BUCKETS;
        MPI_Iallreduce(gradients + (i * BUCKET_COUNT),
                       sums + (i * BUCKET_COUNT), BUCKET_COUNT, MPI_FLOAT,
                       MPI_SUM, MPI_COMM_WORLD, &requests[i]);
    }
    MPI_Waitall(NUM_BUCKETS, requests, MPI_STATUSES_IGNORE);
    MPI_Barrier(MPI_COMM_WORLD);
    times.step = now_us() - start;
    check_sums(step);
    return times;
}

static void run_steps(int num_steps)
{
    static double steps[MAX_STEPS], control[MAX_STEPS], rma[MAX_STEPS];
    double bytes = 2.0 * (num_ranks - 1) / num_ranks * NUM_BUCKETS *
                   BUCKET_BYTES;
    times_t times;
    double step;
    int i;

    run_step(0); /* Keys and connections */
    for (i = 0; i < num_steps; ++i) {
        times      = run_step(i + 1);
        steps[i]   = times.step;
        control[i] = times.control;
        rma[i]     = times.rma;
    }
    if ((rank == 0) &&
        (shared[COUNTER] != (num_steps + 1ll) * NUM_BUCKETS * num_ranks)) {
        fail("wrong count");
    }

    step = median(steps, num_steps);
    if (rank == 0) {
        printf("step_ms %.2f control_us %.1f rma_us %.1f mb_per_s %.1f\n",
               step * 1e-3, median(control, num_steps), median(rma, num_steps),
               bytes / step);
    }
}

int main(int argc, char **argv)
{
    int num_steps = (argc == 3) ? atoi(argv[1]) : 0;

    compute_us = (argc == 3) ? atoi(argv[2]) : -1;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &num_ranks);
    if ((num_steps < 1) || (num_steps > MAX_STEPS) || (compute_us < 0) ||
        (num_ranks < 2)) {
        fail("needs two ranks or more, 1 to 1000 steps, and a time in us");
    }

    gradients = map_memory(NUM_BUCKETS * BUCKET_BYTES);
    sums      = map_memory(NUM_BUCKETS * BUCKET_BYTES);
    MPI_Win_allocate(NUM_SHARED * sizeof(*shared), sizeof(*shared),
                     MPI_INFO_NULL, MPI_COMM_WORLD, &shared, &window);
    shared[COUNTER]   = 0;
    shared[PARAMETER] = 1000 + rank;
    MPI_Win_lock_all(0, window);
    MPI_Win_sync(window);
    MPI_Barrier(MPI_COMM_WORLD);
    run_steps(num_steps);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_unlock_all(window);
    MPI_Win_free(&window);
    MPI_Finalize();
    return EXIT_SUCCESS;
}
