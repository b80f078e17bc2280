/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_dump.h"
#include "nprdma_key.h"
#include "nprdma_svc_wire.h"
#include "nprdma_wire.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Most bytes of a payload in a dump */
#define UCT_NPRDMA_DUMP_BYTES  16u

#define UCT_NPRDMA_DUMP_NUM(_array) (sizeof(_array) / sizeof((_array)[0]))

typedef struct uct_nprdma_dump_field {
    const char        *name;     /* "" for the first one */
    size_t            offset;
    size_t            size;      /* Up to 8: a number, else bytes */
    const char *const *values;   /* Names of values, or NULL */
    size_t            num_values;
} uct_nprdma_dump_field_t;

struct uct_nprdma_dump_format {
    const char                    *name;
    size_t                        size; /* Of the header */
    const uct_nprdma_dump_field_t *fields;
    size_t                        num_fields;
};

/* The text so far. A fixed ucs_string_buffer_t does not serve: that of UCX 1.13
 * keeps a flag in the lowest bit of the capacity, so it wastes a byte of a
 * buffer of odd size and writes in front of a buffer of one byte. */
typedef struct uct_nprdma_dump_text {
    char   *buf;
    size_t max;
    size_t used;    /* Without the terminating byte */
} uct_nprdma_dump_text_t;

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "fields of all sizes are read into 64 bits");

#define UCT_NPRDMA_DUMP_FIELD_OF(_type, _member, _name, _values, _num) \
    {_name, offsetof(_type, _member), sizeof(((_type*)NULL)->_member), \
     _values, _num}

#define UCT_NPRDMA_DUMP_FIELD(_type, _member) \
    UCT_NPRDMA_DUMP_FIELD_OF(_type, _member, #_member, NULL, 0)

#define UCT_NPRDMA_DUMP_ENUM(_type, _member, _name, _values) \
    UCT_NPRDMA_DUMP_FIELD_OF(_type, _member, _name, _values, \
                             UCT_NPRDMA_DUMP_NUM(_values))

#define UCT_NPRDMA_DUMP_FORMAT(_name, _text, _type, _fields) \
    static const uct_nprdma_dump_format_t _fields##_format = { \
        _text, sizeof(_type), _fields, UCT_NPRDMA_DUMP_NUM(_fields) \
    }; \
    const uct_nprdma_dump_format_t *const _name = &_fields##_format


static const char *const uct_nprdma_dump_am_types[] = {
    [UCT_NPRDMA_AM_DATA] = "DATA",
    [UCT_NPRDMA_AM_FIN]  = "FIN"
};

static const uct_nprdma_dump_field_t uct_nprdma_dump_am[] = {
    UCT_NPRDMA_DUMP_ENUM(uct_nprdma_am_hdr_t, type, "",
                         uct_nprdma_dump_am_types),
    UCT_NPRDMA_DUMP_FIELD(uct_nprdma_am_hdr_t, am_id),
    UCT_NPRDMA_DUMP_FIELD(uct_nprdma_am_hdr_t, follows),
    UCT_NPRDMA_DUMP_FIELD(uct_nprdma_am_hdr_t, length)
};

UCT_NPRDMA_DUMP_FORMAT(uct_nprdma_am_dump, "am", uct_nprdma_am_hdr_t,
                       uct_nprdma_dump_am);

static const char *const uct_nprdma_dump_cm_types[] = {
    [UCT_NPRDMA_CM_REQ] = "REQ",
    [UCT_NPRDMA_CM_REP] = "REP",
    [UCT_NPRDMA_CM_RTU] = "RTU",
    [UCT_NPRDMA_CM_REJ] = "REJ",
    [UCT_NPRDMA_CM_RST] = "RST"
};

static const char *const uct_nprdma_dump_kinds[] = {
    [UCT_NPRDMA_CONN_AM]   = "am",
    [UCT_NPRDMA_CONN_SVC]  = "svc",
    [UCT_NPRDMA_CONN_BULK] = "bulk"
};

