/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * Pages of both sides, as the memory monitor and a NIC without page faults see
 * them (ARCHITECTURE 3, state order). Included by the model of operations.
 *
 * The state that software reads and the IOMMU entries behind the views are
 * separate variables, as in a real machine. The emulated RNIC has them in one
 * word, so two steps here are one step there, and what holds here holds there.
 * (monitor.pml models the IOTLB, and threads of one monitor.)
 *
 * mem[] is what the program would read at that address, wherever the kernel
 * keeps it. A frame that the kernel has taken belongs to another mapping: a DMA
 * that accesses it is wrong, whatever happens afterwards.
 *
 * Between two reads of a page's count there is a bounded number of evictions,
 * so the counts do not wrap here. In the C code they have 30 bits.
 */

#ifndef PAGES
#define PAGES      1       /* of one side's buffer */
#endif
#ifndef GRANULES
#define GRANULES   1       /* of a page: what a NIC translates at once */
#endif
#ifndef EVICTIONS_LOCAL
#define EVICTIONS_LOCAL   1
#endif
#ifndef EVICTIONS_REMOTE
#define EVICTIONS_REMOTE  1
#endif

#define LOCAL      0       /* side of the initiator */
#define REMOTE     1       /* side of the target */
#define P(_side, _page)              ((_side) * PAGES + (_page))
#define M(_side, _page, _granule)    (P(_side, _page) * GRANULES + (_granule))

/* Contents of a granule */
#define SIGNATURE  0
#define OLD        1
#define NEW        2

/* The NIC executes these concurrently: the data of the operation, and the READs
 * of states before and after it. Only the first goes through views. */
#define DATA       0
#define BEFORE     1
#define AFTER      2
#define ENGINES    1

typedef page_t {
    bit  r;                /* NPRDMA_PAGE_R */
    bit  w;                /* NPRDMA_PAGE_W */
    byte count;            /* NPRDMA_PAGE_COUNT */
    bit  rwin, wwin;       /* IOMMU entries, IOTLB flushed */
    bit  owned;            /* The page still has its frame */
}

page_t page[2 * PAGES];
byte   mem[2 * PAGES * GRANULES];
byte   seq[ENGINES];       /* Odd: a DMA is being executed */
byte   evictions[2];
bit    finished;           /* The operation is complete */


/* ---- The NIC: npemu_dma_*(), between npemu_epoch_dma_enter() and _exit() ---- */

inline dma_read(_e, _p, _g, _value)
{
    seq[_e] = (seq[_e] + 1) % 4;
    hit = page[_p].rwin;
    if
    :: hit ->
       d_step {
           assert(page[_p].owned);    /* never data of another mapping */
           _value = mem[(_p) * GRANULES + (_g)];
       }
    :: else ->
       _value = SIGNATURE;
    fi;
    seq[_e] = (seq[_e] + 1) % 4;
}

inline dma_write(_e, _p, _g, _value)
{
    seq[_e] = (seq[_e] + 1) % 4;
    hit = page[_p].wwin;
    if
    :: hit ->
       d_step {
           assert(page[_p].owned);
           mem[(_p) * GRANULES + (_g)] = _value;
       }
    :: else                           /* swallowed */
    fi;
    seq[_e] = (seq[_e] + 1) % 4;
}


/* ---- The monitor: nprdma_monitor_populate(), npemu_iommu_invalidate() ---- */

inline bump(_p)
{
#ifdef BREAK_COUNT
    skip
#else
    page[_p].count++
#endif
}

inline clear_bits(_p)
{
    d_step {
        page[_p].r = 0;
        page[_p].w = 0;
        bump(_p);
    }
}

/* npemu_iommu_drain(): waits for DMA that was in progress when it began */
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
    e = 0; old = 0
#endif
}

inline page_out(_p)
{
#ifndef BREAK_PAGE_OUT_ORDER
    clear_bits(_p);
#endif
    d_step { page[_p].rwin = 0; page[_p].wwin = 0 };
    drain();
#ifdef BREAK_PAGE_OUT_ORDER
    clear_bits(_p);
#endif
    page[_p].owned = 0;
}

inline set_bits(_p, _write)
{
    d_step {
        page[_p].r = 1;
        page[_p].w = _write;
        bump(_p);
    }
}

inline page_in(_p, _write)
{
    page[_p].owned = 1;
#ifdef BREAK_PAGE_IN_ORDER
    set_bits(_p, _write);
#endif
    d_step { page[_p].rwin = 1; page[_p].wwin = _write };
#ifndef BREAK_PAGE_IN_ORDER
    set_bits(_p, _write);
#endif
}

/*
 * Everything that a side's monitor can do, at any time: the kernel takes a
 * page; an assist, another operation or the owner itself populates one. One
 * step after the other; monitor.pml models concurrent threads of one monitor.
 */
#define CAN_TAKE(_p) \
    (!finished && evictions[side] > 0 && page[P(side, _p)].owned)
#define CAN_BRING(_p) \
    (!finished && (!page[P(side, _p)].r || !page[P(side, _p)].w))

proctype monitor(byte side)
{
    byte p, e, old;

end:
    do
    :: atomic {
           if
           :: CAN_TAKE(0) -> p = P(side, 0)
#if PAGES > 1
           :: CAN_TAKE(1) -> p = P(side, 1)
#endif
           fi;
           evictions[side]--
       }
       page_out(p);
       p = 0
    :: atomic {
           if
           :: CAN_BRING(0) -> p = P(side, 0)
#if PAGES > 1
           :: CAN_BRING(1) -> p = P(side, 1)
#endif
           fi
       }
       if
       :: !page[p].r -> page_in(p, 0)
       :: !page[p].w -> page_in(p, 1)
       fi;
       p = 0
    od
}

/* A page in any state. A page of a side that this run does not vary is
 * valid. */
inline start_page(_p, _evictions)
{
    if
    :: _evictions > 0
    :: page[_p].owned = 1; page[_p].r = 1; page[_p].rwin = 1;
       if
       :: _evictions > 0
       :: page[_p].w = 1; page[_p].wwin = 1
       fi
    fi
}

inline start_side(_side, _evictions)
{
    evictions[_side] = _evictions;
    start_page(P(_side, 0), _evictions);
#if PAGES > 1
    start_page(P(_side, 1), _evictions);
#endif
    if
    :: _evictions > 0 -> run monitor(_side)
    :: else
    fi
}

inline start_monitors()
{
    start_side(LOCAL, EVICTIONS_LOCAL);
    start_side(REMOTE, EVICTIONS_REMOTE)
}
