/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * What contrib/hwcheck runs on RDMA devices, as root:
 *
 *   hw_views attach DEVICE
 *       what the kernel module says about it
 *   hw_views states FROM TO
 *       a page in each of its states, read and written through views
 *   hw_views race puts|gets call|kernel FROM TO SECONDS
 *       pages are taken by the program's call, or by the kernel, too
 *
 * FROM accesses memory of TO. Both are DEVICE or DEVICE/PORT, and may be the
 * same. Prints lines "NAME: VALUE". Exit status 1: a line "FAILED: ..." says
 * what is wrong.
 */

#include "hw_region.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static void run_attach(char **argv)
{
    hw_region_t region;

    printf("description: %s\n", hw_attach(&region, argv[0]).why);
}

/* --- states ----------------------------------------------------------------*/

enum { PAGES = 256, STATES_PAGE = 7, STATES_WORD = STATES_PAGE * HW_WORDS };

/* What the CPU and a READ see of the page: its state, and its first word */
static void expect(hw_region_t *r, uint32_t bits, uint64_t word,
                   const char *what)
{
    uint32_t state = hw_state(r, STATES_PAGE);

    hw_post(r, 0, (size_t)STATES_PAGE * HW_PAGE, 8);
    hw_post_states(r, STATES_PAGE, 1);
    hw_wait(r, 2);
    CHECK(hw_read_state(r, 0) == state, "%s: RDMA reads another state", what);
    CHECK((state & NPRDMA_PAGE_BITS) == bits, "%s: state bits %u", what,
          state & NPRDMA_PAGE_BITS);
    CHECK(hw_buffer(r)[0] == word, "%s: another word than expected", what);
}

/* WRITEs a word to the page, which then holds this one */
static void put(hw_region_t *r, uint64_t word, uint64_t result,
                const char *what)
{
    hw_buffer(r)[0] = word;
    hw_post(r, 1, (size_t)STATES_PAGE * HW_PAGE, 8);
    hw_wait(r, 1);
    CHECK(r->memory[STATES_WORD] == result, "%s: a WRITE leaves %#llx", what,
          (unsigned long long)r->memory[STATES_WORD]);
}

static void run_states(char **argv)
{
    const uint32_t both = NPRDMA_PAGE_R | NPRDMA_PAGE_W;
    hw_region_t r;

    hw_open(&r, argv[0], argv[1], (size_t)PAGES * HW_PAGE);
    expect(&r, 0, r.signature, "untouched");
    r.memory[STATES_WORD] = 7;
    expect(&r, 0, r.signature, "absent");
    put(&r, 0x99, 7, "absent");

    hw_populate(&r, STATES_PAGE, 1, 0);
    expect(&r, NPRDMA_PAGE_R, 7, "for reading");
    put(&r, 0x98, 7, "for reading");
    hw_populate(&r, STATES_PAGE, 2, NPRDMA_IOC_POPULATE_WRITE);
    put(&r, 0x97, 0x97, "for writing");
    expect(&r, both, 0x97, "for writing");

    hw_invalidate(&r, STATES_PAGE + 1, 1);
    expect(&r, both, 0x97, "its neighbour is invalidated");
    hw_invalidate(&r, STATES_PAGE, 1);
    expect(&r, 0, r.signature, "invalidated");
    put(&r, 0x96, 0x97, "invalidated");

    hw_populate(&r, STATES_PAGE, 1, NPRDMA_IOC_POPULATE_WRITE);
    CHECK(madvise(r.memory + STATES_WORD, HW_PAGE, MADV_DONTNEED) == 0,
          "madvise");
    expect(&r, 0, r.signature, "discarded");
    put(&r, 0x95, 0, "discarded");
    hw_close(&r);
}

/* --- races -----------------------------------------------------------------*/

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
    hw_region_t   *region;
    int           is_put, by_kernel;
    atomic_int    ends;
    atomic_uint   access_us; /* Duration of the last access and its check */
    double        began;     /* The last access, in microseconds */
    double        end, limit;
    unsigned long turns, late, swapped;
    unsigned long accesses;
    unsigned long verified, other;  /* pages of accesses */
    unsigned long missing, unknown; /* words of them */
    uint64_t      copy[RACE_WORDS];
} race_t;

static uint64_t *race_memory(const hw_region_t *r)
{
    return r->memory + RACE_FIRST;
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

static double now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (t.tv_sec * 1e6) + (t.tv_nsec * 1e-3);
}

/* Nothing but WRITEs changes the memory. The pages are absent now, and stay
 * absent meanwhile. */
static void watch_for_late_writes(race_t *race)
{
    const uint64_t *memory = race_memory(race->region);
    double end             = now_us() + LATE_US;
    size_t i;

    for (i = 0; i < RACE_WORDS; ++i) {
        race->copy[i] = load(&memory[i]);
    }
    do {
        for (i = 0; i < RACE_WORDS; ++i) {
            race->late += load(&memory[i]) != race->copy[i];
        }
    } while (now_us() < end);
}

/* An outcome of each kind that the race has */
static int race_is_met(const race_t *race)
{
    return race->verified && (race->other || !race->is_put);
}

/* Call it between two accesses. The race ends when its time is over, and later
 * if an outcome has not been met until then; and when something is wrong. */
static int race_goes_on(race_t *race)
{
    double now = now_us();

    race->access_us = (unsigned)(now - race->began);
    race->began     = now;
    return (race->missing + race->unknown == 0) &&
           (now < (race_is_met(race) ? race->end : race->limit));
}