static const char *const uct_nprdma_dump_reasons[] = {
    [UCT_NPRDMA_CM_REASON_NONE]   = "none",
    [UCT_NPRDMA_CM_REASON_STALE]  = "stale",
    [UCT_NPRDMA_CM_REASON_NO_RES] = "no_resource"
};

static const uct_nprdma_dump_field_t uct_nprdma_dump_cm[] = {
    UCT_NPRDMA_DUMP_ENUM(uct_nprdma_cm_packet_t, type, "",
                         uct_nprdma_dump_cm_types),
    UCT_NPRDMA_DUMP_FIELD(uct_nprdma_cm_packet_t, magic),
    UCT_NPRDMA_DUMP_FIELD(uct_nprdma_cm_packet_t, version),
    UCT_NPRDMA_DUMP_ENUM(uct_nprdma_cm_packet_t, kind, "kind",
                         uct_nprdma_dump_kinds),
    UCT_NPRDMA_DUMP_ENUM(uct_nprdma_cm_packet_t, reason, "reason",
                         uct_nprdma_dump_reasons),
    UCT_NPRDMA_DUMP_FIELD(uct_nprdma_cm_packet_t, src_nonce),
    UCT_NPRDMA_DUMP_FIELD(uct_nprdma_cm_packet_t, dst_nonce),
    UCT_NPRDMA_DUMP_FIELD(uct_nprdma_cm_packet_t, conn_id),
    UCT_NPRDMA_DUMP_FIELD(uct_nprdma_cm_packet_t, am_id),
    UCT_NPRDMA_DUMP_FIELD(uct_nprdma_cm_packet_t, ud_qpn),
    UCT_NPRDMA_DUMP_FIELD(uct_nprdma_cm_packet_t, qp.qpn),
    UCT_NPRDMA_DUMP_FIELD(uct_nprdma_cm_packet_t, qp.psn),
    UCT_NPRDMA_DUMP_FIELD(uct_nprdma_cm_packet_t, qp.dev)
};

UCT_NPRDMA_DUMP_FORMAT(uct_nprdma_cm_dump, "cm", uct_nprdma_cm_packet_t,
                       uct_nprdma_dump_cm);

static const uct_nprdma_dump_field_t uct_nprdma_dump_dev_addr[] = {
    UCT_NPRDMA_DUMP_FIELD(uct_nprdma_dev_addr_t, version),
    UCT_NPRDMA_DUMP_FIELD(uct_nprdma_dev_addr_t, flags),
    UCT_NPRDMA_DUMP_FIELD(uct_nprdma_dev_addr_t, lid),
    UCT_NPRDMA_DUMP_FIELD(uct_nprdma_dev_addr_t, mtu),
    UCT_NPRDMA_DUMP_FIELD(uct_nprdma_dev_addr_t, gid)
};

UCT_NPRDMA_DUMP_FORMAT(uct_nprdma_dev_addr_dump, "dev", uct_nprdma_dev_addr_t,
                       uct_nprdma_dump_dev_addr);

static const uct_nprdma_dump_field_t uct_nprdma_dump_iface_addr[] = {
    UCT_NPRDMA_DUMP_FIELD(uct_nprdma_iface_addr_t, version),
    UCT_NPRDMA_DUMP_FIELD(uct_nprdma_iface_addr_t, ud_qpn),
    UCT_NPRDMA_DUMP_FIELD(uct_nprdma_iface_addr_t, nonce)
};

UCT_NPRDMA_DUMP_FORMAT(uct_nprdma_iface_addr_dump, "iface",
                       uct_nprdma_iface_addr_t, uct_nprdma_dump_iface_addr);

