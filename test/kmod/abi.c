/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * The interface: every call, and every documented error that can be caused
 * without a device.
 */

#include "kmod_test.h"

#include <nprdma_page_state.h>

#include <fcntl.h>
#include <glob.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#define NUM_PAGES 64
#define PARAMETER "/sys/module/nprdma/parameters/"

/* A 32-bit build of this file checks the same sizes */
_Static_assert(sizeof(struct nprdma_ioc_query) == 328, "");
_Static_assert(sizeof(struct nprdma_ioc_attach_device) == 392, "");
_Static_assert(sizeof(struct nprdma_ioc_region_create) == 56, "");
_Static_assert(sizeof(struct nprdma_ioc_region_destroy) == 16, "");
_Static_assert(sizeof(struct nprdma_ioc_export) == 16, "");
_Static_assert(sizeof(struct nprdma_ioc_register) == 32, "");
_Static_assert(sizeof(struct nprdma_ioc_unregister) == 24, "");
_Static_assert(sizeof(struct nprdma_ioc_populate) == 56, "");
_Static_assert(sizeof(struct nprdma_ioc_invalidate) == 40, "");
_Static_assert(sizeof(struct nprdma_ioc_stats) == 96, "");
_Static_assert(sizeof(struct nprdma_ioc_states_info) == 64, "");
_Static_assert(sizeof(struct nprdma_states_header) == 72, "");


typedef union any_arg {
    struct {
        uint32_t size;
        uint32_t flags;
    } head;
    struct nprdma_ioc_query          query;
    struct nprdma_ioc_attach_device  attach_device;
    struct nprdma_ioc_region_create  region_create;
    struct nprdma_ioc_region_destroy region_destroy;
    struct nprdma_ioc_export         export_region;
    struct nprdma_ioc_register       reg;
    struct nprdma_ioc_unregister     unreg;
    struct nprdma_ioc_populate       populate;
    struct nprdma_ioc_invalidate     invalidate;
    struct nprdma_ioc_stats          stats;
    struct nprdma_ioc_states_info    states_info;
    uint8_t                          bytes[8192];
} any_arg_t;

typedef struct call_type {
    unsigned long nr;
    uint32_t      size;
    uint32_t      flags; /* defined flags */
    int           error; /* of a call with all fields zero except the size */
} call_type_t;

static const call_type_t call_types[] = {
    {NPRDMA_IOC_QUERY, sizeof(struct nprdma_ioc_query), 0, 0},
    {NPRDMA_IOC_ATTACH_DEVICE, sizeof(struct nprdma_ioc_attach_device),
     NPRDMA_IOC_ATTACH_CHECK_ONLY, EINVAL},
    {NPRDMA_IOC_REGION_CREATE, sizeof(struct nprdma_ioc_region_create), 0,
     EINVAL},
    {NPRDMA_IOC_REGION_DESTROY, sizeof(struct nprdma_ioc_region_destroy), 0,
     ENOENT},
    {NPRDMA_IOC_EXPORT, sizeof(struct nprdma_ioc_export), 0, ENOENT},
    {NPRDMA_IOC_REGISTER, sizeof(struct nprdma_ioc_register), 0, ENOENT},
    {NPRDMA_IOC_UNREGISTER, sizeof(struct nprdma_ioc_unregister),
     NPRDMA_IOC_UNREGISTER_REVOKE, ENOENT},
    {NPRDMA_IOC_POPULATE, sizeof(struct nprdma_ioc_populate),
     NPRDMA_IOC_POPULATE_WRITE | NPRDMA_IOC_POPULATE_RESIDENT |
     NPRDMA_IOC_POPULATE_UNLESS_REVOKED, ENOENT},
    {NPRDMA_IOC_INVALIDATE, sizeof(struct nprdma_ioc_invalidate),
     NPRDMA_IOC_INVALIDATE_TOUCH, EINVAL},
    {NPRDMA_IOC_STATS, sizeof(struct nprdma_ioc_stats), 0, 0}
};

#define NUM_CALLS (sizeof(call_types) / sizeof(call_types[0]))


/* One call with an argument that is zero except for head */
static int call_zero(int fd, const call_type_t *type, uint32_t size,
                     uint32_t flags)
{
    any_arg_t arg = {.head = {.size = size, .flags = flags}};

    return kmod_call(fd, type->nr, &arg);
}

/* Size of the first version of an argument */
static uint32_t first_size(const call_type_t *type)
{
    return (type->nr == NPRDMA_IOC_ATTACH_DEVICE) ? 328 : type->size;
}

static void sizes_and_flags(void)
{
    int ctx = kmod_open();
    const call_type_t *type;
    any_arg_t arg;
    uint32_t flag, first;

    for (type = call_types; type < call_types + NUM_CALLS; ++type) {
        CHECK_EQ(call_zero(ctx, type, type->size, 0), type->error);
        CHECK_EQ(call_zero(ctx, type, 0, 0), EINVAL);
        first = first_size(type);
        CHECK_EQ(call_zero(ctx, type, first - 1, 0), EINVAL);
        /* An older caller */
        CHECK_EQ(call_zero(ctx, type, first, 0), type->error);
        /* A newer caller: fields that it does not use are zero */
        CHECK_EQ(call_zero(ctx, type, type->size + 8, 0), type->error);
        CHECK_EQ(call_zero(ctx, type, PAGE, 0), type->error);
        CHECK_EQ(call_zero(ctx, type, PAGE + 1, 0), E2BIG);
        CHECK_EQ(call_zero(ctx, type, UINT32_MAX, 0), E2BIG);

        memset(&arg, 0, sizeof(arg));
        arg.head.size         = type->size + 8;
        arg.bytes[type->size] = 1;
        CHECK_CALL(ctx, type->nr, &arg, E2BIG);

        for (flag = 1; flag != 0; flag <<= 1) {
            CHECK_EQ(call_zero(ctx, type, type->size, flag),
                     (flag & type->flags) ? type->error : EINVAL);
        }
    }
}

