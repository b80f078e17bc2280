/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * A device that imports a region like an RDMA driver: what it reads and writes
 * in the memory of a process while the kernel takes pages away.
 */

#include "edu_fixture.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The unit's capability register, from the kernel's driver */
static uint64_t unit_capabilities(void)
{
    FILE *file = fopen("/sys/class/iommu/dmar0/intel-iommu/cap", "r");
    unsigned long long value;

    CHECK(file != NULL, "%m");
    CHECK_EQ(fscanf(file, "%llx", &value), 1);
    fclose(file);
    return value;
}

/* What attaching reports in fields, in words too for people */
static void check_fields(const struct nprdma_ioc_attach_device *arg,
                         const char *mode)
{
    const char *order = getenv("EDU_MAX_ORDER");
    uint64_t cap      = unit_capabilities();
    int fs            = !strcmp(mode, "fs");
    uint32_t flags    = NPRDMA_DEVICE_KNOWN;

    flags |= strcmp(mode, "legacy") ? NPRDMA_DEVICE_SCALABLE : 0;
    flags |= fs ? NPRDMA_DEVICE_FIRST_STAGE : 0;
    flags |= (cap >> 7) & 1 ? NPRDMA_DEVICE_CACHING_MODE : 0;
    CHECK_EQ(arg->device, flags);
    CHECK_EQ(arg->max_order, order ? strtoull(order, NULL, 10) :
                             fs ? 51 : (cap >> 48) & 63);
    CHECK(arg->page_sizes & PAGE, "%#llx", (long long)arg->page_sizes);
    /* The test module says that the device has 28 address bits */
    CHECK_EQ(arg->iova_bytes, 0);
    CHECK_EQ(arg->max_iova_bytes, 1 << 26);
    CHECK(strstr(arg->why, flags & NPRDMA_DEVICE_CACHING_MODE ?
                           "caching mode on" : "caching mode off") != NULL);
    CHECK(strstr(arg->why, "ATS off, relaxed ordering off") != NULL);
}

/* Attaching reports the device's IOMMU; the rig sets which one is right */
static void test_attach(void)
{
    struct nprdma_ioc_attach_device arg = {.size = sizeof(arg)};
    const char *mode   = getenv("GUEST_IOMMU");
    const char *kernel = getenv("GUEST_KERNEL");
    const char *why    = arg.why;
    int edu = edu_open();
    int ctx = kmod_open();
    int ret;

    device_name(edu, arg.name, sizeof(arg.name));
    ret = kmod_call(ctx, NPRDMA_IOC_ATTACH_DEVICE, &arg);
    printf("%s\n", why);
    CHECK_EQ(ret, 0);
    CHECK((mode != NULL) && (kernel != NULL), "not started by the rig");
    CHECK(strstr(why, !strcmp(mode, "legacy") ? "legacy mode" :
                      !strcmp(mode, "ss") ? "scalable mode, second stage" :
                      "scalable mode, first stage") != NULL);
    CHECK_EQ(strstr(why, "generic_pt") != NULL,
             strcmp(kernel, "6.1") && strcmp(kernel, "6.12"));
    check_fields(&arg, mode);
}

/* The device is refused, with the reason that EDU_REFUSED has */
static void test_refused(void)
{
    const char *words  = getenv("EDU_REFUSED");
    const char *number = getenv("EDU_ERRNO");
    char name[32], why[NPRDMA_WHY_SIZE];
    int edu = edu_open();
    int ctx = kmod_open();
    int ret;

    CHECK(words != NULL, "EDU_REFUSED is not set");
    device_name(edu, name, sizeof(name));
    ret = attach(ctx, name, why, sizeof(why));
    printf("%s\n", why);
    CHECK_EQ(ret, number ? atoi(number) : EOPNOTSUPP);
    CHECK(strstr(why, words) != NULL);
}

