/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_POKE_H_
#define NPRDMA_POKE_H_

#include <ucs/sys/compiler_def.h>

#include <stdint.h>

BEGIN_C_DECLS

/**
 * Have the kernel store one word into memory of this process that may not be
 * there: what a CPU instruction does after the kernel was asked to touch the
 * page (see nprdma_access.c), in half of the time, and with nothing in between.
 *
 * On x86-64 the kernel tells a thread the base of its segment %gs, by one store
 * that reports faults (ARCH_GET_GS). Nobody but who needs that segment sets
 * the base, and with FSGSBASE (Linux 5.9) it is a register that any code may
 * load. It holds addresses, so not every value: 47 bits and a sign.
 */


/**
 * Find out whether it works here.
 *
 * @return Zero if there will be no stores in this way. So it is also where the
 *         calling thread uses the segment.
 */
int nprdma_poke_init(void);


/**
 * Store a word. From any number of threads; async-signal safe.
 *
 * @param [in] address  Naturally aligned.
 * @param [in] value    Appears at once, after all that was stored before.
 *
 * @return Nonzero if it is stored. Zero if that cannot be done, or not in this
 *         way: nothing is stored. Why, another way must find out.
 */
int nprdma_poke(uintptr_t address, uint64_t value);

END_C_DECLS

#endif
