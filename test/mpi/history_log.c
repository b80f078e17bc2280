/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "history_log.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Maximum number of elements whose history is printed */
#define MAX_PRINTED  3u

#define MAX_CALLS    (HISTORY_MAX_CALLS * HISTORY_MAX_ORIGINS)

/* States that a search remembers */
#define MAX_STATES   (1u << 17)

/* A call to the checked window */
typedef struct history_item {
    const history_call_t *call;
    const char           *values;
    unsigned             rank;
    uint64_t             order; /* Number since the beginning of the phase */
} history_item_t;

/* The window that is checked */
typedef struct history_case {
    const history_phase_t *phase;
    unsigned              target;
    const void            *initial;
    const void            *last;
    unsigned              num_bad;

    /* Calls to the area, by origin and in the program order of each */
    history_item_t        items[MAX_CALLS];
    unsigned              num_items;

    /* Elements that are covered by the same calls, which are these */
    uint32_t              begin;
    uint32_t              end;
    const history_item_t  *calls[MAX_CALLS];
    unsigned              num_calls;

    /* Of each origin the next call and the one behind its last */
    unsigned              next[HISTORY_MAX_ORIGINS];
    unsigned              limit[HISTORY_MAX_ORIGINS];
    /* The legal order that was found last */
    const history_item_t  *order[MAX_CALLS];
    unsigned              num_ordered;
    /* States from which no order is legal, as hashes; 0: none */
    uint64_t              states[MAX_STATES];
    unsigned              num_states;
} history_case_t;

history_log_t *history_log_open(const char *name, unsigned size, int create)
{
    size_t length = size * sizeof(history_log_t);
    void *logs    = NULL;
    int fd;

    fd = shm_open(name, O_RDWR | (create ? O_CREAT | O_EXCL : 0), 0600);
    if (fd < 0) {
        return NULL;
    }
    if (!create || (ftruncate(fd, length) == 0)) {
        logs = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    }
    close(fd);
    return logs == MAP_FAILED ? NULL : logs;
}

void history_log_unlink(const char *name)
{
    shm_unlink(name);
}

uint64_t history_log_reserve(history_log_t *log, const history_phase_t *phase,
                             uint32_t count)
{
    uint64_t offset = log->num_values;

    if (offset + (uint64_t)count * phase->width > HISTORY_MAX_VALUES) {
        return HISTORY_NO_VALUES;
    }
    log->num_values += (count * phase->width + 7u) & ~7u;
    return offset;
}

uint64_t history_load(const history_phase_t *phase, const void *memory,
                      uint32_t index)
{
    return phase->width == 8 ? ((const uint64_t*)memory)[index] :
           ((const uint32_t*)memory)[index];
}

void history_store(const history_phase_t *phase, void *memory, uint32_t index,
                   uint64_t value)
{
    if (phase->width == 8) {
        ((uint64_t*)memory)[index] = value;
    } else {
        ((uint32_t*)memory)[index] = value;
    }
}

static uint64_t history_seen(const history_case_t *judged,
                             const history_item_t *item, uint32_t element)
{
    return history_load(judged->phase, item->values,
                        element - item->call->first);
}

/* Calls to an area, by rank in program order; for an exclusive area, in the
 * order of the locks */
static int history_compare_items(const void *a, const void *b)
{
    const history_item_t *x = a;
    const history_item_t *y = b;

    if (x->order != y->order) {
        return x->order < y->order ? -1 : 1;
    }
    if (x->rank != y->rank) {
        return x->rank < y->rank ? -1 : 1;
    }
    return (int)x->call->seq - (int)y->call->seq;
}

/* Number of an exclusive epoch since the beginning of the phase */
static uint64_t history_epoch(const history_case_t *judged, uint64_t order)
{
    int area = history_exclusive_area(judged->phase);

    return history_apply(judged->phase, HISTORY_SUM, order,
                         -history_load(judged->phase, judged->initial,
                                       judged->phase->areas[area].first));
}

