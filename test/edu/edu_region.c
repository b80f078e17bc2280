/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * A device that imports a region like an RDMA driver: what it reads and writes
 * in the memory of a process while the kernel takes pages away.
 */

#include "edu.h"

#include <sys/klog.h>

/* The unit's capabilities, from the kernel's driver */
static uint64_t unit_capabilities(int is_amd)
{
    FILE *file = fopen(is_amd ? "/sys/class/iommu/ivhd0/amd-iommu/cap" :
                                "/sys/class/iommu/dmar0/intel-iommu/cap", "r");
    unsigned long long value;

    CHECK(file != NULL, "%m");
    CHECK_EQ(fscanf(file, "%llx", &value), 1);
    fclose(file);
    return value;
}

/* The stage of an SMMU, or 0 */
static int smmu_stage(const char *mode)
{
    return !strcmp(mode, "s1") ? 1 : !strcmp(mode, "s2") ? 2 : 0;
}

/* What the check reports in fields, in words too for people */
static void check_fields(const struct nprdma_ioc_check_device *arg,
                         const char *mode)
{
    const char *order = getenv("EDU_MAX_ORDER");
    int amd           = !strcmp(mode, "amd");
    int smmu          = smmu_stage(mode);
    uint64_t cap      = smmu ? 0 : unit_capabilities(amd);
    int fs            = !strcmp(mode, "fs");
    uint32_t flags    = NPRDMA_DEVICE_KNOWN;

    flags |= fs || !strcmp(mode, "ss") ? NPRDMA_DEVICE_SCALABLE : 0;
    flags |= fs ? NPRDMA_DEVICE_FIRST_STAGE : 0;
    /* AMD's NpCache */
    flags |= (cap >> (amd ? 26 : 7)) & 1 ? NPRDMA_DEVICE_CACHING_MODE : 0;
    CHECK_EQ(arg->device, flags);
    CHECK_EQ(arg->max_order, order ? strtoull(order, NULL, 10) :
                             fs || amd || smmu ? 51 : (cap >> 48) & 63);
    CHECK(arg->page_sizes & PAGE, "%#llx", (long long)arg->page_sizes);
    /* The test module says that the device has 28 address bits */
    CHECK_EQ(arg->iova_bytes, 0);
    CHECK_EQ(arg->max_iova_bytes, 1 << 26);
    CHECK(strstr(arg->why, flags & NPRDMA_DEVICE_CACHING_MODE ?
                           "caching mode on" : "caching mode off") != NULL);
    CHECK(strstr(arg->why, "ATS off, relaxed ordering off") != NULL);
    CHECK(!smmu || (strstr(arg->why, ", IIDR 0x0, BBML 2,") != NULL));
}

/* The device that the environment names, else the edu */
static int check_device(struct nprdma_ioc_check_device *arg)
{
    const char *device = getenv("EDU_DEVICE");
    int edu            = edu_open();
    int ret;

    ret = (device != NULL) ? check_named(kmod_open(), device, arg) :
                             check_edu(kmod_open(), edu, arg);
    printf("%s\n", arg->why);
    return ret;
}

/* The check reports the device's IOMMU; the rig sets which one is right */
KMOD_CASE(region, attach)
{
    const char *mode   = getenv("GUEST_IOMMU");
    const char *kernel = getenv("GUEST_KERNEL");
    struct nprdma_ioc_check_device arg;

    CHECK_EQ(check_device(&arg), 0);
    CHECK((mode != NULL) && (kernel != NULL), "not started by the rig");
    CHECK(strstr(arg.why,
                 !strcmp(mode, "legacy") ? "Intel VT-d, legacy mode" :
                 !strcmp(mode, "ss") ? "scalable mode, second stage" :
                 !strcmp(mode, "fs") ? "scalable mode, first stage" :
                 smmu_stage(mode) == 1 ? "Arm SMMUv3, stage 1" :
                 smmu_stage(mode) == 2 ? "Arm SMMUv3, stage 2" :
                 "AMD, version 1") != NULL);
    CHECK_EQ(strstr(arg.why, "generic_pt") != NULL,
             strcmp(kernel, "6.1") && strcmp(kernel, "6.12") &&
             !smmu_stage(mode));
    check_fields(&arg, mode);
}

/* The device is refused, with the reason that EDU_REFUSED has. An import, which
 * need not check it before, is refused as well. */
