/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_TEST_HOOK_H_
#define NPRDMA_TEST_HOOK_H_

#include <uct/api/uct.h>

/*
 * The emulated RNIC under the control of a test, which decides what happens to
 * work requests: they wait, or the device refuses them. It also records what
 * was posted and how packets are marked. Datagrams, which wire-up sends, pass
 * unless the test asks for losses.
 */

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Take over the device of an MD that has no connection yet, and one interface.
 * Everything passes, and nothing is recorded so far.
 */
void hook_start(uct_md_h md, uct_iface_h iface);

/* ---- what has happened so far ---- */

typedef struct hook_numbers {
    unsigned held;         /* Work requests that wait now */
    unsigned is_destroyed; /* A queue pair, behind its closed gate */
    unsigned refused;      /* Sends */

    /* Sends that passed on a queue pair after it had refused one. Empty WRITEs
     * do not count, because they only report that earlier sends are
     * complete. */
    unsigned overtakers;
    unsigned bad_ahs;      /* Address handles that have failed */
    unsigned losses;       /* Datagrams that did not simply pass */
} hook_numbers_t;

hook_numbers_t hook_numbers(void);

/* ---- work requests that wait: probes, or those behind a gate ---- */

/** Post the one that has waited for the longest time.
 *  @return Nonzero if there was one */
int hook_let_one_go(void);

/** Open the gate, let no more probes wait, and post what waits, if its queue
 *  pair still exists. */
void hook_let_go(void);

/* ---- a queue pair behind a gate ---- */

typedef enum hook_op {
    HOOK_SEND,
    HOOK_WRITE, /* With data */
    HOOK_READ,
    HOOK_NUM_OPS
} hook_op_t;

/**
 * Close the gate: work requests of one connection wait, in their order.
 *
 * @param [in] ep    Endpoint.
 * @param [in] kind  Kind of its connection, which has a queue pair.
 * @param [in] from  Work requests wait from the next one of this kind on.
 */
void hook_gate_close(uct_ep_h ep, unsigned kind, hook_op_t from);

/** @return Work requests of a connection so far, with those that wait. */
unsigned hook_count(uct_ep_h ep, unsigned kind, hook_op_t op);

/**
 * Let each message of a connection be a WRITE with immediate data, to a word of
 * a key, as a hostile peer may post.
 *
 * @param [in] ep    Endpoint; NULL: no more.
 */
void hook_forge(uct_ep_h ep, unsigned kind, uint64_t address, uct_rkey_t rkey);

/* ---- refusals, as of a device that is out of memory ---- */

/**
 * Refuse sends of an MD. Earlier counts are discarded.
 *
 * @param [in] md     MD.
 * @param [in] after  Number of sends that pass first.
 * @param [in] count  Number of sends that are refused next. All later ones
 *                    pass.
 */
void hook_refuse(uct_md_h md, unsigned after, unsigned count);

/** Let an MD create no more queue pairs. NULL: all may create them. */
void hook_refuse_qps(uct_md_h md);

/** Let address handles fail, each after a time. 0: no more. */
void hook_refuse_ahs(unsigned usec);

/* ---- datagrams that are lost ---- */

/* Percentages of the datagrams */
typedef struct hook_losses {
    unsigned drop;    /* Lost on the way */
    unsigned dup;     /* Arrive twice */
    unsigned reorder; /* Sent after the next one of their queue pair */
    unsigned fail;    /* The device fails to send them */
} hook_losses_t;

/** Treat datagrams so from now on, the same ones in each process. */
void hook_lose(hook_losses_t losses);

/* ---- probes of peers ---- */

/**
 * Call a function once when the device has the next probe, and before the
 * caller can see the completion.
 *
 * @param [in] call  Function. The thread that posts the probe calls it.
 * @param [in] arg   Its argument.
 */
void hook_probe_arm(void (*call)(void *arg), void *arg);

/**
 * Record the probes of one kind of connection from now on, and forget those so
 * far.
 *
 * @param [in] is_svc      Nonzero: of service connections; else of the others.
 * @param [in] is_holding  Nonzero: they wait.
 */
void hook_watch_probes(int is_svc, int is_holding);

#define HOOK_MAX_PROBES 4096

/**
 * The probes of this kind so far.
 *
 * @param [out] qpns  Numbers of their queue pairs, in their order, not more
 *                    than HOOK_MAX_PROBES.
 *
 * @return How many.
 */
unsigned hook_probes(uint32_t *qpns);

/* ---- marks of packets for the network ---- */

typedef struct hook_mark {
    unsigned sl;
    unsigned traffic_class;
    int      is_datagram;
} hook_mark_t;

/**
 * What the device has kept for each queue pair that was connected, on both
 * sides, and for each address handle of datagrams, in the order of their
 * creation.
 *
 * @return Nonzero if there are more than "index".
 */
int hook_mark(unsigned index, hook_mark_t *mark);

/** From now on the ports of the MDs are of Ethernet. */
void hook_set_ethernet(void);

/* ---- polls ---- */

/** @return Polls of completion queues by the calling thread, but for those of
 *          the interface that was given last: polls of its MD's service. */
unsigned hook_service_polls(void);

#ifdef __cplusplus
}
#endif

#endif
