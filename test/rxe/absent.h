/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * What an application sees when somebody reads and writes memory of it whose
 * pages are not there: one scenario, over different ways to get at the memory.
 */

#ifndef ABSENT_H
#define ABSENT_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/** End as failed unless @a _condition holds; say what was there. */
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

/* What the other process is asked to do with the owner's memory */
typedef enum absent_op {
    ABSENT_READ,
    ABSENT_WRITE,
    ABSENT_FETCH_ADD
} absent_op_t;

/*
 * One way. Both processes call connect(), each with memory of its own and a
 * socket to the other one; only the other process calls transfer(), which moves
 * [offset, offset + length) between its memory and the same place of the
 * owner's, or adds 1 to the number at offset and leaves the old one in its own
 * memory. It returns NULL, or how the operation failed. Both call disconnect(),
 * the owner after the other process.
 */
typedef struct absent_way {
    void        (*connect)(int owner, int socket, void *memory, size_t length);
    const char *(*transfer)(absent_op_t op, size_t offset, size_t length);
    void        (*disconnect)(void);
} absent_way_t;

/** Registered with the device, in pages that stay, or that come on demand. */
extern const absent_way_t absent_pinned, absent_on_demand;

/** By UCP, over what UCX_TLS says. */
extern const absent_way_t absent_ucp;

/** All of a message to and from the other process. */
void absent_send(int socket, const void *data, size_t length);
void absent_receive(int socket, void *data, size_t length);

#endif