static void pointers(void)
{
    uint8_t *memory = kmod_map(2 * PAGE);
    int ctx         = kmod_open();
    const call_type_t *type;
    uint8_t *arg;

    munmap(memory + PAGE, PAGE);
    for (type = call_types; type < call_types + NUM_CALLS; ++type) {
        CHECK_CALL(ctx, type->nr, NULL, EFAULT);
        CHECK_CALL(ctx, type->nr, (void*)-4096l, EFAULT);
        /* The structure ends beyond its mapping */
        arg = memory + PAGE - type->size + 4;
        memset(memory, 0, PAGE);
        memcpy(arg, &type->size, sizeof(type->size));
        CHECK_CALL(ctx, type->nr, arg, EFAULT);
    }

    CHECK_CALL(ctx, _IO(NPRDMA_IOC_TYPE, NUM_CALLS), memory, ENOTTY);
    CHECK_CALL(ctx, _IO(NPRDMA_IOC_TYPE, 255), memory, ENOTTY);
    CHECK_CALL(ctx, _IO(NPRDMA_IOC_TYPE + 1, 0), memory, ENOTTY);
    CHECK_CALL(ctx, _IOR(NPRDMA_IOC_TYPE, 0, int), memory, ENOTTY);
    CHECK_CALL(ctx, NPRDMA_IOC_STATES_INFO, memory, ENOTTY);
}

