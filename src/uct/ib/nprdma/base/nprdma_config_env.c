/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_config.h"

#include <ucs/config/parser.h>
#include <ucs/debug/log.h>
#include <ucs/sys/string.h>

#include <ctype.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define UCT_NPRDMA_ENV_PREFIX  "UCX_NPRDMA_"

/* Maximum number of letters of a unit: "kb", "ms". UCX ignores further ones */
#define UCT_NPRDMA_MAX_UNIT    2

/* Hash of the variables when they were found invalid; 0: never */
static atomic_uint_fast64_t uct_nprdma_config_wrong;


/* UCX ignores the rest behind a number, and wraps a number that is too large */
static int uct_nprdma_config_is_number(const char *text, unsigned long max)
{
    unsigned long value;
    char *tail;

    errno = 0;
    value = strtoul(text, &tail, 10);
    return isdigit((unsigned char)text[0]) && (*tail == '\0') && (errno == 0) &&
           (value <= max);
}

static int uct_nprdma_config_is_real(const char *text)
{
    char *tail;

    strtod(text, &tail);
    return (tail != text) && (*tail == '\0');
}

/* @return What follows the size; NULL if there is none, or if it does not fit
 *         into size_t: UCX wraps that. */
static const char *uct_nprdma_config_parse_size(const char *text,
                                                size_t *size_p)
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

/* UCX takes "-1" for the largest value, wraps as above and ignores letters
 * behind the second. "inf" and "auto" are valid for it. */
static int uct_nprdma_config_is_size(const char *text)
{
    const char *tail;
    size_t size;

    tail = uct_nprdma_config_parse_size(text, &size);
    return ((tail != NULL) && (*tail == '\0')) || !strcasecmp(text, "inf") ||
           !strcasecmp(text, "auto");
}

static int uct_nprdma_config_is_time(const char *text)
{
    char *tail;

    strtod(text, &tail);
    return (tail != text) && (strlen(tail) <= UCT_NPRDMA_MAX_UNIT);
}

static int uct_nprdma_config_parse(const ucs_config_field_t *field,
                                   const char *text, void *dest)
{
    if (((field->parser.read == ucs_config_sscanf_uint) &&
         !uct_nprdma_config_is_number(text, UINT_MAX)) ||
        ((field->parser.read == ucs_config_sscanf_ulong) &&
         !uct_nprdma_config_is_number(text, ULONG_MAX)) ||
        ((field->parser.read == ucs_config_sscanf_double) &&
         !uct_nprdma_config_is_real(text)) ||
        ((field->parser.read == ucs_config_sscanf_memunits) &&
         !uct_nprdma_config_is_size(text)) ||
        ((field->parser.read == ucs_config_sscanf_time) &&
         !uct_nprdma_config_is_time(text))) {
        return 0;
    }

    return field->parser.read(text, dest, field->parser.arg);
}

static void
uct_nprdma_config_release(const ucs_config_field_t *fields,
                          const ucs_config_field_t *end, void *config)
{
    const ucs_config_field_t *field;

    for (field = fields; field != end; ++field) {
        if ((field->dfl_value != NULL) && (field->name[0] != '\0')) {
            field->parser.release(UCS_PTR_BYTE_OFFSET(config, field->offset),
                                  field->parser.arg);
        }
    }
}

/* Read the fields of a table, except those of its nested tables, which belong
 * to UCX.
 *
 * @return First field that was not read: the end, or an invalid field. */
static const ucs_config_field_t *
uct_nprdma_config_read(const ucs_config_field_t *fields, void *config)
{
    const ucs_config_field_t *field;
    char name[128], help[256];
    const char *text;

    for (field = fields; field->name != NULL; ++field) {
        if ((field->dfl_value == NULL) || (field->name[0] == '\0')) {
            continue;
        }

        ucs_snprintf_zero(name, sizeof(name), UCT_NPRDMA_ENV_PREFIX "%s",
                          field->name);
        text = getenv(name);
        if (text == NULL) {
            text = field->dfl_value;
        }

        if (!uct_nprdma_config_parse(field, text,
                                     UCS_PTR_BYTE_OFFSET(config,
                                                         field->offset))) {
            field->parser.help(help, sizeof(help), field->parser.arg);
            ucs_error("%s: '%.80s' is not valid, expected: %s", name, text,
                      help);
            break;
        }
    }

    return field;
}

static ucs_status_t uct_nprdma_config_check_env_md(void)
{
    uct_nprdma_md_config_t config = {};
    const ucs_config_field_t *end;
    ucs_status_t status;

    end    = uct_nprdma_config_read(uct_nprdma_md_config_table, &config);
    status = (end->name == NULL) ? uct_nprdma_md_check_config(&config) :
                                   UCS_ERR_INVALID_PARAM;
    uct_nprdma_config_release(uct_nprdma_md_config_table, end, &config);
    return status;
}

static ucs_status_t uct_nprdma_config_check_env_iface(void)
{
    uct_nprdma_iface_config_t config = {};
    const ucs_config_field_t *end;
    ucs_status_t status;

    end    = uct_nprdma_config_read(uct_nprdma_iface_config_table, &config);
    status = (end->name == NULL) ? uct_nprdma_iface_check_config(&config) :
                                   UCS_ERR_INVALID_PARAM;
    uct_nprdma_config_release(uct_nprdma_iface_config_table, end, &config);
    return status;
}

/* @return FNV-1a hash of the variables UCX_NPRDMA_xx, never 0. */
static uint64_t uct_nprdma_config_env_hash(void)
{
    static const size_t prefix_len = sizeof(UCT_NPRDMA_ENV_PREFIX) - 1;
    uint64_t hash                  = 0xcbf29ce484222325ull;
    const char *c;
    char **var;

    for (var = environ; (var != NULL) && (*var != NULL); ++var) {
        if (strncmp(*var, UCT_NPRDMA_ENV_PREFIX, prefix_len)) {
            continue;
        }

        c = *var;
        do {
            hash = (hash ^ (unsigned char)*c) * 0x100000001b3ull;
        } while (*c++ != '\0');
    }
    return hash | 1;
}

ucs_status_t uct_nprdma_config_check_env(void)
{
    uint64_t hash = uct_nprdma_config_env_hash();
    ucs_status_t status;

    if (atomic_load(&uct_nprdma_config_wrong) == hash) {
        return UCS_ERR_INVALID_PARAM;
    }

    status = uct_nprdma_config_check_env_md();
    if (status == UCS_OK) {
        status = uct_nprdma_config_check_env_iface();
    }

    if (status != UCS_OK) {
        atomic_store(&uct_nprdma_config_wrong, hash);
    }
    return status;
}
