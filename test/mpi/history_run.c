/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "history_run.h"
#include "history_disturb.h"
#include "mpi_test.h"

#include <string.h>
#include <sys/mman.h>

#define PAGE         4096u
#define BUFFER_SIZE  (HISTORY_MAX_BYTES + PAGE)
#define ALL          (-1)

/* Elements at the beginning of an area that operations prefer, so that they
 * collide. The first one of an EXCLUSIVE area counts the epochs. */
#define HOT_ELEMENTS  8u

/* Bytes of a result buffer that no operation has written */
#define UNTOUCHED     0xee

static MPI_Op mpi_op(history_opcode_t op)
{
    const MPI_Op ops[] = {MPI_REPLACE, MPI_NO_OP, MPI_SUM, MPI_BXOR, MPI_PROD,
                          MPI_MAX, MPI_MIN, MPI_BAND, MPI_BOR};

    return ops[op];
}

static MPI_Datatype mpi_type(const history_run_t *run)
{
    return run->phase->width == 8 ? MPI_UINT64_T : MPI_UINT32_T;
}

static uint32_t draw(history_run_t *run, uint32_t bound)
{
    return history_random(&run->state, bound);
}

/* In the place of another one, or anywhere */
static char *new_buffer(char *place)
{
    char *memory = mmap(place, BUFFER_SIZE, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS |
                        ((place != NULL) ? MAP_FIXED : 0), -1, 0);

    CHECK(memory != MAP_FAILED, "no memory: %m");
    CHECK((memory[0] == 0) && (memory[BUFFER_SIZE - 1] == 0),
          "new memory is not zero");
    return memory;
}

void history_run_init(history_run_t *run)
{
    unsigned i;

    run->log = &run->logs[mpi_test_rank];
    for (i = 0; i < HISTORY_NUM_BUFFERS; ++i) {
        run->buffers[i].memory = new_buffer(NULL);
        history_disturb_add(run->buffers[i].memory, BUFFER_SIZE);
    }
}

/* Reserves a free buffer. Returns its index. */
static int take_buffer(history_run_t *run)
{
    unsigned at;

    do {
        at = run->next_buffer++ % HISTORY_NUM_BUFFERS;
    } while (run->buffers[at].is_busy);
    run->buffers[at].is_busy = 1;
    if (run->buffers[at].memory == NULL) {
        run->buffers[at].memory = new_buffer(NULL);
    }
    return at;
}

/* The operation is locally complete, so the buffer may be overwritten */
static void put_buffer(history_run_t *run, int at)
{
    char *memory;

    if (at < 0) {
        return;
    }

    memory                   = run->buffers[at].memory;
    run->buffers[at].is_busy = 0;
    switch (draw(run, 4)) {
    case 0:
        memset(memory, 0xa5, BUFFER_SIZE);
        break;
    case 1:
        /* What is disturbed must stay in its place */
        if (run->is_disturbed) {
            new_buffer(memory);
        } else {
            munmap(memory, BUFFER_SIZE);
            run->buffers[at].memory = NULL;
        }
        break;
    case 2:
        CHECK(madvise(memory, BUFFER_SIZE, MADV_DONTNEED) == 0, "%m");
        break;
    default:
        break;
    }
}

static char *data_of(const history_run_t *run, const history_pending_t *pending,
                     int buffer)
{
    return run->buffers[buffer].memory + pending->offset;
}

static void know(history_run_t *run, const history_call_t *call, uint32_t i,
                 uint64_t value)
{
    history_store(run->phase, run->known[call->target], call->first + i, value);
}

/* An operation is locally complete: records the values it fetched, checks that
 * its origin buffer is unchanged, and returns its buffers. */