static const uct_nprdma_dump_field_t uct_nprdma_dump_key[] = {
    UCT_NPRDMA_DUMP_FIELD(uct_nprdma_packed_rkey_t, version),
    UCT_NPRDMA_DUMP_FIELD(uct_nprdma_packed_rkey_t, flags),
    UCT_NPRDMA_DUMP_FIELD(uct_nprdma_packed_rkey_t, key),
    UCT_NPRDMA_DUMP_FIELD(uct_nprdma_packed_rkey_t, address),
    UCT_NPRDMA_DUMP_FIELD(uct_nprdma_packed_rkey_t, length),
    UCT_NPRDMA_DUMP_FIELD(uct_nprdma_packed_rkey_t, r_rkey),
    UCT_NPRDMA_DUMP_FIELD(uct_nprdma_packed_rkey_t, w_rkey),
    UCT_NPRDMA_DUMP_FIELD(uct_nprdma_packed_rkey_t, s_rkey),
    UCT_NPRDMA_DUMP_FIELD(uct_nprdma_packed_rkey_t, region_address),
    UCT_NPRDMA_DUMP_FIELD(uct_nprdma_packed_rkey_t, region_id),
    UCT_NPRDMA_DUMP_FIELD(uct_nprdma_packed_rkey_t, signature)
};

UCT_NPRDMA_DUMP_FORMAT(uct_nprdma_key_dump, "key", uct_nprdma_packed_rkey_t,
                       uct_nprdma_dump_key);

static const char *const uct_nprdma_dump_svc_types[] = {
    [UCT_NPRDMA_SVC_STORE]    = "STORE",
    [UCT_NPRDMA_SVC_FETCH]    = "FETCH",
    [UCT_NPRDMA_SVC_ATOMIC]   = "ATOMIC",
    [UCT_NPRDMA_SVC_NOP]      = "NOP",
    [UCT_NPRDMA_SVC_FIN]      = "FIN",
    [UCT_NPRDMA_SVC_REPLY]    = "REPLY",
    [UCT_NPRDMA_SVC_POPULATE] = "POPULATE"
};

static const uct_nprdma_dump_field_t uct_nprdma_dump_svc_request[] = {
    UCT_NPRDMA_DUMP_ENUM(uct_nprdma_svc_request_t, type, "",
                         uct_nprdma_dump_svc_types),
    UCT_NPRDMA_DUMP_FIELD(uct_nprdma_svc_request_t, sn),
    UCT_NPRDMA_DUMP_FIELD(uct_nprdma_svc_request_t, flags),
    UCT_NPRDMA_DUMP_FIELD(uct_nprdma_svc_request_t, op),
    UCT_NPRDMA_DUMP_FIELD(uct_nprdma_svc_request_t, key),
    UCT_NPRDMA_DUMP_FIELD(uct_nprdma_svc_request_t, address),
    UCT_NPRDMA_DUMP_FIELD(uct_nprdma_svc_request_t, length),
    UCT_NPRDMA_DUMP_FIELD(uct_nprdma_svc_request_t, prefetch)
};

UCT_NPRDMA_DUMP_FORMAT(uct_nprdma_svc_request_dump, "svc",
                       uct_nprdma_svc_request_t, uct_nprdma_dump_svc_request);

static const char *const uct_nprdma_dump_statuses[] = {
    [UCT_NPRDMA_SVC_OK]         = "ok",
    [UCT_NPRDMA_SVC_ERR_KEY]    = "bad_key",
    [UCT_NPRDMA_SVC_ERR_RANGE]  = "bad_range",
    [UCT_NPRDMA_SVC_ERR_ACCESS] = "no_access",
    [UCT_NPRDMA_SVC_ERR_FAULT]  = "fault",
    [UCT_NPRDMA_SVC_ERR_ALIGN]  = "unaligned",
    [UCT_NPRDMA_SVC_ERR_VIEW] = "no_view"
};

static const uct_nprdma_dump_field_t uct_nprdma_dump_svc_reply[] = {
    UCT_NPRDMA_DUMP_ENUM(uct_nprdma_svc_reply_t, type, "",
                         uct_nprdma_dump_svc_types),
    UCT_NPRDMA_DUMP_FIELD(uct_nprdma_svc_reply_t, sn),
    UCT_NPRDMA_DUMP_ENUM(uct_nprdma_svc_reply_t, status, "status",
                         uct_nprdma_dump_statuses),
    UCT_NPRDMA_DUMP_FIELD(uct_nprdma_svc_reply_t, length),
    UCT_NPRDMA_DUMP_FIELD(uct_nprdma_svc_reply_t, failed_sn),
    UCT_NPRDMA_DUMP_ENUM(uct_nprdma_svc_reply_t, failed_status, "status",
                         uct_nprdma_dump_statuses)
};

