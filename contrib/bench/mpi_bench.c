/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * MPI benchmark: prints "SIZE VALUE" lines, each value the median of many
 * batches. Pairs of neighbouring ranks work at the same time and rank 0 prints
 * the mean over the pairs.
 *
 *   latency    half of a ping-pong, in microseconds
 *   bandwidth  32 messages in flight one way, in MB/s
 *   allreduce  MPI_Allreduce of SIZE bytes of doubles, in microseconds
 *   alltoall   MPI_Alltoall of SIZE bytes to each rank, in microseconds
 *   bcast      MPI_Bcast of SIZE bytes, in microseconds
 *   pinned     after traffic of all kinds: locked memory of the process and of
 *              the application's buffers in it, in kB (largest of all ranks)
 *   idle       CPU time, in microseconds, that threads other than main() use
 *              while main() sleeps for three seconds (largest of all ranks)
 */

#include "bench.h"

#include <mpi.h>

#include <dirent.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#define MAX_SIZE (16u << 20)
#define PUT_SIZE (4u << 20)
#define BATCHES  11
#define WINDOW   32
#define BIG      (64u << 20)

typedef double (*batch_func_t)(size_t size, int count);

static int  rank, size_world;
static char *out_buffer, *in_buffer;

static void fail(const char *what)
{
    fprintf(stderr, "mpi_bench: error: %s\n", what);
    MPI_Abort(MPI_COMM_WORLD, 1);
    exit(EXIT_FAILURE);
}

/* Microseconds per half round trip */
static double batch_latency(size_t size, int count)
{
    int peer = rank ^ 1;
    double start;
    int i;

    start = MPI_Wtime();
    for (i = 0; i < count; ++i) {
        if (rank & 1) {
            MPI_Recv(in_buffer, size, MPI_BYTE, peer, 1, MPI_COMM_WORLD,
                     MPI_STATUS_IGNORE);
            MPI_Send(out_buffer, size, MPI_BYTE, peer, 1, MPI_COMM_WORLD);
        } else {
            MPI_Send(out_buffer, size, MPI_BYTE, peer, 1, MPI_COMM_WORLD);
            MPI_Recv(in_buffer, size, MPI_BYTE, peer, 1, MPI_COMM_WORLD,
                     MPI_STATUS_IGNORE);
        }
    }
    return (MPI_Wtime() - start) / count / 2 * 1e6;
}

/* Microseconds per message; the receiver answers once per window */
static double batch_window(size_t size, int count)
{
    int peer = rank ^ 1;
    MPI_Request req[WINDOW];
    double start;
    int i, k;

    start = MPI_Wtime();
    for (i = 0; i < count; ++i) {
        for (k = 0; k < WINDOW; ++k) {
            if (rank & 1) {
                MPI_Irecv(in_buffer, size, MPI_BYTE, peer, 2, MPI_COMM_WORLD,
                          &req[k]);
            } else {
                MPI_Isend(out_buffer, size, MPI_BYTE, peer, 2, MPI_COMM_WORLD,
                          &req[k]);
            }
        }
        MPI_Waitall(WINDOW, req, MPI_STATUSES_IGNORE);
        if (rank & 1) {
            MPI_Send(out_buffer, 0, MPI_BYTE, peer, 3, MPI_COMM_WORLD);
        } else {
            MPI_Recv(in_buffer, 0, MPI_BYTE, peer, 3, MPI_COMM_WORLD,
                     MPI_STATUS_IGNORE);
        }
    }
    return (MPI_Wtime() - start) / count / WINDOW * 1e6;
}

static double batch_allreduce(size_t size, int count)
{
    double start;
    int i;

    start = MPI_Wtime();
    for (i = 0; i < count; ++i) {
        MPI_Allreduce(out_buffer, in_buffer, size / sizeof(double), MPI_DOUBLE,
                      MPI_SUM, MPI_COMM_WORLD);
    }
    return (MPI_Wtime() - start) / count * 1e6;
}

