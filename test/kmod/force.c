/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * Errors that do not occur by themselves. Each kernel function that a call of
 * the module uses, and that can fail, fails once, by nprdma_force.ko. The
 * caller gets the error, everything done before is undone, and the same call
 * succeeds afterwards. The same module makes a page-in last for as long as a
 * counter needs to wrap around.
 */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "kmod_test.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <unistd.h>

#define NUM_PAGES 64
#define MIB       ((size_t)1 << 20)


/* Resources that a failed call must not change */
typedef struct holdings {
    uint64_t bytes, regions, registrations, present;
    int      fds;
} holdings_t;


static void take_stock(int ctx, holdings_t *holdings)
{
    struct nprdma_ioc_query query = {.size = sizeof(query)};
    struct nprdma_ioc_stats stats;

    CHECK_CALL(ctx, NPRDMA_IOC_QUERY, &query, 0);
    kmod_stats(ctx, 0, &stats);
    memset(holdings, 0, sizeof(*holdings));
    holdings->bytes         = query.user_bytes;
    holdings->regions       = query.user_regions;
    holdings->registrations = stats.registrations;
    holdings->present       = stats.present;
    holdings->fds           = kmod_count_fds();
}

static void check_error(const char *name, int error)
{
    int expected = !strcmp(name, "get_unused_fd_flags") ? EMFILE :
                   !strcmp(name, "anon_inode_getfile") ? ENFILE :
                   !strcmp(name, "mmu_interval_notifier_insert") ? EINTR :
                   ENOMEM;

    printf("  %s: %s\n", name, strerror(error));
    CHECK_EQ(error, expected);
}

/*
 * Repeat the call, with the first kernel function failing, then the second,
 * until none is left. Their number must be the expected one. A region needs
 * only its context here.
 */
static void fail_each(kmod_region_t *region,
                      int (*call)(kmod_region_t *region), unsigned expected)
{
    holdings_t before, after;
    unsigned at;
    char name[64];
    int ret, forced;

    for (at = 1;; ++at) {
        take_stock(region->ctx, &before);
        kmod_force(at);
        ret    = call(region);
        forced = kmod_forced(name, sizeof(name));
        kmod_force(0);
        if (!forced) {
            break;
        }
        check_error(name, ret);
        take_stock(region->ctx, &after);
        CHECK(!memcmp(&before, &after, sizeof(before)),
              "bytes %llu, %llu; regions %llu, %llu; registrations %llu, %llu; "
              "descriptors %d, %d", (unsigned long long)before.bytes,
              (unsigned long long)after.bytes,
              (unsigned long long)before.regions,
              (unsigned long long)after.regions,
              (unsigned long long)before.registrations,
              (unsigned long long)after.registrations, before.fds, after.fds);
    }
    CHECK_EQ(ret, 0);
    CHECK_EQ(at - 1, expected);
}

static int call_create(kmod_region_t *region)
{
    struct nprdma_ioc_region_create create = {
        .size = sizeof(create), .address = 1 << 30, .length = PAGE
    };

    return kmod_call(region->ctx, NPRDMA_IOC_REGION_CREATE, &create);
}

/* Descriptor, region, chunks, states, notifier, id, file */
static void test_create(void)
{
    kmod_region_t none = {.ctx = kmod_open()};

    kmod_force_needed();
    fail_each(&none, call_create, 7);
}

static int call_register(kmod_region_t *region)
{
    struct nprdma_ioc_register reg = {
        .size    = sizeof(reg),
        .region  = region->id,
        .address = (uintptr_t)region->memory,
        .length  = PAGE
    };

    return kmod_call(region->ctx, NPRDMA_IOC_REGISTER, &reg);
}

static int call_populate(kmod_region_t *region)
{
    struct nprdma_ioc_populate arg;
    int ret = kmod_populate(region, 0, 1, 0, &arg);

    CHECK_EQ(arg.done, (uintptr_t)region->memory + (ret ? 0 : PAGE));
    CHECK_EQ(arg.populated, !ret);
    return ret;
}

/* A registration and its id; the table of a chunk */
static void test_register_and_populate(void)
{
    kmod_region_t region;

    kmod_force_needed();
    kmod_region_create(&region, kmod_open(), kmod_map(NUM_PAGES * PAGE),
                       NUM_PAGES * PAGE);
    fail_each(&region, call_register, 2);
    fail_each(&region, call_populate, 1);
    kmod_region_destroy(&region);
}

/* The context. Its user's account exists already, because of the other
 * context. */
