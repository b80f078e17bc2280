/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * paged on_demand|pinned|ucp ROUNDS: two processes. One owns memory, which the
 * other one reads and writes by RDMA with all data checked. Meanwhile threads
 * of both swap pages out all the time. From round to round the owner also forks
 * children and maps its memory anew. Needs a device rxe0, and swap. At the end
 * each process prints how many pages were taken and how many kilobytes are
 * pinned.
 */

#define _GNU_SOURCE
#include "absent.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE     ((size_t)4096)
#define PAGES    ((size_t)256)
#define LENGTH   (PAGES * PAGE)

/* Pages that a thread takes at a time */
#define TAKEN    ((size_t)16)

/* Ranges, and whether they are whole pages: soft-RoCE of 7.2 stores on-demand
 * memory at the beginning of pages only */
static const struct range {
    size_t offset, length;
    int    is_whole;
} ranges[] = {
    {0, LENGTH, 1},
    {3 * PAGE, 40 * PAGE, 1},
    {7 * PAGE, 100 * PAGE + 77, 1},
    {100, LENGTH - 300, 0},
    {5 * PAGE + 1, 20000, 0},
    {64, 100, 0}
};

#define RANGES (sizeof(ranges) / sizeof(ranges[0]))

typedef struct order {
    absent_op_t op;
    unsigned    seed;
    size_t      offset, length;
} order_t;

static uint8_t    *memory;
static atomic_int  is_over;
static atomic_long num_taken;

void absent_send(int socket, const void *data, size_t length)
{
    CHECK(send(socket, data, length, MSG_NOSIGNAL) == (ssize_t)length,
          "the other process is gone");
}

void absent_receive(int socket, void *data, size_t length)
{
    CHECK(recv(socket, data, length, MSG_WAITALL) == (ssize_t)length,
          "the other process is gone");
}

static uint8_t content(unsigned seed, size_t pos)
{
    return (seed * 37) ^ (pos * 11) ^ (pos >> 12);
}

static void fill(unsigned seed)
{
    size_t i;

    for (i = 0; i < LENGTH; ++i) {
        memory[i] = content(seed, i);
    }
}

static void check(const char *what, unsigned seed, size_t begin, size_t end)
{
    size_t i;

    for (i = begin; i < end; ++i) {
        CHECK(memory[i] == content(seed, i),
              "%s: byte %zu is 0x%02x, not 0x%02x, in round %u", what, i,
              memory[i], content(seed, i), seed / 2);
    }
}

static void map_memory(void)
{
    int fixed = (memory == NULL) ? 0 : MAP_FIXED;
    void *ptr;

    CHECK((memory == NULL) || (munmap(memory, LENGTH) == 0), "munmap: %m");
    ptr = mmap(memory, LENGTH, PROT_READ | PROT_WRITE,
               MAP_PRIVATE | MAP_ANONYMOUS | fixed, -1, 0);
    CHECK(ptr != MAP_FAILED, "mmap: %m");
    CHECK(madvise(ptr, LENGTH, MADV_NOHUGEPAGE) == 0, "madvise: %m");
    memory = ptr;
}

static size_t num_present(int fd, const uint8_t *start)
{
    uint64_t entries[TAKEN];
    size_t i, count = 0;

    CHECK(pread(fd, entries, sizeof(entries), (uintptr_t)start / PAGE * 8) ==
          sizeof(entries), "pagemap: %m");
    for (i = 0; i < TAKEN; ++i) {
        count += entries[i] >> 63;
    }
    return count;
}

/* Takes pages until the end. The memory may be unmapped at the same time. */
static void *take_pages(void *arg)
{
    int fd        = open("/proc/self/pagemap", O_RDONLY);
    unsigned seed = 1;
    uint8_t *start;
    size_t before, after;

    CHECK(fd >= 0, "no pagemap");
    while (!atomic_load(&is_over)) {
        start  = memory + rand_r(&seed) % (PAGES - TAKEN) * PAGE;
        before = num_present(fd, start);
        CHECK((madvise(start, TAKEN * PAGE, MADV_PAGEOUT) == 0) ||
              (errno == ENOMEM), "MADV_PAGEOUT: %m");
        after = num_present(fd, start);
        if (after < before) {
            atomic_fetch_add(&num_taken, before - after);
        }
        /* soft-RoCE gives up a page that is taken from it for a second, and
         * one page of a region that is taken counts for all of them */
        usleep(20000);
    }
    close(fd);
    return arg;
}

