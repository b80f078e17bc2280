/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * Messages have the data of their buffer after the addresses of the buffer got
 * other pages. Two ranks; between two messages both change what their buffer
 * stands for, by each of these ways:
 *
 *   libc       munmap() and mmap() of the C library
 *   raw        the same as system calls, which memory hooks do not see
 *   over       mmap(MAP_FIXED) over the buffer, a system call
 *   moved      mremap() of other pages into its place, a system call
 *   dropped    madvise(MADV_DONTNEED), a system call
 *   forked     fork(); the parent writes while the child has the old pages
 *   truncated  ftruncate() of the file that is mapped, to nothing and back
 *   other      libc's calls by another C library, loaded later
 *
 * mpi_stale [ROUNDS [WAY]]. WAY is a control over a transport that pins: the
 * data must be wrong after that way, and the program says so.
 */

#define _GNU_SOURCE

#include "mpi_test.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef MADV_DONTNEED_LOCKED
#define MADV_DONTNEED_LOCKED 24 /* Of <linux/mman.h>, missing in glibc 2.36 */
#endif

#define SIZE     65536ul
#define ACCESS   (PROT_READ | PROT_WRITE)
#define ANYWHERE (MAP_PRIVATE | MAP_ANONYMOUS)
#define IN_PLACE (ANYWHERE | MAP_FIXED)

/* Far from where the kernel maps what has no address, so that nothing gets
 * between munmap() and mmap(). Each way has its own addresses, which no
 * registration of another one covers. */
#define PLACE    0x300000000000
#define DISTANCE 0x40000000

static int   file;
static pid_t child;
static int   child_pipe[2];

static void *raw_mmap(void *where, int flags)
{
    return (void*)syscall(SYS_mmap, where, SIZE, ACCESS, flags, -1, 0);
}

static void must_map(void *got, void *where)
{
    CHECK(got == where, "cannot map memory: %m");
}

static void by_libc(void *buffer)
{
    munmap(buffer, SIZE);
    must_map(mmap(buffer, SIZE, ACCESS, IN_PLACE, -1, 0), buffer);
}

static void by_raw(void *buffer)
{
    syscall(SYS_munmap, buffer, SIZE);
    must_map(raw_mmap(buffer, IN_PLACE), buffer);
}

static void by_over(void *buffer)
{
    must_map(raw_mmap(buffer, IN_PLACE), buffer);
}

static void by_moved(void *buffer)
{
    void *other = raw_mmap(NULL, ANYWHERE);

    CHECK(other != MAP_FAILED, "cannot map memory: %m");
    memset(other, 7, SIZE);
    must_map((void*)syscall(SYS_mremap, other, SIZE, SIZE,
                            MREMAP_MAYMOVE | MREMAP_FIXED, buffer), buffer);
}

static void by_dropped(void *buffer)
{
    /* The emulated RNIC pins by mlock(), a device does not: its pages can be
     * dropped. Linux 5.18 has this for pages that are locked. */
    CHECK((syscall(SYS_madvise, buffer, SIZE, MADV_DONTNEED) == 0) ||
                  (syscall(SYS_madvise, buffer, SIZE, MADV_DONTNEED_LOCKED) ==
                   0), "cannot drop pages: %m");
}

/* The child holds the pages until the next turn */
static void end_child(void)
{
    if (child > 0) {
        close(child_pipe[1]);
        waitpid(child, NULL, 0);
        child = 0;
    }
}

static void by_forked(void *buffer)
{
    char byte;

    (void)buffer;
    end_child();
    CHECK(pipe(child_pipe) == 0, "cannot make a pipe: %m");
    child = fork();
    CHECK(child >= 0, "cannot fork: %m");
    if (child == 0) {
        close(child_pipe[1]);
        while (read(child_pipe[0], &byte, 1) < 0) {
        }
        _exit(0);
    }
    close(child_pipe[0]);
}

static void by_truncated(void *buffer)
{
    (void)buffer;
    CHECK((ftruncate(file, 0) == 0) && (ftruncate(file, SIZE) == 0),
          "cannot truncate: %m");
}

