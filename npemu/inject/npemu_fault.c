/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* The fault plan of a table: "on the nth access to a page, evict it". */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "inject/npemu_fault.h"

int npemu_fault_add(npemu_iommu_header_t *header, const npemu_fault_t *fault)
{
    npemu_fault_entry_t *entry = NULL;
    uint32_t i, count;

    if ((fault->page >= header->length / NPRDMA_PAGE_SIZE) ||
        !(fault->views & NPRDMA_PAGE_BITS) || (fault->access == 0) ||
        (fault->tear > NPRDMA_PAGE_SIZE)) {
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

/* --- execution -------------------------------------------------------------*/

static int npemu_fault_concerns(const npemu_fault_entry_t *entry,
                                const npemu_fault_ticket_t *ticket,
                                uint32_t state)
{
    return (atomic_load(&entry->state) == state) &&
           (entry->fault.page == ticket->page) &&
           (entry->fault.views & ticket->view);
}

/* Where in the page an entry tears the access. */
static uint32_t npemu_fault_tear(const npemu_fault_t *fault, uint32_t start)
{
    uint32_t tear = fault->tear + (fault->from_start ? start : 0);

    return (tear < NPRDMA_PAGE_SIZE) ? tear : NPRDMA_PAGE_SIZE;
}

void npemu_fault_begin(npemu_table_t *table, uint64_t offset, uint32_t view,
                       npemu_fault_ticket_t *ticket)
{
    npemu_iommu_header_t *header = table->header;
    npemu_fault_entry_t *entry;
    uint32_t i, count;

    ticket->page   = offset / NPRDMA_PAGE_SIZE;
    ticket->start  = offset % NPRDMA_PAGE_SIZE;
    ticket->view = view;
    ticket->evict  = 0;
    ticket->entry  = NULL;
    if (!(nprdma_page_load(&table->states[ticket->page]) & view)) {
        return; /* only present pages can be evicted */
    }

    count = atomic_load(&header->num_faults);
    for (i = 0; (i < count) && !ticket->evict; ++i) {
        entry = &header->faults[i];
        if (npemu_fault_concerns(entry, ticket, NPEMU_FAULT_WAITING) &&
            (atomic_fetch_add(&entry->seen, 1) + 1 == entry->fault.access)) {
            ticket->evict   = 1;
            ticket->entry   = entry;
            ticket->tear    = npemu_fault_tear(&entry->fault, ticket->start);
            ticket->restore = entry->fault.restore;
        }
    }

    if (!ticket->evict && atomic_load(&npemu_random_active)) {
        npemu_random_decide(ticket);
    }
}

void npemu_fault_evict(npemu_table_t *table, npemu_fault_ticket_t *ticket)
{
    nprdma_page_state_t *state   = &table->states[ticket->page];
    npemu_iommu_header_t *header = table->header;
    npemu_fault_entry_t *entry   = ticket->entry;
    uint32_t word;

    ticket->evict = 0;
    /* Before the state: see npemu_iommu_invalidate() */
    atomic_store(&header->marked, 1);
    word = nprdma_page_clear(state, NPRDMA_PAGE_BITS);
    if (!(word & NPRDMA_PAGE_BITS)) {
        /* It is absent already: the next access that finds it present evicts */
        if (entry != NULL) {
            atomic_store(&entry->seen, entry->fault.access - 1);
        }
        return;
    }

    atomic_fetch_add(&header->faulted, 1);
    if (entry != NULL) {
        entry->word = nprdma_page_next(word, 0);
        entry->bits = word & NPRDMA_PAGE_BITS;
        atomic_store(&entry->seen, 0);
        atomic_store(&entry->hit, 1);
        atomic_store(&entry->state, (ticket->restore > 0) ?
                                            NPEMU_FAULT_EVICTED :
                                            NPEMU_FAULT_DONE);
    }
}

void npemu_fault_end(npemu_table_t *table, npemu_fault_ticket_t *ticket)
{
    npemu_iommu_header_t *header = table->header;
    npemu_fault_entry_t *entry;
    uint32_t i, count, evicted;

    if (ticket->evict) {
        npemu_fault_evict(table, ticket);
    }

    count = atomic_load(&header->num_faults);
    for (i = 0; i < count; ++i) {
        entry   = &header->faults[i];
        evicted = NPEMU_FAULT_EVICTED;
        if (!npemu_fault_concerns(entry, ticket, evicted) ||
            (atomic_fetch_add(&entry->seen, 1) + 1 < entry->fault.restore) ||
            !atomic_compare_exchange_strong(&entry->state, &evicted,
                                            NPEMU_FAULT_DONE)) {
            continue;
        }

        /* Not if a monitor has changed the word: the page may not exist */
        if (nprdma_page_change(&table->states[ticket->page], entry->word,
                               entry->bits)) {
            atomic_fetch_add(&header->restored, 1);
        }
    }
}
