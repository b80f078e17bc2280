/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * An export or import that fails, or whose process is killed, leaves nothing
 * behind.
 */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "edu_fixture.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define PARAMETER "/sys/module/nprdma/parameters/"

static int has_no_bytes(void *ctx)
{
    return user_bytes(*(int*)ctx) == 0;
}

/*
 * Absent entries of a context's windows point at pages of their own, 8 for R
 * and 8 for W. These are accounted once. The export fails if the parameter that
 * is open as limit lacks the last byte of them.
 */
static void export_limited(int limit, int expected)
{
    struct nprdma_ioc_export arg = {.size = sizeof(arg)};
    kmod_region_t region;
    uint64_t bytes;
    int ctx = kmod_open();
    char text[32];
    int length;

    CHECK(kmod_await(has_no_bytes, &ctx));
    kmod_region_create(&region, ctx, kmod_map(PAGE), PAGE);
    arg.region = region.id;
    bytes      = user_bytes(ctx);
    length     = snprintf(text, sizeof(text), "%lld",
                          (long long)(bytes + 16 * PAGE - 1));
    CHECK_EQ(pwrite(limit, text, length, 0), length);
    CHECK_CALL(ctx, NPRDMA_IOC_EXPORT, &arg, expected);
    CHECK_EQ(user_bytes(ctx), bytes);

    length = snprintf(text, sizeof(text), "%lld",
                      (long long)(bytes + 16 * PAGE));
    CHECK_EQ(pwrite(limit, text, length, 0), length);
    export(&region);
    CHECK_EQ(user_bytes(ctx), bytes + 16 * PAGE);
    export(&region);
    CHECK_EQ(user_bytes(ctx), bytes + 16 * PAGE);
}

/* Runs as this user, and restores the limit */
static void export_as(uid_t user, const char *parameter, int expected)
{
    int limit = open(parameter, O_RDWR);
    char old[32];
    int status;
    pid_t pid;

    CHECK(limit >= 0, "%m");
    snprintf(old, sizeof(old), "%lld", kmod_read_number(parameter, ""));
    pid = fork();
    CHECK(pid >= 0, "%m");
    if (pid == 0) {
        CHECK(setresuid(user, user, user) == 0, "%m");
        export_limited(limit, expected);
        fflush(stdout);
        _exit(0);
    }
    status = kmod_wait(pid);
    CHECK_EQ(kmod_write_file(parameter, old), 0);
    CHECK_EQ(status, 0);
    close(limit);
}

static void test_accounted(void)
{
    CHECK(chmod(NPRDMA_DEVICE_PATH, 0666) == 0, "%m");
    export_as(0, PARAMETER "max_total_bytes", ENOSPC);
    export_as(65534, PARAMETER "max_user_bytes", EDQUOT);
}

static void set_iova_limit(int limit, uint64_t bytes)
{
    char text[32];
    int length;

    length = snprintf(text, sizeof(text), "%lld", (long long)bytes);
    CHECK_EQ(pwrite(limit, text, length, 0), length);
}

static uint64_t iova_of_user(int ctx, int edu)
{
    struct nprdma_ioc_attach_device arg = {.size = sizeof(arg)};

    edu_name(edu, arg.name, sizeof(arg.name));
    CHECK_CALL(ctx, NPRDMA_IOC_ATTACH_DEVICE, &arg, 0);
    return arg.iova_bytes;
}

/* Two regions of 64 pages; each has 128 pages of windows and 1 of states */
static void import_limited(int limit, int edu, int other)
{
    const uint64_t each = 129 * PAGE;
    kmod_region_t first, second;
    int ctx = kmod_open();
    int dmabufs[2];

    CHECK_EQ(iova_of_user(ctx, edu), 0);
    kmod_region_create(&first, ctx, kmod_map(64 * PAGE), 64 * PAGE);
    kmod_region_create(&second, ctx, kmod_map(64 * PAGE), 64 * PAGE);
    dmabufs[0] = export(&first);
    dmabufs[1] = export(&second);
    set_iova_limit(limit, each - 1);
    CHECK_EQ(import(edu, dmabufs[0], NULL), EDQUOT);
    CHECK_EQ(iova_of_user(ctx, edu), 0);
    set_iova_limit(limit, 2 * each - 1);
    CHECK_EQ(import(edu, dmabufs[0], NULL), 0);
    CHECK_EQ(iova_of_user(ctx, edu), each);
    CHECK_EQ(import(other, dmabufs[1], NULL), EDQUOT);

    /* A second import of the same region needs no addresses */
    CHECK_EQ(import(other, dmabufs[0], NULL), 0);
    CHECK_EQ(iova_of_user(ctx, edu), each);
    edu_release(other);
    set_iova_limit(limit, 2 * each);
    CHECK_EQ(import(other, dmabufs[1], NULL), 0);
    CHECK_EQ(iova_of_user(ctx, edu), 2 * each);
    edu_release(edu);
    edu_release(other);
    CHECK_EQ(iova_of_user(ctx, edu), 0);
}

