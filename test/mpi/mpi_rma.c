/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * One-sided communication: Put, Get, Accumulate, Get_accumulate, Fetch_and_op
 * and Compare_and_swap under fences and lock_all with flush, and a target that
 * computes without calling MPI while it is accessed. Each round makes windows
 * and frees them, which must leave no file descriptor and no locked memory.
 *
 * mpi_rma [ROUNDS [ATOMICS]]: ATOMICS is how often each rank increments the
 * counters in a round, for machines where that takes long.
 */

#include "mpi_test.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MAX_LENGTH (256 * 1024)

/* Fences: every rank puts a block into every window and gets it back */
static uint64_t put_get_fence(int round)
{
    uint64_t seed = 1000 + round;
    size_t length = mpi_test_length(&seed, MAX_LENGTH);
    char *base, *out, *in;
    MPI_Win win;
    int r, target;

    /* A whole number of words, because MPICH 4.0.2 confuses the parts of ranks
     * in shared windows of other sizes */
    MPI_Win_allocate((mpi_test_size * length + 64) & ~63ul, 1, MPI_INFO_NULL,
                     MPI_COMM_WORLD, &base, &win);
    out = malloc(length + 1);
    in  = malloc(length + 1);
    mpi_test_fill(out, length, mpi_test_rank + round);

    MPI_Win_fence(0, win);
    for (r = 0; r < mpi_test_size; ++r) {
        target = (mpi_test_rank + r) % mpi_test_size;
        MPI_Put(out, length, MPI_BYTE, target, mpi_test_rank * length, length,
                MPI_BYTE, win);
    }
    MPI_Win_fence(0, win);
    for (r = 0; r < mpi_test_size; ++r) {
        mpi_test_verify(base + r * length, length, r + round, "put block");
    }
    MPI_Win_fence(0, win);
    for (r = 0; r < mpi_test_size; ++r) {
        target = (mpi_test_rank + r) % mpi_test_size;
        memset(in, 0xee, length);
        MPI_Get(in, length, MPI_BYTE, target, r * length, length, MPI_BYTE,
                win);
        MPI_Win_fence(0, win);
        mpi_test_verify(in, length, r + round, "got block");
    }

    MPI_Win_free(&win);
    free(in);
    free(out);
    return 2 * (uint64_t)(mpi_test_size - 1) * length;
}

/* Counters on rank 0 that all ranks increment at the same time. Fetching
 * operations return each value exactly once, and the sums are exact. */
static uint64_t atomics(int round, int ops)
{
    enum { FETCH, ADD, CAS, SUM, NUM };
    int64_t *base, one = 1, old, expected, desired;
    char *seen = calloc(mpi_test_size, ops);
    MPI_Win win;
    int i;

    MPI_Win_allocate(NUM * sizeof(*base), sizeof(*base), MPI_INFO_NULL,
                     MPI_COMM_WORLD, &base, &win);
    memset(base, 0, NUM * sizeof(*base));
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_lock_all(0, win);
    for (i = 0; i < ops; ++i) {
        MPI_Fetch_and_op(&one, &old, MPI_INT64_T, 0, FETCH, MPI_SUM, win);
        MPI_Win_flush(0, win);
        CHECK((old >= 0) && (old < (int64_t)mpi_test_size * ops),
              "fetched %ld", (long)old);
        CHECK(seen[old]++ == 0, "fetched %ld twice", (long)old);

        MPI_Accumulate(&one, 1, MPI_INT64_T, 0, ADD, 1, MPI_INT64_T, MPI_SUM,
                       win);
        MPI_Get_accumulate(&one, 1, MPI_INT64_T, &old, 1, MPI_INT64_T, 0, SUM,
                           1, MPI_INT64_T, MPI_SUM, win);

        /* Repeat the compare and swap until no other rank changed the value in
         * between */
        for (expected = 0;; expected = old) {
            desired = expected + 1;
            MPI_Compare_and_swap(&desired, &expected, &old, MPI_INT64_T, 0,
                                 CAS, win);
            MPI_Win_flush(0, win);
            if (old == expected) {
                break;
            }
        }
    }
    MPI_Win_unlock_all(win);
    MPI_Allreduce(MPI_IN_PLACE, seen, mpi_test_size * ops, MPI_CHAR, MPI_SUM,
                  MPI_COMM_WORLD);
    MPI_Barrier(MPI_COMM_WORLD);

    MPI_Win_lock(MPI_LOCK_SHARED, mpi_test_rank, 0, win);
    for (i = 0; (mpi_test_rank == 0) && (i < NUM); ++i) {
        CHECK(base[i] == (int64_t)mpi_test_size * ops,
              "round %d: counter %d is %ld", round, i, (long)base[i]);
    }
    MPI_Win_unlock(mpi_test_rank, win);
    for (i = 0; i < mpi_test_size * ops; ++i) {
        CHECK(seen[i] == 1, "value %d was fetched %d times", i, seen[i]);
    }

    MPI_Win_free(&win);
    free(seen);
    return mpi_test_rank == 0 ? 0 : ops * 4 * sizeof(int64_t);
}

