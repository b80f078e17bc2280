/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_keep_config.h"

#include "ucm/events/nprdma_lazy.h"
#include "ucm/nprdma_malloc.h"

#include <ucs/debug/log.h>
#include <ucs/sys/string.h>

#include <ctype.h>
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>


/* What is valid for a variable */
typedef struct uct_nprdma_keep_spec {
    const char        *name;    /* without UCX_NPRDMA_ */
    size_t            min;      /* bytes; 0 is valid as well */
    size_t            max;
    const char        *range;   /* min to max, for the message */
    const char *const *options; /* names, with a NULL at the end */
} uct_nprdma_keep_spec_t;


/* Options: indices in the specifications */
enum {
    UCT_NPRDMA_KEEP_NO_OPTION  = -1,
    UCT_NPRDMA_MALLOC_KEEP_ALL = 0,
    UCT_NPRDMA_LAZY_STRICT     = 0, /* as without an option */
    UCT_NPRDMA_LAZY_ZEROED     = 1
};


static const char *const uct_nprdma_malloc_keep_options[] = {
    [UCT_NPRDMA_MALLOC_KEEP_ALL] = "all",
    NULL
};

static const uct_nprdma_keep_spec_t uct_nprdma_malloc_keep = {
    .name    = "MALLOC_KEEP",
    .min     = NPRDMA_MALLOC_KEEP_MIN,
    .max     = NPRDMA_MALLOC_KEEP_MAX,
    .range   = "1m to 2047m",
    .options = uct_nprdma_malloc_keep_options
};

static const char *const uct_nprdma_lazy_unmap_options[] = {
    [UCT_NPRDMA_LAZY_STRICT] = "strict",
    [UCT_NPRDMA_LAZY_ZEROED] = "zeroed",
    NULL
};

/* A block has 128 KiB, and half of the size at most */
static const uct_nprdma_keep_spec_t uct_nprdma_lazy_unmap = {
    .name    = "LAZY_UNMAP",
    .min     = 2 * NPRDMA_LAZY_MIN,
    .max     = NPRDMA_LAZY_MAX,
    .range   = "256k to 1t",
    .options = uct_nprdma_lazy_unmap_options
};


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

/* @return Index of the option, or -1 if there is none of this name */
static int uct_nprdma_keep_find(const uct_nprdma_keep_spec_t *spec,
                                const char *name)
{
    int i;

    for (i = 0; spec->options[i] != NULL; ++i) {
        if (!strcasecmp(spec->options[i], name)) {
            return i;
        }
    }

    return -1;
}

static ucs_status_t
uct_nprdma_keep_parse_one(const uct_nprdma_keep_spec_t *spec, const char *text,
                          size_t *size_p, int *option_p)
{
    char options[64] = "";
    const char *tail;
    unsigned i;

    *size_p   = 0;
    *option_p = UCT_NPRDMA_KEEP_NO_OPTION;
    tail      = uct_nprdma_keep_parse_size(text, size_p);
    if ((tail == NULL) ||
        ((*size_p != 0) && ((*size_p < spec->min) || (*size_p > spec->max)))) {
        goto err;
    }

    if (*tail == '\0') {
        return UCS_OK;
    }

    if ((*tail == ',') && (*size_p > 0)) {
        *option_p = uct_nprdma_keep_find(spec, tail + 1);
        if (*option_p >= 0) {
            return UCS_OK;
        }
    }

err:
    for (i = 0; spec->options[i] != NULL; ++i) {
        ucs_snprintf_zero(options + strlen(options),
                          sizeof(options) - strlen(options), "%s%s",
                          (i == 0) ? "" : "|", spec->options[i]);
    }
    ucs_error("UCX_NPRDMA_%s: '%.80s' is not valid, expected: 0, or "
              "SIZE[,%s] with a SIZE from %s", spec->name, text, options,
              spec->range);
    return UCS_ERR_INVALID_PARAM;
}

ucs_status_t uct_nprdma_keep_parse(const char *malloc_keep,
                                   const char *lazy_unmap,
                                   uct_nprdma_keep_t *keep)
{
    ucs_status_t status;
    int option;

    status = uct_nprdma_keep_parse_one(&uct_nprdma_malloc_keep, malloc_keep,
                                       &keep->malloc_keep, &option);
    if (status != UCS_OK) {
        return status;
    }

    keep->malloc_keep_all = (option == UCT_NPRDMA_MALLOC_KEEP_ALL);
    status = uct_nprdma_keep_parse_one(&uct_nprdma_lazy_unmap, lazy_unmap,
                                       &keep->lazy_limit, &option);
    keep->lazy_open = (option == UCT_NPRDMA_LAZY_ZEROED);
    return status;
}