static void protect(race_t *race, int protection)
{
    CHECK(mprotect(race_memory(race->region), (size_t)RACE_PAGES * HW_PAGE,
                   protection) == 0, "mprotect");
}

static unsigned long swap_out(const race_t *race)
{
    unsigned long before = hw_taken_by_kernel(race->region);

    madvise(race_memory(race->region), (size_t)RACE_PAGES * HW_PAGE,
            MADV_PAGEOUT);
    return hw_taken_by_kernel(race->region) - before;
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
    const hw_region_t *r = race->region;
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
static unsigned long check_read(const hw_region_t *r, size_t page,
                                unsigned long *absent)
{
    unsigned long wrong = 0;
    size_t i;

    for (i = page * HW_WORDS; i < (page + 1) * HW_WORDS; ++i) {
        if (hw_buffer(r)[i] == r->signature) {
            ++*absent;
        } else {
            wrong += hw_buffer(r)[i] != RACE_FIRST + i;
        }
    }
    return wrong;
}

/* An access to all pages, with the READ of the states behind it */
static void race_access(race_t *race)
{
    const uint32_t bit = race->is_put ? NPRDMA_PAGE_W : NPRDMA_PAGE_R;
    hw_region_t *r     = race->region;
    unsigned long absent;
    uint32_t before[RACE_PAGES];
    const uint64_t *page;
    size_t i;

    ++race->accesses;
    for (i = 0; race->is_put && (i < RACE_WORDS); ++i) {
        hw_buffer(r)[i] = race->accesses;
    }
    for (i = 0; i < RACE_PAGES; ++i) {
        before[i] = hw_state(r, RACE_PAGE + i);
    }
    hw_post(r, race->is_put, (size_t)RACE_PAGE * HW_PAGE,
            (size_t)RACE_PAGES * HW_PAGE);
    hw_post_states(r, RACE_PAGE, RACE_PAGES);
    hw_wait(r, 2);
    for (i = 0; i < RACE_PAGES; ++i) {
        page   = race_memory(r) + (i * HW_WORDS);
        absent = 0;
        race->unknown += race->is_put ? count_words(page, race->accesses, 1) :
                                        check_read(r, i, &absent);
        if ((before[i] & bit) && (before[i] == hw_read_state(r, i))) {
            ++race->verified;
            race->missing += race->is_put ?
                             count_words(page, race->accesses, 0) : absent;
        } else {
            ++race->other;
        }
    }
}

/*
 * WRITE or READ pages, and READ their states behind that, while they come and
 * go, for the given seconds, and up to ten times as long until some accesses
 * were verified and, for WRITEs, refused. An access is verified if the state
 * before it and the one that is read behind it are equal and permit it.
 * - When the module has taken a page away, no WRITE changes it any more.
 * - The data of a verified WRITE is there, and a verified READ has the page's.
 * - A word that is read is the page's or the signature.
 *
 * With "kernel", half of the time the kernel takes pages: by page-out, or
 * because of mprotect(). Else the program does, so DMA that arrives late hits
 * memory of the program.
 */
static void run_race(char **argv)
{
    hw_region_t region;
    race_t race = {.region = &region, .is_put = !strcmp(argv[0], "puts"),
                   .by_kernel = strcmp(argv[1], "call") != 0};
    pthread_t thread;
    size_t i;

    hw_open(race.region, argv[2], argv[3], (size_t)PAGES * HW_PAGE);
    for (i = 0; i < RACE_WORDS; ++i) {
        race_memory(race.region)[i] = race.is_put ? 0 : RACE_FIRST + i;
    }
    race.began = now_us();
    race.end   = race.began + (atoi(argv[4]) * 1e6);
    race.limit = race.began + (PATIENCE * (race.end - race.began));
    CHECK(pthread_create(&thread, NULL, turn_pages, &race) == 0, "no thread");
    while (race_goes_on(&race)) {
        race_access(&race);
    }
    race.ends = 1;
    pthread_join(thread, NULL);

    printf("turns: %lu\naccesses: %lu\nverified pages: %lu\nother pages: %lu\n"
           "missing words: %lu\nunknown words: %lu\nlate words: %lu\n",
           race.turns, race.accesses, race.verified, race.other, race.missing,
           race.unknown, race.late);
    if (race.by_kernel) {
        printf("pages taken by the kernel: %lu\npages swapped out: %lu\n",
               hw_taken_by_kernel(race.region), race.swapped);
    }
    CHECK(race.missing == 0, "%s", race.is_put ?
          "data is missing that the states say is there" :
          "absent words that the states say are there");
    CHECK(race.unknown == 0, "words that were never written");
    CHECK(race.late == 0, "WRITEs arrived after the pages were taken away");
    CHECK((race.turns > 0) && race_is_met(&race), "no race");
    hw_close(race.region);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        int        argc;
        void       (*run)(char **argv);
    } commands[] = {
        {"attach", 1, run_attach}, {"states", 2, run_states},
        {"race", 5, run_race}
    };
    size_t i;

    setvbuf(stdout, NULL, _IOLBF, 0);
    for (i = 0; i < sizeof(commands) / sizeof(commands[0]); ++i) {
        if ((argc == commands[i].argc + 2) &&
            !strcmp(argv[1], commands[i].name)) {
            commands[i].run(argv + 2);
            return 0;
        }
    }
    fprintf(stderr, "usage: see the top of hw_views.c\n");
    return 2;
}
