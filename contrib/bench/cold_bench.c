/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * UCP gets of pages that are not in memory, next to reads of a file by
 * O_DIRECT, between two processes on one machine:
 *
 *   polling   the target calls progress all the time
 *   sleeping  it calls nothing of UCX
 *
 * The pages are those of the same file. With a second argument they are
 * anonymous memory in swap. The argument is the file of the process's control
 * group by which the kernel takes its memory, memory.reclaim or
 * memory.force_empty: what was written to swap stays in memory otherwise.
 *
 * Each turn takes a get and a read of 4 KiB at a depth of 1, 16 of each at a
 * depth of 16, an atomic of another endpoint alone and beside 16 such gets, at
 * another moment of them in each turn, and a get of a page that has come and of
 * one that was never absent. No absent page is used twice. Prints medians in
 * microseconds: "get1_us", "direct1_us", "get16_us", "direct16_us" (of 16,
 * divided by 16), "atomic_us", "beside_us", "warm_us" and "plain_us"; and how
 * many pages of the file that are got were in memory before, which must be none
 * ("present"). The data
 * is checked. Exits with 77 if the file system of the directory TMPDIR, or else
 * /var/tmp, has no O_DIRECT or keeps files in memory, or if there is no swap.
 */

#include "ucp_side.h"

#include <fcntl.h>
#include <linux/aio_abi.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#define PAGE_SIZE  4096u
#define NUM_PAGES  16384u
#define SWAP_PAGES 4096u
#define DEPTH      16u
#define TURNS      150u
#define SWAP_TURNS 60u
#define SWAP_STAY  256u
#define SWAP_TRIES 3000u /* In 30 seconds */
#define DELAYS     15u
#define NUM_TIMES  8u
#define AGAIN      20
#define SKIP       77

/* Command to the target */
enum { CMD_END = 'e' };

static int sleeping, direct_fd = -1;
static const char *reclaim;    /* Of memory in swap; NULL: of a file */
static unsigned num_pages = NUM_PAGES; /* That are read and got */
static unsigned num_turns = TURNS;
static void *memory;           /* The file or what is in swap, in both
                                * processes */
static uint64_t *word;         /* Of atomics, behind the file; DEPTH pages that
                                * are never absent follow */
static unsigned order[NUM_PAGES], next_page;

static uint64_t content(unsigned page)
{
    return 0xc01d000000000000ull + page;
}

static size_t memory_size(void)
{
    return (num_pages + 1 + DEPTH) * (size_t)PAGE_SIZE;
}

static uint64_t *page_data(unsigned page)
{
    return (uint64_t*)((char*)memory + page * (size_t)PAGE_SIZE);
}

static void skip(const char *why)
{
    fprintf(stderr, "cold_bench: %s\n", why);
    exit(SKIP);
}

