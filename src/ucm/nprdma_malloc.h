/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_MALLOC_H_
#define NPRDMA_MALLOC_H_

#include <ucs/sys/compiler_def.h>

#include <stddef.h>
#include <stdint.h>

BEGIN_C_DECLS

/**
 * Settings of malloc() for programs that allocate and free their buffers around
 * each call: with them, glibc keeps what is freed, so that the next allocation
 * has no page faults. Memory that malloc() never returns was proposed for MPI
 * on ofa-general in April 2009, as "quite easy to tell libc". That proposal had
 * no bound, and gave nothing back.
 *
 * As glibc is set by default, it keeps blocks of up to 32 MiB, but the end of
 * the heap only up to twice the largest block that was freed. So two buffers of
 * one size are given back as soon as both are free. Here it keeps `keep` bytes
 * at the end of the heap. They are given back when memory is short
 * (nprdma_pressure.h), by the thread that is told so, and nothing is kept then
 * for some seconds.
 *
 * Where a cgroup has a limit, that may be less: of what is left there, each
 * process keeps at most half of the part that it has of what is used. A memory
 * hook that sees that a call would take more than there is left wakes the
 * thread. It waits for it if the call maps memory, since what a cgroup may not
 * have makes the kernel kill a process as soon as the program writes there. The
 * thread needs the locks of malloc(), and malloc() itself maps blocks of 32 MiB
 * and more under such a lock. So for these the wait ends when nothing was given
 * back for 10 ms, and else after one second. That is no proof for malloc()
 * itself, nor for memory that is written long after it was mapped.
 *
 * It is for the process. The first monitor that asks for it decides, and its
 * end, if it is the last one, gives everything back. Nothing is changed unless
 * malloc() is glibc's own and the environment has no setting of it.
 */


#define NPRDMA_MALLOC_KEEP_MIN ((size_t)1 << 20)

/* mallopt() has an int */
#define NPRDMA_MALLOC_KEEP_MAX ((size_t)2047 << 20)


typedef struct nprdma_malloc_stats {
    uint64_t keep;  /* Bytes that malloc() keeps at most; 0: hands off */
    uint64_t bound; /* The same at this moment, for each arena */
    uint64_t trims; /* Times that everything was given back */
    uint64_t asked; /* Of these, or soon one of these: for a memory hook */
} nprdma_malloc_stats_t;


/**
 * A monitor begins. The first one in the process sets malloc(), and logs one
 * line: of level info if it is set, a warning with the reason if not. Never
 * fails: without it malloc() is as it was. Not for memory hooks.
 *
 * @param [in] keep  Bytes, NPRDMA_MALLOC_KEEP_MIN to NPRDMA_MALLOC_KEEP_MAX.
 * @param [in] all   Nonzero: also keep blocks of more than 32 MiB, by taking
 *                   them from the heap. One that lives keeps what is in front
 *                   of it, until memory is short.
 */
void nprdma_malloc_begin(size_t keep, int all);


/**
 * A monitor for which @ref nprdma_malloc_begin was called ends, in the same
 * process. With the last one, malloc() gets the settings with which glibc
 * starts, and gives everything back.
 */
void nprdma_malloc_end(void);


/** @param [out] stats  Of the process. Filled. */
void nprdma_malloc_query(nprdma_malloc_stats_t *stats);


/**
 * For tests: how long nothing is kept after memory was short. The pause is one
 * to two times this. 0: as at first. Not while there is a monitor.
 */
void nprdma_malloc_set_pause(double seconds);

END_C_DECLS

#endif
