/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "edu.h"

#include <fcntl.h>
#include <unistd.h>

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

void edu_release(int edu)
{
    CHECK_CALL(edu, NPRDMA_EDU_IOC_RELEASE, NULL, 0);
}

void edu_fill(void *page, uint64_t word)
{
    volatile uint64_t *words = page;
    size_t i;

    for (i = 0; i < PAGE / sizeof(word); ++i) {
        words[i] = word;
    }
}

int edu_holds(const void *page, uint64_t word)
{
    const volatile uint64_t *words = page;
    size_t i;

    for (i = 0; i < PAGE / sizeof(word); ++i) {
        if (words[i] != word) {
            return 0;
        }
    }
    return 1;
}
