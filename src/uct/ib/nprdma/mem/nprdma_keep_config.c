/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_keep_config.h"

#include "ucm/events/nprdma_lazy.h"

#include <ucs/debug/log.h>
#include <ucs/sys/string.h>

#include <ctype.h>
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <strings.h>


const char *uct_nprdma_keep_parse_size(const char *text, size_t *size_p)
{
    unsigned long value;
    size_t unit = 1;
    char *tail;

    if (!isdigit((unsigned char)text[0])) {
        return NULL;
    }

    errno = 0;
    value = strtoul(text, &tail, 10);
    if (isalpha((unsigned char)*tail)) {
        unit = ucs_string_quantity_prefix_value(toupper((unsigned char)*tail));
        ++tail;
        if ((unit > 0) && (tolower((unsigned char)*tail) == 'b')) {
            ++tail;
        }
    }

    if ((errno != 0) || (unit == 0) || (value > SIZE_MAX / unit)) {
        return NULL;
    }

    *size_p = value * unit;
    return tail;
}

ucs_status_t uct_nprdma_keep_parse(const char *text, uct_nprdma_keep_t *keep)
{
    const char *tail = uct_nprdma_keep_parse_size(text, &keep->lazy_limit);

    /* A block has NPRDMA_LAZY_MIN bytes, and half of the size at most */
    if ((tail != NULL) &&
        ((keep->lazy_limit == 0) ||
         ((keep->lazy_limit >= 2 * NPRDMA_LAZY_MIN) &&
          (keep->lazy_limit <= NPRDMA_LAZY_MAX)))) {
        keep->lazy_open = !strcasecmp(tail, ",zeroed");
        if ((tail[0] == '\0') ||
            ((keep->lazy_limit > 0) &&
             (keep->lazy_open || !strcasecmp(tail, ",strict")))) {
            return UCS_OK;
        }
    }

    ucs_error("UCX_NPRDMA_LAZY_UNMAP: '%.80s' is not valid, expected: 0, or "
              "SIZE[,strict|zeroed] with a SIZE from 256k to 1t", text);
    return UCS_ERR_INVALID_PARAM;
}
