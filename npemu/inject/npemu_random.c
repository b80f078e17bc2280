/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * The random fault plan: every access of this process to a page behind an IOMMU
 * table evicts it with some probability. The decision is a hash of the seed and
 * of how many accesses there were before, so that a run in which nothing else
 * is random can be repeated.
 */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "base/npemu_limits.h"
#include "base/npemu_log.h"
#include "inject/npemu_fault.h"

#include <errno.h>
#include <stdlib.h>

_Atomic int npemu_random_active;
_Atomic uint32_t npemu_dma_granule;

/* The first two are changed only while no request is executed */
static struct {
    uint64_t         threshold; /* a hash below it evicts */
    uint64_t         seed;
    _Atomic uint64_t accesses;
} npemu_random;

/* The finalizer of splitmix64. */
static uint64_t npemu_random_mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15ull;
    x  = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x  = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

/* Where an eviction tears the access: before it, after it, at a boundary of the
 * smallest granules of a NIC, or at one of packets, counted from the first byte
 * of the access. */
static uint32_t npemu_random_tear(uint64_t hash, uint32_t start)
{
    const uint32_t count = NPRDMA_PAGE_SIZE / NPEMU_DMA_GRANULE_MIN;
    uint32_t tear        = NPEMU_DMA_GRANULE_MIN *
                           (1 + (hash >> 8) % (count - 1));

    switch (hash % 4) {
    case 0:
        return 0;
    case 1:
        return NPRDMA_PAGE_SIZE;
    case 2:
        return tear;
    default:
        tear += start;
        return (tear < NPRDMA_PAGE_SIZE) ? tear : NPRDMA_PAGE_SIZE;
    }
}

void npemu_random_decide(npemu_fault_ticket_t *ticket)
{
    uint64_t hash = npemu_random_mix(npemu_random.seed +
                                     atomic_fetch_add(&npemu_random.accesses,
                                                      1));

    if (hash < npemu_random.threshold) {
        ticket->evict = 1;
        ticket->tear  = npemu_random_tear(npemu_random_mix(hash),
                                          ticket->start);
    }
}

/* --- configuration ---------------------------------------------------------*/

int npemu_random_configure(double rate, uint64_t seed)
{
    /* A NaN compares false with all numbers */
    if (!((rate >= 0) && (rate <= 1))) {
        return EINVAL;
    }

    npemu_random.seed      = npemu_random_mix(seed);
    /* A double cannot hold UINT64_MAX, and no integer is 2^64 */
    npemu_random.threshold = (rate >= 1) ? UINT64_MAX :
                                           (uint64_t)(rate * 0x1p64);
    atomic_store(&npemu_random.accesses, 0);
    atomic_store(&npemu_random_active, npemu_random.threshold > 0);
    return 0;
}

void npemu_random_init(void)
{
    const char *text = getenv("NPEMU_DMA_GRANULE");
    unsigned long value;
    char *end;

    npemu_random_configure(0, 0);
    atomic_store(&npemu_dma_granule, 0);
    if ((text == NULL) || (text[0] == '\0')) {
        return;
    }

    value = strtoul(text, &end, 0);
    if ((*end == '\0') && (value >= NPEMU_DMA_GRANULE_MIN) &&
        (value <= NPEMU_DMA_CHUNK) && ((value & (value - 1)) == 0)) {
        atomic_store(&npemu_dma_granule, value);
    } else {
        npemu_error("NPEMU_DMA_GRANULE=%s is not a power of two from %d to %d; "
                    "ignored", text, NPEMU_DMA_GRANULE_MIN, NPEMU_DMA_CHUNK);
    }
}
