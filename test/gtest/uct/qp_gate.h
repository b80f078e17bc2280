/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_TEST_QP_GATE_H_
#define NPRDMA_TEST_QP_GATE_H_

#include <uct/api/uct.h>

/*
 * A device whose queue pairs are served at different times: work requests of
 * one connection wait until a test lets them go, in their order. It also counts
 * the work requests of each queue pair. A process has one gate, at the MD that
 * it was last started for. The test posts in one thread.
 */

#ifdef __cplusplus
extern "C" {
#endif

typedef enum qp_gate_op {
    QP_GATE_SEND,
    QP_GATE_WRITE, /* With data */
    QP_GATE_READ,
    QP_GATE_NUM_OPS
} qp_gate_op_t;

/** Take over an MD that has no endpoint yet. The gate is open. */
void qp_gate_start(uct_md_h md, uct_iface_h iface);

/**
 * Close the gate.
 *
 * @param [in] ep    Endpoint.
 * @param [in] kind  Kind of its connection, which has a queue pair.
 * @param [in] from  Work requests wait from the next one of this kind on.
 */
void qp_gate_close(uct_ep_h ep, unsigned kind, qp_gate_op_t from);

/** @return Work requests that wait. */
unsigned qp_gate_num_held(void);

/** @return Nonzero if the queue pair was destroyed behind the closed gate. */
int qp_gate_is_destroyed(void);

/** Open the gate, and post what waits, if the queue pair still exists. */
void qp_gate_open(void);

/** @return Work requests of a connection so far, with those that wait. */
unsigned qp_gate_count(uct_ep_h ep, unsigned kind, qp_gate_op_t op);

/** @return Nonzero if a connection is being made. */
int qp_gate_is_connecting(uct_ep_h ep, unsigned kind);

/** @return Nonzero if a connection is there. */
int qp_gate_is_connected(uct_ep_h ep, unsigned kind);

/** @return Nonzero if all destroyed endpoints of an interface are freed. */
int qp_gate_are_freed(uct_iface_h iface);

/** @return Connections whose requests the service of an interface executes. */
unsigned qp_gate_num_served(uct_iface_h iface);

#ifdef __cplusplus
}
#endif

#endif
