/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * More data than memory. Each rank has MIB MiB to send from, and as much in a
 * window. The machine, or a control group, has less memory than that. Blocks go
 * to the next rank by put and by message, come back by get, and all are
 * checked, then single operations of all sizes. A transport that pins runs out
 * of memory.
 */

#include "mpi_test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define BLOCK (1u << 20)
#define MAX_SIZE (16 * BLOCK)

static unsigned num_blocks;
static char     *source, *window;

static char *map(size_t length)
{
    char *memory = mmap(NULL, length, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    CHECK(memory != MAP_FAILED, "cannot map %zu bytes", length);
    madvise(memory, length, MADV_NOHUGEPAGE);
    return memory;
}

static uint64_t block_key(int rank, unsigned block)
{
    return ((uint64_t)rank << 32) + block;
}

/* Kilobytes of this process that are in swap */
static long swapped_kb(void)
{
    FILE *file = fopen("/proc/self/status", "r");
    char line[256];
    long kb = 0;

    CHECK(file != NULL, "cannot open /proc/self/status");
    while (fgets(line, sizeof(line), file) != NULL) {
        sscanf(line, "VmSwap: %ld", &kb);
    }
    fclose(file);
    return kb;
}

/* An order in which consecutive blocks are far from each other */
static unsigned nth_block(unsigned n)
{
    return (unsigned)((uint64_t)n * 7919 % num_blocks);
}

static uint64_t put_all(MPI_Win win, int target)
{
    unsigned n, block;

    MPI_Win_fence(0, win);
    for (n = 0; n < num_blocks; ++n) {
        block = nth_block(n);
        MPI_Put(source + (size_t)block * BLOCK, BLOCK, MPI_BYTE, target,
                (MPI_Aint)block * BLOCK, BLOCK, MPI_BYTE, win);
    }
    MPI_Win_fence(0, win);
    return (uint64_t)num_blocks * BLOCK;
}

static uint64_t get_all(MPI_Win win, int target)
{
    char *block_buffer = malloc(BLOCK);
    unsigned n, block;

    for (n = 0; n < num_blocks; ++n) {
        block = nth_block(n);
        MPI_Win_lock(MPI_LOCK_SHARED, target, 0, win);
        MPI_Get(block_buffer, BLOCK, MPI_BYTE, target, (MPI_Aint)block * BLOCK,
                BLOCK, MPI_BYTE, win);
        MPI_Win_unlock(target, win);
        mpi_test_verify(block_buffer, BLOCK,
                        block_key(mpi_test_rank, block), "block got back");
    }
    free(block_buffer);
    return (uint64_t)num_blocks * BLOCK;
}

/* Messages from the source to the window of the next rank */
static uint64_t send_all(int to, int from)
{
    unsigned n, block;

    for (n = 0; n < num_blocks; ++n) {
        block = nth_block(n);
        MPI_Sendrecv(source + (size_t)block * BLOCK, BLOCK, MPI_BYTE, to, 1,
                     window + (size_t)block * BLOCK, BLOCK, MPI_BYTE, from, 1,
                     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
    return (uint64_t)num_blocks * BLOCK;
}

/* The beginning of the data of a rank */
static void verify(const char *memory, size_t size, int rank, const char *what)
{
    size_t offset;

    for (offset = 0; offset < size; offset += BLOCK) {
        mpi_test_verify(memory + offset,
                        (size - offset < BLOCK) ? size - offset : BLOCK,
                        block_key(rank, offset / BLOCK), what);
    }
}

static uint64_t all_sizes(MPI_Win win, int to, int from, char *got)
{
    size_t most    = (size_t)num_blocks * BLOCK;
    uint64_t bytes = 0;
    size_t size;

    for (size = 1; (size <= most) && (size <= MAX_SIZE); size *= 2) {
        memset(window, 0, size);
        MPI_Sendrecv(source, size, MPI_BYTE, to, 1, window, size, MPI_BYTE,
                     from, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        verify(window, size, from, "message of a size");
        memset(window, 0, size);
        MPI_Win_fence(0, win);
        MPI_Put(source, size, MPI_BYTE, to, 0, size, MPI_BYTE, win);
        MPI_Win_fence(0, win);
        verify(window, size, from, "put of a size");
        MPI_Get(got, size, MPI_BYTE, to, 0, size, MPI_BYTE, win);
        MPI_Win_fence(0, win);
        verify(got, size, mpi_test_rank, "get of a size");
        bytes += 3 * size;
    }
    return bytes;
}

int main(int argc, char **argv)
{
    uint64_t bytes = 0;
    unsigned block;
    size_t length;
    int to, from;
    MPI_Win win;
    char *got;
    long kb;

    num_blocks = mpi_test_init(argc, argv, MPI_THREAD_SINGLE, 16);
    length     = (size_t)num_blocks * BLOCK;
    to         = (mpi_test_rank + 1) % mpi_test_size;
    from       = (mpi_test_rank + mpi_test_size - 1) % mpi_test_size;
    source     = map(length);
    window     = map(length);
    MPI_Win_create(window, length, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &win);
    for (block = 0; block < num_blocks; ++block) {
        mpi_test_fill(source + (size_t)block * BLOCK, BLOCK,
                      block_key(mpi_test_rank, block));
    }

    bytes += put_all(win, to);
    verify(window, length, from, "put block");
    MPI_Barrier(MPI_COMM_WORLD);
    bytes += get_all(win, to);
    MPI_Barrier(MPI_COMM_WORLD);
    memset(window, 0, length);
    MPI_Barrier(MPI_COMM_WORLD);
    bytes += send_all(to, from);
    verify(window, length, from, "message");
    got    = map(length);
    bytes += all_sizes(win, to, from, got);
    munmap(got, length);

    kb = swapped_kb();
    MPI_Allreduce(MPI_IN_PLACE, &kb, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    if (mpi_test_rank == 0) {
        printf("swapped: %ld kB\n", kb);
    }
    MPI_Win_free(&win);
    munmap(window, length);
    munmap(source, length);
    return mpi_test_done(bytes);
}