static void finish(history_run_t *run, history_pending_t *pending)
{
    const history_phase_t *phase = run->phase;
    history_call_t *call         = pending->call;
    const char *data;
    uint64_t value;
    uint32_t i;

    pending->is_local = 1;
    if (pending->source >= 0) {
        data = data_of(run, pending, pending->source);
        for (i = 0; i < call->count; ++i) {
            value = history_operand(phase, mpi_test_rank, call,
                                    call->first + i);
            CHECK(history_load(phase, data, i) == value,
                  "phase %u call %u: the operand of element %u has become "
                  "0x%lx", phase->number, call->seq, call->first + i,
                  (unsigned long)history_load(phase, data, i));
            if (call->op == HISTORY_REPLACE) {
                know(run, call, i, value);
            }
        }
    }
    if (pending->result >= 0) {
        data = data_of(run, pending, pending->result);
        memcpy(run->log->values + call->values, data,
               (size_t)call->count * phase->width);
        run->num_fetched += call->count;
        for (i = 0; (call->what == HISTORY_CAS || call->op == HISTORY_NO_OP) &&
                    (i < call->count); ++i) {
            know(run, call, i, history_load(phase, data, i));
        }
    }
    put_buffer(run, pending->source);
    put_buffer(run, pending->result);
    put_buffer(run, pending->compare);
}

/* Called after a flush or at the end of an epoch */
static void complete(history_run_t *run, int target, int at_target)
{
    history_pending_t *pending;
    unsigned i;

    for (i = 0; i < run->log->num_calls; ++i) {
        pending = &run->pending[i];
        if ((target != ALL) && (pending->call->target != target)) {
            continue;
        }
        if (!pending->is_local) {
            finish(run, pending);
        }
        pending->is_done |= at_target;
    }
}

static void flush(history_run_t *run, int target, int is_local)
{
    if (target == ALL) {
        if (is_local) {
            MPI_Win_flush_local_all(run->win);
        } else {
            MPI_Win_flush_all(run->win);
        }
    } else if (is_local) {
        MPI_Win_flush_local(target, run->win);
    } else {
        MPI_Win_flush(target, run->win);
    }
    complete(run, target, !is_local);
}

/*
 * Whether MPI leaves the result of two operations of one origin undefined if
 * the first one is not complete when the second one is called. That concerns
 * put and get, unless both are gets. Accumulates are ordered.
 */
static int is_conflict(const history_call_t *a, const history_call_t *b)
{
    if ((a->target != b->target) || (a->first + a->count <= b->first) ||
        (b->first + b->count <= a->first)) {
        return 0;
    }
    if ((a->what == HISTORY_GET) && (b->what == HISTORY_GET)) {
        return 0;
    }
    return (a->what <= HISTORY_GET) || (b->what <= HISTORY_GET);
}

static int is_allowed(const history_run_t *run, const history_call_t *call)
{
    unsigned i;

    for (i = 0; i < run->log->num_calls; ++i) {
        if (!run->pending[i].is_done &&
            is_conflict(run->pending[i].call, call)) {
            return 0;
        }
    }
    return 1;
}

/* Draws an operation that the mode of the area permits */
static void draw_what(history_run_t *run, history_mode_t mode,
                      history_call_t *call)
{
    static const history_opcode_t concurrent[] = {
        [HISTORY_REPLACES] = HISTORY_REPLACE,
        [HISTORY_SUMS]     = HISTORY_SUM,
        [HISTORY_XORS]     = HISTORY_BXOR,
        [HISTORY_CASES]    = HISTORY_NO_OP
    };

    switch (mode) {
    case HISTORY_READONLY:
        call->what = HISTORY_GET;
        break;
    case HISTORY_OWNED:
    case HISTORY_EXCLUSIVE:
        /* Mostly operations that move data without reading it */
        call->what = draw(run, 3) ? draw(run, 3) : draw(run, HISTORY_CAS + 1);
        call->op   = draw(run, 2) ? HISTORY_REPLACE :
                     draw(run, HISTORY_NUM_OPS);
        break;
    case HISTORY_CASES:
        call->what = draw(run, 3) ? HISTORY_CAS :
                     draw(run, 2) ? HISTORY_FETCH_OP : HISTORY_GET_ACC;
        call->op   = HISTORY_NO_OP;
        break;
    default:
        call->what = draw(run, 2) ? HISTORY_ACC :
                     draw(run, 2) ? HISTORY_FETCH_OP : HISTORY_GET_ACC;
        call->op   = draw(run, 3) ? concurrent[mode] : HISTORY_NO_OP;
    }

    if ((call->what == HISTORY_PUT) || (call->what == HISTORY_CAS)) {
        call->op = HISTORY_REPLACE;
    } else if (call->what == HISTORY_GET) {
        call->op = HISTORY_NO_OP;
    } else if ((call->what == HISTORY_ACC) && (call->op == HISTORY_NO_OP)) {
        call->what = HISTORY_GET_ACC;
    }
}