UCT_NPRDMA_DUMP_FORMAT(uct_nprdma_svc_reply_dump, "svc",
                       uct_nprdma_svc_reply_t, uct_nprdma_dump_svc_reply);

/* The page states are data */
static const uct_nprdma_dump_field_t uct_nprdma_dump_svc_populated[] = {
    UCT_NPRDMA_DUMP_FIELD(uct_nprdma_svc_populated_t, length)
};

UCT_NPRDMA_DUMP_FORMAT(uct_nprdma_svc_populated_dump, "populated",
                       uct_nprdma_svc_populated_t,
                       uct_nprdma_dump_svc_populated);

static void __attribute__((format(printf, 2, 3)))
uct_nprdma_dump_add(uct_nprdma_dump_text_t *text, const char *format, ...)
{
    size_t left = text->max - text->used;
    va_list ap;
    int length;

    if (left == 0) {
        return; /* Only if max is 0: the terminating byte has a place */
    }

    va_start(ap, format);
    length = vsnprintf(text->buf + text->used, left, format, ap);
    va_end(ap);
    if (length > 0) {
        text->used += ((size_t)length < left) ? (size_t)length : (left - 1);
    }
}

/* Add the first bytes of something; nothing if it is empty */
static void uct_nprdma_dump_bytes(uct_nprdma_dump_text_t *text,
                                  const char *name, const uint8_t *bytes,
                                  size_t length, size_t max)
{
    size_t i;

    for (i = 0; (i < length) && (i < max); ++i) {
        uct_nprdma_dump_add(text, "%s%s%02x", (i == 0) ? " " : "",
                            (i == 0) ? name : "", bytes[i]);
    }
    if (length > max) {
        uct_nprdma_dump_add(text, "... of %zu bytes", length);
    }
}

static void uct_nprdma_dump_field(uct_nprdma_dump_text_t *text,
                                  const uct_nprdma_dump_field_t *field,
                                  const uint8_t *header)
{
    const char *separator = (field->name[0] == '\0') ? "" : " ";
    uint64_t value        = 0;

    if (field->size > sizeof(value)) {
        uct_nprdma_dump_add(text, " %s", field->name);
        uct_nprdma_dump_bytes(text, "", header + field->offset, field->size,
                              field->size);
        return;
    }

    memcpy(&value, header + field->offset, field->size);
    uct_nprdma_dump_add(text, " %s%s", field->name, separator);
    if (field->values == NULL) {
        uct_nprdma_dump_add(text, "0x%" PRIx64, value);
    } else {
        uct_nprdma_dump_add(text, "%s(0x%" PRIx64 ")",
                            ((value < field->num_values) &&
                             (field->values[value] != NULL)) ?
                            field->values[value] : "?", value);
    }
}

const char *uct_nprdma_dump(const uct_nprdma_dump_format_t *format, char *buf,
                            size_t max, const void *packet, size_t length)
{
    uct_nprdma_dump_text_t text = { .buf = buf, .max = max };
    const uint8_t *bytes        = packet;
    size_t i;

    uct_nprdma_dump_add(&text, "%s", format->name);
    if (length < format->size) {
        uct_nprdma_dump_add(&text, " truncated: %zu of %zu bytes", length,
                            format->size);
        uct_nprdma_dump_bytes(&text, "data ", bytes, length,
                              UCT_NPRDMA_DUMP_BYTES);
        return buf;
    }

    for (i = 0; i < format->num_fields; ++i) {
        uct_nprdma_dump_field(&text, &format->fields[i], bytes);
    }
    uct_nprdma_dump_bytes(&text, "data ", bytes + format->size,
                          length - format->size, UCT_NPRDMA_DUMP_BYTES);
    return buf;
}
