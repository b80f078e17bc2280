/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "fabric/npemu_wire.h"

#include <string.h>

#define NPEMU_PS_PER_NS 1000

/* The flows that send: those of the highest class that has anything to
 * send. */
typedef struct {
    uint32_t class;
    uint32_t count;
    uint64_t least; /* work of the flow that ends first */
} npemu_wire_turn_t;

static inline uint32_t npemu_wire_flow_class(const npemu_wire_flow_t *flow)
{
    return atomic_load_explicit(&flow->class, memory_order_relaxed) %
           NPEMU_WIRE_CLASSES;
}

static inline uint64_t npemu_wire_flow_end(const npemu_wire_flow_t *flow)
{
    return atomic_load_explicit(&flow->end, memory_order_relaxed);
}

static inline uint64_t npemu_wire_flow_key(const npemu_wire_flow_t *flow)
{
    return atomic_load_explicit(&flow->key, memory_order_relaxed);
}

static void npemu_wire_turn_add(npemu_wire_turn_t *turn, uint32_t class,
                                uint64_t time, uint64_t end)
{
    if ((end <= time) || ((turn->count > 0) && (class < turn->class))) {
        return;
    }

    if ((turn->count == 0) || (class > turn->class)) {
        *turn = (npemu_wire_turn_t){class, 0, UINT64_MAX};
    }
    ++turn->count;
    turn->least = (end - time < turn->least) ? end - time : turn->least;
}

/* The flows that send at these virtual times; none if the count is 0. */
static npemu_wire_turn_t npemu_wire_turn(const npemu_wire_t *wire,
                                         const uint64_t *times)
{
    npemu_wire_turn_t turn = {0};
    const npemu_wire_flow_t *flow;
    uint32_t i, class;

    for (i = 0; i < wire->num_flows; ++i) {
        flow  = &wire->flows[i];
        class = npemu_wire_flow_class(flow);
        if (npemu_wire_flow_key(flow) != 0) {
            npemu_wire_turn_add(&turn, class, times[class],
                                npemu_wire_flow_end(flow));
        }
    }
    for (class = 0; class < NPEMU_WIRE_CLASSES; ++class) {
        npemu_wire_turn_add(&turn, class, times[class],
                            npemu_wire_flow_end(&wire->shared[class]));
    }
    return turn;
}

static void npemu_wire_free(npemu_wire_flow_t *flow)
{
    atomic_store(&flow->key, 0);
}

static void npemu_wire_set(npemu_wire_flow_t *flow, uint64_t key,
                           uint32_t class, uint64_t end)
{
    atomic_store(&flow->key, 0);
    atomic_store(&flow->class, class);
    atomic_store(&flow->end, end);
    atomic_store(&flow->key, key);
}

/* Flows that have sent everything give up their entries, and the last takes the
 * place of the first that is free. */
static void npemu_wire_compact(npemu_wire_t *wire)
{
    npemu_wire_flow_t *flow, *last;
    uint32_t i = 0;

    while (i < wire->num_flows) {
        flow = &wire->flows[i];
        if ((npemu_wire_flow_key(flow) != 0) &&
            (npemu_wire_flow_end(flow) >
             wire->times[npemu_wire_flow_class(flow)])) {
            ++i;
            continue;
        }

        last = &wire->flows[wire->num_flows - 1];
        npemu_wire_free(flow);
        if (flow != last) {
            npemu_wire_set(flow, npemu_wire_flow_key(last),
                           npemu_wire_flow_class(last),
                           npemu_wire_flow_end(last));
            npemu_wire_free(last);
        }
        --wire->num_flows;
    }
}

void npemu_wire_advance(npemu_wire_t *wire, uint64_t now_ns)
{
    npemu_wire_turn_t turn;
    uint64_t work;

    if (now_ns <= wire->now_ns) {
        return;
    }

    work         = (now_ns - wire->now_ns) * NPEMU_PS_PER_NS + wire->carry;
    wire->now_ns = now_ns;
    wire->carry  = 0;
    for (;;) {
        turn = npemu_wire_turn(wire, wire->times);
        if (turn.count == 0) {
            break;
        }

        if (work / turn.count < turn.least) {
            wire->times[turn.class] += work / turn.count;
            wire->carry              = work % turn.count;
            break;
        }

        wire->times[turn.class] += turn.least;
        work                    -= turn.least * turn.count;
    }
    npemu_wire_compact(wire);
}

