/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_KEEP_CONFIG_H_
#define UCT_NPRDMA_KEEP_CONFIG_H_

#include <ucs/type/status.h>

#include <stddef.h>

/* Values of variables that say how much memory to keep: SIZE[,OPTION] */


/** What is valid for a variable */
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

/** UCX_NPRDMA_MALLOC_KEEP */
extern const uct_nprdma_keep_spec_t uct_nprdma_malloc_keep;

/** UCX_NPRDMA_LAZY_UNMAP */
extern const uct_nprdma_keep_spec_t uct_nprdma_lazy_unmap;


/**
 * Parse a size of UCX: digits and a unit. UCX wraps what does not fit.
 *
 * @param [in]  text    Begins with the size.
 * @param [out] size_p  Bytes.
 *
 * @return What follows the size; NULL if there is none, or if it does not fit
 *         into size_t.
 */
const char *uct_nprdma_keep_parse_size(const char *text, size_t *size_p);


/**
 * Parse a value. Sizes are UCX's (digits and a unit), except that one that does
 * not fit into size_t is an error, and neither "inf" nor "auto" is a size.
 *
 * @param [in]  spec      What is valid.
 * @param [in]  text      Value.
 * @param [out] size_p    Bytes; 0: keep nothing.
 * @param [out] option_p  Index of the option, or UCT_NPRDMA_KEEP_NO_OPTION.
 *
 * @return UCS_OK, or UCS_ERR_INVALID_PARAM after an error that names variable
 *         and value.
 */
ucs_status_t uct_nprdma_keep_parse(const uct_nprdma_keep_spec_t *spec,
                                   const char *text, size_t *size_p,
                                   int *option_p);

#endif
