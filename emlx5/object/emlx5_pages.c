/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "object/emlx5_pages.h"
#include "base/emlx5_bytes.h"

#include <stdlib.h>

enum { EMLX5_PAGES_MAX_SHIFT = 31, EMLX5_ENTRY = 64, EMLX5_ENTRY_BODY = 60 };

int emlx5_pages_init(emlx5_pages_t *pages, const void *list, uint64_t bytes,
                     uint32_t log_page, uint32_t offset, uint64_t size)
{
    uint32_t shift = log_page + 12;
    uint64_t i, count, start;

    if ((log_page > EMLX5_PAGES_MAX_SHIFT - 12) || (offset > 63)) {
        return -1;
    }
    start = (uint64_t)offset << (shift - 6);
    count = (start + size + (1ull << shift) - 1) >> shift;
    if (count > bytes / 8) {
        return -1;
    }
    pages->bus = calloc((count > 0) ? count : 1, sizeof(*pages->bus));
    if (pages->bus == NULL) {
        return -1;
    }
    for (i = 0; i < count; ++i) {
        pages->bus[i] = emlx5_be64((const uint8_t*)list + (8 * i)) & ~0xfffull;
    }
    pages->shift  = shift;
    pages->offset = start;
    pages->size   = size;
    return 0;
}

void emlx5_pages_cleanup(emlx5_pages_t *pages)
{
    free(pages->bus);
    pages->bus  = NULL;
    pages->size = 0;
}

/* Bus address of a byte of the ring; *length becomes smaller if the page ends
 * before. */
static uint64_t emlx5_pages_at(const emlx5_pages_t *pages, uint64_t at,
                               uint32_t *length)
{
    uint64_t left, in_page;

    at     += pages->offset;
    in_page = at & ((1ull << pages->shift) - 1);
    left    = (1ull << pages->shift) - in_page;
    if (*length > left) {
        *length = left;
    }
    return pages->bus[at >> pages->shift] + in_page;
}

static int emlx5_pages_has(const emlx5_pages_t *pages, uint64_t at,
                           uint32_t length)
{
    return (at <= pages->size) && (length <= pages->size - at);
}

int emlx5_pages_read(emlx5_dma_t *dma, const emlx5_pages_t *pages, uint64_t at,
                     void *data, uint32_t length)
{
    uint32_t part;
    uint64_t bus;

    if (!emlx5_pages_has(pages, at, length)) {
        return -1;
    }
    for (; length > 0; length -= part) {
        part = length;
        bus  = emlx5_pages_at(pages, at, &part);
        emlx5_dma_get(dma, bus, data, part);
        at  += part;
        data = (uint8_t*)data + part;
    }
    return emlx5_dma_finish(dma);
}

void emlx5_pages_write(emlx5_dma_t *dma, const emlx5_pages_t *pages,
                       uint64_t at, const void *data, uint32_t length)
{
    uint32_t part;
    uint64_t bus;

    if (!emlx5_pages_has(pages, at, length)) {
        return;
    }
    for (; length > 0; length -= part) {
        part = length;
        bus  = emlx5_pages_at(pages, at, &part);
        emlx5_dma_write(dma, bus, data, part);
        at  += part;
        data = (const uint8_t*)data + part;
    }
}

void emlx5_pages_write_entry(emlx5_dma_t *dma, const emlx5_pages_t *pages,
                             uint64_t at, const uint8_t *entry)
{
    emlx5_pages_write(dma, pages, at, entry, EMLX5_ENTRY_BODY);
    emlx5_pages_write(dma, pages, at + EMLX5_ENTRY_BODY,
                      entry + EMLX5_ENTRY_BODY, EMLX5_ENTRY - EMLX5_ENTRY_BODY);
}
