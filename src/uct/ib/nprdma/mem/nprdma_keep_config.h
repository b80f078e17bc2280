/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_KEEP_CONFIG_H_
#define UCT_NPRDMA_KEEP_CONFIG_H_

#include <ucs/type/status.h>

#include <stddef.h>

/** UCX_NPRDMA_LAZY_UNMAP, parsed */
typedef struct uct_nprdma_keep {
    size_t lazy_limit; /* bytes; 0: keep nothing */
    int    lazy_open;  /* nonzero: what is kept stays accessible */
} uct_nprdma_keep_t;


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
 * Parse the variable. The size is UCX's (digits and a unit), except that one
 * that does not fit into size_t is an error, and neither "inf" nor "auto" is a
 * size.
 *
 * @param [in]  text  Value of UCX_NPRDMA_LAZY_UNMAP.
 * @param [out] keep  Filled.
 *
 * @return UCS_OK, or UCS_ERR_INVALID_PARAM after an error that names variable
 *         and value.
 */
ucs_status_t uct_nprdma_keep_parse(const char *text, uct_nprdma_keep_t *keep);

#endif