static void make_file(void)
{
    const char *dir = getenv("TMPDIR");
    static uint64_t data[PAGE_SIZE / sizeof(uint64_t)];
    char name[256];
    unsigned page;
    int fd;

    snprintf(name, sizeof(name), "%s/nprdma-bench-XXXXXX",
             (dir == NULL) ? "/var/tmp" : dir);
    fd = mkstemp(name);
    CHECK(fd >= 0, "cannot make a file like %s", name);
    for (page = 0; page < num_pages; ++page) {
        data[0] = content(page);
        CHECK(write(fd, data, sizeof(data)) == sizeof(data), "write: %m");
    }
    CHECK(fsync(fd) == 0, "fsync: %m");
    direct_fd = open(name, O_RDONLY | O_DIRECT);
    unlink(name);
    if (direct_fd < 0) {
        skip("the file system has no O_DIRECT");
    }

    /* One mapping for all: a key is of one registration */
    memory = mmap(NULL, memory_size(), PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK((memory != MAP_FAILED) &&
          ((reclaim != NULL) ||
           (mmap(memory, num_pages * (size_t)PAGE_SIZE, PROT_READ | PROT_WRITE,
                 MAP_SHARED | MAP_FIXED, fd, 0) == memory)), "mmap: %m");
    word = page_data(num_pages);
    CHECK(madvise(memory, num_pages * (size_t)PAGE_SIZE, MADV_RANDOM) == 0,
          "madvise: %m");
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
}

static int is_present(unsigned page)
{
    unsigned char vec;

    CHECK(mincore(page_data(page), PAGE_SIZE, &vec) == 0, "mincore: %m");
    return vec & 1;
}

static unsigned count_present(void)
{
    unsigned page, count = 0;

    for (page = 0; page < num_pages; ++page) {
        count += is_present(page);
    }
    return count;
}

static void fill_swap(void)
{
    unsigned page, tries;
    int fd;

    for (page = 0; page < num_pages; ++page) {
        *page_data(page) = content(page);
    }

    fd = open(reclaim, O_WRONLY);
    CHECK(fd >= 0, "%s: %m", reclaim);
    /* Some may stay, in lists of a CPU that the kernel does not look at */
    for (tries = 0; (tries < SWAP_TRIES) && (count_present() > SWAP_STAY);
         ++tries) {
        madvise(memory, num_pages * (size_t)PAGE_SIZE, MADV_PAGEOUT);
        /* Fails if the kernel takes less than this */
        (void)!write(fd, "64M", 3);
        usleep(10000); /* They leave when they are written */
    }
    close(fd);
    if (count_present() > SWAP_STAY) {
        skip("the pages do not leave: no swap, or its disk is busy");
    }
}

static void shuffle(void)
{
    unsigned i, other, page;

    for (i = 0; i < num_pages; ++i) {
        order[i] = i;
    }
    for (i = num_pages - 1; i > 0; --i) {
        other        = rand() % (i + 1);
        page         = order[i];
        order[i]     = order[other];
        order[other] = page;
    }
}

/* ---- the target ---- */

static void target_main(int sock)
{
    target_t target;
    unsigned page;
    char cmd;

    *word = 0;
    for (page = num_pages + 1; page < num_pages + 1 + DEPTH; ++page) {
        *page_data(page) = content(page);
    }
    target_init(&target, sock, UCP_FEATURE_RMA | UCP_FEATURE_AMO64, memory,
                memory_size(), 1);
    do {
        if (!sleeping) {
            progress_some(&target.side);
        }
        if (recv(sock, &cmd, 1, sleeping ? 0 : MSG_DONTWAIT) != 1) {
            cmd = 0;
        }
    } while (cmd != CMD_END);
    target_cleanup(&target, 0);
}


/* ---- the initiator ---- */

static uint64_t buffers[2 * DEPTH][PAGE_SIZE / sizeof(uint64_t)]
        __attribute__((aligned(PAGE_SIZE)));
static unsigned num_present;
static double times[NUM_TIMES][TURNS];

static unsigned take_page(void)
{
    CHECK(next_page < num_pages, "too few pages");
    return order[next_page++];
}

/* The kernel also reads what was next to a page in swap */
static unsigned take_absent_page(void)
{
    unsigned page;

    do {
        page = take_page();
    } while ((reclaim != NULL) && is_present(page));
    return page;
}

static void start_gets(initiator_t *initiator, unsigned depth,
                       const unsigned *pages, ucs_status_ptr_t *requests)
{
    ucp_request_param_t param = {0};
    unsigned i;

    for (i = 0; i < depth; ++i) {
        requests[i] = ucp_get_nbx(initiator->ep, buffers[i], PAGE_SIZE,
                                  initiator->memory +
                                  pages[i] * (uint64_t)PAGE_SIZE,
                                  initiator->rkey, &param);
    }
}

static void end_gets(initiator_t *initiator, unsigned depth,
                     const unsigned *pages, ucs_status_ptr_t *requests)
{
    unsigned i;

    for (i = 0; i < depth; ++i) {
        wait_for(&initiator->side, requests[i]);
    }
    for (i = 0; i < depth; ++i) {
        CHECK(buffers[i][0] == content(pages[i]), "wrong data");
    }
}

static void take_pages(unsigned depth, unsigned *pages)
{
    unsigned i;

    for (i = 0; i < depth; ++i) {
        pages[i]     = take_absent_page();
        /* What the kernel reads by itself may come at any time */
        num_present += (reclaim == NULL) && is_present(pages[i]);
    }
}

static double gets(initiator_t *initiator, unsigned depth)
{
    ucs_status_ptr_t requests[DEPTH];
    unsigned pages[DEPTH];
    double start;

    take_pages(depth, pages);
    start = now_us();
    start_gets(initiator, depth, pages, requests);
    end_gets(initiator, depth, pages, requests);
    return (now_us() - start) / depth;
}

/* The last of some gets of a page that is in memory: the first of them find
 * the caches full of other things */
static double get_again(initiator_t *initiator, unsigned page)
{
    ucs_status_ptr_t request;
    double start = 0;
    int i;

    for (i = 0; i < AGAIN; ++i) {
        start = now_us();
        start_gets(initiator, 1, &page, &request);
        end_gets(initiator, 1, &page, &request);
    }
    return now_us() - start;
}

static double reads(unsigned depth)
{
    static aio_context_t context;
    struct iocb blocks[DEPTH] = {}, *list[DEPTH];
    struct io_event events[DEPTH];
    unsigned i, page[DEPTH];
    double start, us;

    if (context == 0) {
        CHECK(syscall(SYS_io_setup, DEPTH, &context) == 0, "io_setup: %m");
    }
    for (i = 0; i < depth; ++i) {
        page[i]                  = take_page();
        blocks[i].aio_lio_opcode = IOCB_CMD_PREAD;
        blocks[i].aio_fildes     = direct_fd;
        blocks[i].aio_buf        = (uintptr_t)buffers[DEPTH + i];
        blocks[i].aio_nbytes     = PAGE_SIZE;
        blocks[i].aio_offset     = page[i] * (uint64_t)PAGE_SIZE;
        list[i]                  = &blocks[i];
    }

    start = now_us();
    CHECK((syscall(SYS_io_submit, context, depth, list) == (long)depth) &&
          (syscall(SYS_io_getevents, context, depth, depth, events, NULL) ==
           (long)depth), "reads by O_DIRECT: %m");
    us = (now_us() - start) / depth;
    for (i = 0; i < depth; ++i) {
        CHECK(buffers[DEPTH + i][0] == content(page[i]), "wrong data");
    }
    return us;
}

static double one_atomic(initiator_t *initiator, ucp_ep_h ep, ucp_rkey_h rkey)
{
    uint64_t add = 1, old;
    double start = now_us();
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_DATATYPE |
                        UCP_OP_ATTR_FIELD_REPLY_BUFFER,
        .datatype     = ucp_dt_make_contig(sizeof(add)),
        .reply_buffer = &old
    };

    wait_for(&initiator->side,
             ucp_atomic_op_nbx(ep, UCP_ATOMIC_OP_ADD, &add, 1,
                               initiator->memory +
                               num_pages * (uint64_t)PAGE_SIZE, rkey, &param));
    return now_us() - start;
}

