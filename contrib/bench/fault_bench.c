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
 *   rate PERCENT     1 MiB of which so many pages, at random, were taken away
 *                    just before behind the back of UCX, as by the kernel's
 *                    reclaim; the NIC asks the kernel what is present
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

static int   kind, sleeping, percent;
static pid_t target;

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

/* By a system call of its own: no hook of UCX learns of it */
static void take_away(void *memory, unsigned page)
{
    CHECK(syscall(SYS_madvise, page_at(memory, page), PAGE_SIZE,
                  MADV_DONTNEED) == 0, "madvise(MADV_DONTNEED)");
}

static void swap_out(void *memory)
{
    int tries;

    /* What is still in the swap cache goes at a second attempt */
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
    ucp_mem_map_params_t map = {
        .field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS |
                      UCP_MEM_MAP_PARAM_FIELD_LENGTH,
        .address    = memory,
        .length     = size
    };
    ucp_request_param_t param = {0};
    uint64_t address          = (uintptr_t)memory;
    ucp_address_t *own;
    void *peer, *rkey;
    ucp_mem_h memh;
    size_t length;
    ucp_ep_h back;
    side_t side;

    if (kind == KIND_RATE) {
        setenv("UCX_NPRDMA_RECLAIM", "sampled", 1);
    }
    write_pages(memory);
    side_init(&side, sock, sysconf(_SC_NPROCESSORS_ONLN) > 1);
    UCP_CHECK(ucp_worker_get_address(side.worker, &own, &length));
    send_blob(sock, own, length);
    UCP_CHECK(ucp_mem_map(side.context, &map, &memh));
    UCP_CHECK(ucp_rkey_pack(side.context, memh, &rkey, &length));
    send_blob(sock, rkey, length);
    ucp_rkey_buffer_release(rkey);

    peer = recv_blob(sock);
    back = make_ep(&side, peer);
    wait_for(&side, ucp_ep_flush_nbx(back, &param));
    send_all(sock, &address, sizeof(address));
    serve(&side, memory);

    sleeping = 0;
    close_ep(&side, back);
    free(peer);
    send_all(sock, &address, sizeof(address));
    ucp_mem_unmap(side.context, memh);
    ucp_worker_release_address(side.worker, own);
    side_cleanup(&side);
    munmap(memory, size);
}

/* What this program returns when the target has ended early */
static int target_status(void)
{
    int status;

    CHECK((waitpid(target, &status, 0) == target) && WIFEXITED(status) &&
          (WEXITSTATUS(status) != 0), "the target process was killed");
    return WEXITSTATUS(status);
}

/* A command whose answer the target gives when it has done it */
static void command(side_t *side, char cmd, void *answer, size_t length)
{
    ssize_t ret;

    send_all(side->sock, &cmd, 1);
    do {
        ucp_worker_progress(side->worker);
        ret = recv(side->sock, answer, length, MSG_DONTWAIT);
        if ((ret == 0) || ((ret < 0) && (errno != EAGAIN))) {
            exit(target_status());
        }
    } while (ret != (ssize_t)length);
}

static double one_get(side_t *side, ucp_ep_h ep, ucp_rkey_h rkey, void *buffer,
                      size_t length, uint64_t remote)
{
    ucp_request_param_t param = {0};
    double start              = now_us();

    wait_for(side, ucp_get_nbx(ep, buffer, length, remote, rkey, &param));
    return now_us() - start;
}

static double get_pages(side_t *side, ucp_ep_h ep, ucp_rkey_h rkey,
                        uint64_t remote)
{
    static double times[NUM_PAGES];
    static uint64_t buffer[PAGE_SIZE / sizeof(uint64_t)];
    unsigned page;
    char done;

    /* The connection is made by a first get, of a page that is then dropped */
    one_get(side, ep, rkey, buffer, PAGE_SIZE, remote);
    command(side, CMD_PREPARE, &done, 1);
    for (page = 0; page < NUM_PAGES; ++page) {
        times[page] = one_get(side, ep, rkey, buffer, PAGE_SIZE,
                              remote + (uint64_t)page * PAGE_SIZE);
        CHECK(buffer[0] == expected_value(page), "wrong data");
    }
    return median(times, NUM_PAGES);
}

static double get_rate(side_t *side, ucp_ep_h ep, ucp_rkey_h rkey,
                       uint64_t remote)
{
    void *buffer = malloc(RATE_SIZE);
    double times[RATE_TURNS];
    unsigned page;
    uint64_t word;
    char done;
    int turn;

    one_get(side, ep, rkey, buffer, RATE_SIZE, remote);
    for (turn = 0; turn < RATE_TURNS; ++turn) {
        command(side, CMD_PREPARE, &done, 1);
        times[turn] = one_get(side, ep, rkey, buffer, RATE_SIZE, remote);
        for (page = 0; page < RATE_SIZE / PAGE_SIZE; ++page) {
            word = *page_at(buffer, page);
            CHECK((word == 0) || (word == page_value(page)), "wrong data");
        }
    }
    free(buffer);
    return median(times, RATE_TURNS);
}

/* The target closes its endpoint, which takes progress on both sides */
static void end(side_t *side)
{
    uint64_t last;

    command(side, CMD_END, &last, sizeof(last));
}

static void initiator_main(int sock)
{
    void *address, *packed;
    double us, own_us;
    ucp_address_t *own;
    ucp_rkey_h rkey;
    uint64_t remote;
    size_t length;
    ucp_ep_h ep;
    side_t side;

    side_init(&side, sock, 0);
    address = recv_blob(sock);
    packed  = recv_blob(sock);
    UCP_CHECK(ucp_worker_get_address(side.worker, &own, &length));
    send_blob(sock, own, length);
    ucp_worker_release_address(side.worker, own);
    while (recv(sock, &remote, sizeof(remote), MSG_DONTWAIT) !=
           sizeof(remote)) {
        ucp_worker_progress(side.worker);
    }

    ep = make_ep(&side, address);
    UCP_CHECK(ucp_ep_rkey_unpack(ep, packed, &rkey));
    us = (kind == KIND_RATE) ? get_rate(&side, ep, rkey, remote) :
                               get_pages(&side, ep, rkey, remote);
    command(&side, CMD_OWN, &own_us, sizeof(own_us));
    end(&side);
    printf("us %.3f own_us %.3f\n", us, own_us);

    ucp_rkey_destroy(rkey);
    close_ep(&side, ep);
    free(packed);
    free(address);
    side_cleanup(&side);
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
    int socks[2], status;

    if (!parse(argc, argv)) {
        return 2;
    }

    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, socks) == 0, "socketpair");
    target = fork();
    CHECK(target >= 0, "fork");
    if (target == 0) {
        close(socks[0]);
        target_main(socks[1]);
        exit(EXIT_SUCCESS);
    }

    close(socks[1]);
    initiator_main(socks[0]);
    CHECK((waitpid(target, &status, 0) == target) && WIFEXITED(status),
          "the target process was killed");
    return WEXITSTATUS(status);
}
