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

/* A call to the checked window */
typedef struct history_item {
    const history_call_t *call;
    const char           *values;
    unsigned             rank;
    uint64_t             order; /* Number since the beginning of the phase */
} history_item_t;

/* The window and the area that are checked */
typedef struct history_case {
    const history_phase_t *phase;
    unsigned              target;
    const void            *initial;
    const void            *last;
    history_item_t        items[MAX_CALLS]; /* Of one area */
    unsigned              num_items;
    unsigned              num_bad;
} history_case_t;

/* Elements that are covered by the same calls */
typedef struct history_segment {
    uint32_t             begin;
    uint32_t             end;
    const history_item_t *items[MAX_CALLS];
    unsigned             num_items;
} history_segment_t;


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

/* Finds the largest segment of the area from begin on that each call covers
 * entirely or not at all */
static void history_segment(const history_case_t *judged, uint32_t begin,
                            uint32_t end, history_segment_t *segment)
{
    const history_call_t *call;
    unsigned i;

    segment->begin     = begin;
    segment->num_items = 0;
    for (i = 0; i < judged->num_items; ++i) {
        call = judged->items[i].call;
        if (call->first + call->count <= begin) {
            continue;
        }
        if (call->first > begin) {
            end = call->first < end ? call->first : end;
            continue;
        }
        end = (call->first + call->count < end) ? call->first + call->count :
              end;
        segment->items[segment->num_items++] = &judged->items[i];
    }
    segment->end = end;
}

