/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* A connection to QEMU: whole messages in and out. It never blocks. */

#ifndef EMLX5_CONN_H
#define EMLX5_CONN_H

#include "bus/emlx5_message.h"

#include <stddef.h>

typedef struct {
    int            fd;         /* -1: not connected */
    int            broken;     /* has to be closed */
    uint8_t        *in;        /* EMLX5_MESSAGE_MAX bytes */
    uint32_t       in_size;    /* have come */
    emlx5_header_t header;     /* of the message that is coming */
    int            fds[EMLX5_MESSAGE_FDS]; /* that came with it; -1: taken */
    unsigned       num_fds;
    uint8_t        *out;       /* not sent yet */
    size_t         out_size, out_room;
} emlx5_conn_t;

/** Makes a connection that is not open. @return 0, or -1 without memory. */
int emlx5_conn_init(emlx5_conn_t *conn);

void emlx5_conn_cleanup(emlx5_conn_t *conn);

/** Connected; the descriptor becomes its own and non-blocking. */
void emlx5_conn_open(emlx5_conn_t *conn, int fd);

/** Closes, and drops what has come and what was not sent. */
void emlx5_conn_close(emlx5_conn_t *conn);

/** @return 1 if conn->in has a whole message, which has to be discarded before
 * the next call; 0 if not yet; -1 if the connection is broken. */
int emlx5_conn_receive(emlx5_conn_t *conn);

/** Discards the message, and closes descriptors that were not taken. */
void emlx5_conn_discard(emlx5_conn_t *conn);

/** Sends a message, at the latest with emlx5_conn_flush(). The size in its
 * header is set here. The body has two parts, which may be NULL if their size
 * is 0. */
void emlx5_conn_send(emlx5_conn_t *conn, emlx5_header_t *header,
                     const void *body, uint32_t size, const void *body2,
                     uint32_t size2);

/** Sends what was not sent yet, as much as the socket takes. */
void emlx5_conn_flush(emlx5_conn_t *conn);

#endif