static void test_reads(void)
{
    fixture_t f;

    setup(&f);
    edu_fill(at(&f, 4), 0x44);
    edu_fill(at(&f, 5), 0x55);
    edu_fill(at(&f, 6), 0x66);
    CHECK_EQ(edu_read(f.edu, in_r(5)), f.signature);

    kmod_populate_all(&f.region, 5, 1, 0);
    CHECK_EQ(edu_read(f.edu, in_r(5)), 0x55);
    CHECK_EQ(edu_read(f.edu, in_r(4)), f.signature);
    CHECK_EQ(edu_read(f.edu, in_r(6)), f.signature);

    kmod_populate_all(&f.region, 0, NPAGES, 0);
    CHECK_EQ(edu_read(f.edu, in_r(6)), 0x66);
    CHECK_EQ(edu_read(f.edu, in_r(NPAGES - 1)), 0);

    take_away(&f, 5);
    CHECK_EQ(edu_read(f.edu, in_r(5)), f.signature);
    CHECK_EQ(edu_read(f.edu, in_r(4)), 0x44);
    CHECK_EQ(edu_read(f.edu, in_r(6)), 0x66);

    edu_fill(at(&f, 5), 0x5555);
    CHECK_EQ(edu_read(f.edu, in_r(5)), f.signature);
    kmod_populate_all(&f.region, 5, 1, 0);
    CHECK_EQ(edu_read(f.edu, in_r(5)), 0x5555);
}

static void test_writes(void)
{
    fixture_t f;

    setup(&f);
    edu_fill(at(&f, 4), 0x44);
    edu_fill(at(&f, 5), 0x55);
    edu_fill(at(&f, 6), 0x66);

    /* Present for reading only */
    kmod_populate_all(&f.region, 0, NPAGES, 0);
    edu_write(f.edu, in_w(&f, 5), 0x77);
    CHECK(edu_holds(at(&f, 5), 0x55));

    kmod_populate_all(&f.region, 0, NPAGES, NPRDMA_IOC_POPULATE_WRITE);
    edu_write(f.edu, in_w(&f, 5) + PAGE - EDU_DMA, 0x77);
    CHECK_EQ(f.words[5 * PAGE / 8], 0x55);
    CHECK_EQ(f.words[6 * PAGE / 8 - 1], 0x77);
    CHECK(edu_holds(at(&f, 4), 0x44) && edu_holds(at(&f, 6), 0x66));
    CHECK_EQ(edu_read(f.edu, in_r(5) + PAGE - EDU_DMA), 0x77);

    /* A write after the invalidation goes nowhere, whatever the page is used
     * for */
    take_away(&f, 5);
    edu_fill(at(&f, 5), 0x5555);
    edu_write(f.edu, in_w(&f, 5), 0x88);
    CHECK(edu_holds(at(&f, 5), 0x5555));
    CHECK(edu_holds(at(&f, 4), 0x44) && edu_holds(at(&f, 6), 0x66));

    kmod_populate_all(&f.region, 5, 1, NPRDMA_IOC_POPULATE_WRITE);
    edu_write(f.edu, in_w(&f, 5), 0x99);
    CHECK_EQ(f.words[5 * PAGE / 8], 0x99);
}

/* Peers read by RDMA the same states as the process */
static void test_states(void)
{
    uint32_t words[16];
    fixture_t f;
    size_t i;

    setup(&f);
    edu_fill(at(&f, 1101), 1);
    kmod_populate_all(&f.region, 1101, 2, NPRDMA_IOC_POPULATE_WRITE);
    kmod_populate_all(&f.region, 1104, 1, 0);
    take_away(&f, 1101);
    edu_read_bytes(f.edu, in_states(&f, 1100), words, sizeof(words));
    for (i = 0; i < 16; ++i) {
        CHECK_EQ(words[i], f.region.words[1100 + i]);
    }
    CHECK_EQ(words[1] & NPRDMA_PAGE_BITS, 0);
    CHECK(words[1] != 0);
    CHECK_EQ(words[2] & NPRDMA_PAGE_BITS, NPRDMA_PAGE_BITS);
    CHECK_EQ(words[4] & NPRDMA_PAGE_BITS, NPRDMA_PAGE_R);
}

