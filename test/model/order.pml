/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * Guarantees across operations (ARCHITECTURE 3: exactly once where it can be
 * seen, completion means verified, fence, progress). A program puts a large
 * buffer, fences (or not), and puts two small flags. It reuses the buffer when
 * its put is complete, and flushes. The target polls on the first flag, checks
 * the data if there was a fence, and resets the flag.
 *
 * Here each try of the large put may miss its page or not, and its verification
 * may detect that or not. That the verdict is right is proven by rdma.pml.
 *
 * It models uct_nprdma_rma_fence() and uct_nprdma_ep_unfence(),
 * uct_nprdma_rma_flush(), uct_nprdma_op_slice_end(), uct_nprdma_ep_put_short()
 * and uct_nprdma_ep_pending_add().
 *
 * Each -DBREAK_x disables one rule and must lead to a counterexample; with
 * -DPROGRESS every run must end in a completed flush.
 */

#define TRIES    3
#define NOTHING  0
#define NEW      1
#define REUSED   2         /* Contents of the buffer after its reuse */

byte data;                 /* At the target */
byte flag;
byte seen;                 /* Times that the target saw the first flag */
byte source = NEW;         /* The buffer of the large put */

bit  posted;               /* The large put: handed to the NIC, */
bit  complete;             /* reported to the program, */
bit  verified;             /* known to have arrived */
bit  fenced;               /* The program has a fence between data and flags */
bit  barrier;              /* The fence holds later operations */
bit  pending;              /* The first flag waits in the pending queue */
bit  flushed;

chan service = [2] of { byte };    /* RC: in order, exactly once */
byte executed;


proctype large_put()
{
    byte tries;
    bit  landed;

    posted;
    do
#ifndef BREAK_TRIES
    :: tries == TRIES ->
       data = source;                /* Through bounce buffers */
       break
#endif
    :: tries < TRIES ->
#ifdef BREAK_TRIES
       tries = 0;
#else
       tries++;
#endif
       if
       :: data = source; landed = 1
       :: landed = 0
       fi;
#ifdef BREAK_COMPLETE_AT_CQE
       complete = 1;
#endif
       if
       :: landed -> break
       :: true                       /* Suspect, perhaps without a reason */
       fi
    od;
    atomic { verified = 1; barrier = 0 };
    complete = 1
}

#ifdef BREAK_SMALL_PUT
/* Broken rule: a flag is put like large data, that is written, and once more if
 * the verification fails */
proctype optimistic_flag()
{
    flag = 1;
    executed++;
    if
    :: true
    :: flag = 1
    fi
}
#define PUT_FIRST_FLAG  run optimistic_flag()
#else
#define PUT_FIRST_FLAG  service!1
#endif

/* Pending callbacks run when the barrier lifts */
#define DISPATCH  pending && !barrier -> pending = 0; PUT_FIRST_FLAG

#ifdef BREAK_PENDING_FIRST
#define MAY_POST  (!barrier)
#else
#define MAY_POST  (!barrier && !pending)
#endif

active proctype program()
{
    posted = 1;
    run large_put();

    if
    :: fenced = 1;
#ifndef BREAK_FENCE
       if
       :: atomic { !verified -> barrier = 1 }
       :: verified
       fi
#endif
    :: true
    fi;

    /* The first flag, which may have to wait, and the second one behind it */
    if
    :: !barrier -> PUT_FIRST_FLAG
    :: atomic { barrier -> pending = 1 }
    fi;
    do
    :: atomic { DISPATCH }
    :: atomic { MAY_POST -> service!2; break }
    od;
    do
    :: atomic { DISPATCH }
    :: !pending -> break
    od;

    /* Flush */
#ifdef BREAK_FLUSH
    executed == 2;
#else
    executed == 2 && verified;
#endif
    assert(data == NEW);
    flushed = 1
}

/* Another thread of the program reuses the buffer as soon as it may */
active proctype reuse()
{
    complete;
    assert(data == NEW);
    source = REUSED
}

active proctype target()
{
    byte value;

end:
    do
    :: service?value ->
       assert(value == executed + 1);
       flag = value;
       executed++
    od
}

active proctype poller()
{
end:
    do
    :: flag == 1 ->
       d_step {
           assert(data == NEW || !fenced);
           flag = 0;
           seen++;
           assert(seen == 1)
       }
    od
}

#ifdef PROGRESS
ltl progress { <> flushed }
#endif