static int64_t word(int from, int step, int index)
{
    return ((int64_t)(from + 1) << 48) + ((int64_t)step << 24) + index;
}

static void set_words(int64_t *out, int words, int step)
{
    int i;

    for (i = 0; i < words; ++i) {
        out[i] = word(mpi_test_rank, step, i);
    }
}

static void expect_words(const int64_t *got, int words, int from, int step)
{
    int i;

    for (i = 0; i < words; ++i) {
        CHECK(got[i] == word(from, step, i), "step %d: word %d is %lx, not %lx",
              step, i, (long)got[i], (long)word(from, step, i));
    }
}

/*
 * Each rank replaces its own array in the right rank's window again and again,
 * with two operations outstanding. What Get_accumulate returns must be the
 * array of the step before. Open MPI makes it of a get and a put behind it, and
 * a get that was repeated after that put would return the new array.
 */
static uint64_t replace_chain(int round)
{
    enum { STEPS = 60, MAX_LINES = 750 };
    int words     = 8 * (1 + (round * 653 + 180) % MAX_LINES);
    int right     = (mpi_test_rank + 1) % mpi_test_size;
    int left      = (mpi_test_rank + mpi_test_size - 1) % mpi_test_size;
    size_t length = words * sizeof(int64_t);
    int64_t *out  = malloc(2 * length), *out2 = out + words;
    int64_t *old  = malloc(2 * length), *old2 = old + words;
    int64_t *base;
    MPI_Request req;
    MPI_Win win;
    int step;

    MPI_Win_allocate(length, sizeof(*base), MPI_INFO_NULL, MPI_COMM_WORLD,
                     &base, &win);
    MPI_Win_lock(MPI_LOCK_SHARED, right, 0, win);
    set_words(out, words, 0);
    MPI_Put(out, words, MPI_INT64_T, right, 0, words, MPI_INT64_T, win);
    MPI_Win_flush(right, win);
    for (step = 0; step < STEPS; step += 2) {
        set_words(out, words, step + 1);
        set_words(out2, words, step + 2);
        memset(old, 0xdb, 2 * length);
        MPI_Get_accumulate(out, words, MPI_INT64_T, old, words, MPI_INT64_T,
                           right, 0, words, MPI_INT64_T, MPI_REPLACE, win);
        MPI_Rget_accumulate(out2, words, MPI_INT64_T, old2, words, MPI_INT64_T,
                            right, 0, words, MPI_INT64_T, MPI_REPLACE, win,
                            &req);
        MPI_Wait(&req, MPI_STATUS_IGNORE);
        expect_words(old2, words, mpi_test_rank, step + 1);
        MPI_Win_flush(right, win);
        expect_words(old, words, mpi_test_rank, step);
    }
    MPI_Win_unlock(right, win);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_lock(MPI_LOCK_SHARED, mpi_test_rank, 0, win);
    expect_words(base, words, left, STEPS);
    MPI_Win_unlock(mpi_test_rank, win);
    MPI_Win_free(&win);
    free(old);
    free(out);
    return (2 * STEPS + 1) * length;
}

