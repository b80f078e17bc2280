/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_TEST_REFUSER_H_
#define NPRDMA_TEST_REFUSER_H_

#include <uct/api/uct.h>

/*
 * A device that refuses to post, as one may that is out of memory or about to
 * be removed: the sends of reliable connections of one MD, by their number.
 * Datagrams, which wire-up sends, always pass. There is one per process, for
 * the MD that it was started for last.
 */

#ifdef __cplusplus
extern "C" {
#endif

/** Take over an MD; before it has any endpoint. Nothing is refused yet. */
void refuser_start(uct_md_h md);

/**
 * Refuse sends; what was counted before is forgotten.
 *
 * @param [in] after  This many pass first.
 * @param [in] count  So many are refused then, and all others pass.
 */
void refuser_refuse(unsigned after, unsigned count);

/** @return Sends refused. */
unsigned refuser_num_refused(void);

/**
 * @return Sends that passed on a queue pair after it had refused one. Writes of
 *         nothing do not count: they tell when the rest is out.
 */
unsigned refuser_num_overtakers(void);

/** Let an interface answer nobody who wants to connect. */
void refuser_hold(uct_iface_h iface);

/** Undo refuser_hold(). */
void refuser_release(uct_iface_h iface);

/** Answer those who came meanwhile, of whom there is no other notice. */
void refuser_answer(uct_iface_h iface);

/**
 * @return Whether an interface has nothing on its way: what sends take of
 *         queues and buffers is back, and destroyed endpoints are freed.
 */
int refuser_is_settled(uct_iface_h iface);

#ifdef __cplusplus
}
#endif

#endif
