/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * absent pinned|on_demand|ucp: two processes. One owns memory, of which pages
 * are swapped out, discarded and unmapped, while the other one reads and writes
 * it by RDMA. It prints one line for each step: what the application sees.
 * Lines with "#" tell what only the kernel sees. Needs a device rxe0, and swap
 * on zram.
 */

#define _GNU_SOURCE
#include "absent.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGE     ((size_t)4096)
#define PAGES    ((size_t)64)
#define LENGTH   (PAGES * PAGE)

/* Seconds within which pages must be swapped out */
#define PATIENCE 20

/* Each step has data of its own; that of step 0 is zeros */
static uint8_t content(int step, size_t pos)
{
    return (step == 0) ? 0 : (step * 37) ^ (pos * 11) ^ (pos >> 12);
}

static void fill(uint8_t *memory, int step)
{
    size_t i;

    for (i = 0; i < LENGTH; ++i) {
        memory[i] = content(step, i);
    }
}

/* Whether [begin, end) has the contents of a step */
static int is_content(const uint8_t *memory, int step, size_t begin, size_t end)
{
    size_t i;

    for (i = begin; i < end; ++i) {
        if (memory[i] != content(step, i)) {
            printf("# byte %zu is 0x%02x, not 0x%02x\n", i, memory[i],
                   content(step, i));
            return 0;
        }
    }
    return 1;
}

static size_t pages_present(const uint8_t *memory)
{
    int fd       = open("/proc/self/pagemap", O_RDONLY);
    size_t count = 0;
    uint64_t entry[PAGES];
    size_t i;

    CHECK(fd >= 0, "no pagemap");
    CHECK(pread(fd, entry, sizeof(entry), (uintptr_t)memory / PAGE * 8) ==
          sizeof(entry), "pagemap");
    close(fd);
    for (i = 0; i < PAGES; ++i) {
        count += entry[i] >> 63;
    }
    return count;
}

/* A page that is in use for a moment is taken at the next try, a pinned page
 * never */
static void swap_out(uint8_t *memory, int pinned)
{
    time_t end = time(NULL) + PATIENCE;

    do {
        CHECK(madvise(memory, LENGTH, MADV_PAGEOUT) == 0, "MADV_PAGEOUT");
    } while (!pinned && pages_present(memory) && (time(NULL) < end));
    CHECK(pinned || (pages_present(memory) == 0), "%zu pages are there",
          pages_present(memory));
}

static uint8_t *map_memory(void)
{
    uint8_t *memory = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    CHECK(memory != MAP_FAILED, "mmap");
    CHECK(madvise(memory, LENGTH, MADV_NOHUGEPAGE) == 0, "madvise");
    return memory;
}

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


/* Order of one step to the other process. It fills its memory with the contents
 * of step put, and swaps it out. It answers with an empty text or the reason of
 * the failure, whether its memory has the contents of step get (-1: not
 * checked), and the number that it fetched. */
typedef struct order {
    absent_op_t op;
    int         put, get, swapped;
    size_t      offset, length;
} order_t;

typedef struct outcome {
    char     failure[80];
    int      data_right;
    uint64_t fetched;
} outcome_t;

static void obey(const absent_way_t *way, int socket, int pinned)
{
    uint8_t *memory = map_memory();
    const char *failure;
    outcome_t outcome;
    order_t order;

    way->connect(0, socket, memory, LENGTH);
    while (recv(socket, &order, sizeof(order), MSG_WAITALL) == sizeof(order)) {
        fill(memory, order.put);
        if (order.swapped) {
            swap_out(memory, pinned);
        }
        failure = way->transfer(order.op, order.offset, order.length);
        memset(&outcome, 0, sizeof(outcome));
        snprintf(outcome.failure, sizeof(outcome.failure), "%s",
                 failure ? failure : "");
        memcpy(&outcome.fetched, memory + order.offset,
               sizeof(outcome.fetched));
        outcome.data_right = (order.get < 0) ||
                             is_content(memory, order.get, order.offset,
                                        order.offset + order.length);
        absent_send(socket, &outcome, sizeof(outcome));
    }
    way->disconnect();
}


/* The owner, which gives orders to the other process */
typedef struct owner {
    int     socket, pinned;
    uint8_t *memory;
} owner_t;

static outcome_t have_done(const owner_t *owner, const order_t *order)
{
    outcome_t outcome;

    printf("# pages present before: %zu\n", pages_present(owner->memory));
    absent_send(owner->socket, order, sizeof(*order));
    absent_receive(owner->socket, &outcome, sizeof(outcome));
    printf("# pages present after:  %zu\n", pages_present(owner->memory));
    if (outcome.failure[0] != '\0') {
        printf("# failure: %s\n", outcome.failure);
    }
    return outcome;
}

