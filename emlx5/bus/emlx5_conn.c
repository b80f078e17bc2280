/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "bus/emlx5_conn.h"
#include "base/emlx5_log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    EMLX5_CONN_FLUSH   = 32 << 10, /* so much is sent without being asked */
    EMLX5_CONN_MAX_OUT = 16 << 20  /* a peer that does not read is of no use */
};

int emlx5_conn_init(emlx5_conn_t *conn)
{
    memset(conn, 0, sizeof(*conn));
    conn->fd = -1;
    conn->in = malloc(EMLX5_MESSAGE_MAX);
    return (conn->in == NULL) ? -1 : 0;
}

void emlx5_conn_cleanup(emlx5_conn_t *conn)
{
    emlx5_conn_close(conn);
    free(conn->in);
    free(conn->out);
    conn->in  = NULL;
    conn->out = NULL;
}

void emlx5_conn_open(emlx5_conn_t *conn, int fd)
{
    (void)fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    conn->fd     = fd;
    conn->broken = 0;
}

void emlx5_conn_close(emlx5_conn_t *conn)
{
    emlx5_conn_discard(conn);
    conn->out_size = 0;
    if (conn->fd >= 0) {
        close(conn->fd);
        conn->fd = -1;
    }
}

/* --- in --------------------------------------------------------------------*/

static void emlx5_conn_keep_fds(emlx5_conn_t *conn, struct msghdr *message)
{
    struct cmsghdr *c;
    size_t i, count;
    int fd;

    for (c = CMSG_FIRSTHDR(message); c != NULL; c = CMSG_NXTHDR(message, c)) {
        if ((c->cmsg_level != SOL_SOCKET) || (c->cmsg_type != SCM_RIGHTS)) {
            continue;
        }
        count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(fd);
        for (i = 0; i < count; ++i) {
            memcpy(&fd, CMSG_DATA(c) + (i * sizeof(fd)), sizeof(fd));
            if (conn->num_fds < EMLX5_MESSAGE_FDS) {
                conn->fds[conn->num_fds++] = fd;
            } else {
                close(fd);
            }
        }
    }
}

/* Receives at most `size` bytes of the message, never beyond its end. A call
 * that goes beyond it returns the descriptors of the next message, too, and
 * nothing tells which message they belong to. */
static int emlx5_conn_fill(emlx5_conn_t *conn, uint32_t size)
{
    union {
        char           bytes[CMSG_SPACE(sizeof(int) * EMLX5_MESSAGE_FDS)];
        struct cmsghdr align;
    } control;
    struct iovec iov      = {conn->in + conn->in_size, size - conn->in_size};
    struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = sizeof(control)};
    ssize_t done;

    if (conn->in_size == size) {
        return 1;
    }
    done = recvmsg(conn->fd, &message, MSG_CMSG_CLOEXEC);
    if (done < 0) {
        return ((errno == EAGAIN) || (errno == EINTR)) ? 0 : -1;
    }
    if (done == 0) {
        return -1;
    }
    emlx5_conn_keep_fds(conn, &message);
    conn->in_size += done;
    return conn->in_size == size;
}

int emlx5_conn_receive(emlx5_conn_t *conn)
{
    int status = 1;

    if (conn->in_size < EMLX5_MESSAGE_HEADER) {
        status = emlx5_conn_fill(conn, EMLX5_MESSAGE_HEADER);
        if ((status == 1) && (emlx5_header_read(&conn->header,
                                                conn->in) != 0)) {
            emlx5_event("message of %u bytes", conn->header.size);
            status = -1;
        }
    }
    if (status == 1) {
        status = emlx5_conn_fill(conn, conn->header.size);
    }
    if (status < 0) {
        conn->broken = 1;
    }
    return status;
}

void emlx5_conn_discard(emlx5_conn_t *conn)
{
    unsigned i;

    for (i = 0; i < conn->num_fds; ++i) {
        if (conn->fds[i] >= 0) {
            close(conn->fds[i]);
        }
    }
    conn->num_fds = 0;
    conn->in_size = 0;
}

/* --- out -------------------------------------------------------------------*/

void emlx5_conn_flush(emlx5_conn_t *conn)
{
    size_t sent = 0;
    ssize_t done;

    while ((sent < conn->out_size) && !conn->broken) {
        done = send(conn->fd, conn->out + sent, conn->out_size - sent,
                    MSG_NOSIGNAL | MSG_DONTWAIT);
        if (done > 0) {
            sent += done;
        } else if (errno == EAGAIN) {
            break;
        } else if (errno != EINTR) {
            conn->broken = 1;
        }
    }
    if (sent > 0) {
        memmove(conn->out, conn->out + sent, conn->out_size - sent);
        conn->out_size -= sent;
    }
}

static int emlx5_conn_reserve(emlx5_conn_t *conn, size_t size)
{
    size_t room = 2 * (conn->out_size + size);
    uint8_t *out;

    if (conn->out_size + size <= conn->out_room) {
        return 0;
    }
    if (conn->out_size + size > EMLX5_CONN_MAX_OUT) {
        return -1;
    }
    out = realloc(conn->out, room);
    if (out == NULL) {
        return -1;
    }
    conn->out      = out;
    conn->out_room = room;
    return 0;
}

void emlx5_conn_send(emlx5_conn_t *conn, emlx5_header_t *header,
                     const void *body, uint32_t size, const void *body2,
                     uint32_t size2)
{
    uint8_t *to;

    if ((conn->fd < 0) || conn->broken) {
        return;
    }
    header->size = EMLX5_MESSAGE_HEADER + size + size2;
    if (emlx5_conn_reserve(conn, header->size) != 0) {
        emlx5_event("the peer does not read");
        conn->broken = 1;
        return;
    }
    to = conn->out + conn->out_size;
    emlx5_header_write(header, to);
    if (size > 0) {
        memcpy(to + EMLX5_MESSAGE_HEADER, body, size);
    }
    if (size2 > 0) {
        memcpy(to + EMLX5_MESSAGE_HEADER + size, body2, size2);
    }
    conn->out_size += header->size;
    if (conn->out_size >= EMLX5_CONN_FLUSH) {
        emlx5_conn_flush(conn);
    }
}
