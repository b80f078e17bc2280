/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_SCHED_H_
#define UCT_NPRDMA_SCHED_H_

#include <ucs/datastruct/list.h>

#include <stddef.h>
#include <stdint.h>

/*
 * Decides which large operation of an interface posts its next slice, and when.
 * Pure: it posts nothing, reads no clock, allocates nothing, and takes no lock.
 * Every function takes constant time. Small operations are not its business:
 * they are posted at once.
 *
 * Among endpoints: deficit round robin (Shreedhar and Varghese, 1995), in the
 * form in which an endpoint sends while its deficit is positive and may
 * overdraw it by one slice. So no length has to be known before its turn. The
 * quantum is the longest slice.
 *
 * Within an endpoint: the oldest operation first, but one that fits into one
 * slice goes before it, UCT_NPRDMA_SCHED_MAX_SKIPS times in a row at most.
 *
 * A quota bounds the bytes of slices that the NIC has, and those that are
 * posted in one call of progress. One endpoint gets less than two thirds of
 * what the others leave of it (a threshold that depends on what is free:
 * Choudhury and Hahne, 1998), so a peer that is gone does not keep all of it
 * until its connection fails.
 *
 * Slices are short while something urgent goes on: when the caller's count of
 * urgent operations has changed, the next UCT_NPRDMA_SCHED_BUSY are. Those that
 * belong to large operations, as the messages of a rendezvous do, are expected
 * and change nothing. If one that is no message comes soon after the last of
 * these short slices, there were too few: then there are twice as many.
 *
 * The idea, to slice large work requests in the driver and to decide there what
 * goes next, is that of sRDMA (APNet 2023, doi 10.1145/3600061.3600082).
 */

/* Operations that may pass the oldest one in a row */
#define UCT_NPRDMA_SCHED_MAX_SKIPS  8

/* Short slices after something urgent */
#define UCT_NPRDMA_SCHED_BUSY       16

/* The most that these become, and how many long slices make them few again */
#define UCT_NPRDMA_SCHED_MAX_BUSY   256
#define UCT_NPRDMA_SCHED_QUIET      32

/* Most urgent operations of a kind that are expected at a time */
#define UCT_NPRDMA_SCHED_MAX_EXPECTED  64

/* A quota in slices of the present size. One endpoint alone has two of them in
 * flight: while one of them is verified, the NIC moves the other. */
#define UCT_NPRDMA_SCHED_AUTO       0
#define UCT_NPRDMA_SCHED_AUTO_SLICES  3

/* No quota */
#define UCT_NPRDMA_SCHED_NO_QUOTA   SIZE_MAX


/* Numbers of urgent operations so far */
typedef struct uct_nprdma_sched_urgent {
    uint64_t messages; /* May belong to large ones */
    /* Small ones of this side: one for each large one may be an end of the same
     * buffer */
    uint64_t ends;
    uint64_t others;   /* Do not */
} uct_nprdma_sched_urgent_t;


/* An operation with bytes that are in no slice yet; embedded in the caller's
 * object */
typedef struct uct_nprdma_sched_op {
    ucs_list_link_t list;     /* In ep->ops */
    ucs_list_link_t brief;    /* In ep->briefs, if is_brief */
    uint8_t         is_brief; /* Fits into one slice */
} uct_nprdma_sched_op_t;


/* The operations of an endpoint; embedded in the caller's object */
typedef struct uct_nprdma_sched_ep {
    ucs_list_link_t ready;      /* In sched->ready, if is_ready */
    ucs_list_link_t ops;        /* Oldest first */
    ucs_list_link_t briefs;     /* Those of them that fit into one slice */
    size_t          in_flight;  /* Bytes */
    int64_t         deficit;    /* Bytes that it may send in its turn */
    unsigned        num_skips;  /* Operations that have passed the oldest one */
    uint8_t         is_ready;   /* It has operations, and neither of these: */
    uint8_t         is_blocked; /* The caller lacks a resource for it */
    uint8_t         is_full;    /* It has its share of the quota */
} uct_nprdma_sched_ep_t;