static void test_open(void)
{
    int other = kmod_open();
    char name[64];
    int fd;

    kmod_force_needed();
    kmod_force(1);
    fd = open(NPRDMA_DEVICE_PATH, O_RDWR);
    CHECK(fd < 0);
    CHECK_EQ(errno, ENOMEM);
    CHECK(kmod_forced(name, sizeof(name)));
    kmod_force(2);
    CHECK(open(NPRDMA_DEVICE_PATH, O_RDWR) >= 0, "%m");
    CHECK(!kmod_forced(name, sizeof(name)));
    close(other);
}

/* Pages are taken away during each lookup */
static void test_busy(void)
{
    uint64_t begin = kmod_time_ms();
    struct nprdma_ioc_populate arg;
    kmod_region_t region;

    kmod_force_needed();
    kmod_region_create(&region, kmod_open(), kmod_map(NUM_PAGES * PAGE),
                       NUM_PAGES * PAGE);
    kmod_populate_all(&region, 0, 8, 0);
    kmod_force(0);
    CHECK_EQ(kmod_write_file(KMOD_FORCE "busy", "1"), 0);
    CHECK_EQ(kmod_populate(&region, 0, NUM_PAGES, 0, &arg), EBUSY);
    CHECK_EQ(kmod_write_file(KMOD_FORCE "busy", "0"), 0);
    CHECK_EQ(arg.done, (uintptr_t)region.memory + 8 * PAGE);
    CHECK(kmod_time_ms() - begin >= 1000);
    CHECK(arg.retries >= 64, "%llu", (unsigned long long)arg.retries);
    kmod_populate_all(&region, 0, NUM_PAGES, 0);
    kmod_region_destroy(&region);
}

static void *populate_thread(void *arg)
{
    return (void*)(intptr_t)kmod_populate(arg, 0, NUM_PAGES, 0, NULL);
}

static int has_tried(void *unused)
{
    (void)unused;
    return kmod_read_number(KMOD_FORCE "calls", "") >= 10;
}

/* The region ends while its pages are looked up repeatedly */
static void test_destroyed(void)
{
    kmod_region_t region;
    pthread_t thread;
    void *error;

    kmod_force_needed();
    kmod_region_create(&region, kmod_open(), kmod_map(NUM_PAGES * PAGE),
                       NUM_PAGES * PAGE);
    kmod_force(0);
    CHECK_EQ(kmod_write_file(KMOD_FORCE "busy", "1"), 0);
    CHECK_EQ(pthread_create(&thread, NULL, populate_thread, &region), 0);
    CHECK(kmod_await(has_tried, NULL));
    kmod_region_destroy(&region);
    CHECK_EQ(pthread_join(thread, &error), 0);
    CHECK_EQ(kmod_write_file(KMOD_FORCE "busy", "0"), 0);
    CHECK_EQ((intptr_t)error, ENOENT);
}

/* What a counter of 32 bits takes for none */
#define NOTIFICATIONS (1ull << 32)

typedef struct populating {
    kmod_region_t              region;
    struct nprdma_ioc_populate arg;
    int                        error;
} populating_t;


static void *populating_thread(void *arg)
{
    populating_t *self = arg;

    self->error = kmod_populate(&self->region, 0, 1, NPRDMA_IOC_POPULATE_WRITE,
                                &self->arg);
    return NULL;
}

static int is_held(void *unused)
{
    (void)unused;
    return kmod_read_number(KMOD_FORCE "held", "") == 1;
}

/*
 * Page 0 has been looked up, and then the thread gets no CPU until there were a
 * great many notifications, the last of them of page @a last.
 */
static void populate_held(populating_t *self, size_t last)
{
    uint8_t *memory = kmod_map(2 * NUM_PAGES * PAGE);
    unsigned char resident;
    pthread_t thread;
    char text[32];

    kmod_force(0);
    kmod_region_create(&self->region, kmod_open(), memory,
                       2 * NUM_PAGES * PAGE);
    memset(memory, 1, PAGE);
    CHECK_EQ(kmod_write_file(KMOD_FORCE "hold", "1"), 0);
    CHECK_EQ(pthread_create(&thread, NULL, populating_thread, self), 0);
    CHECK(kmod_await(is_held, NULL));
    snprintf(text, sizeof(text), "%llu", NOTIFICATIONS - 1);
    CHECK_EQ(kmod_write_file(KMOD_FORCE "notified", text), 0);
    CHECK(madvise(memory + last * PAGE, PAGE, MADV_DONTNEED) == 0, "%m");
    CHECK_EQ(kmod_write_file(KMOD_FORCE "hold", "0"), 0);
    CHECK_EQ(pthread_join(thread, NULL), 0);

    CHECK_EQ(self->error, 0);
    CHECK_EQ(kmod_count(&self->region, 0, 1, NPRDMA_PAGE_BITS), 1);
    CHECK(mincore(memory, PAGE, &resident) == 0, "%m");
    CHECK(resident & 1, "devices have a page that the process has not");
    kmod_region_destroy(&self->region);
}