static void report(const char *step, const outcome_t *outcome, int data_right)
{
    if (outcome->failure[0] != '\0') {
        printf("%s: error\n", step);
    } else {
        printf("%s: success, data %s\n", step, data_right ? "right" : "WRONG");
    }
}

static void read_step(const owner_t *owner, const char *name, int step,
                      int swapped)
{
    order_t order = {.op = ABSENT_READ, .put = 99, .get = step,
                     .swapped = swapped, .length = LENGTH};
    outcome_t outcome = have_done(owner, &order);

    report(name, &outcome, outcome.data_right);
}

/* Writes all but the edges, which are in swap as well and must not change */
static void write_step(const owner_t *owner, const char *name, int step,
                       int swapped, size_t edge)
{
    order_t order = {.op = ABSENT_WRITE, .put = step + 50, .get = -1,
                     .swapped = swapped, .offset = edge,
                     .length = LENGTH - 2 * edge};
    outcome_t outcome;

    fill(owner->memory, step);
    swap_out(owner->memory, owner->pinned);
    outcome = have_done(owner, &order);
    report(name, &outcome,
           is_content(owner->memory, step, 0, edge) &&
           is_content(owner->memory, step + 50, edge, LENGTH - edge) &&
           is_content(owner->memory, step, LENGTH - edge, LENGTH));
}

static void atomic_step(const owner_t *owner, int step)
{
    order_t order = {.op = ABSENT_FETCH_ADD, .put = 0, .get = -1,
                     .offset = 5 * PAGE, .length = 8};
    outcome_t outcome;
    uint64_t before, after;

    fill(owner->memory, step);
    memcpy(&before, owner->memory + order.offset, sizeof(before));
    swap_out(owner->memory, owner->pinned);
    outcome = have_done(owner, &order);
    memcpy(&after, owner->memory + order.offset, sizeof(after));
    report("atomic to what was swapped out", &outcome,
           (outcome.fetched == before) && (after == before + 1) &&
           is_content(owner->memory, step, 0, order.offset) &&
           is_content(owner->memory, step, order.offset + 8, LENGTH));
}

static void own(const absent_way_t *way, int socket, int pinned)
{
    owner_t owner = {.socket = socket, .pinned = pinned,
                     .memory = map_memory()};

    way->connect(1, socket, owner.memory, LENGTH);
    read_step(&owner, "read of untouched memory", 0, 0);

    fill(owner.memory, 1);
    swap_out(owner.memory, pinned);
    read_step(&owner, "read of what was swapped out", 1, 0);
    fill(owner.memory, 2);
    swap_out(owner.memory, pinned);
    read_step(&owner, "the same to what was swapped out", 2, 1);
    write_step(&owner, "write to what was swapped out", 3, 0, PAGE);
    write_step(&owner, "the same from what was swapped out", 4, 1, PAGE);
    atomic_step(&owner, 5);

    CHECK(madvise(owner.memory, LENGTH, MADV_DONTNEED) == 0, "MADV_DONTNEED");
    read_step(&owner, "read of what was discarded", 0, 0);
    CHECK(madvise(owner.memory, LENGTH, MADV_DONTNEED) == 0, "MADV_DONTNEED");
    fill(owner.memory, 6);
    read_step(&owner, "read of what was discarded and filled", 6, 0);

    write_step(&owner, "in the middle of pages: write", 7, 0, 100);
    CHECK(munmap(owner.memory + LENGTH / 2, LENGTH / 2) == 0, "munmap");
    read_step(&owner, "read of what is not mapped", 6, 0);
}

int main(int argc, char **argv)
{
    const char *name  = (argc == 2) ? argv[1] : "";
    const absent_way_t *way;
    int pair[2], status;
    pid_t pid;

    way = !strcmp(name, "pinned")    ? &absent_pinned :
          !strcmp(name, "on_demand") ? &absent_on_demand :
          !strcmp(name, "ucp")       ? &absent_ucp : NULL;
    CHECK(way != NULL, "usage: absent pinned|on_demand|ucp");
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0, "no sockets");
    setvbuf(stdout, NULL, _IOLBF, 0);

    pid = fork();
    CHECK(pid >= 0, "fork");
    close(pair[pid != 0]);
    if (pid == 0) {
        obey(way, pair[1], way == &absent_pinned);
        return EXIT_SUCCESS;
    }
    own(way, pair[0], way == &absent_pinned);
    close(pair[0]);
    CHECK(waitpid(pid, &status, 0) == pid, "waitpid");
    CHECK(status == 0, "the other process ended with 0x%x", status);
    way->disconnect();
    return EXIT_SUCCESS;
}