static int count_files(void)
{
    DIR *dir  = opendir("/proc/self/fd");
    int count = 0;

    CHECK(dir != NULL, "cannot open /proc/self/fd");
    while (readdir(dir) != NULL) {
        ++count;
    }
    closedir(dir);
    return count;
}

static long locked_kb(void)
{
    FILE *file = fopen("/proc/self/status", "r");
    long kb    = -1;
    char line[256];

    CHECK(file != NULL, "cannot open /proc/self/status");
    while (fgets(line, sizeof(line), file) != NULL) {
        sscanf(line, "VmLck: %ld", &kb);
    }
    fclose(file);
    return kb;
}

static double now(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return ts.tv_sec + 1e-9 * ts.tv_nsec;
}

/* The target computes for a while and makes no calls. All puts and flushes of
 * the other ranks must complete in that time. The target sees that in its
 * memory. */
static uint64_t computing_target(int round)
{
    enum { PUTS = 20 };
    volatile int64_t *flag;
    int64_t *base, value;
    double end;
    MPI_Win win;
    int i, r;

    MPI_Win_allocate(mpi_test_size * sizeof(*base), sizeof(*base),
                     MPI_INFO_NULL, MPI_COMM_WORLD, &base, &win);
    memset(base, 0, mpi_test_size * sizeof(*base));
    MPI_Win_lock_all(0, win);
    /* Connects all ranks to rank 0 */
    value = -1;
    MPI_Put(&value, 1, MPI_INT64_T, 0, mpi_test_rank, 1, MPI_INT64_T, win);
    MPI_Win_flush(0, win);
    MPI_Barrier(MPI_COMM_WORLD);

    if (mpi_test_rank == 0) {
        flag = base;
        end  = now() + 60.0;
        for (r = 1; r < mpi_test_size; ++r) {
            while ((flag[r] != PUTS) && (now() < end)) {
            }
            CHECK(flag[r] == PUTS,
                  "round %d: rank %d has done %ld of %d puts while the target "
                  "computed for 60 s", round, r, (long)flag[r], PUTS);
        }
    } else {
        for (i = 1; i <= PUTS; ++i) {
            value = i;
            MPI_Put(&value, 1, MPI_INT64_T, 0, mpi_test_rank, 1, MPI_INT64_T,
                    win);
            MPI_Win_flush(0, win);
        }
    }

    MPI_Win_unlock_all(win);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_free(&win);
    return mpi_test_rank == 0 ? 0 : PUTS * sizeof(int64_t);
}

int main(int argc, char **argv)
{
    int rounds     = mpi_test_init(argc, argv, MPI_THREAD_SINGLE, 4);
    int ops        = (argc > 2) ? atoi(argv[2]) : 200;
    uint64_t bytes = 0;
    int files      = 0;
    int round;

    CHECK(ops > 0, "number of atomic operations '%s'", argv[2]);
    for (round = 0; round < rounds; ++round) {
        /* All connections exist after two rounds */
        if (round == rounds / 2) {
            files = count_files();
        }
        bytes += put_get_fence(round);
        bytes += atomics(round, ops);
        bytes += computing_target(round);
        bytes += replace_chain(round);
    }

    CHECK((rounds < 4) || (count_files() <= files + 2),
          "%d files are open, %d were after half of the rounds", count_files(),
          files);
    /* nprdma's own buffers at most, and no application memory */
    CHECK((locked_kb() >= 0) && (locked_kb() <= 4096), "%ld kB are locked",
          locked_kb());
    return mpi_test_done(bytes);
}
