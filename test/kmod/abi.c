/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * The interface: every call, and every documented error that can be caused
 * without a device.
 */

#include "kmod_test.h"

#include <glob.h>
#include <sys/resource.h>
#include <sys/uio.h>

#define NUM_PAGES 64

/* A 32-bit build of this file checks the same sizes */
_Static_assert(sizeof(struct nprdma_ioc_query) == 328, "");
_Static_assert(sizeof(struct nprdma_ioc_check_device) == 392, "");
_Static_assert(sizeof(struct nprdma_ioc_region_create) == 56, "");
_Static_assert(sizeof(struct nprdma_ioc_region_destroy) == 16, "");
_Static_assert(sizeof(struct nprdma_ioc_export) == 16, "");
_Static_assert(sizeof(struct nprdma_ioc_register) == 32, "");
_Static_assert(sizeof(struct nprdma_ioc_unregister) == 16, "");
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
    struct nprdma_ioc_populate      populate;
    struct nprdma_ioc_states_info   states_info;
    uint8_t                         bytes[8192];
} any_arg_t;

typedef struct call_type {
    unsigned long nr;
    uint32_t      size;
    uint32_t      reserved; /* a byte in a reserved field, or 0 */
    uint32_t      flags;    /* defined flags */
    int           error;    /* of a call with all fields zero except the size */
} call_type_t;

#define RESERVED(_call) offsetof(struct nprdma_ioc_##_call, reserved)

static const call_type_t call_types[] = {
    {NPRDMA_IOC_QUERY, sizeof(struct nprdma_ioc_query), RESERVED(query), 0, 0},
    {NPRDMA_IOC_CHECK_DEVICE, sizeof(struct nprdma_ioc_check_device), 0, 0,
     EINVAL},
    {NPRDMA_IOC_REGION_CREATE, sizeof(struct nprdma_ioc_region_create), 0,
     NPRDMA_IOC_REGION_RETIRE, EINVAL},
    {NPRDMA_IOC_REGION_DESTROY, sizeof(struct nprdma_ioc_region_destroy),
     RESERVED(region_destroy), 0, ENOENT},
    {NPRDMA_IOC_EXPORT, sizeof(struct nprdma_ioc_export), 0, 0, ENOENT},
    {NPRDMA_IOC_REGISTER, sizeof(struct nprdma_ioc_register),
     offsetof(struct nprdma_ioc_register, registration),
     NPRDMA_IOC_REGISTER_READMIT, ENOENT},
    {NPRDMA_IOC_UNREGISTER, sizeof(struct nprdma_ioc_unregister), 0, 0, ENOENT},
    {NPRDMA_IOC_POPULATE, sizeof(struct nprdma_ioc_populate),
     offsetof(struct nprdma_ioc_populate, revocations),
     WRITE | RESIDENT | NPRDMA_IOC_POPULATE_UNLESS_REVOKED, ENOENT},
    {NPRDMA_IOC_INVALIDATE, sizeof(struct nprdma_ioc_invalidate), 0,
     NPRDMA_IOC_INVALIDATE_TOUCH, EINVAL},
    {NPRDMA_IOC_STATS, sizeof(struct nprdma_ioc_stats), RESERVED(stats), 0, 0}
};

#define NUM_CALLS (sizeof(call_types) / sizeof(call_types[0]))

/* One call with an argument that is zero except for head */
static int call_zero(int fd, const call_type_t *type, uint32_t size,
                     uint32_t flags)
{
    any_arg_t arg = {.head = {.size = size, .flags = flags}};

    return kmod_call(fd, type->nr, &arg);
}