/* One per interface */
typedef struct uct_nprdma_sched {
    ucs_list_link_t ready;      /* Endpoints; the first has its turn */
    size_t          slice;      /* Bytes */
    size_t          busy_slice; /* Bytes, at most slice */
    size_t          quota;      /* Bytes, or one of the values above */
    size_t          quantum;    /* Bytes, not less than any slice */
    size_t          in_flight;  /* Bytes */
    size_t          budget;     /* Bytes left in this call of progress */
    uct_nprdma_sched_urgent_t urgent; /* At the last call that had them */
    /* As many more messages belong to large ones */
    unsigned        expected;
    unsigned        expected_ends; /* As many more do, too */
    unsigned        busy;       /* Short slices left */
    unsigned        num_busy;   /* Those that follow an urgent operation */
    /* Long slices since the last short one, up to UCT_NPRDMA_SCHED_QUIET */
    unsigned        quiet;
    uint64_t        num_skips;  /* Times that an operation passed the oldest */
    /* Times that the quota stopped an endpoint or the interface */
    uint64_t        num_full;
} uct_nprdma_sched_t;


/* Set up the scheduler of an interface; needs no cleanup. Bytes: of a slice, of
 * one while something urgent goes on, of the longest with all that the caller
 * adds to it, and the quota, which may be UCT_NPRDMA_SCHED_AUTO or
 * UCT_NPRDMA_SCHED_NO_QUOTA. */
void uct_nprdma_sched_init(uct_nprdma_sched_t *sched, size_t slice,
                           size_t busy_slice, size_t longest, size_t quota);

/* Needs no cleanup once the endpoint has no operations again, and nothing in
 * flight */
void uct_nprdma_sched_ep_init(uct_nprdma_sched_ep_t *ep);


/* Whether an endpoint may have something to post */
static inline int uct_nprdma_sched_has_work(const uct_nprdma_sched_t *sched)
{
    return sched->ready.next != &sched->ready;
}

/* Bytes of the next slice */
static inline size_t uct_nprdma_sched_slice(const uct_nprdma_sched_t *sched)
{
    return (sched->busy > 0) ? sched->busy_slice : sched->slice;
}

/* Bytes, with slices as they are now */
static inline size_t uct_nprdma_sched_quota(const uct_nprdma_sched_t *sched)
{
    return (sched->quota == UCT_NPRDMA_SCHED_AUTO) ?
           (UCT_NPRDMA_SCHED_AUTO_SLICES * uct_nprdma_sched_slice(sched)) :
           sched->quota;
}


/* Begin a call of progress: it may post as much as the quota. `urgent` counts
 * urgent operations so far. */
void uct_nprdma_sched_begin(uct_nprdma_sched_t *sched,
                            uct_nprdma_sched_urgent_t urgent);


/* Add an operation, the youngest of its endpoint, to which `own` messages may
 * belong. Urgent operations before the first large one do not make its slices
 * short. */
void uct_nprdma_sched_add(uct_nprdma_sched_t *sched, uct_nprdma_sched_ep_t *ep,
                          uct_nprdma_sched_op_t *op, size_t length,
                          uct_nprdma_sched_urgent_t urgent, unsigned own);

/* Remove an operation of which no more is to be posted */
void uct_nprdma_sched_remove(uct_nprdma_sched_t *sched,
                             uct_nprdma_sched_ep_t *ep,
                             uct_nprdma_sched_op_t *op);


/* Find the operation that posts the next slice, of uct_nprdma_sched_slice()
 * bytes; NULL: nothing may be posted now. The caller posts and calls
 * uct_nprdma_sched_posted(), or it calls uct_nprdma_sched_block(), or it stops
 * asking for now. */
uct_nprdma_sched_op_t *uct_nprdma_sched_next(uct_nprdma_sched_t *sched,
                                             uct_nprdma_sched_ep_t **ep_p);

/* A slice of the operation of uct_nprdma_sched_next() is posted; with the last
 * one it is removed */
void uct_nprdma_sched_posted(uct_nprdma_sched_t *sched,
                             uct_nprdma_sched_ep_t *ep,
                             uct_nprdma_sched_op_t *op, size_t length,
                             int is_last);

/* The NIC has a slice again that had left it, for its next try. It is not
 * refused: what has begun ends. */
void uct_nprdma_sched_again(uct_nprdma_sched_t *sched,
                            uct_nprdma_sched_ep_t *ep, size_t length);

/* The NIC no longer has a slice: it has ended in whatever way, or waits for the
 * target's software, which may take any time */
void uct_nprdma_sched_done(uct_nprdma_sched_t *sched, uct_nprdma_sched_ep_t *ep,
                           size_t length);


/* An endpoint lacks a resource of its own. It loses its place, not its
 * deficit. */
void uct_nprdma_sched_block(uct_nprdma_sched_t *sched,
                            uct_nprdma_sched_ep_t *ep);

/* The resource may be back; harmless if the endpoint is not blocked */
void uct_nprdma_sched_unblock(uct_nprdma_sched_t *sched,
                              uct_nprdma_sched_ep_t *ep);

#endif
