/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef HISTORY_LOG_H_
#define HISTORY_LOG_H_

#include "history_plan.h"

#include <stddef.h>

/*
 * The operations of all ranks in a phase, in memory that they share without
 * MPI. Each rank writes its own log, and reads all logs to check its own
 * window. So all ranks must be on one host.
 */

#define HISTORY_MAX_VALUES  (6u << 20) /* Bytes that a rank fetches */

typedef struct history_log {
    uint32_t       num_calls;
    uint64_t       num_values; /* Bytes in use */
    history_call_t calls[HISTORY_MAX_CALLS];
    char           values[HISTORY_MAX_VALUES];
} history_log_t;

/**
 * Map the logs of all ranks. Once all ranks have opened them, nothing is left
 * when the ranks end, in whatever way.
 *
 * @param [in] name    Name of the shared memory, e.g. "/history.4711".
 * @param [in] size    Number of ranks, at most HISTORY_MAX_ORIGINS.
 * @param [in] create  Nonzero: create it. Other ranks open it after that.
 *
 * @return Logs by rank, or NULL with errno set.
 */
history_log_t *history_log_open(const char *name, unsigned size, int create);

/** Remove the name, after all ranks have opened it. */
void history_log_unlink(const char *name);

/**
 * Reserve space for the values that a call fetches.
 *
 * @return Offset in log->values, or HISTORY_NO_VALUES if the log is full.
 */
uint64_t history_log_reserve(history_log_t *log, const history_phase_t *phase,
                             uint32_t count);

/** Read an element of memory with the phase's element width. */
uint64_t history_load(const history_phase_t *phase, const void *memory,
                      uint32_t index);

void history_store(const history_phase_t *phase, void *memory, uint32_t index,
                   uint64_t value);

/**
 * Check one window's history in a phase: whether the operations on each element
 * have an order that MPI-3.1 11.7 permits. Accumulate operations on an element
 * are atomic; those of one origin take effect in program order (the default of
 * the info key accumulate_ordering), those of different origins in any order
 * that agrees with that. Prints the history of the first few elements that have
 * no legal order. The verdict is exact, because all orders are tried.
 *
 * @param [in] logs     Logs of all ranks. No rank writes meanwhile.
 * @param [in] size     Number of ranks.
 * @param [in] target   Rank that owns the window.
 * @param [in] initial  The window before the phase.
 * @param [in] last     The window after it.
 *
 * @return Number of elements that have no legal order.
 */
unsigned history_judge(const history_phase_t *phase, const history_log_t *logs,
                       unsigned size, unsigned target, const void *initial,
                       const void *last);

#endif
