/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "nprdma_regions.h"

#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>


/* Polls of the lock before the processor is yielded */
#define NPRDMA_REGIONS_SPIN 100

#define NPRDMA_REGIONS_BITS 64 /* Of a word of the bitmap */


/* In one mapping, which has memory where it was used */
struct nprdma_regions_memory {
    nprdma_regions_entry_t entries[2][NPRDMA_REGIONS_MAX];
    nprdma_region_obj_t    regions[NPRDMA_REGIONS_MAX];
};


/* By system calls: UCM would report calls of the C library to our own hooks */
static void *nprdma_regions_mmap(size_t size)
{
    long ptr = syscall(SYS_mmap, NULL, size, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    return (ptr == -1) ? NULL : (void*)ptr;
}

static void nprdma_regions_munmap(void *ptr, size_t size)
{
    syscall(SYS_munmap, ptr, size);
}

ucs_status_t nprdma_regions_init(nprdma_regions_t *table)
{
    memset(table, 0, sizeof(*table));
    table->memory = nprdma_regions_mmap(sizeof(*table->memory));
    if (table->memory == NULL) {
        return UCS_ERR_NO_MEMORY;
    }

    table->copies[0].entries = table->memory->entries[0];
    table->copies[1].entries = table->memory->entries[1];
    return UCS_OK;
}

void nprdma_regions_cleanup(nprdma_regions_t *table)
{
    nprdma_regions_munmap(table->memory, sizeof(*table->memory));
}


/* ---- objects ---- */

/* One that was used before, if there is one. NULL if all are in use. */
static nprdma_region_obj_t *nprdma_regions_take_free(nprdma_regions_t *table)
{
    nprdma_region_obj_t *region = table->free;

    if (region != NULL) {
        table->free = region->next;
    } else if (table->num_used < NPRDMA_REGIONS_MAX) {
        region = &table->memory->regions[table->num_used++];
        atomic_store(&region->refs, NPRDMA_REGION_FREE);
    }
    return region;
}

nprdma_region_obj_t *
nprdma_regions_alloc(nprdma_regions_t *table, uintptr_t address, size_t length,
                     int is_local)
{
    size_t num_chunks = (length + NPRDMA_CHUNK_SIZE - 1) >> NPRDMA_CHUNK_SHIFT;
    size_t words      = num_chunks * (NPRDMA_CHUNK_PAGES / NPRDMA_REGIONS_BITS);
    nprdma_region_obj_t *region;
    size_t info_size;
    char *info;

    info_size = words * (sizeof(*region->retired) + sizeof(*region->revoked) +
                         sizeof(*region->pending)) +
                num_chunks * (sizeof(*region->touched) +
                              sizeof(*region->marks));
    info      = nprdma_regions_mmap(info_size);
    if (info == NULL) {
        return NULL;
    }

    region = nprdma_regions_take_free(table);
    if (region == NULL) {
        nprdma_regions_munmap(info, info_size);
        return NULL;
    }

    memset(&region->super, 0, sizeof(region->super));
    region->super.address = address;
    region->super.length  = length;
    region->super.fd       = -1;
    region->super.is_local = is_local;
    region->num_ranges    = 0;
    region->backend_priv  = NULL;
    region->num_chunks    = num_chunks;
    region->info_size     = info_size;
    region->retired       = (_Atomic uint64_t*)info;
    region->revoked       = region->retired + words;
    region->pending       = region->revoked + words;
    region->touched       = (_Atomic uint8_t*)(region->pending + words);
    region->marks         = (uint8_t*)(region->touched + num_chunks);
    region->is_marked     = 0;
    ucs_list_head_init(&region->ranges);
    atomic_store(&region->lock, 0);
    atomic_store(&region->is_closed, 0);
    atomic_store(&region->idle_since, 0);
    atomic_store(&region->has_retired, 0);
    return region;
}

void nprdma_regions_free(nprdma_regions_t *table, nprdma_region_obj_t *region)
{
    nprdma_regions_munmap(region->retired, region->info_size);
    region->next = table->free;
    table->free  = region;
}

/* Take a reference that keeps a region alive; fails if it is being dropped */
static int nprdma_region_get(nprdma_region_obj_t *region)
{
    uint32_t refs = atomic_load_explicit(&region->refs, memory_order_relaxed);

    do {
        if (refs & NPRDMA_REGION_DYING) {
            return 0;
        }
    } while (!atomic_compare_exchange_weak(&region->refs, &refs, refs + 1));

    return 1;
}

/* Take a reference in a hook: hooks invalidate a region that is being dropped,
 * too */
NPRDMA_HOOK
static int nprdma_region_hold(nprdma_region_obj_t *region)
{
    uint32_t refs = atomic_load(&region->refs);

    do {
        if (refs == NPRDMA_REGION_FREE) {
            return 0;
        }
    } while (!atomic_compare_exchange_weak(&region->refs, &refs, refs + 1));

    return 1;
}

NPRDMA_HOOK
static void nprdma_region_release(nprdma_region_obj_t *region)
{
    atomic_fetch_sub(&region->refs, 1);
}

/* As nprdma_region_release(), but instrumented: ThreadSanitizer has to see that
 * accesses to the region happen before this */
void nprdma_region_put(nprdma_region_obj_t *region)
{
    atomic_fetch_sub(&region->refs, 1);
}

void nprdma_region_lock(nprdma_region_obj_t *region)
{
    unsigned spin = 0;

    while (atomic_exchange_explicit(&region->lock, 1, memory_order_acquire)) {
        if (++spin > NPRDMA_REGIONS_SPIN) {
            sched_yield();
        }
    }
}

void nprdma_region_unlock(nprdma_region_obj_t *region)
{
    atomic_store_explicit(&region->lock, 0, memory_order_release);
}


/* ---- table ---- */

/* Fields are stored with release and loaded with acquire order. The sequence
 * number changes before the copy that readers use. So a reader that has loaded
 * a new value of a field of its copy finds the new sequence number, and
 * retries. */
NPRDMA_HOOK
static const nprdma_regions_copy_t *
nprdma_regions_current(const nprdma_regions_t *table, uint32_t *seq_p)
{
    *seq_p = atomic_load(&table->seq);
    return &table->copies[*seq_p % 2];
}

NPRDMA_HOOK
static int nprdma_regions_read_retry(const nprdma_regions_t *table,
                                     uint32_t seq)
{
    return atomic_load_explicit(&table->seq, memory_order_relaxed) != seq;
}

uint32_t nprdma_regions_count(const nprdma_regions_t *table)
{
    uint32_t seq;

    return atomic_load(&nprdma_regions_current(table, &seq)->count);
}

NPRDMA_HOOK
static uintptr_t nprdma_regions_load(const _Atomic uintptr_t *field)
{
    return atomic_load_explicit(field, memory_order_acquire);
}

static void nprdma_regions_set(nprdma_regions_copy_t *copy, uint32_t i,
                               uintptr_t start, uintptr_t end,
                               nprdma_region_obj_t *region)
{
    nprdma_regions_entry_t *entry = &copy->entries[i];

    atomic_store_explicit(&entry->start, start, memory_order_release);
    atomic_store_explicit(&entry->end, end, memory_order_release);
    atomic_store_explicit(&entry->region, region, memory_order_release);
}

static void nprdma_regions_move(nprdma_regions_copy_t *copy, uint32_t to,
                                uint32_t from)
{
    const nprdma_regions_entry_t *entry = &copy->entries[from];

    nprdma_regions_set(copy, to, entry->start, entry->end, entry->region);
}

static void nprdma_regions_update_reach(nprdma_regions_copy_t *copy,
                                        uint32_t from, uint32_t count)
{
    uintptr_t reach = (from > 0) ? copy->entries[from - 1].reach : 0;
    uint32_t i;

    for (i = from; i < count; ++i) {
        if (copy->entries[i].end > reach) {
            reach = copy->entries[i].end;
        }
        atomic_store_explicit(&copy->entries[i].reach, reach,
                              memory_order_release);
    }
}

/* @return Number of entries that begin at or below an address */
NPRDMA_HOOK
static uint32_t nprdma_regions_upper(const nprdma_regions_copy_t *copy,
                                     uint32_t count, uintptr_t address)
{
    uint32_t low = 0;
    uint32_t middle;

    while (low < count) {
        middle = low + (count - low) / 2;
        if (nprdma_regions_load(&copy->entries[middle].start) <= address) {
            low   = middle + 1;
        } else {
            count = middle;
        }
    }

    return low;
}

/* Change both copies, first the one that is not read */
static void nprdma_regions_change(nprdma_regions_t *table,
                                  void (*change)(nprdma_regions_copy_t *copy,
                                                 nprdma_region_obj_t *region),
                                  nprdma_region_obj_t *region)
{
    uint32_t seq = atomic_load(&table->seq);

    change(&table->copies[(seq + 1) % 2], region);
    atomic_store(&table->seq, seq + 1);
    change(&table->copies[seq % 2], region);
}

static void nprdma_regions_insert_into(nprdma_regions_copy_t *copy,
                                       nprdma_region_obj_t *region)
{
    uintptr_t start = region->super.address;
    uint32_t count  = atomic_load(&copy->count);
    uint32_t place  = nprdma_regions_upper(copy, count, start);
    uint32_t i;

    for (i = count; i > place; --i) {
        nprdma_regions_move(copy, i, i - 1);
    }
    nprdma_regions_set(copy, place, start, start + region->super.length,
                       region);
    nprdma_regions_update_reach(copy, place, count + 1);
    atomic_store(&copy->count, count + 1);
}

void nprdma_regions_insert(nprdma_regions_t *table,
                           nprdma_region_obj_t *region)
{
    /* Only when it is complete: readers may hold old pointers to the object */
    atomic_store(&region->refs, 1);
    nprdma_regions_change(table, nprdma_regions_insert_into, region);
}

static void nprdma_regions_remove_from(nprdma_regions_copy_t *copy,
                                       nprdma_region_obj_t *region)
{
    uint32_t count = atomic_load(&copy->count);
    uint32_t place = 0;
    uint32_t i;

    while (copy->entries[place].region != region) {
        ++place;
    }

    for (i = place + 1; i < count; ++i) {
        nprdma_regions_move(copy, i - 1, i);
    }
    nprdma_regions_update_reach(copy, place, count - 1);
    atomic_store(&copy->count, count - 1);
}

/* Take a reference by a pointer that may be out of date */
static int nprdma_regions_try(nprdma_region_obj_t *region, uintptr_t start,
                              uintptr_t end, int is_local)
{
    if (!nprdma_region_get(region)) {
        return 0;
    }

    if ((region->super.is_local == is_local) &&
        !atomic_load(&region->is_closed) &&
        (region->super.address <= start) &&
        (region->super.address + region->super.length >= end)) {
        return 1;
    }

    nprdma_region_put(region);
    return 0;
}

nprdma_region_obj_t *
nprdma_regions_get(nprdma_regions_t *table, uintptr_t start, uintptr_t end,
                   int is_local)
{
    const nprdma_regions_copy_t *copy;
    const nprdma_regions_entry_t *entry;
    nprdma_region_obj_t *region;
    uint32_t seq, i;

    do {
        copy = nprdma_regions_current(table, &seq);
        i    = nprdma_regions_upper(copy, atomic_load(&copy->count), start);
        for (; i > 0; --i) {
            entry = &copy->entries[i - 1];
            if (nprdma_regions_load(&entry->reach) < end) {
                break;
            }

            if (nprdma_regions_load(&entry->end) < end) {
                continue;
            }

            region = atomic_load_explicit(&entry->region, memory_order_acquire);
            if (nprdma_regions_try(region, start, end, is_local)) {
                return region;
            }
        }
    } while (nprdma_regions_read_retry(table, seq));

    return NULL;
}

NPRDMA_HOOK
void nprdma_regions_foreach(nprdma_regions_t *table, nprdma_span_t span,
                            nprdma_regions_func_t func, void *arg)
{
    const nprdma_regions_copy_t *copy;
    const nprdma_regions_entry_t *entry;
    nprdma_region_obj_t *region;
    uint32_t seq, i;

    if (span.start >= span.end) {
        return;
    }

    do {
        copy = nprdma_regions_current(table, &seq);
        i    = nprdma_regions_upper(copy, atomic_load(&copy->count),
                                    span.end - 1);
        for (; i > 0; --i) {
            entry = &copy->entries[i - 1];
            if (nprdma_regions_load(&entry->reach) <= span.start) {
                break;
            }

            if (nprdma_regions_load(&entry->end) <= span.start) {
                continue;
            }

            region = atomic_load(&entry->region);
            if (nprdma_region_hold(region)) {
                func(region, arg);
                nprdma_region_release(region);
            }
        }
    } while (nprdma_regions_read_retry(table, seq));
}


/* ---- idle regions ---- */

nprdma_region_obj_t *nprdma_regions_take_idle(nprdma_regions_t *table,
                                              int is_closed)
{
    nprdma_region_obj_t *oldest = NULL;
    const nprdma_regions_copy_t *copy;
    nprdma_region_obj_t *region;
    uint32_t count, refs, seq, i;

    copy  = nprdma_regions_current(table, &seq);
    count = atomic_load(&copy->count);
    do {
        oldest = NULL;
        for (i = 0; i < count; ++i) {
            region = copy->entries[i].region;
            if ((atomic_load(&region->refs) == 0) &&
                (atomic_load(&region->is_closed) >= is_closed) &&
                ((oldest == NULL) ||
                 (region->idle_since < oldest->idle_since))) {
                oldest = region;
            }
        }
        refs = 0;
    } while ((oldest != NULL) &&
             !atomic_compare_exchange_strong(&oldest->refs, &refs,
                                             NPRDMA_REGION_DYING | 1));

    return oldest;
}

void nprdma_regions_drop(nprdma_regions_t *table, nprdma_region_obj_t *region)
{
    uint32_t refs;

    nprdma_regions_change(table, nprdma_regions_remove_from, region);
    refs = NPRDMA_REGION_DYING | 1;
    while (!atomic_compare_exchange_strong(&region->refs, &refs,
                                           NPRDMA_REGION_FREE)) {
        sched_yield();
        refs = NPRDMA_REGION_DYING | 1;
    }
}


/* ---- pages ---- */

NPRDMA_HOOK
nprdma_pages_t nprdma_region_pages(const nprdma_region_obj_t *region,
                                   nprdma_span_t span)
{
    uintptr_t start      = region->super.address;
    uintptr_t end        = start + region->super.length;
    nprdma_pages_t pages = { 0, 0 };

    if (span.start > start) {
        start = span.start & ~(NPRDMA_PAGE_SIZE - 1);
    }
    if (span.end < end) {
        end = span.end;
    }

    if (start < end) {
        pages.first = (start - region->super.address) >>
                      NPRDMA_PAGE_SHIFT;
        pages.count = (end - start + NPRDMA_PAGE_SIZE - 1) >>
                      NPRDMA_PAGE_SHIFT;
    }

    return pages;
}

/* Bits of a word of the bitmap that belong to the pages [first, end) */
NPRDMA_HOOK
static uint64_t nprdma_region_mask(size_t word, size_t first, size_t end)
{
    size_t low    = word * NPRDMA_REGIONS_BITS;
    uint64_t mask = UINT64_MAX;

    if (first > low) {
        mask &= UINT64_MAX << (first - low);
    }
    if (end < low + NPRDMA_REGIONS_BITS) {
        mask &= ~(UINT64_MAX << (end - low));
    }

    return mask;
}

NPRDMA_HOOK
void nprdma_bits_set(_Atomic uint64_t *bits, size_t first, size_t end)
{
    uint64_t mask;
    size_t word;

    for (word = first / NPRDMA_REGIONS_BITS; word * NPRDMA_REGIONS_BITS < end;
         ++word) {
        mask = nprdma_region_mask(word, first, end);
        if ((atomic_load(&bits[word]) & mask) != mask) {
            atomic_fetch_or(&bits[word], mask);
        }
    }
}

NPRDMA_HOOK
void nprdma_bits_clear(_Atomic uint64_t *bits, size_t first, size_t end)
{
    uint64_t mask;
    size_t word;

    for (word = first / NPRDMA_REGIONS_BITS; word * NPRDMA_REGIONS_BITS < end;
         ++word) {
        mask = nprdma_region_mask(word, first, end);
        if ((atomic_load(&bits[word]) & mask) != 0) {
            atomic_fetch_and(&bits[word], ~mask);
        }
    }
}

NPRDMA_HOOK
size_t nprdma_bits_next(const _Atomic uint64_t *bits, size_t first, size_t end,
                        int value)
{
    const uint64_t flip = value ? 0 : UINT64_MAX;
    uint64_t found;
    size_t word;

    for (word = first / NPRDMA_REGIONS_BITS; word * NPRDMA_REGIONS_BITS < end;
         ++word) {
        found = (atomic_load(&bits[word]) ^ flip) &
                nprdma_region_mask(word, first, end);
        if (found != 0) {
            return word * NPRDMA_REGIONS_BITS + __builtin_ctzll(found);
        }
    }
    return end;
}

NPRDMA_HOOK
void nprdma_region_retire(nprdma_region_obj_t *region, nprdma_pages_t pages)
{
    /* First: a reader that does not find this must not miss a bit */
    atomic_store(&region->has_retired, 1);
    nprdma_bits_set(region->retired, pages.first, pages.first + pages.count);
}

NPRDMA_HOOK
void nprdma_region_readmit(nprdma_region_obj_t *region, nprdma_pages_t pages)
{
    if (atomic_load(&region->has_retired)) {
        nprdma_bits_clear(region->retired, pages.first,
                          pages.first + pages.count);
    }
}

void nprdma_region_revoke(nprdma_region_obj_t *region, nprdma_pages_t pages)
{
    atomic_store(&region->has_retired, 1);
    nprdma_bits_set(region->revoked, pages.first, pages.first + pages.count);
}

size_t nprdma_region_not_retired(const nprdma_region_obj_t *region,
                                 nprdma_pages_t pages)
{
    size_t end = pages.first + pages.count;

    if (atomic_load(&region->has_retired)) {
        end = nprdma_bits_next(region->retired, pages.first, end, 1);
        end = nprdma_bits_next(region->revoked, pages.first, end, 1);
    }
    return end - pages.first;
}
