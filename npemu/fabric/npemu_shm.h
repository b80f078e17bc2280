/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * Structures in shared memory. There are two kinds of System V segments
 * (npemu_segment.h), which the kernel frees when the last process that has them
 * attached has ended, however it ended:
 *
 *  - the fabric segment: a slot for each process, one sequence counter for each
 *    thread that executes work requests, and the ports of NPEMU_LINK;
 *  - one arena per process: its QP and MR records, CQs and receive queues. Only
 *    its owner allocates in it; peers attach it when they first need it.
 *
 * Positions inside an arena are byte offsets from its start. All contents of a
 * segment are written by processes of one user, which could also change each
 * other's memory by ptrace(): so they are not checked.
 */

#ifndef NPEMU_SHM_H
#define NPEMU_SHM_H

#include "base/npemu_link_spec.h"
#include "base/npemu_spin.h"
#include "fabric/npemu_wire.h"

#include "nprdma_page_state.h"

#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#define NPEMU_CACHE_LINE  64
#define NPEMU_ALIGNED(_n) __attribute__((aligned(_n)))

/* A lock between processes, npemu_rlock.h: the owner's word, 0 if free. */
typedef _Atomic uint32_t npemu_rlock_t;

#define NPEMU_FABRIC_MAGIC 0x6369726261667031ull
#define NPEMU_ARENA_MAGIC  0x616e657261706e31ull

/* Changes with every change of a structure in this file. */
#define NPEMU_SHM_VERSION 10

/* A QPN has 24 bits: process slot, then index in that process. */
#define NPEMU_QPN_BITS  24
#define NPEMU_QP_BITS   14
#define NPEMU_MAX_QPS   (1u << NPEMU_QP_BITS)
#define NPEMU_MAX_PROCS (1u << (NPEMU_QPN_BITS - NPEMU_QP_BITS))

/* A key has 32 bits: generation, then index in the MR table. */
#define NPEMU_MR_BITS 18
#define NPEMU_MAX_MRS (1u << NPEMU_MR_BITS)

/* Counters per process; threads beyond share the last one under a mutex. */
#define NPEMU_MAX_THREADS 128

#define NPEMU_MAX_CHANNELS 1024

/* IOMMU tables of a process that have MRs. */
#define NPEMU_MAX_TABLES 4096

/* Largest number of scatter/gather entries of any work request. */
#define NPEMU_MAX_SGE 16

/* Bytes of payload a completion entry holds itself. */
#define NPEMU_CQE_INLINE 64

/* The address range of an arena; a page uses memory from its first access on.
 * Where address space is limited (RLIMIT_AS), the range is halved until it is
 * at most 1 / NPEMU_ARENA_SHARE of the limit, or has the smallest size: records
 * of QPs and MRs take 19 MiB, queues the rest. */
#define NPEMU_ARENA_SIZE     (8ul << 30)
#define NPEMU_ARENA_MIN_SIZE (64ul << 20)
#define NPEMU_ARENA_SHARE    64

/* ---- fabric ---------------------------------------------------------------*/

/* A counter of events, npemu_event_fd.h; private to a process or for peers. */
typedef struct {
    int32_t          fd;        /* in the owner: to poll and read */
    int32_t          signal_fd; /* in the owner: to write */
    _Atomic uint32_t owed;      /* events that a full pipe did not take */
    uint64_t         ino;       /* of the pipe */
    uint64_t         dev;
} npemu_event_fd_t;

/*
 * A process. The npemu thread of the process holds `life`, a robust mutex, as
 * long as the process is attached. The kernel marks it when the process dies or
 * calls exec, which any process sees by one load (npemu_slot_is_alive).
 */
