/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * UCP gets of pages that the NIC cannot access, between two processes on one
 * machine, each bound to a CPU of its own. The data is checked. A target that
 * is polling calls progress all the time, one that is sleeping calls nothing of
 * UCX.
 *
 *   fresh polling|sleeping     4 KiB from pages that were never touched
 *   swapped polling|sleeping   4 KiB from pages that are in swap
 *   written polling|sleeping   4 KiB from pages that the target has written
 *
 * These print the median time of a get in microseconds ("us"), of the target's
 * CPU to fault in such a page itself ("own_us"), and of a get of a page that
 * was got before ("again_us").
 *
 *   cold polling|sleeping
 *
 * has pages of a file next to reads of the same file by O_DIRECT. Each turn
 * takes a get and a read of 4 KiB at a depth of 1, 16 of each at a depth of 16,
 * an atomic of another endpoint alone and beside 16 such gets, at another time
 * in each turn, and a get of a page that has come and of one that never
 * was absent. No absent page is used twice. Prints medians in microseconds:
 * "get1_us", "direct1_us", "get16_us", "direct16_us" (of 16, divided by 16),
 * "atomic_us", "beside_us", "warm_us" and "plain_us"; and how many of the pages
 * that are got were in memory before, which must be none ("present").
 *
 * Exits with 77 if the pages cannot be brought to swap, or if the file system
 * of the directory TMPDIR, or else /var/tmp, has no O_DIRECT or keeps files in
 * memory.
 */

#include "ucp_side.h"

#include <fcntl.h>
#include <linux/aio_abi.h>
#include <sys/syscall.h>

#ifndef MADV_PAGEOUT
#define MADV_PAGEOUT 21
#endif

#define FEATURES   (UCP_FEATURE_RMA | UCP_FEATURE_AMO64)
#define PAGE_SIZE  4096ul
#define NUM_PAGES  1024u /* Of fresh and swapped */
#define FILE_PAGES 16384u
#define STRIDE     6367u /* Odd, so all pages come */
#define TURNS      150u
#define DEPTH      16u
#define DELAYS     15u
#define AGAIN      20
#define SKIP       77

/* Commands to the target */
enum {
    CMD_PREPARE = 'p', /* Make the pages what the kind asks for; answers so */
    CMD_OWN     = 'o', /* Prepare, then fault them in; answers with the time */
    CMD_END     = 'e'
};

enum { GET1, DIRECT1, GET16, DIRECT16, ATOMIC, BESIDE, WARM, PLAIN, NUM_TIMES };

static bool     is_fresh, is_written, is_cold, is_sleeping;
static unsigned num_pages = NUM_PAGES;

/* The pages, in both processes. Of cold ones, the word of atomics follows, and
 * DEPTH pages that are never absent. */
static void     *memory;

static unsigned next_page;
static int      direct_fd;

/* The first word of a page while it holds data */
static uint64_t content(unsigned page)
{
    return 0xc01d000000000000ull + page;
}

static uint64_t *page_at(void *base, unsigned page)
{
    return (uint64_t*)((char*)base + page * PAGE_SIZE);
}

static size_t memory_size(void)
{
    return (num_pages + (is_cold ? 1 + DEPTH : 0)) * PAGE_SIZE;
}

static void skip(const char *why)
{
    fprintf(stderr, "absent_bench: %s\n", why);
    exit(SKIP);
}

static bool is_present(unsigned page)
{
    static int pagemap = -1;
    unsigned char vec;
    uint64_t entry;

    if (is_cold) {
        CHECK(mincore(page_at(memory, page), PAGE_SIZE, &vec) == 0,
              "mincore: %m");
        return vec & 1;
    }
    if (pagemap < 0) {
        pagemap = open("/proc/self/pagemap", O_RDONLY);
    }
    CHECK(pread(pagemap, &entry, sizeof(entry), (uintptr_t)page_at(
                memory, page) / PAGE_SIZE * sizeof(entry)) == sizeof(entry),
          "cannot read /proc/self/pagemap: %m");
    return entry >> 63;
}

static void write_pages(unsigned first, unsigned count)
{
    unsigned page;

    for (page = first; page < first + count; ++page) {
        *page_at(memory, page) = content(page);
    }
}


/* ---- the pages of cold, made before the processes part ---- */

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
    memory = map_memory(memory_size());
    CHECK(mmap(memory, num_pages * PAGE_SIZE, PROT_READ | PROT_WRITE,
               MAP_SHARED | MAP_FIXED, fd, 0) == memory, "mmap: %m");
    CHECK(madvise(memory, num_pages * PAGE_SIZE, MADV_RANDOM) == 0,
          "madvise: %m");
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
    if (is_present(0)) {
        skip("the file system keeps files in memory");
    }
}

/* All pages in an order in which neighbours are far apart */
static unsigned page_of_turn(unsigned turn)
{
    return (turn * STRIDE) % FILE_PAGES;
}