/* Memory hooks are in the first one only */
static void by_other(void *buffer)
{
    static void *library;
    int   (*other_munmap)(void*, size_t);
    void *(*other_mmap)(void*, size_t, int, int, int, off_t);

    if (library == NULL) {
        library = dlmopen(LM_ID_NEWLM, "libc.so.6", RTLD_NOW);
    }
    CHECK(library != NULL, "no other C library: %s", dlerror());
    *(void**)&other_munmap = dlsym(library, "munmap");
    *(void**)&other_mmap   = dlsym(library, "mmap");
    CHECK(other_mmap && (other_mmap != mmap), "no other C library");
    other_munmap(buffer, SIZE);
    must_map(other_mmap(buffer, SIZE, ACCESS, IN_PLACE, -1, 0), buffer);
}

static const struct {
    const char *name;
    void       (*change)(void *buffer);
} ways[] = {
    {"libc", by_libc}, {"raw", by_raw}, {"over", by_over}, {"moved", by_moved},
    {"dropped", by_dropped}, {"forked", by_forked}, {"truncated", by_truncated},
    {"other", by_other}
};
enum { NUM_WAYS = sizeof(ways) / sizeof(*ways) };

static bool is_pattern(const void *buffer, int key)
{
    static char expected[SIZE];

    mpi_test_fill(expected, SIZE, key);
    return memcmp(buffer, expected, SIZE) == 0;
}

/* The receiver's buffer has other contents before. @return Whether it has what
 * had to arrive. */
static bool message(void *buffer, int key)
{
    if (mpi_test_rank == 0) {
        mpi_test_fill(buffer, SIZE, key);
        MPI_Send(buffer, SIZE, MPI_BYTE, 1, 1, MPI_COMM_WORLD);
        return true;
    }
    memset(buffer, 0xee, SIZE);
    MPI_Recv(buffer, SIZE, MPI_BYTE, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    return is_pattern(buffer, key);
}

/* @return How many messages of the receiver are wrong */
static int run(int way, int rounds)
{
    void *place = (void*)(PLACE + way * DISTANCE);
    bool is_file = (ways[way].change == by_truncated);
    int wrong    = 0;
    int turn;

    if (is_file) {
        file = memfd_create("mpi_stale", 0);
        CHECK((file >= 0) && (ftruncate(file, SIZE) == 0), "no file: %m");
    }
    must_map(mmap(place, SIZE, ACCESS, (is_file ? MAP_SHARED : ANYWHERE) |
                  MAP_FIXED_NOREPLACE, is_file ? file : -1, 0), place);
    for (turn = 0; turn < rounds; ++turn) {
        wrong += !message(place, 2 * turn);
        ways[way].change(place);
        wrong += !message(place, 2 * turn + 1);
    }
    end_child();
    munmap(place, SIZE);
    MPI_Bcast(&wrong, 1, MPI_INT, 1, MPI_COMM_WORLD);
    return wrong;
}

int main(int argc, char **argv)
{
    int rounds = mpi_test_init(argc, argv, MPI_THREAD_SINGLE, 5);
    int way, wrong;

    CHECK(mpi_test_size == 2, "%d ranks, not 2", mpi_test_size);
    for (way = 0; way < NUM_WAYS; ++way) {
        if ((argc > 2) && strcmp(ways[way].name, argv[2])) {
            continue;
        }
        wrong = run(way, rounds);
        if (argc > 2) {
            CHECK(wrong > 0, "%s: all %d messages are right", ways[way].name,
                  2 * rounds);
            if (mpi_test_rank == 0) {
                printf("%s: %d of %d messages are wrong, as they must be\n",
                       ways[way].name, wrong, 2 * rounds);
            }
        } else {
            CHECK(wrong == 0, "%s: %d of %d messages are wrong",
                  ways[way].name, wrong, 2 * rounds);
        }
    }
    return mpi_test_done((uint64_t)(argc > 2 ? 1 : NUM_WAYS) * 2 * rounds *
                         SIZE * (mpi_test_rank == 0));
}
