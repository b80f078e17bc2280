/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "kmod_test.h"

#include <sys/mman.h>

static void populate_and_unmap(void)
{
    kmod_region_t region;
    int ctx = kmod_open();

    kmod_region_create(&region, ctx, kmod_map(64 * PAGE), 64 * PAGE);
    CHECK_EQ(region.words[0], 0);
    kmod_populate_all(&region, 0, 32, 0);
    CHECK_EQ(kmod_count(&region, 0, 64, NPRDMA_STATE_R), 32);
    kmod_populate_all(&region, 16, 48, NPRDMA_IOC_POPULATE_WRITE);
    CHECK_EQ(kmod_count(&region, 0, 64, NPRDMA_STATE_R), 16);
    CHECK_EQ(kmod_count(&region, 0, 64, NPRDMA_STATE_BITS), 48);
    munmap(region.memory + 8 * PAGE, 16 * PAGE);
    CHECK_EQ(kmod_count(&region, 0, 64, 0), 16);
    CHECK_EQ(kmod_count(&region, 8, 16, 0), 16);
    kmod_region_destroy(&region);
}

static const kmod_case_t cases[] = {
    {"populate_and_unmap", populate_and_unmap},
    {NULL, NULL}
};

int main(int argc, char **argv)
{
    return kmod_main(cases, argc, argv);
}