/* Populated before the device was attached, and taken away after */
static void test_late_import(void)
{
    struct nprdma_edu_import arg;
    fixture_t f;

    setup_region(&f, NPAGES);
    edu_fill(at(&f, 700), 0x77);
    edu_fill(at(&f, 701), 0x78);
    kmod_populate_all(&f.region, 700, 1, 0);
    kmod_populate_all(&f.region, 701, 1, NPRDMA_IOC_POPULATE_WRITE);
    CHECK_EQ(import(f.edu, f.dmabuf, &arg), 0);
    CHECK_EQ(arg.size, (2 * NPAGES + 2) * PAGE);

    CHECK_EQ(edu_read(f.edu, in_r(700)), 0x77);
    CHECK_EQ(edu_read(f.edu, in_r(699)), f.signature);
    edu_write(f.edu, in_w(&f, 700), 0xbad);
    edu_write(f.edu, in_w(&f, 701), 0x99);
    CHECK(edu_holds(at(&f, 700), 0x77));
    CHECK_EQ(f.words[701 * PAGE / 8], 0x99);
    take_away(&f, 700);
    CHECK_EQ(edu_read(f.edu, in_r(700)), f.signature);
}

/* Several imports, as for several memory regions of one device, share the
 * windows */
static void test_two_imports(void)
{
    struct nprdma_ioc_stats one, two;
    fixture_t f;
    int other;

    setup(&f);
    kmod_stats(f.region.ctx, f.region.id, &one);
    other = edu_open();
    CHECK_EQ(import(other, f.dmabuf, NULL), 0);
    kmod_stats(f.region.ctx, f.region.id, &two);
    CHECK_EQ(two.bytes, one.bytes);

    edu_fill(at(&f, 9), 0x99);
    kmod_populate_all(&f.region, 9, 1, 0);
    CHECK_EQ(edu_read(other, in_r(9)), 0x99);
    edu_release(f.edu);
    CHECK_EQ(edu_read(other, in_r(9)), 0x99);
    take_away(&f, 9);
    CHECK_EQ(edu_read(other, in_r(9)), f.signature);

    edu_release(other);
    kmod_stats(f.region.ctx, f.region.id, &two);
    CHECK(two.bytes < one.bytes);
}

/* Pointing windows at pages, and away from them, is traced */
static void test_traced(void)
{
    char ids[64];
    fixture_t f;

    if (!kmod_trace_start()) {
        kmod_skip("this kernel does not trace");
    }
    setup(&f);
    snprintf(ids, sizeof(ids), "tgid=%d region=%u", getpid(), f.region.id);
    kmod_populate_all(&f.region, 3, 2, NPRDMA_IOC_POPULATE_WRITE);
    CHECK(kmod_traced("nprdma_repoint: %s bits=3 first=3 pages=2 present=1",
                      ids));
    take_away(&f, 4);
    CHECK(kmod_traced("nprdma_repoint: %s bits=3 first=4 pages=1 present=0",
                      ids));
}

/* Only the owner can export, and only attached devices can import */
static void test_capability(void)
{
    struct nprdma_ioc_attach_device check = {
        .size = sizeof(check), .flags = NPRDMA_IOC_ATTACH_CHECK_ONLY
    };
    char why[NPRDMA_WHY_SIZE];
    kmod_region_t region;
    fixture_t f;
    pid_t pid;
    int fd;

    setup_region(&f, NPAGES);
    pid = fork();
    CHECK(pid >= 0, "%m");
    if (pid == 0) {
        CHECK_EQ(import(f.edu, f.dmabuf, NULL), EPERM);
        CHECK(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, f.dmabuf, 0) ==
              MAP_FAILED);
        _exit(0);
    }
    CHECK_EQ(kmod_wait(pid), 0);
    CHECK(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, f.dmabuf, 0) == MAP_FAILED);

    /* A context that has only checked whether the device is supported */
    kmod_region_create(&region, kmod_open(), f.region.memory, PAGE);
    fd = export(&region);
    CHECK_EQ(import(f.edu, fd, NULL), EACCES);
    edu_name(f.edu, check.name, sizeof(check.name));
    CHECK_CALL(region.ctx, NPRDMA_IOC_ATTACH_DEVICE, &check, 0);
    CHECK(strstr(check.why, "Intel VT-d") != NULL, "%s", check.why);
    CHECK_EQ(import(f.edu, fd, NULL), EACCES);
    CHECK_EQ(import(f.edu, f.dmabuf, NULL), 0);

    CHECK_EQ(attach(f.region.ctx, "0000:ff:1f.7", why, sizeof(why)), ENODEV);
    CHECK(strlen(why) > 0);
}