typedef struct {
    pthread_mutex_t  life;
    _Atomic uint32_t gen;      /* +1 with each process that takes the slot */
    _Atomic uint32_t ready;    /* == gen: the fields below are valid */
    int32_t          pid;
    int32_t          arena_id; /* shmid */
    _Atomic uint32_t nthreads; /* counters in use, high-water mark */
    npemu_event_fd_t wake;     /* wakes the npemu thread */
    npemu_link_spec_t link;    /* NPEMU_LINK */
} NPEMU_ALIGNED(128) npemu_slot_t;

/* What leaves one side of a link: of a process, or of all that name the port.
 * A lock that its owner leaves behind needs no repair: see npemu_wire.h. */
typedef struct {
    npemu_rlock_t lock;
    npemu_wire_t  wire;
} NPEMU_ALIGNED(NPEMU_CACHE_LINE) npemu_port_shm_t;

/* Odd while the thread executes a work request, and while it accesses memory
 * that an IOMMU table covers; see npemu_epoch.h. */
typedef struct {
    _Atomic uint64_t seq;
    _Atomic uint64_t dma;
    _Atomic uint64_t calls;  /* process_vm_readv() and _writev() so far */
} NPEMU_ALIGNED(NPEMU_CACHE_LINE) npemu_thread_seq_t;

/* State of a fabric segment; see npemu_fabric.c. */
enum {
    NPEMU_FABRIC_OFFERED   = 1,
    NPEMU_FABRIC_SETTLED   = 2, /* it is the fabric: for good */
    NPEMU_FABRIC_WITHDRAWN = 3
};

typedef struct {
    _Atomic uint64_t magic;    /* written last */
    uint32_t         version;
    uint32_t         size_check; /* sizes of the shared structures, mixed */
    uint64_t         pid_ns;   /* inode of the PID namespace */
    uint64_t         user_ns;  /* inode of the user namespace */
    uint64_t         fabric_id;
    _Atomic uint32_t state;    /* NPEMU_FABRIC_* */
    _Atomic uint32_t num_slots; /* slots ever used, high-water mark */

    npemu_slot_t slots[NPEMU_MAX_PROCS] NPEMU_ALIGNED(NPRDMA_PAGE_SIZE);
    npemu_thread_seq_t threads[NPEMU_MAX_PROCS][NPEMU_MAX_THREADS];

    /* By slot, then those that have a number */
    npemu_port_shm_t ports[NPEMU_MAX_PROCS + NPEMU_LINK_PORTS];
} npemu_fabric_shm_t;

/*
 * A counter of a thread:
 *
 *   bits 23 to 63  requests, or chunks, so far
 *   bits 11 to 22  generation of the target's slot, its lowest bits
 *   bits 1 to 10   the target's slot
 *   bit 0          under way; the two fields above are 0 if it is not
 */
#define NPEMU_EPOCH_SLOT_SHIFT  1
#define NPEMU_EPOCH_GEN_SHIFT   11
#define NPEMU_EPOCH_COUNT_SHIFT 23
#define NPEMU_EPOCH_OWNER_MASK  ((1ull << NPEMU_EPOCH_COUNT_SHIFT) - 1)

_Static_assert(NPEMU_MAX_PROCS <= (1u << (NPEMU_EPOCH_GEN_SHIFT -
                                          NPEMU_EPOCH_SLOT_SHIFT)),
               "a slot does not fit into a counter");

/** The fields of an odd counter except the count. */
NPEMU_HOOK_INLINE uint64_t npemu_epoch_owner(unsigned slot, uint32_t gen)
{
    const uint32_t gen_mask = (1u << (NPEMU_EPOCH_COUNT_SHIFT -
                                      NPEMU_EPOCH_GEN_SHIFT)) - 1;

    return ((uint64_t)(gen & gen_mask) << NPEMU_EPOCH_GEN_SHIFT) |
           ((uint64_t)slot << NPEMU_EPOCH_SLOT_SHIFT) | 1;
}

/** The value of a counter after the request or chunk has ended. */
NPEMU_HOOK_INLINE uint64_t npemu_epoch_even(uint64_t word)
{
    return word & ~NPEMU_EPOCH_OWNER_MASK;
}

