/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef MPI_TEST_H_
#define MPI_TEST_H_

#include <mpi.h>
#include <stdint.h>
#include <stddef.h>

/* Stops all ranks with one line when a check fails */
#define CHECK(_cond, _fmt, ...) \
    do { \
        if (!(_cond)) { \
            mpi_test_fail(__FILE__, __LINE__, #_cond, _fmt, ##__VA_ARGS__); \
        } \
    } while (0)

extern int mpi_test_rank;
extern int mpi_test_size;

/**
 * Start MPI.
 *
 * @param [in] argc, argv  Of main(). The first argument, if any, is the number
 *                   of rounds.
 * @param [in] thread      Required thread level, e.g. MPI_THREAD_SINGLE.
 * @param [in] rounds      Number of rounds without an argument.
 *
 * @return Number of rounds, at least 1.
 */
int mpi_test_init(int argc, char **argv, int thread, int rounds);

/**
 * End MPI. Rank 0 prints how many checked bytes the ranks exchanged. mpi-run
 * compares that with the transport's counters.
 *
 * @param [in] bytes  Payload bytes that this rank sent to, put to or got from
 *                    another rank.
 *
 * @return Exit code of the program.
 */
int mpi_test_done(uint64_t bytes);

/**
 * Print a line about a failed check and abort all ranks.
 */
void mpi_test_fail(const char *file, int line, const char *cond,
                   const char *fmt, ...)
        __attribute__((noreturn, format(printf, 4, 5)));

/**
 * Next number of a generator that gives every rank the same sequence for the
 * same seed.
 *
 * @param [inout] state  Seed, any value.
 *
 * @return 32 random bits.
 */
uint32_t mpi_test_random(uint64_t *state);

/**
 * Random message length: mostly near the sizes where a transport changes its
 * protocol, 0 included.
 *
 * @param [inout] state  Seed.
 * @param [in]    max    Largest length in bytes.
 *
 * @return Length in bytes, at most max.
 */
size_t mpi_test_length(uint64_t *state, size_t max);

/**
 * Fill a buffer with bytes that follow from a key and the position.
 */
void mpi_test_fill(void *buffer, size_t length, uint64_t key);

/**
 * Check a buffer that mpi_test_fill() has filled at its origin; fails the test
 * with the first wrong position.
 */
void mpi_test_verify(const void *buffer, size_t length, uint64_t key,
                     const char *what);

#endif
