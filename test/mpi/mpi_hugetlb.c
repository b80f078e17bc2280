/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * Messages, puts and gets whose buffers are huge pages of MAP_HUGETLB. After
 * each use a buffer is unmapped, emptied, or replaced at the same address by
 * other pages, huge or not, private or of a file. Meanwhile a thread of each
 * rank maps and unmaps huge pages of its own.
 *
 * Rank 0 permits huge pages for that time. If it may not do that, and the
 * system has none, the test is skipped.
 */

#define _GNU_SOURCE
#include "mpi_test.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define HUGE         (2ul << 20)
#define BUFFER       (2 * HUGE)
#define ROUNDED_UP   (HUGE + 1) /* To BUFFER */
#define MAX_LENGTH   HUGE
#define PAGES_OF_ONE 16 /* Huge pages that a rank has at a time, at most */
#define LIMIT        "/proc/sys/vm/nr_overcommit_hugepages"

/* What is permitted, for all. UCX takes huge pages for memory of its own as
 * soon as it gets them, in every process of the system. */
#define PAGES_OF_ALL 2048

enum { OUT, IN, WINDOW, NUM_BUFFERS };

static char        *buffers[NUM_BUFFERS];
static uint64_t    state;
static atomic_int  is_over;
static atomic_long num_unmapped; /* By the thread */

static char *map(char *place, size_t length, int flags, int file)
{
    char *ptr = mmap(place, length, PROT_READ | PROT_WRITE,
                     flags | ((place == NULL) ? 0 : MAP_FIXED), file, 0);

    CHECK(ptr != MAP_FAILED, "no memory: %m");
    return ptr;
}

/* The kernel rounds lengths up to whole huge pages */
static char *map_huge(char *place)
{
    return map(place, ROUNDED_UP, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB,
               -1);
}

static char *map_huge_file(char *place)
{
    int file = memfd_create("mpi_hugetlb", MFD_HUGETLB);
    char *ptr;

    CHECK((file >= 0) && !ftruncate(file, BUFFER), "memfd_create: %m");
    ptr = map(place, ROUNDED_UP, MAP_SHARED, file);
    close(file);
    return ptr;
}

/* The contents and the pages of a buffer change, and sometimes its address */
static void change(char **buffer)
{
    switch (mpi_test_random(&state) % 5) {
    case 0:
        munmap(*buffer, BUFFER);
        *buffer = map_huge(NULL);
        break;
    case 1:
        map_huge(*buffer);
        break;
    case 2:
        map_huge_file(*buffer);
        break;
    case 3:
        /* Ordinary pages, and after the next change huge ones again */
        map(*buffer, BUFFER, MAP_PRIVATE | MAP_ANONYMOUS, -1);
        break;
    default:
        /* Linux before 5.18 refuses this, so nothing changes */
        madvise(*buffer, BUFFER, MADV_DONTNEED);
    }
}

static void *unmap_others(void *arg)
{
    char *block;

    while (!atomic_load(&is_over)) {
        block           = map_huge(NULL);
        block[0]        = 1;
        block[HUGE - 1] = 1;
        munmap(block, BUFFER);
        atomic_fetch_add(&num_unmapped, 1);
    }
    return arg;
}

