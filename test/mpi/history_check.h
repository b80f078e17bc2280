/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef HISTORY_CHECK_H_
#define HISTORY_CHECK_H_

#include <stdint.h>

/*
 * Whether the operations of several origins on one element of a window, and the
 * values that they returned, have a legal order. The rules are those of MPI-3.1
 * 11.7, not of an implementation:
 *
 * - accumulate operations on an element are atomic (11.7.1),
 * - those of one origin take effect in program order (11.7.2; the default of
 *   the info key accumulate_ordering),
 * - operations of different origins have any order that agrees with these,
 * - an operation that is complete at the target precedes everything after it.
 *
 * Pure functions: no MPI, no I/O, no state. Each verdict is exact: "legal" if
 * and only if a legal order exists.
 */

/* Limit of the operations on one element in one call */
#define HISTORY_MAX_OPS      512u

#define HISTORY_MAX_ORIGINS  4u

typedef enum history_kind {
    HISTORY_WRITE, /* Changes the element, returns nothing */
    HISTORY_READ,  /* Returns the element, does not change it */
    HISTORY_SWAP   /* Returns and changes it, atomically */
} history_kind_t;


/* One operation of one origin on the element */
typedef struct history_op {
    uint8_t  origin; /* Below HISTORY_MAX_ORIGINS */
    uint8_t  kind;   /* history_kind_t */
    uint64_t value;  /* Of WRITE and SWAP: see the function */
    uint64_t seen;   /* READ and SWAP: the returned value */
} history_op_t;


/**
 * Operations that replace the element: MPI_REPLACE, MPI_NO_OP and compare and
 * swap.
 *
 * @param [in] ops      Sorted by origin, and by program order of each. value
 *                      is what the element becomes. These values differ from
 *                      each other and from @a initial.
 * @param [in] num_ops  At most HISTORY_MAX_OPS.
 * @param [in] initial  Value before all of them.
 * @param [in] last     Value after all of them.
 *
 * @return NULL if a legal order exists, else the reason why none does.
 */
const char *history_check_register(const history_op_t *ops, unsigned num_ops,
                                   uint64_t initial, uint64_t last);


/**
 * Operations that commute and leave a trace each: sums and exclusive ors of
 * values that show how many of each origin's operations the element contains.
 *
 * @param [in] ops      As above. value is the operand. Values of one origin
 *                      have no bits in common with those of another one, nor do
 *                      the sums of all values of an origin.
 * @param [in] num_ops  At most HISTORY_MAX_OPS.
 * @param [in] last     Value after all of them; it was 0 before. (The caller
 *                      subtracts, or exclusive-ors, the real initial value.)
 *
 * @return NULL if a legal order exists, else the reason why none does.
 */
const char *history_check_counters(const history_op_t *ops, unsigned num_ops,
                                   uint64_t last);

#endif
