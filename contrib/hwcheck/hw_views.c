/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * What contrib/hwcheck runs on RDMA devices, as root:
 *
 *   hw_views info DEVICE
 *       what the device says that it can, without the module
 *   hw_views attach DEVICE
 *       what the kernel module says about it
 *   hw_views states FROM TO
 *       a page in each of its states, read and written through views
 *   hw_views race puts|gets call|kernel FROM TO SECONDS
 *       pages are taken by the program's call, or by the kernel, too
 *   hw_views register pinned|odp|views DEVICE BYTES
 *   hw_views access pinned|odp|views|verified get|put FROM TO BYTES COUNT
 *                     DEPTH
 *
 * hw_tests.h has more about the last three.
 *
 * FROM accesses memory of TO. Both are DEVICE or DEVICE/PORT, and may be the
 * same. Prints lines "NAME: VALUE". Exit status 77: the device has no such
 * thing; 1: a line "FAILED: ..." says what is wrong.
 */

#include "hw_tests.h"

#include <string.h>
#include <sys/mman.h>

enum { PAGES = 256, STATES_PAGE = 7 };

static void run_info(const char *device)
{
    struct ibv_device_attr_ex attr;
    pair_t pair;
    uint32_t rc;

    pair_open(&pair, device, device);
    CHECK(ibv_query_device_ex(pair.a.context, NULL, &attr) == 0, "%s", device);
    rc = attr.odp_caps.per_transport_caps.rc_odp_caps;
    printf("link layer: %s\nmtu: %d\ngid index: %u\n",
           pair.a.is_roce ? "Ethernet" : "InfiniBand", 128 << pair.a.mtu,
           pair.a.gid_index);
    printf("firmware: %s\npart: %u\nmax_mr_size: %llu\nmax_qp_rd_atom: %d\n"
           "odp: %d\nodp read: %d\nodp write: %d\n",
           attr.orig_attr.fw_ver, attr.orig_attr.vendor_part_id,
           (unsigned long long)attr.orig_attr.max_mr_size,
           attr.orig_attr.max_qp_rd_atom,
           (attr.odp_caps.general_caps & IBV_ODP_SUPPORT) != 0,
           (rc & IBV_ODP_SUPPORT_READ) != 0,
           (rc & IBV_ODP_SUPPORT_WRITE) != 0);
    pair_close(&pair);
}

static void run_attach(const char *device)
{
    hw_region_t region;
    struct nprdma_ioc_attach_device arg = hw_attach(&region, device);

    printf("description: %s\n", arg.why);
    if (arg.device & NPRDMA_DEVICE_KNOWN) {
        printf("scalable mode: %d\nfirst stage: %d\ncaching mode: %d\nATS: %d\n"
               "relaxed ordering: %d\nmax_order: %u\npage_sizes: %#llx\n"
               "max_iova_bytes: %llu\n",
               !!(arg.device & NPRDMA_DEVICE_SCALABLE),
               !!(arg.device & NPRDMA_DEVICE_FIRST_STAGE),
               !!(arg.device & NPRDMA_DEVICE_CACHING_MODE),
               !!(arg.device & NPRDMA_DEVICE_ATS),
               !!(arg.device & NPRDMA_DEVICE_RELAXED_ORDERING), arg.max_order,
               (unsigned long long)arg.page_sizes,
               (unsigned long long)arg.max_iova_bytes);
    }
}

static void expect_word(hw_access_t *a, size_t word, uint64_t value,
                        const char *what)
{
    CHECK(hw_get(a, word, 1) == value, "%s: another word than expected", what);
}

static void expect_state(hw_access_t *a, uint32_t bits, const char *what)
{
    uint32_t state = hw_state(&a->region, STATES_PAGE);

    hw_post_states(a, STATES_PAGE, 1);
    hw_wait(a, 1);
    CHECK(hw_read_state(a, 0) == state, "%s: RDMA reads another state", what);
    CHECK((state & NPRDMA_PAGE_BITS) == bits, "%s: state bits %u", what,
          state & NPRDMA_PAGE_BITS);
}

static void test_absent(hw_access_t *a)
{
    const size_t word = (size_t)STATES_PAGE * HW_WORDS;
    uint64_t *memory  = a->region.memory;
    size_t i;

    for (i = 0; i < PAGES; i += 51) {
        expect_word(a, i * HW_WORDS, a->region.signature, "untouched");
    }
    for (i = 0; i < PAGES * HW_WORDS; ++i) {
        memory[i] = i;
    }
    expect_state(a, 0, "absent");
    expect_word(a, word, a->region.signature, "absent");
    hw_put(a, word, 0x99);
    CHECK(memory[word] == word, "absent: a WRITE arrives");
}

