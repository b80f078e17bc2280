/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "nprdma_backend.h"
#include "ucm/events/nprdma_events.h"
#include "ucm/access/nprdma_pagein.h"
#include "ucm/regions/nprdma_regions.h"

#include "nprdma_assert.h"

#include <npemu_iommu.h>

#include <errno.h>
#include <stdlib.h>
#include <sys/random.h>
#include <unistd.h>

/* The states of pages are the table of the emulated NIC's IOMMU. Clearing a
 * state re-points the view. The drain waits for accesses that are in
 * progress. */


/* One per process; a forked child that opens a back end gets another one */
static struct {
    pid_t    pid;
    uint64_t signature;
} nprdma_emulated;


static uint64_t nprdma_emulated_signature(void)
{
    uint64_t signature;

    nprdma_events_lock();
    if (nprdma_emulated.pid != getpid()) {
        nprdma_emulated.pid = getpid();
        if (getrandom(&nprdma_emulated.signature, sizeof(signature), 0) !=
            sizeof(signature)) {
            /* Data that is equal to it costs an assist, never correctness */
            nprdma_emulated.signature = 0x9e3779b97f4a7c15ull;
        }
    }
    signature = nprdma_emulated.signature;
    nprdma_events_unlock();
    return signature;
}

static ucs_status_t
nprdma_emulated_region_create(nprdma_region_t *region, void **priv_p)
{
    uint64_t signature = nprdma_emulated_signature();
    npemu_iommu_t *iommu;
    int ret;

    iommu = malloc(sizeof(*iommu));
    if (iommu == NULL) {
        return UCS_ERR_NO_MEMORY;
    }

    ret = npemu_iommu_create(region->address, region->length, signature, iommu);
    if (ret != 0) {
        free(iommu);
        return (ret == ENOMEM) ? UCS_ERR_NO_MEMORY :
               ((ret == EMFILE) || (ret == ENFILE)) ? UCS_ERR_EXCEEDS_LIMIT :
               (ret == EFBIG) ? UCS_ERR_OUT_OF_RANGE :
               UCS_ERR_IO_ERROR;
    }

    region->fd        = iommu->fd;
    region->signature = signature;
    region->states    = iommu->states;
    *priv_p           = iommu;
    return UCS_OK;
}

static void nprdma_emulated_region_destroy(nprdma_region_t *region, void *priv)
{
    npemu_iommu_t *iommu = priv;

    iommu->fd = region->fd; /* -1 if the user has closed it */
    npemu_iommu_destroy(iommu);
    free(iommu);
    region->fd     = -1;
    region->states = NULL;
}

NPRDMA_HOOK
static size_t nprdma_emulated_invalidate(nprdma_region_t *region, void *priv,
                                         size_t first, size_t count,
                                         uint32_t bits, int touch)
{
    return npemu_iommu_invalidate(priv, first, count, bits, touch);
}

/* Only pages under a registration or an operation are populated. For
 * asserts. */
static int nprdma_emulated_is_covered(const nprdma_populate_t *populate,
                                      size_t i)
{
    uintptr_t page = populate->region->address +
                     ((populate->first + i) << NPRDMA_PAGE_SHIFT);

    return (page < populate->range->address + populate->range->length) &&
           (page + NPRDMA_PAGE_SIZE > populate->range->address);
}

/* Set the state of a page that is present. If it has changed meanwhile and has
 * the bits, another thread has populated the page. If it does not have them,
 * only the pages before it are done. */
static void nprdma_emulated_map_page(nprdma_page_state_t *state,
                                     nprdma_populate_t *populate, size_t i,
                                     uint32_t bits)
{
    uint32_t word = populate->words[i];

    if ((word & bits) == bits) {
        return;
    }

    if (nprdma_page_change(state, word, (word & NPRDMA_PAGE_BITS) | bits)) {
        ++populate->populated;
    } else if (((nprdma_page_load(state) & bits) != bits) &&
               (i < populate->done)) {
        populate->done = i;
    }
}

/* Zero: nothing has changed, and it is to be tried page by page */
static int nprdma_emulated_map_pair(nprdma_page_state_t *states,
                                    const uint32_t *words, uint32_t bits)
{
    uint32_t next[2];

    if (!nprdma_page_begins_pair(states) || ((words[0] & bits) == bits) ||
        ((words[1] & bits) == bits)) {
        return 0;
    }

    next[0] = nprdma_page_next(words[0], (words[0] & NPRDMA_PAGE_BITS) | bits);
    next[1] = nprdma_page_next(words[1], (words[1] & NPRDMA_PAGE_BITS) | bits);
    return nprdma_page_change_pair(states, words, next);
}