/* The process has given the page back meanwhile, so it is looked up again */
static void test_held(void)
{
    populating_t self;

    kmod_force_needed();
    populate_held(&self, 0);
    CHECK(self.arg.retries > 0);
}

/* The notifications were of other pages, and do not matter */
static void test_held_beside(void)
{
    populating_t self;

    kmod_force_needed();
    populate_held(&self, NUM_PAGES);
    CHECK_EQ(self.arg.retries, 0);
}

static void on_alarm(int number)
{
    (void)number;
}

/* Sends signals repeatedly; 0 ends them */
static void set_timer(unsigned us)
{
    struct sigaction action = {.sa_handler = on_alarm};
    struct itimerval timer  = {{0, us}, {0, us}};

    CHECK(sigaction(SIGALRM, &action, NULL) == 0, "%m");
    CHECK(setitimer(ITIMER_REAL, &timer, NULL) == 0, "%m");
}

/* Pages populated before the signal count. A repeated call populates the
 * rest. */
static void test_interrupted(void)
{
    const size_t pages = 64 * MIB / PAGE;
    uint64_t populated = 0, signals = 0;
    struct nprdma_ioc_populate arg;
    kmod_region_t region;
    size_t done = 0;
    int ret;

    kmod_region_create(&region, kmod_open(), kmod_map(pages * PAGE),
                       pages * PAGE);
    set_timer(3000);
    do {
        ret = kmod_populate(&region, done, pages - done,
                            NPRDMA_IOC_POPULATE_WRITE, &arg);
        CHECK((ret == 0) || (ret == EINTR), "%d", ret);
        done       = (arg.done - (uintptr_t)region.memory) / PAGE;
        populated += arg.populated;
        signals   += ret == EINTR;
    } while (ret != 0);
    set_timer(0);
    printf("%llu signals\n", (unsigned long long)signals);
    CHECK(signals > 0);
    CHECK_EQ(done, pages);
    CHECK_EQ(populated, pages);
    CHECK_EQ(kmod_count(&region, 0, pages, NPRDMA_PAGE_BITS), pages);
    kmod_region_destroy(&region);
}

/* The pages of a mapping that becomes a shadow stack for a time */
static void test_shadow_stack(void)
{
    const unsigned write = NPRDMA_IOC_POPULATE_WRITE;
    kmod_region_t region;
    char text[32];
    int ret;

    kmod_force_needed();
    kmod_region_create(&region, kmod_open(), kmod_map(NUM_PAGES * PAGE),
                       NUM_PAGES * PAGE);
    memset(region.memory, 1, region.length);
    snprintf(text, sizeof(text), "%#lx", (long)region.memory);
    ret = kmod_write_file(KMOD_FORCE "shadow", text);
    if (ret == EOPNOTSUPP) {
        kmod_skip("this kernel has no shadow stacks");
    }
    CHECK_EQ(ret, 0);
    CHECK_EQ(kmod_populate(&region, 0, NUM_PAGES, 0, NULL), EOPNOTSUPP);
    CHECK_EQ(kmod_populate(&region, 0, NUM_PAGES, write, NULL), EOPNOTSUPP);
    CHECK_EQ(kmod_populate(&region, 0, NUM_PAGES,
                           write | NPRDMA_IOC_POPULATE_RESIDENT, NULL), 0);
    CHECK_EQ(kmod_count(&region, 0, NUM_PAGES, 0), NUM_PAGES);
    CHECK_EQ(kmod_write_file(KMOD_FORCE "shadow", text), 0);
    kmod_populate_all(&region, 0, NUM_PAGES, write);
    kmod_region_destroy(&region);
}

static const kmod_case_t cases[] = {
    {"create", test_create},
    {"register_and_populate", test_register_and_populate},
    {"open", test_open},
    {"busy", test_busy},
    {"destroyed", test_destroyed},
    {"held", test_held},
    {"held_beside", test_held_beside},
    {"interrupted", test_interrupted},
    {"shadow_stack", test_shadow_stack},
    {NULL, NULL}
};

int main(int argc, char **argv)
{
    return kmod_main(cases, argc, argv);
}
