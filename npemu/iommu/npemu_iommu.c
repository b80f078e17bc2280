/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "base/npemu_file.h"
#include "base/npemu_log.h"
#include "iommu/npemu_table.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

static void npemu_iommu_fill(npemu_iommu_header_t *header, uint64_t address,
                             size_t length, uint64_t signature)
{
    uint64_t *page = (uint64_t*)((uint8_t*)header + NPEMU_TABLE_SIGNATURE);
    size_t i;

    header->version   = NPEMU_TABLE_VERSION;
    header->pid       = getpid();
    header->address   = address;
    header->length    = length;
    header->signature = signature;
    if (getrandom(&header->id, sizeof(header->id), 0) !=
        sizeof(header->id)) {
        header->id = npemu_time_ns() ^ ((uint64_t)header->pid << 40);
    }
    for (i = 0; i < NPRDMA_PAGE_SIZE / sizeof(*page); ++i) {
        page[i] = signature;
    }
    atomic_store(&header->magic, NPEMU_TABLE_MAGIC);
}

int npemu_iommu_create(uint64_t address, size_t length, uint64_t signature,
                       npemu_iommu_t *iommu)
{
    size_t num_pages, size;
    int ret;

    if ((length == 0) || ((address | length) & (NPRDMA_PAGE_SIZE - 1)) ||
        (address + length < address)) {
        return EINVAL;
    }

    num_pages = length / NPRDMA_PAGE_SIZE;
    size      = npemu_table_size(num_pages);
    iommu->fd = npemu_file_create("nprdma-region", size);
    if (iommu->fd < 0) {
        ret = errno;
        goto err;
    }

    iommu->header = npemu_table_map(iommu->fd, size);
    if (iommu->header == NULL) {
        ret = errno;
        close(iommu->fd);
        goto err;
    }

    iommu->states    = (nprdma_page_state_t*)((uint8_t*)iommu->header +
                                              NPEMU_TABLE_STATES);
    iommu->num_pages = num_pages;
    npemu_iommu_fill(iommu->header, address, length, signature);
    return 0;

err:
    npemu_debug("cannot make an IOMMU table for %zu bytes at 0x%lx: %s",
                length, (unsigned long)address, strerror(ret));
    return ret;
}

void npemu_iommu_destroy(npemu_iommu_t *iommu)
{
    size_t array = npemu_table_array_size(iommu->num_pages);

    atomic_store(&iommu->header->dead, 1);
    /* Peers may have it mapped: all pages absent, and the memory freed */
    if (syscall(SYS_madvise, (uint8_t*)iommu->header + NPEMU_TABLE_STATES,
                array, MADV_REMOVE) < 0) {
        npemu_iommu_invalidate(iommu, 0, iommu->num_pages, NPRDMA_PAGE_BITS,
                               0);
    }
    npemu_table_unmap(iommu->header, npemu_table_size(iommu->num_pages));
    if (iommu->fd >= 0) {
        close(iommu->fd);
    }
}

/* Also changes the words of pages that have none of the bits: threads that are
 * about to set bits of the old word must fail. @return As
 * nprdma_page_clear_all(). */
NPEMU_HOOK
static size_t npemu_iommu_touch(nprdma_page_state_t *states, size_t count,
                                uint32_t bits)
{
    size_t cleared = 0;
    uint32_t word;
    size_t i;

    for (i = 0; i < count; ++i) {
        word = nprdma_page_clear(&states[i], bits);
        while (!(word & bits) &&
               !nprdma_page_change(&states[i], word, word & NPRDMA_PAGE_BITS)) {
            word = nprdma_page_clear(&states[i], bits);
        }
        cleared += !!(word & bits);
    }

    return cleared;
}

NPEMU_HOOK
size_t npemu_iommu_invalidate(npemu_iommu_t *iommu, size_t first, size_t count,
                              uint32_t bits, int touch)
{
    nprdma_page_state_t *states = &iommu->states[first];
    size_t cleared  = nprdma_page_clear_all(states, count, bits);
    /* Behind it, because a NIC marks the table before it clears a bit */
    uint32_t marked = atomic_load(&iommu->header->marked);

    if (marked || touch) {
        cleared += npemu_iommu_touch(states, count, bits);
    }
    return (cleared > 0) ? cleared : marked;
}

void npemu_iommu_query(const npemu_iommu_t *iommu, npemu_iommu_stats_t *stats)
{
    const npemu_iommu_header_t *header = iommu->header;

    stats->absent_reads  = atomic_load(&header->absent_reads);
    stats->absent_writes = atomic_load(&header->absent_writes);
    stats->efault        = atomic_load(&header->efault);
    stats->faults        = atomic_load(&header->faulted);
    stats->restored      = atomic_load(&header->restored);
}
