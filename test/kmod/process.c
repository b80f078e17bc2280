/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * The interface between processes: which process may do what with which
 * descriptor, the limits of users, and what kernel memory and regions count
 * for: the cgroup of the process, and the user that owns its user namespace.
 */

#include "kmod_test.h"

#include <grp.h>
#include <sched.h>
#include <sys/socket.h>

#define NUM_PAGES 64
#define INHERITED "KMOD_INHERITED"

/* Every call on a context of another process */
static void check_refused(int ctx, uint32_t region)
{
    union {
        struct {
            uint32_t size, flags, region;
        } head;
        uint8_t bytes[512];
    } arg;
    unsigned nr;

    for (nr = 0; nr <= _IOC_NR(NPRDMA_IOC_STATS); ++nr) {
        memset(&arg, 0, sizeof(arg));
        arg.head.size   = sizeof(arg);
        arg.head.region = region;
        CHECK_CALL(ctx, _IO(NPRDMA_IOC_TYPE, nr), &arg, EPERM);
    }
}

static void use_after_fork(void *arg)
{
    kmod_region_t *region = arg;
    unsigned char vec;

    check_refused(region->ctx, region->id);
    /* The child has not inherited the mapping of the states */
    CHECK((mincore(region->header, PAGE, &vec) < 0) && (errno == ENOMEM));
    /* Closing it in the child does not close the parent's */
    close(region->ctx);
}

KMOD_CASE(process, fork_is_refused)
{
    kmod_region_t region;

    kmod_region(&region, NUM_PAGES);
    memset(region.memory, 1, region.length);
    kmod_populate_all(&region, 0, NUM_PAGES, WRITE);
    kmod_in_child(use_after_fork, &region);
    CHECK_EQ(region.header->dead, 0);
    kmod_populate_all(&region, 0, NUM_PAGES, WRITE);
}

/* After exec, before main() */
__attribute__((constructor)) static void use_after_exec(void)
{
    const char *number = getenv(INHERITED);

    if (number != NULL) {
        check_refused(atoi(number), 1);
        _exit(0);
    }
}

KMOD_CASE(process, exec_is_refused)
{
    int ctx = open(NPRDMA_DEVICE_PATH, O_RDWR); /* not closed by exec */
    char number[16];

    CHECK(ctx >= 0, "%m");
    snprintf(number, sizeof(number), "%d", ctx);
    setenv(INHERITED, number, 1);
    execl("/proc/self/exe", "kmod_test", NULL);
    CHECK(0, "%m");
}

KMOD_CASE(process, vfork_shares)
{
    struct nprdma_ioc_query query = {.size = sizeof(query)};
    int ctx                       = kmod_open();
    volatile int error            = -1;
    pid_t pid;

    pid = vfork();
    if (pid == 0) {
        error = kmod_call(ctx, NPRDMA_IOC_QUERY, &query);
        _exit(0);
    }
    CHECK_EQ(kmod_wait(pid), 0);
    CHECK_EQ(error, 0);
}

typedef struct passed {
    kmod_region_t region;
    int           pair[2];
} passed_t;

/* A context that is passed on is useless; passed states can be mapped */
static void be_passed(void *arg)
{
    passed_t *passed                   = arg;
    struct nprdma_ioc_states_info info = {.size = sizeof(info)};
    struct nprdma_states_header *header;
    const volatile uint32_t *words;
    int fds[2], ctx, states;

    close(passed->pair[1]);
    CHECK_EQ(read(passed->pair[0], fds, sizeof(fds)), sizeof(fds));
    ctx    = kmod_get_fd(getppid(), fds[0]);
    states = kmod_get_fd(getppid(), fds[1]);
    check_refused(ctx, 1);
    close(ctx);
    CHECK_CALL(states, NPRDMA_IOC_STATES_INFO, &info, 0);
    CHECK_EQ(info.abi, NPRDMA_ABI_VERSION);
    CHECK_EQ(info.owner, 0);
    CHECK_EQ(info.length, NUM_PAGES * PAGE);
    header = mmap(NULL, info.states_size, PROT_READ, MAP_SHARED, states, 0);
    CHECK(header != MAP_FAILED, "%m");
    close(states);
    words = (void*)((uint8_t*)header + info.states_offset);
    CHECK_EQ(header->magic, NPRDMA_STATES_MAGIC);
    CHECK_EQ(header->id, info.id);
    CHECK_EQ(header->address, info.address);
    CHECK_EQ(header->signature, info.signature);
    CHECK_EQ(words[0] & NPRDMA_PAGE_BITS, NPRDMA_PAGE_BITS);
    CHECK_EQ(words[NUM_PAGES - 1], 0);
    CHECK_EQ(write(passed->pair[0], fds, 1), 1);
    /* The owner ends it: all pages are absent, and the mapping stays */
    CHECK_EQ(read(passed->pair[0], fds, 1), 0);
    CHECK_EQ(words[0] & NPRDMA_PAGE_BITS, 0);
    CHECK_EQ(header->dead, 1);
}

