/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * MPI benchmark: mpi_bench KIND [LAST [FIRST]]. Most kinds print "SIZE VALUE"
 * lines for the sizes in bytes from FIRST to LAST. Medians of many batches,
 * mean over the ranks; pairs of neighbouring ranks work at the same time:
 *
 *   latency    half of a ping-pong, in microseconds
 *   pingpong   the same with one buffer at each end
 *   bandwidth  32 messages in flight one way, in MB/s
 *   allreduce  MPI_Allreduce of SIZE bytes of doubles, in microseconds
 *
 * Medians of the slowest rank of each turn, in microseconds:
 *
 *   once       a message from one rank to the next whose buffers are used once;
 *              both sides write theirs before the clock starts
 *   untouched  the same, the receiver has only mapped its buffer
 *   fresh      MPI_Allreduce of doubles; the buffers are mapped, written and
 *              unmapped around each call, all timed
 *   mapped     the same in memory that UCX_NPRDMA_LAZY_UNMAP may keep: without
 *              MAP_NORESERVE and advice to the kernel
 *   warm       the same buffers each time
 *   window     two windows of SIZE bytes for each rank are made, used and
 *              freed, all timed. As Global Arrays' tests do: one rank puts the
 *              first array, each writes its part of the second one itself, and
 *              all get all of both
 *
 * Other kinds print the largest value of all ranks:
 *
 *   startup BYTES  every rank makes a window of BYTES by MPI_Win_allocate() and
 *              touches one page in a hundred: "us VALUE" from the first call to
 *              the end of the first fence, and "rss_percent VALUE"
 *   dense BYTES    the same, with all pages touched
 *   pinned     after traffic of all kinds: locked memory of the process and of
 *              the application's buffers in it, in kB
 *   idle       CPU time, in microseconds, that threads other than main() use
 *              while main() sleeps for three seconds
 *
 * The contents are checked.
 */

#include "bench.h"

#include <mpi.h>

#include <dirent.h>
#include <string.h>
#include <unistd.h>

#define PUT_SIZE  (4u << 20)
#define BATCHES   11
#define TURNS     21
#define WINDOW    32
#define BIG       (64u << 20)
#define SETTLE    0.5 /* Seconds */
#define PAGE_SIZE 4096

/* A page of 4 KiB takes 1.6 times as long to copy as its share of a huge one.
 * How many of these are in a buffer that is not aligned is chance. */
#define HUGE_PAGE (2u << 20)

/* Microseconds as this rank sees them: of `count` operations, or of turn number
 * `count` */
typedef double (*timed_func_t)(size_t size, int count);

static int  rank, num_ranks;
static char *out_buffer, *in_buffer;