/* ---- arena ----------------------------------------------------------------*/

/* Events that peers set, and the owner of a QP, CQ or SRQ raises. */
enum {
    NPEMU_EV_QP_ACCESS_ERR = 1 << 0,
    NPEMU_EV_QP_REQ_ERR    = 1 << 1,
    NPEMU_EV_QP_FATAL      = 1 << 2,
    NPEMU_EV_QP_FLUSH      = 1 << 3, /* the QP is in ERR: flush its queues */
    NPEMU_EV_SRQ_LIMIT     = 1 << 4,
    NPEMU_EV_CQ_ERR        = 1 << 5
};

/* What an MR covers: memory, or a view of an IOMMU table. R and W are the bit
 * that the state of a page must have. */
typedef enum {
    NPEMU_VIEW_NONE   = 0,
    NPEMU_VIEW_R      = NPRDMA_PAGE_R,
    NPEMU_VIEW_W      = NPRDMA_PAGE_W,
    NPEMU_VIEW_STATES = 4
} npemu_view_t;

/* No queue pair uses the record; otherwise enum ibv_qp_type, which has no 0 */
enum {
    NPEMU_QPT_NONE = 0
};

/* Written by the owner, read by peers; `state` and `events` by both. */
typedef struct {
    _Atomic uint32_t state;    /* enum ibv_qp_state */
    _Atomic uint32_t type;     /* NPEMU_QPT_NONE, enum ibv_qp_type */
    _Atomic uint32_t gen;      /* +1 with each QP that uses the record */
    uint32_t         dest_qpn;
    uint32_t         rq_psn;   /* first PSN expected */
    uint32_t         sq_psn;   /* first PSN sent */
    uint32_t         pd;
    _Atomic uint32_t qkey;
    _Atomic uint32_t access;   /* of remote requests, enum ibv_access_flags */
    _Atomic uint32_t max_dest_rd_atomic;
    _Atomic uint32_t min_rnr_timer;
    uint64_t         rq;       /* npemu_rq_shm_t, own or the SRQ's */
    uint64_t         rcq;      /* npemu_cq_shm_t */
    _Atomic uint32_t events;
} NPEMU_ALIGNED(128) npemu_qp_shm_t;

typedef struct {
    _Atomic uint32_t key;      /* 0: invalid. Written last */
    uint32_t         pd;
    uint32_t         access;
    uint32_t         view;   /* npemu_view_t */
    uint64_t         iova;
    uint64_t         length;
    uint64_t         addr;     /* view S: offset in the array of states */
    uint32_t         table;    /* index, unless the view is plain */
    uint32_t         table_gen;
} NPEMU_ALIGNED(NPEMU_CACHE_LINE) npemu_mr_shm_t;

/* An IOMMU table that has MRs, for peers to find it. It exists longer than any
 * of the MRs. */
typedef struct {
    _Atomic uint32_t gen;      /* odd while it exists */
    int32_t          fd;       /* in the owner */
    uint64_t         id;       /* as in the table */
} npemu_table_shm_t;

/* A posted receive. `length` is the sum of the lengths of `sge`, at most
 * UINT32_MAX, which no message exceeds. */
typedef struct {
    uint64_t       wr_id;
    uint32_t       num_sge;
    uint32_t       length;
    struct ibv_sge sge[];
} npemu_rq_wqe_t;

/* Ring entry: the index of the WQE, and what the sender of a small message
 * needs: its length, and whether its keys must be checked before sending. */
typedef struct {
    uint16_t index;
    uint16_t flags;  /* NPEMU_RQ_* */
    uint32_t length;
} npemu_rq_entry_t;

enum {
    NPEMU_RQ_CHECK_KEYS = 1 << 0
};

