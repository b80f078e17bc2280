/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* The program's loop: waits for messages of all functions, and does their
 * work. */

#ifndef EMLX5_LOOP_H
#define EMLX5_LOOP_H

#include "bus/emlx5_vfio.h"
#include "object/emlx5_fabric.h"

#include <signal.h>

typedef struct emlx5_loop {
    emlx5_vfio_t          *function[EMLX5_MAX_FUNCTIONS];
    unsigned              num_functions;
    emlx5_fabric_t        fabric;
    volatile sig_atomic_t stop; /* set by a signal, which is blocked except
                                 * while the loop waits */
} emlx5_loop_t;

/** Adds a function, which outlives the loop. */
void emlx5_loop_add(emlx5_loop_t *loop, emlx5_vfio_t *vfio);

/** Waits for messages until a time (emlx5_now(), UINT64_MAX: for ever), and
 * handles those that have come. Guests neither come nor go: so it can be called
 * while a function waits for a DMA. @return 1 if something came, 0 if not. */
int emlx5_loop_wait(emlx5_loop_t *loop, uint64_t until);

/** Works until loop->stop. */
void emlx5_loop_run(emlx5_loop_t *loop);

#endif