KMOD_CASE(refused, attach)
{
    const char *words  = getenv("EDU_REFUSED");
    const char *number = getenv("EDU_ERRNO");
    struct nprdma_ioc_check_device arg;
    kmod_region_t region;

    CHECK(words != NULL, "EDU_REFUSED is not set");
    CHECK_EQ(check_device(&arg), number ? atoi(number) : EOPNOTSUPP);
    CHECK(strstr(arg.why, words) != NULL, "not '%s'", words);

    kmod_region(&region, 1);
    if ((getenv("EDU_DEVICE") == NULL) &&
        (kmod_query(region.ctx).features & NPRDMA_IOC_FEATURE_DEVICES)) {
        CHECK_EQ(import(edu_open(), export(&region), NULL), EOPNOTSUPP);
    }
}

/*
 * Reads by the device before and after the pages of a range come and go, beside
 * which nothing changes. One flush covers pages that the IOMMU has cached,
 * wherever the range begins.
 */
static void check_range(fixture_t *f, size_t first, size_t count)
{
    size_t i;

    for (i = 0; i < count; ++i) {
        edu_fill(f, first + i, 0x1000 + i);
    }
    for (i = 0; i < count; ++i) {
        CHECK_EQ(edu_read(f->edu, in_r(first + i)), f->signature);
    }
    kmod_populate_all(&f->region, first, count, 0);
    for (i = 0; i < count; ++i) {
        CHECK_EQ(edu_read(f->edu, in_r(first + i)), 0x1000 + i);
    }
    kmod_populate_all(&f->region, first - 1, 1, 0);
    kmod_take(&f->region, first, count);
    for (i = 0; i < count; ++i) {
        CHECK_EQ(edu_read(f->edu, in_r(first + i)), f->signature);
    }
    CHECK_EQ(edu_read(f->edu, in_r(first - 1)), 0);
}

/*
 * An invalidation covers a power of two of pages, aligned to its size. Each of
 * these ranges crosses the end of such a block, the third one that of a leaf
 * table.
 */
KMOD_CASE(region, reads)
{
    fixture_t f;

    setup(&f);
    check_range(&f, 5, 1);
    check_range(&f, 14, 3);
    check_range(&f, 512 - 3, 4);
    check_range(&f, NPAGES - 5, 5);
}

KMOD_CASE(region, writes)
{
    fixture_t f;

    setup(&f);
    edu_fill(&f, 4, 0x44);
    edu_fill(&f, 5, 0x55);
    edu_fill(&f, 6, 0x66);

    /* Present for reading only */
    kmod_populate_all(&f.region, 0, NPAGES, 0);
    edu_write(f.edu, in_w(&f, 5), 0x77);
    CHECK(edu_holds(&f, 5, 0x55));

    kmod_populate_all(&f.region, 0, NPAGES, WRITE);
    edu_write(f.edu, in_w(&f, 5) + PAGE - EDU_DMA, 0x77);
    CHECK_EQ(f.words[5 * PAGE / 8], 0x55);
    CHECK_EQ(f.words[6 * PAGE / 8 - 1], 0x77);
    CHECK(edu_holds(&f, 4, 0x44) && edu_holds(&f, 6, 0x66));
    CHECK_EQ(edu_read(f.edu, in_r(5) + PAGE - EDU_DMA), 0x77);

    /* A write after the invalidation goes nowhere, whatever the page is used
     * for */
    kmod_take(&f.region, 5, 1);
    edu_fill(&f, 5, 0x5555);
    edu_write(f.edu, in_w(&f, 5), 0x88);
    CHECK(edu_holds(&f, 5, 0x5555));
    CHECK(edu_holds(&f, 4, 0x44) && edu_holds(&f, 6, 0x66));

    kmod_populate_all(&f.region, 5, 1, WRITE);
    edu_write(f.edu, in_w(&f, 5), 0x99);
    CHECK_EQ(f.words[5 * PAGE / 8], 0x99);
}

