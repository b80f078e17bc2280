/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "edu_fixture.h"

#include <sys/mman.h>

void device_name(int edu, char *name, size_t size)
{
    const char *device = getenv("EDU_DEVICE");

    if (device != NULL) {
        snprintf(name, size, "%s", device);
    } else {
        edu_name(edu, name, size);
    }
}

int attach(int ctx, const char *name, char *why, size_t size)
{
    struct nprdma_ioc_attach_device arg = {.size = sizeof(arg)};
    int ret;

    snprintf(arg.name, sizeof(arg.name), "%s", name);
    ret = kmod_call(ctx, NPRDMA_IOC_ATTACH_DEVICE, &arg);
    snprintf(why, size, "%s", arg.why);
    return ret;
}

int export(kmod_region_t *region)
{
    struct nprdma_ioc_export arg = {
        .size = sizeof(arg), .region = region->id
    };

    CHECK_CALL(region->ctx, NPRDMA_IOC_EXPORT, &arg, 0);
    return arg.fd;
}

int import(int edu, int dmabuf, struct nprdma_edu_import *arg)
{
    struct nprdma_edu_import unused;

    arg     = (arg == NULL) ? &unused : arg;
    arg->fd = dmabuf;
    return kmod_call(edu, NPRDMA_EDU_IOC_IMPORT, arg);
}

void setup_region(fixture_t *f, size_t num_pages)
{
    char name[32], why[NPRDMA_WHY_SIZE];
    int ctx, ret;

    f->edu = edu_open();
    ctx    = kmod_open();
    edu_name(f->edu, name, sizeof(name));
    ret    = attach(ctx, name, why, sizeof(why));
    CHECK(ret == 0, "%s", why);
    kmod_region_create(&f->region, ctx, kmod_map(num_pages * PAGE),
                       num_pages * PAGE);
    f->words     = (void*)f->region.memory;
    f->signature = f->region.header->signature;
    f->dmabuf    = export(&f->region);
}

void setup(fixture_t *f)
{
    setup_region(f, NPAGES);
    CHECK_EQ(import(f->edu, f->dmabuf, NULL), 0);
}

/* Offsets of a page in the windows */
uint64_t in_r(size_t page)
{
    return page * PAGE;
}

uint64_t in_w(const fixture_t *f, size_t page)
{
    return f->region.length + page * PAGE;
}

uint64_t in_states(const fixture_t *f, size_t page)
{
    return 2 * f->region.length + page * sizeof(uint32_t);
}

void *at(const fixture_t *f, size_t page)
{
    return f->region.memory + page * PAGE;
}

void take_away(const fixture_t *f, size_t page)
{
    CHECK(madvise(at(f, page), PAGE, MADV_DONTNEED) == 0, "%m");
}

/* Each dma-buf and each import holds a reference of the module */
long long users_of_module(void)
{
    return kmod_read_number("/sys/module/nprdma/refcnt", "");
}

int is_unused(void *arg)
{
    (void)arg;
    return users_of_module() == 0;
}

uint64_t user_bytes(int ctx)
{
    struct nprdma_ioc_query query = {.size = sizeof(query)};

    CHECK_CALL(ctx, NPRDMA_IOC_QUERY, &query, 0);
    return query.user_bytes;
}