/* I/O addresses of a user on a device are bounded */
static void test_iova_limit(void)
{
    int limit = open(PARAMETER "max_user_iova_bytes", O_RDWR);
    int edu   = edu_open();
    int other = edu_open();
    int status;
    pid_t pid;

    CHECK(limit >= 0, "%m");
    CHECK(chmod(NPRDMA_DEVICE_PATH, 0666) == 0, "%m");
    pid = fork();
    CHECK(pid >= 0, "%m");
    if (pid == 0) {
        CHECK(setresuid(65534, 65534, 65534) == 0, "%m");
        import_limited(limit, edu, other);
        fflush(stdout);
        _exit(0);
    }
    status = kmod_wait(pid);
    set_iova_limit(limit, 0);
    CHECK_EQ(status, 0);
}

/* A region of 64 pages, and a device that may import it */
static void attach_region(kmod_region_t *region, int edu)
{
    int ctx = kmod_open();

    iova_of_user(ctx, edu);
    kmod_region_create(region, ctx, kmod_map(64 * PAGE), 64 * PAGE);
}

/* Another user takes what is left of this many bytes, or cannot */
static void import_as_other(int limit, uint64_t bytes, int expected)
{
    int edu = edu_open();
    kmod_region_t region;
    int status;
    pid_t pid;

    set_iova_limit(limit, bytes);
    pid = fork();
    CHECK(pid >= 0, "%m");
    if (pid == 0) {
        CHECK(setresuid(65534, 65534, 65534) == 0, "%m");
        attach_region(&region, edu);
        CHECK_EQ(import(edu, export(&region), NULL), expected);
        fflush(stdout);
        _exit(0);
    }
    status = kmod_wait(pid);
    close(edu);
    CHECK_EQ(status, 0);
}

/* So are those of all users together, whatever their privileges */
static void test_iova_total(void)
{
    const uint64_t each = 129 * PAGE;
    int limit = open(PARAMETER "max_total_iova_bytes", O_RDWR);
    int edu   = edu_open();
    kmod_region_t region;
    int dmabuf, ret;

    CHECK(limit >= 0, "%m");
    CHECK(chmod(NPRDMA_DEVICE_PATH, 0666) == 0, "%m");
    attach_region(&region, edu);
    dmabuf = export(&region);
    set_iova_limit(limit, each - 1);
    ret = import(edu, dmabuf, NULL);
    set_iova_limit(limit, each);
    CHECK_EQ(ret, ENOSPC);
    CHECK_EQ(import(edu, dmabuf, NULL), 0);
    import_as_other(limit, 2 * each - 1, ENOSPC);
    import_as_other(limit, 2 * each, 0);
    set_iova_limit(limit, 0);
}

/* If the descriptor's number cannot be returned, no descriptor exists */
static void test_export_unseen(void)
{
    struct nprdma_ioc_export *arg;
    kmod_region_t region;
    int fds;

    kmod_region_create(&region, kmod_open(), kmod_map(PAGE), PAGE);
    arg         = (void*)kmod_map(PAGE);
    arg->size   = sizeof(*arg);
    arg->region = region.id;
    fds         = kmod_count_fds();
    CHECK(mprotect(arg, PAGE, PROT_READ) == 0, "%m");
    CHECK_CALL(region.ctx, NPRDMA_IOC_EXPORT, arg, EFAULT);
    CHECK_EQ(kmod_count_fds(), fds);
    kmod_region_destroy(&region);
    CHECK_EQ(close(region.ctx), 0);
    /* The module's reference is released as well */
    CHECK(kmod_await(is_unused, NULL), "%lld", users_of_module());
}

static int try_attach(fixture_t *f)
{
    char name[32], why[NPRDMA_WHY_SIZE];
    int ret;

    edu_name(f->edu, name, sizeof(name));
    ret = attach(f->region.ctx, name, why, sizeof(why));
    CHECK(!strcmp(why, "out of memory") == (ret == ENOMEM), "%s", why);
    return ret;
}

static int try_export(fixture_t *f)
{
    struct nprdma_ioc_export arg = {
        .size = sizeof(arg), .region = f->region.id
    };
    int ret = kmod_call(f->region.ctx, NPRDMA_IOC_EXPORT, &arg);

    f->dmabuf = (ret == 0) ? arg.fd : -1;
    return ret;
}

static int try_import(fixture_t *f)
{
    return import(f->edu, f->dmabuf, NULL);
}