/*
 * A receive queue. The owner appends at `tail` (no lock is shared for that),
 * initiators take at `head` under `lock`. A WQE that is taken stays reserved
 * until its completion is polled; `claims` names the process that took it last,
 * so that the owner can take back what a killed initiator held.
 */
typedef struct {
    npemu_rlock_t    lock;
    uint32_t         tail_seen; /* initiators' copy of `tail`, under lock */
    _Atomic uint32_t head;
    uint32_t         mask;      /* of the ring */
    uint32_t         stride;    /* of the WQEs, bytes */
    uint32_t         size;      /* number of WQEs */
    uint32_t         limit;     /* SRQ limit, 0: not armed; under lock */
    uint32_t         pd;        /* for the keys of the buffers */
    uint64_t         ring;      /* npemu_rq_entry_t[mask + 1] */
    uint64_t         wqes;      /* npemu_rq_wqe_t[size], `stride` apart */
    uint64_t         claims;    /* uint32_t[size], owner words of locks */
    _Atomic uint32_t tail NPEMU_ALIGNED(NPEMU_CACHE_LINE);
    _Atomic uint32_t events;    /* NPEMU_EV_SRQ_LIMIT */
} NPEMU_ALIGNED(NPEMU_CACHE_LINE) npemu_rq_shm_t;

typedef enum {
    NPEMU_CQE_SEND,   /* of the QP `qpn`, which is ours */
    NPEMU_CQE_RECV,   /* wr_id comes from the receive WQE */
    NPEMU_CQE_SKIP    /* its QP has been destroyed */
} npemu_cqe_kind_t;

/* What a datagram contains of the sender's address handle. */
typedef struct {
    uint32_t flow;      /* as in a GRH: traffic class, flow label */
    uint8_t  hop_limit;
    uint8_t  sl;
} npemu_ud_t;

/*
 * A completion. `seq` is the position plus one when the rest is valid. Eager
 * payload of a SEND is in `data` up to NPEMU_CQE_INLINE bytes, else in the CQ's
 * data ring; polling copies it to the buffers of the receive WQE.
 */
typedef struct {
    _Atomic uint32_t seq;
    _Atomic uint8_t  kind;      /* npemu_cqe_kind_t */
    uint8_t          status;    /* enum ibv_wc_status */
    uint16_t         wc_flags;
    uint32_t         qpn;
    uint32_t         opcode;    /* enum ibv_wc_opcode */
    uint32_t         byte_len;
    uint32_t         imm_data;  /* network byte order */
    uint32_t         src_qp;
    uint32_t         vendor_err;
    union {
        uint64_t     wr_id;     /* SEND */
        npemu_ud_t   ud;        /* RECV; zero for RC */
    };
    uint32_t         index;     /* RECV: of the WQE; SEND: SQ position + 1 */
    uint32_t         data_len;  /* eager payload, bytes */
    uint64_t         data_end;  /* RECV: data ring position after it */
    uint32_t         data_off;  /* where it is in the data ring */
    uint32_t         solicited; /* raises an event of that kind, too */
    uint8_t          data[NPEMU_CQE_INLINE];
} NPEMU_ALIGNED(128) npemu_cqe_t;

enum {
    NPEMU_CQ_ARMED     = 1 << 0,
    NPEMU_CQ_SOLICITED = 1 << 1
};

/* A completion queue: producers under `lock`, consumers are of one process. */
typedef struct {
    npemu_rlock_t    lock;
    uint32_t         head_seen; /* producers' copy of `head` */
    uint32_t         tail;      /* next position to produce */
    uint32_t         armed;     /* NPEMU_CQ_* */
    uint64_t         data_tail; /* next byte of the data ring to produce */
    uint32_t         mask;
    uint32_t         data_size; /* bytes, power of two */
    uint64_t         ring;      /* npemu_cqe_t[mask + 1] */
    uint64_t         data;
    uint32_t         channel;   /* index + 1, 0: none */
    uint32_t         overrun;
    uint64_t         data_base; /* data before it has been consumed */

    _Atomic uint32_t head NPEMU_ALIGNED(NPEMU_CACHE_LINE);
    _Atomic uint64_t data_head;

    _Atomic uint32_t raised NPEMU_ALIGNED(NPEMU_CACHE_LINE); /* events */
    _Atomic uint32_t events;    /* NPEMU_EV_* */
} NPEMU_ALIGNED(NPEMU_CACHE_LINE) npemu_cq_shm_t;

