/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "nprdma_pace.h"

#define NPRDMA_PACE_LOAD(_field) __atomic_load_n(_field, __ATOMIC_SEQ_CST)
#define NPRDMA_PACE_STORE(_field, _value) \
    __atomic_store_n(_field, _value, __ATOMIC_SEQ_CST)


NPRDMA_HOOK
static uint64_t nprdma_pace_of(size_t length, uint64_t ns)
{
    return (uint64_t)((double)ns * (1 << 20) / (double)length) + 1;
}

NPRDMA_HOOK
int nprdma_pace_has_hot(nprdma_pace_t *pace)
{
    return NPRDMA_PACE_LOAD(&pace->hot) != 0;
}

NPRDMA_HOOK
void nprdma_pace_hot(nprdma_pace_t *pace, size_t length, uint64_t ns)
{
    uint64_t hot = nprdma_pace_of(length, ns);

    if (!nprdma_pace_has_hot(pace) || (hot < NPRDMA_PACE_LOAD(&pace->hot))) {
        NPRDMA_PACE_STORE(&pace->hot, hot);
    }
}

NPRDMA_HOOK
void nprdma_pace_zeroed(nprdma_pace_t *pace, size_t length, uint64_t ns,
                        uint64_t now)
{
    if (nprdma_pace_of(length, ns) <=
        NPRDMA_PACE_SLOW * NPRDMA_PACE_LOAD(&pace->hot)) {
        NPRDMA_PACE_STORE(&pace->slow, 0);
        return;
    }

    if (nprdma_pace_has_hot(pace) &&
        (__atomic_add_fetch(&pace->slow, 1, __ATOMIC_SEQ_CST) >=
         NPRDMA_PACE_ROW)) {
        NPRDMA_PACE_STORE(&pace->limit, length);
        NPRDMA_PACE_STORE(&pace->until, now + NPRDMA_PACE_PAUSE);
        NPRDMA_PACE_STORE(&pace->slow, 0);
    }
}

NPRDMA_HOOK
int nprdma_pace_is_worth_it(nprdma_pace_t *pace, size_t length, uint64_t now)
{
    size_t limit = NPRDMA_PACE_LOAD(&pace->limit);

    return (limit == 0) || (length < limit) ||
           (now >= NPRDMA_PACE_LOAD(&pace->until));
}