/* Draws the elements: often the same ones, so that operations collide */
static void draw_range(history_run_t *run, const history_area_t *area,
                       history_call_t *call)
{
    uint32_t first  = area->first + (area->mode == HISTORY_EXCLUSIVE);
    uint32_t length = area->first + area->count - first;
    uint32_t at;

    call->count = history_length(&run->state, run->phase->width);
    if ((call->what == HISTORY_FETCH_OP) || (call->what == HISTORY_CAS)) {
        call->count = 1;
    }
    call->count = call->count < length ? call->count : length;
    at          = draw(run, 3) ? HOT_ELEMENTS : length;
    at          = at < length - call->count ? at : length - call->count;
    call->first = first + (at > 0 ? draw(run, at + 1) : 0);
}

static int is_area_allowed(const history_run_t *run, unsigned area,
                           unsigned target)
{
    switch (run->phase->areas[area].mode) {
    case HISTORY_OWNED:
        return history_owner(run->phase, area, target, mpi_test_size) ==
               (unsigned)mpi_test_rank;
    case HISTORY_EXCLUSIVE:
        return run->is_exclusive;
    default:
        return 1;
    }
}

/* Draws a call; zero: no call is permitted */
static int draw_call(history_run_t *run, history_call_t *call)
{
    const history_area_t *area;
    unsigned tries;

    memset(call, 0, sizeof(*call));
    call->seq    = run->log->num_calls;
    call->values = HISTORY_NO_VALUES;
    call->target = (run->locked != ALL) ? (unsigned)run->locked :
                   draw(run, 2) ? run->phase->hot_target :
                   draw(run, mpi_test_size);
    for (tries = 0; tries < 8; ++tries) {
        call->area = draw(run, run->phase->num_areas);
        if (is_area_allowed(run, call->area, call->target)) {
            area = &run->phase->areas[call->area];
            call->order = (area->mode == HISTORY_EXCLUSIVE) ? run->order : 0;
            draw_what(run, area->mode, call);
            draw_range(run, area, call);
            if (call->what == HISTORY_CAS) {
                call->compare = history_load(run->phase,
                                             run->known[call->target],
                                             call->first);
            }
            return 1;
        }
    }
    return 0;
}

static void take_buffers(history_run_t *run, history_pending_t *pending)
{
    const history_call_t *call = pending->call;
    int has_source             = (call->what != HISTORY_GET) &&
                                 (call->op != HISTORY_NO_OP);

    pending->source  = has_source ? take_buffer(run) : -1;
    pending->result  = history_fetches(call) ? take_buffer(run) : -1;
    pending->compare = (call->what == HISTORY_CAS) ? take_buffer(run) : -1;
}

static void fill_buffers(history_run_t *run, history_pending_t *pending)
{
    const history_call_t *call = pending->call;
    uint32_t i;

    /* At any offset in a page, often that of the target, so that slices consist
     * of whole pages */
    pending->offset = draw(run, 2) ? draw(run, PAGE / 8) * 8 :
                      (call->first * run->phase->width) % PAGE;
    if (pending->source >= 0) {
        for (i = 0; i < call->count; ++i) {
            history_store(run->phase, data_of(run, pending, pending->source), i,
                          history_operand(run->phase, mpi_test_rank, call,
                                          call->first + i));
        }
    }
    if (pending->result >= 0) {
        memset(data_of(run, pending, pending->result), UNTOUCHED,
               (size_t)call->count * run->phase->width);
    }
    if (pending->compare >= 0) {
        history_store(run->phase, data_of(run, pending, pending->compare), 0,
                      call->compare);
    }
}

