/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "base/npemu_log.h"
#include "base/npemu_file.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int npemu_log_level = NPEMU_LOG_WARN;

static const char *npemu_log_names[] = {"error", "warn", "info", "debug"};

void npemu_log_write(npemu_log_level_t level, const char *fmt, ...)
{
    int saved_errno = errno;
    char line[512];
    va_list ap;
    size_t len;
    int n;

    n   = snprintf(line, sizeof(line), "npemu[%d] %s: ", (int)getpid(),
                   npemu_log_names[level]);
    len = n;
    va_start(ap, fmt);
    n = vsnprintf(line + len, sizeof(line) - len - 1, fmt, ap);
    va_end(ap);

    len += (n < 0) ? 0 : (size_t)n;
    if (len > sizeof(line) - 2) {
        len = sizeof(line) - 2;
    }
    line[len++] = '\n';
    npemu_file_write(STDERR_FILENO, line, len); /* no other place reports it */
    errno = saved_errno;
}

void npemu_log_init(void)
{
    const char *value = getenv("NPEMU_LOG");
    int level;

    if ((value == NULL) || (value[0] == '\0')) {
        return;
    }

    for (level = NPEMU_LOG_ERROR; level <= NPEMU_LOG_DEBUG; ++level) {
        if (!strcmp(value, npemu_log_names[level])) {
            npemu_log_level = level;
            return;
        }
    }

    npemu_warn("NPEMU_LOG=%s is none of error, warn, info, debug; ignored",
               value);
}
