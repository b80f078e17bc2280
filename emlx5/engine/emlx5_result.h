/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* How a work request ends, and how a queue pair does. */

#ifndef EMLX5_RESULT_H
#define EMLX5_RESULT_H

#include "object/emlx5_qp.h"

typedef enum {
    EMLX5_OK                = 0,
    /* Syndromes of completions */
    EMLX5_E_LOCAL_LENGTH    = 0x01,
    EMLX5_E_LOCAL_QP        = 0x02,
    EMLX5_E_LOCAL_PROT      = 0x04,
    EMLX5_E_FLUSH           = 0x05,
    EMLX5_E_REMOTE_INVALID  = 0x12,
    EMLX5_E_REMOTE_ACCESS   = 0x13,
    EMLX5_E_REMOTE_OP       = 0x14,
    EMLX5_E_RETRY           = 0x15,
    EMLX5_E_RNR_RETRY       = 0x16,
    /* It has not ended */
    EMLX5_MORE              = 0x100, /* to do, at once */
    EMLX5_WAIT_RECV         = 0x101, /* the peer has no receive */
    EMLX5_WAIT_PEER         = 0x102  /* the peer does not answer */
} emlx5_result_t;

/** Puts a queue pair into the error state: the driver gets an event
 * (emlx5_event_type_t, or 0 for none), and what is outstanding completes, by
 * the function's queue. */
void emlx5_qp_fail(emlx5_qp_t *qp, uint8_t event);

/** What follows when the state has become the error state, by a command or by a
 * failure. */
void emlx5_qp_entered_error(emlx5_qp_t *qp);

#endif
