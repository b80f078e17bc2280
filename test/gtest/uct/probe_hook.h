/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_TEST_PROBE_HOOK_H_
#define NPRDMA_TEST_PROBE_HOOK_H_

#include <uct/api/uct.h>

#define PROBE_HOOK_MAX 4096

/*
 * Something happens between a probe of a peer and its completion: a function of
 * the test is called when the device has the probe, and before the caller can
 * see the completion. Or probes wait, as if their peers did not answer. A
 * process has one hook, at the MD that it was last started for.
 */

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Take over an MD that has no connection yet, and one interface. No function is
 * called yet.
 */
void probe_hook_start(uct_md_h md, uct_iface_h iface);

/**
 * Call a function once, after the next probe is posted.
 *
 * @param [in] call  Function. The thread that posts the probe calls it.
 * @param [in] arg   Its argument.
 */
void probe_hook_arm(void (*call)(void *arg), void *arg);

/**
 * Watch probes of one kind of connection from now on.
 *
 * @param [in] is_svc  Nonzero: of service connections; else of the others.
 */
void probe_hook_watch(int is_svc);

/** Let probes of this kind wait from now on, and forget those so far. */
void probe_hook_hold(void);

/** @return Probes that wait. */
unsigned probe_hook_num_held(void);

/** Let the one go that has waited for the longest time. */
void probe_hook_let_one_go(void);

/** Let all go, and no more wait. */
void probe_hook_let_go(void);

/**
 * The probes of this kind so far.
 *
 * @param [out] qpns  Numbers of their queue pairs, in their order, not more
 *                    than PROBE_HOOK_MAX.
 *
 * @return How many.
 */
unsigned probe_hook_asked(uint32_t *qpns);

#ifdef __cplusplus
}
#endif

#endif
