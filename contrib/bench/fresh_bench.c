/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * MPI benchmark of buffers that were never used for communication before. Each
 * prints "SIZE VALUE" lines, the median over the turns:
 *
 *   once FIRST LAST       a message from one rank to the next whose buffers are
 *                         used once; both sides write theirs before the clock
 *                         starts. Microseconds from the receiver's call to its
 *                         return.
 *   untouched FIRST LAST  the same, the receiver has only mapped its buffer
 *   allreduce FIRST LAST  MPI_Allreduce of doubles; the buffers are allocated,
 *                         written and freed around each call, all timed
 *   warm FIRST LAST       the same buffers each time
 *   heap FIRST LAST       as allreduce, with malloc() and free(); the line goes
 *                         on with "faults VALUE", the least page faults of a
 *                         turn and rank
 *   heap-warm FIRST LAST  the same buffers each time; they are written in time
 *   mapped FIRST LAST     as allreduce, without advice to the kernel
 *   same FIRST LAST       as mapped, but the same buffers each time
 *   zeroed FIRST LAST     the same; memset() zeroes them each time
 *   pair BYTES            a message whose buffers are mapped, written and
 *                         unmapped around it, all timed: "fresh_us VALUE". In
 *                         turns with the same buffers each time, written before
 *                         it: "same_us VALUE"
 *   window FIRST LAST     two windows of SIZE bytes for each rank are made,
 *                         used and freed, all timed. As Global Arrays' tests
 *                         do: one rank puts the first array, each writes its
 *                         part of the second one itself, and all get all of
 *                         both, the second one by columns
 *   startup BYTES         every rank maps BYTES, shows them in a window, and
 *                         touches one page in a hundred: "us VALUE" from the
 *                         first call to the end of the first fence and
 *                         "rss_percent VALUE", the largest of all ranks
 *
 * The contents are checked.
 */

#include "bench.h"

#include <mpi.h>

#include <limits.h>
#include <stdint.h>
#include <string.h>
#include <sys/resource.h>

#define TURNS     21
#define SETTLE    0.5 /* Seconds */
#define PAGE_SIZE 4096
#define NUM_HOLES 32
#define NUM_ROWS  8 /* Of a part of a window */

static int rank, num_ranks;

static void fail(const char *what)
{
    fprintf(stderr, "fresh_bench: error: %s\n", what);
    MPI_Abort(MPI_COMM_WORLD, 1);
    exit(EXIT_FAILURE);
}

/* As allocators do: without MAP_NORESERVE and advice, after which memory is not
 * kept (UCX_NPRDMA_LAZY_UNMAP) */
