/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef HISTORY_PLAN_H_
#define HISTORY_PLAN_H_

#include <stdint.h>

/*
 * The plan of a random program of mpi_history: phases, each with a layout of
 * the windows that defines which operations are permitted where. Within these
 * limits the ranks draw operations, and the program conforms to MPI-3.1 11.7.
 *
 * The info key accumulate_ops has the default same_op_no_op: concurrent
 * accumulates of different origins use the same operation, or MPI_NO_OP. So
 * each area has one operation, or one origin.
 */

#define HISTORY_WINDOW     (256u * 1024u) /* Bytes of each window */
#define HISTORY_MAX_BYTES  (160u * 1024u) /* Maximum length of one operation */
#define HISTORY_MAX_AREAS  6u
#define HISTORY_MAX_CALLS  64u            /* Limit for one rank in one phase */
#define HISTORY_MAX_ORIGINS  4u

typedef enum history_sync {
    HISTORY_LOCK_ALL, /* One epoch of lock_all, with flushes */
    HISTORY_LOCKS,    /* Epochs of single locks, exclusive ones among them */
    HISTORY_FENCES,
    HISTORY_NUM_SYNCS
} history_sync_t;

typedef enum history_mode {
    HISTORY_REPLACES,  /* All origins: MPI_REPLACE, MPI_NO_OP */
    HISTORY_SUMS,      /* All origins: MPI_SUM, MPI_NO_OP */
    HISTORY_XORS,      /* All origins: MPI_BXOR, MPI_NO_OP */
    HISTORY_CASES,     /* All origins: compare and swap, MPI_NO_OP */
    HISTORY_OWNED,     /* One origin, any operation */
    HISTORY_READONLY,  /* All origins: get */
    HISTORY_EXCLUSIVE, /* Any operation, under an exclusive lock */
    HISTORY_NUM_MODES
} history_mode_t;

typedef enum history_what {
    HISTORY_PUT,
    HISTORY_GET,
    HISTORY_ACC,
    HISTORY_GET_ACC,
    HISTORY_FETCH_OP,
    HISTORY_CAS
} history_what_t;

typedef enum history_opcode {
    HISTORY_REPLACE,
    HISTORY_NO_OP,
    HISTORY_SUM,
    HISTORY_BXOR,
    HISTORY_PROD,
    HISTORY_MAX,
    HISTORY_MIN,
    HISTORY_BAND,
    HISTORY_BOR,
    HISTORY_NUM_OPS
} history_opcode_t;

/* Elements [first, first + count) of every window */
typedef struct history_area {
    history_mode_t mode;
    uint32_t       first;
    uint32_t       count;
} history_area_t;

typedef struct history_phase {
    uint32_t       number;
    unsigned       width;      /* Bytes of an element: 4 or 8 */
    history_sync_t sync;
    unsigned       num_parts;  /* FENCES: fences between; LOCKS: epochs */
    unsigned       num_steps;  /* Operations of each rank */
    unsigned       hot_target; /* Target of half of the operations */
    unsigned       remap;      /* The windows' memory is replaced at the end */
    unsigned       num_areas;
    history_area_t areas[HISTORY_MAX_AREAS];
} history_phase_t;

/* An operation as it was called */
typedef struct history_call {
    uint8_t  what;     /* history_what_t */
    uint8_t  op;       /* history_opcode_t */
    uint8_t  target;
    uint8_t  area;
    uint8_t  is_fixed; /* The operand is the same for all elements */
    uint16_t seq;      /* Number of the call in the phase */
    uint32_t first;    /* Element of the window */
    uint32_t count;
    uint64_t operand;  /* If fixed */
    uint64_t compare;  /* CAS */
    uint64_t order;    /* EXCLUSIVE: number of the lock's epoch, else 0 */
    uint64_t values;   /* Offset of the fetched values, or HISTORY_NO_VALUES */
} history_call_t;

#define HISTORY_NO_VALUES  UINT64_MAX

/** Next number of a generator, below @a bound. */
uint32_t history_random(uint64_t *state, uint32_t bound);

/** Initial state for history_random(), derived from three numbers. */
uint64_t history_seed(uint64_t seed, uint64_t phase, uint64_t rank);

/**
 * Draw a phase. All ranks get the same.
 *
 * @param [in]  seed    Seed of the program.
 * @param [in]  number  Number of the phase.
 * @param [in]  size    Number of ranks.
 * @param [out] phase   Filled.
 */
void history_phase(uint64_t seed, uint32_t number, unsigned size,
                   history_phase_t *phase);

/** The only rank that uses an OWNED area of a target. */
static inline unsigned history_owner(const history_phase_t *phase,
                                     unsigned area, unsigned target,
                                     unsigned size)
{
    return (phase->number + area + target) % size;
}

/**
 * Find the area of this mode that has the counter of exclusive epochs in its
 * first element.
 *
 * @return Its index, or -1 if there is none.
 */
int history_exclusive_area(const history_phase_t *phase);

/** Whether the call returns the old contents. */
static inline int history_fetches(const history_call_t *call)
{
    return (call->what != HISTORY_PUT) && (call->what != HISTORY_ACC);
}

/** Operand for an element that a rank passes to MPI. */
uint64_t history_operand(const history_phase_t *phase, unsigned rank,
                         const history_call_t *call, uint32_t element);

/** Result of an operation on an element that had the value @a old. */
uint64_t history_apply(const history_phase_t *phase, history_opcode_t op,
                       uint64_t old, uint64_t operand);

/** Random length of an operation in elements, at least 1. */
uint32_t history_length(uint64_t *state, unsigned width);

/** For people. */
const char *history_name(const history_call_t *call);

#endif
