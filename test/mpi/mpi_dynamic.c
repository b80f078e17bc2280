/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * A dynamic window whose memory is attached, detached, unmapped, mapped again
 * at the same address or elsewhere, and attached again. Puts and gets of peers
 * never access the old pages.
 */

#include "mpi_test.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define LENGTH  (512ul * 1024ul)

enum { SAME_PLACE, OTHER_PLACE, SAME_PAGES, NO_PAGES, NUM_CHANGES };

static char *map(char *place)
{
    char *memory = mmap(place, LENGTH, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS |
                        (place != NULL ? MAP_FIXED_NOREPLACE : 0), -1, 0);

    CHECK((memory != MAP_FAILED) && ((place == NULL) || (memory == place)),
          "cannot map memory: %m");
    return memory;
}

/* The memory is detached: map other memory in its place */
static char *change(char *memory, int how)
{
    char *other;

    switch (how) {
    case SAME_PLACE:
        munmap(memory, LENGTH);
        return map(memory);
    case OTHER_PLACE:
        other = map(NULL);
        munmap(memory, LENGTH);
        return other;
    case NO_PAGES:
        CHECK(madvise(memory, LENGTH, MADV_DONTNEED) == 0, "%m");
        return memory;
    default:
        return memory;
    }
}

/* Gets what the next rank has written there, puts other data, and gets that */
static uint64_t operate(MPI_Win win, MPI_Aint where, int round)
{
    int next      = (mpi_test_rank + 1) % mpi_test_size;
    uint64_t seed = round;
    size_t length = 1 + mpi_test_length(&seed, LENGTH - 1);
    char *block   = malloc(LENGTH);

    MPI_Win_lock(MPI_LOCK_SHARED, next, 0, win);
    MPI_Get(block, LENGTH, MPI_BYTE, next, where, LENGTH, MPI_BYTE, win);
    MPI_Win_flush(next, win);
    mpi_test_verify(block, LENGTH, 1000 * round + next, "attached memory");
    mpi_test_fill(block, length, 1000 * round + 500 + mpi_test_rank);
    MPI_Put(block, length, MPI_BYTE, next, where, length, MPI_BYTE, win);
    MPI_Win_flush(next, win);
    memset(block, 0, length);
    MPI_Get(block, length, MPI_BYTE, next, where, length, MPI_BYTE, win);
    MPI_Win_unlock(next, win);
    mpi_test_verify(block, length, 1000 * round + 500 + mpi_test_rank,
                    "block got back");
    MPI_Barrier(MPI_COMM_WORLD);
    free(block);
    return LENGTH + 2 * length;
}

int main(int argc, char **argv)
{
    int rounds     = mpi_test_init(argc, argv, MPI_THREAD_SINGLE, 40);
    int previous   = (mpi_test_rank + mpi_test_size - 1) % mpi_test_size;
    char *memory   = map(NULL);
    uint64_t bytes = 0;
    MPI_Aint places[2], seed_length;
    MPI_Win win;
    uint64_t seed;
    int round;

    MPI_Win_create_dynamic(MPI_INFO_NULL, MPI_COMM_WORLD, &win);
    for (round = 0; round < rounds; ++round) {
        /* Local stores must precede the epochs of other ranks */
        mpi_test_fill(memory, LENGTH, 1000 * round + mpi_test_rank);
        MPI_Win_attach(win, memory, LENGTH);
        MPI_Get_address(memory, &places[0]);
        MPI_Sendrecv(&places[0], 1, MPI_AINT, previous, 0, &places[1], 1,
                     MPI_AINT, MPI_ANY_SOURCE, 0, MPI_COMM_WORLD,
                     MPI_STATUS_IGNORE);
        MPI_Win_lock(MPI_LOCK_EXCLUSIVE, mpi_test_rank, 0, win);
        MPI_Win_unlock(mpi_test_rank, win);
        MPI_Barrier(MPI_COMM_WORLD);

        bytes += operate(win, places[1], round);
        seed        = round;
        seed_length = 1 + mpi_test_length(&seed, LENGTH - 1);
        MPI_Win_lock(MPI_LOCK_EXCLUSIVE, mpi_test_rank, 0, win);
        mpi_test_verify(memory, seed_length, 1000 * round + 500 + previous,
                        "put block");
        MPI_Win_unlock(mpi_test_rank, win);
        MPI_Win_detach(win, memory);
        memory = change(memory, round % NUM_CHANGES);
    }

    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_free(&win);
    munmap(memory, LENGTH);
    return mpi_test_done(bytes);
}
