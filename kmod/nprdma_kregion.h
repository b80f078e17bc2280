/* SPDX-License-Identifier: GPL-2.0-only */
/* Copyright (c) 2026 The nprdma authors. */

#ifndef NPRDMA_KREGION_H
#define NPRDMA_KREGION_H

#include <linux/interval_tree.h>
#include <linux/kref.h>
#include <linux/mm.h>
#include <linux/mmu_notifier.h>
#include <linux/mutex.h>
#include <linux/spinlock.h>
#include <linux/vmalloc.h>

#include "nprdma_ctx.h"
#include "nprdma_overlap.h"

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

/* Pages of a chunk, whose frames are recorded in one table: 2 MiB */
#define NPRDMA_CHUNK_PAGES (PAGE_SIZE / sizeof(unsigned long))

/* Pages that are taken away without releasing the lock: 16 MiB */
#define NPRDMA_CLEAR_BATCH 4096UL

/* Most pages that are populated at once, aligned: one word of a bit set */
#define NPRDMA_BATCH ((unsigned long)BITS_PER_LONG)

/*
 * The frames of the present pages of a chunk. They are recorded because a page
 * that a device may have written is marked dirty before it is taken away. An
 * entry is 0, or the frame number shifted left, with bit 1 for "present" and
 * bit 0 for "W too". The table is allocated when the first page of the chunk is
 * populated, so an unused chunk needs almost no memory.
 */
struct nprdma_chunk {
	unsigned long *table;
	unsigned int present;
	struct nprdma_last {
		unsigned long notified;
		u32 revoked;
	} last[NPRDMA_CHUNK_PAGES / BITS_PER_LONG];
};

#define NPRDMA_ENTRY_W       1UL
#define NPRDMA_ENTRY_PRESENT 2UL
#define NPRDMA_ENTRY_SHIFT   2

/*
 * A range of the address space of the context's owner.
 *
 * The lock is taken in notifiers, and reclaim may hold any lock then. So a
 * holder must not allocate and must not sleep. It protects the fields that are
 * marked below, and all writes of state words.
 */
struct nprdma_kregion {
	struct kref ref;
	struct nprdma_ctx *ctx;
	struct mm_struct *mm;	/* of the context */
	u32 id;			/* in the context */
	u64 serial;		/* of all regions since the module was loaded */
	unsigned long start;	/* first address */
	unsigned long npages;
	struct nprdma_states states;
	atomic_long_t bytes;	/* accounted for */
	struct nprdma_overlap place;	/* counted while it is watched */
	struct mmu_interval_notifier notifier;

	struct mutex reg_lock;	/* adding and removing registrations */
	struct xarray registrations;	/* by id */

	spinlock_t lock;	/* protects the fields up to stats */
	bool dead;		/* no page becomes present any more */
	struct nprdma_chunk *chunks;
	struct rb_root_cached tree;	/* registrations, in pages */
	unsigned long *retired;	/* bit per page, behind the words; or NULL */
	struct list_head views;
	struct nprdma_ioc_stats stats;	/* but regions and bytes */

	struct mutex attach_lock;	/* devices, for nprdma_dmabuf.c */
	struct list_head devices;
};

struct nprdma_kregion *nprdma_kregion_alloc(struct nprdma_ctx *ctx,
					    unsigned long start,
					    unsigned long npages, bool retire);
int nprdma_kregion_watch(struct nprdma_kregion *region);
void nprdma_kregion_unwatch(struct nprdma_kregion *region);
void nprdma_kregion_free_tables(struct nprdma_kregion *region);
void nprdma_kregion_get(struct nprdma_kregion *region);
void nprdma_kregion_put(struct nprdma_kregion *region);

int nprdma_kregion_charge(struct nprdma_kregion *region, long bytes);
void nprdma_kregion_uncharge(struct nprdma_kregion *region, long bytes);

/* All views of a region at once, on every device */
void nprdma_kregion_repoint(struct nprdma_kregion *region, u32 bits,
			    unsigned long first, unsigned long n,
			    const unsigned long *pfns);
void nprdma_kregion_flush(struct nprdma_kregion *region, u32 bits,
			  unsigned long first, unsigned long n);

unsigned long nprdma_kregion_clear(struct nprdma_kregion *region, u32 bits,
				   unsigned long first, unsigned long n,
				   bool touch);
int nprdma_kregion_revoke(struct nprdma_kregion *region, u32 bits,
			  unsigned long first, unsigned long n, bool touch,
			  u64 *sum);

/*
 * A device may have written the frame. Only to be called while it is certain
 * that the process still has it. Takes no lock for the memory that is made
 * writable for devices, which no file system writes back.
 */
static inline void nprdma_mark_dirty(unsigned long pfn)
{
	folio_mark_dirty(page_folio(pfn_to_page(pfn)));
}

/* The page that holds the ith 4 KiB of the state words */
static inline struct page *
nprdma_kregion_states_page(struct nprdma_kregion *region, unsigned long i)
{
	return vmalloc_to_page((void *)region->states.words + i * PAGE_SIZE);
}

/*
 * For each batch of pages, the numbers of the last revocation and of the last
 * notification that included one of them. That of a notification is the
 * kernel's own sequence number, of 64 bits. That of a revocation wraps around.
 */
static inline struct nprdma_last *
nprdma_kregion_last(struct nprdma_kregion *region, unsigned long page)
{
	return &region->chunks[page / NPRDMA_CHUNK_PAGES]
			.last[page % NPRDMA_CHUNK_PAGES / NPRDMA_BATCH];
}

/* The entry of a page, in the table of its chunk, which exists */
static inline unsigned long *
nprdma_kregion_entry(struct nprdma_kregion *region, unsigned long page)
{
	return &region->chunks[page / NPRDMA_CHUNK_PAGES]
			.table[page % NPRDMA_CHUNK_PAGES];
}

#endif