/* ---- the target ---- */

/* They leave for swap when they are written there, so it takes some tries */
static void prepare(void)
{
    unsigned tries = 0, page = 0;

    if (is_fresh || is_written) {
        CHECK(madvise(memory, num_pages * PAGE_SIZE, MADV_DONTNEED) == 0,
              "madvise: %m");
    }
    if (!is_fresh) {
        write_pages(0, num_pages);
    }
    if (is_fresh || is_written) {
        return;
    }
    while (page < num_pages) {
        if (!is_present(page)) {
            ++page;
        } else if (tries++ == 10) {
            skip("the pages do not leave: no swap?");
        } else {
            madvise(memory, num_pages * PAGE_SIZE, MADV_PAGEOUT);
            usleep(10000);
        }
    }
}

static double own_faults(void)
{
    static double times[NUM_PAGES];
    unsigned page;
    double start;

    prepare();
    for (page = 0; page < num_pages; ++page) {
        start = now_us();
        (void)*(volatile uint64_t*)page_at(memory, page);
        times[page] = now_us() - start;
    }
    return median(times, num_pages);
}

static void target_main(void)
{
    double us;
    char cmd;

    if (is_cold) {
        write_pages(num_pages + 1, DEPTH);
        *page_at(memory, num_pages) = 0;
    } else {
        memory = map_small_pages(memory_size());
        write_pages(0, num_pages);
    }
    target_open(FEATURES, memory, memory_size());
    do {
        if (!is_sleeping) {
            progress_some();
        }
        if (recv(side.sock, &cmd, 1, is_sleeping ? 0 : MSG_DONTWAIT) != 1) {
            cmd = 0;
        } else if (cmd == CMD_PREPARE) {
            prepare();
            send_all(&cmd, 1);
        } else if (cmd == CMD_OWN) {
            us = own_faults();
            send_all(&us, sizeof(us));
        }
    } while (cmd != CMD_END);
    target_close(0);
}


/* ---- the initiator ---- */

static uint64_t buffers[2 * DEPTH][PAGE_SIZE / sizeof(uint64_t)]
        __attribute__((aligned(PAGE_SIZE)));

static void start_gets(unsigned depth, const unsigned *pages,
                       ucs_status_ptr_t *requests)
{
    unsigned i;

    for (i = 0; i < depth; ++i) {
        requests[i] = ucp_get_nbx(side.ep, buffers[i], PAGE_SIZE,
                                  side.memory + pages[i] * PAGE_SIZE,
                                  side.rkey, &no_param);
    }
}

static void end_gets(unsigned depth, const unsigned *pages,
                     ucs_status_ptr_t *requests)
{
    unsigned i;

    for (i = 0; i < depth; ++i) {
        wait_for(requests[i]);
    }
    for (i = 0; i < depth; ++i) {
        CHECK(buffers[i][0] == (is_fresh ? 0 : content(pages[i])),
              "wrong data");
    }
}

/* Microseconds of a get of each of these pages, all at once */
static double gets(unsigned depth, const unsigned *pages)
{
    ucs_status_ptr_t requests[DEPTH];
    double start = now_us();

    start_gets(depth, pages, requests);
    end_gets(depth, pages, requests);
    return (now_us() - start) / depth;
}

static double get_pages(void)
{
    static double times[NUM_PAGES];
    unsigned page;

    for (page = 0; page < num_pages; ++page) {
        times[page] = gets(1, &page);
    }
    return median(times, num_pages);
}

static void measure_pages(void)
{
    double us, again_us, own_us;
    ucs_status_ptr_t first;
    unsigned page = 0;
    char done;

    /* The connection is made by a first get, of a page that is then dropped */
    start_gets(1, &page, &first);
    wait_for(first);
    command(CMD_PREPARE, &done, 1);
    us       = get_pages();
    again_us = get_pages();
    command(CMD_OWN, &own_us, sizeof(own_us));
    printf("us %.3f own_us %.3f again_us %.3f\n", us, own_us, again_us);
}


/* ---- cold ---- */

static unsigned num_present;

static void take_pages(unsigned depth, unsigned *pages, bool must_be_absent)
{
    unsigned i;

    for (i = 0; i < depth; ++i) {
        CHECK(next_page < num_pages, "too few pages");
        pages[i]     = page_of_turn(next_page++);
        num_present += must_be_absent && is_present(pages[i]);
    }
}

static double cold_gets(unsigned depth)
{
    unsigned pages[DEPTH];

    take_pages(depth, pages, true);
    return gets(depth, pages);
}

/* The last of some gets of a page that is in memory: the first of them find
 * the caches full of other things */
static double get_again(unsigned page)
{
    double us = 0;
    int i;

    for (i = 0; i < AGAIN; ++i) {
        us = gets(1, &page);
    }
    return us;
}

