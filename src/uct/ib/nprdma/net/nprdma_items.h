/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_ITEMS_H_
#define UCT_NPRDMA_ITEMS_H_

#include <ucs/config/parser.h>

/**
 * Set fields of a structure from items NAME:VALUE between commas.
 *
 * @param [in]    variable  Name of the variable without prefix, for messages.
 * @param [in]    text      Items; empty for none.
 * @param [in]    fields    Names, parsers and offsets; ends with a NULL name.
 *                          UCX does not know this table. None of its values
 *                          owns memory.
 * @param [inout] dest      Structure.
 *
 * @return UCS_OK, UCS_ERR_NO_MEMORY, or UCS_ERR_INVALID_PARAM. One log line
 *         names the invalid item.
 */
ucs_status_t
uct_nprdma_items_parse(const char *variable, const char *text,
                       const ucs_config_field_t *fields, void *dest);

#endif
