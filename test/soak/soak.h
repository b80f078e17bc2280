/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_TEST_SOAK_H_
#define NPRDMA_TEST_SOAK_H_

#include <ucp/api/ucp.h>

#include <stddef.h>
#include <stdint.h>
#include <time.h>

/*
 * Ranks that move random data in random ways while pages vanish, and check each
 * byte. soak.c starts them and checks their results, soak_rank.c is the main
 * program of a rank, soak_ops.c its operations, soak_data.c random numbers and
 * contents.
 */

#define SOAK_MAX_RANKS   16

/* Every rank has a segment for each writer. Only that writer puts there, and so
 * it knows the contents. */
#define SOAK_SEGMENT     (2u << 20)
#define SOAK_WORDS       4096u     /* At its beginning: words with a meaning */
#define SOAK_COUNTERS    64u       /* Of these: counters for atomics */
#define SOAK_MAILBOX     (64u * 8) /* A flag that its owner resets */
#define SOAK_ACK         (65u * 8) /* The owner's answer to the flag */
#define SOAK_MAX_LENGTH  (1u << 20)
#define SOAK_ARENA       (8u << 20)
#define SOAK_GUARD       64u       /* Bytes around received data */
#define SOAK_BATCH       24u


/* Configuration of a rank, and its results */
typedef struct soak_config {
    unsigned   ranks;
    uint64_t   seed;
    uint64_t   operations;   /* Of one rank; 0: until the time has passed */
    double     seconds;
    int        evicts;       /* Pages are evicted on purpose */
    const char *component;   /* libuct_nprdma.so.0 */
    char       dir[64];      /* The transport writes its counters there */
} soak_config_t;

typedef struct soak_result {
    uint64_t puts, gets, atomics, tags, ams, flags; /* Verified */
    uint64_t remaps;
    uint64_t bytes;
    uint64_t fds_begin, fds_end;
    uint64_t maps_begin, maps_end;
    uint64_t locked_kb;      /* Of the process, bounce buffers included */
} soak_result_t;


/* ---- soak_data.c ---- */

typedef struct soak_random {
    uint64_t state;
} soak_random_t;

uint64_t soak_random(soak_random_t *random);

/** @return A number below limit. */
uint64_t soak_below(soak_random_t *random, uint64_t limit);

/** @return A length from 1 to SOAK_MAX_LENGTH; most are small. */
size_t soak_length(soak_random_t *random);

/** Fill memory with the pattern of a seed. */
void soak_fill(void *buffer, size_t length, uint64_t seed);

/**
 * @return Offset of the first byte that differs from the pattern of a seed, or
 *         length.
 */
size_t soak_check(const void *buffer, size_t length, uint64_t seed);

uint32_t soak_crc(const void *buffer, size_t length);


/* ---- soak_rank.c ---- */

typedef struct soak_peer {
    ucp_ep_h   ep;
    ucp_rkey_h rkey;
    uint64_t   window;       /* Address of my segment at the peer */
    char       *shadow;      /* Its contents */
    uint64_t   flag;         /* Last one put into the peer's mailbox */
    uint64_t   answered;     /* Last one of the peer's that I have seen */
} soak_peer_t;

typedef struct soak_rank {
    const soak_config_t *config;
    unsigned            me;
    int                 parent;        /* Socket */
    soak_random_t       random;
    ucp_context_h       context;
    ucp_worker_h        worker;
    ucp_mem_h           memh;
    char                *window;       /* config->ranks segments */
    char                *source;       /* SOAK_ARENA bytes to send from, */
    size_t              source_used;   /* in this batch */
    char                *sink;         /* and to receive to */
    size_t              sink_used;
    soak_peer_t         peers[SOAK_MAX_RANKS];
    unsigned            outstanding;   /* Operations of this batch */
    unsigned            idle;          /* Calls of progress without an event */
    uint64_t            sends;         /* Numbers the messages */
    uint64_t            to_come[SOAK_MAX_RANKS]; /* Messages, by receiver */
    uint64_t            received;
    char                *tag_buffer;
    void                *tag_request;  /* Of the receive that is posted */
    soak_result_t       result;
} soak_rank_t;

/* Monotonic time in seconds */
static inline double soak_now(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return ts.tv_sec + (ts.tv_nsec * 1e-9);
}

/** Main program of a rank. @return Exit status. */
int soak_rank_main(const soak_config_t *config, unsigned me, int parent);

void soak_progress(soak_rank_t *rank);

/** Print a line with the parameters to reproduce the run, and exit. */
void soak_fail(soak_rank_t *rank, const char *format, ...)
        __attribute__((format(printf, 2, 3), noreturn));

/** Fail with the name of the step whose status is not UCS_OK. */
void soak_status(soak_rank_t *rank, ucs_status_t status, const char *what);

/**
 * Allgather: every rank passes length bytes and gets those of all ranks. Makes
 * progress meanwhile.
 */
void soak_gather(soak_rank_t *rank, const void *mine, size_t length, void *all);


/* ---- soak_ops.c ---- */

/** From now on receive messages of peers. */
void soak_ops_init(soak_rank_t *rank);

/** Execute and verify one batch of all kinds. */
void soak_batch(soak_rank_t *rank);

/** Wait for the messages of peers. */
void soak_ops_finish(soak_rank_t *rank);

/** Stop receiving. */
void soak_ops_cleanup(soak_rank_t *rank);

/** Answer flags of peers; called by progress. */
void soak_answer_flags(soak_rank_t *rank);

#endif
