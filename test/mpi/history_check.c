/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "history_check.h"

#include <string.h>

#define MAX_CLUSTERS  (HISTORY_MAX_OPS + 1)
#define NONE          UINT16_MAX

/*
 * Register. A cluster is a value with all operations that saw it: cluster 0 is
 * that of the initial value, cluster i + 1 that of the value that ops[i] wrote.
 * In a legal order the operations of a cluster are adjacent. A swap ties its
 * cluster to the one that it saw, with nothing between them; so clusters form
 * chains, which are adjacent as well. Program order tells which chain precedes
 * another one. A legal order exists if and only if this relation has no cycle,
 * the initial value's chain can be first, and the last value is the end of a
 * chain that can be last.
 */
typedef struct history_register {
    uint64_t value[MAX_CLUSTERS];
    uint16_t next[MAX_CLUSTERS];  /* Successor in the chain */
    uint16_t prev[MAX_CLUSTERS];  /* Predecessor in the chain */
    uint16_t chain[MAX_CLUSTERS]; /* First cluster of its chain */
    uint16_t place[MAX_CLUSTERS]; /* Position in the chain */
    unsigned num;
    uint16_t before[2 * HISTORY_MAX_OPS]; /* Edges between chains */
    uint16_t after[2 * HISTORY_MAX_OPS];
    unsigned num_edges;
} history_register_t;

static uint16_t history_find(const history_register_t *reg,
                             const history_op_t *ops, uint64_t value)
{
    unsigned i;

    if (value == reg->value[0]) {
        return 0;
    }
    for (i = 1; i < reg->num; ++i) {
        if ((ops[i - 1].kind != HISTORY_READ) && (reg->value[i] == value)) {
            return i;
        }
    }
    return NONE;
}

/* Ties clusters of swaps to those that they saw; in[] gets the cluster each op
 * saw */
static const char *history_tie(history_register_t *reg,
                               const history_op_t *ops, uint16_t *in)
{
    unsigned i;

    for (i = 0; i < reg->num - 1; ++i) {
        in[i] = NONE;
        if (ops[i].kind == HISTORY_WRITE) {
            continue;
        }
        in[i] = history_find(reg, ops, ops[i].seen);
        if (in[i] == NONE) {
            return "a value was seen that no operation wrote";
        }
        if (ops[i].kind == HISTORY_SWAP) {
            if (in[i] == i + 1) {
                return "an operation saw its own value";
            }
            if (reg->next[in[i]] != NONE) {
                return "two updates saw the same value: one of them is lost";
            }
            reg->next[in[i]] = i + 1;
            reg->prev[i + 1] = in[i];
        }
    }
    return NULL;
}

static const char *history_chain(history_register_t *reg,
                                 const history_op_t *ops)
{
    unsigned i, place, at;

    for (i = 0; i < reg->num; ++i) {
        if ((reg->prev[i] == NONE) &&
            ((i == 0) || (ops[i - 1].kind != HISTORY_READ))) {
            for (at = i, place = 0; at != NONE; at = reg->next[at]) {
                reg->chain[at] = i;
                reg->place[at] = place++;
            }
        }
    }
    for (i = 1; i < reg->num; ++i) {
        if ((ops[i - 1].kind != HISTORY_READ) && (reg->chain[i] == NONE)) {
            return "updates saw each other's values in a circle";
        }
    }
    return NULL;
}

/* Notes that cluster a equals or precedes b; returns NULL, or why it cannot */
static const char *history_edge(history_register_t *reg, uint16_t a, uint16_t b)
{
    if (reg->chain[a] == reg->chain[b]) {
        return reg->place[a] <= reg->place[b] ? NULL :
               "operations of one origin took effect in another order";
    }

    reg->before[reg->num_edges]  = reg->chain[a];
    reg->after[reg->num_edges++] = reg->chain[b];
    return NULL;
}

