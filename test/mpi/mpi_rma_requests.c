/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * One-sided operations with requests, Rput, Rget, Raccumulate and
 * Rget_accumulate, completed in each way that MPI has. Also Get_accumulate with
 * MPI_REPLACE, which Open MPI implements as a get and a put: the old data must
 * be those from before the put.
 */

#include "mpi_test.h"

#include <stdlib.h>
#include <string.h>

#define MAX_LENGTH (64 * 1024)

/* Requests to one target at the same time */
#define WINDOW 4

/* Maximum length of a replaced array */
#define MAX_WORDS 6000

static uint64_t block_key(int from, int to, int round, int index)
{
    return (((uint64_t)from * 64 + to) * 4096 + round) * 64 + index;
}

static size_t block_length(int from, int to, int round, int index)
{
    uint64_t seed = block_key(from, to, round, index);

    return mpi_test_length(&seed, MAX_LENGTH);
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

/* Complete all requests, in another way each round. done(arg, i) is called when
 * request i is complete, and not before. */
static void complete(int round, int num, MPI_Request *req,
                     void (*done)(void *arg, int i), void *arg)
{
    int *list = malloc(num * sizeof(*list));
    int left, i, n, flag;

    for (left = num; left > 0; left -= n) {
        n = 0;
        switch (round % 5) {
        case 0:
            MPI_Waitall(num, req, MPI_STATUSES_IGNORE);
            for (n = 0; n < num; ++n) {
                list[n] = n;
            }
            break;
        case 1:
            MPI_Waitany(num, req, &list[n++], MPI_STATUS_IGNORE);
            break;
        case 2:
            MPI_Waitsome(num, req, &n, list, MPI_STATUSES_IGNORE);
            break;
        case 3:
            list[n++] = left - 1;
            MPI_Wait(&req[left - 1], MPI_STATUS_IGNORE);
            break;
        default:
            MPI_Testany(num, req, &i, &flag, MPI_STATUS_IGNORE);
            if (flag) {
                list[n++] = i;
            }
        }
        for (i = 0; i < n; ++i) {
            CHECK((list[i] >= 0) && (list[i] < num), "request %d of %d",
                  list[i], num);
            CHECK(req[list[i]] == MPI_REQUEST_NULL, "request %d stays",
                  list[i]);
            done(arg, list[i]);
        }
    }
    free(list);
}

typedef struct {
    int   round;
    char *blocks; /* WINDOW requests for each target */
} blocks_t;

static char *block_at(const blocks_t *b, int i)
{
    return b->blocks + (size_t)i * MAX_LENGTH;
}

/* A put whose request is complete no longer needs its buffer */
static void put_done(void *arg, int i)
{
    memset(block_at(arg, i), 0xdb, MAX_LENGTH);
}

/* A get whose request is complete has its data, before any flush */
static void get_done(void *arg, int i)
{
    const blocks_t *b = arg;
    int to            = i / WINDOW;
    int index         = i % WINDOW;

    mpi_test_verify(block_at(b, i),
                    block_length(mpi_test_rank, to, b->round, index),
                    block_key(mpi_test_rank, to, b->round, index),
                    "block of Rget");
}

/* Offset of a rank's block in each window, in bytes */
static MPI_Aint place(int from, int index)
{
    return ((MPI_Aint)from * WINDOW + index) * MAX_LENGTH;
}

static uint64_t put_get(int round, MPI_Win win, const char *base)
{
    int num          = mpi_test_size * WINDOW;
    MPI_Request *req = malloc(num * sizeof(*req));
    blocks_t b       = {.round = round, .blocks = malloc(num * MAX_LENGTH)};
    uint64_t bytes   = 0;
    size_t length;
    int i, to, from;

    MPI_Win_lock_all(0, win);
    for (i = 0; i < num; ++i) {
        to     = i / WINDOW;
        length = block_length(mpi_test_rank, to, round, i % WINDOW);
        bytes += (to == mpi_test_rank) ? 0 : 2 * length;
        mpi_test_fill(block_at(&b, i), length,
                      block_key(mpi_test_rank, to, round, i % WINDOW));
        MPI_Rput(block_at(&b, i), length, MPI_BYTE, to,
                 place(mpi_test_rank, i % WINDOW), length, MPI_BYTE, win,
                 &req[i]);
    }
    complete(round, num, req, put_done, &b);
    MPI_Win_flush_all(win);

    for (i = 0; i < num; ++i) {
        to     = i / WINDOW;
        length = block_length(mpi_test_rank, to, round, i % WINDOW);
        MPI_Rget(block_at(&b, i), length, MPI_BYTE, to,
                 place(mpi_test_rank, i % WINDOW), length, MPI_BYTE, win,
                 &req[i]);
    }
    complete(round + 1, num, req, get_done, &b);

    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_sync(win);
    for (i = 0; i < num; ++i) {
        from = i / WINDOW;
        mpi_test_verify(base + place(from, i % WINDOW),
                        block_length(from, mpi_test_rank, round, i % WINDOW),
                        block_key(from, mpi_test_rank, round, i % WINDOW),
                        "block of Rput");
    }
    MPI_Win_unlock_all(win);
    MPI_Barrier(MPI_COMM_WORLD);

    free(b.blocks);
    free(req);
    return bytes;
}

static void nothing_done(void *arg, int i)
{
    (void)arg;
    (void)i;
}

/* All ranks add to all windows, from a buffer that changes when its request is
 * complete. Then each rank reads all sums by MPI_NO_OP. */
static uint64_t accumulate(int round, MPI_Win win, int64_t *base)
{
    int words        = 1 + block_length(0, 0, round, 0) / 32;
    int64_t *out     = malloc(words * sizeof(*out));
    int64_t *in      = malloc(mpi_test_size * words * sizeof(*in));
    MPI_Request *req = malloc(mpi_test_size * sizeof(*req));
    int64_t want;
    int i, to;

    memset(base, 0, words * sizeof(*base));
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_lock_all(0, win);
    for (to = 0; to < mpi_test_size; ++to) {
        set_words(out, words, to);
        MPI_Raccumulate(out, words, MPI_INT64_T, to, 0, words, MPI_INT64_T,
                        MPI_SUM, win, &req[to]);
        complete(round, 1, &req[to], nothing_done, NULL);
        memset(out, 0xdb, words * sizeof(*out));
    }
    MPI_Win_flush_all(win);
    MPI_Barrier(MPI_COMM_WORLD);

    for (to = 0; to < mpi_test_size; ++to) {
        MPI_Rget_accumulate(NULL, 0, MPI_INT64_T, in + to * words, words,
                            MPI_INT64_T, to, 0, words, MPI_INT64_T, MPI_NO_OP,
                            win, &req[to]);
    }
    complete(round, mpi_test_size, req, nothing_done, NULL);
    for (i = 0; i < mpi_test_size * words; ++i) {
        want = mpi_test_size * word(-1, i / words, i % words) +
               (((int64_t)mpi_test_size * (mpi_test_size + 1) / 2) << 48);
        CHECK(in[i] == want, "word %d of rank %d is %lx, not %lx", i % words,
              i / words, (long)in[i], (long)want);
    }
    MPI_Win_unlock_all(win);
    MPI_Barrier(MPI_COMM_WORLD);

    free(req);
    free(in);
    free(out);
    return 2 * (uint64_t)(mpi_test_size - 1) * words * sizeof(*out);
}

static void expect_words(const int64_t *got, int words, int from, int step,
                         const char *what)
{
    int i;

    for (i = 0; i < words; ++i) {
        CHECK(got[i] == word(from, step, i),
              "%s of %d words, step %d: word %d is %lx, not %lx", what, words,
              step, i, (long)got[i], (long)word(from, step, i));
    }
}

/* Each rank repeatedly replaces its own array in the right rank's window, with
 * two operations outstanding, and fetches the array of the step before */
static uint64_t replace_chain(int round, MPI_Win win, const int64_t *base)
{
    enum { STEPS = 60 };
    int words     = 2 + block_length(1, 1, round, 0) % (MAX_WORDS - 1);
    int right     = (mpi_test_rank + 1) % mpi_test_size;
    int left      = (mpi_test_rank + mpi_test_size - 1) % mpi_test_size;
    size_t length = words * sizeof(int64_t);
    int64_t *out  = malloc(2 * length), *out2 = out + words;
    int64_t *old  = malloc(2 * length), *old2 = old + words;
    MPI_Request req;
    int step;

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
        complete(step / 2, 1, &req, nothing_done, NULL);
        expect_words(old2, words, mpi_test_rank, step + 1, "Rget_accumulate");
        MPI_Win_flush(right, win);
        expect_words(old, words, mpi_test_rank, step, "Get_accumulate");
    }
    MPI_Win_unlock(right, win);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_lock(MPI_LOCK_SHARED, mpi_test_rank, 0, win);
    expect_words(base, words, left, STEPS, "array of the last step");
    MPI_Win_unlock(mpi_test_rank, win);
    MPI_Barrier(MPI_COMM_WORLD);
    free(old);
    free(out);
    return (2 * STEPS + 1) * length;
}

