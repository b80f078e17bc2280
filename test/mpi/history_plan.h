/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef HISTORY_PLAN_H_
#define HISTORY_PLAN_H_

#include <stdint.h>

/*
 * What a random program of mpi_history does: phases, each with a layout of the
 * windows that says which operations are allowed where, so that the program
 * conforms to MPI-3.1 11.7 whatever the ranks draw within these limits.
 *
 * The info key accumulate_ops has the default same_op_no_op: concurrent
 * accumulates of different origins use the same operation, or MPI_NO_OP. So
 * each area has one operation, or one origin.
 */

#define HISTORY_WINDOW     (256u * 1024u) /* Bytes of each window */
#define HISTORY_MAX_BYTES  (160u * 1024u) /* Of one operation */
#define HISTORY_MAX_AREAS  6u
#define HISTORY_MAX_CALLS  64u            /* Of one rank in one phase */

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
    unsigned       num_steps;  /* Of each rank */
    unsigned       hot_target; /* Half of the operations go there */
    unsigned       remap;      /* Windows' memory is replaced at the end */
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
    uint64_t values;   /* Where what it fetched is, or HISTORY_NO_VALUES */
} history_call_t;

#define HISTORY_NO_VALUES  UINT64_MAX


/** Next number of a generator, below @a bound. */
uint32_t history_random(uint64_t *state, uint32_t bound);


/** A state for history_random() that follows from three numbers. */
uint64_t history_seed(uint64_t seed, uint64_t phase, uint64_t rank);


/**
 * Draw a phase. The same on all ranks.
 *
 * @param [in]  seed    Of the program.
 * @param [in]  number  Of the phase.
 * @param [in]  size    Number of ranks.
 * @param [out] phase   Filled.
 */
void history_phase(uint64_t seed, uint32_t number, unsigned size,
                   history_phase_t *phase);


/** The one rank that uses an OWNED area of a target. */
static inline unsigned history_owner(const history_phase_t *phase,
                                     unsigned area, unsigned target,
                                     unsigned size)
{
    return (phase->number + area + target) % size;
}


/**
 * The area whose first element counts the epochs of exclusive locks, for all
 * areas of this mode.
 *
 * @return Its index, or -1 if there is none.
 */
int history_exclusive_area(const history_phase_t *phase);


/** Bits of an element that belong to one origin, in SUMS and XORS. */
static inline unsigned history_origin_bits(const history_phase_t *phase)
{
    return phase->width * 2;
}


/** Whether the call returns what the window had. */
static inline int history_fetches(const history_call_t *call)
{
    return (call->what != HISTORY_PUT) && (call->what != HISTORY_ACC);
}


/** What a call of a rank gives MPI as the operand for an element. */
uint64_t history_operand(const history_phase_t *phase, unsigned rank,
                         const history_call_t *call, uint32_t element);


/** What an element that had @a old has after an operation. */
uint64_t history_apply(const history_phase_t *phase, history_opcode_t op,
                       uint64_t old, uint64_t operand);


/** Random length of an operation in elements, at least 1. */
uint32_t history_length(uint64_t *state, unsigned width);


const char *history_what_name(const history_call_t *call);

const char *history_op_name(const history_call_t *call);

const char *history_mode_name(history_mode_t mode);

const char *history_sync_name(history_sync_t sync);

#endif