KMOD_CASE(abi, sizes_and_flags)
{
    int ctx = kmod_open();
    const call_type_t *type;
    uint32_t flag;
    any_arg_t arg;

    for (type = call_types; type < call_types + NUM_CALLS; ++type) {
        CHECK_EQ(call_zero(ctx, type, type->size, 0), type->error);
        CHECK_EQ(call_zero(ctx, type, 0, 0), EINVAL);
        CHECK_EQ(call_zero(ctx, type, type->size - 1, 0), EINVAL);
        /* A newer caller: fields that it does not use are zero */
        CHECK_EQ(call_zero(ctx, type, type->size + 8, 0), type->error);
        CHECK_EQ(call_zero(ctx, type, PAGE, 0), type->error);
        CHECK_EQ(call_zero(ctx, type, PAGE + 1, 0), E2BIG);
        CHECK_EQ(call_zero(ctx, type, UINT32_MAX, 0), E2BIG);

        memset(&arg, 0, sizeof(arg));
        arg.head.size         = type->size + 8;
        arg.bytes[type->size] = 1;
        CHECK_CALL(ctx, type->nr, &arg, E2BIG);
        if (type->reserved > 0) {
            memset(&arg, 0, sizeof(arg));
            arg.head.size             = type->size;
            arg.bytes[type->reserved] = 1;
            CHECK_CALL(ctx, type->nr, &arg, EINVAL);
        }
        for (flag = 1; flag != 0; flag <<= 1) {
            CHECK_EQ(call_zero(ctx, type, type->size, flag),
                     (flag & type->flags) ? type->error : EINVAL);
        }
    }
}

KMOD_CASE(abi, pointers)
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

/* If the result cannot be written to the caller, the call has no effect, unless
 * it returns no descriptor or id */
KMOD_CASE(abi, results_that_cannot_be_returned)
{
    struct nprdma_ioc_region_create create = {
        .size = sizeof(create), .length = PAGE
    };
    struct nprdma_ioc_register reg = {.size = sizeof(reg), .length = PAGE};
    struct nprdma_ioc_populate populate = {
        .size = sizeof(populate), .length = PAGE
    };
    struct nprdma_ioc_stats stats;
    kmod_region_t region;
    int fds;

    kmod_region(&region, NUM_PAGES);
    fds             = kmod_count_fds();
    create.address  = (uintptr_t)region.memory;
    reg.address     = create.address;
    reg.region      = region.id;
    populate.address = create.address;
    populate.region = region.id;
    CHECK_EQ(kmod_call_unwritable(region.ctx, NPRDMA_IOC_REGION_CREATE, &create,
                                  sizeof(create)), EFAULT);
    CHECK_EQ(kmod_count_fds(), fds);
    CHECK_EQ(kmod_call_unwritable(region.ctx, NPRDMA_IOC_REGISTER, &reg,
                                  sizeof(reg)), EFAULT);
    stats = kmod_stats(region.ctx, 0);
    CHECK_EQ(stats.regions, 1);
    CHECK_EQ(stats.registrations, 1);
    CHECK_EQ(kmod_call_unwritable(region.ctx, NPRDMA_IOC_POPULATE, &populate,
                                  sizeof(populate)), EFAULT);
    CHECK_EQ(kmod_count(&region, 0, 1, NPRDMA_PAGE_R), 1);
}

KMOD_CASE(abi, query)
{
    int ctx                       = kmod_open();
    struct nprdma_ioc_query query = kmod_query(ctx);

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
    CHECK(query.signature != kmod_query(kmod_open()).signature);
}

static void check_device(int ctx, const char *name, int error)
{
    struct nprdma_ioc_check_device check = {.size = sizeof(check)};

    snprintf(check.name, sizeof(check.name), "%s", name);
    CHECK_CALL(ctx, NPRDMA_IOC_CHECK_DEVICE, &check, error);
    CHECK(check.why[0] != '\0');
    CHECK_EQ(check.device, 0);
    printf("%s: %s\n", check.name, check.why);
}

KMOD_CASE(abi, check_device)
{
    int ctx = kmod_open();
    struct nprdma_ioc_check_device arg = {.size = sizeof(arg)};
    glob_t paths;
    size_t i;

    memset(arg.name, 'x', sizeof(arg.name));
    CHECK_CALL(ctx, NPRDMA_IOC_CHECK_DEVICE, &arg, EINVAL);
    strcpy(arg.name, "0000:1f:1f.7");
    arg.reserved[3] = 1;
    CHECK_CALL(ctx, NPRDMA_IOC_CHECK_DEVICE, &arg, EINVAL);

    check_device(ctx, "0000:1f:1f.7", ENODEV);
    check_device(ctx, "no such device", ENODEV);
    /* The host bridge has no driver, and the guest's devices have no IOMMU */
    check_device(ctx, "0000:00:00.0", ENODEV);
    CHECK_OK(glob("/sys/bus/pci/drivers/virtio-pci/0000:*", 0, NULL, &paths));
    for (i = 0; i < paths.gl_pathc; ++i) {
        check_device(ctx, strrchr(paths.gl_pathv[i], '/') + 1, EOPNOTSUPP);
    }
    globfree(&paths);
}