static void history_bad(history_case_t *judged,
                        const history_segment_t *segment, uint32_t element,
                        history_mode_t mode, const char *why)
{
    const history_phase_t *phase = judged->phase;
    const history_item_t *item;
    unsigned i;

    if (++judged->num_bad > MAX_PRINTED) {
        return;
    }

    flockfile(stdout);
    printf("phase %u (%s), window %u, element %u of %u bytes, %s: %s\n"
           "    0x%016" PRIx64 " at first\n",
           phase->number, history_sync_name(phase->sync), judged->target,
           element, phase->width, history_mode_name(mode), why,
           history_load(phase, judged->initial, element));
    for (i = 0; i < segment->num_items; ++i) {
        item = segment->items[i];
        printf("    rank %u call %u %s %s [%u, %u) order %" PRIu64, item->rank,
               item->call->seq, history_what_name(item->call),
               history_op_name(item->call), item->call->first,
               item->call->first + item->call->count, item->call->order);
        if (item->call->what == HISTORY_CAS) {
            printf(" if 0x%" PRIx64, item->call->compare);
        }
        if (item->call->what != HISTORY_GET) {
            printf(" gives 0x%" PRIx64,
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

/* The order is known: each operation must have seen exactly the results of
 * those before it */
static const char *history_replay(const history_case_t *judged,
                                  const history_segment_t *segment,
                                  uint32_t element)
{
    uint64_t value = history_load(judged->phase, judged->initial, element);
    const history_item_t *item;
    history_opcode_t op;
    unsigned i;

    for (i = 0; i < segment->num_items; ++i) {
        item = segment->items[i];
        if ((item->values != NULL) &&
            (history_seen(judged, item, element) != value)) {
            return "an operation did not see what those before it made";
        }
        op = (item->call->what == HISTORY_GET) ? HISTORY_NO_OP : item->call->op;
        if ((item->call->what == HISTORY_CAS) &&
            (item->call->compare != value)) {
            op = HISTORY_NO_OP;
        }
        value = history_apply(judged->phase, op, value,
                              history_operand(judged->phase, item->rank,
                                              item->call, element));
    }
    return value == history_load(judged->phase, judged->last, element) ? NULL :
           "the last value is not what the operations make";
}

static void history_judge_serial(history_case_t *judged,
                                 const history_segment_t *segment,
                                 history_mode_t mode)
{
    uint32_t element;
    const char *why;

    for (element = segment->begin; element < segment->end; ++element) {
        why = history_replay(judged, segment, element);
        if (why != NULL) {
            history_bad(judged, segment, element, mode, why);
        }
    }
}

/*
 * The checker's view of an element. Values are replaced by small numbers, or by
 * differences from the initial value. These are equal for all elements of a
 * segment that have the same history.
 */
typedef struct history_view {
    history_op_t ops[MAX_CALLS];
    unsigned     num_ops;
    uint64_t     last;
    int          is_ambiguous; /* The initial value equals a written one */
} history_view_t;

static uint8_t history_kind(const history_item_t *item, uint64_t seen)
{
    const history_call_t *call = item->call;

    switch (call->what) {
    case HISTORY_PUT:
    case HISTORY_ACC:
        return call->op == HISTORY_NO_OP ? HISTORY_READ : HISTORY_WRITE;
    case HISTORY_CAS:
        return seen == call->compare ? HISTORY_SWAP : HISTORY_READ;
    case HISTORY_GET:
        return HISTORY_READ;
    default:
        return call->op == HISTORY_NO_OP ? HISTORY_READ : HISTORY_SWAP;
    }
}

/* 0: the initial value; n: the value of call n; all bits: of no call */
static uint64_t history_number(const history_case_t *judged,
                               const uint64_t *written, unsigned num_written,
                               uint32_t element, uint64_t value)
{
    unsigned i;

    if (value == history_load(judged->phase, judged->initial, element)) {
        return 0;
    }
    for (i = 0; (i < num_written) && (written[i] != value); ++i) {
    }
    return i < num_written ? i + 1 : UINT64_MAX;
}

static void history_view_register(const history_case_t *judged,
                                  const history_segment_t *segment,
                                  uint32_t element, history_view_t *view)
{
    uint64_t initial = history_load(judged->phase, judged->initial, element);
    uint64_t written[MAX_CALLS];
    const history_item_t *item;
    uint64_t seen;
    unsigned i;

    view->is_ambiguous = 0;
    for (i = 0; i < segment->num_items; ++i) {
        item       = segment->items[i];
        written[i] = UINT64_MAX;
        if (item->call->op != HISTORY_NO_OP) {
            written[i] = history_operand(judged->phase, item->rank, item->call,
                                         element);
            view->is_ambiguous |= (written[i] == initial);
        }
    }

    view->num_ops = segment->num_items;
    for (i = 0; i < segment->num_items; ++i) {
        item                = segment->items[i];
        seen                = (item->values == NULL) ? initial :
                              history_seen(judged, item, element);
        view->ops[i].origin = item->rank;
        view->ops[i].kind   = history_kind(item, seen);
        view->ops[i].value  = i + 1;
        view->ops[i].seen   = history_number(judged, written,
                                             segment->num_items, element, seen);
    }
    view->last = history_number(judged, written, segment->num_items, element,
                                history_load(judged->phase, judged->last,
                                             element));
}

static void history_view_counters(const history_case_t *judged,
                                  const history_segment_t *segment,
                                  uint32_t element, history_mode_t mode,
                                  history_view_t *view)
{
    const history_phase_t *phase = judged->phase;
    uint64_t initial = history_load(phase, judged->initial, element);
    uint64_t last    = history_load(phase, judged->last, element);
    /* Subtracts the initial value */
    uint64_t minus        = (mode == HISTORY_XORS) ? initial : -initial;
    history_opcode_t undo = (mode == HISTORY_XORS) ? HISTORY_BXOR : HISTORY_SUM;
    const history_item_t *item;
    unsigned i;

    view->is_ambiguous = 0;
    view->num_ops      = segment->num_items;
    view->last         = history_apply(phase, undo, last, minus);
    for (i = 0; i < segment->num_items; ++i) {
        item                = segment->items[i];
        view->ops[i].origin = item->rank;
        view->ops[i].kind   = history_kind(item, 0);
        view->ops[i].value  = item->call->operand;
        view->ops[i].seen   = 0;
        if (item->values != NULL) {
            view->ops[i].seen = history_apply(
                    phase, undo, history_seen(judged, item, element), minus);
        }
    }
}

/* Of elements of one segment */
static int history_same_view(const history_view_t *a, const history_view_t *b)
{
    unsigned i;

    for (i = 0; i < a->num_ops; ++i) {
        if ((a->ops[i].kind != b->ops[i].kind) ||
            (a->ops[i].seen != b->ops[i].seen)) {
            return 0;
        }
    }
    return a->last == b->last;
}

static void history_judge_concurrent(history_case_t *judged,
                                     const history_segment_t *segment,
                                     history_mode_t mode)
{
    static history_view_t views[2];
    history_view_t *view = &views[0];
    history_view_t *old  = NULL;
    uint32_t element;
    const char *why;

    for (element = segment->begin; element < segment->end; ++element) {
        if ((mode == HISTORY_SUMS) || (mode == HISTORY_XORS)) {
            history_view_counters(judged, segment, element, mode, view);
        } else {
            history_view_register(judged, segment, element, view);
        }
        if (view->is_ambiguous ||
            ((old != NULL) && history_same_view(view, old))) {
            continue;
        }
        why = ((mode == HISTORY_SUMS) || (mode == HISTORY_XORS)) ?
              history_check_counters(view->ops, view->num_ops, view->last) :
              history_check_register(view->ops, view->num_ops, 0,
                                     view->last);
        if (why != NULL) {
            history_bad(judged, segment, element, mode, why);
            continue;
        }
        /* Legal: a following element with the same view is legal as well */
        old  = view;
        view = &views[view == &views[0]];
    }
}

unsigned history_judge(const history_phase_t *phase, const history_log_t *logs,
                       unsigned size, unsigned target, const void *initial,
                       const void *last)
{
    static history_segment_t segment;
    static history_case_t judged;
    const history_area_t *area;
    uint32_t begin, end;
    unsigned i;

    judged.phase   = phase;
    judged.target  = target;
    judged.initial = initial;
    judged.last    = last;
    judged.num_bad = 0;
    for (i = 0; i < phase->num_areas; ++i) {
        area = &phase->areas[i];
        end  = area->first + area->count;
        history_collect(&judged, logs, size, i);
        for (begin = area->first; begin < end; begin = segment.end) {
            history_segment(&judged, begin, end, &segment);
            if ((area->mode == HISTORY_OWNED) ||
                (area->mode == HISTORY_EXCLUSIVE) ||
                (area->mode == HISTORY_READONLY)) {
                history_judge_serial(&judged, &segment, area->mode);
            } else {
                history_judge_concurrent(&judged, &segment, area->mode);
            }
        }
    }
    return judged.num_bad;
}