static double reads(unsigned depth)
{
    static aio_context_t context;
    struct iocb blocks[DEPTH] = {}, *list[DEPTH];
    struct io_event events[DEPTH];
    unsigned i, pages[DEPTH];
    double start, us;

    CHECK((context != 0) || (syscall(SYS_io_setup, DEPTH, &context) == 0),
          "io_setup: %m");
    take_pages(depth, pages, false);
    for (i = 0; i < depth; ++i) {
        blocks[i].aio_lio_opcode = IOCB_CMD_PREAD;
        blocks[i].aio_fildes     = direct_fd;
        blocks[i].aio_buf        = (uintptr_t)buffers[DEPTH + i];
        blocks[i].aio_nbytes     = PAGE_SIZE;
        blocks[i].aio_offset     = pages[i] * PAGE_SIZE;
        list[i]                  = &blocks[i];
    }

    start = now_us();
    CHECK((syscall(SYS_io_submit, context, depth, list) == (long)depth) &&
          (syscall(SYS_io_getevents, context, depth, depth, events, NULL) ==
           (long)depth), "reads by O_DIRECT: %m");
    us = (now_us() - start) / depth;
    for (i = 0; i < depth; ++i) {
        CHECK(buffers[DEPTH + i][0] == content(pages[i]), "wrong data");
    }
    return us;
}

static double one_atomic(ucp_ep_h ep, ucp_rkey_h rkey)
{
    double start = now_us();
    uint64_t old;

    wait_for(add_one(ep, side.memory + num_pages * PAGE_SIZE, rkey, &old));
    return now_us() - start;
}

/* @param [in] delay  Of the atomic, in microseconds */
static double atomic_beside(ucp_ep_h ep, ucp_rkey_h rkey, unsigned delay)
{
    ucs_status_ptr_t requests[DEPTH];
    unsigned pages[DEPTH];
    double start, us;

    take_pages(DEPTH, pages, true);
    start_gets(DEPTH, pages, requests);
    /* The NIC meets the absent pages, and the target is asked for them */
    for (start = now_us(); now_us() < start + delay;) {
        ucp_worker_progress(side.worker);
    }
    us = one_atomic(ep, rkey);
    end_gets(DEPTH, pages, requests);
    return us;
}

static void measure_cold(void)
{
    static const char *names[NUM_TIMES] = {
        "get1_us", "direct1_us", "get16_us", "direct16_us", "atomic_us",
        "beside_us", "warm_us", "plain_us"
    };
    static double times[NUM_TIMES][TURNS];
    ucp_ep_h ep = new_ep();
    ucp_rkey_h rkey;
    unsigned i;

    UCP_CHECK(ucp_ep_rkey_unpack(ep, side.packed, &rkey));
    one_atomic(ep, rkey);
    cold_gets(DEPTH);
    for (i = 0; i < TURNS; ++i) {
        times[GET1][i]     = cold_gets(1);
        times[DIRECT1][i]  = reads(1);
        times[GET16][i]    = cold_gets(DEPTH);
        times[WARM][i]     = get_again(page_of_turn(next_page - 1));
        times[PLAIN][i]    = get_again(num_pages + 1 + (i % DEPTH));
        times[DIRECT16][i] = reads(DEPTH);
        times[ATOMIC][i]   = one_atomic(ep, rkey);
        times[BESIDE][i]   = atomic_beside(ep, rkey, (i % DELAYS) * 20);
    }
    for (i = 0; i < NUM_TIMES; ++i) {
        printf("%s %.3f ", names[i], median(times[i], TURNS));
    }
    printf("present %u\n", num_present);
    ucp_rkey_destroy(rkey);
    wait_for_end(ucp_ep_close_nb(ep, UCP_EP_CLOSE_MODE_FLUSH));
}

static void initiator_main(void)
{
    uint64_t last;

    initiator_open(FEATURES);
    if (is_cold) {
        measure_cold();
    } else {
        measure_pages();
    }
    /* The target closes its endpoint, which takes progress on both sides */
    command(CMD_END, &last, sizeof(last));
    initiator_close();
}

int main(int argc, char **argv)
{
    const char *kind   = (argc > 2) ? argv[1] : "";
    const char *target = (argc > 2) ? argv[2] : "";

    is_fresh    = !strcmp(kind, "fresh");
    is_written  = !strcmp(kind, "written");
    is_cold     = !strcmp(kind, "cold");
    is_sleeping = !strcmp(target, "sleeping");
    if (!(is_fresh || is_written || is_cold || !strcmp(kind, "swapped")) ||
        !(is_sleeping || !strcmp(target, "polling"))) {
        fprintf(stderr, "usage: absent_bench fresh|swapped|written|cold "
                        "polling|sleeping\n");
        return 2;
    }

    if (is_cold) {
        num_pages = FILE_PAGES;
        make_file();
    }
    return run_both(target_main, initiator_main);
}
