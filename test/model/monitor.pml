/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * One page of a region and all concurrent events (ARCHITECTURE 3, state order;
 * 5, hooks and revocation): two NICs access it, the program unmaps and maps it
 * again, the reclaimer evicts it, two threads populate it, or its registration
 * is revoked.
 *
 * It models nprdma_populate_try() and nprdma_monitor_is_populating(),
 * nprdma_events_before() and nprdma_events_after(), nprdma_sweep_run() with
 * nprdma_sweep_chunk(), nprdma_monitor_unregister(), npemu_iommu_invalidate(),
 * npemu_iommu_drain() and npemu_epoch_dma_enter() to _exit().
 *
 * Each -DBREAK_x disables one rule and must lead to a counterexample.
 */

#ifndef ENGINES
#define ENGINES   2
#endif
#define THREADS   2        /* threads that populate */

/* The page state, which is the emulated IOMMU's table, and the IOTLB. A flag
 * replaces the count: whether the word has changed since a thread has read
 * it. */
bit  valid;
bit  tlb;
bit  changed[THREADS];

inline change() { changed[0] = 1; changed[1] = 1 }

byte seq[ENGINES];         /* npemu_epoch: odd while a DMA is executed */

bit  mapped = 1;           /* There is memory at the address */
bit  owned;                /* and it has a frame, which the kernel may take */
byte contents;             /* Number of their mapping */
byte expected;             /* The mapping that was registered */

bit  live = 1;             /* A live registration covers the page */
byte users;                /* of which this many populate */
byte blocked;              /* System calls in progress that change the page */
byte draining;             /* Threads between clearing and drained */
bit  populating[THREADS];  /* Set before the thread reads the word */
bit  revoked;              /* Deregistration with invalidation has returned */


/* A NIC: epoch begins, table looked up, memory accessed, epoch ends */
proctype engine(byte e)
{
    bit hit;

end:
    do
    :: true ->
#ifdef BREAK_LOOKUP_BEFORE_EPOCH
       if :: hit = valid :: hit = tlb fi;
       seq[e] = (seq[e] + 1) % 4;
#else
       seq[e] = (seq[e] + 1) % 4;
       if :: hit = valid :: hit = tlb fi;
#endif
       if
       :: hit ->
          d_step {
              assert(owned);
              assert(contents == expected);
              assert(!revoked);
              hit = 0
          }
       :: else
       fi;
       seq[e] = (seq[e] + 1) % 4
    od
}

/* Waits for DMA that was in progress when it began, whichever thread cleared
 * the bit */
inline drain()
{
#ifdef BREAK_DRAIN
    skip
#else
    e = 0;
    do
    :: e < ENGINES ->
       old = seq[e];
       if
       :: old % 2 == 1 -> seq[e] != old
       :: else
       fi;
       e++
    :: else -> break
    od;
    atomic { e = 0; old = 0 }
#endif
}

inline flush()
{
#ifdef BREAK_FLUSH
    skip
#else
    tlb = 0
#endif
}

/* The count of an absent page changes as well, if a thread is populating it */
inline invalidate()
{
    draining++;
#ifndef BREAK_TOUCH
    touch = populating[0] || populating[1];
#endif
    d_step {
        cleared = valid;
        valid   = 0;
        if
        :: cleared || touch -> change()
        :: else
        fi
    };
    flush();
    /* Another thread has cleared it, and may still be waiting */
    if
#ifdef BREAK_DRAIN_ONLY_IF_VALID
    :: cleared -> drain()
#else
    :: cleared || draining > 1 -> drain()
#endif
    :: else
    fi;
    draining--;
    d_step { cleared = 0; touch = 0 }
}

#ifdef BREAK_RETRY
#define UNCHANGED  (!valid)
#else
#define UNCHANGED  (!changed[i] && !valid)
#endif
#ifdef BREAK_BLOCK
#define FREE       true
#else
#define FREE       (!blocked)
#endif

proctype populate(byte i)
{
end:
    do
    :: atomic { live && !valid -> users++ }
#ifndef BREAK_ANNOUNCE
       populating[i] = 1;
#endif
#ifndef BREAK_LOOK_BEFORE_CHECK
       changed[i] = 0;
#endif
       if
       :: FREE ->
#ifdef BREAK_ANNOUNCE
          /* A call that begins before this does not see it */
          populating[i] = 1;
#endif
#ifdef BREAK_LOOK_BEFORE_CHECK
          /* A call in progress has changed the word already */
          changed[i] = 0;
#endif
          d_step {
              if
              :: mapped -> owned = 1
              :: else
              fi
          };
          atomic {
              if
              :: mapped && UNCHANGED ->
                 tlb   = 1;
                 valid = 1;
                 change()
              :: else
              fi
          }
       :: else
       fi;
       atomic { populating[i] = 0; changed[i] = 1; users-- }
    od
}

/* A hook: before the system call, the call, after the call; then a new
 * mapping */
proctype program()
{
    byte e, old;
    bit  cleared, touch;

    /* nprdma_events_before */
#ifndef BREAK_BLOCK
    blocked++;
#endif
    invalidate();
    d_step {                      /* munmap */
        mapped   = 0;
        owned    = 0;
        contents = 1
    };
    d_step { mapped = 1; expected = 1 };
#ifndef BREAK_BLOCK
    blocked--
#else
    skip
#endif
}

/* The kernel, or the reclaimer that makes it act */
proctype reclaimer()
{
    byte e, old;
    bit  cleared, touch;

end:
    do
    :: owned ->
#ifndef BREAK_BLOCK_RECLAIM
       blocked++;
#endif
       invalidate();
#ifdef BREAK_BLOCK_RECLAIM
       owned = 0
#else
       d_step { owned = 0; blocked-- }
#endif
    od
}

proctype unregister()
{
    byte e, old;
    bit  cleared, touch;

    live = 0;
#ifndef BREAK_USERS
    users == 0;
#endif
#ifndef BREAK_REVOKE
    invalidate();
#endif
    revoked = 1
}

init {
    atomic {
        if
        :: owned = 1; valid = 1; tlb = 1
        :: true
        fi;
        run engine(0);
#if ENGINES > 1
        run engine(1);
#endif
        run populate(0);
        run populate(1);
        run reclaimer();
#ifdef REVOKE
        run unregister();
#else
        run program();
#endif
    }
}
