/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * What an application sees when another process reads and writes its memory
 * while pages are absent: one scenario, over different kinds of access.
 */

#ifndef ABSENT_H
#define ABSENT_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/** End as failed unless @a _condition holds; print a message. */
#define CHECK(_condition, ...)                                         \
    do {                                                               \
        if (!(_condition)) {                                           \
            fprintf(stderr, "FAILED: %s:%d: %s: ", __FILE__, __LINE__, \
                    #_condition);                                      \
            fprintf(stderr, "" __VA_ARGS__);                           \
            fputc('\n', stderr);                                       \
            exit(EXIT_FAILURE);                                        \
        }                                                              \
    } while (0)

/* Operations of the other process on the owner's memory */
typedef enum absent_op {
    ABSENT_READ,
    ABSENT_WRITE,
    ABSENT_FETCH_ADD
} absent_op_t;

/*
 * One kind of access. Both processes call connect(), each with memory of its
 * own and a socket to the other one. Only the other process calls transfer().
 * It moves [offset, offset + length) between its memory and the same place of
 * the owner's, or adds 1 to the number at offset and stores the old one in its
 * own memory. It returns NULL, or the reason of a failure. Both call
 * disconnect(), the owner after the other process.
 */
typedef struct absent_way {
    void        (*connect)(int owner, int socket, void *memory, size_t length);
    const char *(*transfer)(absent_op_t op, size_t offset, size_t length);
    void        (*disconnect)(void);
} absent_way_t;

/** Registered with the device, with pinned pages or with on-demand paging. */
extern const absent_way_t absent_pinned, absent_on_demand;

/** By UCP, over the transports in UCX_TLS. */
extern const absent_way_t absent_ucp;

/** Send or receive a whole message of the other process. */
void absent_send(int socket, const void *data, size_t length);
void absent_receive(int socket, void *data, size_t length);

#endif
