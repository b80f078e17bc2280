/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Lines on stderr, by level: NPEMU_LOG=error|warn|info|debug (default warn). */

#ifndef NPEMU_LOG_H
#define NPEMU_LOG_H

typedef enum {
    NPEMU_LOG_ERROR,
    NPEMU_LOG_WARN,
    NPEMU_LOG_INFO,
    NPEMU_LOG_DEBUG
} npemu_log_level_t;

/* Highest level that is written; read on first use from the environment. */
extern int npemu_log_level;

/**
 * Write one line `npemu[PID] LEVEL: ...` with a single write(2), so that the
 * lines of several processes do not mix. errno is preserved.
 */
void npemu_log_write(npemu_log_level_t level, const char *fmt, ...)
        __attribute__((format(printf, 2, 3)));

/** Take the level from NPEMU_LOG. An unknown value is logged and ignored. */
void npemu_log_init(void);

#define npemu_log(_level, ...) \
    do { \
        if (__builtin_expect((int)(_level) <= npemu_log_level, 0)) { \
            npemu_log_write(_level, __VA_ARGS__); \
        } \
    } while (0)

#define npemu_error(...) npemu_log(NPEMU_LOG_ERROR, __VA_ARGS__)
#define npemu_warn(...)  npemu_log(NPEMU_LOG_WARN, __VA_ARGS__)
#define npemu_info(...)  npemu_log(NPEMU_LOG_INFO, __VA_ARGS__)
#define npemu_debug(...) npemu_log(NPEMU_LOG_DEBUG, __VA_ARGS__)

#endif