KMOD_CASE(abi, region_create)
{
    static const uint64_t top = 1ull << 56; /* with page tables of 5 levels */
    const struct {
        uint64_t address, length;
        int      error;
    } calls[] = {
        {1 << 20, 0, EINVAL},
        {(1 << 20) + 1, PAGE, EINVAL},
        {1 << 20, PAGE + 1, EINVAL},
        {-PAGE, 2 * PAGE, EINVAL},
        {-PAGE, PAGE, EINVAL},
        {PAGE, -2 * PAGE, EINVAL},
        {top, PAGE, EINVAL},
        {top - PAGE, PAGE, EINVAL},
        {1ull << 46, PAGE, 0},
        {0, PAGE, 0},
        {0, 2ull << 40, EFBIG},
        {0, 1ull << 40, ENOSPC}
    };
    int ctx = kmod_open();
    struct rlimit limit;
    size_t i;

    for (i = 0; i < sizeof(calls) / sizeof(calls[0]); ++i) {
        CHECK_EQ(kmod_try_create(ctx, calls[i].address, calls[i].length),
                 calls[i].error);
    }
    CHECK_OK(getrlimit(RLIMIT_NOFILE, &limit));
    limit.rlim_cur = kmod_count_fds();
    CHECK_OK(setrlimit(RLIMIT_NOFILE, &limit));
    CHECK_EQ(kmod_try_create(ctx, 1 << 20, PAGE), EMFILE);
}

static void create_in_child(void *address)
{
    CHECK_EQ(kmod_try_create(kmod_open(), (uintptr_t)address, PAGE), 0);
}

/* The bound counts the regions of all contexts of the address space */
KMOD_CASE(abi, region_overlap)
{
    const uint64_t base = 1ull << 30, page = base + PAGE;
    int ctx = kmod_open(), other = kmod_open();
    unsigned i;

    /* Stairs: many regions, but no page has more than two */
    for (i = 0; i < 4 * NPRDMA_MAX_OVERLAP; ++i) {
        CHECK_EQ(kmod_try_create(ctx, base + 2 * i * PAGE, 3 * PAGE), 0);
    }
    for (i = 1; i < NPRDMA_MAX_OVERLAP; ++i) {
        CHECK_EQ(kmod_try_create((i % 2) ? ctx : other, page, PAGE), 0);
    }
    CHECK_EQ(kmod_try_create(ctx, page, PAGE), EDQUOT);
    CHECK_EQ(kmod_try_create(other, page, PAGE), EDQUOT);
    CHECK_EQ(kmod_try_create(other, base, 2 * PAGE), EDQUOT);
    CHECK_EQ(kmod_try_create(other, 0, 2 * base), EDQUOT);

    /* Not so beside it, nor in a child, which has an address space of its
     * own */
    CHECK_EQ(kmod_try_create(ctx, 0, page), 0);
    CHECK_EQ(kmod_try_create(ctx, page + PAGE, base), 0);
    kmod_in_child(create_in_child, (void*)(uintptr_t)page);

    /* Regions that have ended do not count */
    close(other);
    CHECK_EQ(kmod_try_create(ctx, page, PAGE), 0);
}

KMOD_CASE(abi, region_destroy)
{
    kmod_region_t region, other;

    kmod_region(&region, NUM_PAGES);
    kmod_region_create(&other, region.ctx, region.memory, NUM_PAGES * PAGE);
    CHECK(region.id != other.id);
    CHECK(region.header->id != other.header->id);
    kmod_populate_all(&region, 0, NUM_PAGES, 0);
    kmod_populate_all(&other, 0, NUM_PAGES, WRITE);

    CHECK_EQ(kmod_destroy(region.ctx, region.id), 0);
    CHECK_EQ(kmod_destroy(region.ctx, region.id), ENOENT);
    CHECK_EQ(region.header->dead, 1);
    CHECK_EQ(kmod_count(&region, 0, NUM_PAGES, 0), NUM_PAGES);
    CHECK_EQ(region.words[0], 2 * NPRDMA_PAGE_COUNT);
    CHECK_EQ(kmod_populate(&region, 0, 1, 0, NULL), ENOENT);

    CHECK_EQ(other.header->dead, 0);
    CHECK_EQ(kmod_count(&other, 0, NUM_PAGES, NPRDMA_PAGE_BITS), NUM_PAGES);
    /* Closing destroys the region */
    close(region.ctx);
    CHECK_EQ(other.header->dead, 1);
    CHECK_EQ(kmod_count(&other, 0, NUM_PAGES, 0), NUM_PAGES);
}