static void history_collect(history_case_t *judged, const history_log_t *logs,
                            unsigned size, unsigned area)
{
    history_item_t *item;
    unsigned rank, i;

    judged->num_items = 0;
    for (rank = 0; rank < size; ++rank) {
        for (i = 0; i < logs[rank].num_calls; ++i) {
            if ((logs[rank].calls[i].target != judged->target) ||
                (logs[rank].calls[i].area != area)) {
                continue;
            }
            item         = &judged->items[judged->num_items++];
            item->call   = &logs[rank].calls[i];
            item->rank   = rank;
            item->values = history_fetches(item->call) ?
                           logs[rank].values + item->call->values : NULL;
            item->order  = 0;
            if (judged->phase->areas[area].mode == HISTORY_EXCLUSIVE) {
                item->order = history_epoch(judged, item->call->order);
            }
        }
    }
    qsort(judged->items, judged->num_items, sizeof(*item),
          history_compare_items);
}

/* Finds the most elements from begin on that each call covers entirely or not
 * at all */
static void history_segment(history_case_t *judged, uint32_t begin,
                            uint32_t end)
{
    const history_call_t *call;
    unsigned i, call_end;

    judged->begin       = begin;
    judged->num_calls   = 0;
    judged->num_ordered = 0;
    for (i = 0; i < judged->num_items; ++i) {
        call     = judged->items[i].call;
        call_end = call->first + call->count;
        if (call_end <= begin) {
            continue;
        }
        if (call->first > begin) {
            end = (call->first < end) ? call->first : end;
            continue;
        }
        end = (call_end < end) ? call_end : end;
        judged->calls[judged->num_calls++] = &judged->items[i];
    }
    judged->end = end;
}

static void history_bad(history_case_t *judged, uint32_t element)
{
    const history_phase_t *phase = judged->phase;
    const history_item_t *item;
    unsigned i;

    if (++judged->num_bad > MAX_PRINTED) {
        return;
    }

    flockfile(stdout);
    printf("phase %u, window %u, element %u of %u bytes has no legal order\n"
           "    0x%016" PRIx64 " at first\n", phase->number, judged->target,
           element, phase->width,
           history_load(phase, judged->initial, element));
    for (i = 0; i < judged->num_calls; ++i) {
        item = judged->calls[i];
        printf("    rank %u call %u %s op %u [%u, %u) order %" PRIu64,
               item->rank, item->call->seq, history_name(item->call),
               item->call->op, item->call->first,
               item->call->first + item->call->count, item->call->order);
        if (item->call->what == HISTORY_CAS) {
            printf(" if 0x%" PRIx64, item->call->compare);
        }
        if (item->call->op != HISTORY_NO_OP) {
            printf(" operand 0x%" PRIx64,
                   history_operand(phase, item->rank, item->call, element));
        }
        if (item->values != NULL) {
            printf(" saw 0x%" PRIx64, history_seen(judged, item, element));
        }
        printf("\n");
    }
    printf("    0x%016" PRIx64 " at last\n",
           history_load(phase, judged->last, element));
    fflush(stdout);
    funlockfile(stdout);
}

/* Executes an operation on an element. Zero: it has seen another value. */
static int history_step(const history_case_t *judged,
                        const history_item_t *item, uint32_t element,
                        uint64_t *value)
{
    const history_call_t *call = item->call;

    if ((item->values != NULL) &&
        (history_seen(judged, item, element) != *value)) {
        return 0;
    }
    if ((call->op != HISTORY_NO_OP) &&
        ((call->what != HISTORY_CAS) || (call->compare == *value))) {
        *value = history_apply(judged->phase, call->op, *value,
                               history_operand(judged->phase, item->rank, call,
                                               element));
    }
    return 1;
}

/* Whether the order of the element before is legal for this one, too */
static int history_replay(const history_case_t *judged, uint32_t element)
{
    uint64_t value = history_load(judged->phase, judged->initial, element);
    unsigned i;

    for (i = 0; i < judged->num_ordered; ++i) {
        if (!history_step(judged, judged->order[i], element, &value)) {
            return 0;
        }
    }
    return (judged->num_ordered == judged->num_calls) &&
           (value == history_load(judged->phase, judged->last, element));
}

