/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * The end of operations that are cut short (ARCHITECTURE 3, cancel, destroy,
 * failure of a peer). The NIC executes a get, or an assist does, or it is about
 * to be repeated, when its endpoint is flushed with cancellation. After it is
 * reported, its buffer belongs to the program again.
 *
 * It models uct_nprdma_op_purge(), uct_nprdma_rma_ep_fail() and
 * uct_nprdma_rma_ep_cleanup().
 *
 * Each -DBREAK_x disables one rule and must lead to a counterexample.
 */

bit in_nic;                /* Posted, its CQE not reaped */
bit cqe;
bit asked;                 /* The reply of an assist is outstanding */
bit error;                 /* The queue pair is in the error state */
bit cancelled;             /* Whatever still arrives is discarded */
bit complete;              /* Reported to the program */

/* The NIC or a reply writes the user's buffer */
#define WRITE_BUFFER  assert(!complete)

active proctype nic()
{
end:
    do
    :: in_nic ->
       if
       :: !error -> WRITE_BUFFER
       :: error
       fi;
       d_step { in_nic = 0; cqe = 1 }
    od
}

active proctype assist()
{
end:
    do
    :: asked ->
       atomic {
           asked = 0;
           if
#ifdef BREAK_LATE_REPLY
           :: true -> WRITE_BUFFER
#else
           :: !cancelled -> WRITE_BUFFER
           :: cancelled
#endif
           fi
       }
    od
}

/* One thread makes progress and cancels */
active proctype initiator()
{
    byte tries;
    bit  stop;

    in_nic = 1;
    do
    :: !stop && cqe && tries < 2 ->
       cqe = 0;
       tries++;
       if
       :: in_nic = 1                  /* Suspect: repeat */
       :: asked  = 1; in_nic = 1      /* with an assist first */
       fi
    :: !stop && cqe && tries == 2 ->
       cqe = 0;
       if
       :: !asked -> break             /* Verified */
       :: asked  -> !asked; break
       fi
    :: !stop ->
       stop  = 1;
       error = 1
    :: stop ->
#ifndef BREAK_REAP
       cqe || !in_nic;
#endif
#ifdef BREAK_REDO
       if
       :: cqe && tries < 2 -> cqe = 0; in_nic = 1; error = 0
       :: else
       fi;
#endif
       cancelled = 1;
       break
    od;
    complete = 1
}
