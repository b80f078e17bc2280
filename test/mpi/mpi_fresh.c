/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * A new buffer for each message, so that pages come in early, and programs that
 * are unlucky: they protect, move, drop, unmap, share or never use what looks
 * like the next buffer, and put a file at its addresses. New memory is zero in
 * all bytes whatever came in early, and files get no data.
 */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "mpi_test.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define LENGTH ((size_t)512 * 1024)
#define PAGE   4096
#define POLLS  200 /* Calls of progress that have nothing else to do */
#define STREAK 6   /* Messages in a row: the next block is expected */

static int file;

/* Of a thread that has blocks of the same length, and no messages */
static atomic_int stop;

static char *map(void)
{
    char *ptr = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    CHECK(ptr != MAP_FAILED, "cannot map %zu bytes", LENGTH);
    return ptr;
}

static void unmap(char *ptr, size_t length)
{
    CHECK(munmap(ptr, length) == 0, "cannot unmap %zu bytes", length);
}

static void check_zero(const char *ptr, size_t length, const char *what)
{
    size_t i;

    for (i = 0; i < length; i += sizeof(uint64_t)) {
        CHECK(*(const uint64_t*)(ptr + i) == 0, "%s: byte %zu is not zero",
              what, i);
    }
}

static void poll_messages(void)
{
    int i, is_there;

    for (i = 0; i < POLLS; ++i) {
        MPI_Iprobe(MPI_ANY_SOURCE, 999, MPI_COMM_WORLD, &is_there,
                   MPI_STATUS_IGNORE);
    }
}

/* A message to the right; one from the left into a new buffer, which has that
 * many bytes of its own in front */
static uint64_t exchange(uint64_t key, size_t front)
{
    int right     = (mpi_test_rank + 1) % mpi_test_size;
    int left      = (mpi_test_rank + mpi_test_size - 1) % mpi_test_size;
    size_t length = LENGTH - front;
    char *in      = map();
    char *out     = map();
    MPI_Request request;

    MPI_Irecv(in + front, length, MPI_BYTE, left, 1, MPI_COMM_WORLD, &request);
    poll_messages();
    mpi_test_fill(out, length, key + mpi_test_rank);
    MPI_Send(out, length, MPI_BYTE, right, 1, MPI_COMM_WORLD);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    mpi_test_verify(in + front, length, key + left, "message");
    check_zero(in, front, "in front of the message");
    unmap(in, LENGTH);
    unmap(out, LENGTH);
    return length;
}

static void never_used(void)
{
    char *ptr = map();

    poll_messages();
    check_zero(ptr, LENGTH, "never used");
    unmap(ptr, LENGTH);
}

static void is_protected(void)
{
    char *ptr = map();

    CHECK(!mprotect(ptr + LENGTH / 2, LENGTH / 2, PROT_NONE), "mprotect");
    poll_messages();
    CHECK(!mprotect(ptr, LENGTH, PROT_READ | PROT_WRITE), "mprotect");
    poll_messages();
    check_zero(ptr, LENGTH, "protected for a while");
    unmap(ptr, LENGTH);
}

static void is_moved(void)
{
    char *ptr = map(), *moved;

    poll_messages();
    memset(ptr, 1, PAGE);
    moved = mremap(ptr, LENGTH, 2 * LENGTH, MREMAP_MAYMOVE);
    CHECK(moved != MAP_FAILED, "mremap");
    poll_messages();
    check_zero(moved + PAGE, 2 * LENGTH - PAGE, "moved");
    unmap(moved, 2 * LENGTH);
}

static void is_dropped(void)
{
    char *ptr = map();

    poll_messages();
    memset(ptr, 1, LENGTH);
    CHECK(!madvise(ptr, LENGTH, MADV_DONTNEED), "madvise");
    poll_messages();
    check_zero(ptr, LENGTH, "dropped");
    unmap(ptr + LENGTH / 2, LENGTH / 2);
    poll_messages();
    unmap(ptr, LENGTH / 2);
}

static void is_shared(void)
{
    char *ptr = map();
    int status;
    pid_t pid = fork();

    CHECK(pid >= 0, "cannot fork");
    if (pid == 0) {
        check_zero(ptr, LENGTH, "of the child");
        memset(ptr, 1, LENGTH);
        _exit(0);
    }
    poll_messages();
    CHECK(waitpid(pid, &status, 0) == pid, "lost a child");
    CHECK(WIFEXITED(status) && (WEXITSTATUS(status) == 0), "status %d", status);
    check_zero(ptr, LENGTH, "of the parent");
    unmap(ptr, LENGTH);
}

/* A file without any data comes to the addresses of the block */
static void becomes_file(void)
{
    char *ptr = map(), *there;
    struct stat st;

    unmap(ptr, LENGTH);
    there = mmap(ptr, LENGTH, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    CHECK(there != MAP_FAILED, "cannot map the file");
    poll_messages();
    CHECK(!fstat(file, &st), "fstat");
    CHECK(st.st_blocks == 0, "the file has got %ld blocks",
          (long)st.st_blocks);
    unmap(there, LENGTH);
}

static void *others(void *arg)
{
    (void)arg;
    while (!atomic_load(&stop)) {
        char *ptr = map();

        usleep(100);
        check_zero(ptr, LENGTH, "of another thread");
        ptr[LENGTH - 1] = 1;
        unmap(ptr, LENGTH);
        usleep(5000);
    }
    return NULL;
}

static void misfortune(int round)
{
    static void (*const all[])(void) = {
        never_used, is_protected, is_moved, is_dropped, is_shared, becomes_file
    };
    pthread_t thread;

    if (round % 7 == 6) {
        atomic_store(&stop, 0);
        CHECK(!pthread_create(&thread, NULL, others, NULL), "no thread");
        never_used();
        atomic_store(&stop, 1);
        pthread_join(thread, NULL);
    } else {
        all[round % 7]();
    }
}

int main(int argc, char **argv)
{
    int rounds     = mpi_test_init(argc, argv, MPI_THREAD_SINGLE, 60);
    char name[]    = "/tmp/mpi_fresh.XXXXXX";
    uint64_t bytes = 0;
    int round, i;

    file = mkstemp(name);
    CHECK((file >= 0) && !unlink(name) && !ftruncate(file, LENGTH),
          "cannot make a file in /tmp");
    for (round = 0; round < rounds; ++round) {
        for (i = 0; i < STREAK; ++i) {
            bytes += exchange(round * 1000 + i * 10, (round % 3) * 16);
        }
        misfortune(round);
    }
    close(file);
    return mpi_test_done(bytes);
}