KMOD_CASE(process, passed_on)
{
    struct nprdma_ioc_states_info info = {.size = sizeof(info)};
    passed_t passed;
    int fds[2];
    pid_t pid;

    CHECK_OK(socketpair(AF_UNIX, SOCK_STREAM, 0, passed.pair));
    pid = kmod_fork(be_passed, &passed);
    close(passed.pair[0]);
    kmod_region(&passed.region, NUM_PAGES);
    kmod_populate_all(&passed.region, 0, 1, WRITE);
    fds[0] = passed.region.ctx;
    fds[1] = passed.region.states_fd;
    CHECK_CALL(fds[1], NPRDMA_IOC_STATES_INFO, &info, 0);
    CHECK_EQ(info.owner, 1);
    CHECK_EQ(write(passed.pair[1], fds, sizeof(fds)), sizeof(fds));
    CHECK_EQ(read(passed.pair[1], fds, 1), 1);
    close(passed.region.ctx);
    CHECK_EQ(passed.region.header->dead, 1);
    close(passed.pair[1]);
    CHECK_EQ(kmod_wait(pid), 0);
}

/* --- limits -------------------------------------------------------------- */

static int create_region(int ctx, uint64_t length)
{
    return kmod_try_create(ctx, 1 << 30, length);
}

/* The device is open before the change of user */
KMOD_CASE(limits, user)
{
    int root = kmod_open(), ctx, i;
    kmod_limit_t total = kmod_limit(PARAMETER "max_total_bytes", ENOSPC);
    kmod_limit_t bytes = kmod_limit(PARAMETER "max_user_bytes", EDQUOT);

    CHECK_OK(chmod(NPRDMA_DEVICE_PATH, 0666));
    kmod_write_number(PARAMETER "max_user_regions", 10);
    kmod_write_number(PARAMETER "max_user_bytes", 500000);
    CHECK((setgroups(0, NULL) == 0) && (setgid(NOBODY) == 0), "%m");
    CHECK_OK(setresuid(NOBODY, NOBODY, NOBODY));
    /* It was opened by root, and is accounted to root */
    CHECK_EQ(kmod_query(root).user_regions, 0);

    ctx = kmod_open();
    for (i = 0; i < 10; ++i) {
        CHECK_EQ(create_region(ctx, PAGE), 0);
    }
    CHECK_EQ(create_region(ctx, PAGE), EDQUOT);
    CHECK_EQ(kmod_query(ctx).user_regions, 10);
    CHECK(kmod_query(ctx).user_bytes >= 10 * 2 * PAGE);
    CHECK_EQ(kmod_query(ctx).max_user_regions, 10);
    close(ctx);

    /* Closed regions count no more. 1 MiB of states exceeds the limit. */
    ctx = kmod_open();
    CHECK_EQ(kmod_query(ctx).user_regions, 0);
    CHECK_EQ(create_region(ctx, 1 << 30), EDQUOT);
    CHECK_EQ(kmod_query(ctx).user_bytes, 0);
    CHECK_EQ(kmod_query(ctx).user_regions, 0);
    kmod_set_limit(&bytes, 1000000000);
    kmod_set_limit(&total, 500000);
    CHECK_EQ(create_region(ctx, 1 << 30), ENOSPC);
    CHECK_EQ(create_region(ctx, 1 << 20), 0);
}

static void allow_more(const kmod_limit_t *limit, int ctx, size_t bytes)
{
    kmod_set_limit(limit, kmod_query(ctx).user_bytes + bytes);
}

/*
 * Each populated page takes 8 bytes of tables, so memory runs out later,
 * possibly during a registration
 */
static void limit_tables(void *arg)
{
    const kmod_limit_t *limit = arg;
    const size_t pages        = 4096, part = 512;
    struct nprdma_ioc_populate populate;
    kmod_region_t region;
    uint64_t bytes;
    uint32_t id;
    int ret;

    kmod_region(&region, pages);
    allow_more(limit, region.ctx, 3 * PAGE);
    CHECK_EQ(kmod_populate(&region, 0, pages, 0, &populate), limit->expected);
    CHECK_EQ(populate.done, (uintptr_t)region.memory + 3 * part * PAGE);
    CHECK_EQ(populate.populated, 3 * part);
    CHECK_EQ(kmod_count(&region, 0, 3 * part, NPRDMA_PAGE_R), 3 * part);

    allow_more(limit, region.ctx, PAGE);
    bytes = kmod_query(region.ctx).user_bytes + PAGE;
    do {
        ret = kmod_register(&region, 0, 1, &id);
        CHECK((ret == limit->expected) ||
              (kmod_query(region.ctx).user_bytes <= bytes));
    } while (ret == 0);
    CHECK_EQ(ret, limit->expected);
    kmod_region_destroy(&region);
}

/* User 0 is limited only by the total */
KMOD_CASE(limits, tables)
{
    kmod_limit_t total = kmod_limit(PARAMETER "max_total_bytes", ENOSPC);
    kmod_limit_t user  = kmod_limit(PARAMETER "max_user_bytes", EDQUOT);

    kmod_as_user(NOBODY, limit_tables, &user);
    limit_tables(&total);
}

