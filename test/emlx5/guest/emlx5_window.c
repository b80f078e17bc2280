/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* emlx5_window DEVICE DEVICE SECONDS: windows of the kernel module in memory
 * regions of a real driver. The first device reads and writes memory of the
 * second one by RDMA while pages come and go. */

#include "emlx5_pair.h"

#include <nprdma_uapi.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum {
    PAGE      = NPRDMA_PAGE_SIZE,
    WORDS     = PAGE / 8, /* of a page */
    PAGES     = 256,
    LENGTH    = PAGES * PAGE,
    RACE_PAGE = 5,        /* the pages of the race */
    RACE_PAGES = 8,
    ALL       = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE
};

/* A region of the module and its windows */
typedef struct {
    pair_t        pair;
    int           module;
    uint32_t      id;
    uint64_t      signature; /* what absent pages read as */
    uint64_t      *memory;
    const volatile uint32_t *states; /* a word for each page */
    struct ibv_mr *read, *write;
} window_t;

static void call(const window_t *w, unsigned long nr, void *arg,
                 const char *name)
{
    CHECK(ioctl(w->module, nr, arg) == 0, "%s: %s", name, strerror(errno));
}

#define CALL(_w, _nr, _arg) call(_w, _nr, _arg, #_nr)

/* --- pages -----------------------------------------------------------------*/

static void populate(const window_t *w, size_t page, size_t count,
                     unsigned flags)
{
    struct nprdma_ioc_populate arg = {
        .size = sizeof(arg), .flags = flags, .region = w->id,
        .address = (uintptr_t)w->memory + (page * PAGE), .length = count * PAGE
    };

    CALL(w, NPRDMA_IOC_POPULATE, &arg);
}

static void invalidate(const window_t *w, size_t page, size_t count)
{
    struct nprdma_ioc_invalidate arg = {
        .size = sizeof(arg), .region = w->id,
        .bits = NPRDMA_PAGE_R | NPRDMA_PAGE_W,
        .address = (uintptr_t)w->memory + (page * PAGE), .length = count * PAGE
    };

    CALL(w, NPRDMA_IOC_INVALIDATE, &arg);
}

/* --- RDMA ------------------------------------------------------------------*/

static uint64_t *buffer(const window_t *w)
{
    return (uint64_t*)w->pair.a.memory;
}

/* Words of the R window, into the buffer; the first one */
static uint64_t get(window_t *w, size_t word, size_t count)
{
    request_t request = {.opcode = IBV_WR_RDMA_READ, .length = count * 8,
                         .remote = word * 8, .rkey = w->read->rkey};

    side_post(&w->pair.a, &request);
    side_wait_ok(&w->pair.a);
    return buffer(w)[0];
}

/* A word to the W window, which follows the R window */
static void put(window_t *w, size_t word, uint64_t value)
{
    request_t request = {.opcode = IBV_WR_RDMA_WRITE, .length = 8,
                         .remote = word * 8, .rkey = w->write->rkey};

    buffer(w)[0] = value;
    side_post(&w->pair.a, &request);
    side_wait_ok(&w->pair.a);
}

/* --- life ------------------------------------------------------------------*/

static void attach(window_t *w, const char *device)
{
    struct nprdma_ioc_attach_device arg = {.size = sizeof(arg)};
    struct nprdma_ioc_query query       = {.size = sizeof(query)};

    w->module = open(NPRDMA_DEVICE_PATH, O_RDWR);
    CHECK(w->module >= 0, "%s: %s", NPRDMA_DEVICE_PATH, strerror(errno));
    CALL(w, NPRDMA_IOC_QUERY, &query);
    w->signature = query.signature;
    strncpy(arg.name, device, sizeof(arg.name) - 1);
    CHECK(ioctl(w->module, NPRDMA_IOC_ATTACH_DEVICE, &arg) == 0, "%s", arg.why);
    printf("%s\n", arg.why);
}

static const uint32_t *map_states(const struct nprdma_ioc_region_create *create)
{
    char *states = mmap(NULL, create->states_size, PROT_READ, MAP_SHARED,
                        create->states_fd, 0);

    CHECK(states != MAP_FAILED, "states: %s", strerror(errno));
    close(create->states_fd);
    return (const uint32_t*)(states + create->states_offset);
}

static void make_region(window_t *w)
{
    struct nprdma_ioc_region_create create = {.size = sizeof(create)};
    struct nprdma_ioc_register reg         = {.size = sizeof(reg)};
    struct nprdma_ioc_export window        = {.size = sizeof(window)};

    w->memory = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(w->memory != MAP_FAILED, "no memory");
    create.address = (uintptr_t)w->memory;
    create.length  = LENGTH;
    CALL(w, NPRDMA_IOC_REGION_CREATE, &create);
    w->id       = create.region;
    w->states   = map_states(&create);
    reg.region  = w->id;
    reg.address = (uintptr_t)w->memory;
    reg.length  = LENGTH;
    CALL(w, NPRDMA_IOC_REGISTER, &reg);
    window.region = w->id;
    CALL(w, NPRDMA_IOC_EXPORT, &window);
    w->read = ibv_reg_dmabuf_mr(w->pair.b.pd, 0, LENGTH, 0, window.fd,
                                IBV_ACCESS_REMOTE_READ);
    CHECK(w->read != NULL, "R window: %s", strerror(errno));
    w->write = ibv_reg_dmabuf_mr(w->pair.b.pd, LENGTH, LENGTH, 0, window.fd,
                                 ALL);
    CHECK(w->write != NULL, "W window: %s", strerror(errno));
    close(window.fd);
}