static const char *history_program_order(history_register_t *reg,
                                         const history_op_t *ops,
                                         const uint16_t *in)
{
    const char *why;
    uint16_t out, to;
    unsigned i;

    for (i = 1; i < reg->num - 1; ++i) {
        if (ops[i].origin != ops[i - 1].origin) {
            continue;
        }
        out = (ops[i - 1].kind == HISTORY_READ) ? in[i - 1] : i;
        to  = (ops[i].kind == HISTORY_WRITE) ? i + 1 : in[i];
        if ((ops[i].kind != HISTORY_READ) && (out == i + 1)) {
            return "a value was seen before its origin wrote it";
        }
        why = history_edge(reg, out, to);
        if (why != NULL) {
            return why;
        }
    }
    return NULL;
}

/* Removes chains without predecessors until none is left */
static const char *history_sort(history_register_t *reg)
{
    uint8_t gone[2 * HISTORY_MAX_OPS] = {0};
    uint16_t need[MAX_CLUSTERS]       = {0};
    unsigned i, left, progress;

    for (i = 0; i < reg->num_edges; ++i) {
        ++need[reg->after[i]];
    }
    for (left = reg->num_edges, progress = 1; progress && (left > 0);) {
        progress = 0;
        for (i = 0; i < reg->num_edges; ++i) {
            if (!gone[i] && (need[reg->before[i]] == 0)) {
                gone[i] = 1;
                --need[reg->after[i]];
                --left;
                progress = 1;
            }
        }
    }
    return left == 0 ? NULL :
           "what the origins saw has no order that agrees with their programs";
}

static const char *
history_ends(const history_register_t *reg, uint16_t last)
{
    unsigned i;

    if (last == NONE) {
        return "the last value is none that an operation wrote";
    }
    if (reg->next[last] != NONE) {
        return "the last value is one that an update has replaced: it is lost";
    }
    for (i = 0; i < reg->num_edges; ++i) {
        if (reg->after[i] == reg->chain[0]) {
            return "the initial value was seen after another one";
        }
        if (reg->before[i] == reg->chain[last]) {
            return "the last value is older than another one";
        }
    }
    if (reg->chain[last] == reg->chain[0]) {
        /* It must be the only chain: any other one would be between the two */
        for (i = 0; i < reg->num; ++i) {
            if ((reg->chain[i] != NONE) && (reg->chain[i] != reg->chain[0])) {
                return "a write is lost";
            }
        }
    }
    return NULL;
}

const char *history_check_register(const history_op_t *ops, unsigned num_ops,
                                   uint64_t initial, uint64_t last)
{
    uint16_t in[HISTORY_MAX_OPS];
    history_register_t reg;
    const char *why;
    unsigned i;

    reg.num       = num_ops + 1;
    reg.num_edges = 0;
    for (i = 0; i < reg.num; ++i) {
        reg.value[i] = (i == 0) ? initial : ops[i - 1].value;
        reg.next[i] = reg.prev[i] = reg.chain[i] = NONE;
        reg.place[i]                             = 0;
    }

    why = history_tie(&reg, ops, in);
    why = (why != NULL) ? why : history_chain(&reg, ops);
    why = (why != NULL) ? why : history_program_order(&reg, ops, in);
    why = (why != NULL) ? why : history_sort(&reg);
    return (why != NULL) ? why :
           history_ends(&reg, history_find(&reg, ops, last));
}


/*
 * Counters. The element passes through states. Each state tells how many
 * operations of each origin it contains. A legal order exists if and only if
 * the states that were seen can be put in a row in which no count decreases,
 * each origin sees exactly its own earlier operations, never fewer of another
 * origin than before, and no two updates see the same state.
 */
typedef struct history_counts {
    uint16_t of[HISTORY_MAX_ORIGINS];
} history_counts_t;

/* Sum of an origin's operands after each of its operations */
typedef struct history_counters {
    uint64_t sum[HISTORY_MAX_ORIGINS][HISTORY_MAX_OPS + 1];
    uint16_t num[HISTORY_MAX_ORIGINS];
    uint64_t mask[HISTORY_MAX_ORIGINS]; /* Bits of the origin */
} history_counters_t;