/* The region ends while the device still has it imported */
static void test_destroyed(void)
{
    fixture_t f;

    setup(&f);
    edu_fill(at(&f, 3), 0x33);
    kmod_populate_all(&f.region, 0, NPAGES, NPRDMA_IOC_POPULATE_WRITE);
    CHECK_EQ(edu_read(f.edu, in_r(3)), 0x33);
    close(f.dmabuf);
    kmod_region_destroy(&f.region);
    CHECK_EQ(edu_read(f.edu, in_r(3)), f.signature);
    edu_write(f.edu, in_w(&f, 3), 0x44);
    CHECK(edu_holds(at(&f, 3), 0x33));

    CHECK(munmap(at(&f, 0), NPAGES * PAGE) == 0, "%m");
    CHECK_EQ(edu_read(f.edu, in_r(3)), f.signature);
    edu_release(f.edu);
}

/* The owner is killed while another process has the device's file open */
static void test_killed(void)
{
    uint64_t signature;
    int ends[2], edu;
    fixture_t f;
    pid_t pid;

    edu = edu_open();
    CHECK(pipe(ends) == 0, "%m");
    pid = fork();
    CHECK(pid >= 0, "%m");
    if (pid == 0) {
        setup_region(&f, NPAGES);
        CHECK_EQ(import(edu, f.dmabuf, NULL), 0);
        edu_fill(at(&f, 3), 0x33);
        kmod_populate_all(&f.region, 0, NPAGES, NPRDMA_IOC_POPULATE_WRITE);
        CHECK_EQ(edu_read(edu, in_r(3)), 0x33);
        CHECK(write(ends[1], &f.signature, 8) == 8, "%m");
        for (;;) {
            pause();
        }
    }
    close(ends[1]);
    CHECK(read(ends[0], &signature, 8) == 8, "the child failed");
    CHECK_EQ(edu_read(edu, in_r(3)), 0x33);
    kill(pid, SIGKILL);
    CHECK_EQ(kmod_wait(pid), 1000 + SIGKILL);
    CHECK_EQ(edu_read(edu, in_r(3)), signature);
    edu_write(edu, NPAGES * PAGE + in_r(3), 0x44);
    edu_release(edu);
}

/* Bind the device to its driver, or unbind it: "bind" or "unbind" */
static void driver(const char *what, const char *name)
{
    char path[64];

    snprintf(path, sizeof(path), "/sys/bus/pci/drivers/nprdma_edu/%s", what);
    CHECK_EQ(kmod_write_file(path, name), 0);
}