/* If the result cannot be written to the caller, the call has no effect */
static void results_that_cannot_be_returned(void)
{
    uint8_t *memory = kmod_map(NUM_PAGES * PAGE);
    int ctx         = kmod_open();
    struct nprdma_ioc_region_create *create;
    struct nprdma_ioc_populate *populate;
    struct nprdma_ioc_register *reg;
    struct nprdma_ioc_stats stats;
    kmod_region_t region;
    int fds;

    kmod_region_create(&region, ctx, memory, NUM_PAGES * PAGE);
    create          = mmap(NULL, PAGE, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    create->size    = sizeof(*create);
    create->address = (uintptr_t)memory;
    create->length  = PAGE;
    CHECK(mprotect(create, PAGE, PROT_READ) == 0, "%m");
    fds = kmod_count_fds();
    CHECK_CALL(ctx, NPRDMA_IOC_REGION_CREATE, create, EFAULT);
    CHECK_EQ(kmod_count_fds(), fds);

    reg = (void*)create;
    CHECK(mprotect(create, PAGE, PROT_READ | PROT_WRITE) == 0, "%m");
    memset(create, 0, sizeof(*create));
    reg->size    = sizeof(*reg);
    reg->region  = region.id;
    reg->address = (uintptr_t)memory;
    reg->length  = PAGE;
    CHECK(mprotect(create, PAGE, PROT_READ) == 0, "%m");
    CHECK_CALL(ctx, NPRDMA_IOC_REGISTER, reg, EFAULT);

    kmod_stats(ctx, 0, &stats);
    CHECK_EQ(stats.regions, 1);
    CHECK_EQ(stats.registrations, 1);

    /* Calls that return no descriptor or id do take effect */
    populate = (void*)create;
    CHECK(mprotect(create, PAGE, PROT_READ | PROT_WRITE) == 0, "%m");
    memset(create, 0, sizeof(*create));
    populate->size    = sizeof(*populate);
    populate->region  = region.id;
    populate->address = (uintptr_t)memory;
    populate->length  = PAGE;
    CHECK(mprotect(create, PAGE, PROT_READ) == 0, "%m");
    CHECK_CALL(ctx, NPRDMA_IOC_POPULATE, populate, EFAULT);
    CHECK_EQ(kmod_count(&region, 0, 1, NPRDMA_PAGE_R), 1);
}

static void query(void)
{
    struct nprdma_ioc_query query = {.size = sizeof(query)};
    struct nprdma_ioc_query other = {.size = sizeof(other)};
    int ctx                       = kmod_open();
    int second                    = kmod_open();

    CHECK_CALL(ctx, NPRDMA_IOC_QUERY, &query, 0);
    CHECK_EQ(query.abi, NPRDMA_ABI_VERSION);
    CHECK_EQ(query.max_region_bytes,
             kmod_read_number(PARAMETER "max_region_bytes", ""));
    CHECK_EQ(query.max_user_bytes,
             kmod_read_number(PARAMETER "max_user_bytes", ""));
    CHECK_EQ(query.max_user_regions,
             kmod_read_number(PARAMETER "max_user_regions", ""));
    CHECK_EQ(query.user_regions, 0);
    /* why[] is set if and only if devices are not supported */
    CHECK_EQ(query.why[0] == '\0',
             !!(query.features & NPRDMA_IOC_FEATURE_DEVICES));
    printf("devices: %s\n", query.why[0] ? query.why : "supported");

    CHECK_CALL(second, NPRDMA_IOC_QUERY, &other, 0);
    CHECK(query.signature != other.signature);

    query.reserved = 1;
    CHECK_CALL(ctx, NPRDMA_IOC_QUERY, &query, EINVAL);
}

static void attach_device(void)
{
    struct nprdma_ioc_attach_device attach = {.size = sizeof(attach)};
    int ctx                                = kmod_open();
    union {
        struct nprdma_ioc_attach_device arg;
        uint8_t                         bytes[512];
    } old;
    glob_t paths;
    size_t i;

    memset(attach.name, 'x', sizeof(attach.name));
    CHECK_CALL(ctx, NPRDMA_IOC_ATTACH_DEVICE, &attach, EINVAL);
    strcpy(attach.name, "0000:1f:1f.7");
    CHECK_CALL(ctx, NPRDMA_IOC_ATTACH_DEVICE, &attach, ENODEV);
    CHECK(attach.why[0] != '\0');
    CHECK_EQ(attach.device, 0);
    attach.reserved[3] = 1;
    CHECK_CALL(ctx, NPRDMA_IOC_ATTACH_DEVICE, &attach, EINVAL);
    attach.reserved[3] = 0;

    /* A caller of the first version: nothing behind its structure is written */
    memset(&old, 0xaa, sizeof(old));
    memset(&old, 0, 328);
    old.arg.size = 328;
    strcpy(old.arg.name, attach.name);
    CHECK_CALL(ctx, NPRDMA_IOC_ATTACH_DEVICE, &old, ENODEV);
    CHECK(old.arg.why[0] != '\0');
    CHECK_EQ(old.bytes[328], 0xaa);

    strcpy(attach.name, "no such device");
    CHECK_CALL(ctx, NPRDMA_IOC_ATTACH_DEVICE, &attach, ENODEV);
    /* The host bridge has no driver, and the guest's devices have no IOMMU */
    strcpy(attach.name, "0000:00:00.0");
    CHECK_CALL(ctx, NPRDMA_IOC_ATTACH_DEVICE, &attach, ENODEV);
    CHECK_EQ(glob("/sys/bus/pci/drivers/virtio-pci/0000:*", 0, NULL, &paths),
             0);
    for (i = 0; i < paths.gl_pathc; ++i) {
        strcpy(attach.name, strrchr(paths.gl_pathv[i], '/') + 1);
        attach.why[0] = '\0';
        CHECK_CALL(ctx, NPRDMA_IOC_ATTACH_DEVICE, &attach, EOPNOTSUPP);
        CHECK(attach.why[0] != '\0');
        printf("%s: %s\n", attach.name, attach.why);
    }
    globfree(&paths);
}

static int create_region(int ctx, uint64_t address, uint64_t length)
{
    struct nprdma_ioc_region_create create = {
        .size = sizeof(create), .address = address, .length = length
    };
    int ret = kmod_call(ctx, NPRDMA_IOC_REGION_CREATE, &create);

    if (ret == 0) {
        close(create.states_fd);
    }
    return ret;
}

static void region_create(void)
{
    uint64_t top = 1ull << 56; /* with page tables of 5 levels */
    int ctx      = kmod_open();
    struct rlimit limit;

    CHECK_EQ(create_region(ctx, 1 << 20, 0), EINVAL);
    CHECK_EQ(create_region(ctx, (1 << 20) + 1, PAGE), EINVAL);
    CHECK_EQ(create_region(ctx, 1 << 20, PAGE + 1), EINVAL);
    CHECK_EQ(create_region(ctx, -PAGE, 2 * PAGE), EINVAL);
    CHECK_EQ(create_region(ctx, -PAGE, PAGE), EINVAL);
    CHECK_EQ(create_region(ctx, PAGE, -2 * PAGE), EINVAL);
    CHECK_EQ(create_region(ctx, top, PAGE), EINVAL);
    CHECK_EQ(create_region(ctx, top - PAGE, PAGE), EINVAL);
    CHECK_EQ(create_region(ctx, 1ull << 46, PAGE), 0);
    CHECK_EQ(create_region(ctx, 0, PAGE), 0);
    CHECK_EQ(create_region(ctx, 0, (2ull << 40)), EFBIG);
    CHECK_EQ(create_region(ctx, 0, (1ull << 40)), ENOSPC);

    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    limit.rlim_cur = kmod_count_fds();
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    CHECK_EQ(create_region(ctx, 1 << 20, PAGE), EMFILE);
}

/* The bound counts the regions of all contexts of the address space */
static void region_overlap(void)
{
    const uint64_t base = 1ull << 30, page = base + PAGE;
    int ctx = kmod_open(), other = kmod_open();
    unsigned i;
    pid_t pid;

    /* Stairs: many regions, but no page has more than two */
    for (i = 0; i < 4 * NPRDMA_MAX_OVERLAP; ++i) {
        CHECK_EQ(create_region(ctx, base + 2 * i * PAGE, 3 * PAGE), 0);
    }

    for (i = 1; i < NPRDMA_MAX_OVERLAP; ++i) {
        CHECK_EQ(create_region((i % 2) ? ctx : other, page, PAGE), 0);
    }
    CHECK_EQ(create_region(ctx, page, PAGE), EDQUOT);
    CHECK_EQ(create_region(other, page, PAGE), EDQUOT);
    CHECK_EQ(create_region(other, base, 2 * PAGE), EDQUOT);
    CHECK_EQ(create_region(other, 0, 2 * base), EDQUOT);

    /* Not so beside it */
    CHECK_EQ(create_region(ctx, 0, page), 0);
    CHECK_EQ(create_region(ctx, page + PAGE, base), 0);

    /* A child has an address space of its own */
    pid = fork();
    if (pid == 0) {
        CHECK_EQ(create_region(kmod_open(), page, PAGE), 0);
        _exit(0);
    }
    CHECK_EQ(kmod_wait(pid), 0);

    /* Regions that have ended do not count */
    close(other);
    CHECK_EQ(create_region(ctx, page, PAGE), 0);
}

static void region_destroy(void)
{
    struct nprdma_ioc_region_destroy destroy = {.size = sizeof(destroy)};
    uint8_t *memory                          = kmod_map(NUM_PAGES * PAGE);
    int ctx                                  = kmod_open();
    kmod_region_t region, other;

    kmod_region_create(&region, ctx, memory, NUM_PAGES * PAGE);
    kmod_region_create(&other, ctx, memory, NUM_PAGES * PAGE);
    CHECK(region.id != other.id);
    CHECK(region.header->id != other.header->id);
    kmod_populate_all(&region, 0, NUM_PAGES, 0);
    kmod_populate_all(&other, 0, NUM_PAGES, NPRDMA_IOC_POPULATE_WRITE);

    destroy.region   = region.id;
    destroy.reserved = 1;
    CHECK_CALL(ctx, NPRDMA_IOC_REGION_DESTROY, &destroy, EINVAL);
    destroy.reserved = 0;
    CHECK_CALL(ctx, NPRDMA_IOC_REGION_DESTROY, &destroy, 0);
    CHECK_CALL(ctx, NPRDMA_IOC_REGION_DESTROY, &destroy, ENOENT);
    CHECK_EQ(region.header->dead, 1);
    CHECK_EQ(kmod_count(&region, 0, NUM_PAGES, 0), NUM_PAGES);
    CHECK_EQ(region.words[0], 2 * NPRDMA_PAGE_COUNT);
    CHECK_EQ(kmod_populate(&region, 0, 1, 0, NULL), ENOENT);

    CHECK_EQ(other.header->dead, 0);
    CHECK_EQ(kmod_count(&other, 0, NUM_PAGES, NPRDMA_PAGE_BITS), NUM_PAGES);
    /* Closing destroys the region */
    close(ctx);
    CHECK_EQ(other.header->dead, 1);
    CHECK_EQ(kmod_count(&other, 0, NUM_PAGES, 0), NUM_PAGES);
}

static void export_region(void)
{
    struct nprdma_ioc_export export = {.size = sizeof(export)};
    struct nprdma_ioc_query query   = {.size = sizeof(query)};
    int ctx                         = kmod_open();
    kmod_region_t region;
    off_t size;

    kmod_region_create(&region, ctx, kmod_map(NUM_PAGES * PAGE),
                       NUM_PAGES * PAGE);
    CHECK_CALL(ctx, NPRDMA_IOC_QUERY, &query, 0);
    export.region = region.id;
    if (!(query.features & NPRDMA_IOC_FEATURE_DEVICES)) {
        CHECK_CALL(ctx, NPRDMA_IOC_EXPORT, &export, EOPNOTSUPP);
        return;
    }

    CHECK_CALL(ctx, NPRDMA_IOC_EXPORT, &export, 0);
    CHECK_EQ(fcntl(export.fd, F_GETFD), FD_CLOEXEC);
    size = lseek(export.fd, 0, SEEK_END);
    CHECK_EQ(size, (2 * NUM_PAGES + 1) * PAGE);
    CHECK(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, export.fd, 0) == MAP_FAILED);
    /* The dma-buf keeps the region's memory after its end */
    kmod_region_destroy(&region);
    CHECK_CALL(ctx, NPRDMA_IOC_EXPORT, &export, ENOENT);
    close(export.fd);
}

