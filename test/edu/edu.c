/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "edu.h"

#define EDU_WORDS (EDU_DMA / sizeof(uint64_t))

int edu_open(void)
{
    int edu = open(NPRDMA_EDU_PATH, O_RDWR | O_CLOEXEC);
    struct nprdma_edu_info info;

    if (edu < 0) {
        kmod_skip("%s: %m", NPRDMA_EDU_PATH);
    }
    if (kmod_call(edu, NPRDMA_EDU_IOC_INFO, &info) == ENODEV) {
        kmod_skip("there is no edu device");
    }
    return edu;
}

void edu_name(int edu, char *name, size_t size)
{
    struct nprdma_edu_info info;

    CHECK_CALL(edu, NPRDMA_EDU_IOC_INFO, &info, 0);
    snprintf(name, size, "%s", info.name);
}

int check_named(int ctx, const char *name, struct nprdma_ioc_check_device *arg)
{
    memset(arg, 0, sizeof(*arg));
    arg->size = sizeof(*arg);
    snprintf(arg->name, sizeof(arg->name), "%s", name);
    return kmod_call(ctx, NPRDMA_IOC_CHECK_DEVICE, arg);
}

int check_edu(int ctx, int edu, struct nprdma_ioc_check_device *arg)
{
    char name[32];

    edu_name(edu, name, sizeof(name));
    return check_named(ctx, name, arg);
}

int export(kmod_region_t *region)
{
    struct nprdma_ioc_export arg = {
        .size = sizeof(arg), .region = region->id
    };

    CHECK_CALL(region->ctx, NPRDMA_IOC_EXPORT, &arg, 0);
    return arg.fd;
}

int import(int edu, int dmabuf, uint64_t *size)
{
    struct nprdma_edu_import arg = {.fd = dmabuf};
    int ret                      = kmod_call(edu, NPRDMA_EDU_IOC_IMPORT, &arg);

    if (size != NULL) {
        *size = arg.size;
    }
    return ret;
}

void edu_release(int edu)
{
    CHECK_CALL(edu, NPRDMA_EDU_IOC_RELEASE, NULL, 0);
}

void setup_region(fixture_t *f, size_t num_pages)
{
    struct nprdma_ioc_check_device arg;

    f->edu = edu_open();
    kmod_region(&f->region, num_pages);
    CHECK(check_edu(f->region.ctx, f->edu, &arg) == 0, "%s", arg.why);
    f->words     = (void*)f->region.memory;
    f->signature = f->region.header->signature;
    f->dmabuf    = export(&f->region);
}

void setup(fixture_t *f)
{
    setup_region(f, NPAGES);
    CHECK_EQ(import(f->edu, f->dmabuf, NULL), 0);
}

void edu_read_bytes(int edu, uint64_t offset, void *data, uint32_t length)
{
    struct nprdma_edu_dma dma = {
        .offset = offset, .data = (uintptr_t)data, .length = length
    };

    CHECK_CALL(edu, NPRDMA_EDU_IOC_DMA, &dma, 0);
}

uint64_t edu_read(int edu, uint64_t offset)
{
    uint64_t data[EDU_WORDS];
    size_t i;

    edu_read_bytes(edu, offset, data, sizeof(data));
    for (i = 1; i < EDU_WORDS; ++i) {
        CHECK(data[i] == data[0], "word %zu is %#lx, after %#lx", i, data[i],
              data[0]);
    }
    return data[0];
}

void edu_write(int edu, uint64_t offset, uint64_t word)
{
    uint64_t data[EDU_WORDS];
    struct nprdma_edu_dma dma = {
        .offset = offset,
        .data   = (uintptr_t)data,
        .length = sizeof(data),
        .write  = 1
    };
    size_t i;

    for (i = 0; i < EDU_WORDS; ++i) {
        data[i] = word;
    }
    CHECK_CALL(edu, NPRDMA_EDU_IOC_DMA, &dma, 0);
}

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

void edu_fill(const fixture_t *f, size_t page, uint64_t word)
{
    volatile uint64_t *words = at(f, page);
    size_t i;

    for (i = 0; i < PAGE / sizeof(word); ++i) {
        words[i] = word;
    }
}

int edu_holds(const fixture_t *f, size_t page, uint64_t word)
{
    const volatile uint64_t *words = at(f, page);
    size_t i;

    for (i = 0; (i < PAGE / sizeof(word)) && (words[i] == word); ++i) {
    }
    return i == PAGE / sizeof(word);
}

int is_unused(void *arg)
{
    (void)arg;
    return kmod_read_number("/sys/module/nprdma/refcnt", "") == 0;
}
