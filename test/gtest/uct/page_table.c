/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "page_table.h"

#include "iommu/npemu_table.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct page_table {
    npemu_iommu_header_t *header;
    size_t               size;
};

/* Whether a descriptor is a table of this process that covers an address */
static npemu_iommu_header_t *
page_table_map(int fd, uintptr_t address, size_t *size)
{
    npemu_iommu_header_t *header;
    struct stat st;

    if ((fstat(fd, &st) != 0) || (st.st_size < (off_t)NPEMU_TABLE_STATES)) {
        return NULL;
    }

    *size  = st.st_size;
    header = npemu_table_map(fd, *size);
    if (header == NULL) {
        return NULL;
    }

    if ((atomic_load(&header->magic) == NPEMU_TABLE_MAGIC) &&
        (header->pid == getpid()) && !atomic_load(&header->dead) &&
        (address >= header->address) &&
        (address - header->address < header->length)) {
        return header;
    }

    npemu_table_unmap(header, *size);
    return NULL;
}

page_table_t *page_table_find(const void *address)
{
    npemu_iommu_header_t *header = NULL;
    DIR *dir                     = opendir("/proc/self/fd");
    page_table_t *table          = NULL;
    struct dirent *entry;
    char path[300], target[64];
    size_t size = 0;
    ssize_t ret;

    while ((dir != NULL) && (header == NULL) &&
           ((entry = readdir(dir)) != NULL)) {
        snprintf(path, sizeof(path), "/proc/self/fd/%s", entry->d_name);
        ret = readlink(path, target, sizeof(target) - 1);
        if ((ret > 0) && (memcmp(target, "/memfd:", 7) == 0)) {
            header = page_table_map(atoi(entry->d_name), (uintptr_t)address,
                                    &size);
        }
    }
    if (dir != NULL) {
        closedir(dir);
    }

    if (header != NULL) {
        table         = malloc(sizeof(*table));
        table->header = header;
        table->size   = size;
    }
    return table;
}

void page_table_close(page_table_t *table)
{
    npemu_table_unmap(table->header, table->size);
    free(table);
}

static uint64_t page_table_index(page_table_t *table, const void *address)
{
    return ((uintptr_t)address - table->header->address) / NPRDMA_PAGE_SIZE;
}

static nprdma_page_state_t *
page_table_state(page_table_t *table, const void *address)
{
    return (nprdma_page_state_t*)((char*)table->header + NPEMU_TABLE_STATES) +
           page_table_index(table, address);
}

uint64_t page_table_signature(page_table_t *table)
{
    return table->header->signature;
}

uint32_t page_table_word(page_table_t *table, const void *address)
{
    return nprdma_page_load(page_table_state(table, address));
}

void page_table_evict(page_table_t *table, const void *address, uint32_t bits)
{
    atomic_store(&table->header->marked, 1);
    nprdma_page_clear(page_table_state(table, address), bits);
}

int page_table_fault(page_table_t *table, const page_fault_t *fault)
{
    npemu_fault_t entry = {
        .page       = page_table_index(table, fault->address),
        .views    = fault->views,
        .access     = fault->access,
        .tear       = fault->tear,
        .restore    = fault->restore,
        .from_start = fault->from_start
    };

    return npemu_fault_add(table->header, &entry);
}

int page_table_fault_hits(page_table_t *table, int index)
{
    return npemu_fault_hits(table->header, index);
}

void page_table_fault_clear(page_table_t *table)
{
    npemu_fault_clear(table->header);
}

void page_table_gate_arm(page_table_t *table, int point, const void *address)
{
    npemu_gate_arm(table->header, (npemu_gate_point_t)point,
                   (address == NULL) ? NPEMU_GATE_ANY_PAGE :
                                       page_table_index(table, address));
}

int page_table_gate_wait(page_table_t *table, int point, int timeout_ms)
{
    return npemu_gate_wait(table->header, (npemu_gate_point_t)point,
                           timeout_ms);
}

void page_table_gate_release(page_table_t *table, int point)
{
    npemu_gate_release(table->header, (npemu_gate_point_t)point);
}

void page_table_query(page_table_t *table, page_table_stats_t *stats)
{
    npemu_iommu_header_t *header = table->header;

    stats->absent_reads  = atomic_load(&header->absent_reads);
    stats->absent_writes = atomic_load(&header->absent_writes);
    stats->efault        = atomic_load(&header->efault);
}
