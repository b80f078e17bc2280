/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * Buffers that are allocated for one use and released behind it: messages and
 * windows, of mmap() and of calloc(). With UCX_NPRDMA_LAZY_UNMAP they come
 * back, always with zeros, and nothing that was meant for an earlier buffer
 * reaches them.
 */

#include "mpi_test.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAX_BLOCKS 8 /* Of 128 KiB */
#define BLOCK      131072

static int by_calloc; /* In this round */

static char *allocate(size_t length)
{
    char *ptr = by_calloc ? calloc(1, length) :
                            mmap(NULL, length, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    size_t i;

    CHECK((ptr != NULL) && (ptr != MAP_FAILED), "no %zu bytes", length);
    for (i = 0; i < length; i += sizeof(uint64_t)) {
        CHECK(*(uint64_t*)(ptr + i) == 0, "byte %zu of %zu is not zero", i,
              length);
    }
    return ptr;
}

static void release(char *ptr, size_t length)
{
    if (by_calloc) {
        free(ptr);
        return;
    }

    CHECK(munmap(ptr, length) == 0, "cannot unmap %zu bytes", length);
}

/* In the child too, memory is what it should be */
static void fork_once(char *ptr, size_t length, uint64_t key)
{
    int status;
    pid_t pid = fork();

    CHECK(pid >= 0, "cannot fork");
    if (pid == 0) {
        mpi_test_verify(ptr, length, key, "buffer of the child");
        _exit(0);
    }
    CHECK(waitpid(pid, &status, 0) == pid, "lost a child");
    CHECK(WIFEXITED(status) && (WEXITSTATUS(status) == 0), "status %d", status);
}

static uint64_t exchange(size_t length, uint64_t key, int forks)
{
    int right = (mpi_test_rank + 1) % mpi_test_size;
    int left  = (mpi_test_rank + mpi_test_size - 1) % mpi_test_size;
    char *out = allocate(length);
    char *in  = allocate(length);

    mpi_test_fill(out, length, key + mpi_test_rank);
    MPI_Sendrecv(out, length, MPI_BYTE, right, 1, in, length, MPI_BYTE, left, 1,
                 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    release(out, length);
    if (forks) {
        fork_once(in, length, key + left);
    }
    mpi_test_verify(in, length, key + left, "message");
    release(in, length);
    return length;
}

static uint64_t window(size_t length, uint64_t key)
{
    int right  = (mpi_test_rank + 1) % mpi_test_size;
    int left   = (mpi_test_rank + mpi_test_size - 1) % mpi_test_size;
    char *base = allocate(length);
    char *out  = allocate(length);
    MPI_Win win;

    mpi_test_fill(out, length, key + mpi_test_rank);
    MPI_Win_create(base, length, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &win);
    MPI_Win_fence(0, win);
    MPI_Put(out, length, MPI_BYTE, right, 0, length, MPI_BYTE, win);
    MPI_Win_fence(0, win);
    mpi_test_verify(base, length, key + left, "window");
    MPI_Win_free(&win);
    release(base, length);
    release(out, length);
    return length;
}

int main(int argc, char **argv)
{
    int rounds     = mpi_test_init(argc, argv, MPI_THREAD_SINGLE, 150);
    uint64_t bytes = 0;
    uint64_t seed  = 20261;
    uint32_t random;
    size_t length;
    int round;

    for (round = 0; round < rounds; ++round) {
        random = mpi_test_random(&seed);
        length    = (1 + (random % MAX_BLOCKS)) * BLOCK;
        by_calloc = (random >> 12) & 1;
        bytes += (random & 0x100) ? window(length, round * 100) :
                                    exchange(length, round * 100,
                                             (random & 0xe00) == 0);
    }

    return mpi_test_done(bytes);
}
