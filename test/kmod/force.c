/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * Errors that do not occur by themselves. Each kernel function that a call of
 * the module uses, and that can fail, fails once, by nprdma_force.ko. The
 * caller gets the error, everything done before is undone, and the same call
 * succeeds afterwards. The same module makes a page-in last for as long as a
 * counter needs to wrap around.
 */

#include "kmod_test.h"

#include <sys/time.h>

#define NUM_PAGES 64

static int call_create(void *ctx)
{
    struct nprdma_ioc_region_create create;

    return kmod_create(*(int*)ctx, 1 << 30, PAGE, 0, &create);
}

/* Descriptor, region, chunks, states, notifier, id, file */
KMOD_CASE(force, create)
{
    int ctx = kmod_open();

    kmod_force_needed();
    CHECK_EQ(kmod_fail_each(ctx, call_create, &ctx), 7);
}

static int call_register(void *region)
{
    uint32_t id;

    return kmod_register(region, 0, PAGE, &id);
}

static int call_populate(void *self)
{
    kmod_region_t *region = self;
    struct nprdma_ioc_populate arg;
    int ret = kmod_populate(region, 0, 1, 0, &arg);

    CHECK_EQ(arg.done, (uintptr_t)region->memory + (ret ? 0 : PAGE));
    CHECK_EQ(arg.populated, !ret);
    return ret;
}

/* A registration and its id; the table of a chunk */
KMOD_CASE(force, register_and_populate)
{
    kmod_region_t region;

    kmod_force_needed();
    kmod_region(&region, NUM_PAGES);
    CHECK_EQ(kmod_fail_each(region.ctx, call_register, &region), 2);
    CHECK_EQ(kmod_fail_each(region.ctx, call_populate, &region), 1);
    kmod_region_destroy(&region);
}

/* The context. Its user's account exists already, because of the other
 * context. */
