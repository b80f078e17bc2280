/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "bus/emlx5_loop.h"
#include "base/emlx5_log.h"
#include "base/emlx5_time.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

enum { EMLX5_LOOP_MESSAGES = 64 };

void emlx5_loop_add(emlx5_loop_t *loop, emlx5_vfio_t *vfio)
{
    loop->function[loop->num_functions++] = vfio;
    emlx5_fabric_add(&loop->fabric, &vfio->hca);
}

/* --- messages --------------------------------------------------------------*/

static int emlx5_loop_poll(struct pollfd *fds, unsigned count, uint64_t until)
{
    uint64_t now = emlx5_now(), left;
    struct timespec time;
    sigset_t none;

    /* Signals that stop the program come only here */
    sigemptyset(&none);
    if (until == UINT64_MAX) {
        return ppoll(fds, count, NULL, &none);
    }
    left         = (until > now) ? until - now : 0;
    time.tv_sec  = left / 1000000000;
    time.tv_nsec = left % 1000000000;
    return ppoll(fds, count, &time, &none);
}

/* Not more than some, so that others are served as well. */
static void emlx5_loop_receive(emlx5_vfio_t *vfio)
{
    unsigned i;

    for (i = 0; (i < EMLX5_LOOP_MESSAGES) && !vfio->conn.broken; ++i) {
        if (emlx5_conn_receive(&vfio->conn) != 1) {
            return;
        }
        emlx5_vfio_handle(vfio);
        emlx5_conn_discard(&vfio->conn);
    }
}

int emlx5_loop_wait(emlx5_loop_t *loop, uint64_t until)
{
    struct pollfd fds[EMLX5_MAX_FUNCTIONS];
    emlx5_conn_t *conn;
    unsigned i;

    for (i = 0; i < loop->num_functions; ++i) {
        conn = &loop->function[i]->conn;
        emlx5_conn_flush(conn);
        fds[i].fd     = conn->broken ? -1 : conn->fd;
        fds[i].events = POLLIN | ((conn->out_size > 0) ? POLLOUT : 0);
    }
    if (emlx5_loop_poll(fds, loop->num_functions, until) <= 0) {
        return 0;
    }
    for (i = 0; i < loop->num_functions; ++i) {
        if (fds[i].revents & (POLLIN | POLLHUP | POLLERR)) {
            emlx5_loop_receive(loop->function[i]);
        }
    }
    return 1;
}

/* --- work ------------------------------------------------------------------*/

/* Guests that come and go. Returns when something has to be done, as a time of
 * emlx5_now(). */
static uint64_t emlx5_loop_guests(emlx5_loop_t *loop)
{
    uint64_t next = UINT64_MAX, when;
    emlx5_vfio_t *vfio;
    unsigned i;
    int fd;

    for (i = 0; i < loop->num_functions; ++i) {
        vfio = loop->function[i];
        if (vfio->conn.broken) {
            emlx5_vfio_unplug(vfio);
        }
        if (vfio->conn.fd < 0) {
            fd = accept4(vfio->listener, NULL, NULL, SOCK_CLOEXEC);
            if (fd >= 0) {
                emlx5_vfio_plug(vfio, fd);
            }
            continue;
        }
        when = emlx5_dma_expire(&vfio->hca.dma, 0);
        next = (when < next) ? when : next;
        when = emlx5_queue_next(&vfio->hca.queue);
        next = (when < next) ? when : next;
    }
    return next;
}

/* Waits for something to happen, also for guests that come. */
static void emlx5_loop_wait_guest(emlx5_loop_t *loop, uint64_t until)
{
    struct pollfd fds[2 * EMLX5_MAX_FUNCTIONS];
    emlx5_conn_t *conn;
    unsigned i, count = 0;

    for (i = 0; i < loop->num_functions; ++i) {
        conn = &loop->function[i]->conn;
        emlx5_conn_flush(conn);
        fds[count].fd     = (conn->fd < 0) ? loop->function[i]->listener :
                                             conn->fd;
        fds[count].events = POLLIN | ((conn->out_size > 0) ? POLLOUT : 0);
        ++count;
    }
    (void)emlx5_loop_poll(fds, count, until);
}

void emlx5_loop_run(emlx5_loop_t *loop)
{
    uint64_t next;
    unsigned i;

    while (!loop->stop) {
        next = emlx5_loop_guests(loop);
        if (next > emlx5_now()) {
            emlx5_loop_wait_guest(loop, next);
        }
        emlx5_loop_wait(loop, 0);
        for (i = 0; i < loop->num_functions; ++i) {
            emlx5_queue_run(&loop->function[i]->hca.queue);
        }
    }
}