static void post(history_run_t *run, history_pending_t *pending)
{
    const history_call_t *call = pending->call;
    MPI_Aint where             = (MPI_Aint)call->first * run->phase->width;
    MPI_Datatype type          = mpi_type(run);
    MPI_Op op                  = mpi_op(call->op);
    int num                    = call->count;
    int target                 = call->target;
    uint64_t none              = 0;
    char *source, *result;

    source = (pending->source < 0) ? (char*)&none :
             data_of(run, pending, pending->source);
    result = (pending->result < 0) ? NULL :
             data_of(run, pending, pending->result);
    switch (call->what) {
    case HISTORY_PUT:
        MPI_Put(source, num, type, target, where, num, type, run->win);
        break;
    case HISTORY_GET:
        MPI_Get(result, num, type, target, where, num, type, run->win);
        break;
    case HISTORY_ACC:
        MPI_Accumulate(source, num, type, target, where, num, type, op,
                       run->win);
        break;
    case HISTORY_GET_ACC:
        MPI_Get_accumulate(source, (pending->source < 0) ? 0 : num, type,
                           result, num, type, target, where, num, type, op,
                           run->win);
        break;
    case HISTORY_FETCH_OP:
        MPI_Fetch_and_op(source, result, type, target, where, op, run->win);
        break;
    default:
        MPI_Compare_and_swap(source, data_of(run, pending, pending->compare),
                             result, type, target, where, run->win);
    }
}

/* Logs and posts a drawn call, if the log has room for it */
static history_pending_t *start(history_run_t *run, const history_call_t *drawn)
{
    history_log_t *log         = run->log;
    history_call_t *call       = &log->calls[log->num_calls];
    history_pending_t *pending = &run->pending[log->num_calls];

    *call         = *drawn;
    pending->call = call;
    if (history_fetches(call)) {
        call->values = history_log_reserve(log, run->phase, call->count);
        if (call->values == HISTORY_NO_VALUES) {
            return NULL;
        }
    }

    take_buffers(run, pending);
    fill_buffers(run, pending);
    pending->is_local = 0;
    pending->is_done  = 0;
    post(run, pending);
    ++log->num_calls;
    ++run->num_calls;
    if (call->target != mpi_test_rank) {
        run->num_bytes += (uint64_t)call->count * run->phase->width;
    }
    return pending;
}

static void do_call(history_run_t *run)
{
    history_call_t call;

    if ((run->log->num_calls == HISTORY_MAX_CALLS) || !draw_call(run, &call)) {
        return;
    }
    if (!is_allowed(run, &call)) {
        if (run->phase->sync == HISTORY_FENCES) {
            return;
        }
        flush(run, draw(run, 4) ? call.target : ALL, 0);
    }
    if (start(run, &call) == NULL) {
        if (run->phase->sync != HISTORY_FENCES) {
            flush(run, ALL, draw(run, 2));
        }
    } else if ((call.what == HISTORY_CAS) &&
               (run->phase->sync != HISTORY_FENCES) && draw(run, 2)) {
        flush(run, call.target, draw(run, 2));
    }
}

/* In a passive-target epoch */
static void do_step(history_run_t *run)
{
    int target = (run->locked != ALL) ? run->locked :
                 (int)draw(run, mpi_test_size);

    switch (draw(run, 16)) {
    case 0:
        flush(run, target, 1);
        break;
    case 1:
        flush(run, target, 0);
        break;
    case 2:
        flush(run, run->locked, draw(run, 2));
        break;
    default:
        do_call(run);
    }
}