/* Peers read by RDMA the same states as the process */
KMOD_CASE(region, states)
{
    uint32_t words[16];
    fixture_t f;
    size_t i;

    setup(&f);
    edu_fill(&f, 1101, 1);
    kmod_populate_all(&f.region, 1101, 2, WRITE);
    kmod_populate_all(&f.region, 1104, 1, 0);
    kmod_take(&f.region, 1101, 1);
    edu_read_bytes(f.edu, in_states(&f, 1100), words, sizeof(words));
    for (i = 0; i < 16; ++i) {
        CHECK_EQ(words[i], f.region.words[1100 + i]);
    }
    CHECK_EQ(words[1] & NPRDMA_PAGE_BITS, 0);
    CHECK(words[1] != 0);
    CHECK_EQ(words[2] & NPRDMA_PAGE_BITS, NPRDMA_PAGE_BITS);
    CHECK_EQ(words[4] & NPRDMA_PAGE_BITS, NPRDMA_PAGE_R);
}

/* Populated before the device imported the region, and taken away after.
 * Several imports, as for several memory regions of one device, share the
 * views. */
KMOD_CASE(region, imports)
{
    struct nprdma_ioc_stats one, two;
    uint64_t size;
    fixture_t f;
    int other;

    setup_region(&f, NPAGES);
    edu_fill(&f, 700, 0x77);
    edu_fill(&f, 701, 0x78);
    kmod_populate_all(&f.region, 700, 1, 0);
    kmod_populate_all(&f.region, 701, 1, WRITE);
    CHECK_EQ(import(f.edu, f.dmabuf, &size), 0);
    CHECK_EQ(size, (2 * NPAGES + 2) * PAGE);
    CHECK_EQ(edu_read(f.edu, in_r(700)), 0x77);
    CHECK_EQ(edu_read(f.edu, in_r(699)), f.signature);
    edu_write(f.edu, in_w(&f, 700), 0xbad);
    edu_write(f.edu, in_w(&f, 701), 0x99);
    CHECK(edu_holds(&f, 700, 0x77));
    CHECK_EQ(f.words[701 * PAGE / 8], 0x99);

    one   = kmod_stats(f.region.ctx, f.region.id);
    other = edu_open();
    CHECK_EQ(import(other, f.dmabuf, NULL), 0);
    two = kmod_stats(f.region.ctx, f.region.id);
    CHECK_EQ(two.bytes, one.bytes);
    edu_release(f.edu);
    CHECK_EQ(edu_read(other, in_r(700)), 0x77);
    kmod_take(&f.region, 700, 1);
    CHECK_EQ(edu_read(other, in_r(700)), f.signature);
    edu_release(other);
    two = kmod_stats(f.region.ctx, f.region.id);
    CHECK(two.bytes < one.bytes);
}

static void use_as_other(void *arg)
{
    fixture_t *f = arg;

    CHECK_EQ(import(f->edu, f->dmabuf, NULL), EPERM);
    CHECK(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, f->dmabuf, 0) == MAP_FAILED);
}

/* Only the owner can export and import */
KMOD_CASE(region, capability)
{
    struct nprdma_ioc_check_device arg;
    fixture_t f;

    setup_region(&f, NPAGES);
    kmod_in_child(use_as_other, &f);
    CHECK(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, f.dmabuf, 0) == MAP_FAILED);
    CHECK_EQ(import(f.edu, f.dmabuf, NULL), 0);

    CHECK_EQ(check_named(f.region.ctx, "0000:ff:1f.7", &arg), ENODEV);
    CHECK(strlen(arg.why) > 0);
}

/* Bind the device to its driver, or unbind it: "bind" or "unbind" */
static void driver(const char *what, const char *name)
{
    char path[64];

    snprintf(path, sizeof(path), "/sys/bus/pci/drivers/nprdma_edu/%s", what);
    CHECK_EQ(kmod_write_file(path, name), 0);
}

