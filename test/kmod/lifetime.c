/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * The end of processes at any point, and of thousands of regions. A process
 * that has mapped the states of an ended one sees all pages absent, and no
 * memory leaks.
 */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "watch.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MIB       ((size_t)1 << 20)
#define NUM_PAGES 2048

/* What a child reports: where its states are */
typedef struct child {
    pid_t         pid;
    int           states_fd; /* the child's descriptor number */
    int           pipe;      /* the child waits for its end of file */
    kmod_region_t region;    /* only its states are mapped here */
    kmod_watch_t  watch;
} child_t;


/* In the child: fills a region with pages, then does what it was started for */
static void child_run(int out, int in, void (*what)(kmod_region_t *region))
{
    kmod_region_t region;
    char byte;

    kmod_region_create(&region, kmod_open(), kmod_map(NUM_PAGES * PAGE),
                       NUM_PAGES * PAGE);
    memset(region.memory, 1, region.length);
    kmod_populate_all(&region, 0, NUM_PAGES, NPRDMA_IOC_POPULATE_WRITE);
    CHECK_EQ(write(out, &region.states_fd, sizeof(int)), sizeof(int));
    CHECK_EQ(read(in, &byte, 1), 0);
    what(&region);
}

static int child_is_seen(void *arg)
{
    kmod_watch_t *watch = arg;

    return __atomic_load_n(&watch->repeated, __ATOMIC_ACQUIRE) > 0;
}