static void run_lock_all(history_run_t *run)
{
    unsigned i;

    run->locked = ALL;
    MPI_Win_lock_all(0, run->win);
    for (i = 0; i < run->phase->num_steps; ++i) {
        do_step(run);
    }
    MPI_Win_unlock_all(run->win);
    complete(run, ALL, 1);
}

/* Fences are collective, so all ranks call the same number */
static void run_fences(history_run_t *run)
{
    unsigned part, i;

    run->locked = ALL;
    MPI_Win_fence(MPI_MODE_NOPRECEDE, run->win);
    for (part = 1; part <= run->phase->num_parts; ++part) {
        for (i = 0; i < run->phase->num_steps / run->phase->num_parts; ++i) {
            do_call(run);
        }
        MPI_Win_fence(part == run->phase->num_parts ? MPI_MODE_NOSUCCEED : 0,
                      run->win);
        complete(run, ALL, 1);
    }
}

/*
 * Increments the number of the exclusive epoch, in the first element of the
 * area. If locks exclude each other, the numbers are unique and give the
 * epochs' order.
 */
static void count_epoch(history_run_t *run, int area, history_what_t what)
{
    history_call_t call = {
        .what     = what,
        .op       = (what == HISTORY_PUT) ? HISTORY_REPLACE : HISTORY_NO_OP,
        .target   = run->locked,
        .area     = area,
        .is_fixed = 1,
        .seq      = run->log->num_calls,
        .first    = run->phase->areas[area].first,
        .count    = 1,
        .operand  = history_apply(run->phase, HISTORY_SUM, run->order, 1),
        .order    = run->order,
        .values   = HISTORY_NO_VALUES
    };
    history_pending_t *pending;

    flush(run, run->locked, 0);
    pending = start(run, &call);
    CHECK(pending != NULL, "phase %u: no room to count an epoch",
          run->phase->number);
    flush(run, run->locked, 0);
    if (what == HISTORY_GET) {
        run->order           = history_load(run->phase, run->log->values +
                                            pending->call->values, 0);
        pending->call->order = run->order;
    }
}

static void run_locks(history_run_t *run)
{
    int area = history_exclusive_area(run->phase);
    unsigned part, i;

    for (part = 0; part < 2 * run->phase->num_parts; ++part) {
        /* The call that counts the epoch needs room in the log */
        run->is_exclusive = (area >= 0) && draw(run, 2) &&
                       (run->log->num_calls + 8 < HISTORY_MAX_CALLS) &&
                       (run->log->num_values < HISTORY_MAX_VALUES / 2);
        run->locked  = draw(run, 2) ? run->phase->hot_target :
                       draw(run, mpi_test_size);
        MPI_Win_lock(run->is_exclusive ? MPI_LOCK_EXCLUSIVE : MPI_LOCK_SHARED,
                     run->locked, 0, run->win);
        if (run->is_exclusive) {
            count_epoch(run, area, HISTORY_GET);
        }
        for (i = 0; (i < run->phase->num_steps / run->phase->num_parts) &&
                    (run->log->num_calls + 1 < HISTORY_MAX_CALLS); ++i) {
            do_step(run);
        }
        if (run->is_exclusive) {
            count_epoch(run, area, HISTORY_PUT);
        }
        MPI_Win_unlock(run->locked, run->win);
        complete(run, run->locked, 1);
        run->is_exclusive = 0;
    }
}

void history_run_phase(history_run_t *run, const history_phase_t *phase,
                       uint64_t state)
{
    run->phase           = phase;
    run->state           = state;
    run->order           = 0;
    run->is_exclusive    = 0;
    run->log->num_calls  = 0;
    run->log->num_values = 0;
    switch (phase->sync) {
    case HISTORY_LOCK_ALL:
        run_lock_all(run);
        break;
    case HISTORY_LOCKS:
        run_locks(run);
        break;
    default:
        run_fences(run);
    }
}
