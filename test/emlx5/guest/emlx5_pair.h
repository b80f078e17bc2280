/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Two ends of a connection, in one process, for tests in a guest and for
 * contrib/hwcheck. It works on any device, over InfiniBand and RoCE. Whatever
 * cannot be made ends the program with a message. */

#ifndef EMLX5_PAIR_H
#define EMLX5_PAIR_H

#include <infiniband/verbs.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { PAIR_MEMORY = 4 << 20, PAIR_DEPTH = 64, PAIR_SECONDS = 30 };

/* Ends the test: what does not hold, and why */
#define CHECK(_cond, ...) \
    do { \
        if (!(_cond)) { \
            printf("FAILED: %s:%d: %s: ", __FILE__, __LINE__, #_cond); \
            printf(__VA_ARGS__); \
            printf("\n"); \
            exit(1); \
        } \
    } while (0)

typedef struct {
    struct ibv_context *context;
    struct ibv_pd      *pd;
    struct ibv_cq      *cq;
    struct ibv_qp      *qp;
    struct ibv_mr      *mr;
    uint8_t            *memory; /* PAIR_MEMORY bytes */
    uint8_t            port;
    enum ibv_mtu       mtu;
    uint16_t           lid;
    int                is_roce;
    uint8_t            gid_index; /* with RoCE; with InfiniBand 0 */
    union ibv_gid      gid;       /* that with this index */
} side_t;

typedef struct {
    side_t a, b;
} pair_t;

/** Opens two devices, which may be one, and makes all but the QPs. A name is
 * that of a device, whose first port is taken, or DEVICE/PORT. */
void pair_open(pair_t *pair, const char *name_a, const char *name_b);

/** Makes the QPs, instead of those that there are, and connects them. */
void pair_connect(pair_t *pair);

void pair_close(pair_t *pair);

/** Waits for a completion, at most PAIR_SECONDS. */
struct ibv_wc side_wait(side_t *side);

/** Waits for a successful completion. */
struct ibv_wc side_wait_ok(side_t *side);

/** Waits for such an asynchronous event of a device. Others before it are
 * ignored: kernels may have some that this library does not know. */
void side_wait_event(side_t *side, enum ibv_event_type type, int seconds);

/** Posts a receive into memory at this offset. @return Of ibv_post_recv(). */
int side_post_recv(side_t *side, size_t offset, uint32_t length);

/* A request; what is 0 does not matter for its opcode */
typedef struct {
    enum ibv_wr_opcode opcode;
    int                flags;  /* besides IBV_SEND_SIGNALED */
    size_t             from;   /* offset in the own memory */
    uint32_t           length;
    uint64_t           remote;
    uint32_t           rkey, imm;
} request_t;

/** Posts it. */
void side_post(side_t *side, const request_t *request);

/** Fills memory with numbers that a seed repeats, or compares it with them. */
void fill(uint8_t *memory, size_t length, uint32_t seed);
int is_filled(const uint8_t *memory, size_t length, uint32_t seed);

#endif
