/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_log.h"

#include <ucs/sys/compiler.h>

#include <stdio.h>

/* Longest line in bytes; the rest of a longer one is cut off */
#define UCT_NPRDMA_LOG_LINE  512


static void uct_nprdma_log_print(const char *file, unsigned line,
                                 const char *function,
                                 const ucs_log_component_config_t *config,
                                 const char *format, ...)
{
    va_list ap;

    va_start(ap, format);
    ucs_log_default_handler(file, line, function, NPRDMA_UCX_MAX_LOG_LEVEL,
                            config, format, ap);
    va_end(ap);
}

/* Print a line that libucs would drop, at the highest level that libucs has,
 * with its own level in the text */
static ucs_log_func_rc_t
uct_nprdma_log_handler(const char *file, unsigned line, const char *function,
                       ucs_log_level_t level,
                       const ucs_log_component_config_t *config,
                       const char *format, va_list ap)
{
    char text[UCT_NPRDMA_LOG_LINE];

    if ((level <= NPRDMA_UCX_MAX_LOG_LEVEL) || (level >= UCS_LOG_LEVEL_LAST) ||
        (level > config->log_level)) {
        return UCS_LOG_FUNC_RC_CONTINUE;
    }

    vsnprintf(text, sizeof(text), format, ap);
    uct_nprdma_log_print(file, line, function, config, "%s %s",
                         ucs_log_level_names[level], text);
    return UCS_LOG_FUNC_RC_CONTINUE;
}

void uct_nprdma_log_init(void)
{
    if (UCS_MAX_LOG_LEVEL > NPRDMA_UCX_MAX_LOG_LEVEL) {
        ucs_log_push_handler(uct_nprdma_log_handler);
    }
}
