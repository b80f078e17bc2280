/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef HISTORY_RUN_H_
#define HISTORY_RUN_H_

#include "history_log.h"

#include <mpi.h>

/*
 * One rank's part of a phase: draws operations that the phase's layout allows,
 * and logs what they are and what they fetched.
 */

#define HISTORY_NUM_BUFFERS  48u

/* What an operation has besides its call, until it is complete */
typedef struct history_pending {
    history_call_t *call;
    int            source;   /* Buffers; -1: none */
    int            result;
    int            compare;
    size_t         offset;   /* Of the data in these */
    MPI_Request    request;  /* Or MPI_REQUEST_NULL */
    int            is_local; /* Complete here */
    int            is_done;  /* Complete at the target */
} history_pending_t;


typedef struct history_buffer {
    char *memory;
    int  is_busy;
} history_buffer_t;


typedef struct history_run {
    MPI_Win               win;
    char                  *base; /* Of the own window */
    history_log_t         *logs; /* By rank */
    unsigned              num_bad; /* Elements of the last phase */
    uint64_t              num_calls; /* Of all phases */
    uint64_t              num_fetched; /* Elements */
    uint64_t              num_bytes; /* That went to or came from others */

    /* Of the phase */
    const history_phase_t *phase;
    history_log_t         *log; /* The own one */
    uint64_t              state; /* Of the generator */
    int                   is_exclusive; /* The epoch is, */
    uint64_t              order; /* and has this number */
    int                   locked; /* Target of the epoch; -1: all */
    unsigned              num_xors[HISTORY_MAX_ORIGINS]; /* By target */
    history_pending_t     pending[HISTORY_MAX_CALLS];
    history_buffer_t      buffers[HISTORY_NUM_BUFFERS];
    unsigned              next_buffer;
    /* What elements of targets were when last seen, to compare with */
    char                  known[HISTORY_MAX_ORIGINS][HISTORY_WINDOW];
} history_run_t;


/** Get buffers. The window and the logs are there. */
void history_run_init(history_run_t *run);


/**
 * Draw and do a phase's operations of this rank, with all epochs ended.
 *
 * @param [in] phase  Stays until the end.
 * @param [in] state  Of the generator, for this phase and rank.
 */
void history_run_phase(history_run_t *run, const history_phase_t *phase,
                       uint64_t state);

#endif