/* Map the states of another process, like the NIC of a peer */
static void child_map(kmod_region_t *region, pid_t pid, int states_fd)
{
    struct nprdma_ioc_states_info info = {.size = sizeof(info)};
    int pidfd = syscall(SYS_pidfd_open, pid, 0);
    int fd    = syscall(SYS_pidfd_getfd, pidfd, states_fd, 0);
    void *states;

    CHECK(fd >= 0, "%m");
    CHECK_CALL(fd, NPRDMA_IOC_STATES_INFO, &info, 0);
    states = mmap(NULL, info.states_size, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(states != MAP_FAILED, "%m");
    close(fd);
    close(pidfd);
    region->header      = states;
    region->num_pages   = info.length / PAGE;
    region->words       = (void*)((uint8_t*)states + info.states_offset);
    region->states_size = info.states_size;
}

/* Start a child, map its states, and watch them */
static void child_start(child_t *child, void (*what)(kmod_region_t *region))
{
    int out[2], in[2];

    CHECK(pipe(out) == 0 && pipe(in) == 0, "%m");
    child->pid = fork();
    if (child->pid == 0) {
        close(in[1]);
        child_run(out[1], in[0], what);
        _exit(0);
    }
    close(in[0]);
    close(out[1]);
    CHECK_EQ(read(out[0], &child->states_fd, sizeof(int)), sizeof(int));
    close(out[0]);
    child->pipe = in[1];

    child_map(&child->region, child->pid, child->states_fd);
    CHECK_EQ(kmod_count(&child->region, 0, NUM_PAGES, NPRDMA_PAGE_BITS),
             NUM_PAGES);
    kmod_watch_start(&child->watch, &child->region, child->pid);
    CHECK(kmod_await(child_is_seen, &child->watch));
}

/* Let the child go on, and check how it ends, its states first */
static void child_end(child_t *child, int expected)
{
    uint64_t end = kmod_deadline();

    close(child->pipe);
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

static void do_nothing(kmod_region_t *region)
{
    (void)region;
}

static void test_exit(void)
{
    child_t child;

    child_start(&child, do_nothing);
    child_end(&child, 0);
}

/* Runs until the process ends, in several threads */
static void *populate_forever(void *arg)
{
    kmod_region_t *region = arg;
    unsigned seed         = (uintptr_t)&region;
    size_t first;

    for (;;) {
        first = rand_r(&seed) % (NUM_PAGES - 64);
        kmod_populate(region, first, 64, NPRDMA_IOC_POPULATE_WRITE, NULL);
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

static void test_kill(void)
{
    unsigned seed = 1;
    child_t child;
    int i;

    for (i = 0; i < 10; ++i) {
        child_start(&child, be_busy);
        close(child.pipe);
        child.pipe = -1;
        usleep(rand_r(&seed) % 50000);
        CHECK(kill(child.pid, SIGKILL) == 0, "%m");
        child_end(&child, 1000 + SIGKILL);
    }
}

/* Uses more memory than there is. The OOM reaper takes it, and cannot wait. */
static void want_too_much(kmod_region_t *region)
{
    size_t length = 512 * MIB;
    uint8_t *memory;
    size_t i;

    memory = kmod_map(length);
    for (i = 0;; i = (i + PAGE) % length) {
        memory[i] = 1;
        if (i % MIB == 0) {
            kmod_populate(region, 0, NUM_PAGES, NPRDMA_IOC_POPULATE_WRITE,
                          NULL);
        }
    }
}

static void test_oom(void)
{
    const char *group = "/sys/fs/cgroup/oom";
    char path[64], text[32];
    child_t child;

    kmod_write_file("/sys/fs/cgroup/cgroup.subtree_control", "+memory");
    CHECK(mkdir(group, 0755) == 0, "%m");
    child_start(&child, want_too_much);
    snprintf(path, sizeof(path), "%s/memory.max", group);
    CHECK_EQ(kmod_write_file(path, "64M"), 0);
    snprintf(path, sizeof(path), "%s/memory.swap.max", group);
    CHECK_EQ(kmod_write_file(path, "16M"), 0);
    snprintf(path, sizeof(path), "%s/cgroup.procs", group);
    snprintf(text, sizeof(text), "%d", (int)child.pid);
    CHECK_EQ(kmod_write_file(path, text), 0);
    child_end(&child, 1000 + SIGKILL);
}

/* States of 32 MiB */
#define LARGE ((uint64_t)32 << 30)

/* Changes all states of a large region, once it may */
static void invalidate_large(int out, int in)
{
    struct nprdma_ioc_region_create create = {
        .size = sizeof(create), .address = 1ull << 40, .length = LARGE
    };
    struct nprdma_ioc_invalidate invalidate = {
        .size    = sizeof(invalidate),
        .flags   = NPRDMA_IOC_INVALIDATE_TOUCH,
        .bits    = NPRDMA_PAGE_BITS,
        .address = create.address,
        .length  = LARGE
    };
    int ctx = kmod_open();
    char byte;

    CHECK_CALL(ctx, NPRDMA_IOC_REGION_CREATE, &create, 0);
    CHECK_EQ(write(out, &create.states_fd, sizeof(int)), sizeof(int));
    CHECK_EQ(read(in, &byte, 1), 0);
    invalidate.region = create.region;
    kmod_call(ctx, NPRDMA_IOC_INVALIDATE, &invalidate);
}

/* @return Whether the child was killed early enough to prove something */
static int kill_invalidate(void)
{
    kmod_region_t region;
    int out[2], in[2], states_fd, is_early;
    pid_t pid;

    CHECK(pipe(out) == 0 && pipe(in) == 0, "%m");
    pid = fork();
    if (pid == 0) {
        close(in[1]);
        invalidate_large(out[1], in[0]);
        _exit(0);
    }
    close(in[0]);
    close(out[1]);
    CHECK_EQ(read(out[0], &states_fd, sizeof(int)), sizeof(int));
    child_map(&region, pid, states_fd);
    close(in[1]);
    while (region.words[0] == 0) {
    }
    kill(pid, SIGKILL);
    is_early = region.words[region.num_pages / 2] == 0;
    kmod_wait(pid);
    CHECK(!is_early || (region.words[region.num_pages - 1] == 0),
          "the call went on to its end");
    munmap(region.header, region.states_size);
    close(out[0]);
    return is_early;
}

/* A call that takes long ends when the process is killed */
static void test_invalidate_killed(void)
{
    uint64_t end = kmod_deadline();

    while (!kill_invalidate()) {
        CHECK(kmod_time_ms() < end, "the call is too fast");
    }
}

#define MANY 4000

static void create_many(int ctx, uint8_t *memory, uint32_t *ids)
{
    struct nprdma_ioc_region_create create = {.size = sizeof(create)};
    struct nprdma_ioc_register reg         = {.size = sizeof(reg)};
    struct nprdma_ioc_populate populate    = {.size = sizeof(populate)};
    size_t i;

    for (i = 0; i < MANY; ++i) {
        create.address = (uintptr_t)memory + i * PAGE;
        create.length  = PAGE;
        CHECK_CALL(ctx, NPRDMA_IOC_REGION_CREATE, &create, 0);
        close(create.states_fd);
        reg.region       = create.region;
        reg.registration = 0;
        reg.address      = create.address;
        reg.length       = PAGE;
        CHECK_CALL(ctx, NPRDMA_IOC_REGISTER, &reg, 0);
        populate.region  = create.region;
        populate.address = create.address;
        populate.length  = PAGE;
        CHECK_CALL(ctx, NPRDMA_IOC_POPULATE, &populate, 0);
        CHECK_EQ(populate.populated, 1);
        ids[i] = create.region;
    }
}

static void use_many(void)
{
    static uint32_t ids[MANY];
    uint8_t *memory = kmod_map(MANY * PAGE);
    int ctx         = kmod_open();
    struct nprdma_ioc_region_destroy destroy = {.size = sizeof(destroy)};
    struct nprdma_ioc_stats stats;
    size_t i;

    memset(memory, 1, MANY * PAGE);
    create_many(ctx, memory, ids);
    kmod_stats(ctx, 0, &stats);
    CHECK_EQ(stats.regions, MANY);
    CHECK_EQ(stats.present, MANY);
    CHECK_EQ(stats.registrations, MANY);
    /* One event concerns all of them */
    munmap(memory, MANY * PAGE);
    kmod_stats(ctx, 0, &stats);
    CHECK_EQ(stats.present, 0);
    CHECK_EQ(stats.invalidated, MANY);
    for (i = 0; i < MANY; i += 2) {
        destroy.region = ids[i];
        CHECK_CALL(ctx, NPRDMA_IOC_REGION_DESTROY, &destroy, 0);
    }
    kmod_stats(ctx, 0, &stats);
    CHECK_EQ(stats.regions, MANY / 2);
    CHECK_EQ(stats.invalidated, MANY);
    /* Closing the file destroys the other regions */
    close(ctx);
}

static void test_many_regions(void)
{
    use_many();
}

/* Memory that is not available to others, in KiB */
static long long memory_in_use(void)
{
    CHECK_EQ(kmod_write_file("/proc/sys/vm/drop_caches", "3"), 0);
    return kmod_read_number("/proc/meminfo", "SUnreclaim:") +
           kmod_read_number("/proc/meminfo", "VmallocUsed:") +
           kmod_read_number("/proc/meminfo", "AnonPages:");
}

/*
 * A cycle that leaks even the smallest object leaks 4000 of them each time. The
 * kernel's own growth is smaller.
 */
static void test_memory_comes_back(void)
{
    long long before, after = 0;
    uint64_t end;
    int i;
    pid_t pid;

    if (access("/sys/kernel/debug/kmemleak", F_OK) == 0) {
        kmod_skip("KASAN keeps what is freed; kmemleak looks for leaks");
    }
    for (i = 0, before = 0; i < 5; ++i) {
        pid = fork();
        if (pid == 0) {
            use_many();
            _exit(0);
        }
        CHECK_EQ(kmod_wait(pid), 0);
        if (i == 1) {
            before = memory_in_use();
        }
    }

    /* Some memory is freed after a grace period */
    end = kmod_deadline();
    do {
        after = memory_in_use();
        usleep(100000);
    } while ((after > before + 1024) && (kmod_time_ms() < end));
    printf("in use: %lld KiB, %lld KiB after three cycles more\n", before,
           after);
    CHECK(after <= before + 1024);
}

static const kmod_case_t cases[] = {
    {"exit", test_exit},
    {"kill", test_kill},
    {"invalidate_killed", test_invalidate_killed},
    {"many_regions", test_many_regions},
    {"memory_comes_back", test_memory_comes_back},
    {"oom", test_oom},
    {NULL, NULL}
};

int main(int argc, char **argv)
{
    return kmod_main(cases, argc, argv);
}
