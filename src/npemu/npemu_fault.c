/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* The fault plan of a table: "on the nth access to a page, evict it". */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "npemu_table.h"

int npemu_fault_add(npemu_iommu_header_t *header, const npemu_fault_t *fault)
{
    npemu_fault_entry_t *entry = NULL;
    uint32_t i, count;

    if ((fault->page >= header->length / NPEMU_PAGE_SIZE) ||
        !(fault->windows & NPRDMA_PAGE_BITS) || (fault->access == 0) ||
        (fault->tear > NPEMU_PAGE_SIZE)) {
        return -1;
    }

    npemu_spin_lock(&header->fault_lock);
    count = atomic_load(&header->num_faults);
    for (i = 0; (i < count) && (atomic_load(&header->faults[i].state) !=
                                NPEMU_FAULT_FREE); ++i) {
    }
    if (i < NPEMU_FAULT_MAX) {
        entry        = &header->faults[i];
        entry->fault = *fault;
        atomic_store(&entry->seen, 0);
        atomic_store(&entry->hit, 0);
        atomic_store(&entry->state, NPEMU_FAULT_WAITING);
        atomic_store(&header->num_faults, (i < count) ? count : i + 1);
        atomic_fetch_or(&header->hooks, NPEMU_HOOK_FAULTS);
    }
    npemu_spin_unlock(&header->fault_lock);
    return (entry == NULL) ? -1 : (int)i;
}

void npemu_fault_clear(npemu_iommu_header_t *header)
{
    uint32_t i, count;

    npemu_spin_lock(&header->fault_lock);
    atomic_fetch_and(&header->hooks, ~NPEMU_HOOK_FAULTS);
    count = atomic_load(&header->num_faults);
    for (i = 0; i < count; ++i) {
        atomic_store(&header->faults[i].state, NPEMU_FAULT_FREE);
    }
    atomic_store(&header->num_faults, 0);
    npemu_spin_unlock(&header->fault_lock);
}

int npemu_fault_hits(npemu_iommu_header_t *header, int index)
{
    return (index >= 0) && (index < NPEMU_FAULT_MAX) &&
           (atomic_load(&header->faults[index].hit) != 0);
}