KMOD_CASE(abi, export_region)
{
    struct nprdma_ioc_export export = {.size = sizeof(export)};
    kmod_region_t region;

    kmod_region(&region, NUM_PAGES);
    export.region = region.id;
    if (!(kmod_query(region.ctx).features & NPRDMA_IOC_FEATURE_DEVICES)) {
        CHECK_CALL(region.ctx, NPRDMA_IOC_EXPORT, &export, EOPNOTSUPP);
        return;
    }

    CHECK_CALL(region.ctx, NPRDMA_IOC_EXPORT, &export, 0);
    CHECK_EQ(fcntl(export.fd, F_GETFD), FD_CLOEXEC);
    CHECK_EQ(lseek(export.fd, 0, SEEK_END), (2 * NUM_PAGES + 1) * PAGE);
    CHECK(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, export.fd, 0) == MAP_FAILED);
    /* The dma-buf keeps the region's memory after its end */
    kmod_region_destroy(&region);
    CHECK_CALL(region.ctx, NPRDMA_IOC_EXPORT, &export, ENOENT);
    close(export.fd);
}

static int do_unregister(kmod_region_t *region, uint32_t id)
{
    struct nprdma_ioc_unregister unreg = {
        .size         = sizeof(unreg),
        .region       = region->id,
        .registration = id
    };

    return kmod_call(region->ctx, NPRDMA_IOC_UNREGISTER, &unreg);
}

/* Only registered pages are populated; registrations are ranges of bytes */
KMOD_CASE(abi, registrations)
{
    static const struct {
        size_t offset, length;
        int    error;
    } calls[] = {
        {0, 0, EINVAL},
        {-1, 1, ERANGE},
        {0, NUM_PAGES * PAGE + 1, ERANGE},
        {NUM_PAGES * PAGE, 1, ERANGE},
        {0, -1, ERANGE}
    };
    struct nprdma_ioc_populate populate;
    uint32_t first, second, id;
    kmod_region_t region;
    size_t i;

    kmod_region(&region, NUM_PAGES);
    CHECK_EQ(do_unregister(&region, region.registration), 0);
    CHECK_EQ(do_unregister(&region, region.registration), ENOENT);
    CHECK_EQ(kmod_populate(&region, 0, 1, 0, &populate), EACCES);
    CHECK_EQ(populate.done, (uintptr_t)region.memory);
    for (i = 0; i < sizeof(calls) / sizeof(calls[0]); ++i) {
        CHECK_EQ(kmod_register(&region, calls[i].offset, calls[i].length, &id),
                 calls[i].error);
    }

    /* Pages 4 to 8, and 8 to 11 */
    CHECK_EQ(kmod_register(&region, 5 * PAGE - 1, 3 * PAGE + 2, &first), 0);
    CHECK_EQ(kmod_register(&region, 8 * PAGE, 4 * PAGE, &second), 0);
    CHECK(first != second);
    CHECK_EQ(kmod_populate(&region, 4, 60, 0, &populate), EACCES);
    CHECK_EQ(populate.done, (uintptr_t)region.memory + 12 * PAGE);
    CHECK_EQ(populate.populated, 8);
    CHECK_EQ(kmod_populate(&region, 3, 4, 0, &populate), EACCES);
    CHECK_EQ(populate.done, (uintptr_t)region.memory + 3 * PAGE);

    /* Pages stay valid, but only those that another one covers can be
     * populated */
    CHECK_EQ(do_unregister(&region, first), 0);
    CHECK_EQ(kmod_count(&region, 4, 8, NPRDMA_PAGE_R), 8);
    CHECK_EQ(kmod_populate(&region, 7, 1, 0, NULL), EACCES);
    CHECK_EQ(kmod_populate(&region, 8, 1, WRITE, NULL), 0);
}