/* A child shares the pages until one of the two writes to them */
static pid_t fork_child(void)
{
    pid_t pid = fork();

    CHECK(pid >= 0, "fork: %m");
    if (pid == 0) {
        usleep(50000);
        _exit(0);
    }
    return pid;
}

static void print_status(const char *side)
{
    FILE *file = fopen("/proc/self/status", "r");
    char line[256];
    long pinned = -1;

    CHECK(file != NULL, "no status");
    while (fgets(line, sizeof(line), file) != NULL) {
        sscanf(line, "VmPin: %ld", &pinned);
    }
    fclose(file);
    printf("%s: taken %ld VmPin %ld\n", side, atomic_load(&num_taken), pinned);
}

static void obey(const absent_way_t *way, int socket)
{
    const char *failure;
    order_t order;

    while (recv(socket, &order, sizeof(order), MSG_WAITALL) == sizeof(order)) {
        fill((order.op == ABSENT_WRITE) ? order.seed : order.seed + 1);
        failure = way->transfer(order.op, order.offset, order.length);
        CHECK(failure == NULL, "%s", failure);
        if (order.op == ABSENT_READ) {
            check("before it was read", order.seed + 1, 0, order.offset);
            check("read", order.seed, order.offset,
                  order.offset + order.length);
            check("behind what was read", order.seed + 1,
                  order.offset + order.length, LENGTH);
        }
        absent_send(socket, "", 1);
    }
}

static void have_done(int socket, absent_op_t op, unsigned seed,
                      const struct range *range)
{
    order_t order = {op, seed, range->offset, range->length};
    char answer;

    absent_send(socket, &order, sizeof(order));
    absent_receive(socket, &answer, 1);
}

static void own(int socket, unsigned rounds, int only_whole)
{
    const struct range *range;
    unsigned round;
    pid_t pid;

    for (round = 1; round <= rounds; ++round) {
        range = &ranges[round % RANGES];
        if (only_whole && !range->is_whole) {
            continue;
        }
        if (round % 5 == 0) {
            map_memory();
        }
        fill(2 * round);
        pid = (round % 4 == 0) ? fork_child() : 0;
        have_done(socket, ABSENT_READ, 2 * round, range);
        have_done(socket, ABSENT_WRITE, 2 * round + 1, range);
        check("before the write", 2 * round, 0, range->offset);
        check("written", 2 * round + 1, range->offset,
              range->offset + range->length);
        check("behind the write", 2 * round, range->offset + range->length,
              LENGTH);
        CHECK((pid == 0) || (waitpid(pid, NULL, 0) == pid), "waitpid: %m");
    }
}

int main(int argc, char **argv)
{
    const char *name = (argc == 3) ? argv[1] : "";
    const absent_way_t *way;
    pthread_t thread;
    int pair[2], status;
    pid_t pid;

    way = !strcmp(name, "pinned")    ? &absent_pinned :
          !strcmp(name, "on_demand") ? &absent_on_demand :
          !strcmp(name, "ucp")       ? &absent_ucp : NULL;
    CHECK(way != NULL, "usage: paged on_demand|pinned|ucp ROUNDS");
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0, "no sockets");
    setvbuf(stdout, NULL, _IOLBF, 0);

    pid = fork();
    CHECK(pid >= 0, "fork");
    close(pair[pid != 0]);
    map_memory();
    way->connect(pid != 0, pair[pid == 0], memory, LENGTH);
    CHECK(pthread_create(&thread, NULL, take_pages, NULL) == 0, "no thread");
    if (pid == 0) {
        obey(way, pair[1]);
    } else {
        own(pair[0], atoi(argv[2]), way == &absent_on_demand);
    }
    atomic_store(&is_over, 1);
    pthread_join(thread, NULL);
    print_status(pid ? "owner" : "other");
    if (pid != 0) {
        close(pair[0]);
        CHECK(waitpid(pid, &status, 0) == pid, "waitpid");
        CHECK(status == 0, "the other process ended with 0x%x", status);
    }
    way->disconnect();
    return EXIT_SUCCESS;
}