static void nprdma_emulated_map(npemu_iommu_t *iommu,
                                nprdma_populate_t *populate, size_t offset,
                                size_t count, uint32_t bits)
{
    nprdma_page_state_t *states = &iommu->states[populate->first];
    size_t end                  = offset + count;
    size_t i;

    npemu_gate_pass(iommu->header, NPEMU_GATE_MAP, populate->first + offset,
                    count);

    nprdma_page_prefetchw(&states[offset], count);
    for (i = offset; i < end; ++i) {
        nprdma_assert(nprdma_emulated_is_covered(populate, i));
        if ((i + 1 < end) && nprdma_emulated_map_pair(&states[i],
                                                      &populate->words[i],
                                                      bits)) {
            nprdma_assert(nprdma_emulated_is_covered(populate, i + 1));
            populate->populated += 2;
            ++i;
        } else {
            nprdma_emulated_map_page(&states[i], populate, i, bits);
        }
    }
}

/* @return Length of the next run of pages that do not have the bits yet. It
 * begins at *first_p, which is advanced. */
static size_t nprdma_emulated_next(const nprdma_populate_t *populate,
                                   uint32_t bits, size_t *first_p)
{
    size_t first = *first_p;
    size_t end;

    while ((first < populate->count) &&
           ((populate->words[first] & bits) == bits)) {
        ++first;
    }

    for (end = first; (end < populate->count) &&
                      ((populate->words[end] & bits) != bits); ++end) {
    }

    *first_p = first;
    return end - first;
}

static ucs_status_t
nprdma_emulated_populate_all(npemu_iommu_t *iommu, nprdma_populate_t *populate,
                             int write, uint32_t bits)
{
    size_t first, count, done;

    for (first = 0;
         (count = nprdma_emulated_next(populate, bits, &first)) > 0;
         first += count) {
        done = nprdma_pagein_fault(populate->region->address +
                                   ((populate->first + first) <<
                                    NPRDMA_PAGE_SHIFT),
                                   count, write, &populate->pageins);
        nprdma_emulated_map(iommu, populate, first, done, bits);
        if (done < count) {
            /* If the state of a page before it has changed, retry that first */
            return (populate->done == populate->count) ? UCS_ERR_INVALID_ADDR :
                                                         UCS_ERR_NO_RESOURCE;
        }
    }

    return (populate->done == populate->count) ? UCS_OK : UCS_ERR_NO_RESOURCE;
}

static int nprdma_page_set_has(const nprdma_page_set_t *set, size_t i)
{
    return (set->bits[i / 64] >> (i % 64)) & 1;
}

/* To be written, a present page that another process maps too is copied; the
 * scan leaves most such pages out. A page that cannot be copied is skipped. */
static ucs_status_t
nprdma_emulated_populate_resident(npemu_iommu_t *iommu,
                                  nprdma_populate_t *populate, int write,
                                  uint32_t bits)
{
    uintptr_t start = populate->region->address +
                      (populate->first << NPRDMA_PAGE_SHIFT);
    nprdma_page_set_t set;
    size_t first, end, count;

    nprdma_pagein_scan(start, populate->count, write, &set);
    for (first = 0; first < populate->count; first = end) {
        end = first + 1;
        if (!nprdma_page_set_has(&set, first)) {
            continue;
        }

        while ((end < populate->count) && nprdma_page_set_has(&set, end)) {
            ++end;
        }

        count = end - first;
        if (write) {
            count = nprdma_pagein_fault(start + (first << NPRDMA_PAGE_SHIFT),
                                        count, write, &populate->pageins);
        }
        nprdma_emulated_map(iommu, populate, first, count, bits);
    }

    return (populate->done == populate->count) ? UCS_OK : UCS_ERR_NO_RESOURCE;
}

static ucs_status_t
nprdma_emulated_populate(void *priv, nprdma_populate_t *populate)
{
    int write     = !!(populate->flags & NPRDMA_POPULATE_WRITE);
    uint32_t bits = write ? NPRDMA_PAGE_BITS : NPRDMA_PAGE_R;

    populate->done = populate->count;
    return (populate->flags & NPRDMA_POPULATE_RESIDENT) ?
           nprdma_emulated_populate_resident(priv, populate, write, bits) :
           nprdma_emulated_populate_all(priv, populate, write, bits);
}

NPRDMA_HOOK
static void nprdma_emulated_gate(nprdma_region_t *region, void *priv,
                                 nprdma_invalidate_step_t step, size_t first,
                                 size_t count)
{
    npemu_iommu_t *iommu = priv;

    npemu_gate_pass(iommu->header,
                    (step == NPRDMA_INVALIDATE_START) ?
                    NPEMU_GATE_INVALIDATE_START :
                    NPEMU_GATE_INVALIDATE_QUIESCED, first, count);
}

const nprdma_backend_t nprdma_backend_emulated = {
    .name           = "emulated",
    .has_descriptors = 1,
    .region_create  = nprdma_emulated_region_create,
    .region_destroy = nprdma_emulated_region_destroy,
    .invalidate     = nprdma_emulated_invalidate,
    .populate       = nprdma_emulated_populate,
    .gate           = nprdma_emulated_gate
};

npemu_iommu_t *nprdma_emulated_iommu(const nprdma_region_t *region)
{
    return ((const nprdma_region_obj_t*)region)->backend_priv;
}
