/* SPDX-License-Identifier: GPL-2.0-only */
/* Copyright (c) 2026 The nprdma authors. */

#ifndef NPRDMA_STATE_H
#define NPRDMA_STATE_H

#include <linux/mm.h>
#include <linux/vmalloc.h>

#include "nprdma_uapi.h"

/*
 * For memory whose size the user chooses. It counts for the user's cgroup. If it
 * cannot be had, the call fails, and the kernel kills no process for it.
 */
#define NPRDMA_GFP_LARGE \
	(GFP_KERNEL_ACCOUNT | __GFP_RETRY_MAYFAIL | __GFP_NOWARN)

/*
 * The page states of a region and the header in front of them: one area of
 * kernel memory, which users map read-only (nprdma_uapi.h).
 */
struct nprdma_states {
	struct nprdma_states_header *header;
	u32 *words;
	size_t size;		/* all of it, whole pages */
};

/* The word that follows another when its bits become others: never the same */
static inline u32 nprdma_state_next(u32 word, u32 bits)
{
	return ((word & ~NPRDMA_PAGE_BITS) + NPRDMA_PAGE_COUNT) | bits;
}

size_t nprdma_states_memory(unsigned long npages);
int nprdma_states_alloc(struct nprdma_states *states, unsigned long npages);
void nprdma_states_free(struct nprdma_states *states);

#endif
