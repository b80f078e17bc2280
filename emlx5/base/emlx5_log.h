/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Messages to stderr. A guest can cause them, so their rate has a limit. */

#ifndef EMLX5_LOG_H
#define EMLX5_LOG_H

enum {
    EMLX5_LOG_ERROR,   /* of the program's own surroundings */
    EMLX5_LOG_EVENT,   /* connections, resets, what the guest did wrong */
    EMLX5_LOG_COMMAND, /* each command */
    EMLX5_LOG_REQUEST, /* each work request and doorbell */
    EMLX5_LOG_DMA      /* each DMA */
};

/* Messages up to this level are printed. */
extern int emlx5_log_level;

/** Prints a line; at most EMLX5_LOG_RATE lines in a second below level
 * EMLX5_LOG_COMMAND, and the number of suppressed ones. */
void emlx5_log_print(int level, const char *format, ...)
        __attribute__((format(printf, 2, 3)));

#define emlx5_log(_level, ...) \
    do { \
        if ((_level) <= emlx5_log_level) { \
            emlx5_log_print(_level, __VA_ARGS__); \
        } \
    } while (0)

#define emlx5_error(...) emlx5_log(EMLX5_LOG_ERROR, __VA_ARGS__)
#define emlx5_event(...) emlx5_log(EMLX5_LOG_EVENT, __VA_ARGS__)

#endif