/* @param [in] delay  Of the atomic, in microseconds */
static double atomic_beside(initiator_t *initiator, ucp_ep_h ep,
                            ucp_rkey_h rkey, unsigned delay)
{
    ucs_status_ptr_t requests[DEPTH];
    unsigned pages[DEPTH];
    double start, us;

    take_pages(DEPTH, pages);
    start_gets(initiator, DEPTH, pages, requests);
    /* The NIC meets the absent pages, and the target is asked for them */
    for (start = now_us(); now_us() < start + delay;) {
        ucp_worker_progress(initiator->side.worker);
    }
    us = one_atomic(initiator, ep, rkey);
    end_gets(initiator, DEPTH, pages, requests);
    return us;
}

static void measure(initiator_t *initiator)
{
    ucp_ep_h ep = make_ep(&initiator->side, initiator->address);
    ucp_rkey_h rkey;
    unsigned turn;

    UCP_CHECK(ucp_ep_rkey_unpack(ep, initiator->packed, &rkey));
    one_atomic(initiator, ep, rkey);
    gets(initiator, DEPTH);
    for (turn = 0; turn < num_turns; ++turn) {
        times[0][turn] = gets(initiator, 1);
        times[1][turn] = reads(1);
        times[2][turn] = gets(initiator, DEPTH);
        times[6][turn] = get_again(initiator, order[next_page - 1]);
        times[7][turn] = get_again(initiator, num_pages + 1 + (turn % DEPTH));
        times[3][turn] = reads(DEPTH);
        times[4][turn] = one_atomic(initiator, ep, rkey);
        times[5][turn] = atomic_beside(initiator, ep, rkey,
                                       (turn % DELAYS) * 20);
    }
    ucp_rkey_destroy(rkey);
    close_ep(&initiator->side, ep);
}

static void initiator_main(int sock, pid_t target)
{
    static const char *names[NUM_TIMES] = {
        "get1_us", "direct1_us", "get16_us", "direct16_us", "atomic_us",
        "beside_us", "warm_us", "plain_us"
    };
    initiator_t initiator;
    uint64_t last;
    unsigned i;

    initiator_init(&initiator, sock, target,
                   UCP_FEATURE_RMA | UCP_FEATURE_AMO64);
    initiator_connect(&initiator);
    measure(&initiator);
    command(&initiator, CMD_END, &last, sizeof(last));
    for (i = 0; i < NUM_TIMES; ++i) {
        printf("%s %.3f ", names[i], median(times[i], num_turns));
    }
    printf("present %u\n", num_present);
    initiator_disconnect(&initiator);
    initiator_cleanup(&initiator);
}

int main(int argc, char **argv)
{
    const char *name = (argc > 1) ? argv[1] : "";

    sleeping = !strcmp(name, "sleeping");
    reclaim  = (argc > 2) ? argv[2] : NULL;
    if ((!sleeping && strcmp(name, "polling")) || (argc > 3)) {
        fprintf(stderr, "usage: cold_bench {polling | sleeping} [RECLAIM]\n");
        return 2;
    }

    if (reclaim != NULL) {
        num_pages = SWAP_PAGES;
        num_turns = SWAP_TURNS;
    }
    make_file();
    if (reclaim != NULL) {
        fill_swap();
    }
    shuffle();
    if ((reclaim == NULL) && is_present(0)) {
        skip("the file system keeps files in memory");
    }
    return run_both(target_main, initiator_main);
}