typedef struct {
    int       words;
    uint64_t *seen; /* A bit for each step, for each word and rank */
} history_t;

/* Each word was written by a rank, and this rank has not seen it before */
static void note_words(history_t *h, const int64_t *words, int steps)
{
    int i, from, step;
    uint64_t *seen;

    for (i = 0; i < h->words; ++i) {
        from = (int)(words[i] >> 48) - 1;
        step = (int)(words[i] >> 24) & 0xffffff;
        CHECK((from >= 0) && (from < mpi_test_size) && (step <= steps) &&
                      (words[i] == word(from, step, i)),
              "word %d of %d: no rank wrote %lx", i, h->words, (long)words[i]);
        seen = &h->seen[i * mpi_test_size + from];
        CHECK(!(*seen & ((uint64_t)1 << step)),
              "word %d of %d: step %d of rank %d was returned twice", i,
              h->words, step, from);
        *seen |= (uint64_t)1 << step;
    }
}

/* For each word, each step of each rank was returned once: all bits are set,
 * and the sum proves that none is set twice */
static void judge_history(const history_t *h, int steps)
{
    int num       = h->words * mpi_test_size;
    uint64_t *sum = malloc(num * sizeof(*sum));
    uint64_t want;
    int i;

    MPI_Allreduce(h->seen, sum, num, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
    MPI_Allreduce(MPI_IN_PLACE, h->seen, num, MPI_UINT64_T, MPI_BOR,
                  MPI_COMM_WORLD);
    for (i = 0; i < num; ++i) {
        /* Step 0 exists only for rank 0 */
        want = ((uint64_t)2 << steps) - (i % mpi_test_size == 0 ? 1 : 2);
        CHECK((h->seen[i] == want) && (sum[i] == want),
              "word %d of %d: steps of rank %d that were returned: %lx, their "
              "sum is %lx, not %lx", i / mpi_test_size, h->words,
              i % mpi_test_size, (long)h->seen[i], (long)sum[i], (long)want);
    }
    free(sum);
}

/* All ranks replace the same array of rank 0. For each word, the values that
 * the ranks fetch and the final value are exactly the initial value and the
 * values that they wrote. */
static uint64_t replace_shared(int round, MPI_Win win, const int64_t *base)
{
    enum { STEPS = 30 };
    int words    = 2 + block_length(2, 2, round, 0) % 2000;
    int64_t *out = malloc(words * sizeof(*out));
    int64_t *old = malloc(words * sizeof(*old));
    history_t h  = {.words = words};
    int step;

    h.seen = calloc(words * mpi_test_size, sizeof(*h.seen));
    MPI_Win_lock_all(0, win);
    if (mpi_test_rank == 0) {
        set_words(out, words, 0);
        MPI_Put(out, words, MPI_INT64_T, 0, 0, words, MPI_INT64_T, win);
        MPI_Win_flush(0, win);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    for (step = 1; step <= STEPS; ++step) {
        set_words(out, words, step);
        MPI_Get_accumulate(out, words, MPI_INT64_T, old, words, MPI_INT64_T, 0,
                           0, words, MPI_INT64_T, MPI_REPLACE, win);
        MPI_Win_flush(0, win);
        note_words(&h, old, STEPS);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_sync(win);
    if (mpi_test_rank == 0) {
        note_words(&h, base, STEPS);
    }
    MPI_Win_unlock_all(win);
    judge_history(&h, STEPS);

    free(h.seen);
    free(old);
    free(out);
    return mpi_test_rank == 0 ? 0 : 2 * STEPS * words * sizeof(int64_t);
}

/* Operations on MPI_PROC_NULL complete at once and access nothing */
static void no_process(MPI_Win win)
{
    MPI_Request req[4];
    int64_t out = 1, in = 7;
    int i;

    MPI_Win_lock_all(0, win);
    MPI_Rput(&out, 1, MPI_INT64_T, MPI_PROC_NULL, 0, 1, MPI_INT64_T, win,
             &req[0]);
    MPI_Rget(&in, 1, MPI_INT64_T, MPI_PROC_NULL, 0, 1, MPI_INT64_T, win,
             &req[1]);
    MPI_Raccumulate(&out, 1, MPI_INT64_T, MPI_PROC_NULL, 0, 1, MPI_INT64_T,
                    MPI_SUM, win, &req[2]);
    MPI_Rget_accumulate(&out, 1, MPI_INT64_T, &in, 1, MPI_INT64_T,
                        MPI_PROC_NULL, 0, 1, MPI_INT64_T, MPI_REPLACE, win,
                        &req[3]);
    MPI_Waitall(4, req, MPI_STATUSES_IGNORE);
    for (i = 0; i < 4; ++i) {
        CHECK(req[i] == MPI_REQUEST_NULL, "request %d stays", i);
    }
    CHECK(in == 7, "got %ld from no process", (long)in);
    MPI_Win_unlock_all(win);
}

int main(int argc, char **argv)
{
    int rounds     = mpi_test_init(argc, argv, MPI_THREAD_SINGLE, 10);
    uint64_t bytes = 0;
    MPI_Win blocks, words;
    int64_t *array;
    char *base;
    int round;

    MPI_Win_allocate(place(mpi_test_size, 0), 1, MPI_INFO_NULL, MPI_COMM_WORLD,
                     &base, &blocks);
    MPI_Win_allocate(MAX_WORDS * sizeof(*array), sizeof(*array), MPI_INFO_NULL,
                     MPI_COMM_WORLD, &array, &words);
    for (round = 0; round < rounds; ++round) {
        bytes += put_get(round, blocks, base);
        bytes += accumulate(round, words, array);
        bytes += replace_chain(round, words, array);
        bytes += replace_shared(round, words, array);
        no_process(words);
    }
    MPI_Win_free(&words);
    MPI_Win_free(&blocks);
    return mpi_test_done(bytes);
}