/* The importer ends while the region stays, and can be imported again */
static void test_unbound(void)
{
    struct nprdma_ioc_stats before, after;
    char name[32], why[NPRDMA_WHY_SIZE];
    fixture_t f;

    setup_region(&f, NPAGES);
    edu_name(f.edu, name, sizeof(name));
    kmod_stats(f.region.ctx, f.region.id, &before);
    CHECK_EQ(import(f.edu, f.dmabuf, NULL), 0);
    edu_fill(at(&f, 3), 0x33);
    kmod_populate_all(&f.region, 0, NPAGES, NPRDMA_IOC_POPULATE_WRITE);
    CHECK_EQ(edu_read(f.edu, in_r(3)), 0x33);

    driver("unbind", name);
    CHECK_EQ(import(f.edu, f.dmabuf, NULL), ENODEV);
    CHECK_EQ(attach(f.region.ctx, name, why, sizeof(why)), ENODEV);
    CHECK(strstr(why, "no driver") != NULL, "%s", why);

    /* The region goes on without the device */
    kmod_stats(f.region.ctx, f.region.id, &after);
    CHECK_EQ(after.present, NPAGES);
    take_away(&f, 3);
    CHECK_EQ(f.region.words[3] & NPRDMA_PAGE_BITS, 0);
    edu_fill(at(&f, 3), 0x44);
    kmod_populate_all(&f.region, 3, 1, NPRDMA_IOC_POPULATE_WRITE);
    CHECK(after.bytes < before.bytes + NPAGES * 16, "%llu bytes, then %llu",
          (unsigned long long)before.bytes, (unsigned long long)after.bytes);

    driver("bind", name);
    CHECK_EQ(import(f.edu, f.dmabuf, NULL), 0);
    CHECK_EQ(edu_read(f.edu, in_r(3)), 0x44);
    edu_write(f.edu, in_w(&f, 4), 0x55);
    CHECK_EQ(f.words[4 * PAGE / 8], 0x55);
    take_away(&f, 3);
    CHECK_EQ(edu_read(f.edu, in_r(3)), f.signature);
    edu_release(f.edu);
}

/* Runs until the process ends */
static void *come_and_go(void *arg)
{
    fixture_t *f = arg;
    size_t first;

    for (first = 0;; first = (first + 64) % (NPAGES - 64)) {
        kmod_populate(&f->region, first, 64, NPRDMA_IOC_POPULATE_WRITE, NULL);
        CHECK(madvise(at(f, (first + 512) % (NPAGES - 64)), 64 * PAGE,
                      MADV_DONTNEED) == 0, "%m");
    }
    return NULL;
}

/* The same while pages are populated and taken: windows are removed while in
 * use */
static void test_unbound_busy(void)
{
    pthread_t thread;
    uint64_t seen;
    char name[32];
    fixture_t f;
    int i;

    setup_region(&f, NPAGES);
    edu_name(f.edu, name, sizeof(name));
    CHECK_EQ(pthread_create(&thread, NULL, come_and_go, &f), 0);
    for (i = 0; i < 8; ++i) {
        CHECK_EQ(import(f.edu, f.dmabuf, NULL), 0);
        seen = edu_read(f.edu, in_r(64 * i));
        CHECK((seen == 0) || (seen == f.signature), "%#lx", seen);
        driver("unbind", name);
        driver("bind", name);
    }
}

static int unload(void)
{
    return syscall(SYS_delete_module, "nprdma", O_NONBLOCK) ? errno : 0;
}

static void test_unload(void)
{
    fixture_t f;

    setup(&f);
    edu_fill(at(&f, 3), 0x33);
    kmod_populate_all(&f.region, 3, 1, 0);
    CHECK_EQ(unload(), EWOULDBLOCK);
    CHECK(munmap(f.region.header, f.region.states_size) == 0, "%m");
    close(f.region.states_fd);
    close(f.region.ctx);

    /* The dma-buf and the import use the module, then either of them does */
    CHECK_EQ(unload(), EWOULDBLOCK);
    CHECK_EQ(edu_read(f.edu, in_r(3)), f.signature);
    edu_release(f.edu);
    CHECK_EQ(unload(), EWOULDBLOCK);
    close(f.dmabuf);
    CHECK(kmod_await(is_unused, NULL), "%lld", users_of_module());

    setup(&f);
    close(f.region.ctx);
    close(f.region.states_fd);
    close(f.dmabuf);
    CHECK(munmap(f.region.header, f.region.states_size) == 0, "%m");
    CHECK_EQ(unload(), EWOULDBLOCK);
    CHECK_EQ(edu_read(f.edu, in_r(3)), f.signature);
    edu_release(f.edu);
    CHECK(kmod_await(is_unused, NULL), "%lld", users_of_module());
}