static int do_register(kmod_region_t *region, size_t offset, size_t length,
                       uint32_t *id)
{
    struct nprdma_ioc_register reg = {
        .size    = sizeof(reg),
        .region  = region->id,
        .address = (uintptr_t)region->memory + offset,
        .length  = length
    };
    int ret = kmod_call(region->ctx, NPRDMA_IOC_REGISTER, &reg);

    *id = reg.registration;
    return ret;
}

static int do_unregister(kmod_region_t *region, uint32_t id, uint32_t flags,
                         uint64_t *revoked)
{
    struct nprdma_ioc_unregister unreg = {
        .size         = sizeof(unreg),
        .flags        = flags,
        .region       = region->id,
        .registration = id
    };
    int ret = kmod_call(region->ctx, NPRDMA_IOC_UNREGISTER, &unreg);

    *revoked = unreg.revoked;
    return ret;
}

/* Only registered pages are populated; registrations are ranges of bytes */
static void registrations(void)
{
    int ctx = kmod_open();
    struct nprdma_ioc_populate populate;
    kmod_region_t region;
    struct nprdma_ioc_register reg = {.size = sizeof(reg), .registration = 1};
    uint32_t first, second, id;
    uint64_t revoked;

    kmod_region_create(&region, ctx, kmod_map(NUM_PAGES * PAGE),
                       NUM_PAGES * PAGE);
    CHECK_EQ(do_unregister(&region, region.registration, 0, &revoked), 0);
    CHECK_EQ(do_unregister(&region, region.registration, 0, &revoked), ENOENT);
    CHECK_EQ(kmod_populate(&region, 0, 1, 0, &populate), EACCES);
    CHECK_EQ(populate.done, (uintptr_t)region.memory);

    reg.region  = region.id;
    reg.address = (uintptr_t)region.memory;
    reg.length  = PAGE;
    CHECK_CALL(ctx, NPRDMA_IOC_REGISTER, &reg, EINVAL);
    CHECK_EQ(do_register(&region, 0, 0, &id), EINVAL);
    CHECK_EQ(do_register(&region, -1, 1, &id), ERANGE);
    CHECK_EQ(do_register(&region, 0, NUM_PAGES * PAGE + 1, &id), ERANGE);
    CHECK_EQ(do_register(&region, NUM_PAGES * PAGE, 1, &id), ERANGE);
    CHECK_EQ(do_register(&region, 0, -1, &id), ERANGE);

    /* Pages 4 to 8, and 8 to 11 */
    CHECK_EQ(do_register(&region, 5 * PAGE - 1, 3 * PAGE + 2, &first), 0);
    CHECK_EQ(do_register(&region, 8 * PAGE, 4 * PAGE, &second), 0);
    CHECK(first != second);
    CHECK_EQ(kmod_populate(&region, 4, 60, 0, &populate), EACCES);
    CHECK_EQ(populate.done, (uintptr_t)region.memory + 12 * PAGE);
    CHECK_EQ(populate.populated, 8);
    CHECK_EQ(kmod_populate(&region, 3, 4, 0, &populate), EACCES);
    CHECK_EQ(populate.done, (uintptr_t)region.memory + 3 * PAGE);

    CHECK_EQ(do_unregister(&region, first, NPRDMA_IOC_UNREGISTER_REVOKE,
                           &revoked), 0);
    CHECK_EQ(revoked, 4);
    CHECK_EQ(kmod_count(&region, 4, 4, 0), 4);
    CHECK_EQ(kmod_count(&region, 8, 4, NPRDMA_PAGE_R), 4);
    CHECK_EQ(kmod_populate(&region, 7, 1, 0, NULL), EACCES);
    CHECK_EQ(kmod_populate(&region, 8, 1, 0, NULL), 0);

    /* Without revocation pages stay valid, but no page can be populated */
    CHECK_EQ(do_unregister(&region, second, 0, &revoked), 0);
    CHECK_EQ(revoked, 0);
    CHECK_EQ(kmod_count(&region, 8, 4, NPRDMA_PAGE_R), 4);
    CHECK_EQ(kmod_populate(&region, 8, 1, NPRDMA_IOC_POPULATE_WRITE, NULL),
             EACCES);
}