/* The importer ends while the region stays, and can be imported again */
KMOD_CASE(region, unbound)
{
    struct nprdma_ioc_check_device arg;
    struct nprdma_ioc_stats before, after;
    char name[32];
    fixture_t f;

    setup_region(&f, NPAGES);
    edu_name(f.edu, name, sizeof(name));
    before = kmod_stats(f.region.ctx, f.region.id);
    CHECK_EQ(import(f.edu, f.dmabuf, NULL), 0);
    edu_fill(&f, 3, 0x33);
    kmod_populate_all(&f.region, 0, NPAGES, WRITE);
    CHECK_EQ(edu_read(f.edu, in_r(3)), 0x33);

    driver("unbind", name);
    CHECK_EQ(import(f.edu, f.dmabuf, NULL), ENODEV);
    CHECK_EQ(check_named(f.region.ctx, name, &arg), ENODEV);
    CHECK(strstr(arg.why, "no driver") != NULL, "%s", arg.why);

    /* The region goes on without the device */
    after = kmod_stats(f.region.ctx, f.region.id);
    CHECK_EQ(after.present, NPAGES);
    kmod_take(&f.region, 3, 1);
    CHECK_EQ(f.region.words[3] & NPRDMA_PAGE_BITS, 0);
    edu_fill(&f, 3, 0x44);
    kmod_populate_all(&f.region, 3, 1, WRITE);
    CHECK(after.bytes < before.bytes + NPAGES * 16, "%llu bytes, then %llu",
          (unsigned long long)before.bytes, (unsigned long long)after.bytes);

    driver("bind", name);
    CHECK_EQ(import(f.edu, f.dmabuf, NULL), 0);
    CHECK_EQ(edu_read(f.edu, in_r(3)), 0x44);
    edu_write(f.edu, in_w(&f, 4), 0x55);
    CHECK_EQ(f.words[4 * PAGE / 8], 0x55);
    kmod_take(&f.region, 3, 1);
    CHECK_EQ(edu_read(f.edu, in_r(3)), f.signature);
}

static int unload(void)
{
    return syscall(SYS_delete_module, "nprdma", O_NONBLOCK) ? errno : 0;
}

/* The module stays as long as a context, a dma-buf or an import uses it. The
 * region ends while the device still has it imported. */
KMOD_CASE(region, unload)
{
    fixture_t f;
    int i;

    for (i = 0; i < 2; ++i) {
        setup(&f);
        edu_fill(&f, 3, 0x33);
        kmod_populate_all(&f.region, 3, 1, WRITE);
        CHECK_EQ(unload(), EWOULDBLOCK);
        CHECK_OK(munmap(f.region.header, f.region.states_size));
        close(f.region.states_fd);
        close(f.region.ctx);
        if (i == 1) {
            close(f.dmabuf);
        }
        CHECK_EQ(unload(), EWOULDBLOCK);
        CHECK_EQ(edu_read(f.edu, in_r(3)), f.signature);
        edu_write(f.edu, in_w(&f, 3), 0x44);
        CHECK(edu_holds(&f, 3, 0x33));
        edu_release(f.edu);
        if (i == 0) {
            CHECK_EQ(unload(), EWOULDBLOCK);
            close(f.dmabuf);
        }
        CHECK(kmod_await(is_unused, NULL));
    }
}

/*
 * Whatever access the owner has, a device can write neither through R nor to
 * the states. Each attempt makes the IOMMU report a fault in the kernel's log.
 */
KMOD_CASE(read_only, all)
{
    uint32_t words[128];
    fixture_t f;
    size_t i;

    setup(&f);
    edu_fill(&f, 3, 0x33);
    kmod_populate_all(&f.region, 0, NPAGES, WRITE);
    for (i = 0; i < 128; ++i) {
        words[i] = f.region.words[i];
    }
    edu_write(f.edu, in_r(3), 0x44);
    CHECK(edu_holds(&f, 3, 0x33));
    edu_write(f.edu, in_states(&f, 0), 0x44);
    for (i = 0; i < 128; ++i) {
        CHECK_EQ(f.region.words[i], words[i]);
    }
    edu_write(f.edu, in_w(&f, 3), 0x55);
    CHECK_EQ(f.words[3 * PAGE / 8], 0x55);
}

/* The states of 1 GiB are mapped at once, so these are mapped in two pieces.
 * Memory is needed only for pages that are populated. */
KMOD_CASE(large, pieces)
{
    const size_t pages   = 5ul << 16;
    const size_t each[3] = {0, (1ul << 18) - 1, (1ul << 18) + 5};
    uint32_t word;
    uint64_t size;
    fixture_t f;
    size_t i;

    setup_region(&f, pages);
    CHECK_EQ(import(f.edu, f.dmabuf, &size), 0);
    CHECK_EQ(size, 2 * pages * PAGE + pages * 4);
    for (i = 0; i < 3; ++i) {
        edu_fill(&f, each[i], 0x40 + i);
        kmod_populate_all(&f.region, each[i], 1, WRITE);
    }
    for (i = 0; i < 3; ++i) {
        CHECK_EQ(edu_read(f.edu, in_r(each[i])), 0x40 + i);
        edu_read_bytes(f.edu, in_states(&f, each[i]), &word, sizeof(word));
        CHECK_EQ(word, f.region.words[each[i]]);
        CHECK_EQ(word & NPRDMA_PAGE_BITS, NPRDMA_PAGE_BITS);
        kmod_take(&f.region, each[i], 1);
        edu_read_bytes(f.edu, in_states(&f, each[i]), &word, sizeof(word));
        CHECK_EQ(word, f.region.words[each[i]]);
        CHECK_EQ(word & NPRDMA_PAGE_BITS, 0);
    }
}

