/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "hw_tests.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
    RACE_PAGE  = 5, /* the pages of the race */
    RACE_PAGES = 8,
    RACE_WORDS = RACE_PAGES * HW_WORDS,
    RACE_FIRST = RACE_PAGE * HW_WORDS,

    PAUSE_US   = 400, /* at most, while pages are there or gone, and twice as
                       * long as the last access took */
    LATE_US    = 100, /* in which DMA that was not drained would arrive */
    PATIENCE   = 10   /* times as long as asked, until both happened */
};

typedef struct {
    hw_access_t   *access;
    int           is_put, by_kernel;
    atomic_int    ends;
    atomic_uint   access_us; /* Duration of the last access and its check */
    double        began;     /* The last access, in seconds */
    double        end, limit;
    unsigned long turns, late, swapped;
    uint64_t      copy[RACE_WORDS];
} race_t;

static uint64_t *race_memory(const hw_access_t *a)
{
    return a->region.memory + RACE_FIRST;
}

static uint64_t load(const uint64_t *word)
{
    return __atomic_load_n(word, __ATOMIC_RELAXED);
}

/* A page that is there for less time than an access takes is never verified.
 * Therefore pauses are longer on a slow device. */
static void race_pause(race_t *race, unsigned *seed)
{
    usleep((unsigned)rand_r(seed) % (PAUSE_US + (2 * race->access_us)));
}

static double race_seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + (t.tv_nsec * 1e-9);
}

/* Nothing but WRITEs changes the memory. The pages are absent now, and stay
 * absent meanwhile. */
static void watch_for_late_writes(race_t *race)
{
    const uint64_t *memory = race_memory(race->access);
    double end             = race_seconds() + (LATE_US * 1e-6);
    size_t i;

    for (i = 0; i < RACE_WORDS; ++i) {
        race->copy[i] = load(&memory[i]);
    }
    do {
        for (i = 0; i < RACE_WORDS; ++i) {
            race->late += load(&memory[i]) != race->copy[i];
        }
    } while (race_seconds() < end);
}

/* Call it between two accesses. The race ends when its time is over, and later
 * if an outcome has not been met until then. */
static int race_goes_on(race_t *race, int is_met)
{
    double now = race_seconds();

    race->access_us = (unsigned)((now - race->began) * 1e6);
    race->began     = now;
    return now < (is_met ? race->end : race->limit);
}

static void protect(race_t *race, int protection)
{
    CHECK(mprotect(race_memory(race->access), (size_t)RACE_PAGES * HW_PAGE,
                   protection) == 0, "mprotect");
}

static unsigned long swap_out(const race_t *race)
{
    const hw_region_t *r = &race->access->region;
    unsigned long before = hw_taken_by_kernel(r);

    madvise(race_memory(race->access), (size_t)RACE_PAGES * HW_PAGE,
            MADV_PAGEOUT);
    return hw_taken_by_kernel(r) - before;
}

/* A page that was brought in lately is in a list of the CPU that did it, and is
 * not swapped out from another CPU. All CPUs empty their lists before pages
 * move to a NUMA node, even if they are there. */
static void empty_lists_of_cpus(void)
{
    static char here;
    void *page = &here;
    int node = 0, status;

    syscall(SYS_move_pages, 0, 1ul, &page, &node, &status, 0);
}

/* Pages lose their frames, if there is swap, or only their rights. The contents
 * stay in both cases. */
static void have_kernel_take(race_t *race, unsigned turn)
{
    unsigned long swapped;

    if (turn & 1) {
        swapped = swap_out(race);
        if (swapped == 0) {
            empty_lists_of_cpus();
            swapped = swap_out(race);
        }
        race->swapped += swapped;
    } else {
        protect(race, PROT_READ);
        protect(race, PROT_READ | PROT_WRITE);
    }
}

static void *turn_pages(void *arg)
{
    race_t *race         = arg;
    const hw_region_t *r = &race->access->region;
    unsigned seed        = 1;

    while (!race->ends) {
        hw_populate(r, RACE_PAGE, RACE_PAGES, NPRDMA_IOC_POPULATE_WRITE);
        race_pause(race, &seed);
        if ((race->turns & 1) && race->by_kernel) {
            have_kernel_take(race, race->turns / 2);
        } else {
            hw_invalidate(r, RACE_PAGE, RACE_PAGES);
            if (race->is_put) {
                watch_for_late_writes(race);
            }
        }
        ++race->turns;
        race_pause(race, &seed);
    }
    return NULL;
}