/*
 * One registration of all pages, and very many of one page each, which the call
 * skips. The call works in parts, which are counted. Notifiers of the kernel
 * can run only between two parts.
 */
static void many_registrations(void)
{
    const size_t count = 3000;
    int ctx            = kmod_open();
    uint32_t parts;
    kmod_region_t region;
    uint64_t revoked;
    uint32_t id;
    size_t i;

    kmod_region_create(&region, ctx, kmod_map(count * PAGE), count * PAGE);
    for (i = 0; i < count - 1; ++i) {
        if (i != count / 2) {
            CHECK_EQ(do_register(&region, i * PAGE, 1, &id), 0);
        }
    }
    kmod_populate_all(&region, 0, count, 0);
    parts = region.header->revocations;
    CHECK_EQ(do_unregister(&region, region.registration,
                           NPRDMA_IOC_UNREGISTER_REVOKE, &revoked), 0);
    CHECK_EQ(revoked, 2);
    parts = region.header->revocations - parts;
    CHECK(parts >= count / 300, "%u", parts);
    CHECK_EQ(kmod_count(&region, count / 2, 1, 0), 1);
    CHECK_EQ(kmod_count(&region, count - 1, 1, 0), 1);
    CHECK_EQ(kmod_count(&region, 0, count, NPRDMA_PAGE_R), count - 2);
}