static void print_max(const char *name, double value)
{
    double max;

    MPI_Reduce(&value, &max, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    if (rank == 0) {
        printf("%s %.2f\n", name, max);
    }
}

static void send_to(const void *buffer, size_t size)
{
    MPI_Send(buffer, size, MPI_BYTE, rank ^ 1, 1, MPI_COMM_WORLD);
}

static void receive(void *buffer, size_t size)
{
    MPI_Recv(buffer, size, MPI_BYTE, rank ^ 1, 1, MPI_COMM_WORLD,
             MPI_STATUS_IGNORE);
}


/* ---- batches ---- */

static double latency(size_t size, int count)
{
    double start = MPI_Wtime();
    int i;

    for (i = 0; i < count; ++i) {
        if (rank & 1) {
            receive(in_buffer, size);
            send_to(out_buffer, size);
        } else {
            send_to(out_buffer, size);
            receive(in_buffer, size);
        }
    }
    return (MPI_Wtime() - start) / 2 * 1e6;
}

static double pingpong(size_t size, int count)
{
    out_buffer = in_buffer;
    return latency(size, count);
}

/* The receiver answers once per window */
static double bandwidth(size_t size, int count)
{
    double start = MPI_Wtime();
    MPI_Request req[WINDOW];
    int i, k;

    for (i = 0; i < count; ++i) {
        for (k = 0; k < WINDOW; ++k) {
            if (rank & 1) {
                MPI_Irecv(in_buffer, size, MPI_BYTE, rank ^ 1, 2,
                          MPI_COMM_WORLD, &req[k]);
            } else {
                MPI_Isend(out_buffer, size, MPI_BYTE, rank ^ 1, 2,
                          MPI_COMM_WORLD, &req[k]);
            }
        }
        MPI_Waitall(WINDOW, req, MPI_STATUSES_IGNORE);
        if (rank & 1) {
            send_to(out_buffer, 0);
        } else {
            receive(in_buffer, 0);
        }
    }
    return (MPI_Wtime() - start) * 1e6;
}

static double allreduce(size_t size, int count)
{
    double start = MPI_Wtime();
    int i;

    for (i = 0; i < count; ++i) {
        MPI_Allreduce(out_buffer, in_buffer, size / sizeof(double), MPI_DOUBLE,
                      MPI_SUM, MPI_COMM_WORLD);
    }
    return (MPI_Wtime() - start) * 1e6;
}

static double measure_batches(timed_func_t batch, size_t size)
{
    double value[BATCHES], estimate, middle, sum;
    int count, b;

    batch(size, 2);
    estimate = batch(size, 3) / 3;
    MPI_Allreduce(MPI_IN_PLACE, &estimate, 1, MPI_DOUBLE, MPI_MAX,
                  MPI_COMM_WORLD);
    count = 1 + (int)(((batch == bandwidth) ? 12000 : 6000) / estimate);
    count = (count > 2000) ? 2000 : count;
    for (b = 0; b < BATCHES; ++b) {
        MPI_Barrier(MPI_COMM_WORLD);
        value[b] = batch(size, count) / count;
    }
    middle = median(value, BATCHES);
    MPI_Reduce(&middle, &sum, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    middle = sum / num_ranks;
    return (batch == bandwidth) ? size * WINDOW / middle : middle;
}


/* ---- turns ---- */

static double message(size_t size, int turn, int receiver_writes)
{
    char *buffer = map_small_pages(size);
    double start;

    if (!(rank & 1) || receiver_writes) {
        memset(buffer, (rank & 1) ? 0x55 : turn + 1, size);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    start = MPI_Wtime();
    if (rank & 1) {
        receive(buffer, size);
    } else {
        send_to(buffer, size);
    }
    start = (MPI_Wtime() - start) * 1e6;
    CHECK((buffer[0] == turn + 1) && !memcmp(buffer, buffer + 1, size - 1),
          "wrong data");
    munmap(buffer, size);
    return start;
}

static double once(size_t size, int turn)
{
    return message(size, turn, 1);
}

static double untouched(size_t size, int turn)
{
    return message(size, turn, 0);
}

static void fill(double *out, size_t size, int turn)
{
    size_t i;

    for (i = 0; i < size / sizeof(*out); ++i) {
        out[i] = turn + rank;
    }
}

static void reduce(const double *out, double *in, size_t size, int turn)
{
    double sum = num_ranks * turn + num_ranks * (num_ranks - 1) / 2.0;
    size_t i;

    MPI_Allreduce(out, in, size / sizeof(*in), MPI_DOUBLE, MPI_SUM,
                  MPI_COMM_WORLD);
    for (i = 0; i < size / sizeof(*in); i += PAGE_SIZE / sizeof(*in)) {
        CHECK(in[i] == sum, "wrong sum");
    }
}

static double reduce_new(size_t size, int turn, void *(*map)(size_t length))
{
    double start, *in, *out;

    MPI_Barrier(MPI_COMM_WORLD);
    start = MPI_Wtime();
    in    = map(size);
    out   = map(size);
    fill(out, size, turn);
    reduce(out, in, size, turn);
    munmap(out, size);
    munmap(in, size);
    return (MPI_Wtime() - start) * 1e6;
}

static double fresh(size_t size, int turn)
{
    return reduce_new(size, turn, map_small_pages);
}

static double mapped(size_t size, int turn)
{
    return reduce_new(size, turn, map_plain);
}

static double warm(size_t size, int turn)
{
    static double *in, *out;
    static size_t length;
    double start;

    if (length != size) {
        in     = map_small_pages(size);
        out    = map_small_pages(size);
        length = size;
    }
    fill(out, size, turn);
    MPI_Barrier(MPI_COMM_WORLD);
    start = MPI_Wtime();
    reduce(out, in, size, turn);
    return (MPI_Wtime() - start) * 1e6;
}

/* Get the part of each rank, and check that it has `value`, and `more` more for
 * each rank before */
static void get_parts(MPI_Win win, int *buffer, size_t count, int value,
                      int more)
{
    size_t i;
    int part;

    for (part = 0; part < num_ranks; ++part) {
        MPI_Get(buffer, count, MPI_INT, part, 0, count, MPI_INT, win);
        MPI_Win_flush(part, win);
        for (i = 0; i < count; i += PAGE_SIZE / sizeof(*buffer) / 2) {
            CHECK(buffer[i] == value + part * more, "wrong data in the window");
        }
    }
}

static void set(int *buffer, size_t count, int value)
{
    while (count > 0) {
        buffer[--count] = value;
    }
}

static double window(size_t size, int turn)
{
    size_t count = size / sizeof(int);
    int *buffer  = map_plain(size);
    MPI_Win first, second;
    double start;
    int *own, part;

    MPI_Barrier(MPI_COMM_WORLD);
    start = MPI_Wtime();
    MPI_Win_allocate(size, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &own, &first);
    MPI_Win_lock_all(0, first);
    MPI_Win_allocate(size, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &own, &second);
    MPI_Win_lock_all(0, second);
    set(buffer, count, turn + 1);
    for (part = 0; (rank == 0) && (part < num_ranks); ++part) {
        MPI_Put(buffer, count, MPI_INT, part, 0, count, MPI_INT, first);
    }
    MPI_Win_flush_all(first);
    set(own, count, turn + rank + 2);
    MPI_Win_sync(second);
    MPI_Barrier(MPI_COMM_WORLD);
    get_parts(first, buffer, count, turn + 1, 0);
    get_parts(second, buffer, count, turn + 2, 1);
    MPI_Win_unlock_all(second);
    MPI_Win_free(&second);
    MPI_Win_unlock_all(first);
    MPI_Win_free(&first);
    start = (MPI_Wtime() - start) * 1e6;
    munmap(buffer, size);
    return start;
}

/* Before the first turns MPI connects and allocates, and the kernel's scheduler
 * distributes the ranks. That takes some tenths of a second. Until then all
 * four ranks may run on one of two CPUs, which would dominate the result. */
static double measure_turns(timed_func_t turn_func, size_t size)
{
    double start = MPI_Wtime(), times[TURNS], us;
    int turn, goes_on;

    do {
        turn_func(size, 1);
        goes_on = MPI_Wtime() - start < SETTLE;
        MPI_Bcast(&goes_on, 1, MPI_INT, 0, MPI_COMM_WORLD);
    } while (goes_on);
    for (turn = 0; turn < TURNS; ++turn) {
        us = turn_func(size, turn);
        MPI_Reduce(&us, &times[turn], 1, MPI_DOUBLE, MPI_MAX, 0,
                   MPI_COMM_WORLD);
    }
    return (rank == 0) ? median(times, TURNS) : 0;
}


/* ---- other kinds ---- */

/* The sum of what the lines "NAME NUMBER" of a file have, of those between
 * mappings that touch [start, start + length) if there are any */
static long sum_of(const char *path, const char *name, const void *start,
                   size_t length)
{
    FILE *file      = fopen(path, "r");
    uintptr_t first = (uintptr_t)start;
    unsigned long begin, end;
    int inside = 1;
    long total = 0;
    char line[512];

    CHECK(file != NULL, "cannot open %s: %m", path);
    while (fgets(line, sizeof(line), file) != NULL) {
        if (sscanf(line, "%lx-%lx ", &begin, &end) == 2) {
            inside = (begin < first + length) && (end > first);
        } else if (inside && !strncmp(line, name, strlen(name))) {
            total += atol(line + strlen(name));
        }
    }
    fclose(file);
    return total;
}

/* Each rank with all others: small and large, two-sided and one-sided */
static void traffic(int prints)
{
    char *big = map_memory(BIG);
    MPI_Win win;
    int r;

    memset(big, rank, BIG);
    for (r = 0; r < num_ranks; ++r) {
        MPI_Sendrecv(big, BIG / 2, MPI_BYTE, rank ^ 1, 4, big + BIG / 2,
                     BIG / 2, MPI_BYTE, rank ^ 1, 4, MPI_COMM_WORLD,
                     MPI_STATUS_IGNORE);
    }
    MPI_Alltoall(big, BIG / 2 / num_ranks, MPI_BYTE, big + BIG / 2,
                 BIG / 2 / num_ranks, MPI_BYTE, MPI_COMM_WORLD);
    MPI_Win_create(big + BIG / 2, BIG / 2, 1, MPI_INFO_NULL, MPI_COMM_WORLD,
                   &win);
    MPI_Win_fence(0, win);
    for (r = 0; r < num_ranks; ++r) {
        MPI_Put(big, PUT_SIZE, MPI_BYTE, r, 0, PUT_SIZE, MPI_BYTE, win);
    }
    MPI_Win_fence(0, win);
    if (prints) {
        print_max("process_locked_kb",
                  sum_of("/proc/self/status", "VmLck:", NULL, 0));
        print_max("application_locked_kb",
                  sum_of("/proc/self/smaps", "Locked:", big, BIG));
    }
    MPI_Win_free(&win);
    munmap(big, BIG);
}

/* Nanoseconds on a CPU of all threads but main() */
static double thread_cpu(void)
{
    DIR *dir     = opendir("/proc/self/task");
    double total = 0;
    char path[300];
    struct dirent *entry;

    while ((dir != NULL) && ((entry = readdir(dir)) != NULL)) {
        if ((entry->d_name[0] != '.') && (atoi(entry->d_name) != getpid())) {
            snprintf(path, sizeof(path), "/proc/self/task/%s/schedstat",
                     entry->d_name);
            total += sum_of(path, "", NULL, 0);
        }
    }
    closedir(dir);
    return total;
}

static void idle(void)
{
    double before;

    traffic(0);
    MPI_Barrier(MPI_COMM_WORLD);
    sleep(1);
    before = thread_cpu();
    sleep(3);
    before = thread_cpu() - before;
    MPI_Barrier(MPI_COMM_WORLD);
    print_max("idle_cpu_us", before / 1000);
}

static void startup(size_t length, size_t step)
{
    long before    = resident_bytes();
    uint64_t value = rank + 1;
    double start, percent;
    char *memory;
    MPI_Win win;
    size_t i;

    MPI_Barrier(MPI_COMM_WORLD);
    start = MPI_Wtime();
    MPI_Win_allocate(length, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &win);
    for (i = 0; i < length; i += step * PAGE_SIZE) {
        memory[i] = 1;
    }
    MPI_Win_fence(0, win);
    MPI_Put(&value, 1, MPI_UINT64_T, rank ^ 1, PAGE_SIZE * 50, 1, MPI_UINT64_T,
            win);
    MPI_Win_fence(0, win);
    start   = (MPI_Wtime() - start) * 1e6;
    percent = 100.0 * (resident_bytes() - before) / length;
    CHECK(*(uint64_t*)(memory + PAGE_SIZE * 50) == (uint64_t)(rank ^ 1) + 1,
          "wrong data in the window");
    MPI_Win_free(&win);
    print_max("us", start);
    print_max("rss_percent", percent);
}

static const struct {
    const char   *name;
    timed_func_t batch;
    timed_func_t turn;
} kinds[] = {
    {"latency", latency, NULL}, {"pingpong", pingpong, NULL},
    {"bandwidth", bandwidth, NULL}, {"allreduce", allreduce, NULL},
    {"once", NULL, once}, {"untouched", NULL, untouched},
    {"fresh", NULL, fresh}, {"mapped", NULL, mapped}, {"warm", NULL, warm},
    {"window", NULL, window}, {NULL, NULL, NULL}
};

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "";
    size_t last      = argc > 2 ? strtoull(argv[2], NULL, 0) : PUT_SIZE;
    size_t size      = argc > 3 ? strtoull(argv[3], NULL, 0) : last;
    double value;
    int i;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &num_ranks);
    CHECK(!(num_ranks & 1) && (size >= 8),
          "needs an even number of ranks, and sizes from 8");

    for (i = 0; (kinds[i].name != NULL) && strcmp(name, kinds[i].name); ++i) {
    }
    if (kinds[i].name != NULL) {
        out_buffer = calloc(1, last);
        in_buffer  = aligned_alloc(HUGE_PAGE, last);
        for (; size <= last; size *= 4) {
            value = (kinds[i].batch != NULL) ?
                    measure_batches(kinds[i].batch, size) :
                    measure_turns(kinds[i].turn, size);
            if (rank == 0) {
                printf("%zu %.3f\n", size, value);
                fflush(stdout);
            }
        }
    } else if (!strcmp(name, "startup")) {
        startup(last, 100);
    } else if (!strcmp(name, "dense")) {
        startup(last, 1);
    } else if (!strcmp(name, "pinned")) {
        traffic(1);
    } else {
        CHECK(!strcmp(name, "idle"), "there is no kind %s", name);
        idle();
    }

    MPI_Finalize();
    return EXIT_SUCCESS;
}