/* Pages 9, 19, 29, 39 and 49 are a hole, without access, read-only, a file's,
 * and a private mapping of a file */
KMOD_CASE(abi, populate)
{
    static const struct {
        size_t   first, count;
        unsigned flags;
        int      error;
        size_t   done, populated; /* unless the error is of the arguments */
    } calls[] = {
        {0, 0, 0, EINVAL, 0, 0},
        {NUM_PAGES, 1, 0, ERANGE, 0, 0},
        {0, NUM_PAGES + 1, 0, ERANGE, 0, 0},
        {-1, 1, 0, ERANGE, 0, 0},
        {0, 64, 0, EFAULT, 9, 9},
        {10, 20, 0, EFAULT, 19, 9},
        {20, 20, WRITE, EFAULT, 29, 9},
        {20, 20, 0, EOPNOTSUPP, 39, 10},
        {39, 1, 0, EOPNOTSUPP, 39, 0},
        {39, 1, WRITE, EFAULT, 39, 0},
        {40, 10, 0, EOPNOTSUPP, 49, 9},
        {49, 1, WRITE, 0, 50, 1}, /* only copied pages */
        {10, 1, 0, 0, 11, 0},
        {0, 64, RESIDENT, 0, 64, 0}
    };
    int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    struct nprdma_ioc_populate arg;
    kmod_region_t region;
    uint8_t *memory;
    size_t i;

    kmod_region(&region, NUM_PAGES);
    memory = region.memory;
    munmap(memory + 9 * PAGE, PAGE);
    mprotect(memory + 19 * PAGE, PAGE, PROT_NONE);
    mprotect(memory + 29 * PAGE, PAGE, PROT_READ);
    CHECK(mmap(memory + 39 * PAGE, PAGE, PROT_READ, MAP_SHARED | MAP_FIXED,
               file, 0) != MAP_FAILED, "%m");
    CHECK(mmap(memory + 49 * PAGE, PAGE, PROT_READ | PROT_WRITE,
               MAP_PRIVATE | MAP_FIXED, file, 0) != MAP_FAILED, "%m");
    for (i = 0; i < sizeof(calls) / sizeof(calls[0]); ++i) {
        printf("populate %zu, %zu\n", calls[i].first, calls[i].count);
        CHECK_EQ(kmod_populate(&region, calls[i].first, calls[i].count,
                               calls[i].flags, &arg), calls[i].error);
        if ((calls[i].error != EINVAL) && (calls[i].error != ERANGE)) {
            CHECK_EQ(arg.done, (uintptr_t)memory + calls[i].done * PAGE);
            CHECK_EQ(arg.populated, calls[i].populated);
        }
    }
    CHECK_EQ(kmod_count(&region, 0, 9, NPRDMA_PAGE_R), 9);
    CHECK_EQ(kmod_count(&region, 29, 1, NPRDMA_PAGE_R), 1);
    CHECK_EQ(kmod_count(&region, 49, 1, NPRDMA_PAGE_BITS), 1);
}

/* Populates resident pages only; with WRITE, only those that would not fault */
KMOD_CASE(abi, populate_resident)
{
    struct nprdma_ioc_populate arg;
    unsigned char resident[NUM_PAGES];
    kmod_region_t region;
    size_t i, count = 0;
    uint64_t bytes;

    kmod_region(&region, NUM_PAGES);
    bytes = kmod_stats(region.ctx, 0).bytes;
    CHECK_EQ(kmod_populate(&region, 0, NUM_PAGES, RESIDENT | WRITE, &arg), 0);
    CHECK_EQ(arg.populated, 0);
    /* Nor is there a table of frames */
    CHECK_EQ(kmod_stats(region.ctx, 0).bytes, bytes);
    for (i = 0; i < 8; ++i) {
        region.memory[i * PAGE] = 1;
    }
    /* Zero pages are not valid for writing */
    for (; i < 16; ++i) {
        CHECK_EQ(*(volatile uint8_t*)(region.memory + i * PAGE), 0);
    }

    CHECK_EQ(kmod_populate(&region, 0, NUM_PAGES, RESIDENT | WRITE, &arg), 0);
    CHECK_EQ(arg.populated, 8);
    CHECK_EQ(kmod_count(&region, 0, 8, NPRDMA_PAGE_BITS), 8);
    CHECK_EQ(kmod_populate(&region, 0, NUM_PAGES, RESIDENT, &arg), 0);
    CHECK_EQ(arg.populated, 8);
    CHECK_EQ(kmod_count(&region, 8, 8, NPRDMA_PAGE_R), 8);
    CHECK_EQ(kmod_count(&region, 16, NUM_PAGES - 16, 0), NUM_PAGES - 16);
    CHECK_OK(mincore(region.memory, region.length, resident));
    for (i = 0; i < NUM_PAGES; ++i) {
        count += resident[i] & 1;
    }
    CHECK_EQ(count, 16);

    /* Populating for reading gives an untouched page the page of zeros */
    kmod_populate_all(&region, 16, 8, 0);
    CHECK_EQ(kmod_populate(&region, 16, 8, RESIDENT | WRITE, &arg), 0);
    CHECK_EQ(arg.populated, 0);
}

/* Pages from the first one on */
static int do_invalidate(const kmod_region_t *region, size_t first,
                         size_t count, uint32_t bits, uint32_t flags,
                         uint64_t *invalidated)
{
    struct nprdma_ioc_invalidate arg = {
        .size    = sizeof(arg),
        .flags   = flags,
        .region  = region->id,
        .bits    = bits,
        .address = (uintptr_t)region->memory + first * PAGE,
        .length  = count * PAGE
    };
    int ret = kmod_call(region->ctx, NPRDMA_IOC_INVALIDATE, &arg);

    if (invalidated != NULL) {
        *invalidated = arg.invalidated;
    }
    return ret;
}

KMOD_CASE(abi, invalidate)
{
    struct nprdma_ioc_stats stats;
    kmod_region_t region, none;
    uint64_t number;
    uint32_t word;

    kmod_region(&region, NUM_PAGES);
    none    = region;
    none.id = region.id + 1;
    kmod_populate_all(&region, 0, 16, WRITE);
    CHECK_EQ(do_invalidate(&region, 0, 0, 0, 0, NULL), EINVAL);
    CHECK_EQ(do_invalidate(&region, 0, 0, NPRDMA_PAGE_W, 0, NULL), EINVAL);
    CHECK_EQ(do_invalidate(&region, 0, 8, NPRDMA_PAGE_COUNT, 0, NULL), EINVAL);
    CHECK_EQ(do_invalidate(&region, 0, NUM_PAGES + 1, NPRDMA_PAGE_W, 0, NULL),
             ERANGE);
    CHECK_EQ(do_invalidate(&none, 0, 8, NPRDMA_PAGE_W, 0, NULL), ENOENT);

    CHECK_EQ(do_invalidate(&region, 0, 8, NPRDMA_PAGE_W, 0, &number), 0);
    CHECK_EQ(number, 8);
    CHECK_EQ(kmod_count(&region, 0, 8, NPRDMA_PAGE_R), 8);
    CHECK_EQ(kmod_count(&region, 8, 8, NPRDMA_PAGE_BITS), 8);
    CHECK_EQ(do_invalidate(&region, 0, 8, NPRDMA_PAGE_W, 0, &number), 0);
    CHECK_EQ(number, 0);

    /* Taking R takes W as well; with TOUCH, the counts of absent pages change,
     * too */
    CHECK_EQ(region.words[0], (2 * NPRDMA_PAGE_COUNT) | NPRDMA_PAGE_R);
    word = region.words[20];
    CHECK_EQ(do_invalidate(&region, 0, NUM_PAGES, NPRDMA_PAGE_R,
                           NPRDMA_IOC_INVALIDATE_TOUCH, &number), 0);
    CHECK_EQ(number, 16);
    CHECK_EQ(kmod_count(&region, 0, NUM_PAGES, 0), NUM_PAGES);
    CHECK_EQ(region.words[20], word + NPRDMA_PAGE_COUNT);
    CHECK_EQ(do_invalidate(&region, 0, NUM_PAGES, NPRDMA_PAGE_R, 0, NULL), 0);
    CHECK_EQ(region.words[20], word + NPRDMA_PAGE_COUNT);
    /* Each change is counted, and a page that has its bits does not change */
    CHECK_EQ(region.words[0], 3 * NPRDMA_PAGE_COUNT);
    kmod_populate_all(&region, 0, 1, 0);
    kmod_populate_all(&region, 0, 1, 0);
    CHECK_EQ(region.words[0], (4 * NPRDMA_PAGE_COUNT) | NPRDMA_PAGE_R);
    kmod_populate_all(&region, 0, 1, WRITE);
    CHECK_EQ(region.words[0], (5 * NPRDMA_PAGE_COUNT) | NPRDMA_PAGE_BITS);

    stats = kmod_stats(region.ctx, region.id);
    CHECK_EQ(stats.revoked, 24);
    CHECK_EQ(stats.present, 1);
    CHECK_EQ(stats.populated, 18);
}

/* Populate pages unless one was revoked after the caller looked */
static int populate_unless(const kmod_region_t *region, size_t first,
                           size_t count, uint32_t revocations,
                           struct nprdma_ioc_populate *arg)
{
    memset(arg, 0, sizeof(*arg));
    arg->size        = sizeof(*arg);
    arg->flags       = NPRDMA_IOC_POPULATE_UNLESS_REVOKED;
    arg->region      = region->id;
    arg->address     = (uintptr_t)region->memory + first * PAGE;
    arg->length      = count * PAGE;
    arg->revocations = revocations;
    return kmod_call(region->ctx, NPRDMA_IOC_POPULATE, arg);
}

/* It fails until the caller has seen the revocation. Pages that are revoked
 * repeatedly do not delay other pages. */
KMOD_CASE(abi, unless_revoked)
{
    const size_t count = 1024;
    struct nprdma_ioc_populate arg;
    kmod_region_t region;
    uint32_t seen;
    int i;

    kmod_region(&region, count);
    seen = region.header->revocations;
    CHECK_EQ(populate_unless(&region, 0, 1, seen, &arg), 0);
    /* In two batches: 576 to 703 */
    for (i = 0; i < 1000; ++i) {
        CHECK_EQ(do_invalidate(&region, 600, 41, NPRDMA_PAGE_R,
                               NPRDMA_IOC_INVALIDATE_TOUCH, NULL), 0);
    }
    CHECK(region.header->revocations >= seen + 1000);

    CHECK_EQ(populate_unless(&region, 0, count, seen, &arg), ESTALE);
    CHECK_EQ(arg.done, arg.address + 576 * PAGE);
    CHECK_EQ(arg.populated, 575);
    CHECK_EQ(populate_unless(&region, 704, count - 704, seen, &arg), 0);
    CHECK_EQ(kmod_count(&region, 576, 128, 0), 128);
    CHECK_EQ(populate_unless(&region, 640, 64, seen, &arg), ESTALE);
    CHECK_EQ(arg.done, arg.address);
    seen = region.header->revocations;
    CHECK_EQ(populate_unless(&region, 640, 64, seen, &arg), 0);
    CHECK_EQ(arg.populated, 64);
}

#ifdef __x86_64__
/* Calls by the kernel's 32-bit entry */
static int call32(int fd, unsigned long nr, void *arg)
{
    long ret;

    __asm__ volatile("int $0x80" : "=a"(ret) : "a"(54), "b"(fd), "c"(nr),
                     "d"(arg) : "memory", "r8", "r9", "r10", "r11");
    return -(int)ret;
}

