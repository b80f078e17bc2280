/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_TEST_REFUSER_H_
#define NPRDMA_TEST_REFUSER_H_

#include <uct/api/uct.h>

/*
 * A device that refuses to post, as one that is out of memory or about to be
 * removed may do. It counts and refuses the sends of reliable connections of
 * one MD. Datagrams, which wire-up sends, always pass. A process has one
 * refuser. It serves the MD that it was last started for.
 */

#ifdef __cplusplus
extern "C" {
#endif

/** Take over an MD that has no endpoint yet. Nothing is refused yet. */
void refuser_start(uct_md_h md);

/**
 * Refuse sends. Earlier counts are discarded.
 *
 * @param [in] after  Number of sends that pass first.
 * @param [in] count  Number of sends that are refused next. All later ones
 *                    pass.
 */
void refuser_refuse(unsigned after, unsigned count);

/** @return Sends refused. */
unsigned refuser_num_refused(void);

/**
 * @return Sends that passed on a queue pair after it had refused one. Empty
 *         WRITEs do not count, because they only report that earlier sends are
 *         complete.
 */
unsigned refuser_num_overtakers(void);

/**
 * Take over the queue pairs of an MD that has served no peer yet. A process has
 * two such MDs at most, those that it was last called for.
 */
void refuser_start_qps(uct_md_h md, uct_iface_h iface);

/** Let such an MD create no more, as if the device had none left, or again. */
void refuser_refuse_qps(uct_md_h md, int is_refused);

/** Hold the asynchronous context of an interface's worker: it answers no
 * connection requests. */
void refuser_hold(uct_iface_h iface);

/** Undo refuser_hold(). */
void refuser_release(uct_iface_h iface);

/**
 * Answer the requests that arrived in the meantime. Nothing else signals them.
 */
void refuser_answer(uct_iface_h iface);

/**
 * @return Whether an interface has nothing outstanding: all queue entries and
 *         buffers of sends are back, and destroyed endpoints are freed.
 */
int refuser_is_settled(uct_iface_h iface);

#ifdef __cplusplus
}
#endif

#endif
