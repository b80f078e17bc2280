/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "hw_race.h"

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
    hw_take_t     take;
    int           watches;  /* for late WRITEs */
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
        if ((race->turns & 1) && (race->take == HW_TAKE_BY_KERNEL)) {
            have_kernel_take(race, race->turns / 2);
        } else {
            hw_invalidate(r, RACE_PAGE, RACE_PAGES);
            if (race->watches) {
                watch_for_late_writes(race);
            }
        }
        ++race->turns;
        race_pause(race, &seed);
    }
    return NULL;
}

static void race_start(race_t *race, pthread_t *thread, int seconds)
{
    race->began = race_seconds();
    race->end   = race->began + seconds;
    race->limit = race->began + (PATIENCE * seconds);
    CHECK(pthread_create(thread, NULL, turn_pages, race) == 0, "no thread");
}

static void race_end(race_t *race, pthread_t thread)
{
    race->ends = 1;
    pthread_join(thread, NULL);
    CHECK(race->turns > 0, "the pages did not move");
    printf("turns: %lu\n", race->turns);
    if (race->take == HW_TAKE_BY_KERNEL) {
        printf("pages taken by the kernel: %lu\npages swapped out: %lu\n",
               hw_taken_by_kernel(&race->access->region), race->swapped);
    }
}

static void read_states(const hw_access_t *a, uint32_t *states)
{
    size_t i;

    for (i = 0; i < RACE_PAGES; ++i) {
        states[i] = hw_state(&a->region, RACE_PAGE + i);
    }
}

/* An access with the READ of the states behind it */
static void access_verified(hw_access_t *a, int is_put)
{
    hw_post(a, is_put, (size_t)RACE_PAGE * HW_PAGE, 0,
            (size_t)RACE_PAGES * HW_PAGE);
    hw_post_states(a, RACE_PAGE, RACE_PAGES);
    hw_wait(a, 2);
}

static int is_verified(const hw_access_t *a, const uint32_t *before, size_t i,
                       uint32_t bit)
{
    return (before[i] & bit) && (before[i] == hw_read_state(a, i));
}

/* Words of a page that are not `value` */
static unsigned long count_other(const uint64_t *page, uint64_t value)
{
    unsigned long count = 0;
    size_t i;

    for (i = 0; i < HW_WORDS; ++i) {
        count += load(&page[i]) != value;
    }
    return count;
}

void hw_race_puts(hw_access_t *a, hw_take_t take, int seconds)
{
    race_t race = {.access = a, .take = take, .watches = 1};
    unsigned long puts = 0, verified = 0, refused = 0, missing = 0, newer = 0;
    uint32_t before[RACE_PAGES];
    const uint64_t *page;
    pthread_t thread;
    size_t i, j;

    memset(race_memory(a), 0, (size_t)RACE_PAGES * HW_PAGE);
    race_start(&race, &thread, seconds);
    while (race_goes_on(&race, verified && refused) && (missing + newer == 0)) {
        ++puts;
        for (i = 0; i < RACE_WORDS; ++i) {
            hw_buffer(a)[i] = puts;
        }
        read_states(a, before);
        access_verified(a, 1);
        for (i = 0; i < RACE_PAGES; ++i) {
            page = race_memory(a) + (i * HW_WORDS);
            if (is_verified(a, before, i, NPRDMA_PAGE_W)) {
                ++verified;
                missing += count_other(page, puts);
                continue;
            }
            ++refused;
            for (j = 0; j < HW_WORDS; ++j) {
                newer += load(&page[j]) > puts;
            }
        }
    }
    race_end(&race, thread);
    printf("writes: %lu\nverified pages: %lu\nother pages: %lu\n"
           "missing words: %lu\nunknown words: %lu\nlate words: %lu\n",
           puts, verified, refused, missing, newer, race.late);
    CHECK(missing == 0, "data is missing that the states say is there");
    CHECK(newer == 0, "words that were never written");
    CHECK(race.late == 0, "WRITEs arrived after the pages were taken away");
    CHECK((verified > 0) && (refused > 0), "no race");
}

void hw_race_gets(hw_access_t *a, hw_take_t take, int seconds)
{
    race_t race = {.access = a, .take = take};
    unsigned long gets = 0, verified = 0, mixed = 0, wrong = 0, absent_word = 0;
    uint32_t before[RACE_PAGES];
    size_t i, present, absent;
    pthread_t thread;

    for (i = 0; i < RACE_WORDS; ++i) {
        race_memory(a)[i] = RACE_FIRST + i;
    }
    race_start(&race, &thread, seconds);
    while (race_goes_on(&race, verified > 0) && (wrong + absent_word == 0)) {
        ++gets;
        read_states(a, before);
        access_verified(a, 0);
        for (i = 0, present = 0, absent = 0; i < RACE_WORDS; ++i) {
            if (hw_buffer(a)[i] == RACE_FIRST + i) {
                ++present;
            } else if (hw_buffer(a)[i] == a->region.signature) {
                ++absent;
                absent_word += is_verified(a, before, i / HW_WORDS,
                                           NPRDMA_PAGE_R);
            } else {
                ++wrong;
            }
        }
        for (i = 0; i < RACE_PAGES; ++i) {
            verified += is_verified(a, before, i, NPRDMA_PAGE_R);
        }
        mixed += (present > 0) && (absent > 0);
    }
    race_end(&race, thread);
    printf("reads: %lu\nreads that saw both: %lu\nverified pages: %lu\n"
           "wrong words: %lu\nabsent words: %lu\n",
           gets, mixed, verified, wrong, absent_word);
    CHECK(wrong == 0, "words that are neither the page's nor the signature");
    CHECK(absent_word == 0, "absent words that the states say are there");
    CHECK((gets > 0) && (verified > 0), "no race");
}
