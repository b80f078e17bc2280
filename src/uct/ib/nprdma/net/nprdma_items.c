/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_items.h"

#include <ucs/datastruct/string_buffer.h>
#include <ucs/debug/log.h>
#include <ucs/debug/memtrack_int.h>
#include <ucs/sys/compiler.h>

#include <string.h>

static ucs_status_t
uct_nprdma_items_unknown(const char *variable, const char *item,
                         const ucs_config_field_t *fields)
{
    UCS_STRING_BUFFER_ONSTACK(names, 512);
    const ucs_config_field_t *field;

    for (field = fields; field->name != NULL; ++field) {
        ucs_string_buffer_appendf(&names, " %s", field->name);
    }

    ucs_error("UCX_NPRDMA_%s: '%.80s' is not NAME:VALUE with one of the "
              "names%s", variable, item, ucs_string_buffer_cstr(&names));
    return UCS_ERR_INVALID_PARAM;
}

/* Changes the item */
static ucs_status_t
uct_nprdma_items_parse_item(const char *variable, char *item,
                            const ucs_config_field_t *fields, void *dest)
{
    char *value = strchr(item, ':');
    const ucs_config_field_t *field;
    char help[128];

    if (value == NULL) {
        return uct_nprdma_items_unknown(variable, item, fields);
    }

    *value++ = '\0';
    for (field = fields; field->name != NULL; ++field) {
        if (strcmp(field->name, item)) {
            continue;
        }

        if (!field->parser.read(value, UCS_PTR_BYTE_OFFSET(dest, field->offset),
                                field->parser.arg)) {
            field->parser.help(help, sizeof(help), field->parser.arg);
            ucs_error("UCX_NPRDMA_%s: '%.80s' is not valid for %s, expected: "
                      "%s", variable, value, item, help);
            return UCS_ERR_INVALID_PARAM;
        }
        return UCS_OK;
    }

    return uct_nprdma_items_unknown(variable, item, fields);
}

ucs_status_t
uct_nprdma_items_parse(const char *variable, const char *text,
                       const ucs_config_field_t *fields, void *dest)
{
    ucs_status_t status = UCS_OK;
    char *copy, *rest, *item;

    if (*text == '\0') {
        return UCS_OK;
    }

    copy = rest = ucs_strdup(text, "nprdma_items");
    if (copy == NULL) {
        return UCS_ERR_NO_MEMORY;
    }

    while ((status == UCS_OK) && ((item = strsep(&rest, ",")) != NULL)) {
        status = uct_nprdma_items_parse_item(variable, item, fields, dest);
    }
    ucs_free(copy);
    return status;
}