/* An access with the READ of the states behind it */
static void access_verified(hw_access_t *a, int is_put)
{
    hw_post(a, is_put, (size_t)RACE_PAGE * HW_PAGE, 0,
            (size_t)RACE_PAGES * HW_PAGE);
    hw_post_states(a, RACE_PAGE, RACE_PAGES);
    hw_wait(a, 2);
}

/* Words of a page that are not `value`; with `later`, that are larger */
static unsigned long count_words(const uint64_t *page, uint64_t value,
                                 int later)
{
    unsigned long count = 0;
    size_t i;

    for (i = 0; i < HW_WORDS; ++i) {
        count += later ? load(&page[i]) > value : load(&page[i]) != value;
    }
    return count;
}

/* Words that were read and are not the page's; @return those that are not the
 * signature either. */
static unsigned long check_read(const hw_access_t *a, size_t page,
                                unsigned long *absent)
{
    unsigned long wrong = 0;
    size_t i;

    for (i = page * HW_WORDS; i < (page + 1) * HW_WORDS; ++i) {
        if (hw_buffer(a)[i] == a->region.signature) {
            ++*absent;
        } else {
            wrong += hw_buffer(a)[i] != RACE_FIRST + i;
        }
    }
    return wrong;
}

void hw_race(hw_access_t *a, int is_put, int by_kernel, int seconds)
{
    const uint32_t bit     = is_put ? NPRDMA_PAGE_W : NPRDMA_PAGE_R;
    race_t race            = {.access = a, .is_put = is_put,
                              .by_kernel = by_kernel};
    unsigned long accesses = 0, verified = 0, other = 0, missing = 0;
    unsigned long unknown  = 0, absent;
    uint32_t before[RACE_PAGES];
    const uint64_t *page;
    pthread_t thread;
    size_t i;

    for (i = 0; i < RACE_WORDS; ++i) {
        race_memory(a)[i] = is_put ? 0 : RACE_FIRST + i;
    }
    race.began = race_seconds();
    race.end   = race.began + seconds;
    race.limit = race.began + (PATIENCE * seconds);
    CHECK(pthread_create(&thread, NULL, turn_pages, &race) == 0, "no thread");
    while (race_goes_on(&race, verified && (other || !is_put)) &&
           (missing + unknown == 0)) {
        ++accesses;
        for (i = 0; is_put && (i < RACE_WORDS); ++i) {
            hw_buffer(a)[i] = accesses;
        }
        for (i = 0; i < RACE_PAGES; ++i) {
            before[i] = hw_state(&a->region, RACE_PAGE + i);
        }
        access_verified(a, is_put);
        for (i = 0; i < RACE_PAGES; ++i) {
            page   = race_memory(a) + (i * HW_WORDS);
            absent = 0;
            unknown += is_put ? count_words(page, accesses, 1) :
                                check_read(a, i, &absent);
            if ((before[i] & bit) && (before[i] == hw_read_state(a, i))) {
                ++verified;
                missing += is_put ? count_words(page, accesses, 0) : absent;
            } else {
                ++other;
            }
        }
    }
    race.ends = 1;
    pthread_join(thread, NULL);

    printf("turns: %lu\naccesses: %lu\nverified pages: %lu\nother pages: %lu\n"
           "missing words: %lu\nunknown words: %lu\nlate words: %lu\n",
           race.turns, accesses, verified, other, missing, unknown, race.late);
    if (by_kernel) {
        printf("pages taken by the kernel: %lu\npages swapped out: %lu\n",
               hw_taken_by_kernel(&a->region), race.swapped);
    }
    CHECK(missing == 0, "%s", is_put ?
          "data is missing that the states say is there" :
          "absent words that the states say are there");
    CHECK(unknown == 0, "words that were never written");
    CHECK(race.late == 0, "WRITEs arrived after the pages were taken away");
    CHECK((race.turns > 0) && (verified > 0) && (other || !is_put), "no race");
}
