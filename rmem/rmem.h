/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef RMEM_H_
#define RMEM_H_

/*
 * librmem: memory of another machine, which nprdma-memd lends. A session has
 * one extent of it, which reads as zeros at first and ends with the session.
 *
 * The calls of one session may come from several threads; one of them runs at a
 * time. In a child of fork() a session is of no use: calls return
 * RMEM_ERR_UNSUPPORTED there. A message of one line to standard error has the
 * details of each failure to open, and of the end of a session.
 */

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

typedef struct rmem rmem_t;

/* What functions return */
enum {
    RMEM_OK              = 0,
    RMEM_ERR_ARG         = -1, /* A wrong argument */
    RMEM_ERR_NOMEM       = -2, /* No local memory */
    RMEM_ERR_DENIED      = -3, /* The server has another token */
    RMEM_ERR_FULL        = -4, /* The server has no memory left */
    RMEM_ERR_RANGE       = -5, /* The server's pool file was cut or fails */
    RMEM_ERR_TIMEOUT     = -6, /* The server does not answer */
    RMEM_ERR_SERVER      = -7, /* The server is gone, or ended the session */
    RMEM_ERR_UNSUPPORTED = -8  /* Other versions, no userfaultfd, a child */
};

/* Flags of rmem_params_t */
enum {
    RMEM_PAGES         = 1 << 0, /* The window sends pages, not lines */
    /* System calls may touch the window, but not keep it for a device: what
     * that writes to pages that leave is lost, as with O_DIRECT */
    RMEM_KERNEL_FAULTS = 1 << 1
};

typedef struct {
    size_t     size;        /* sizeof(rmem_params_t) */
    size_t     bytes;       /* Of the extent; rounded up to whole pages */
    size_t     cache_bytes; /* Local memory of the window, if there is one */
    const char *token_file; /* 32 bytes, which no other user may read */
    unsigned   timeout_ms;  /* For an answer of the server; 0: 5000 */
    unsigned   flags;
    /* The session has failed: called once, in the thread that noticed, which
     * is inside a call of this library and must not begin another one. NULL:
     * not called. */
    void       (*on_error)(int status, void *arg);
    void       *arg;
} rmem_params_t;

typedef struct {
    uint64_t faults;          /* Of the window, of all kinds */
    uint64_t hits;            /* Faults that needed nothing from the server */
    uint64_t fetched_pages;   /* By the window, read ahead included */
    uint64_t virgin_pages;    /* That needed no network */
    uint64_t evicted_pages;
    uint64_t dirty_pages;     /* Evicted ones that were compared or sent */
    uint64_t untwinned_pages; /* Sent whole for lack of a twin */
    uint64_t sent_bytes;      /* To the server, in messages */
    uint64_t messages;
} rmem_stats_t;

/**
 * Opens a session with a server.
 *
 * @param [in]  where   ADDRESS:PORT, or [ADDRESS]:PORT, of nprdma-memd.
 * @param [in]  params  Its size and flags must be known to this library.
 * @param [out] rmem_p  The session; the caller closes it.
 */
int rmem_open(const char *where, const rmem_params_t *params, rmem_t **rmem_p);

/* Ends the session and its window. What the server has is given back there. */
void rmem_close(rmem_t *rmem);

/* Maps a window of all bytes, once. From then on rmem_write() returns
 * RMEM_ERR_ARG, and rmem_read() reads what the server has: all that was changed
 * in the window before the last rmem_flush(). */
int rmem_map(rmem_t *rmem, void **base_p);

/* The buffer is local memory. After a failure its content is undefined, and
 * nothing accesses it any more. */
int rmem_read(rmem_t *rmem, uint64_t offset, void *buffer, size_t length);

/* The buffer may be used again at the return; the server has stored it after
 * rmem_flush(). Later reads of the session return what was written. */
int rmem_write(rmem_t *rmem, uint64_t offset, const void *buffer,
               size_t length);

/* Waits until the server has stored all that was written before, also to the
 * window. */
int rmem_flush(rmem_t *rmem);

/* Whole pages of a range read as zeros then. Without a window the address is an
 * offset in the extent. */
int rmem_discard(rmem_t *rmem, void *address, size_t length);

void rmem_stats(const rmem_t *rmem, rmem_stats_t *stats);

const char *rmem_strerror(int status);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif
