/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * An export or import that fails, or whose process is killed, leaves nothing
 * behind.
 */

#include "edu.h"

static uint64_t user_bytes(int ctx)
{
    return kmod_query(ctx).user_bytes;
}

static int has_no_bytes(void *ctx)
{
    return user_bytes(*(int*)ctx) == 0;
}

static int try_attach(void *arg)
{
    fixture_t *f = arg;
    struct nprdma_ioc_check_device check;
    int ret = check_edu(f->region.ctx, f->edu, &check);

    CHECK(!strcmp(check.why, "out of memory") == (ret == ENOMEM), "%s",
          check.why);
    return ret;
}

static int try_export(void *arg)
{
    fixture_t *f = arg;
    struct nprdma_ioc_export export = {
        .size = sizeof(export), .region = f->region.id
    };
    int ret = kmod_call(f->region.ctx, NPRDMA_IOC_EXPORT, &export);

    f->dmabuf = (ret == 0) ? export.fd : -1;
    return ret;
}

static int try_import(void *arg)
{
    fixture_t *f = arg;

    return import(f->edu, f->dmabuf, NULL);
}

/*
 * A call that fails in the middle leaves nothing behind, and succeeds
 * afterwards. The first check of a device makes two views, so this is the first
 * case. An export makes two areas, which stay, then a descriptor and a file. An
 * import accounts for its I/O addresses, makes two views, and a mapping and a
 * list of the states, and each view makes at least three allocations.
 */
KMOD_CASE(errors, no_memory)
{
    fixture_t f;
    int ctx;

    kmod_force_needed();
    f.edu = edu_open();
    kmod_region(&f.region, NPAGES);
    f.signature = f.region.header->signature;
    edu_fill(&f, 3, 0x33);
    kmod_populate_all(&f.region, 3, 1, 0);
    ctx = f.region.ctx;
    CHECK(kmod_fail_each(ctx, try_attach, &f) >= 2 * 4);
    CHECK(kmod_fail_once(ctx, try_export, &f, 1) &&
          kmod_fail_once(ctx, try_export, &f, 2));
    CHECK_EQ(try_export(&f), 0);
    CHECK(kmod_fail_each(ctx, try_export, &f) >= 2);
    CHECK(kmod_fail_each(ctx, try_import, &f) >= 2 * 3 + 6);
    CHECK_EQ(edu_read(f.edu, in_r(3)), 0x33);
    CHECK_EQ(edu_read(f.edu, in_r(4)), f.signature);
}

/*
 * Absent entries of a context's views point at pages of their own, 8 for R
 * and 8 for W. These are accounted once. The export fails if the limit lacks
 * the last byte of them.
 */
static void export_limited(void *arg)
{
    const kmod_limit_t *limit = arg;
    int ctx              = kmod_open();
    fixture_t f;
    uint64_t bytes;

    CHECK(kmod_await(has_no_bytes, &ctx));
    kmod_region(&f.region, 1);
    bytes = user_bytes(f.region.ctx);
    kmod_set_limit(limit, bytes + 16 * PAGE - 1);
    CHECK_EQ(try_export(&f), limit->expected);
    CHECK_EQ(user_bytes(f.region.ctx), bytes);

    kmod_set_limit(limit, bytes + 16 * PAGE);
    export(&f.region);
    CHECK_EQ(user_bytes(f.region.ctx), bytes + 16 * PAGE);
    export(&f.region);
    CHECK_EQ(user_bytes(f.region.ctx), bytes + 16 * PAGE);
}

KMOD_CASE(errors, accounted)
{
    kmod_limit_t total = kmod_limit(PARAMETER "max_total_bytes", ENOSPC);
    kmod_limit_t user  = kmod_limit(PARAMETER "max_user_bytes", EDQUOT);

    kmod_as_user(NOBODY, export_limited, &user);
    export_limited(&total);
}

/* I/O addresses of a region of 64 pages: 128 pages of views and 1 of
 * states */
#define EACH (129 * PAGE)

static uint64_t iova_of_user(int ctx, int edu)
{
    struct nprdma_ioc_check_device arg;

    CHECK_EQ(check_edu(ctx, edu, &arg), 0);
    return arg.iova_bytes;
}

static void import_limited(void *arg)
{
    const kmod_limit_t *limit = arg;
    int edu = edu_open(), other = edu_open();
    kmod_region_t first, second;
    int dmabufs[2];

    kmod_region(&first, 64);
    CHECK_EQ(iova_of_user(first.ctx, edu), 0);
    kmod_region_create(&second, first.ctx, kmod_map(64 * PAGE), 64 * PAGE);
    dmabufs[0] = export(&first);
    dmabufs[1] = export(&second);
    kmod_set_limit(limit, EACH - 1);
    CHECK_EQ(import(edu, dmabufs[0], NULL), EDQUOT);
    CHECK_EQ(iova_of_user(first.ctx, edu), 0);
    kmod_set_limit(limit, 2 * EACH - 1);
    CHECK_EQ(import(edu, dmabufs[0], NULL), 0);
    CHECK_EQ(iova_of_user(first.ctx, edu), EACH);
    CHECK_EQ(import(other, dmabufs[1], NULL), EDQUOT);

    /* A second import of the same region needs no addresses */
    CHECK_EQ(import(other, dmabufs[0], NULL), 0);
    CHECK_EQ(iova_of_user(first.ctx, edu), EACH);
    edu_release(other);
    kmod_set_limit(limit, 2 * EACH);
    CHECK_EQ(import(other, dmabufs[1], NULL), 0);
    CHECK_EQ(iova_of_user(first.ctx, edu), 2 * EACH);
    edu_release(edu);
    edu_release(other);
    CHECK_EQ(iova_of_user(first.ctx, edu), 0);
}

/* I/O addresses of a user on a device are bounded */
KMOD_CASE(errors, iova_limit)
{
    kmod_limit_t limit = kmod_limit(PARAMETER "max_user_iova_bytes", EDQUOT);

    CHECK_OK(chmod(NPRDMA_EDU_PATH, 0666));
    kmod_as_user(NOBODY, import_limited, &limit);
}

/* One region, and a device that imports it or cannot */
static void import_one(void *arg)
{
    const kmod_limit_t *limit = arg;
    int edu              = edu_open();
    kmod_region_t region;

    kmod_region(&region, 64);
    iova_of_user(region.ctx, edu);
    CHECK_EQ(import(edu, export(&region), NULL), limit->expected);
}

/* So are those of all users together, whatever their privileges */
KMOD_CASE(errors, iova_total)
{
    kmod_limit_t limit = kmod_limit(PARAMETER "max_total_iova_bytes", ENOSPC);
    kmod_limit_t good  = {limit.fd, 0};

    CHECK_OK(chmod(NPRDMA_EDU_PATH, 0666));
    kmod_set_limit(&limit, EACH - 1);
    kmod_in_child(import_one, &limit);
    kmod_set_limit(&limit, EACH);
    import_one(&good);
    kmod_set_limit(&limit, 2 * EACH - 1);
    kmod_as_user(NOBODY, import_one, &limit);
    kmod_set_limit(&limit, 2 * EACH);
    kmod_as_user(NOBODY, import_one, &good);
}

/* If the descriptor's number cannot be returned, no descriptor exists */
KMOD_CASE(errors, unseen)
{
    struct nprdma_ioc_export arg = {.size = sizeof(arg)};
    kmod_region_t region;
    int fds;

    kmod_region(&region, 1);
    arg.region = region.id;
    fds        = kmod_count_fds();
    CHECK_EQ(kmod_call_unwritable(region.ctx, NPRDMA_IOC_EXPORT, &arg,
                                  sizeof(arg)), EFAULT);
    CHECK_EQ(kmod_count_fds(), fds);
    kmod_region_destroy(&region);
    CHECK_OK(close(region.ctx));
    /* The module's reference is released as well */
    CHECK(kmod_await(is_unused, NULL));
}

static int import_edu;

/* A process that is killed while it imports does not finish the import, which
 * may take long */
static void import_and_die(void *at)
{
    fixture_t f;

    setup_region(&f, NPAGES);
    kmod_populate_all(&f.region, 0, NPAGES, WRITE);
    kmod_force(*(unsigned*)at);
    import(import_edu, f.dmabuf, NULL);
    /* The signal takes effect when the system call returns */
    _exit(1);
}

/* Killed at each kernel function that fails in no_memory, up to the last one
 * before the views and the states are complete */
KMOD_CASE(errors, killed_importing)
{
    struct nprdma_edu_dma nothing = {.length = 1};
    int ctx = kmod_open();
    char name[64];
    fixture_t f;
    unsigned at;

    kmod_force_needed();
    import_edu = edu_open();
    CHECK(kmod_await(has_no_bytes, &ctx));
    CHECK_EQ(kmod_write_file(KMOD_FORCE "fatal", "1"), 0);
    for (at = 1; at <= 2 * 3 + 4; ++at) {
        CHECK_EQ(kmod_wait(kmod_fork(import_and_die, &at)), 1000 + SIGKILL);
        CHECK(kmod_forced(name, sizeof(name)));
        printf("  %s\n", name);
        CHECK_CALL(import_edu, NPRDMA_EDU_IOC_DMA, &nothing, EINVAL);
        CHECK(kmod_await(has_no_bytes, &ctx), "%llu",
              (unsigned long long)user_bytes(ctx));
    }
    CHECK_EQ(kmod_write_file(KMOD_FORCE "fatal", "0"), 0);
    setup(&f);
    CHECK_EQ(edu_read(f.edu, in_r(3)), f.signature);
}
