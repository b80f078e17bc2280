/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * Order of messages and small puts behind earlier puts of their endpoint
 * (ARCHITECTURE 3, messages and flags). A program starts any sequence of small
 * puts, large puts and messages. Requests and messages travel on two queue
 * pairs, and a large put lands at any time before it is verified. The target
 * executes requests in order, each after any time, and its connection of
 * requests may end between two of them.
 *
 * It models uct_nprdma_order_search(), uct_nprdma_rma_admit_message(),
 * uct_nprdma_rx_wait_check() and uct_nprdma_rx_wait_run().
 *
 * Each -DBREAK_x disables one rule and must lead to a counterexample.
 */

#define OPS  4

bit  is_put[OPS];
bit  visible[OPS];          /* The put is visible at the target */
byte unverified;            /* Large puts */
byte sent;                  /* Requests */
byte executed;
bit  ended;                 /* No more requests will be executed */

chan requests = [OPS] of { byte };
chan messages = [OPS] of { byte, byte };  /* Operation, requests it follows */


inline check_before(op)
{
    d_step {
        k = 0;
        do
        :: k < op ->
           assert(!is_put[k] || visible[k]);
           k++
        :: k == op -> break
        od;
        k = 0
    }
}

proctype large_put(byte op)
{
    visible[op] = 1;
    unverified--
}

active proctype initiator()
{
    byte op;

    do
    :: op == OPS -> break
    :: op < OPS ->
       if
       :: /* A small put */
#ifndef BREAK_FLAG
          unverified == 0;
#endif
          is_put[op] = 1;
          atomic { sent++; requests!op }
       :: /* A large put */
          atomic { is_put[op] = 1; unverified++; run large_put(op) }
       :: /* A message */
#ifndef BREAK_MESSAGE_LARGE
          unverified == 0;
#endif
#ifdef BREAK_MESSAGE_REQUEST
          messages!op, 0
#else
          messages!op, sent
#endif
       fi;
       op++
    od
}

active proctype service()
{
    byte op, k;

end:
    do
    :: requests?op ->
       check_before(op);
       visible[op] = 1;
       executed++
    :: ended = 1; break
    od
}

active proctype progress()
{
    byte op, follows, k;

end:
    do
    :: messages?op, follows ->
#ifdef BREAK_LOST
       executed >= follows || ended;
       check_before(op)
#else
       if
       :: executed >= follows -> check_before(op)
       :: ended && executed < follows -> break    /* Dropped, with all later
                                                   * ones */
       fi
#endif
    od
}