static void window_close(window_t *w)
{
    CHECK(ibv_dereg_mr(w->read) == 0, "R window");
    CHECK(ibv_dereg_mr(w->write) == 0, "W window");
    pair_close(&w->pair);
    close(w->module);
    munmap(w->memory, LENGTH);
}

/* --- tests -----------------------------------------------------------------*/

static void expect_word(window_t *w, size_t word, uint64_t value,
                        const char *what)
{
    uint64_t found = get(w, word, 1);

    CHECK(found == value, "%s: %#lx rather than %#lx", what, found, value);
}

/* A page in each of its states */
static void test_states(window_t *w)
{
    const size_t page = 7 * WORDS;
    size_t i;

    for (i = 0; i < PAGES; i += 51) {
        expect_word(w, i * WORDS, w->signature, "untouched");
    }
    for (i = 0; i < LENGTH / 8; ++i) {
        w->memory[i] = i;
    }
    expect_word(w, page, w->signature, "absent");
    put(w, page, 0x99);
    CHECK(w->memory[page] == page, "absent: a WRITE arrives");

    populate(w, 7, 2, 0);
    expect_word(w, page + 1, page + 1, "present");
    expect_word(w, page - WORDS, w->signature, "the page before");
    expect_word(w, page + (2 * WORDS), w->signature, "the page behind");
    put(w, page, 0x98);
    CHECK(w->memory[page] == page, "only for reading: a WRITE arrives");

    populate(w, 7, 2, NPRDMA_IOC_POPULATE_WRITE);
    put(w, page, 0x97);
    CHECK(w->memory[page] == 0x97, "%#lx", w->memory[page]);
    invalidate(w, 7, 1);
    expect_word(w, page, w->signature, "invalidated");
    expect_word(w, page + WORDS, page + WORDS, "its neighbour");

    populate(w, 7, 1, NPRDMA_IOC_POPULATE_WRITE);
    expect_word(w, page, 0x97, "again");
    CHECK(madvise(w->memory + page, PAGE, MADV_DONTNEED) == 0, "madvise");
    expect_word(w, page, w->signature, "discarded");
    put(w, page, 0x96);
    CHECK(w->memory[page] == 0, "discarded: a WRITE arrives");
}

static atomic_int race_ends;
static atomic_ulong race_turns;

/* Pages come and go: taken away by the program, and by the kernel */
static void *turn_pages(void *arg)
{
    const window_t *w = arg;

    while (!race_ends) {
        populate(w, RACE_PAGE, RACE_PAGES, NPRDMA_IOC_POPULATE_WRITE);
        usleep(200);
        if (race_turns++ & 1) {
            invalidate(w, RACE_PAGE, RACE_PAGES);
        } else {
            madvise(w->memory + ((size_t)RACE_PAGE * WORDS), RACE_PAGES * PAGE,
                    MADV_PAGEOUT);
        }
        usleep(200);
    }
    return NULL;
}

/* A page whose state is the same before and after a READ was readable all the
 * time, if its state says so: the READ has its data. One word, because a longer
 * READ takes longer than a page stays. Returns 1 if that was so. */
static int trust_state(window_t *w, size_t page)
{
    const size_t word     = (page * WORDS) + (page % WORDS);
    const uint32_t before = w->states[page];
    const uint64_t found  = get(w, word, 1);

    if ((w->states[page] != before) || !(before & NPRDMA_PAGE_R)) {
        return 0;
    }
    CHECK(found == word, "%#lx, though its state says readable", found);
    return 1;
}

/* Each word of a READ is the page's or the signature, whatever happens, and the
 * page's if its state says so. */
static void test_race(window_t *w, int seconds)
{
    const size_t first = (size_t)RACE_PAGE * WORDS, count = RACE_PAGES * WORDS;
    unsigned long reads = 0, both = 0, trusted = 0, present, absent;
    time_t end = time(NULL) + seconds;
    pthread_t thread;
    size_t i;

    for (i = 0; i < count; ++i) {
        w->memory[first + i] = first + i;
    }
    CHECK(pthread_create(&thread, NULL, turn_pages, w) == 0, "no thread");
    while (time(NULL) < end) {
        get(w, first, count);
        for (i = 0, present = 0, absent = 0; i < count; ++i) {
            present += (buffer(w)[i] == first + i);
            absent  += (buffer(w)[i] == w->signature);
        }
        CHECK(present + absent == count, "%lu wrong words",
              (unsigned long)count - present - absent);
        both += (present > 0) && (absent > 0);
        for (i = 0; i < RACE_PAGES; ++i) {
            trusted += trust_state(w, RACE_PAGE + i);
        }
        ++reads;
    }
    race_ends = 1;
    pthread_join(thread, NULL);
    printf("%lu READs of %d pages, %lu saw both states; of %lu words, %lu were "
           "readable; %lu turns\n", reads, RACE_PAGES, both, reads * RACE_PAGES,
           trusted, (unsigned long)race_turns);
    CHECK((reads > 0) && (trusted > 0) && (race_turns > 0), "no race");
}

int main(int argc, char **argv)
{
    window_t w = {0};

    if (argc != 4) {
        fprintf(stderr, "usage: emlx5_window DEVICE DEVICE SECONDS\n");
        return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    pair_open(&w.pair, argv[1], argv[2]);
    pair_connect(&w.pair, &pair_default);
    attach(&w, argv[2]);
    make_region(&w);
    test_states(&w);
    test_race(&w, atoi(argv[3]));
    window_close(&w);
    printf("windows: passed\n");
    return 0;
}