static uint64_t exchange(MPI_Win win, uint64_t *seed, int round)
{
    int next      = (mpi_test_rank + 1) % mpi_test_size;
    int previous  = (mpi_test_rank + mpi_test_size - 1) % mpi_test_size;
    size_t length = mpi_test_length(seed, MAX_LENGTH);
    size_t place  = mpi_test_random(seed) % (BUFFER - MAX_LENGTH);
    char *out     = buffers[OUT] + place;
    char *in      = buffers[IN] + place;

    mpi_test_fill(out, length, mpi_test_rank + round);
    MPI_Sendrecv(out, length, MPI_BYTE, next, 1, in, length, MPI_BYTE, previous,
                 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    mpi_test_verify(in, length, previous + round, "message");
    change(&buffers[IN]);
    in = buffers[IN] + place;

    MPI_Win_lock(MPI_LOCK_SHARED, next, 0, win);
    MPI_Put(out, length, MPI_BYTE, next, place, length, MPI_BYTE, win);
    MPI_Win_flush(next, win);
    change(&buffers[OUT]);
    MPI_Get(in, length, MPI_BYTE, next, place, length, MPI_BYTE, win);
    MPI_Win_unlock(next, win);
    mpi_test_verify(in, length, mpi_test_rank + round, "block got back");
    MPI_Barrier(MPI_COMM_WORLD);
    mpi_test_verify(buffers[WINDOW] + place, length, previous + round,
                    "put block");
    MPI_Barrier(MPI_COMM_WORLD);
    return 3 * length;
}

/* A window of huge pages, which ends before its memory does */
static uint64_t exchange_some(uint64_t *seed, int round)
{
    uint64_t bytes = 0;
    MPI_Win win;
    int i;

    MPI_Win_create(buffers[WINDOW], BUFFER, 1, MPI_INFO_NULL, MPI_COMM_WORLD,
                   &win);
    for (i = 0; i < 5; ++i) {
        bytes += exchange(win, seed, 5 * round + i);
    }
    MPI_Win_free(&win);
    change(&buffers[WINDOW]);
    return bytes;
}

/* @return The limit before, or -1 if it cannot be set. */
static long set_limit(long pages)
{
    FILE *file = fopen(LIMIT, "r+");
    long old;

    if (file == NULL) {
        return -1;
    }
    if (fscanf(file, "%ld", &old) != 1) {
        old = -1;
    } else {
        rewind(file);
        fprintf(file, "%ld\n", pages);
    }
    return (fclose(file) == 0) ? old : -1;
}

/* Until no other process of this machine changes the limit. The lock is a name
 * of a socket, which ends with the process. */
static void lock_limit(void)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    int fd                  = socket(AF_UNIX, SOCK_DGRAM, 0);

    strcpy(name.sun_path + 1, "nprdma_test_hugetlb");
    while (bind(fd, (struct sockaddr*)&name, sizeof(name)) != 0) {
        CHECK(errno == EADDRINUSE, "bind: %m");
        usleep(10000);
    }
}

/* @return Whether huge pages are there. */
static int begin(long *old_limit)
{
    int is_there;
    char *ptr;

    *old_limit = -1;
    if (mpi_test_rank == 0) {
        lock_limit();
        *old_limit = set_limit(PAGES_OF_ALL);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    ptr      = mmap(NULL, PAGES_OF_ONE * HUGE, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
    is_there = (ptr != MAP_FAILED);
    MPI_Allreduce(MPI_IN_PLACE, &is_there, 1, MPI_INT, MPI_MIN,
                  MPI_COMM_WORLD);
    if (ptr != MAP_FAILED) {
        munmap(ptr, PAGES_OF_ONE * HUGE);
    }
    if (!is_there && (mpi_test_rank == 0)) {
        printf("SKIPPED: no huge pages (MAP_HUGETLB), nor the right to permit "
               "them\n");
    }
    MPI_Barrier(MPI_COMM_WORLD);
    return is_there;
}

static uint64_t run(int rounds)
{
    uint64_t seed  = 4711;
    uint64_t bytes = 0;
    pthread_t thread;
    int i;

    for (i = 0; i < NUM_BUFFERS; ++i) {
        buffers[i] = map_huge(NULL);
    }
    CHECK(pthread_create(&thread, NULL, unmap_others, NULL) == 0, "no thread");
    for (i = 0; i < rounds; ++i) {
        bytes += exchange_some(&seed, i);
    }
    atomic_store(&is_over, 1);
    pthread_join(thread, NULL);
    CHECK(atomic_load(&num_unmapped) > 0, "the thread has done nothing");
    return bytes;
}

int main(int argc, char **argv)
{
    int rounds     = mpi_test_init(argc, argv, MPI_THREAD_FUNNELED, 10);
    uint64_t bytes = 0;
    long old_limit;

    state = mpi_test_rank;
    if (begin(&old_limit)) {
        bytes = run(rounds);
    }
    if (old_limit >= 0) {
        set_limit(old_limit);
    }
    return mpi_test_done(bytes);
}