/* A completion channel. */
typedef struct {
    _Atomic uint32_t gen;      /* odd while it exists */
    uint32_t         reserved;
    npemu_event_fd_t event;
} npemu_channel_shm_t;

typedef struct {
    _Atomic uint64_t magic;    /* written last */
    uint32_t         version;
    uint32_t         slot;
    uint32_t         gen;
    uint64_t         self;     /* address in the owner */

    /* Serialises the atomics on the owner's memory. */
    npemu_rlock_t    atomic_lock NPEMU_ALIGNED(NPEMU_CACHE_LINE);

    /* Peers set a bit and then wake the owner's thread. */
    _Atomic uint64_t qp_events[NPEMU_MAX_QPS / 64]
            NPEMU_ALIGNED(NPEMU_CACHE_LINE);
    _Atomic uint64_t new_peers[NPEMU_MAX_PROCS / 64];
    _Atomic uint32_t other_events; /* some CQ or SRQ has an event */

    npemu_channel_shm_t channels[NPEMU_MAX_CHANNELS];
    npemu_table_shm_t   tables[NPEMU_MAX_TABLES];
    npemu_qp_shm_t      qps[NPEMU_MAX_QPS] NPEMU_ALIGNED(NPRDMA_PAGE_SIZE);
    npemu_mr_shm_t      mrs[NPEMU_MAX_MRS];

    uint8_t             heap[] NPEMU_ALIGNED(NPRDMA_PAGE_SIZE);
} npemu_arena_shm_t;

static inline unsigned npemu_qpn_slot(uint32_t qpn)
{
    return (qpn >> NPEMU_QP_BITS) & (NPEMU_MAX_PROCS - 1);
}

static inline unsigned npemu_qpn_index(uint32_t qpn)
{
    return qpn & (NPEMU_MAX_QPS - 1);
}

static inline void *npemu_arena_ptr(npemu_arena_shm_t *arena, uint64_t offset)
{
    return (uint8_t*)arena + offset;
}

static inline uint64_t npemu_arena_off(npemu_arena_shm_t *arena,
                                       const void *ptr)
{
    return (const uint8_t*)ptr - (uint8_t*)arena;
}

/** A QP that is connected goes to ERR. The caller must wake the npemu thread of
 * its owner then, to flush the queues. Returns 1; 0 if it has failed already,
 * or is torn down. */
NPEMU_HOOK_INLINE int npemu_qp_shm_fail(npemu_arena_shm_t *arena,
                                        unsigned index, uint32_t events)
{
    npemu_qp_shm_t *qp = &arena->qps[index];
    uint32_t state     = atomic_load(&qp->state);

    do {
        if ((state != IBV_QPS_RTR) && (state != IBV_QPS_RTS) &&
            (state != IBV_QPS_SQE)) {
            return 0;
        }
    } while (!atomic_compare_exchange_weak(&qp->state, &state, IBV_QPS_ERR));

    atomic_fetch_or(&qp->events, events | NPEMU_EV_QP_FLUSH);
    atomic_fetch_or(&arena->qp_events[index / 64], 1ull << (index % 64));
    return 1;
}

static inline npemu_rq_wqe_t *npemu_rq_wqe(npemu_arena_shm_t *arena,
                                           const npemu_rq_shm_t *rq,
                                           uint32_t index)
{
    return npemu_arena_ptr(arena, rq->wqes + (uint64_t)index * rq->stride);
}

#endif
