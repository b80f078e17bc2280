/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * Lazy unmapping: a program unmaps a block, which is kept. Then it maps memory
 * of the same size, or maps something else over the addresses. Meanwhile a
 * thread releases old blocks, the last user ends the pool, a registration is
 * populated, and the NIC accesses the page.
 *
 * It models nprdma_lazy.c, on the steps of nprdma_events.c and
 * nprdma_invalidate.c. -DZEROED: kept memory stays accessible. Otherwise a
 * registration may begin while the block is kept.
 *
 * Each -DBREAK_x disables one rule and must lead to a counterexample.
 */

/* The addresses */
#define GONE   0
#define OLD    1                /* The program's, before munmap() */
#define CLOSED 2                /* Kept */
#define NEW    3                /* The program's, after mmap() */
#define OTHER  4                /* Another mapping */

/* The slot */
#define FREE    0
#define CLAIMED 1
#define FULL    2
#define LIVE    3               /* The block is mapped, and may be kept */

byte mem = OLD;
byte slot = LIVE;
bit  data = 1;                  /* What the block had is still in it */
bit  bits = 0;                  /* The NIC may access the page */
bit  dma = 0;                   /* It does */
bit  retired = 0;
byte blocked = 0;
bit  ending = 0;                /* Nothing is kept any more */
bit  ended = 0;

#ifdef ZEROED
#define ACCESSIBLE (mem == OLD || mem == CLOSED || mem == NEW || mem == OTHER)
#else
#define ACCESSIBLE (mem == OLD || mem == NEW || mem == OTHER)
#endif

/* All that takes memory away does this first */
inline take()
{
    blocked++;
    bits = 0;
#ifndef BREAK_DRAIN
    !dma;
#endif
#ifndef BREAK_RETIRE
    retired = 1
#endif
}

/* The slot is claimed */
inline release()
{
    take();
#ifdef BREAK_SLOT_FIRST
    slot = FREE;
#endif
    assert(mem == CLOSED);      /* It unmaps nothing else */
    mem = GONE;
    blocked--;
#ifndef BREAK_SLOT_FIRST
    slot = FREE
#endif
}

/* When it has ended, the addresses are free */
inline forget()
{
    do
    :: slot == FREE -> break
#ifdef BREAK_WAIT
    :: slot == CLAIMED -> break
#endif
    :: atomic { slot == LIVE -> slot = FREE }
    :: atomic { slot == FULL -> slot = CLAIMED }; release()
    od
}

inline keep()
{
    if
    :: atomic { slot == LIVE -> slot = CLAIMED };
       if
       :: !ending -> mem = CLOSED; slot = FULL
       :: ending  -> slot = FREE; mem = GONE
       fi
    :: slot != LIVE ->
       mem = GONE
    fi;
    assert(!ended || mem != CLOSED)
}

active proctype program()
{
    /* munmap() */
#ifdef BREAK_BLOCK
    keep();
    take();
#else
    take();
    keep();
#endif
    blocked--;

    if
    :: atomic { slot == FULL -> slot = CLAIMED };    /* mmap() of the size */
#ifndef BREAK_OPEN_BLOCKED
       blocked++;
#endif
       mem = NEW;
#ifndef BREAK_ZERO
       data = 0;
#endif
#ifndef BREAK_OPEN_BLOCKED
       blocked--;
#endif
       slot    = FREE;
       retired = 0;             /* UCM has seen the mapping */
       assert(!data)
    :: forget();                /* mmap(MAP_FIXED) */
       data = 0;
       mem  = OTHER
    fi
}

active proctype dropper()
{
end:
    atomic { slot == FULL -> slot = CLAIMED };
    release()
}

active proctype ender()
{
    ending = 1;
#ifndef BREAK_END
    forget();
#endif
    assert(mem != CLOSED);
    ended = 1
}

active proctype populator()
{
    byte i;

    do
    :: i < 3 ->
       i++;
       /* Given up if the page is blocked or retired (monitor.pml) */
       atomic {
           if
           :: blocked == 0 && !retired && ACCESSIBLE -> bits = 1
           :: else
           fi
       }
#ifndef ZEROED
    :: i < 3 ->
       i++;
       retired = 0              /* A registration begins */
#endif
    :: break
    od
}

active proctype nic()
{
end:
    do
    :: atomic { bits -> dma = 1 };
       assert(mem != GONE && mem != CLOSED);
       assert(mem == OLD || !data);
       dma = 0
    od
}