static npemu_wire_flow_t *npemu_wire_find(npemu_wire_t *wire, uint64_t key,
                                          uint32_t class)
{
    npemu_wire_flow_t *flow;
    uint32_t i;

    if (key == 0) {
        return &wire->shared[class];
    }

    for (i = 0; i < wire->num_flows; ++i) {
        flow = &wire->flows[i];
        if ((npemu_wire_flow_key(flow) == key) &&
            (npemu_wire_flow_class(flow) == class)) {
            return flow;
        }
    }

    if (wire->num_flows == NPEMU_WIRE_FLOWS) {
        return &wire->shared[class];
    }

    flow = &wire->flows[wire->num_flows];
    npemu_wire_set(flow, key, class, wire->times[class]);
    ++wire->num_flows;
    return flow;
}

npemu_wire_place_t npemu_wire_add(npemu_wire_t *wire, uint64_t key,
                                  uint32_t class, uint64_t work)
{
    npemu_wire_flow_t *flow = npemu_wire_find(wire, key, class);
    uint64_t end            = npemu_wire_flow_end(flow);
    npemu_wire_place_t place;

    if (end < wire->times[class]) {
        end = wire->times[class];
    }
    place.tag   = end + work;
    place.class = class;
    atomic_store(&flow->end, place.tag);
    return place;
}

static int npemu_wire_flow_has(const npemu_wire_flow_t *flow,
                               npemu_wire_place_t place)
{
    return (npemu_wire_flow_class(flow) == place.class) &&
           (npemu_wire_flow_end(flow) >= place.tag);
}

int npemu_wire_has_left(const npemu_wire_t *wire, npemu_wire_place_t place)
{
    uint32_t i;

    if (wire->times[place.class] >= place.tag) {
        return 1;
    }

    /* The virtual time of a class without flows stands still */
    for (i = 0; i < wire->num_flows; ++i) {
        if ((npemu_wire_flow_key(&wire->flows[i]) != 0) &&
            npemu_wire_flow_has(&wire->flows[i], place)) {
            return 0;
        }
    }
    return npemu_wire_flow_end(&wire->shared[place.class]) < place.tag;
}

uint64_t npemu_wire_when(const npemu_wire_t *wire, npemu_wire_place_t place)
{
    uint64_t sum = 0;
    uint64_t times[NPEMU_WIRE_CLASSES];
    npemu_wire_turn_t turn;
    uint64_t step, work;

    memcpy(times, wire->times, sizeof(times));
    while (times[place.class] < place.tag) {
        turn = npemu_wire_turn(wire, times);
        if (turn.count == 0) {
            break;
        }

        step = turn.least;
        if ((turn.class == place.class) &&
            (place.tag - times[place.class] < step)) {
            step = place.tag - times[place.class];
        }
        times[turn.class] += step;
        if (__builtin_mul_overflow(step, (uint64_t)turn.count, &work) ||
            __builtin_add_overflow(sum, work, &sum)) {
            return UINT64_MAX;
        }
    }

    sum = (sum > wire->carry) ? sum - wire->carry : 0;
    sum = sum / NPEMU_PS_PER_NS + (sum % NPEMU_PS_PER_NS != 0);
    return __builtin_add_overflow(wire->now_ns, sum, &sum) ? UINT64_MAX : sum;
}

void npemu_wire_remove(npemu_wire_t *wire, uint64_t key)
{
    uint32_t i;

    for (i = 0; i < wire->num_flows; ++i) {
        if (npemu_wire_flow_key(&wire->flows[i]) == key) {
            npemu_wire_free(&wire->flows[i]);
        }
    }
    npemu_wire_compact(wire);
}