static void populate(void)
{
    int ctx  = kmod_open();
    int zero = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    struct nprdma_ioc_populate arg;
    kmod_region_t region;
    uint8_t *memory;

    memory = kmod_map(NUM_PAGES * PAGE);
    kmod_region_create(&region, ctx, memory, NUM_PAGES * PAGE);
    CHECK_EQ(kmod_populate(&region, 0, 0, 0, NULL), EINVAL);
    CHECK_EQ(kmod_populate(&region, NUM_PAGES, 1, 0, NULL), ERANGE);
    CHECK_EQ(kmod_populate(&region, 0, NUM_PAGES + 1, 0, NULL), ERANGE);
    CHECK_EQ(kmod_populate(&region, -1, 1, 0, NULL), ERANGE);

    /* A hole, no access, no write access, and a file's pages */
    munmap(memory + 9 * PAGE, PAGE);
    mprotect(memory + 19 * PAGE, PAGE, PROT_NONE);
    mprotect(memory + 29 * PAGE, PAGE, PROT_READ);
    CHECK(mmap(memory + 39 * PAGE, PAGE, PROT_READ, MAP_SHARED | MAP_FIXED,
               zero, 0) != MAP_FAILED, "%m");
    CHECK(mmap(memory + 49 * PAGE, PAGE, PROT_READ | PROT_WRITE,
               MAP_PRIVATE | MAP_FIXED, zero, 0) != MAP_FAILED, "%m");

    CHECK_EQ(kmod_populate(&region, 0, 64, 0, &arg), EFAULT);
    CHECK_EQ(arg.done, (uintptr_t)memory + 9 * PAGE);
    CHECK_EQ(arg.populated, 9);
    CHECK_EQ(kmod_count(&region, 0, 64, NPRDMA_PAGE_R), 9);
    CHECK_EQ(kmod_populate(&region, 10, 20, 0, &arg), EFAULT);
    CHECK_EQ(arg.done, (uintptr_t)memory + 19 * PAGE);
    CHECK_EQ(kmod_populate(&region, 20, 20, NPRDMA_IOC_POPULATE_WRITE, &arg),
             EFAULT);
    CHECK_EQ(arg.done, (uintptr_t)memory + 29 * PAGE);
    CHECK_EQ(kmod_populate(&region, 20, 20, 0, &arg), EOPNOTSUPP);
    CHECK_EQ(arg.done, (uintptr_t)memory + 39 * PAGE);
    CHECK_EQ(kmod_count(&region, 29, 1, NPRDMA_PAGE_R), 1);
    CHECK_EQ(kmod_populate(&region, 39, 1, 0, NULL), EOPNOTSUPP);
    CHECK_EQ(kmod_populate(&region, 39, 1, NPRDMA_IOC_POPULATE_WRITE, NULL),
             EFAULT);

    /* A private mapping of a file: only copied pages */
    CHECK_EQ(kmod_populate(&region, 40, 10, 0, &arg), EOPNOTSUPP);
    CHECK_EQ(arg.done, (uintptr_t)memory + 49 * PAGE);
    CHECK_EQ(kmod_populate(&region, 49, 1, NPRDMA_IOC_POPULATE_WRITE, NULL), 0);
    CHECK_EQ(kmod_count(&region, 49, 1, NPRDMA_PAGE_BITS), 1);
    CHECK_EQ(kmod_populate(&region, 10, 1, 0, &arg), 0);
    CHECK_EQ(arg.populated, 0);
    CHECK_EQ(kmod_populate(&region, 0, 64, NPRDMA_IOC_POPULATE_RESIDENT, &arg),
             0);
    CHECK_EQ(arg.done, (uintptr_t)memory + 64 * PAGE);
}

/* Populates resident pages only; with WRITE, only those that would not fault */
static void populate_resident(void)
{
    const unsigned write = NPRDMA_IOC_POPULATE_WRITE;
    const unsigned here  = NPRDMA_IOC_POPULATE_RESIDENT;
    int ctx              = kmod_open();
    struct nprdma_ioc_populate arg;
    unsigned char resident[NUM_PAGES];
    kmod_region_t region;
    size_t i, count = 0;

    kmod_region_create(&region, ctx, kmod_map(NUM_PAGES * PAGE),
                       NUM_PAGES * PAGE);
    CHECK_EQ(kmod_populate(&region, 0, NUM_PAGES, here | write, &arg), 0);
    CHECK_EQ(arg.populated, 0);
    for (i = 0; i < 8; ++i) {
        region.memory[i * PAGE] = 1;
    }
    /* Zero pages are not valid for writing */
    for (; i < 16; ++i) {
        CHECK_EQ(*(volatile uint8_t*)(region.memory + i * PAGE), 0);
    }

    CHECK_EQ(kmod_populate(&region, 0, NUM_PAGES, here | write, &arg), 0);
    CHECK_EQ(arg.populated, 8);
    CHECK_EQ(kmod_count(&region, 0, 8, NPRDMA_PAGE_BITS), 8);
    CHECK_EQ(kmod_populate(&region, 0, NUM_PAGES, here, &arg), 0);
    CHECK_EQ(arg.populated, 8);
    CHECK_EQ(kmod_count(&region, 8, 8, NPRDMA_PAGE_R), 8);
    CHECK_EQ(kmod_count(&region, 16, NUM_PAGES - 16, 0), NUM_PAGES - 16);

    CHECK(mincore(region.memory, region.length, resident) == 0, "%m");
    for (i = 0; i < NUM_PAGES; ++i) {
        count += resident[i] & 1;
    }
    CHECK_EQ(count, 16);
}

