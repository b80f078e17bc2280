// SPDX-License-Identifier: GPL-2.0-only
/* Copyright (c) 2026 The nprdma authors. */

#include "nprdma_state.h"

/* Bytes of states and header of a region */
size_t nprdma_states_memory(unsigned long npages)
{
	return PAGE_SIZE + PAGE_ALIGN(npages * sizeof(u32));
}

int nprdma_states_alloc(struct nprdma_states *states, unsigned long npages)
{
	states->size = nprdma_states_memory(npages);
	states->header = __vmalloc(states->size, NPRDMA_GFP_LARGE | __GFP_ZERO);
	if (!states->header)
		return -ENOMEM;

	states->words = (void *)states->header + PAGE_SIZE;
	return 0;
}

void nprdma_states_free(struct nprdma_states *states)
{
	vfree(states->header);
}
