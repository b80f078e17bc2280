/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * The end of processes at any point, and of thousands of regions. A process
 * that has mapped the states of an ended one sees all pages absent, and no
 * memory leaks.
 */

#include "watch.h"

#define NUM_PAGES 2048

/* A child, which waits for the end of in after it has written to out */
typedef struct child {
    pid_t         pid;
    int           out[2], in[2];
    void          (*what)(kmod_region_t *region);
    kmod_region_t region; /* only its states are mapped here */
    kmod_watch_t  watch;
} child_t;

/* In the child: says where its states are, and waits until it may go on */
static void child_report(child_t *child, int states_fd)
{
    char byte;

    close(child->in[1]);
    CHECK_EQ(write(child->out[1], &states_fd, sizeof(int)), sizeof(int));
    CHECK_EQ(read(child->in[0], &byte, 1), 0);
}

/* Fills a region with pages, then does what the child was started for */
static void child_run(void *arg)
{
    child_t *child = arg;
    kmod_region_t region;

    kmod_region(&region, NUM_PAGES);
    memset(region.memory, 1, region.length);
    kmod_populate_all(&region, 0, NUM_PAGES, WRITE);
    child_report(child, region.states_fd);
    child->what(&region);
}

/* Starts the child, and maps its states, like the NIC of a peer */
static void child_fork(child_t *child, void (*run)(void *child))
{
    struct nprdma_ioc_states_info info = {.size = sizeof(info)};
    kmod_region_t *region              = &child->region;
    int states_fd, fd;
    void *states;

    CHECK((pipe(child->out) == 0) && (pipe(child->in) == 0), "%m");
    child->pid = kmod_fork(run, child);
    close(child->in[0]);
    close(child->out[1]);
    CHECK_EQ(read(child->out[0], &states_fd, sizeof(int)), sizeof(int));
    close(child->out[0]);

    fd = kmod_get_fd(child->pid, states_fd);
    CHECK_CALL(fd, NPRDMA_IOC_STATES_INFO, &info, 0);
    states = mmap(NULL, info.states_size, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(states != MAP_FAILED, "%m");
    close(fd);
    region->header      = states;
    region->num_pages   = info.length / PAGE;
    region->words       = (void*)((uint8_t*)states + info.states_offset);
    region->states_size = info.states_size;
}

static void child_start(child_t *child, void (*what)(kmod_region_t *region))
{
    child->what = what;
    child_fork(child, child_run);
    CHECK_EQ(kmod_count(&child->region, 0, NUM_PAGES, NPRDMA_PAGE_BITS),
             NUM_PAGES);
    kmod_watch_start(&child->watch, &child->region, child->pid);
    kmod_watch_await(&child->watch);
}

/* Check how the child ends, its states first */
static void child_end(child_t *child, int expected)
{
    uint64_t end = kmod_deadline();

    CHECK_EQ(kmod_wait(child->pid), expected);
    /* A reader of the pagemap may hold the last reference of the memory, and
     * then tears it down itself */
    kmod_watch_stop(&child->watch);
    CHECK_EQ(kmod_count(&child->region, 0, NUM_PAGES, 0), NUM_PAGES);
    while (child->region.header->dead == 0) {
        CHECK(kmod_time_ms() < end);
    }
    munmap(child->region.header, child->region.states_size);
}

/* Runs until the process ends, in several threads */
static void *populate_forever(void *arg)
{
    kmod_region_t *region = arg;
    unsigned seed         = (uintptr_t)&region;
    size_t first;

    for (;;) {
        first = rand_r(&seed) % (NUM_PAGES - 64);
        kmod_populate(region, first, 64, WRITE, NULL);
        first = rand_r(&seed) % (NUM_PAGES - 64);
        madvise(region->memory + first * PAGE, 64 * PAGE,
                (rand_r(&seed) % 2) ? MADV_DONTNEED : MADV_PAGEOUT);
    }
    return NULL;
}

static void be_busy(kmod_region_t *region)
{
    pthread_t thread;

    CHECK_EQ(pthread_create(&thread, NULL, populate_forever, region), 0);
    populate_forever(region);
}

KMOD_CASE(lifetime, kill)
{
    unsigned seed = 1;
    child_t child;
    int i;

    for (i = 0; i < 10; ++i) {
        child_start(&child, be_busy);
        close(child.in[1]);
        usleep(rand_r(&seed) % 50000);
        CHECK_OK(kill(child.pid, SIGKILL));
        child_end(&child, 1000 + SIGKILL);
    }
}

/* Uses more memory than there is. The OOM reaper takes it, and cannot wait. */
static void want_too_much(kmod_region_t *region)
{
    size_t length = 512 * MIB;
    uint8_t *memory;
    size_t i;

    kmod_enter_memcg("oom", 64);
    kmod_write_number(CGROUP "oom/memory.swap.max", 16 * MIB);
    memory = kmod_map(length);
    for (i = 0;; i = (i + PAGE) % length) {
        memory[i] = 1;
        if (i % MIB == 0) {
            kmod_populate(region, 0, NUM_PAGES, WRITE, NULL);
        }
    }
}

KMOD_CASE(oom, reaped)
{
    child_t child;

    child_start(&child, want_too_much);
    close(child.in[1]);
    child_end(&child, 1000 + SIGKILL);
}

/* States of 32 MiB */
#define LARGE ((uint64_t)32 << 30)

/* Changes all states of a large region, once it may */
static void invalidate_large(void *child)
{
    struct nprdma_ioc_region_create create;
    struct nprdma_ioc_invalidate invalidate = {
        .size    = sizeof(invalidate),
        .flags   = NPRDMA_IOC_INVALIDATE_TOUCH,
        .bits    = NPRDMA_PAGE_BITS,
        .address = 1ull << 40,
        .length  = LARGE
    };
    int ctx = kmod_open();

    CHECK_EQ(kmod_create(ctx, invalidate.address, LARGE, 0, &create), 0);
    child_report(child, create.states_fd);
    invalidate.region = create.region;
    kmod_call(ctx, NPRDMA_IOC_INVALIDATE, &invalidate);
}

/* @return Whether the child was killed early enough to prove something */
static int kill_invalidate(void)
{
    child_t child;
    kmod_region_t *region = &child.region;
    int is_early;

    child_fork(&child, invalidate_large);
    close(child.in[1]);
    while (region->words[0] == 0) {
    }
    kill(child.pid, SIGKILL);
    is_early = region->words[region->num_pages / 2] == 0;
    kmod_wait(child.pid);
    CHECK(!is_early || (region->words[region->num_pages - 1] == 0),
          "the call went on to its end");
    munmap(region->header, region->states_size);
    return is_early;
}

/* A call that takes long ends when the process is killed */
KMOD_CASE(lifetime, invalidate_killed)
{
    uint64_t end = kmod_deadline();

    while (!kill_invalidate()) {
        CHECK(kmod_time_ms() < end, "the call is too fast");
    }
}

#define MANY 4000

static void use_many(void *unused)
{
    static kmod_region_t regions[MANY];
    uint8_t *memory = kmod_map(MANY * PAGE);
    int ctx         = kmod_open();
    struct nprdma_ioc_stats stats;
    size_t i;

    (void)unused;
    memset(memory, 1, MANY * PAGE);
    for (i = 0; i < MANY; ++i) {
        kmod_region_create(&regions[i], ctx, memory + i * PAGE, PAGE);
        close(regions[i].states_fd);
        kmod_populate_all(&regions[i], 0, 1, 0);
    }
    stats = kmod_stats(ctx, 0);
    CHECK_EQ(stats.regions, MANY);
    CHECK_EQ(stats.present, MANY);
    CHECK_EQ(stats.registrations, MANY);
    /* One event concerns all of them */
    munmap(memory, MANY * PAGE);
    stats = kmod_stats(ctx, 0);
    CHECK_EQ(stats.present, 0);
    CHECK_EQ(stats.invalidated, MANY);
    for (i = 0; i < MANY; i += 2) {
        CHECK_EQ(kmod_destroy(ctx, regions[i].id), 0);
    }
    stats = kmod_stats(ctx, 0);
    CHECK_EQ(stats.regions, MANY / 2);
    CHECK_EQ(stats.invalidated, MANY);
    /* Closing the file destroys the other regions */
    close(ctx);
}

/* Memory that is not available to others, in KiB */
static long long memory_in_use(void)
{
    CHECK_EQ(kmod_write_file("/proc/sys/vm/drop_caches", "3"), 0);
    return kmod_read_number("/proc/meminfo", "SUnreclaim:") +
           kmod_read_number("/proc/meminfo", "VmallocUsed:") +
           kmod_read_number("/proc/meminfo", "AnonPages:");
}

static int is_not_more(void *before)
{
    return memory_in_use() <= *(long long*)before + 1024;
}

/*
 * A cycle that leaks even the smallest object leaks 4000 of them each time. The
 * kernel's own growth is smaller.
 */
KMOD_CASE(lifetime, memory_comes_back)
{
    long long before = 0;
    int i;

    for (i = 0; i < 5; ++i) {
        kmod_in_child(use_many, NULL);
        if (i == 1) {
            before = memory_in_use();
        }
    }
    if (access("/sys/kernel/debug/kmemleak", F_OK) == 0) {
        kmod_skip("KASAN keeps what is freed; kmemleak looks for leaks");
    }
    /* Some memory is freed after a grace period */
    CHECK(kmod_await(is_not_more, &before), "%lld KiB, then %lld", before,
          memory_in_use());
}