static void invalidate(void)
{
    struct nprdma_ioc_invalidate arg = {.size = sizeof(arg)};
    int ctx                          = kmod_open();
    struct nprdma_ioc_stats stats;
    kmod_region_t region;
    uint32_t word;

    kmod_region_create(&region, ctx, kmod_map(NUM_PAGES * PAGE),
                       NUM_PAGES * PAGE);
    kmod_populate_all(&region, 0, 16, NPRDMA_IOC_POPULATE_WRITE);
    arg.region  = region.id;
    arg.address = (uintptr_t)region.memory;
    CHECK_CALL(ctx, NPRDMA_IOC_INVALIDATE, &arg, EINVAL);
    arg.bits = NPRDMA_PAGE_W;
    CHECK_CALL(ctx, NPRDMA_IOC_INVALIDATE, &arg, EINVAL);
    arg.length = 8 * PAGE;
    arg.bits   = NPRDMA_PAGE_COUNT;
    CHECK_CALL(ctx, NPRDMA_IOC_INVALIDATE, &arg, EINVAL);
    arg.bits   = NPRDMA_PAGE_W;
    arg.length = (NUM_PAGES + 1) * PAGE;
    CHECK_CALL(ctx, NPRDMA_IOC_INVALIDATE, &arg, ERANGE);
    arg.region = region.id + 1;
    CHECK_CALL(ctx, NPRDMA_IOC_INVALIDATE, &arg, ENOENT);
    arg.region = region.id;

    arg.length = 8 * PAGE;
    CHECK_CALL(ctx, NPRDMA_IOC_INVALIDATE, &arg, 0);
    CHECK_EQ(arg.invalidated, 8);
    CHECK_EQ(kmod_count(&region, 0, 8, NPRDMA_PAGE_R), 8);
    CHECK_EQ(kmod_count(&region, 8, 8, NPRDMA_PAGE_BITS), 8);
    CHECK_CALL(ctx, NPRDMA_IOC_INVALIDATE, &arg, 0);
    CHECK_EQ(arg.invalidated, 0);

    /* Taking R takes W as well; with TOUCH, the counts of absent pages change,
     * too */
    word        = region.words[20];
    arg.bits    = NPRDMA_PAGE_R;
    arg.length  = region.length;
    arg.flags   = NPRDMA_IOC_INVALIDATE_TOUCH;
    CHECK_CALL(ctx, NPRDMA_IOC_INVALIDATE, &arg, 0);
    CHECK_EQ(arg.invalidated, 16);
    CHECK_EQ(kmod_count(&region, 0, NUM_PAGES, 0), NUM_PAGES);
    CHECK_EQ(region.words[20], word + NPRDMA_PAGE_COUNT);
    arg.flags = 0;
    CHECK_CALL(ctx, NPRDMA_IOC_INVALIDATE, &arg, 0);
    CHECK_EQ(region.words[20], word + NPRDMA_PAGE_COUNT);

    kmod_stats(ctx, region.id, &stats);
    CHECK_EQ(stats.revoked, 24);
    CHECK_EQ(stats.present, 0);
    CHECK_EQ(stats.populated, 16);
}

/* POPULATE_UNLESS_REVOKED fails until the caller has seen the revocation */
static void unless_revoked(void)
{
    int ctx = kmod_open();
    struct nprdma_ioc_populate populate = {.size = sizeof(populate)};
    struct nprdma_ioc_invalidate arg    = {.size = sizeof(arg)};
    kmod_region_t region;

    kmod_region_create(&region, ctx, kmod_map(PAGE), PAGE);
    populate.flags       = NPRDMA_IOC_POPULATE_UNLESS_REVOKED;
    populate.region      = region.id;
    populate.address     = (uintptr_t)region.memory;
    populate.length      = PAGE;
    populate.revocations = region.header->revocations;
    arg.region           = region.id;
    arg.bits             = NPRDMA_PAGE_R;
    arg.address          = populate.address;
    arg.length           = PAGE;
    CHECK_CALL(ctx, NPRDMA_IOC_POPULATE, &populate, 0);
    CHECK_CALL(ctx, NPRDMA_IOC_INVALIDATE, &arg, 0);
    CHECK_EQ(region.header->revocations, populate.revocations + 1);
    CHECK_CALL(ctx, NPRDMA_IOC_POPULATE, &populate, ESTALE);
    CHECK_EQ(kmod_count(&region, 0, 1, 0), 1);
    populate.revocations = region.header->revocations;
    CHECK_CALL(ctx, NPRDMA_IOC_POPULATE, &populate, 0);
    populate.flags = 0;
    CHECK_CALL(ctx, NPRDMA_IOC_POPULATE, &populate, EINVAL);
}

/* Pages that are revoked repeatedly do not delay other pages */
static void revoked_elsewhere(void)
{
    const size_t count = 1024;
    int ctx            = kmod_open();
    struct nprdma_ioc_populate populate = {.size = sizeof(populate)};
    struct nprdma_ioc_invalidate arg    = {.size = sizeof(arg)};
    kmod_region_t region;
    int i;

    kmod_region_create(&region, ctx, kmod_map(count * PAGE), count * PAGE);
    populate.flags       = NPRDMA_IOC_POPULATE_UNLESS_REVOKED;
    populate.region      = region.id;
    populate.address     = (uintptr_t)region.memory;
    populate.length      = count * PAGE;
    populate.revocations = region.header->revocations;
    arg.region           = region.id;
    arg.flags            = NPRDMA_IOC_INVALIDATE_TOUCH;
    arg.bits             = NPRDMA_PAGE_R;
    arg.address          = populate.address + 600 * PAGE;
    arg.length           = 41 * PAGE; /* In two batches: 576 to 703 */
    for (i = 0; i < 1000; ++i) {
        CHECK_CALL(ctx, NPRDMA_IOC_INVALIDATE, &arg, 0);
    }

    CHECK_CALL(ctx, NPRDMA_IOC_POPULATE, &populate, ESTALE);
    CHECK_EQ(populate.done, populate.address + 576 * PAGE);
    CHECK_EQ(populate.populated, 576);
    populate.address += 704 * PAGE;
    populate.length   = (count - 704) * PAGE;
    CHECK_CALL(ctx, NPRDMA_IOC_POPULATE, &populate, 0);
    CHECK_EQ(kmod_count(&region, 576, 128, 0), 128);
    populate.address = (uintptr_t)region.memory + 640 * PAGE;
    populate.length  = 64 * PAGE;
    CHECK_CALL(ctx, NPRDMA_IOC_POPULATE, &populate, ESTALE);
    CHECK_EQ(populate.done, populate.address);
    populate.revocations = region.header->revocations;
    CHECK_CALL(ctx, NPRDMA_IOC_POPULATE, &populate, 0);
    CHECK_EQ(populate.populated, 64);
}

