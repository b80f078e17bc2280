/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * Order without a fence (ARCHITECTURE 3, overlap, atomics). Under a lock, a
 * program starts two operations of one endpoint on the same byte, of any kind,
 * and releases the lock by an atomic. The next owner reads the byte and writes
 * it. The result must be that of one operation after the other.
 *
 * LARGE is a put by the NIC, READ a get, STORE a small put, which the target's
 * software executes once. An operation of the NIC may miss the page, and is
 * repeated then. That a verdict is right is proven by rdma.pml.
 *
 * It models uct_nprdma_order_conflicts() and uct_nprdma_held_find_request().
 * Each -DBREAK_x disables one rule and must lead to a counterexample.
 */

#define TRIES  3

/* Values of the byte */
#define BEFORE 0           /* 1 and 2 are the values of the two operations */
#define OTHERS 3
#define ABSENT 4           /* The signature */

mtype = { LARGE, READ, STORE, UNLOCK };

byte memory = BEFORE;
bit  locked = 1;
mtype kind[2];
byte result[2];
bit  done[2];              /* Verified, or executed by the target */
bit  owned;                /* The next owner has written the byte */

chan service = [3] of { mtype, byte };  /* RC: in order, exactly once */

#define WRITES(_i)  (kind[_i] != READ)
#define BY_NIC(_i)  (kind[_i] != STORE)

/* Value of the byte after the first operation, and after both */
#define AFTER_1  (WRITES(0) -> 1 : BEFORE)
#define AFTER_2  (WRITES(1) -> 2 : AFTER_1)


proctype nic(byte which)
{
    byte tries;
    bit  landed;

    do
    :: tries == TRIES ->             /* Software copies */
       if
       :: WRITES(which) -> memory = which + 1
       :: else -> result[which] = memory
       fi;
       break
    :: tries < TRIES ->
       tries++;
       if
       :: WRITES(which) -> memory = which + 1; landed = 1
       :: !WRITES(which) -> result[which] = memory; landed = 1
       :: !WRITES(which) -> result[which] = ABSENT; landed = 0
       :: landed = 0                 /* The WRITE is swallowed */
       fi;
       if
       :: landed -> break
       :: true                       /* Suspect, perhaps without a reason */
       fi
    od;
    done[which] = 1
}

active proctype target()
{
    mtype type;
    byte  which;

end:
    do
    :: service?type, which ->
       if
       :: type == STORE -> memory = which + 1; done[which] = 1
       :: type == UNLOCK -> locked = 0
       fi
    od
}

inline start(which)
{
    if
    :: BY_NIC(which) -> run nic(which)
    :: else -> service!STORE, which
    fi
}

/* Whether the second operation has to wait for the first */
#ifdef BREAK_PUT_PUT
#define RULE_PUT_PUT  0
#else
#define RULE_PUT_PUT  (WRITES(0) && WRITES(1))
#endif
#ifdef BREAK_PUT_GET
#define RULE_PUT_GET  0
#else
#define RULE_PUT_GET  (WRITES(0) && !WRITES(1))
#endif
#ifdef BREAK_GET_PUT
#define RULE_GET_PUT  0
#else
#define RULE_GET_PUT  (!WRITES(0) && WRITES(1))
#endif
#ifdef BREAK_REQUEST
#define RULE_REQUEST  BY_NIC(0)
#else
#define RULE_REQUEST  (BY_NIC(0) || BY_NIC(1))
#endif
#define MUST_WAIT  ((RULE_PUT_PUT || RULE_PUT_GET || RULE_GET_PUT) && \
                    RULE_REQUEST)

/* What the atomic waits for. A request that has been sent precedes it. */
#ifdef BREAK_ATOMIC_PUT
#define PASSED(_i)  (done[_i] || !BY_NIC(_i) || WRITES(_i))
#elif defined(BREAK_ATOMIC_GET)
#define PASSED(_i)  (done[_i] || !BY_NIC(_i) || !WRITES(_i))
#else
#define PASSED(_i)  (done[_i] || !BY_NIC(_i))
#endif

active proctype program()
{
    if
    :: kind[0] = LARGE
    :: kind[0] = READ
    :: kind[0] = STORE
    fi;
    if
    :: kind[1] = LARGE
    :: kind[1] = READ
    :: kind[1] = STORE
    fi;

    start(0);
    (!MUST_WAIT || done[0]);
    start(1);
    (PASSED(0) && PASSED(1));
    service!UNLOCK, 0;

    (done[0] && done[1]);
    assert(WRITES(0) || result[0] == BEFORE);
    assert(WRITES(1) || result[1] == AFTER_1);
    owned;
    assert(memory == OTHERS)
}

active proctype next_owner()
{
    !locked;
    atomic {
        assert(memory == AFTER_2);
        memory = OTHERS
    };
    owned = 1
}
