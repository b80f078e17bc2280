/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * One optimistic operation (ARCHITECTURE 3: local side, remote READ, remote
 * WRITE) while both sides lose and populate pages:
 *
 *   -DGET_STATES  a large get, verified by page states
 *   -DGET_SCAN    a small get, verified by its data
 *   -DPUT         a large put
 *
 * It models uct_nprdma_op_slice_run() and its steps, nprdma_region_snapshot()
 * and nprdma_region_unchanged(), uct_nprdma_state_cache_lookup() and
 * uct_nprdma_verify_states().
 *
 * The assertion at the end: an operation that reports success has moved its
 * data. The assertion in page.pml: no DMA accesses a page that the kernel has
 * taken. Each -DBREAK_x disables one rule and must lead to a counterexample.
 */

#include "page.pml"

#ifndef TRIES
#define TRIES 2
#endif

#ifdef PUT
#define SOURCE          LOCAL
#define DESTINATION     REMOTE
#define LOCAL_BIT       r
#else
#define SOURCE          REMOTE
#define DESTINATION     LOCAL
#define LOCAL_BIT       w
#endif

/* The bit that the target's page must have */
#if defined(PUT) && !defined(BREAK_TARGET_BIT)
#define REMOTE_BIT      w
#else
#define REMOTE_BIT      r
#endif

#if defined(GET_STATES) || defined(PUT)
#define BY_STATES
#endif

typedef state_t {
    bit  r, w;
    byte count;
}

state_t mine[PAGES];          /* of the initiator's pages, when posted */
state_t before[PAGES];        /* of the target's pages: the operation's own */
state_t after[PAGES];
state_t cache[PAGES];         /* shared by all operations of the process */
bit     cached;

/* Work requests that have not been executed, and their completions */
bit posted[3], done[3];

#define SAME(_a, _b)  (_a.r == _b.r && _a.w == _b.w && _a.count == _b.count)

inline copy_state(_to, _from)
{
    d_step {
        _to.r     = _from.r;
        _to.w     = _from.w;
        _to.count = _from.count
    }
}

/* Words are read one by one, as by any reader */
#if PAGES > 1
#define ALL_PAGES(_what)  _what(0); _what(1)
#else
#define ALL_PAGES(_what)  _what(0)
#endif


/* ---- The NIC executes what is posted ---- */

/* One part of a page or one page: parts of a transfer are in flight together */
#if GRANULES > 1
#define PIECES               2
#define PIECE_PAGE(_i)       0
#define PIECE_GRANULE(_i)    (_i)
#else
#define PIECES               PAGES
#define PIECE_PAGE(_i)       (_i)
#define PIECE_GRANULE(_i)    0
#endif

inline move_piece(_i)
{
    dma_read(DATA, P(SOURCE, PIECE_PAGE(_i)), PIECE_GRANULE(_i), value);
    dma_write(DATA, P(DESTINATION, PIECE_PAGE(_i)), PIECE_GRANULE(_i), value);
    value = 0
}

/* PCIe does not order the parts of a transfer */
proctype data_engine()
{
    byte value, first;
    bit  hit;

end:
    do
    :: posted[DATA] ->
       if
       :: first = 0
#if PIECES > 1
       :: first = 1
#endif
       fi;
       move_piece(first);
#if PIECES > 1
       move_piece(1 - first);
#endif
       d_step { first = 0; hit = 0; posted[DATA] = 0; done[DATA] = 1 }
    od
}

#ifdef BY_STATES
#define READ_BEFORE(_p)  copy_state(before[_p], page[P(REMOTE, _p)])
#define READ_AFTER(_p)   copy_state(after[_p], page[P(REMOTE, _p)])
#define READ_CACHE(_p)   copy_state(cache[_p], page[P(REMOTE, _p)])

/* A WRITE posted after this READ may pass it */
proctype before_engine()
{
end:
    do
    :: posted[BEFORE] ->
       ALL_PAGES(READ_BEFORE);
       d_step { posted[BEFORE] = 0; done[BEFORE] = 1 }
    od
}

/* Without relaxed ordering a READ does not pass an earlier WRITE. READs are not
 * ordered among themselves. */
#if defined(PUT) && !defined(BREAK_RELAXED_ORDERING)
#define AFTER_MAY_START  (posted[AFTER] && !posted[DATA])
#else
#define AFTER_MAY_START  (posted[AFTER])
#endif

proctype after_engine()
{
end:
    do
    :: AFTER_MAY_START ->
       ALL_PAGES(READ_AFTER);
       d_step { posted[AFTER] = 0; done[AFTER] = 1 }
    od
}

/* Other operations of the process verify the same pages. (Without the cache,
 * -DNO_CACHE, the states of both sides fit into memory at once.) */
#define DIFFERS(_p)  (!SAME(cache[_p], page[P(REMOTE, _p)]))
#if PAGES > 1
#define STALE        (!cached || DIFFERS(0) || DIFFERS(1))
#else
#define STALE        (!cached || DIFFERS(0))
#endif

proctype others()
{
end:
    do
    :: atomic { !finished && STALE -> ALL_PAGES(READ_CACHE); cached = 1 }
    od
}
#endif


/* ---- The initiator's software ---- */

/* Local pages that lack the bit are populated; then their states are noted */
#ifdef BREAK_LOCAL_BEFORE
#define PREPARE(_p)  copy_state(mine[_p], page[P(LOCAL, _p)])
#else
#define PREPARE(_p) \
    atomic { \
        page[P(LOCAL, _p)].LOCAL_BIT -> \
        copy_state(mine[_p], page[P(LOCAL, _p)]) \
    }
