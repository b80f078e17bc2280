/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * UCP gets from memory of which pages are absent, between two processes on one
 * machine, each bound to a CPU of its own:
 *
 *   fresh            4 KiB from pages that were never touched
 *   swapped          4 KiB from pages that are in swap
 *   fresh-sleeping   as fresh and swapped, but the target calls nothing of UCX
 *   swapped-sleeping
 *   present          4 KiB from pages that are there
 *   rate PERCENT     1 MiB of which PERCENT % of the pages, at random, were
 *                    taken away just before. UCX has no notice of that, as with
 *                    the kernel's reclaim; the NIC asks the kernel what is
 *                    present
 *
 * Prints the median time of a get in microseconds ("us"), and of the target's
 * CPU to fault in such a page itself ("own_us"). Exits with 77 if the pages
 * cannot be brought to swap. The data is checked.
 */

#include "ucp_side.h"

#include <fcntl.h>
#include <sys/syscall.h>

#ifndef MADV_PAGEOUT
#define MADV_PAGEOUT 21
#endif

#define PAGE_SIZE  4096
#define NUM_PAGES  1024
#define RATE_SIZE  (1u << 20)
#define RATE_TURNS 200
#define SKIP       77

enum { KIND_PRESENT, KIND_FRESH, KIND_SWAPPED, KIND_RATE };

static int kind, sleeping, percent;

/* Commands to the target, each answered by the same byte */
enum {
    CMD_PREPARE = 'p', /* Make the pages what the kind asks for */
    CMD_OWN     = 'o', /* Prepare, then fault them in; answers with the time */
    CMD_END     = 'e'
};

/* The first word of a page while it holds data */
static uint64_t page_value(unsigned page)
{
    return 0x6e70726d61000000ull + page;
}

static uint64_t expected_value(unsigned page)
{
    return (kind == KIND_FRESH) ? 0 : page_value(page);
}

static uint64_t *page_at(void *memory, unsigned page)
{
    return (uint64_t*)((char*)memory + (size_t)page * PAGE_SIZE);
}

static unsigned count_present(void *memory)
{
    static uint64_t entries[NUM_PAGES];
    int fd        = open("/proc/self/pagemap", O_RDONLY);
    unsigned page, present = 0;

    CHECK(fd >= 0, "cannot open /proc/self/pagemap");
    CHECK(pread(fd, entries, sizeof(entries),
                (uintptr_t)memory / PAGE_SIZE * sizeof(*entries)) ==
          sizeof(entries), "cannot read /proc/self/pagemap");
    close(fd);
    for (page = 0; page < NUM_PAGES; ++page) {
        present += entries[page] >> 63;
    }
    return present;
}

static void write_pages(void *memory)
{
    unsigned page;

    for (page = 0; page < NUM_PAGES; ++page) {
        *page_at(memory, page) = page_value(page);
    }
}

static void drop(void *memory, unsigned page, unsigned count)
{
    CHECK(madvise(page_at(memory, page), (size_t)count * PAGE_SIZE,
                  MADV_DONTNEED) == 0, "madvise(MADV_DONTNEED)");
}

/* By a raw system call, which no hook of UCX sees */
static void take_away(void *memory, unsigned page)
{
    CHECK(syscall(SYS_madvise, page_at(memory, page), PAGE_SIZE,
                  MADV_DONTNEED) == 0, "madvise(MADV_DONTNEED)");
}

static void swap_out(void *memory)
{
    int tries;

    /* Pages in the swap cache leave at a second attempt */
    for (tries = 0; (tries < 10) && (count_present(memory) > 0); ++tries) {
        madvise(memory, NUM_PAGES * PAGE_SIZE, MADV_PAGEOUT);
    }
    if (count_present(memory) > 0) {
        fprintf(stderr, "fault_bench: the pages do not leave: no swap?\n");
        exit(SKIP);
    }
}

static void prepare(void *memory)
{
    unsigned page;

    switch (kind) {
    case KIND_FRESH:
        drop(memory, 0, NUM_PAGES);
        break;
    case KIND_SWAPPED:
        write_pages(memory);
        swap_out(memory);
        break;
    case KIND_RATE:
        for (page = 0; page < RATE_SIZE / PAGE_SIZE; ++page) {
            if (rand() % 100 < percent) {
                take_away(memory, page);
            }
        }
        break;
    default:
        write_pages(memory);
    }
}

static double own_faults(void *memory)
{
    static double times[NUM_PAGES];
    volatile uint64_t *word;
    unsigned page;
    double start;

    prepare(memory);
    for (page = 0; page < NUM_PAGES; ++page) {
        word  = page_at(memory, page);
        start = now_us();
        (void)*word;
        times[page] = now_us() - start;
    }
    return median(times, NUM_PAGES);
}

