/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_LOG_H_
#define UCT_NPRDMA_LOG_H_

#include <ucs/debug/log.h>

/* Tracing. UCS_MAX_LOG_LEVEL decides at compile time which levels exist: it is
 * that of the UCX this is built for, or all levels with --enable-debug. The
 * arguments of a line whose level does not exist are not evaluated, and no code
 * is left of it. */

/* Write a line at level trace_data: the format with its arguments, then the
 * text of a packet (nprdma_dump.h) */
#define uct_nprdma_trace_packet(_dump, _packet, _length, _format, ...) \
    do { \
        if (ucs_log_is_enabled(UCS_LOG_LEVEL_TRACE_DATA)) { \
            char _text[UCT_NPRDMA_DUMP_MAX]; \
            ucs_trace_data(_format " %s", ## __VA_ARGS__, \
                           uct_nprdma_dump(_dump, _text, sizeof(_text), \
                                           _packet, _length)); \
        } \
    } while (0)


/* Make libucs print the levels that this component has and libucs has not: the
 * handler of libucs drops every line above the level that libucs was compiled
 * with. Called once, before the first line. */
void uct_nprdma_log_init(void);

#endif