/* Call with a failure of one of the kernel's functions. Returns 0 if fewer of
 * them are called. */
static int fail_once(fixture_t *f, int (*call)(fixture_t *f), unsigned at)
{
    uint64_t bytes = user_bytes(f->region.ctx);
    char name[64];
    int ret, forced;

    kmod_force(at);
    ret    = call(f);
    forced = kmod_forced(name, sizeof(name));
    kmod_force(0);
    if (forced) {
        printf("  %s: %s\n", name, strerror(ret));
        CHECK_EQ(ret, !strcmp(name, "get_unused_fd_flags") ? EMFILE :
                      !strcmp(name, "dma_buf_export") ? ENFILE : ENOMEM);
        CHECK_EQ(user_bytes(f->region.ctx), bytes);
    } else {
        CHECK_EQ(ret, 0);
    }
    return forced;
}

/* Lets each of them fail; there are at least n */
static void fail_each(fixture_t *f, int (*call)(fixture_t *f), unsigned n)
{
    unsigned at = 1;

    while (fail_once(f, call, at)) {
        ++at;
    }
    CHECK(at > n, "%u", at);
}

/*
 * A call that fails in the middle leaves nothing behind, and succeeds
 * afterwards. The first attach of a device makes two windows and an entry for
 * the device. An export makes two areas, which stay, then a descriptor and a
 * file. An import accounts for its I/O addresses, makes two windows, and a
 * mapping and a list of the states, and each window makes at least three
 * allocations.
 */
static void test_no_memory(void)
{
    fixture_t f;

    kmod_force_needed();
    f.edu = edu_open();
    kmod_region_create(&f.region, kmod_open(), kmod_map(NPAGES * PAGE),
                       NPAGES * PAGE);
    f.signature = f.region.header->signature;
    edu_fill(at(&f, 3), 0x33);
    kmod_populate_all(&f.region, 3, 1, 0);
    fail_each(&f, try_attach, 2 * 3 + 3);
    CHECK(fail_once(&f, try_export, 1) && fail_once(&f, try_export, 2));
    CHECK_EQ(try_export(&f), 0);
    fail_each(&f, try_export, 2);
    fail_each(&f, try_import, 2 * 3 + 6);
    CHECK_EQ(edu_read(f.edu, in_r(3)), 0x33);
    CHECK_EQ(edu_read(f.edu, in_r(4)), f.signature);
}

/* A process that is killed while it imports does not finish the import, which
 * may take long */
static void import_and_die(int edu, unsigned at)
{
    struct nprdma_edu_address address = {.offset = 0};
    fixture_t f;
    char name[64];
    pid_t pid;

    pid = fork();
    CHECK(pid >= 0, "%m");
    if (pid == 0) {
        setup_region(&f, NPAGES);
        kmod_populate_all(&f.region, 0, NPAGES, NPRDMA_IOC_POPULATE_WRITE);
        kmod_force(at);
        import(edu, f.dmabuf, NULL);
        /* The signal takes effect when the system call returns */
        _exit(1);
    }
    CHECK_EQ(kmod_wait(pid), 1000 + SIGKILL);
    CHECK(kmod_forced(name, sizeof(name)));
    printf("  %s\n", name);
    CHECK_CALL(edu, NPRDMA_EDU_IOC_ADDRESS, &address, EINVAL);
}

/* Killed at each kernel function that fails in test_no_memory, up to the last
 * one before the windows and the states are complete */
static void test_killed_importing(void)
{
    int edu = edu_open();
    int ctx = kmod_open();
    fixture_t f;
    unsigned at;

    kmod_force_needed();
    CHECK(kmod_await(has_no_bytes, &ctx));
    CHECK_EQ(kmod_write_file(KMOD_FORCE "fatal", "1"), 0);
    for (at = 1; at <= 2 * 3 + 4; ++at) {
        import_and_die(edu, at);
        CHECK(kmod_await(has_no_bytes, &ctx), "%llu",
              (unsigned long long)user_bytes(ctx));
    }
    CHECK_EQ(kmod_write_file(KMOD_FORCE "fatal", "0"), 0);
    setup(&f);
    CHECK_EQ(edu_read(f.edu, in_r(3)), f.signature);
}

int main(int argc, char **argv)
{
    static const kmod_case_t cases[] = {
        {"no_memory",        test_no_memory}, /* before the device passes */
        {"accounted",        test_accounted},
        {"iova_limit",       test_iova_limit},
        {"iova_total",       test_iova_total},
        {"unseen",           test_export_unseen},
        {"killed_importing", test_killed_importing},
        {NULL,               NULL}
    };

    return kmod_main(cases, argc, argv);
}