static void history_count(history_counters_t *counters,
                          const history_op_t *ops, unsigned num_ops)
{
    unsigned i, origin, num;

    memset(counters->num, 0, sizeof(counters->num));
    memset(counters->mask, 0, sizeof(counters->mask));
    for (origin = 0; origin < HISTORY_MAX_ORIGINS; ++origin) {
        counters->sum[origin][0] = 0;
    }
    for (i = 0; i < num_ops; ++i) {
        if (ops[i].kind != HISTORY_READ) {
            origin = ops[i].origin;
            num    = counters->num[origin]++;
            counters->sum[origin][num + 1] = counters->sum[origin][num] +
                                             ops[i].value;
            counters->mask[origin] |= ops[i].value |
                                      counters->sum[origin][num + 1];
        }
    }
}

static int history_decode(const history_counters_t *counters, uint64_t seen,
                          history_counts_t *counts)
{
    unsigned origin, num;
    uint64_t part;

    for (origin = 0; origin < HISTORY_MAX_ORIGINS; ++origin) {
        part = seen & counters->mask[origin];
        seen &= ~counters->mask[origin];
        for (num = 0; counters->sum[origin][num] != part; ++num) {
            if (num == counters->num[origin]) {
                return 0;
            }
        }
        counts->of[origin] = num;
    }
    return seen == 0;
}

static int history_not_less(const history_counts_t *a,
                            const history_counts_t *b)
{
    unsigned origin;

    for (origin = 0; origin < HISTORY_MAX_ORIGINS; ++origin) {
        if (a->of[origin] < b->of[origin]) {
            return 0;
        }
    }
    return 1;
}

/* Compares two states, seen by ops[i] and ops[k] */
static const char *history_two_states(const history_op_t *ops,
                                      const history_counts_t *counts,
                                      unsigned i, unsigned k)
{
    int i_not_less = history_not_less(&counts[i], &counts[k]);
    int k_not_less = history_not_less(&counts[k], &counts[i]);
    unsigned first, second;

    if (!i_not_less && !k_not_less) {
        return "two states were seen of which neither can be the earlier one";
    }
    if (i_not_less && k_not_less) {
        return (ops[i].kind == HISTORY_SWAP) && (ops[k].kind == HISTORY_SWAP) ?
               "two updates saw the same state: one of them is lost" : NULL;
    }

    first  = i_not_less ? k : i;
    second = i_not_less ? i : k;
    if ((ops[first].kind == HISTORY_SWAP) &&
        (counts[second].of[ops[first].origin] <=
         counts[first].of[ops[first].origin])) {
        return "a state was seen between the halves of an atomic update";
    }
    /* Sorted by program order, so the later one of an origin is ops[k] */
    if ((ops[i].origin == ops[k].origin) && (second == i)) {
        return "an origin saw an older state after a newer one";
    }
    return NULL;
}

static const char *
history_states(const history_op_t *ops, unsigned num_ops,
               const history_counters_t *counters, history_counts_t *counts)
{
    unsigned own = 0;
    unsigned i;

    for (i = 0; i < num_ops; ++i) {
        if ((i == 0) || (ops[i].origin != ops[i - 1].origin)) {
            own = 0;
        }
        if (ops[i].kind != HISTORY_WRITE) {
            if (!history_decode(counters, ops[i].seen, &counts[i])) {
                return "a value was seen that no operations add up to";
            }
            if (counts[i].of[ops[i].origin] != own) {
                return "an origin saw other operations of its own than those "
                       "before";
            }
        }
        own += (ops[i].kind != HISTORY_READ);
    }
    return NULL;
}

const char *history_check_counters(const history_op_t *ops, unsigned num_ops,
                                   uint64_t last)
{
    history_counts_t counts[HISTORY_MAX_OPS];
    history_counters_t counters;
    unsigned i, k, origin;
    const char *why;
    uint64_t sum = 0;

    history_count(&counters, ops, num_ops);
    for (origin = 0; origin < HISTORY_MAX_ORIGINS; ++origin) {
        sum += counters.sum[origin][counters.num[origin]];
    }
    if (last != sum) {
        return "the last value is not what all operations add up to";
    }

    why = history_states(ops, num_ops, &counters, counts);
    for (i = 0; (why == NULL) && (i < num_ops); ++i) {
        for (k = i + 1; (why == NULL) && (k < num_ops); ++k) {
            if ((ops[i].kind != HISTORY_WRITE) &&
                (ops[k].kind != HISTORY_WRITE)) {
                why = history_two_states(ops, counts, i, k);
            }
        }
    }
    return why;
}
