/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "base/emlx5_log.h"
#include "base/emlx5_time.h"

#include <stdarg.h>
#include <stdio.h>

enum { EMLX5_LOG_RATE = 50 };

int emlx5_log_level = EMLX5_LOG_EVENT;

/* 1 if this second has had enough lines. The first line of the next second says
 * how many were left out. */
static int emlx5_log_is_flood(void)
{
    static uint64_t second;
    static unsigned count;
    uint64_t now = emlx5_now() / 1000000000;

    if (now != second) {
        if (count > EMLX5_LOG_RATE) {
            fprintf(stderr, "emlx5: %u lines left out\n",
                    count - EMLX5_LOG_RATE);
        }
        second = now;
        count  = 0;
    }
    return ++count > EMLX5_LOG_RATE;
}

void emlx5_log_print(int level, const char *format, ...)
{
    va_list args;

    if ((level == EMLX5_LOG_EVENT) && emlx5_log_is_flood()) {
        return;
    }
    fprintf(stderr, "emlx5: ");
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
}