KMOD_CASE(force, open)
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
KMOD_CASE(force, busy)
{
    uint64_t begin = kmod_time_ms();
    struct nprdma_ioc_populate arg;
    kmod_region_t region;

    kmod_force_needed();
    kmod_region(&region, NUM_PAGES);
    kmod_populate_all(&region, 0, 8, 0);
    kmod_force(0);
    kmod_write_number(KMOD_FORCE "busy", 1);
    CHECK_EQ(kmod_populate(&region, 0, NUM_PAGES, 0, &arg), EBUSY);
    kmod_write_number(KMOD_FORCE "busy", 0);
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
KMOD_CASE(force, destroyed)
{
    kmod_region_t region;
    pthread_t thread;
    void *error;

    kmod_force_needed();
    kmod_region(&region, NUM_PAGES);
    kmod_force(0);
    kmod_write_number(KMOD_FORCE "busy", 1);
    CHECK_EQ(pthread_create(&thread, NULL, populate_thread, &region), 0);
    CHECK(kmod_await(has_tried, NULL));
    kmod_region_destroy(&region);
    CHECK_EQ(pthread_join(thread, &error), 0);
    kmod_write_number(KMOD_FORCE "busy", 0);
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

    self->error = kmod_populate(&self->region, 0, 1, WRITE,
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
    unsigned char resident;
    pthread_t thread;
    uint8_t *memory;

    kmod_force(0);
    kmod_region(&self->region, 2 * NUM_PAGES);
    memory = self->region.memory;
    memset(memory, 1, PAGE);
    kmod_write_number(KMOD_FORCE "hold", 1);
    CHECK_EQ(pthread_create(&thread, NULL, populating_thread, self), 0);
    CHECK(kmod_await(is_held, NULL));
    kmod_write_number(KMOD_FORCE "notified", NOTIFICATIONS - 1);
    kmod_take(&self->region, last, 1);
    kmod_write_number(KMOD_FORCE "hold", 0);
    CHECK_EQ(pthread_join(thread, NULL), 0);

    CHECK_EQ(self->error, 0);
    CHECK_EQ(kmod_count(&self->region, 0, 1, NPRDMA_PAGE_BITS), 1);
    CHECK_OK(mincore(memory, PAGE, &resident));
    CHECK(resident & 1, "devices have a page that the process has not");
    kmod_region_destroy(&self->region);
}

/* The process has given the page back meanwhile, so it is looked up again */
KMOD_CASE(force, held)
{
    populating_t self;

    kmod_force_needed();
    populate_held(&self, 0);
    CHECK(self.arg.retries > 0);
}

/* The notifications were of other pages, and do not matter */
KMOD_CASE(force, held_beside)
{
    populating_t self;

    kmod_force_needed();
    populate_held(&self, NUM_PAGES);
    CHECK_EQ(self.arg.retries, 0);
}

/* Other pages are taken before each look-up, while the page-in waits for the
 * lock of mappings. That does not matter either. */
KMOD_CASE(force, taken_beside)
{
    struct nprdma_ioc_populate arg;
    kmod_region_t region;

    kmod_force_needed();
    kmod_force(0);
    kmod_region(&region, NUM_PAGES);
    kmod_write_number(KMOD_FORCE "beside", 1);
    CHECK_EQ(kmod_populate(&region, 0, NUM_PAGES, WRITE, &arg), 0);
    kmod_write_number(KMOD_FORCE "beside", 0);
    CHECK_EQ(arg.retries, 0);
    CHECK(kmod_stats(region.ctx, region.id).events > 0);
    kmod_region_destroy(&region);
}

/* Takes a page of other memory, always */
static void *take_always(void *page)
{
    for (;;) {
        CHECK_OK(madvise(page, PAGE, MADV_DONTNEED));
        pthread_testcancel();
    }
    return NULL;
}

/* A notification is in progress when the region is made. What is unmapped right
 * afterwards is retired all the same. */
KMOD_CASE(force, retired_at_once)
{
    struct nprdma_ioc_region_create create;
    uint8_t *memory = kmod_map(2 * PAGE), *bits;
    kmod_region_t other;
    pthread_t thread;

    kmod_force_needed();
    kmod_force(0);
    kmod_region(&other, 1);
    CHECK_EQ(pthread_create(&thread, NULL, take_always, other.memory), 0);
    kmod_write_number(KMOD_FORCE "begun", 1);
    CHECK_EQ(kmod_create(other.ctx, (uintptr_t)memory, 2 * PAGE,
                         NPRDMA_IOC_REGION_RETIRE, &create), 0);
    CHECK_OK(munmap(memory, PAGE));
    kmod_write_number(KMOD_FORCE "begun", 0);
    bits = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, create.states_fd,
                create.states_size - PAGE);
    CHECK(bits != MAP_FAILED, "%m");
    CHECK_EQ(bits[0], 1);
    pthread_cancel(thread);
    pthread_join(thread, NULL);
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

    CHECK_OK(sigaction(SIGALRM, &action, NULL));
    CHECK_OK(setitimer(ITIMER_REAL, &timer, NULL));
}

/* Pages populated before the signal count. A repeated call populates the
 * rest. */
KMOD_CASE(force, interrupted)
{
    const size_t pages = 64 * MIB / PAGE;
    uint64_t populated = 0, signals = 0;
    struct nprdma_ioc_populate arg;
    kmod_region_t region;
    size_t done = 0;
    int ret;

    kmod_region(&region, pages);
    set_timer(3000);
    do {
        ret = kmod_populate(&region, done, pages - done,
                            WRITE, &arg);
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
KMOD_CASE(force, shadow_stack)
{
    kmod_region_t region;
    char text[32];
    int ret;

    kmod_force_needed();
    kmod_region(&region, NUM_PAGES);
    memset(region.memory, 1, region.length);
    snprintf(text, sizeof(text), "%#lx", (long)region.memory);
    ret = kmod_write_file(KMOD_FORCE "shadow", text);
    if (ret == EOPNOTSUPP) {
        kmod_skip("this kernel has no shadow stacks");
    }
    CHECK_EQ(ret, 0);
    CHECK_EQ(kmod_populate(&region, 0, NUM_PAGES, 0, NULL), EOPNOTSUPP);
    CHECK_EQ(kmod_populate(&region, 0, NUM_PAGES, WRITE, NULL), EOPNOTSUPP);
    CHECK_EQ(kmod_populate(&region, 0, NUM_PAGES,
                           WRITE | RESIDENT, NULL), 0);
    CHECK_EQ(kmod_count(&region, 0, NUM_PAGES, 0), NUM_PAGES);
    CHECK_EQ(kmod_write_file(KMOD_FORCE "shadow", text), 0);
    kmod_populate_all(&region, 0, NUM_PAGES, WRITE);
    kmod_region_destroy(&region);
}
