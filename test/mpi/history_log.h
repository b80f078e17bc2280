/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef HISTORY_LOG_H_
#define HISTORY_LOG_H_

#include "history_check.h"
#include "history_plan.h"

#include <stddef.h>

/*
 * What all ranks have done in a phase, in memory that they share without MPI:
 * each writes its own log, and reads all of them to judge its own window. So
 * all ranks are on one host.
 */

#define HISTORY_MAX_VALUES  (6u << 20) /* Bytes that a rank fetches a phase */

typedef struct history_log {
    uint32_t       num_calls;
    uint64_t       num_values; /* Bytes in use */
    history_call_t calls[HISTORY_MAX_CALLS];
    char           values[HISTORY_MAX_VALUES];
} history_log_t;


/**
 * Map the logs of all ranks. Nothing of them is left behind when the ranks end,
 * whatever way, once all have opened.
 *
 * @param [in] name    Of the shared memory, e.g. "/history.4711".
 * @param [in] size    Number of ranks, at most HISTORY_MAX_ORIGINS.
 * @param [in] create  Nonzero: make it. Others open it after that.
 *
 * @return Logs by rank, or NULL with errno set.
 */
history_log_t *history_log_open(const char *name, unsigned size, int create);


/** Remove the name, when all have opened. */
void history_log_unlink(const char *name);


/**
 * Reserve space for what a call fetches.
 *
 * @return Offset in log->values, or HISTORY_NO_VALUES if the log is full.
 */
uint64_t history_log_reserve(history_log_t *log, const history_phase_t *phase,
                             uint32_t count);


/** One element of memory that has elements of a phase's width. */
uint64_t history_load(const history_phase_t *phase, const void *memory,
                      uint32_t index);

void history_store(const history_phase_t *phase, void *memory, uint32_t index,
                   uint64_t value);


/**
 * Judge what happened to one window in a phase. Prints the history of the first
 * few elements that have no legal order.
 *
 * @param [in] logs     Of all ranks; nobody writes.
 * @param [in] size     Number of ranks.
 * @param [in] target   Rank whose window it is.
 * @param [in] initial  The window before the phase,
 * @param [in] last     and after it.
 *
 * @return Number of elements that have no legal order.
 */
unsigned history_judge(const history_phase_t *phase, const history_log_t *logs,
                       unsigned size, unsigned target, const void *initial,
                       const void *last);

#endif