/*
 * Whatever access the owner has, a device can write neither through R nor to
 * the states. Each attempt makes the IOMMU report a fault in the kernel's log.
 */
static void test_read_only(void)
{
    uint32_t words[128];
    fixture_t f;
    size_t i;

    setup(&f);
    edu_fill(at(&f, 3), 0x33);
    kmod_populate_all(&f.region, 0, NPAGES, NPRDMA_IOC_POPULATE_WRITE);
    for (i = 0; i < 128; ++i) {
        words[i] = f.region.words[i];
    }
    edu_write(f.edu, in_r(3), 0x44);
    CHECK(edu_holds(at(&f, 3), 0x33));
    edu_write(f.edu, in_states(&f, 0), 0x44);
    for (i = 0; i < 128; ++i) {
        CHECK_EQ(f.region.words[i], words[i]);
    }
    edu_write(f.edu, in_w(&f, 3), 0x55);
    CHECK_EQ(f.words[3 * PAGE / 8], 0x55);
}

/* The states of 1 GiB are mapped at once, so these are mapped in two pieces.
 * Memory is needed only for pages that are populated. */
static void test_large(void)
{
    const size_t pages   = 5ul << 16;
    const size_t each[3] = {0, (1ul << 18) - 1, (1ul << 18) + 5};
    struct nprdma_edu_import arg;
    uint32_t words[16];
    fixture_t f;
    size_t i;

    setup_region(&f, pages);
    CHECK_EQ(import(f.edu, f.dmabuf, &arg), 0);
    CHECK_EQ(arg.size, 2 * pages * PAGE + pages * 4);
    for (i = 0; i < 3; ++i) {
        edu_fill(at(&f, each[i]), 0x40 + i);
        kmod_populate_all(&f.region, each[i], 1, NPRDMA_IOC_POPULATE_WRITE);
    }
    for (i = 0; i < 3; ++i) {
        CHECK_EQ(edu_read(f.edu, in_r(each[i])), 0x40 + i);
        edu_read_bytes(f.edu, in_states(&f, each[i]), words, sizeof(*words));
        CHECK_EQ(words[0], f.region.words[each[i]]);
        CHECK_EQ(words[0] & NPRDMA_PAGE_BITS, NPRDMA_PAGE_BITS);
        take_away(&f, each[i]);
        edu_read_bytes(f.edu, in_states(&f, each[i]), words, sizeof(*words));
        CHECK_EQ(words[0], f.region.words[each[i]]);
        CHECK_EQ(words[0] & NPRDMA_PAGE_BITS, 0);
    }
    edu_release(f.edu);
}

int main(int argc, char **argv)
{
    static const kmod_case_t cases[] = {
        {"attach",      test_attach},
        {"reads",       test_reads},
        {"writes",      test_writes},
        {"states",      test_states},
        {"late_import", test_late_import},
        {"two_imports", test_two_imports},
        {"traced",      test_traced},
        {"capability",  test_capability},
        {"destroyed",   test_destroyed},
        {"killed",      test_killed},
        {"unbound",     test_unbound},
        {"busy",        test_unbound_busy},
        {"unload",      test_unload},
        {NULL,          NULL}
    };
    static const kmod_case_t read_only[] = {
        {"read_only", test_read_only},
        {NULL,        NULL}
    };
    static const kmod_case_t large[] = {
        {"large", test_large},
        {NULL,    NULL}
    };
    static const kmod_case_t refused[] = {
        {"refused", test_refused},
        {NULL,      NULL}
    };

    if (getenv("EDU_REFUSED") != NULL) {
        return kmod_main(refused, argc, argv);
    }
    if ((argc == 2) && !strcmp(argv[1], read_only[0].name)) {
        return kmod_main(read_only, argc, argv);
    }
    if ((argc == 2) && !strcmp(argv[1], large[0].name)) {
        return kmod_main(large, argc, argv);
    }
    return kmod_main(cases, argc, argv);
}