/* CAP_SYS_RESOURCE exceeds the limits of users, as long as the process has
 * it */
KMOD_CASE(limits, privileged)
{
    int ctx = kmod_open();
    int i;

    kmod_write_number(PARAMETER "max_user_regions", 1);
    kmod_write_number(PARAMETER "max_user_bytes", 1);
    for (i = 0; i < 3; ++i) {
        CHECK_EQ(create_region(ctx, PAGE), 0);
    }
    CHECK_OK(setresuid(NOBODY, NOBODY, NOBODY));
    CHECK_EQ(create_region(ctx, PAGE), EDQUOT);
}

/* A region of 16 GiB has 16 MiB of states, and less than 2 MiB of the rest */
#define LARGE  (16ull << 30)
#define STATES (16ll << 20)

static long long charged(void)
{
    return kmod_read_number(CGROUP "quota/memory.current", "");
}

static int is_given_back(void *before)
{
    return charged() < *(long long*)before + STATES / 2;
}

/* A region whose memory is more than the cgroup may have cannot be made. What
 * is made counts for the cgroup as long as it exists. */
KMOD_CASE(limits, cgroup)
{
    struct nprdma_ioc_region_create create;
    int ctx = kmod_open();
    long long before;

    kmod_enter_memcg("quota", 8);
    CHECK_EQ(kmod_create(ctx, 1ull << 32, LARGE, 0, &create), ENOMEM);
    kmod_write_number(CGROUP "quota/memory.max", 64 * MIB);
    before = charged();
    CHECK_EQ(kmod_create(ctx, 1ull << 32, LARGE, 0, &create), 0);
    printf("%lld KiB before, %lld KiB with a region\n", before >> 10,
           charged() >> 10);
    CHECK(charged() >= before + STATES);
    CHECK_EQ(kmod_destroy(ctx, create.region), 0);
    CHECK_OK(close(create.states_fd));
    CHECK(kmod_await(is_given_back, &before), "%lld", charged());
}

#define OWNER 1000

static int ready[2], mapped[2];

static void tell_and_wait(int to, int from)
{
    char byte;

    CHECK(write(to, "x", 1) == 1, "%m");
    CHECK(read(from, &byte, 1) == 1, "the other process has failed");
}

/* In a user namespace of OWNER that has this user and a subordinate one. Its
 * limit is two regions. */
static void be_subordinate(void *unused)
{
    (void)unused;
    CHECK_OK(unshare(CLONE_NEWUSER));
    tell_and_wait(ready[1], mapped[0]);
    CHECK_EQ(create_region(kmod_open(), PAGE), 0);

    CHECK_OK(setresuid(1, 1, 1));
    CHECK_EQ(kmod_query(kmod_open()).user_regions, 1);
    CHECK_EQ(create_region(kmod_open(), PAGE), 0);
    CHECK_EQ(create_region(kmod_open(), PAGE), EDQUOT);

    /* The subordinate user owns a namespace in that one */
    CHECK_OK(unshare(CLONE_NEWUSER));
    CHECK_EQ(kmod_query(kmod_open()).user_regions, 2);
    CHECK_EQ(create_region(kmod_open(), PAGE), EDQUOT);
    tell_and_wait(ready[1], mapped[0]);
}

static void run_subordinate(void *unused)
{
    kmod_as_user(OWNER, be_subordinate, unused);
}

static void has_regions(void *number)
{
    CHECK_EQ(kmod_query(kmod_open()).user_regions, *(int*)number);
}

KMOD_CASE(limits, subordinate)
{
    char path[64], byte;
    int none = 0, two = 2;
    pid_t pid, child;

    CHECK((pipe(ready) == 0) && (pipe(mapped) == 0), "%m");
    kmod_write_number(PARAMETER "max_user_regions", 2);
    pid = kmod_fork(run_subordinate, NULL);
    close(ready[1]);
    CHECK(read(ready[0], &byte, 1) == 1, "the process has failed");
    snprintf(path, sizeof(path), "/proc/%d/task/%d/children", (int)pid,
             (int)pid);
    child = kmod_read_number(path, "");
    /* As newuidmap(1) and newgidmap(1) do */
    snprintf(path, sizeof(path), "/proc/%d/uid_map", (int)child);
    CHECK_EQ(kmod_write_file(path, "0 1000 1\n1 100000 1\n"), 0);
    snprintf(path, sizeof(path), "/proc/%d/gid_map", (int)child);
    CHECK_EQ(kmod_write_file(path, "0 0 1\n"), 0);
    tell_and_wait(mapped[1], ready[0]);
    kmod_as_user(OWNER, has_regions, &two);
    kmod_as_user(OWNER + 1, has_regions, &none);
    kmod_as_user(100000, has_regions, &none);
    CHECK(write(mapped[1], "x", 1) == 1, "%m");
    CHECK_EQ(kmod_wait(pid), 0);
}
