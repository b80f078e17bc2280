/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * Communicators and windows are created and freed repeatedly. Each window
 * creates endpoints and registrations of its own. File descriptors, mappings,
 * resident and locked memory must not grow.
 */

#include "mpi_test.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WINDOW_SIZE 65536

typedef struct {
    long fds;
    long mappings;
    long rss_kb;
    long locked_kb;
} usage_t;

static long status_field(const char *name)
{
    FILE *file = fopen("/proc/self/status", "r");
    long value = -1;
    char line[256];

    CHECK(file != NULL, "cannot open /proc/self/status");
    while (fgets(line, sizeof(line), file) != NULL) {
        if (strncmp(line, name, strlen(name)) == 0) {
            value = atol(line + strlen(name));
        }
    }
    fclose(file);
    CHECK(value >= 0, "no %s in /proc/self/status", name);
    return value;
}

static usage_t usage(void)
{
    usage_t u = {0};
    FILE *maps;
    DIR *dir;
    int c;

    dir = opendir("/proc/self/fd");
    CHECK(dir != NULL, "cannot open /proc/self/fd");
    while (readdir(dir) != NULL) {
        ++u.fds;
    }
    closedir(dir);

    maps = fopen("/proc/self/maps", "r");
    CHECK(maps != NULL, "cannot open /proc/self/maps");
    while ((c = fgetc(maps)) != EOF) {
        u.mappings += (c == '\n');
    }
    fclose(maps);

    u.rss_kb    = status_field("VmRSS:");
    u.locked_kb = status_field("VmLck:");
    return u;
}

static uint64_t cycle(int round)
{
    int right = (mpi_test_rank + 1) % mpi_test_size;
    int left  = (mpi_test_rank + mpi_test_size - 1) % mpi_test_size;
    MPI_Comm dup, half;
    char *base, *out;
    MPI_Win win;
    int sum, size;

    MPI_Comm_dup(MPI_COMM_WORLD, &dup);
    MPI_Comm_split(dup, mpi_test_rank % 2, mpi_test_rank, &half);
    MPI_Comm_size(half, &size);
    MPI_Allreduce(&round, &sum, 1, MPI_INT, MPI_SUM, half);
    CHECK(sum == round * size, "sum %d in round %d", sum, round);

    base = malloc(WINDOW_SIZE);
    out  = malloc(WINDOW_SIZE);
    mpi_test_fill(out, WINDOW_SIZE, mpi_test_rank * 1000 + round);
    MPI_Win_create(base, WINDOW_SIZE, 1, MPI_INFO_NULL, dup, &win);
    MPI_Win_fence(0, win);
    MPI_Put(out, WINDOW_SIZE, MPI_BYTE, right, 0, WINDOW_SIZE, MPI_BYTE, win);
    MPI_Win_fence(0, win);
    mpi_test_verify(base, WINDOW_SIZE, left * 1000 + round, "window");
    MPI_Win_free(&win);
    free(out);
    free(base);

    MPI_Comm_free(&half);
    MPI_Comm_free(&dup);
    return mpi_test_size > 1 ? WINDOW_SIZE : 0;
}

int main(int argc, char **argv)
{
    int rounds     = mpi_test_init(argc, argv, MPI_THREAD_SINGLE, 60);
    uint64_t bytes = 0;
    usage_t before = {0}, after;
    int round;

    for (round = 0; round < rounds; ++round) {
        /* Pools grow to their size in the first cycles */
        if (round == rounds / 3) {
            before = usage();
        }
        bytes += cycle(round);
    }

    after = usage();
    if (mpi_test_rank == 0) {
        printf("cycles: %d, fds %ld -> %ld, mappings %ld -> %ld, resident "
               "%ld -> %ld kB, locked %ld -> %ld kB\n", rounds, before.fds,
               after.fds, before.mappings, after.mappings, before.rss_kb,
               after.rss_kb, before.locked_kb, after.locked_kb);
    }
    CHECK(after.fds <= before.fds + 2, "descriptors %ld -> %ld", before.fds,
          after.fds);
    CHECK(after.mappings <= before.mappings + 16, "mappings %ld -> %ld",
          before.mappings, after.mappings);
    CHECK(after.locked_kb <= before.locked_kb, "locked %ld -> %ld kB",
          before.locked_kb, after.locked_kb);
    CHECK(after.rss_kb <= before.rss_kb + 4096, "resident %ld -> %ld kB",
          before.rss_kb, after.rss_kb);
    /* No application memory is pinned, and nprdma's own buffers at most this */
    CHECK(after.locked_kb <= 4096, "locked memory is %ld kB", after.locked_kb);
    return mpi_test_done(bytes);
}
