/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_ITEMS_H_
#define UCT_NPRDMA_ITEMS_H_

#include <ucs/config/parser.h>

/* Set fields of a structure from items NAME:VALUE between commas. `fields` ends
 * with a NULL name; none of its values owns memory. One log line names the
 * variable and the invalid item. */
ucs_status_t
uct_nprdma_items_parse(const char *variable, const char *text,
                       const ucs_config_field_t *fields, void *dest);

#endif
