/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * For whom kernel memory counts: the cgroup of the process.
 */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "kmod_test.h"

#include <sys/stat.h>
#include <unistd.h>

#define MIB    (1ll << 20)
#define CGROUP "/sys/fs/cgroup/"
#define BOX    CGROUP "quota/"

/* A region of 16 GiB has 16 MiB of states, and less than 2 MiB of the rest */
#define LENGTH (16ull << 30)
#define STATES (16 * MIB)


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

static const kmod_case_t cases[] = {
    {"cgroup", test_cgroup},
    {NULL, NULL}
};

int main(int argc, char **argv)
{
    return kmod_main(cases, argc, argv);
}