#endif

#define CHECK_LOCAL(_p) \
    good = good && SAME(mine[_p], page[P(LOCAL, _p)])

/* Resets unused variables, so that they do not multiply the states of the
 * model */
#define FORGET_STATE(_s)  _s.r = 0; _s.w = 0; _s.count = 0
#define FORGET_PAGE(_p) \
    FORGET_STATE(mine[_p]); FORGET_STATE(before[_p]); FORGET_STATE(after[_p])
#define FORGET            ALL_PAGES(FORGET_PAGE); good = 0

#define FROM_CACHE(_p)  copy_state(before[_p], cache[_p])
#define FROM_AFTER(_p)  copy_state(cache[_p], after[_p])

#ifdef BREAK_SHARED_CACHE
#define OWN_COPY(_p)  cache[_p]
#else
#define OWN_COPY(_p)  before[_p]
#endif

#ifdef BREAK_VALID
#define CHECK_VALID(_p)   skip
#else
#define CHECK_VALID(_p)   good = good && before[_p].REMOTE_BIT
#endif
#define CHECK_REMOTE(_p)  good = good && SAME(OWN_COPY(_p), after[_p])

#define SCAN_GRANULE(_p, _g) \
    good = good && (mem[M(LOCAL, _p, _g)] != SIGNATURE)
#if GRANULES > 1 && !defined(BREAK_FIRST_LINE)
#define CHECK_SCAN(_p)  SCAN_GRANULE(_p, 0); SCAN_GRANULE(_p, 1)
#else
#define CHECK_SCAN(_p)  SCAN_GRANULE(_p, 0)
#endif

#ifdef BREAK_FIRST_PAGE
#define VERIFIED_PAGES(_what)  _what(0)
#else
#define VERIFIED_PAGES(_what)  ALL_PAGES(_what)
#endif

/* The operation's own copy: from the cache, otherwise by a READ that is
 * awaited */
#ifdef BY_STATES
inline get_before()
{
    if
    :: cached ->
       ALL_PAGES(FROM_CACHE)
    :: true ->
       posted[BEFORE] = 1;
#ifndef BREAK_BEFORE_READ
       d_step { done[BEFORE] -> done[BEFORE] = 0 }
#endif
    fi;
#ifndef BREAK_BEFORE_READ
    d_step { ALL_PAGES(CHECK_VALID); }
#endif
}
#endif

inline move_data()
{
    posted[DATA] = 1;
#if defined(PUT) || defined(BREAK_STATES_WITH_DATA)
#ifdef BY_STATES
    posted[AFTER] = 1;
#endif
#endif
    d_step { done[DATA] -> done[DATA] = 0 };
#ifdef BY_STATES
#if !defined(PUT) && !defined(BREAK_STATES_WITH_DATA)
    posted[AFTER] = 1;
#endif
    d_step { done[AFTER] -> done[AFTER] = 0 };
#ifdef BREAK_BEFORE_READ
    if
    :: posted[BEFORE] || done[BEFORE] ->
       d_step { done[BEFORE] -> done[BEFORE] = 0 }
    :: else
    fi;
    d_step { ALL_PAGES(CHECK_VALID); }
#endif
#endif
}

inline verify()
{
#ifndef BREAK_LOCAL_AFTER
    ALL_PAGES(CHECK_LOCAL);
#endif
#ifndef BREAK_REMOTE
#ifdef BY_STATES
    VERIFIED_PAGES(CHECK_REMOTE);
#else
    d_step { VERIFIED_PAGES(CHECK_SCAN); }
#endif
#endif
#ifdef BY_STATES
#ifndef NO_CACHE
    d_step { ALL_PAGES(FROM_AFTER); cached = 1 }
#endif
#endif
}

inline expect(_i)
{
    assert(mem[DESTINATION * PAGES * GRANULES + _i] ==
           mem[SOURCE * PAGES * GRANULES + _i])
}

proctype initiator()
{
    byte tries;
    bit  good;

    do
    :: tries == TRIES ->
       break               /* Through bounce buffers: CPUs move the data */
    :: else ->
       tries++;
       good = 1;
       ALL_PAGES(PREPARE);
#ifdef BY_STATES
       get_before();
#endif
       if
       :: good ->
          move_data();
          verify()
       :: else ->
          cached = 0       /* The next states come from an assist */
       fi;
       if
       :: good ->
          d_step {
              expect(0);
#if PAGES * GRANULES > 1
              expect(1)
#endif
          }
          break
       :: else
       fi;
       atomic { FORGET }
    od;
    atomic { FORGET; finished = 1 }
}

/* The source may contain data that looks like the signature, which costs a
 * repetition */
inline fill(_i)
{
    mem[DESTINATION * PAGES * GRANULES + _i] = OLD;
    if
    :: mem[SOURCE * PAGES * GRANULES + _i] = NEW
    :: mem[SOURCE * PAGES * GRANULES + _i] = SIGNATURE
    fi
}

init {
    atomic {
        fill(0);
#if PAGES * GRANULES > 1
        fill(1);
#endif
        start_monitors();
        run data_engine();
#ifdef BY_STATES
        run before_engine();
        run after_engine();
#ifndef NO_CACHE
        run others();
#endif
#endif
        run initiator()
    }
}