KMOD_CASE(abi, compat)
{
    const call_type_t *type;
    kmod_region_t region;
    any_arg_t *arg;

    arg = mmap(NULL, sizeof(*arg), PROT_READ | PROT_WRITE,
               MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
    CHECK(arg != MAP_FAILED, "%m");
    kmod_region(&region, NUM_PAGES);
    for (type = call_types; type < call_types + NUM_CALLS; ++type) {
        memset(arg, 0, sizeof(*arg));
        arg->head.size = type->size;
        CHECK_EQ(call32(region.ctx, type->nr, arg), type->error);
    }

    memset(arg, 0, sizeof(*arg));
    arg->populate.size    = sizeof(arg->populate);
    arg->populate.region  = region.id;
    arg->populate.address = (uintptr_t)region.memory;
    arg->populate.length  = region.length;
    CHECK_EQ(call32(region.ctx, NPRDMA_IOC_POPULATE, arg), 0);
    CHECK_EQ(arg->populate.populated, NUM_PAGES);
    memset(arg, 0, sizeof(*arg));
    arg->states_info.size = sizeof(arg->states_info);
    CHECK_EQ(call32(region.states_fd, NPRDMA_IOC_STATES_INFO, arg), 0);
    CHECK_EQ(arg->states_info.length, region.length);
}
#endif

static int map_error(int fd, size_t length, int prot, int flags, off_t offset)
{
    void *memory = mmap(NULL, length, prot, flags, fd, offset);

    if (memory == MAP_FAILED) {
        return errno;
    }
    munmap(memory, length);
    return 0;
}

/* Whatever way of writing them is tried */
KMOD_CASE(abi, states_are_read_only)
{
    const int rw = PROT_READ | PROT_WRITE, rx = PROT_READ | PROT_EXEC;
    struct nprdma_ioc_states_info info = {.size = sizeof(info)};
    uint32_t word                      = 3;
    kmod_region_t region;
    struct iovec from, to;
    char path[64];
    size_t size;
    int fd, mem;

    kmod_region(&region, NUM_PAGES);
    fd   = region.states_fd;
    size = region.states_size;
    CHECK_EQ(fcntl(fd, F_GETFD), FD_CLOEXEC);
    CHECK_EQ(fcntl(fd, F_GETFL) & O_ACCMODE, O_RDONLY);

    CHECK_EQ(map_error(fd, size, PROT_READ, MAP_SHARED, 0), 0);
    CHECK_EQ(map_error(fd, PAGE, PROT_READ, MAP_SHARED, PAGE), 0);
    CHECK_EQ(map_error(fd, size, rw, MAP_SHARED, 0), EACCES);
    CHECK_EQ(map_error(fd, size, PROT_WRITE, MAP_SHARED, 0), EACCES);
    CHECK_EQ(map_error(fd, size, rx, MAP_SHARED, 0), EPERM);
    CHECK_EQ(map_error(fd, size, PROT_READ, MAP_PRIVATE, 0), EINVAL);
    CHECK_EQ(map_error(fd, size + PAGE, PROT_READ, MAP_SHARED, 0), EINVAL);
    CHECK_EQ(map_error(fd, PAGE, PROT_READ, MAP_SHARED, size), EINVAL);
    CHECK_EQ(map_error(fd, size, PROT_READ, MAP_SHARED, PAGE), EINVAL);

    CHECK((mprotect(region.header, size, rw) < 0) && (errno == EACCES), "%m");
    CHECK((mprotect(region.header, size, rx) < 0) && (errno == EACCES), "%m");
    CHECK(mremap(region.header, size, size + PAGE, MREMAP_MAYMOVE) ==
          MAP_FAILED);
    CHECK(write(fd, &word, sizeof(word)) < 0);
    CHECK(read(fd, &word, sizeof(word)) < 0);
    CHECK(ftruncate(fd, 0) < 0);

    /* Nor opened for writing by its name, nor written by a debugger */
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    CHECK(open(path, O_RDWR) < 0);
    from.iov_base = &word;
    from.iov_len  = sizeof(word);
    to.iov_base   = (void*)region.words;
    to.iov_len    = sizeof(word);
    CHECK(process_vm_writev(getpid(), &from, 1, &to, 1, 0) < 0);
    mem = open("/proc/self/mem", O_RDWR);
    CHECK(mem >= 0, "%m");
    CHECK(pwrite(mem, &word, sizeof(word), (off_t)region.words) < 0);
    CHECK_EQ(region.words[0], 0);

    CHECK_CALL(fd, NPRDMA_IOC_QUERY, &info, ENOTTY);
    info.flags = 1;
    CHECK_CALL(fd, NPRDMA_IOC_STATES_INFO, &info, EINVAL);
    info.flags = 0;
    info.size  = 8;
    CHECK_CALL(fd, NPRDMA_IOC_STATES_INFO, &info, EINVAL);
    info.size = PAGE + 1;
    CHECK_CALL(fd, NPRDMA_IOC_STATES_INFO, &info, E2BIG);
    CHECK_CALL(fd, NPRDMA_IOC_STATES_INFO, NULL, EFAULT);
}