static void *map_plain(size_t length)
{
    void *memory = mmap(NULL, length, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (memory == MAP_FAILED) {
        fail("cannot map memory");
    }
    return memory;
}

/* One turn of a benchmark, in microseconds as this rank sees it */
typedef double (*turn_func_t)(size_t size, int turn);

static double message(size_t size, int turn, int receiver_writes)
{
    char *buffer = map_small_pages(size);
    double start, end;

    if (rank & 1) {
        if (receiver_writes) {
            memset(buffer, 0x55, size);
        }
    } else {
        memset(buffer, turn + 1, size);
    }

    MPI_Barrier(MPI_COMM_WORLD);
    start = MPI_Wtime();
    if (rank & 1) {
        MPI_Recv(buffer, size, MPI_BYTE, rank - 1, 1, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
    } else {
        MPI_Send(buffer, size, MPI_BYTE, rank + 1, 1, MPI_COMM_WORLD);
    }
    end = MPI_Wtime();
    if ((buffer[0] != turn + 1) || memcmp(buffer, buffer + 1, size - 1)) {
        fail("wrong data");
    }
    munmap(buffer, size);
    return (end - start) * 1e6;
}

static double once(size_t size, int turn)
{
    return message(size, turn, 1);
}

static double untouched(size_t size, int turn)
{
    return message(size, turn, 0);
}

static void fill(double *out, size_t count, int turn)
{
    size_t i;

    for (i = 0; i < count; ++i) {
        out[i] = turn + rank;
    }
}

static void check_sum(const double *in, size_t count, int turn)
{
    double sum = num_ranks * turn + num_ranks * (num_ranks - 1) / 2.0;
    size_t i;

    for (i = 0; i < count; i += PAGE_SIZE / sizeof(*in)) {
        if (in[i] != sum) {
            fail("wrong sum");
        }
    }
}

static void reduce(const double *out, double *in, size_t count, int turn)
{
    MPI_Allreduce(out, in, count, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    check_sum(in, count, turn);
}

static double *allocate(size_t size)
{
    double *buffer = malloc(size);

    if (buffer == NULL) {
        fail("no memory");
    }
    return buffer;
}

static long page_faults(void)
{
    struct rusage usage;

    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_minflt;
}

/* Page faults of the last turn */
static long heap_faults;

static double heap(size_t size, int turn)
{
    long before  = page_faults();
    size_t count = size / sizeof(double);
    double start, *in, *out;

    MPI_Barrier(MPI_COMM_WORLD);
    start = MPI_Wtime();
    in    = allocate(size);
    out   = allocate(size);
    fill(out, count, turn);
    reduce(out, in, count, turn);
    free(in);
    free(out);
    start       = (MPI_Wtime() - start) * 1e6;
    heap_faults = page_faults() - before;
    return start;
}

/*
 * Whether the C library gives freed buffers back is chance: not if a block that
 * lives is behind them, such as one that MPI has allocated for good. A rank
 * without page faults fills the hole in front of it with a block that is never
 * freed, until all ranks have page faults, or none that filling would bring.
 */
static void fill_holes(size_t size)
{
    static double *blocks[NUM_HOLES];
    int i, loses, all_lose = 0;

    for (i = 0; (i < NUM_HOLES) && !all_lose; ++i) {
        heap(size, 1);
        heap(size, 2);
        loses = (heap_faults >= (long)(size / PAGE_SIZE));
        if (!loses) {
            blocks[i]    = allocate(size);
            blocks[i][0] = 1;
        }
        MPI_Allreduce(&loses, &all_lose, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    }
}

static double heap_warm(size_t size, int turn)
{
    static double *in, *out;
    static size_t allocated;
    size_t count = size / sizeof(double);
    double start;

    if (allocated != size) {
        free(in);
        free(out);
        in        = allocate(size);
        out       = allocate(size);
        allocated = size;
    }

    MPI_Barrier(MPI_COMM_WORLD);
    start = MPI_Wtime();
    fill(out, count, turn);
    reduce(out, in, count, turn);
    return (MPI_Wtime() - start) * 1e6;
}

static double reduce_new(size_t size, int turn, void *(*map)(size_t length))
{
    size_t count = size / sizeof(double);
    double start, *in, *out;

    MPI_Barrier(MPI_COMM_WORLD);
    start = MPI_Wtime();
    in    = map(size);
    out   = map(size);
    fill(out, count, turn);
    reduce(out, in, count, turn);
    munmap(out, size);
    munmap(in, size);
    return (MPI_Wtime() - start) * 1e6;
}

static double allreduce(size_t size, int turn)
{
    return reduce_new(size, turn, map_small_pages);
}

static double mapped(size_t size, int turn)
{
    return reduce_new(size, turn, map_plain);
}

/* The same two buffers for all turns of one size */
static void keep_buffers(size_t size, void *(*map)(size_t length), double **in,
                         double **out)
{
    static double *first, *second;
    static size_t length;

    if (length != size) {
        if (length != 0) {
            munmap(first, length);
            munmap(second, length);
        }
        first  = map(size);
        second = map(size);
        length = size;
    }
    *in  = first;
    *out = second;
}

/* What mapped would take if mmap() and munmap() cost nothing */
static double reduce_same(size_t size, int turn, int is_zeroed)
{
    size_t count = size / sizeof(double);
    double start, *in, *out;

    keep_buffers(size, map_plain, &in, &out);
    MPI_Barrier(MPI_COMM_WORLD);
    start = MPI_Wtime();
    if (is_zeroed) {
        memset(in, 0, size);
        memset(out, 0, size);
    }
    fill(out, count, turn);
    reduce(out, in, count, turn);
    return (MPI_Wtime() - start) * 1e6;
}

static double same(size_t size, int turn)
{
    return reduce_same(size, turn, 0);
}

static double zeroed(size_t size, int turn)
{
    return reduce_same(size, turn, 1);
}

static double warm(size_t size, int turn)
{
    size_t count = size / sizeof(double);
    double start, *in, *out;

    keep_buffers(size, map_small_pages, &in, &out);
    fill(out, count, turn);
    MPI_Barrier(MPI_COMM_WORLD);
    start = MPI_Wtime();
    MPI_Allreduce(out, in, count, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    start = (MPI_Wtime() - start) * 1e6;
    check_sum(in, count, turn);
    return start;
}

static int *allocate_window(size_t size, MPI_Win *win)
{
    int *part;

    MPI_Win_allocate(size, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &part, win);
    MPI_Win_lock_all(0, *win);
    return part;
}

static void free_window(MPI_Win *win)
{
    MPI_Win_unlock_all(*win);
    MPI_Win_free(win);
}

static void put_parts(MPI_Win win, int *buffer, size_t count, int value)
{
    size_t i;
    int part;

    for (i = 0; i < count; ++i) {
        buffer[i] = value;
    }
    for (part = 0; part < num_ranks; ++part) {
        MPI_Put(buffer, count, MPI_INT, part, 0, count, MPI_INT, win);
    }
    MPI_Win_flush_all(win);
}

/* Get the part of each rank, and check that it has `value`, and `more` more for
 * each rank before */
static void get_parts(MPI_Win win, MPI_Datatype type, int *buffer, size_t count,
                      int value, int more)
{
    size_t i;
    int part;

    for (part = 0; part < num_ranks; ++part) {
        MPI_Get(buffer, count, MPI_INT, part, 0, 1, type, win);
        MPI_Win_flush(part, win);
        for (i = 0; i < count; i += PAGE_SIZE / sizeof(*buffer) / 2) {
            if (buffer[i] != value + part * more) {
                fail("wrong data in the window");
            }
        }
    }
}

static double window(size_t size, int turn)
{
    size_t count = size / sizeof(int) / NUM_ROWS * NUM_ROWS;
    int *buffer  = map_plain(size);
    MPI_Datatype whole, columns;
    MPI_Win first, second;
    double start;
    size_t i;
    int *own;

    MPI_Type_contiguous(count, MPI_INT, &whole);
    MPI_Type_vector(NUM_ROWS, count / NUM_ROWS / 2, count / NUM_ROWS, MPI_INT,
                    &columns);
    MPI_Type_commit(&whole);
    MPI_Type_commit(&columns);

    MPI_Barrier(MPI_COMM_WORLD);
    start = MPI_Wtime();
    allocate_window(size, &first);
    own = allocate_window(size, &second);
    if (rank == 0) {
        put_parts(first, buffer, count, turn + 1);
    }
    for (i = 0; i < count; ++i) {
        own[i] = turn + rank + 2;
    }
    MPI_Win_sync(second);
    MPI_Barrier(MPI_COMM_WORLD);
    get_parts(first, whole, buffer, count, turn + 1, 0);
    get_parts(second, columns, buffer, count / 2, turn + 2, 1);
    free_window(&second);
    free_window(&first);
    start = (MPI_Wtime() - start) * 1e6;

    MPI_Type_free(&columns);
    MPI_Type_free(&whole);
    munmap(buffer, size);
    return start;
}

/*
 * Before the measurement MPI connects and allocates, and the kernel's scheduler
 * distributes the ranks. That takes some tenths of a second. Until then all
 * four ranks may run on one of two CPUs, which would dominate the result.
 */
static void settle(turn_func_t turn_func, size_t size)
{
    double start = MPI_Wtime();
    int goes_on;

    do {
        turn_func(size, 1);
        goes_on = MPI_Wtime() - start < SETTLE;
        MPI_Bcast(&goes_on, 1, MPI_INT, 0, MPI_COMM_WORLD);
    } while (goes_on);
}

/* The slowest rank of each turn, the median of the turns */
static void sweep(turn_func_t turn_func, size_t first, size_t last)
{
    double times[TURNS], us;
    long least, faults;
    size_t size;
    int turn;

    for (size = first; size <= last; size *= 2) {
        if (turn_func == heap) {
            settle(heap, size);
            fill_holes(size);
        }
        settle(turn_func, size);
        faults = LONG_MAX;
        for (turn = 0; turn < TURNS; ++turn) {
            us = turn_func(size, turn);
            MPI_Reduce(&us, &times[turn], 1, MPI_DOUBLE, MPI_MAX, 0,
                       MPI_COMM_WORLD);
            faults = (heap_faults < faults) ? heap_faults : faults;
        }
        MPI_Reduce(&faults, &least, 1, MPI_LONG, MPI_MIN, 0, MPI_COMM_WORLD);
        if (rank == 0) {
            printf("%zu %.3f", size, median(times, TURNS));
            if (turn_func == heap) {
                printf(" faults %ld", least);
            }
            printf("\n");
            fflush(stdout);
        }
    }
}

/* One message in a buffer of each side, which is mapped if it is NULL */
static double pass(char *buffer, size_t size, int turn)
{
    int is_fresh = (buffer == NULL);
    double start;

    MPI_Barrier(MPI_COMM_WORLD);
    start = MPI_Wtime();
    if (is_fresh) {
        buffer = map_plain(size);
    }
    memset(buffer, (rank & 1) ? 0 : turn + 1, size);
    if (rank & 1) {
        MPI_Recv(buffer, size, MPI_BYTE, rank - 1, 1, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
        if ((buffer[0] != turn + 1) || (buffer[size - 1] != turn + 1)) {
            fail("wrong data");
        }
    } else {
        MPI_Send(buffer, size, MPI_BYTE, rank + 1, 1, MPI_COMM_WORLD);
    }
    if (is_fresh) {
        munmap(buffer, size);
    }
    return (MPI_Wtime() - start) * 1e6;
}

static double pass_fresh(size_t size, int turn)
{
    return pass(NULL, size, turn);
}

static void pair(size_t size)
{
    double fresh[TURNS], same[TURNS];
    char *buffer = map_plain(size);
    int turn;

    settle(pass_fresh, size);
    for (turn = 0; turn < TURNS; ++turn) {
        fresh[turn] = pass(NULL, size, turn);
        same[turn]  = pass(buffer, size, turn);
    }
    munmap(buffer, size);
    /* The receiver sees all of it */
    if (rank == 1) {
        printf("fresh_us %.3f same_us %.3f\n", median(fresh, TURNS),
               median(same, TURNS));
    }
}

static long resident_pages(void)
{
    FILE *file = fopen("/proc/self/statm", "r");
    long total, resident = -1;

    if ((file == NULL) || (fscanf(file, "%ld %ld", &total, &resident) != 2)) {
        fail("cannot read /proc/self/statm");
    }
    fclose(file);
    return resident;
}

static void startup(size_t length)
{
    uint64_t value = rank + 1;
    long before    = resident_pages();
    double result[2], max[2];
    uint64_t *seen;
    double start;
    char *memory;
    MPI_Win win;
    size_t i;

    MPI_Barrier(MPI_COMM_WORLD);
    start  = MPI_Wtime();
    memory = map_small_pages(length);
    for (i = 0; i < length; i += 100 * PAGE_SIZE) {
        memory[i] = 1;
    }
    MPI_Win_create(memory, length, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &win);
    MPI_Win_fence(0, win);
    MPI_Put(&value, 1, MPI_UINT64_T, rank ^ 1, PAGE_SIZE * 50, 1, MPI_UINT64_T,
            win);
    MPI_Win_fence(0, win);
    result[0] = (MPI_Wtime() - start) * 1e6;
    result[1] = 100.0 * (resident_pages() - before) / (length / PAGE_SIZE);

    seen = (uint64_t*)(memory + PAGE_SIZE * 50);
    if (*seen != (uint64_t)(rank ^ 1) + 1) {
        fail("wrong data in the window");
    }
    MPI_Win_free(&win);
    munmap(memory, length);
    MPI_Reduce(result, max, 2, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    if (rank == 0) {
        printf("us %.1f rss_percent %.2f\n", max[0], max[1]);
    }
}

int main(int argc, char **argv)
{
    const char *kind = argc > 1 ? argv[1] : "";
    size_t first     = argc > 2 ? strtoull(argv[2], NULL, 0) : 0;
    size_t last      = argc > 3 ? strtoull(argv[3], NULL, 0) : first;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &num_ranks);
    if ((num_ranks & 1) || (first < PAGE_SIZE)) {
        fail("needs an even number of ranks and sizes from 4096");
    }

    if (!strcmp(kind, "once")) {
        sweep(once, first, last);
    } else if (!strcmp(kind, "untouched")) {
        sweep(untouched, first, last);
    } else if (!strcmp(kind, "allreduce")) {
        sweep(allreduce, first, last);
    } else if (!strcmp(kind, "warm")) {
        sweep(warm, first, last);
    } else if (!strcmp(kind, "heap")) {
        sweep(heap, first, last);
    } else if (!strcmp(kind, "heap-warm")) {
        sweep(heap_warm, first, last);
    } else if (!strcmp(kind, "mapped")) {
        sweep(mapped, first, last);
    } else if (!strcmp(kind, "same")) {
        sweep(same, first, last);
    } else if (!strcmp(kind, "zeroed")) {
        sweep(zeroed, first, last);
    } else if (!strcmp(kind, "window")) {
        sweep(window, first, last);
    } else if (!strcmp(kind, "pair")) {
        pair(first);
    } else if (!strcmp(kind, "startup")) {
        startup(first);
    } else {
        fail("say once, untouched, allreduce, warm, heap, heap-warm, mapped, "
             "same, zeroed, window, pair or startup");
    }

    MPI_Finalize();
    return EXIT_SUCCESS;
}