/* Two views of 2 GiB do not fit below 4 GiB. Of 40 address bits the kernel then
 * uses the highest, for which AMD's table gets one more level at its top. */
KMOD_CASE(large, top)
{
    const size_t pages = 1ul << 19;
    struct nprdma_ioc_check_device arg;
    fixture_t before, across;

    setup(&before);
    check_range(&before, 5, 1);
    CHECK_EQ(check_edu(before.region.ctx, before.edu, &arg), 0);
    CHECK(strstr(arg.why, "version 1, 3 levels") != NULL, "%s", arg.why);
    setup_region(&across, pages);
    CHECK_EQ(import(across.edu, across.dmabuf, NULL), 0);
    CHECK_EQ(check_edu(before.region.ctx, before.edu, &arg), 0);
    CHECK(strstr(arg.why, "version 1, 4 levels") != NULL, "%s", arg.why);
    check_range(&before, 5, 1);
    check_range(&before, NPAGES - 1, 1);
    check_range(&across, 1, 1);
    check_range(&across, pages - 1, 1);
}

/* A view beyond the device's DMA mask is refused. The administrator gets the
 * reason, and nothing of it is left. */
KMOD_CASE(region, full)
{
    static char log[1 << 20];
    fixture_t f;

    kmod_write_number(PARAMETER "max_total_iova_bytes", 1ull << 40);
    setup_region(&f, (1 << 28) / PAGE);
    CHECK_EQ(import(f.edu, f.dmabuf, NULL), ENOMEM);
    CHECK(klogctl(3, log, sizeof(log) - 1) > 0, "%m");
    CHECK(strstr(log, "28 address bits") != NULL);
    setup(&f);
    edu_fill(&f, 0, 0x55);
    kmod_populate_all(&f.region, 0, 1, 0);
    CHECK_EQ(edu_read(f.edu, in_r(0)), 0x55);
}

#define TRACING "/sys/kernel/tracing/"

/* Invalidations of IOTLB entries in the trace; each has 2^order pages */
static unsigned count_invalidations(unsigned order)
{
    FILE *file     = fopen(TRACING "trace", "r");
    unsigned count = 0;
    unsigned long long address;
    char line[512];
    char *inv;

    CHECK(file != NULL, "%m");
    while (fgets(line, sizeof(line), file) != NULL) {
        inv = strstr(line, "iotlb_inv ");
        if ((inv == NULL) ||
            (sscanf(inv, "%*s %*s %*x %llx", &address) != 1)) {
            continue;
        }
        CHECK_EQ(address & 63, order);
        ++count;
    }
    fclose(file);
    return count;
}

/* Flushing 16 pages of both views takes one invalidation each, or more if the
 * unit's largest one is smaller */
KMOD_CASE(invalidations, all)
{
    const char *limit = getenv("EDU_MAX_ORDER");
    unsigned order    = (limit != NULL) ? atoi(limit) : 18;
    fixture_t f;

    order = (order < 4) ? order : 4;
    setup(&f);
    kmod_populate_all(&f.region, 32, 16, WRITE);
    CHECK_EQ(edu_read(f.edu, in_r(32 + 15)), 0);
    CHECK_EQ(kmod_write_file(TRACING "trace", ""), 0);
    kmod_write_number(TRACING "events/intel_iommu/qi_submit/enable", 1);
    /* The device does nothing else meanwhile */
    kmod_take(&f.region, 32, 16);
    kmod_write_number(TRACING "events/intel_iommu/qi_submit/enable", 0);
    CHECK_EQ(count_invalidations(order), 2 * (16 >> order));
    CHECK_EQ(edu_read(f.edu, in_r(32 + 15)), f.signature);
}