static void serve(side_t *side, void *memory)
{
    int flags = sleeping ? 0 : MSG_DONTWAIT;
    double us;
    char cmd;

    do {
        if (!sleeping) {
            progress_some(side);
        }
        if (recv(side->sock, &cmd, 1, flags) != 1) {
            cmd = 0;
        } else if (cmd == CMD_PREPARE) {
            prepare(memory);
            send_all(side->sock, &cmd, 1);
        } else if (cmd == CMD_OWN) {
            us = own_faults(memory);
            send_all(side->sock, &us, sizeof(us));
        }
    } while (cmd != CMD_END);
}

static void target_main(int sock)
{
    size_t size = NUM_PAGES * PAGE_SIZE;
    void *memory = map_small_pages(size);
    target_t target;

    if (kind == KIND_RATE) {
        setenv("UCX_NPRDMA_INJECT", "reclaim:sampled", 1);
    }
    write_pages(memory);
    target_init(&target, sock, UCP_FEATURE_RMA, memory, size, 1);
    serve(&target.side, memory);
    target_cleanup(&target, 0);
    munmap(memory, size);
}

static double one_get(initiator_t *initiator, void *buffer, size_t length,
                      size_t offset)
{
    ucp_request_param_t param = {0};
    double start              = now_us();

    wait_for(&initiator->side,
             ucp_get_nbx(initiator->ep, buffer, length,
                         initiator->memory + offset, initiator->rkey, &param));
    return now_us() - start;
}

static double get_pages(initiator_t *initiator)
{
    static double times[NUM_PAGES];
    static uint64_t buffer[PAGE_SIZE / sizeof(uint64_t)];
    unsigned page;
    char done;

    /* The connection is made by a first get, of a page that is then dropped */
    one_get(initiator, buffer, PAGE_SIZE, 0);
    command(initiator, CMD_PREPARE, &done, 1);
    for (page = 0; page < NUM_PAGES; ++page) {
        times[page] = one_get(initiator, buffer, PAGE_SIZE,
                              (size_t)page * PAGE_SIZE);
        CHECK(buffer[0] == expected_value(page), "wrong data");
    }
    return median(times, NUM_PAGES);
}

static double get_rate(initiator_t *initiator)
{
    void *buffer = malloc(RATE_SIZE);
    double times[RATE_TURNS];
    unsigned page;
    uint64_t word;
    char done;
    int turn;

    one_get(initiator, buffer, RATE_SIZE, 0);
    for (turn = 0; turn < RATE_TURNS; ++turn) {
        command(initiator, CMD_PREPARE, &done, 1);
        times[turn] = one_get(initiator, buffer, RATE_SIZE, 0);
        for (page = 0; page < RATE_SIZE / PAGE_SIZE; ++page) {
            word = *page_at(buffer, page);
            CHECK((word == 0) || (word == page_value(page)), "wrong data");
        }
    }
    free(buffer);
    return median(times, RATE_TURNS);
}

static void initiator_main(int sock, pid_t target)
{
    initiator_t initiator;
    double us, own_us;
    uint64_t last;

    initiator_init(&initiator, sock, target, UCP_FEATURE_RMA);
    initiator_connect(&initiator);
    us = (kind == KIND_RATE) ? get_rate(&initiator) : get_pages(&initiator);
    command(&initiator, CMD_OWN, &own_us, sizeof(own_us));
    /* The target closes its endpoint, which takes progress on both sides */
    command(&initiator, CMD_END, &last, sizeof(last));
    printf("us %.3f own_us %.3f\n", us, own_us);

    initiator_disconnect(&initiator);
    initiator_cleanup(&initiator);
}

static int parse(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "";

    sleeping = strstr(name, "-sleeping") != NULL;
    if (!strcmp(name, "fresh") || !strcmp(name, "fresh-sleeping")) {
        kind = KIND_FRESH;
    } else if (!strcmp(name, "swapped") || !strcmp(name, "swapped-sleeping")) {
        kind = KIND_SWAPPED;
    } else if (!strcmp(name, "present")) {
        kind = KIND_PRESENT;
    } else if (!strcmp(name, "rate") && (argc > 2)) {
        kind    = KIND_RATE;
        percent = atoi(argv[2]);
    } else {
        fprintf(stderr, "usage: fault_bench present | fresh[-sleeping] | "
                        "swapped[-sleeping] | rate PERCENT\n");
        return 0;
    }
    return 1;
}

int main(int argc, char **argv)
{
    if (!parse(argc, argv)) {
        return 2;
    }
    return run_both(target_main, initiator_main);
}