static void test_present(hw_access_t *a)
{
    const size_t word = (size_t)STATES_PAGE * HW_WORDS;
    uint64_t *memory  = a->region.memory;

    hw_populate(&a->region, STATES_PAGE, 2, 0);
    expect_state(a, NPRDMA_PAGE_R, "for reading");
    expect_word(a, word + 1, word + 1, "for reading");
    expect_word(a, word - HW_WORDS, a->region.signature, "the page before");
    expect_word(a, word + (2 * HW_WORDS), a->region.signature,
                "the page behind");
    hw_put(a, word, 0x98);
    CHECK(memory[word] == word, "for reading: a WRITE arrives");

    hw_populate(&a->region, STATES_PAGE, 2, NPRDMA_IOC_POPULATE_WRITE);
    expect_state(a, NPRDMA_PAGE_R | NPRDMA_PAGE_W, "for writing");
    hw_put(a, word, 0x97);
    CHECK(memory[word] == 0x97, "for writing: a WRITE does not arrive");
}

static void test_taken(hw_access_t *a)
{
    const size_t word = (size_t)STATES_PAGE * HW_WORDS;
    uint64_t *memory  = a->region.memory;

    hw_invalidate(&a->region, STATES_PAGE, 1);
    expect_state(a, 0, "invalidated");
    expect_word(a, word, a->region.signature, "invalidated");
    expect_word(a, word + HW_WORDS, word + HW_WORDS, "its neighbour");
    hw_put(a, word, 0x96);
    CHECK(memory[word] == 0x97, "invalidated: a WRITE arrives");

    hw_populate(&a->region, STATES_PAGE, 1, NPRDMA_IOC_POPULATE_WRITE);
    expect_word(a, word, 0x97, "again");
    CHECK(madvise(memory + word, HW_PAGE, MADV_DONTNEED) == 0, "madvise");
    expect_state(a, 0, "discarded");
    expect_word(a, word, a->region.signature, "discarded");
    hw_put(a, word, 0x95);
    CHECK(memory[word] == 0, "discarded: a WRITE arrives");
}

static void run_states(const char *from, const char *to)
{
    hw_access_t a;

    hw_access_open(&a, from, to, HW_VIEWS, (size_t)PAGES * HW_PAGE);
    test_absent(&a);
    test_present(&a);
    test_taken(&a);
    hw_access_close(&a);
}

static void run_race(char **argv)
{
    hw_access_t a;

    hw_access_open(&a, argv[2], argv[3], HW_VIEWS, (size_t)PAGES * HW_PAGE);
    hw_race(&a, !strcmp(argv[0], "puts"), strcmp(argv[1], "call"),
            atoi(argv[4]));
    hw_access_close(&a);
}

static hw_kind_t parse_kind(const char *word)
{
    return !strcmp(word, "pinned") ? HW_PINNED :
           !strcmp(word, "odp") ? HW_ON_DEMAND : HW_VIEWS;
}

static void run_access(char **argv)
{
    size_t length = strtoull(argv[4], NULL, 0);
    hw_access_t a;

    CHECK((length > 0) && (length <= (size_t)PAGES * HW_PAGE), "%s bytes",
          argv[4]);
    hw_access_open(&a, argv[2], argv[3], parse_kind(argv[0]),
                   (size_t)PAGES * HW_PAGE);
    hw_speed_access(&a, !strcmp(argv[1], "put"), !strcmp(argv[0], "verified"),
                    length, strtoul(argv[5], NULL, 0),
                    strtoul(argv[6], NULL, 0));
    hw_access_close(&a);
}

int main(int argc, char **argv)
{
    const char *command = (argc > 1) ? argv[1] : "";

    setvbuf(stdout, NULL, _IOLBF, 0);
    if (!strcmp(command, "info") && (argc == 3)) {
        run_info(argv[2]);
    } else if (!strcmp(command, "attach") && (argc == 3)) {
        run_attach(argv[2]);
    } else if (!strcmp(command, "states") && (argc == 4)) {
        run_states(argv[2], argv[3]);
    } else if (!strcmp(command, "race") && (argc == 7)) {
        run_race(argv + 2);
    } else if (!strcmp(command, "register") && (argc == 5)) {
        hw_speed_register(parse_kind(argv[2]), argv[3],
                          strtoull(argv[4], NULL, 0));
    } else if (!strcmp(command, "access") && (argc == 9)) {
        run_access(argv + 2);
    } else {
        fprintf(stderr, "usage: see the top of hw_views.c\n");
        return 2;
    }
    return 0;
}