/* Whether the search comes to a state for the first time. When the table is
 * full it is forgotten, which costs time only. */
static int history_is_new(history_case_t *judged, uint64_t value)
{
    uint64_t state = value;
    unsigned i;

    for (i = 0; i < HISTORY_MAX_ORIGINS; ++i) {
        state = history_seed(state, judged->next[i], i);
    }
    for (i = state % MAX_STATES; judged->states[i] != 0;
         i = (i + 1) % MAX_STATES) {
        if (judged->states[i] == state) {
            return 0;
        }
    }
    judged->states[i] = state;
    if (++judged->num_states > MAX_STATES / 2) {
        memset(judged->states, 0, sizeof(judged->states));
        judged->num_states = 0;
    }
    return 1;
}

/*
 * Whether the element's operations from the next ones on have an order that
 * keeps that of each origin, in which each has seen what those before it made,
 * and the last value is right. Of an operation that returned the value and did
 * not change it, no later place could be better.
 */
static int history_search(history_case_t *judged, uint32_t element,
                          unsigned depth, uint64_t value)
{
    const history_item_t *item;
    unsigned origin;
    uint64_t result;

    if (depth == judged->num_calls) {
        return value == history_load(judged->phase, judged->last, element);
    }
    if (!history_is_new(judged, value)) {
        return 0;
    }
    for (origin = 0; origin < HISTORY_MAX_ORIGINS; ++origin) {
        if (judged->next[origin] == judged->limit[origin]) {
            continue;
        }
        item   = judged->calls[judged->next[origin]];
        result = value;
        if (!history_step(judged, item, element, &result)) {
            continue;
        }
        judged->order[depth] = item;
        ++judged->next[origin];
        if (history_search(judged, element, depth + 1, result)) {
            return 1;
        }
        --judged->next[origin];
        if ((item->values != NULL) && (result == value)) {
            return 0;
        }
    }
    return 0;
}

static int history_is_legal(history_case_t *judged, uint32_t element,
                            int is_ordered)
{
    unsigned i, origin;

    if (history_replay(judged, element)) {
        return 1;
    }

    memset(judged->next, 0, sizeof(judged->next));
    memset(judged->limit, 0, sizeof(judged->limit));
    for (i = judged->num_calls; i-- > 0;) {
        origin               = is_ordered ? 0 : judged->calls[i]->rank;
        judged->next[origin] = i;
        if (judged->limit[origin] == 0) {
            judged->limit[origin] = i + 1;
        }
    }
    memset(judged->states, 0, sizeof(judged->states));
    judged->num_states  = 0;
    judged->num_ordered = 0; /* A search that fails leaves no order */
    if (!history_search(judged, element, 0,
                        history_load(judged->phase, judged->initial,
                                     element))) {
        return 0;
    }

    judged->num_ordered = judged->num_calls;
    return 1;
}

unsigned history_judge(const history_phase_t *phase, const history_log_t *logs,
                       unsigned size, unsigned target, const void *initial,
                       const void *last)
{
    static history_case_t judged;
    const history_area_t *area;
    uint32_t element, end;
    unsigned i;

    judged.phase   = phase;
    judged.target  = target;
    judged.initial = initial;
    judged.last    = last;
    judged.num_bad = 0;
    for (i = 0; i < phase->num_areas; ++i) {
        area    = &phase->areas[i];
        element = area->first;
        end     = area->first + area->count;
        history_collect(&judged, logs, size, i);
        while (element < end) {
            history_segment(&judged, element, end);
            for (; element < judged.end; ++element) {
                if (!history_is_legal(&judged, element,
                                      area->mode == HISTORY_EXCLUSIVE)) {
                    history_bad(&judged, element);
                }
            }
        }
    }
    return judged.num_bad;
}
