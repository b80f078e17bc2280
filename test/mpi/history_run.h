/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef HISTORY_RUN_H_
#define HISTORY_RUN_H_

#include "history_log.h"

#include <mpi.h>

/*
 * One rank's part of a phase: draws operations that the phase's layout permits,
 * and logs them with the values they fetched.
 */

/* Enough for all calls of a phase */
#define HISTORY_NUM_BUFFERS  (3u * HISTORY_MAX_CALLS)

/* State of an operation that is not complete */
typedef struct history_pending {
    history_call_t *call;
    int            source;   /* Indices of buffers; -1: none */
    int            result;
    int            compare;
    size_t         offset;   /* Offset of the data in the buffers */
    int            is_local; /* Locally complete */
    int            is_done;  /* Complete at the target */
} history_pending_t;

typedef struct history_buffer {
    char *memory;
    int  is_busy;
} history_buffer_t;

typedef struct history_run {
    MPI_Win               win;
    char                  *base; /* This rank's window */
    history_log_t         *logs; /* By rank */
    int                   is_disturbed;
    unsigned              num_bad; /* Bad elements of the last phase */
    uint64_t              num_calls; /* Of all phases */
    uint64_t              num_fetched; /* Elements fetched */
    uint64_t              num_bytes; /* Bytes to and from other ranks */

    /* State of the phase */
    const history_phase_t *phase;
    history_log_t         *log; /* This rank's log */
    uint64_t              state; /* Of the generator */
    int                   is_exclusive; /* The epoch is exclusive, */
    uint64_t              order; /* and has this number */
    int                   locked; /* Target of the epoch; -1: all */
    history_pending_t     pending[HISTORY_MAX_CALLS];
    history_buffer_t      buffers[HISTORY_NUM_BUFFERS];
    unsigned              next_buffer;
    /* Last known values of targets' elements, for compare and swap */
    char                  known[HISTORY_MAX_ORIGINS][HISTORY_WINDOW];
} history_run_t;

/** Allocate buffers. The window and the logs must exist. */
void history_run_init(history_run_t *run);

/**
 * Draw and execute a phase's operations of this rank, and end all epochs.
 *
 * @param [in] phase  Must stay valid until the end.
 * @param [in] state  State of the generator, for this phase and rank.
 */
void history_run_phase(history_run_t *run, const history_phase_t *phase,
                       uint64_t state);

#endif
