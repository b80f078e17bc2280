/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * The checkers of history_check.h against brute force. Small random histories,
 * legal ones and ones with one change, for which brute force tries all orders.
 * Both must agree on each.
 */

#include "history_check.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_OPS  8u
#define ROUNDS   2000000u

typedef struct history {
    history_op_t ops[MAX_OPS];
    unsigned     num;
    uint64_t     initial;
    uint64_t     last;
    int          is_register;
} history_t;

static uint64_t seed = 20261123;

static unsigned rnd(unsigned bound)
{
    seed = seed * 6364136223846793005ul + 1442695040888963407ul;
    return (seed >> 33) % bound;
}

static uint64_t apply(const history_t *history, uint64_t old, unsigned i)
{
    if (history->ops[i].kind == HISTORY_READ) {
        return old;
    }
    return history->ops[i].value + (history->is_register ? 0 : old);
}

/* Tries all orders that keep each origin's program order */
static int is_legal(const history_t *history, unsigned done, uint64_t value)
{
    unsigned i;

    if (done == (1u << history->num) - 1) {
        return value == history->last;
    }
    for (i = 0; i < history->num; ++i) {
        const history_op_t *op = &history->ops[i];

        if ((done & (1u << i)) ||
            ((i > 0) && (op[-1].origin == op->origin) &&
             !(done & (1u << (i - 1))))) {
            continue;
        }
        if ((op->kind != HISTORY_WRITE) && (op->seen != value)) {
            continue;
        }
        if (is_legal(history, done | (1u << i), apply(history, value, i))) {
            return 1;
        }
    }
    return 0;
}

static void make_ops(history_t *history)
{
    unsigned i, origin = 0, use_xor = rnd(2);

    history->num         = rnd(MAX_OPS + 1);
    history->is_register = rnd(2);
    history->initial     = history->is_register ? 1000 : 0;
    for (i = 0; i < history->num; ++i) {
        if ((i == 0) || (rnd(3) == 0)) {
            origin += rnd(2) + (i > 0);
        }
        history->ops[i].origin = origin;
        if (history->ops[i].origin >= HISTORY_MAX_ORIGINS) {
            history->num = i;
            break;
        }
        history->ops[i].kind = rnd(3);
        history->ops[i].value =
                history->is_register ? 1 + i :
                1ul << (16 * history->ops[i].origin + (use_xor ? i : 0));
    }
}

/* Executes the operations in a random order */
static void run(history_t *history)
{
    uint64_t value = history->initial;
    unsigned next[HISTORY_MAX_ORIGINS], i, left, origin;

    memset(next, 0xff, sizeof(next));
    for (i = history->num; i-- > 0;) {
        next[history->ops[i].origin] = i;
    }
    for (left = history->num; left > 0;) {
        origin = rnd(HISTORY_MAX_ORIGINS);
        i      = next[origin];
        if ((i >= history->num) || (history->ops[i].origin != origin)) {
            continue;
        }
        history->ops[i].seen = value;
        value                = apply(history, value, i);
        ++next[origin];
        --left;
    }
    history->last = value;
}

/* Replaces a value that was seen by another possible one */
static void spoil(history_t *history)
{
    uint64_t *victim = &history->last;
    unsigned other;

    if (history->num == 0) {
        return;
    }
    other = rnd(history->num);
    if (rnd(4) != 0) {
        victim = &history->ops[rnd(history->num)].seen;
    }
    switch (rnd(4)) {
    case 0:
        *victim = history->initial;
        break;
    case 1:
        *victim = history->is_register ? history->ops[other].value :
                  *victim ^ history->ops[other].value;
        break;
    case 2:
        *victim = history->ops[other].seen;
        break;
    default:
        *victim = *victim + history->ops[other].value;
    }
}

static const char *check(const history_t *history)
{
    return history->is_register ?
           history_check_register(history->ops, history->num, history->initial,
                                  history->last) :
           history_check_counters(history->ops, history->num, history->last);
}

static void print(const history_t *history)
{
    unsigned i;

    for (i = 0; i < history->num; ++i) {
        printf("  origin %u kind %u value %" PRIx64 " seen %" PRIx64 "\n",
               history->ops[i].origin, history->ops[i].kind,
               history->ops[i].value, history->ops[i].seen);
    }
    printf("  %s, last %" PRIx64 "\n",
           history->is_register ? "register" : "counters", history->last);
}

static int test_brute_force(void)
{
    unsigned num[2] = {0, 0};
    history_t history;
    const char *why;
    unsigned i;
    int legal;

    for (i = 0; i < ROUNDS; ++i) {
        memset(&history, 0, sizeof(history));
        make_ops(&history);
        run(&history);
        if (rnd(3) != 0) {
            spoil(&history);
        }
        legal = is_legal(&history, 0, history.initial);
        why   = check(&history);
        if (legal != (why == NULL)) {
            printf("FAILED: round %u: is %s, but the checker says '%s'\n", i,
                   legal ? "legal" : "illegal", why == NULL ? "legal" : why);
            print(&history);
            return 1;
        }
        ++num[legal];
    }
    printf("%u legal and %u illegal histories\n", num[1], num[0]);
    return (num[0] < ROUNDS / 10) || (num[1] < ROUNDS / 10);
}

int main(void)
{
    return test_brute_force() ? EXIT_FAILURE : EXIT_SUCCESS;
}
