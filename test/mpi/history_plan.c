/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "history_plan.h"

/* splitmix64 (Steele, Lea, Flood 2014) */
static uint64_t history_mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ul;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebul;
    return z ^ (z >> 31);
}

uint32_t history_random(uint64_t *state, uint32_t bound)
{
    *state += 0x9e3779b97f4a7c15ul;
    return (history_mix(*state) >> 32) * bound >> 32;
}

uint64_t history_seed(uint64_t seed, uint64_t phase, uint64_t rank)
{
    return history_mix(history_mix(seed + 1) + (phase << 8) + rank);
}

/* Cuts the window into areas, at any element */
static void history_layout(uint64_t *state, history_phase_t *phase)
{
    uint32_t num   = HISTORY_WINDOW / phase->width;
    uint32_t first = 0;
    history_area_t *area;
    unsigned i;

    phase->num_areas = 1 + history_random(state, HISTORY_MAX_AREAS);
    for (i = 0; i < phase->num_areas; ++i) {
        area        = &phase->areas[i];
        area->first = first;
        area->count = (i == phase->num_areas - 1) ? num - first :
                      16 + history_random(state, (num - first) / 2);
        area->mode  = history_random(state, HISTORY_NUM_MODES);
        if ((area->mode == HISTORY_EXCLUSIVE) &&
            (phase->sync != HISTORY_LOCKS)) {
            area->mode = HISTORY_REPLACES;
        }
        first += area->count;
    }
}

void history_phase(uint64_t seed, uint32_t number, unsigned size,
                   history_phase_t *phase)
{
    uint64_t state = history_seed(seed, number, 0xff);
    static const history_sync_t syncs[] = {
        HISTORY_LOCK_ALL, HISTORY_LOCK_ALL, HISTORY_LOCK_ALL, HISTORY_LOCKS,
        HISTORY_FENCES
    };

    phase->number     = number;
    phase->width      = history_random(&state, 4) == 0 ? 4 : 8;
    phase->sync       = syncs[history_random(&state, 5)];
    phase->num_parts  = 1 + history_random(&state, 4);
    phase->num_steps  = 2 + history_random(&state, 30);
    phase->hot_target = history_random(&state, size);
    phase->remap      = history_random(&state, 4) == 0;
    history_layout(&state, phase);
}

int history_exclusive_area(const history_phase_t *phase)
{
    unsigned i;

    for (i = 0; i < phase->num_areas; ++i) {
        if (phase->areas[i].mode == HISTORY_EXCLUSIVE) {
            return i;
        }
    }
    return -1;
}

static uint64_t history_mask(const history_phase_t *phase, uint64_t value)
{
    return (phase->width == 8) ? value : (uint32_t)value;
}

uint64_t history_operand(const history_phase_t *phase, unsigned rank,
                         const history_call_t *call, uint32_t element)
{
    uint64_t place = ((uint64_t)phase->number << 32) + element;

    /* A value that hardly any other operation writes; odd, so that products
     * keep all bits */
    return call->is_fixed ? call->operand :
           history_mask(phase, 1 | history_seed(place, call->seq, rank));
}

uint64_t history_apply(const history_phase_t *phase, history_opcode_t op,
                       uint64_t old, uint64_t operand)
{
    switch (op) {
    case HISTORY_REPLACE:
        return operand;
    case HISTORY_SUM:
        return history_mask(phase, old + operand);
    case HISTORY_BXOR:
        return old ^ operand;
    case HISTORY_PROD:
        return history_mask(phase, old * operand);
    case HISTORY_MAX:
        return old > operand ? old : operand;
    case HISTORY_MIN:
        return old < operand ? old : operand;
    case HISTORY_BAND:
        return old & operand;
    case HISTORY_BOR:
        return old | operand;
    default:
        return old;
    }
}

uint32_t history_length(uint64_t *state, unsigned width)
{
    static const uint32_t limits[] = {64, 1024, 8192, 8192, 16384, 65536,
                                      HISTORY_MAX_BYTES};
    unsigned kind = history_random(state, 10);

    if (kind < 3) {
        return 1;
    }
    if (kind == 6) {
        /* Around the size where software's stores end and optimistic RDMA
         * begins */
        return (8192 + history_random(state, 64)) / width - 4;
    }
    return 1 + history_random(state, limits[kind - 3] / width);
}

const char *history_name(const history_call_t *call)
{
    static const char *const names[] = {"put", "get", "accumulate",
                                        "get_accumulate", "fetch_and_op",
                                        "compare_and_swap"};

    return names[call->what];
}
