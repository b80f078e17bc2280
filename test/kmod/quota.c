/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * What kernel memory and regions count for: the cgroup of the process, and the
 * user that owns its user namespace.
 */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "kmod_test.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#define MIB       (1ll << 20)
#define CGROUP    "/sys/fs/cgroup/"
#define BOX       CGROUP "quota/"
#define PARAMETER "/sys/module/nprdma/parameters/"
#define USER      1000

/* A region of 16 GiB has 16 MiB of states, and less than 2 MiB of the rest */
#define LENGTH    (16ull << 30)
#define STATES    (16 * MIB)


static int create_region(int ctx, uint64_t length,
                         struct nprdma_ioc_region_create *create)
{
    memset(create, 0, sizeof(*create));
    create->size    = sizeof(*create);
    create->address = 1ull << 32;
    create->length  = length;
    return kmod_call(ctx, NPRDMA_IOC_REGION_CREATE, create);
}

static long long charged(void)
{
    return kmod_read_number(BOX "memory.current", "");
}

static int is_given_back(void *before)
{
    return charged() < *(long long*)before + STATES / 2;
}

/* A region whose memory is more than the cgroup may have cannot be made. What
 * is made counts for the cgroup as long as it exists. */
static void test_cgroup(void)
{
    struct nprdma_ioc_region_destroy destroy = {.size = sizeof(destroy)};
    struct nprdma_ioc_region_create create;
    int ctx = kmod_open();
    long long before;

    kmod_write_file(CGROUP "cgroup.subtree_control", "+memory");
    CHECK(mkdir(BOX, 0755) == 0, "%m");
    CHECK_EQ(kmod_write_file(BOX "memory.max", "8M"), 0);
    CHECK_EQ(kmod_write_file(BOX "cgroup.procs", "0"), 0);
    CHECK_EQ(create_region(ctx, LENGTH, &create), ENOMEM);

    CHECK_EQ(kmod_write_file(BOX "memory.max", "64M"), 0);
    before = charged();
    CHECK_EQ(create_region(ctx, LENGTH, &create), 0);
    printf("%lld KiB before, %lld KiB with a region\n", before >> 10,
           charged() >> 10);
    CHECK(charged() >= before + STATES);

    destroy.region = create.region;
    CHECK_CALL(ctx, NPRDMA_IOC_REGION_DESTROY, &destroy, 0);
    CHECK_EQ(close(create.states_fd), 0);
    CHECK(kmod_await(is_given_back, &before), "%lld", charged());
    /* To another one, so that this one can be removed */
    CHECK_EQ(kmod_write_file(CGROUP "cgroup.procs", "0"), 0);
}

static uint64_t user_regions(void)
{
    struct nprdma_ioc_query query = {.size = sizeof(query)};
    int ctx = kmod_open();

    CHECK_CALL(ctx, NPRDMA_IOC_QUERY, &query, 0);
    close(ctx);
    return query.user_regions;
}

/* In a user namespace of USER that has this user and a subordinate one. Its
 * limit is two regions. */
static void be_subordinate(int ready, int mapped)
{
    struct nprdma_ioc_region_create create;
    char byte;

    CHECK(setresuid(USER, USER, USER) == 0, "%m");
    CHECK(unshare(CLONE_NEWUSER) == 0, "%m");
    CHECK(write(ready, "x", 1) == 1, "%m");
    CHECK(read(mapped, &byte, 1) == 1, "%m");
    CHECK_EQ(create_region(kmod_open(), PAGE, &create), 0);

    CHECK(setresuid(1, 1, 1) == 0, "%m");
    CHECK_EQ(user_regions(), 1);
    CHECK_EQ(create_region(kmod_open(), PAGE, &create), 0);
    CHECK_EQ(create_region(kmod_open(), PAGE, &create), EDQUOT);

    /* The subordinate user owns a namespace in that one */
    CHECK(unshare(CLONE_NEWUSER) == 0, "%m");
    CHECK_EQ(user_regions(), 2);
    CHECK_EQ(create_region(kmod_open(), PAGE, &create), EDQUOT);
    CHECK(write(ready, "x", 1) == 1, "%m");
    CHECK(read(mapped, &byte, 1) == 1, "%m");
}

/* Whether that counts for this user of the initial namespace */
static uint64_t regions_of(uid_t user)
{
    pid_t pid = fork();

    CHECK(pid >= 0, "%m");
    if (pid == 0) {
        CHECK(setresuid(user, user, user) == 0, "%m");
        _exit(user_regions());
    }
    return kmod_wait(pid);
}

static void check_subordinate(pid_t pid, int ready, int mapped)
{
    char path[64], byte;

    CHECK(read(ready, &byte, 1) == 1, "%m");
    /* As newuidmap(1) and newgidmap(1) do */
    snprintf(path, sizeof(path), "/proc/%d/uid_map", (int)pid);
    CHECK_EQ(kmod_write_file(path, "0 1000 1\n1 100000 1\n"), 0);
    snprintf(path, sizeof(path), "/proc/%d/gid_map", (int)pid);
    CHECK_EQ(kmod_write_file(path, "0 0 1\n"), 0);
    CHECK(write(mapped, "x", 1) == 1, "%m");
    CHECK(read(ready, &byte, 1) == 1, "the process has failed");
    CHECK_EQ(regions_of(USER), 2);
    CHECK_EQ(regions_of(USER + 1), 0);
    CHECK_EQ(regions_of(100000), 0);
    CHECK(write(mapped, "x", 1) == 1, "%m");
}

static void test_subordinate(void)
{
    int ready[2], mapped[2];
    char old[32];
    pid_t pid;

    CHECK(chmod(NPRDMA_DEVICE_PATH, 0666) == 0, "%m");
    CHECK((pipe(ready) == 0) && (pipe(mapped) == 0), "%m");
    snprintf(old, sizeof(old), "%lld",
             kmod_read_number(PARAMETER "max_user_regions", ""));
    CHECK_EQ(kmod_write_file(PARAMETER "max_user_regions", "2"), 0);
    pid = fork();
    CHECK(pid >= 0, "%m");
    if (pid == 0) {
        be_subordinate(ready[1], mapped[0]);
        _exit(0);
    }
    close(ready[1]);
    check_subordinate(pid, ready[0], mapped[1]);
    CHECK_EQ(kmod_wait(pid), 0);
    CHECK_EQ(kmod_write_file(PARAMETER "max_user_regions", old), 0);
}

static const kmod_case_t cases[] = {
    {"cgroup", test_cgroup},
    {"subordinate", test_subordinate},
    {NULL, NULL}
};

int main(int argc, char **argv)
{
    return kmod_main(cases, argc, argv);
}
