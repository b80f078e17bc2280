/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_TEST_PROBE_HOOK_H_
#define NPRDMA_TEST_PROBE_HOOK_H_

#include <uct/api/uct.h>

/*
 * Something happens between a probe of a peer and its completion: a function of
 * the test is called when the device has the probe, and before the caller can
 * see the completion. A process has one hook, at the MD that it was last
 * started for.
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

#ifdef __cplusplus
}
#endif

#endif