/* Every change is counted, and nothing else is */
static void words(void)
{
    int ctx = kmod_open();
    struct nprdma_ioc_invalidate arg = {.size = sizeof(arg)};
    kmod_region_t region;
    uint32_t word;

    kmod_region_create(&region, ctx, kmod_map(PAGE), PAGE);
    arg.region  = region.id;
    arg.bits    = NPRDMA_PAGE_W;
    arg.address = (uintptr_t)region.memory;
    arg.length  = PAGE;
    for (word = 0; word < 5 * 4 * NPRDMA_PAGE_COUNT;
         word += 4 * NPRDMA_PAGE_COUNT) {
        CHECK_EQ(region.words[0], word);
        region.memory[0] = 1;
        CHECK_EQ(region.words[0], word);
        kmod_populate_all(&region, 0, 1, 0);
        CHECK_EQ(region.words[0],
                 (word + NPRDMA_PAGE_COUNT) | NPRDMA_PAGE_R);
        kmod_populate_all(&region, 0, 1, 0);
        CHECK_EQ(region.words[0],
                 (word + NPRDMA_PAGE_COUNT) | NPRDMA_PAGE_R);
        kmod_populate_all(&region, 0, 1, NPRDMA_IOC_POPULATE_WRITE);
        CHECK_EQ(region.words[0],
                 (word + 2 * NPRDMA_PAGE_COUNT) | NPRDMA_PAGE_BITS);
        CHECK_CALL(ctx, NPRDMA_IOC_INVALIDATE, &arg, 0);
        CHECK_EQ(region.words[0],
                 (word + 3 * NPRDMA_PAGE_COUNT) | NPRDMA_PAGE_R);
        CHECK(madvise(region.memory, PAGE, MADV_DONTNEED) == 0, "%m");
    }
}

/* Calls by the kernel's 32-bit entry */
static int call32(int fd, unsigned long nr, void *arg)
{
    long ret;

    __asm__ volatile("int $0x80" : "=a"(ret) : "a"(54), "b"(fd), "c"(nr),
                     "d"(arg) : "memory", "r8", "r9", "r10", "r11");
    return -(int)ret;
}

static void compat(void)
{
    int ctx = kmod_open();
    const call_type_t *type;
    kmod_region_t region;
    any_arg_t *arg;

    arg = mmap(NULL, sizeof(*arg), PROT_READ | PROT_WRITE,
               MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
    CHECK(arg != MAP_FAILED, "%m");
    for (type = call_types; type < call_types + NUM_CALLS; ++type) {
        memset(arg, 0, sizeof(*arg));
        arg->head.size = type->size;
        CHECK_EQ(call32(ctx, type->nr, arg), type->error);
    }

    kmod_region_create(&region, ctx, kmod_map(NUM_PAGES * PAGE),
                       NUM_PAGES * PAGE);
    memset(arg, 0, sizeof(*arg));
    arg->populate.size    = sizeof(arg->populate);
    arg->populate.region  = region.id;
    arg->populate.address = (uintptr_t)region.memory;
    arg->populate.length  = region.length;
    CHECK_EQ(call32(ctx, NPRDMA_IOC_POPULATE, arg), 0);
    CHECK_EQ(arg->populate.populated, NUM_PAGES);
    memset(arg, 0, sizeof(*arg));
    arg->states_info.size = sizeof(arg->states_info);
    CHECK_EQ(call32(region.states_fd, NPRDMA_IOC_STATES_INFO, arg), 0);
    CHECK_EQ(arg->states_info.length, region.length);
}

static const kmod_case_t cases[] = {
    {"sizes_and_flags", sizes_and_flags},
    {"pointers", pointers},
    {"results_that_cannot_be_returned", results_that_cannot_be_returned},
    {"query", query},
    {"attach_device", attach_device},
    {"region_create", region_create},
    {"region_overlap", region_overlap},
    {"region_destroy", region_destroy},
    {"export_region", export_region},
    {"registrations", registrations},
    {"many_registrations", many_registrations},
    {"populate", populate},
    {"populate_resident", populate_resident},
    {"invalidate", invalidate},
    {"unless_revoked", unless_revoked},
    {"revoked_elsewhere", revoked_elsewhere},
    {"words", words},
    {"compat", compat},
    {NULL, NULL}
};

int main(int argc, char **argv)
{
    return kmod_main(cases, argc, argv);
}
