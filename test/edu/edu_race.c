/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * A page of a window is pointed alternately at two pages while the device reads
 * and writes it continually. Every access must arrive at one of the two,
 * entirely, and none may fault. The device must start DMA by itself:
 * test/edu/vfio_edu.py.
 */

#include "edu.h"

#include <stdbool.h>
#include <sys/mman.h>

#define NPAGES     16
#define INDEX      7
#define LINE_WORDS 8

/* Number of re-pointings, in total and between two checks of the device */
#define FLIPS      12000
#define FLIPS_ONCE 40

typedef struct {
    int               edu;
    volatile uint64_t *pages[2];
    uint64_t          flips;
    uint64_t          nsec;
    uint64_t          lines[2]; /* written to either page */
    uint64_t          reads[2]; /* of either page */
    uint64_t          faults;
} race_t;

static uint64_t reg(race_t *race, uint32_t offset)
{
    struct nprdma_edu_register arg = {.offset = offset};

    CHECK_CALL(race->edu, NPRDMA_EDU_IOC_REGISTER, &arg, 0);
    return arg.value;
}

static void set_reg(race_t *race, uint32_t offset, uint64_t value)
{
    struct nprdma_edu_register arg = {
        .offset = offset, .write = 1, .value = value
    };

    CHECK_CALL(race->edu, NPRDMA_EDU_IOC_REGISTER, &arg, 0);
}

static void setup(race_t *race)
{
    struct nprdma_edu_window window = {.npages = NPAGES, .writable = 1};
    struct nprdma_edu_point point   = {
        .index = INDEX, .count = 1, .page = 0, .flush = 1
    };
    struct nprdma_edu_address arg   = {.offset = INDEX * PAGE};
    uint8_t *pages;
    size_t i;

    memset(race, 0, sizeof(*race));
    race->edu = edu_open();
    if (reg(race, NPRDMA_EDU_BURST_MAGIC) != NPRDMA_EDU_BURST) {
        kmod_skip("the edu device has no bursts of DMA");
    }
    pages = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED,
                 race->edu, 0);
    CHECK(pages != MAP_FAILED, "%m");
    for (i = 0; i < 2; ++i) {
        race->pages[i] = (void*)(pages + i * PAGE);
        edu_fill(pages + i * PAGE, NPRDMA_EDU_BURST_WORD + i);
    }
    CHECK_CALL(race->edu, NPRDMA_EDU_IOC_WINDOW, &window, 0);
    CHECK_CALL(race->edu, NPRDMA_EDU_IOC_POINT, &point, 0);
    CHECK_CALL(race->edu, NPRDMA_EDU_IOC_ADDRESS, &arg, 0);
    set_reg(race, NPRDMA_EDU_BURST_ADDRESS, arg.address);
}

static void flip_during_burst(race_t *race, uint64_t base, bool unmap)
{
    struct nprdma_edu_flip flip = {
        .index = INDEX, .unmap = unmap, .count = FLIPS_ONCE
    };

    set_reg(race, NPRDMA_EDU_BURST_BASE, base);
    set_reg(race, NPRDMA_EDU_BURST_COUNT, NPRDMA_EDU_BURST_LINES);
    do {
        CHECK_CALL(race->edu, NPRDMA_EDU_IOC_FLIP, &flip, 0);
        race->flips += flip.count;
        race->nsec  += flip.nsec;
    } while (reg(race, NPRDMA_EDU_BURST_COUNT) != 0);

    race->faults   += reg(race, NPRDMA_EDU_BURST_FAULTS);
    race->reads[0] += reg(race, NPRDMA_EDU_BURST_FIRST);
    race->reads[1] += reg(race, NPRDMA_EDU_BURST_SECOND);
}

/* Number of a line's words that have this value */
static unsigned count_words(volatile uint64_t *page, size_t line,
                            uint64_t value)
{
    unsigned count = 0;
    size_t i;

    for (i = 0; i < LINE_WORDS; ++i) {
        count += page[line * LINE_WORDS + i] == value;
    }
    return count;
}

/* Each write has arrived exactly once, entirely, in either page */
static void check_lines(race_t *race, uint64_t base)
{
    unsigned count[2];
    size_t line, i;

    for (line = 0; line < NPRDMA_EDU_BURST_LINES; ++line) {
        for (i = 0; i < 2; ++i) {
            count[i] = count_words(race->pages[i], line, base + line);
        }
        CHECK((count[0] == LINE_WORDS && count[1] == 0) ||
              (count[1] == LINE_WORDS && count[0] == 0),
              "write %lu: %u words in one page, %u in the other", base + line,
              count[0], count[1]);
        ++race->lines[count[1] != 0];
    }
}

static void report(const race_t *race)
{
    printf("%lu re-pointings of %lu ns; lines %lu + %lu, reads %lu + %lu, "
           "faults %lu\n", race->flips, race->nsec / race->flips,
           race->lines[0], race->lines[1], race->reads[0], race->reads[1],
           race->faults);
}

static void test_point(void)
{
    uint64_t base = 1000000;
    race_t race;

    for (setup(&race); race.flips < FLIPS; base += NPRDMA_EDU_BURST_LINES) {
        flip_during_burst(&race, base, false);
        CHECK_EQ(race.faults, 0);
        CHECK_EQ(reg(&race, NPRDMA_EDU_BURST_TORN), 0);
        check_lines(&race, base);
    }
    report(&race);
    /* Otherwise there was no race */
    CHECK(race.lines[0] > 0 && race.lines[1] > 0);
    CHECK(race.reads[0] > 0 && race.reads[1] > 0);
}

/* Control: without the PTE engine the page is unmapped for a moment, and the
 * device faults */
static void test_unmap(void)
{
    uint64_t base = 1000000;
    race_t race;

    for (setup(&race); race.flips < FLIPS && race.faults == 0;
         base += NPRDMA_EDU_BURST_LINES) {
        flip_during_burst(&race, base, true);
    }
    report(&race);
    CHECK(race.faults > 0);
}

int main(int argc, char **argv)
{
    static const kmod_case_t cases[] = {
        {"point", test_point},
        {"unmap", test_unmap},
        {NULL,    NULL}
    };

    return kmod_main(cases, argc, argv);
}
