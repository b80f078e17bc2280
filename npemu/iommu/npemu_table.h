/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * The file of an emulated IOMMU table (npemu_iommu.h): a memfd that is sealed
 * against changes of its size, so that an access to a mapping never raises
 * SIGBUS. The owner, and every process that accesses the region, map all of it.
 *
 *   header | signature page | page states
 */

#ifndef NPEMU_TABLE_H
#define NPEMU_TABLE_H

#include "fabric/npemu_shm.h"
#include "npemu_iommu.h"

#define NPEMU_TABLE_MAGIC   0x756d6d6f69706e31ull
#define NPEMU_TABLE_VERSION 3

/* Offsets in the file. */
#define NPEMU_TABLE_SIGNATURE (2 * NPRDMA_PAGE_SIZE)
#define NPEMU_TABLE_STATES    (3 * NPRDMA_PAGE_SIZE)

/* Bits of `hooks`, for which an access leaves the fast path. The bit of a gate
 * is 1 << its point. */
#define NPEMU_HOOK_FAULTS (1u << 8)

/* A gate's `state` is a futex. */
enum {
    NPEMU_GATE_IDLE,
    NPEMU_GATE_ARMED,
    NPEMU_GATE_HELD
};

typedef struct {
    _Atomic uint32_t state;
    _Atomic int32_t  pid;   /* of the process that armed it */
    _Atomic uint64_t page;
} npemu_gate_t;

/* Life of a fault plan's entry. */
enum {
    NPEMU_FAULT_FREE,
    NPEMU_FAULT_WAITING, /* counts accesses */
    NPEMU_FAULT_EVICTED, /* counts accesses until it brings the page back */
    NPEMU_FAULT_DONE
};

typedef struct {
    npemu_fault_t    fault;
    _Atomic uint32_t state;
    _Atomic uint32_t seen; /* accesses counted in this state */
    _Atomic uint32_t hit;
    uint32_t         word; /* the page's, as eviction left it */
    uint32_t         bits; /* the page's before */
} npemu_fault_entry_t;

struct npemu_iommu_header {
    _Atomic uint64_t magic;     /* written last */
    uint32_t         version;
    int32_t          pid;       /* the owner's */
    uint64_t         id;        /* random */
    uint64_t         address;
    uint64_t         length;
    uint64_t         signature;
    _Atomic uint32_t hooks;
    _Atomic uint32_t dead;      /* destroyed: mappings are not used any more */
    _Atomic uint32_t marked;    /* a NIC has marked a page absent */

    _Atomic uint64_t absent_reads NPEMU_ALIGNED(NPEMU_CACHE_LINE);
    _Atomic uint64_t absent_writes;
    _Atomic uint64_t efault;
    _Atomic uint64_t faulted;
    _Atomic uint64_t restored;

    npemu_gate_t        gates[NPEMU_GATE_LAST] NPEMU_ALIGNED(NPEMU_CACHE_LINE);
    npemu_spin_t        fault_lock; /* adding and clearing entries */
    _Atomic uint32_t    num_faults; /* high-water mark */
    npemu_fault_entry_t faults[NPEMU_FAULT_MAX];
};

_Static_assert(sizeof(struct npemu_iommu_header) <= NPEMU_TABLE_SIGNATURE,
               "the header has outgrown its pages");

/** Bytes of a table's array of words for @a num_pages pages, whole pages. */
static inline size_t npemu_table_array_size(size_t num_pages)
{
    return (num_pages * sizeof(uint32_t) + NPRDMA_PAGE_SIZE - 1) &
           ~(NPRDMA_PAGE_SIZE - 1);
}

/** Size of the file. */
static inline size_t npemu_table_size(size_t num_pages)
{
    return NPEMU_TABLE_STATES + npemu_table_array_size(num_pages);
}

/* A table as this process has it mapped, on behalf of its owner. */
typedef struct npemu_table {
    _Atomic uint32_t      gen;  /* of the owner's record; 0: not mapped */
    _Atomic uint32_t      used; /* since the last search for idle tables */
    npemu_iommu_header_t  *header;
    nprdma_page_state_t   *states;
    const uint8_t         *signature; /* a page full of it */
    uint64_t              address;
    uint64_t              num_pages;

    /* A region of the kernel module: its file, mapped read-only; `header` is
     * private to this process. Else NULL. */
    const struct nprdma_states_header *kernel;
    uint64_t              kernel_size;
} NPEMU_ALIGNED(NPEMU_CACHE_LINE) npemu_table_t;

/** The table behind an MR of a peer, or of this process. Only inside an epoch.
 * Returns NULL if it must be attached first. */
static inline npemu_table_t *npemu_table_find(npemu_table_t *tables,
                                              uint32_t index, uint32_t gen)
{
    npemu_table_t *table;

    if (npemu_unlikely(tables == NULL)) {
        return NULL;
    }

    table = &tables[index & (NPEMU_MAX_TABLES - 1)];
    if (npemu_unlikely(atomic_load_explicit(&table->gen,
                                            memory_order_acquire) != gen)) {
        return NULL;
    }

    if (!atomic_load_explicit(&table->used, memory_order_relaxed)) {
        atomic_store_explicit(&table->used, 1, memory_order_relaxed);
    }
    return table;
}

/** Map or unmap a table by system calls, which memory hooks do not see. A
 * forked child does not inherit the mapping. Returns the header, or NULL with
 * errno. */
npemu_iommu_header_t *npemu_table_map(int fd, size_t size);
void npemu_table_unmap(npemu_iommu_header_t *header, size_t size);

struct npemu_proc;
struct npemu_peer;

/** Take a reference to the table behind a descriptor, which this process must
 * own, and make it visible to peers. The caller may close the descriptor
 * afterwards. Returns 0; EBADF; or EINVAL (no table, or not ours), ENOSPC,
 * EMFILE or ENOMEM with one error line. */
int npemu_table_get(struct npemu_proc *proc, int fd, uint32_t *index,
                    npemu_table_t **table_p);

/** Drop a reference. No access through it may be under way. */
void npemu_table_put(struct npemu_proc *proc, uint32_t index);

/** Map a table of a peer. Not inside an epoch. Returns 0 if it is mapped, or if
 * it or the peer does not exist any more: then the next check of the MR fails;
 * else an errno value, with one error line. */
int npemu_table_attach(struct npemu_proc *proc, unsigned slot,
                       uint32_t peer_gen, uint32_t index, uint32_t gen);

/** Unmap all tables of a peer, which are not used any more. */
void npemu_table_detach_all(struct npemu_peer *peer);

/** Set up and tear down the module's part of the process. */
void npemu_table_init(struct npemu_proc *proc);
void npemu_table_cleanup(struct npemu_proc *proc);

/** Hold the caller at a point if a gate is armed there: npemu_gate_pass(). */
void npemu_gate_hold(npemu_iommu_header_t *header, npemu_gate_point_t point,
                     uint64_t first, uint64_t count);

#endif
