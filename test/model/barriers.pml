/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * The barriers of four protocols, on a machine that reorders memory accesses
 * as an Arm CPU may: stores wait in a buffer and become visible in any order,
 * and loads may return what an earlier time had. A fence empties the buffer and
 * forgets what was loaded early. A load that is late, behind a store, is the
 * same as both in the other order: so is BREAK_HEAD.
 *
 * -DDRAIN  page-out against DMA in flight: npemu_epoch_dma_enter(), _exit(),
 *          npemu_epoch_drain()
 * -DSTATES page-out and page-in against a NIC that reads states, data, states:
 *          nprdma_kregion_clear(), nprdma_batch_remember()
 * -DQUEUE  a producer and the poller of a CQ: npemu_cqp.c, npemu_cq.c
 * -DFLUSH  a thread that posts a receive, and one that ends the queue pair and
 *          flushes it: npemu_post_recv(), npemu_qp_flush_one()
 *
 * Each -DBREAK_x makes one access relaxed and must lead to a counterexample.
 */

#define CPUS  2
#define CELLS 3

byte memory[CELLS];
byte buffer[CPUS * CELLS];    /* what a store has not made visible yet */
bit  waits[CPUS * CELLS];
byte early[CPUS * CELLS];     /* what a load may return */

#define AT(cell) (me * CELLS + cell)

/* A store, and the visibility of any waiting one */
#define STORE(cell, value) \
    atomic { buffer[AT(cell)] = value; waits[AT(cell)] = 1; \
             early[AT(cell)] = value }

#define IS_VISIBLE (!waits[AT(0)] && !waits[AT(1)] && !waits[AT(2)])

/* What is loaded from here on is not older than now */
#define ACQUIRE(cell) \
    early[AT(cell)] = (waits[AT(cell)] -> buffer[AT(cell)] : memory[cell])

#define ACQUIRE_ALL atomic { ACQUIRE(0); ACQUIRE(1); ACQUIRE(2) }

#define RELEASE IS_VISIBLE
#define FENCE   atomic { IS_VISIBLE; ACQUIRE_ALL }

#define LOAD(cell, result) \
    atomic { if :: ACQUIRE(cell) :: true fi; result = early[AT(cell)] }

proctype stores(byte me)
{
    byte cell;
end:
    do
    :: atomic {
           waits[AT(0)] || waits[AT(1)] || waits[AT(2)];
           if
           :: waits[AT(0)] -> cell = 0
           :: waits[AT(1)] -> cell = 1
           :: waits[AT(2)] -> cell = 2
           fi;
           memory[cell]     = buffer[AT(cell)];
           waits[AT(cell)]  = 0;
           cell             = 0
       }
    od
}

#ifdef DRAIN

#define STATE 0               /* 1: present */
#define SEQ   1               /* odd: DMA in flight */
#define PAGE  2               /* 0; 1: written by the NIC; 2: the kernel's */

bit done;

proctype nic(byte me)
{
    byte state;

    STORE(SEQ, 1);
#ifndef BREAK_BEGIN
    FENCE;
#endif
    LOAD(STATE, state);
    if
    :: state -> STORE(PAGE, 1)
    :: else
    fi;
#ifndef BREAK_END
    RELEASE;
#endif
    STORE(SEQ, 2);
    done = 1
}

proctype monitor(byte me)
{
    byte seq, page;

    STORE(STATE, 0);
#ifndef BREAK_CLEAR
    FENCE;
#endif
    do
    :: LOAD(SEQ, seq);
       if
       :: (seq % 2) == 0 -> break
       :: else
       fi
    od;
#ifndef BREAK_WAIT
    FENCE;
#endif
    LOAD(PAGE, page);         /* to the disk */
    assert(page == memory[PAGE]);
    STORE(PAGE, 2);
    FENCE;
    /* No DMA arrives in the page of another owner */
    done && !waits[PAGE];
    assert(memory[PAGE] == 2)
}

init
{
    memory[STATE] = 1;
    early[STATE]  = 1;
    early[CELLS + STATE] = 1;
    atomic { run stores(0); run stores(1); run nic(0); run monitor(1) }
}

#endif

#ifdef STATES

#define STATE 0               /* bit 0: present, the others: a count */
#define LEAF  1               /* 1: the page, 0: the signature page */

proctype monitor(byte me)
{
    STORE(STATE, 2);          /* page-out */
#ifndef BREAK_PAGE_OUT
    FENCE;
#endif
    STORE(LEAF, 0);
    FENCE;                    /* the flush of the IOTLB */
    STORE(LEAF, 1);           /* page-in */
#ifndef BREAK_PAGE_IN
    RELEASE;
#endif
    STORE(STATE, 5)
}

/* PCIe and the memory region order the READs of a NIC */
proctype nic(byte me)
{
    byte before, leaf, after;

    ACQUIRE_ALL; LOAD(STATE, before);
    ACQUIRE_ALL; LOAD(LEAF, leaf);
    ACQUIRE_ALL; LOAD(STATE, after);
    assert(before != after || !(after & 1) || leaf == 1)
}

init
{
    memory[STATE] = 1;
    memory[LEAF]  = 1;
    atomic { run stores(0); run stores(1); run monitor(0); run nic(1) }
}

#endif

#ifdef QUEUE

#define SEQ  0
#define DATA 1
#define HEAD 2

proctype producer(byte me)
{
    byte sent, head;

    do
    :: sent < 3 ->
       do
       :: LOAD(HEAD, head);
          if
          :: head == sent -> break
          :: else
          fi
       od;
       STORE(DATA, sent + 10);
#ifndef BREAK_PUBLISH
       RELEASE;
#endif
       sent++;
       STORE(SEQ, sent)
    :: sent == 3 -> break
    od
}

proctype poller(byte me)
{
    byte taken, seq, data;

    do
    :: taken < 3 ->
       LOAD(SEQ, seq);
       if
       :: seq == taken + 1 ->
#ifndef BREAK_POLL
          ACQUIRE_ALL;
#endif
#ifdef BREAK_HEAD
          STORE(HEAD, taken + 1);
#endif
          LOAD(DATA, data);
          assert(data == taken + 10);
          taken++;
          STORE(HEAD, taken)
       :: else
       fi
    :: taken == 3 -> break
    od
}

init
{
    atomic { run stores(0); run stores(1); run producer(0); run poller(1) }
}

#endif

#ifdef FLUSH

#define TAIL  0               /* 1: a receive is posted */
#define STATE 1               /* 1: ERR */
#define LOCK  2

#define TAKE atomic { memory[LOCK] == 0 -> memory[LOCK] = 1; ACQUIRE_ALL }
#define GIVE RELEASE; STORE(LOCK, 0)

byte ended;
bit  is_flushed;

/* The one that sees the other's store flushes the receive */
#define END(has_seen) \
    atomic { is_flushed = is_flushed || has_seen; ended++; \
             assert(ended < 2 || is_flushed) }

proctype owner(byte me)
{
    byte state;

    TAKE;
    STORE(TAIL, 1);
    GIVE;
    LOAD(STATE, state);
    END(state)
}

proctype flusher(byte me)
{
    byte tail;

    STORE(STATE, 1);
    FENCE;
#ifndef BREAK_LOCK
    TAKE;
    GIVE;
#endif
    LOAD(TAIL, tail);
    END(tail)
}

init
{
    atomic { run stores(0); run stores(1); run owner(0); run flusher(1) }
}

#endif