static double batch_alltoall(size_t size, int count)
{
    double start;
    int i;

    start = MPI_Wtime();
    for (i = 0; i < count; ++i) {
        MPI_Alltoall(out_buffer, size, MPI_BYTE, in_buffer, size, MPI_BYTE,
                     MPI_COMM_WORLD);
    }
    return (MPI_Wtime() - start) / count * 1e6;
}

static double batch_bcast(size_t size, int count)
{
    double start;
    int i;

    start = MPI_Wtime();
    for (i = 0; i < count; ++i) {
        /* Another root each time, so that no rank runs ahead */
        MPI_Bcast(in_buffer, size, MPI_BYTE, i % size_world, MPI_COMM_WORLD);
    }
    return (MPI_Wtime() - start) / count * 1e6;
}

/* Median over the batches of rank 0's view, mean over the ranks */
static double measure(batch_func_t batch, size_t size, double batch_us)
{
    double value[BATCHES], estimate, middle, sum;
    int count, b;

    batch(size, 2);
    estimate = batch(size, 3);
    MPI_Allreduce(MPI_IN_PLACE, &estimate, 1, MPI_DOUBLE, MPI_MAX,
                  MPI_COMM_WORLD);
    count = 1 + (int)(batch_us / (estimate * (batch == batch_window ?
                                              WINDOW : 1)));
    if (count > 2000) {
        count = 2000;
    }

    for (b = 0; b < BATCHES; ++b) {
        MPI_Barrier(MPI_COMM_WORLD);
        value[b] = batch(size, count);
    }
    middle = median(value, BATCHES);
    MPI_Reduce(&middle, &sum, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    return sum / size_world;
}

static batch_func_t find_batch(const char *kind)
{
    static const struct {
        const char   *kind;
        batch_func_t batch;
    } kinds[] = {
        {"latency", batch_latency},
        {"bandwidth", batch_window},
        {"allreduce", batch_allreduce},
        {"alltoall", batch_alltoall},
        {"bcast", batch_bcast}
    };
    size_t i;

    for (i = 0; i < sizeof(kinds) / sizeof(kinds[0]); ++i) {
        if (strcmp(kind, kinds[i].kind) == 0) {
            return kinds[i].batch;
        }
    }
    return NULL;
}

static void sweep(batch_func_t batch, size_t first, size_t last, size_t step)
{
    int is_bandwidth = (batch == batch_window);
    double us;
    size_t size;

    for (size = first; size <= last; size *= step) {
        us = measure(batch, size, is_bandwidth ? 12000 : 6000);
        if (rank == 0) {
            printf("%zu %.3f\n", size, is_bandwidth ? size / us : us);
            fflush(stdout);
        }
    }
}

/* kB locked in the mappings that [start, start + length) touches */
static long locked_in(const void *start, size_t length)
{
    FILE *file      = fopen("/proc/self/smaps", "r");
    uintptr_t first = (uintptr_t)start;
    unsigned long begin, end;
    int inside = 0;
    long total = 0, kb;
    char line[512];

    if (file == NULL) {
        fail("cannot open /proc/self/smaps");
    }
    while (fgets(line, sizeof(line), file) != NULL) {
        if (sscanf(line, "%lx-%lx ", &begin, &end) == 2) {
            inside = (begin < first + length) && (end > first);
        } else if (inside && (sscanf(line, "Locked: %ld kB", &kb) == 1)) {
            total += kb;
        }
    }
    fclose(file);
    return total;
}

static long status_kb(const char *name)
{
    FILE *file = fopen("/proc/self/status", "r");
    long kb    = -1;
    char line[256];

    while ((file != NULL) && (fgets(line, sizeof(line), file) != NULL)) {
        if (strncmp(line, name, strlen(name)) == 0) {
            kb = atol(line + strlen(name));
        }
    }
    if (file != NULL) {
        fclose(file);
    }
    return kb;
}

static void print_max(long value, const char *name)
{
    long max;

    MPI_Reduce(&value, &max, 1, MPI_LONG, MPI_MAX, 0, MPI_COMM_WORLD);
    if (rank == 0) {
        printf("%s %ld\n", name, max);
    }
}

/* Each rank with all others: small and large, two-sided and one-sided */
static void all_traffic(char *big)
{
    MPI_Win win;
    int r;

    for (r = 0; r < size_world; ++r) {
        MPI_Sendrecv(big, BIG / 2, MPI_BYTE, rank ^ 1, 4, big + BIG / 2,
                     BIG / 2, MPI_BYTE, rank ^ 1, 4, MPI_COMM_WORLD,
                     MPI_STATUS_IGNORE);
    }
    MPI_Alltoall(big, BIG / 2 / size_world, MPI_BYTE, big + BIG / 2,
                 BIG / 2 / size_world, MPI_BYTE, MPI_COMM_WORLD);
    MPI_Win_create(big + BIG / 2, BIG / 2, 1, MPI_INFO_NULL, MPI_COMM_WORLD,
                   &win);
    MPI_Win_fence(0, win);
    for (r = 0; r < size_world; ++r) {
        MPI_Put(big, PUT_SIZE, MPI_BYTE, r, 0, PUT_SIZE, MPI_BYTE, win);
    }
    MPI_Win_fence(0, win);
    print_max(status_kb("VmLck:"), "process_locked_kb");
    print_max(locked_in(big, BIG), "application_locked_kb");
    MPI_Win_free(&win);
}

static void pinned(void)
{
    char *big = map_memory(BIG);

    memset(big, rank, BIG);
    all_traffic(big);
    munmap(big, BIG);
}

/* Nanoseconds on a CPU of all threads but main() */
static long thread_cpu(void)
{
    DIR *dir   = opendir("/proc/self/task");
    long total = 0, ns;
    char path[300];
    struct dirent *entry;
    FILE *file;

    if (dir == NULL) {
        fail("cannot open /proc/self/task");
    }
    while ((entry = readdir(dir)) != NULL) {
        if ((entry->d_name[0] == '.') || (atoi(entry->d_name) == getpid())) {
            continue;
        }
        snprintf(path, sizeof(path), "/proc/self/task/%s/schedstat",
                 entry->d_name);
        file = fopen(path, "r");
        if (file == NULL) {
            continue;
        }
        if (fscanf(file, "%ld", &ns) == 1) {
            total += ns;
        }
        fclose(file);
    }
    closedir(dir);
    return total;
}

static void idle(void)
{
    struct timespec settle = {1, 0}, pause = {3, 0};
    char *big              = malloc(BIG);
    long before;

    memset(big, rank, BIG);
    all_traffic(big);
    MPI_Barrier(MPI_COMM_WORLD);
    nanosleep(&settle, NULL);
    before = thread_cpu();
    nanosleep(&pause, NULL);
    before = thread_cpu() - before;
    MPI_Barrier(MPI_COMM_WORLD);
    print_max(before / 1000, "idle_cpu_us");
    free(big);
}

int main(int argc, char **argv)
{
    const char *kind = argc > 1 ? argv[1] : "";
    size_t last      = argc > 2 ? strtoul(argv[2], NULL, 0) : PUT_SIZE;
    size_t first     = argc > 3 ? strtoul(argv[3], NULL, 0) : 8;
    size_t step      = argc > 4 ? strtoul(argv[4], NULL, 0) : 4;
    size_t buffer;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size_world);
    if ((size_world & 1) || (last > MAX_SIZE) || (first < 8) || (step < 2)) {
        fail("needs an even number of ranks, sizes from 8 to 16777216, and a "
             "factor from 2 between them");
    }

    buffer     = strcmp(kind, "alltoall") ? MAX_SIZE : last * size_world;
    out_buffer = calloc(1, buffer);
    in_buffer  = calloc(1, buffer);
    if (find_batch(kind) != NULL) {
        sweep(find_batch(kind), first, last, step);
    } else if (!strcmp(kind, "pinned")) {
        pinned();
    } else if (!strcmp(kind, "idle")) {
        idle();
    } else {
        fail("say latency, bandwidth, allreduce, alltoall, bcast, pinned or "
             "idle");
    }

    free(in_buffer);
    free(out_buffer);
    MPI_Finalize();
    return EXIT_SUCCESS;
}
