/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef RMEM_SESSION_H_
#define RMEM_SESSION_H_

/*
 * A client's session with nprdma-memd: gets, and messages that carry what was
 * changed. It fails once and for ever: every function returns its status then.
 */

#include "rmem.h"
#include "rmem_side.h"

#include <pthread.h>
#include <signal.h>

typedef struct rmem_window rmem_window_t;

enum {
    RMEM_SESSION_BUFFERS = 4, /* Of messages that UCP still reads */
    RMEM_SESSION_BYTES   = RMEM_SESSION_BUFFERS * RMEM_MAX_DATA
};

/* A message on its way: UCP reads its header and data until the request ends */
typedef struct {
    uint8_t          data[RMEM_MAX_DATA];
    rmem_lines_t     header;
    ucs_status_ptr_t request;
} rmem_session_buffer_t;

/* What a call changes in its thread */
typedef struct {
    bool     is_masked;
    sigset_t signals; /* If it is */
    int      cancel;
} rmem_caller_t;

struct rmem {
    pthread_mutex_t       lock;       /* That knows its owner: EDEADLK */
    rmem_caller_t         caller;     /* Of the mutex's owner */
    unsigned              forks;      /* rmem_forks of its process */
    rmem_params_t         params;     /* bytes: of whole pages */
    rmem_window_t         *window;    /* NULL: none */
    char                  *base;      /* Of the window; NULL: none */
    rmem_stats_t          stats;

    rmem_side_t           side;
    ucp_ep_h              ep;         /* NULL: closed */
    int                   status;     /* Of the session, once it has failed */
    uint64_t              heard;      /* When the server last answered */
    uint64_t              address;    /* Of the extent, there */
    ucp_rkey_h            rkey;       /* NULL: no WELCOME has come */

    uint32_t              sent;       /* The last message; it wraps around */
    uint32_t              acked;      /* Up to this one the server has all */
    rmem_session_buffer_t buffers[RMEM_SESSION_BUFFERS];
    unsigned              next;       /* Of the buffers */
    struct {
        unsigned      num;
        rmem_record_t records[RMEM_MAX_RECORDS];
    } unacked[RMEM_MAX_UNACKED];
};

/* How often fork() led to this process: a child has no session of its parent.
 * getpid() would be a system call. */
extern unsigned rmem_forks;

/* Begins a call: the next functions need the mutex. Until its end the thread is
 * not cancelled, because the mutex needs an owner that can go on. is_masked:
 * signals are blocked, because a handler of the program may touch the window;
 * without a window these two system calls are saved. RMEM_ERR_UNSUPPORTED in a
 * child of fork(), RMEM_ERR_ARG inside of another call. rmem_leave() returns
 * the status. */
int rmem_enter(rmem_t *rmem, bool is_masked);
int rmem_leave(rmem_t *rmem, int status);

/* Connects, and gets an extent of params.bytes. */
int rmem_session_open(rmem_t *rmem, const char *where);

/* Sends nothing: what has no ACK may be lost. */
void rmem_session_close(rmem_t *rmem);

/* Gets from the extent, when the server has stored what messages say of these
 * pages. Nothing accesses the buffer after that, also if the session fails.
 * memh: of the buffer, or NULL. */
int rmem_session_get(rmem_t *rmem, uint64_t offset, void *buffer, size_t length,
                     ucp_mem_h memh);

/* The buffer of the next message, RMEM_MAX_DATA bytes for records and, behind
 * the last of them, lines. Waits until UCP has left one alone; NULL if the
 * session has failed. */
uint8_t *rmem_session_buffer(rmem_t *rmem);

/* Sends what was gathered in the buffer. Waits while RMEM_MAX_UNACKED messages
 * have no ACK. flags: RMEM_LINES_FREE for records of pages to drop. */
int rmem_session_send(rmem_t *rmem, unsigned records, unsigned flags,
                      size_t length);

/* Sends messages by which the server drops pages. */
int rmem_session_drop(rmem_t *rmem, uint32_t page, uint32_t count);

/* Waits until the server has stored all messages. */
int rmem_session_flush(rmem_t *rmem);

#endif
