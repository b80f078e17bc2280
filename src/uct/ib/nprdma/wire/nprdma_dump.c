/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_dump.h"
#include "nprdma_key.h"
#include "nprdma_svc_wire.h"
#include "nprdma_wire.h"

#include "ucm/access/nprdma_access.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Maximum number of bytes of a payload, and of page states, in a dump */
#define UCT_NPRDMA_DUMP_BYTES   8u
#define UCT_NPRDMA_DUMP_STATES  8u

/* The text so far. A fixed ucs_string_buffer_t does not serve: that of UCX 1.13
 * keeps a flag in the lowest bit of the capacity, so it wastes a byte of a
 * buffer of odd size and writes in front of a buffer of one byte. */
typedef struct uct_nprdma_dump {
    char   *buf;
    size_t max;
    size_t used;    /* Without the terminating byte */
} uct_nprdma_dump_t;

#define UCT_NPRDMA_DUMP_NAME(_names, _value) \
    uct_nprdma_dump_name(_names, sizeof(_names) / sizeof((_names)[0]), _value)


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

static const char *const uct_nprdma_dump_svc_types[] = {
    [UCT_NPRDMA_SVC_STORE]    = "STORE",
    [UCT_NPRDMA_SVC_FETCH]    = "FETCH",
    [UCT_NPRDMA_SVC_ATOMIC]   = "ATOMIC",
    [UCT_NPRDMA_SVC_NOP]      = "NOP",
    [UCT_NPRDMA_SVC_FIN]      = "FIN",
    [UCT_NPRDMA_SVC_REPLY]    = "REPLY",
    [UCT_NPRDMA_SVC_POPULATE] = "POPULATE"
};

static const char *const uct_nprdma_dump_statuses[] = {
    [UCT_NPRDMA_SVC_OK]         = "ok",
    [UCT_NPRDMA_SVC_ERR_KEY]    = "bad_key",
    [UCT_NPRDMA_SVC_ERR_RANGE]  = "bad_range",
    [UCT_NPRDMA_SVC_ERR_ACCESS] = "no_access",
    [UCT_NPRDMA_SVC_ERR_FAULT]  = "fault",
    [UCT_NPRDMA_SVC_ERR_ALIGN]  = "unaligned",
    [UCT_NPRDMA_SVC_ERR_WINDOW] = "no_window"
};

static const char *const uct_nprdma_dump_atomics[] = {
    [NPRDMA_ATOMIC_ADD]   = "add",
    [NPRDMA_ATOMIC_AND]   = "and",
    [NPRDMA_ATOMIC_OR]    = "or",
    [NPRDMA_ATOMIC_XOR]   = "xor",
    [NPRDMA_ATOMIC_SWAP]  = "swap",
    [NPRDMA_ATOMIC_CSWAP] = "cswap"
};


static const char *uct_nprdma_dump_name(const char *const *names, size_t count,
                                        unsigned value)
{
    return ((value < count) && (names[value] != NULL)) ? names[value] : "?";
}

static void __attribute__((format(printf, 2, 3)))
uct_nprdma_dump_add(uct_nprdma_dump_t *dump, const char *format, ...)
{
    size_t left = dump->max - dump->used;
    va_list ap;
    int length;

    if (left == 0) {
        return; /* Only if max is 0: the terminating byte has a place */
    }

    va_start(ap, format);
    length = vsnprintf(dump->buf + dump->used, left, format, ap);
    va_end(ap);
    if (length > 0) {
        dump->used += ((size_t)length < left) ? (size_t)length : (left - 1);
    }
}

/* Add the first bytes of what is behind a header; nothing if it is empty */
static void uct_nprdma_dump_bytes(uct_nprdma_dump_t *dump, const void *data,
                                  size_t length)
{
    const uint8_t *bytes = data;
    size_t i;

    if (length == 0) {
        return;
    }

    uct_nprdma_dump_add(dump, " data");
    for (i = 0; (i < length) && (i < UCT_NPRDMA_DUMP_BYTES); ++i) {
        uct_nprdma_dump_add(dump, " %02x", bytes[i]);
    }
    if (length > UCT_NPRDMA_DUMP_BYTES) {
        uct_nprdma_dump_add(dump, " ...");
    }
}

/*
 * Begin a dump and copy the header of the packet.
 *
 * @return Zero if the packet is shorter than its header; then the dump is
 *         complete.
 */
static int uct_nprdma_dump_begin(uct_nprdma_dump_t *dump, char *buf, size_t max,
                                 const char *name, const void *packet,
                                 size_t length, void *hdr, size_t hdr_length)
{
    dump->buf  = buf;
    dump->max  = max;
    dump->used = 0;
    uct_nprdma_dump_add(dump, "%s", name);
    if (length < hdr_length) {
        uct_nprdma_dump_add(dump, " truncated: %zu of %zu bytes", length,
                            hdr_length);
        uct_nprdma_dump_bytes(dump, packet, length);
        return 0;
    }

    memcpy(hdr, packet, hdr_length);
    return 1;
}

/* End the dump of a packet with payload */
static const char *
uct_nprdma_dump_payload(uct_nprdma_dump_t *dump, const void *packet,
                        size_t length, size_t hdr_length)
{
    uct_nprdma_dump_bytes(dump, (const char*)packet + hdr_length,
                          length - hdr_length);
    return dump->buf;
}

/* End the dump of a packet of fixed size */
static const char *
uct_nprdma_dump_end(uct_nprdma_dump_t *dump, size_t length, size_t hdr_length)
{
    if (length > hdr_length) {
        uct_nprdma_dump_add(dump, " and %zu bytes more", length - hdr_length);
    }
    return dump->buf;
}

const char *uct_nprdma_am_dump(char *buf, size_t max, const void *packet,
                               size_t length)
{
    uct_nprdma_dump_t dump;
    uct_nprdma_am_hdr_t hdr;

    if (!uct_nprdma_dump_begin(&dump, buf, max, "am", packet, length, &hdr,
                               sizeof(hdr))) {
        return buf;
    }

    if (hdr.type == UCT_NPRDMA_AM_DATA) {
        uct_nprdma_dump_add(&dump, " DATA");
    } else if (hdr.type == UCT_NPRDMA_AM_FIN) {
        uct_nprdma_dump_add(&dump, " FIN");
    } else {
        uct_nprdma_dump_add(&dump, " ?(0x%x)", hdr.type);
    }
    uct_nprdma_dump_add(&dump, " id %u length %u", hdr.am_id, hdr.length);
    return uct_nprdma_dump_payload(&dump, packet, length, sizeof(hdr));
}

static void uct_nprdma_dump_add_dev_addr(uct_nprdma_dump_t *dump,
                                         const uct_nprdma_dev_addr_t *addr)
{
    size_t i;

    uct_nprdma_dump_add(dump, "version %u flags 0x%x lid %u mtu %u gid ",
                        addr->version, addr->flags, addr->lid, addr->mtu);
    for (i = 0; i < sizeof(addr->gid); ++i) {
        uct_nprdma_dump_add(dump, "%02x", addr->gid[i]);
    }
}

const char *uct_nprdma_cm_dump(char *buf, size_t max, const void *packet,
                               size_t length)
{
    uct_nprdma_dump_t dump;
    uct_nprdma_cm_packet_t cm;

    if (!uct_nprdma_dump_begin(&dump, buf, max, "cm", packet, length, &cm,
                               sizeof(cm))) {
        return buf;
    }

    if (cm.magic != UCT_NPRDMA_CM_MAGIC) {
        uct_nprdma_dump_add(&dump, " magic 0x%x", cm.magic);
    }
    uct_nprdma_dump_add(
            &dump,
            " %s(%u) version %u kind %s(%u) reason %s(%u) from 0x%" PRIx64
            " to 0x%" PRIx64 " conn 0x%x am 0x%x ud_qpn 0x%x qpn 0x%x psn 0x%x "
            "dev ",
            UCT_NPRDMA_DUMP_NAME(uct_nprdma_dump_cm_types, cm.type), cm.type,
            cm.version, UCT_NPRDMA_DUMP_NAME(uct_nprdma_dump_kinds, cm.kind),
            cm.kind, UCT_NPRDMA_DUMP_NAME(uct_nprdma_dump_reasons, cm.reason),
            cm.reason, cm.src_nonce, cm.dst_nonce, cm.conn_id, cm.am_id,
            cm.ud_qpn, cm.qp.qpn, cm.qp.psn);
    uct_nprdma_dump_add_dev_addr(&dump, &cm.qp.dev);
    return uct_nprdma_dump_end(&dump, length, sizeof(cm));
}

const char *uct_nprdma_dev_addr_dump(char *buf, size_t max, const void *packet,
                                     size_t length)
{
    uct_nprdma_dump_t dump;
    uct_nprdma_dev_addr_t addr;

    if (!uct_nprdma_dump_begin(&dump, buf, max, "dev", packet, length, &addr,
                               sizeof(addr))) {
        return buf;
    }

    uct_nprdma_dump_add(&dump, " ");
    uct_nprdma_dump_add_dev_addr(&dump, &addr);
    return uct_nprdma_dump_end(&dump, length, sizeof(addr));
}

const char *uct_nprdma_iface_addr_dump(char *buf, size_t max,
                                       const void *packet, size_t length)
{
    uct_nprdma_dump_t dump;
    uct_nprdma_iface_addr_t addr;

    if (!uct_nprdma_dump_begin(&dump, buf, max, "iface", packet, length, &addr,
                               sizeof(addr))) {
        return buf;
    }

    uct_nprdma_dump_add(&dump, " version %u ud_qpn 0x%x nonce 0x%" PRIx64,
                        addr.version, addr.ud_qpn, addr.nonce);
    return uct_nprdma_dump_end(&dump, length, sizeof(addr));
}

const char *uct_nprdma_key_dump(char *buf, size_t max, const void *packet,
                                size_t length)
{
    uct_nprdma_packed_rkey_t key;
    uct_nprdma_dump_t dump;

    if (!uct_nprdma_dump_begin(&dump, buf, max, "key", packet, length, &key,
                               sizeof(key))) {
        return buf;
    }

    uct_nprdma_dump_add(&dump,
                        " version %u flags 0x%x key 0x%" PRIx64
                        " address 0x%" PRIx64 " length %" PRIu64
                        " rkeys r 0x%x w 0x%x s 0x%x region 0x%" PRIx64
                        " id %" PRIu64 " signature 0x%" PRIx64,
                        key.version, key.flags, key.key, key.address,
                        key.length, key.r_rkey, key.w_rkey, key.s_rkey,
                        key.region_address, key.region_id, key.signature);
    return uct_nprdma_dump_end(&dump, length, sizeof(key));
}

/* Add the operation of an ATOMIC, or the flags of other requests */
static void
uct_nprdma_dump_add_op(uct_nprdma_dump_t *dump,
                       const uct_nprdma_svc_request_t *request)
{
    switch (request->type) {
    case UCT_NPRDMA_SVC_ATOMIC:
        uct_nprdma_dump_add(dump, " %s(%u)",
                            UCT_NPRDMA_DUMP_NAME(uct_nprdma_dump_atomics,
                                                 request->op),
                            request->op);
        break;
    case UCT_NPRDMA_SVC_POPULATE:
        uct_nprdma_dump_add(dump, " for %s(0x%x) prefetch %u",
                            (request->op & UCT_NPRDMA_SVC_POPULATE_WRITE) ?
                            "writing" : "reading", request->op,
                            request->prefetch);
        break;
    default:
        uct_nprdma_dump_add(dump, " op 0x%x", request->op);
        break;
    }
}

const char *uct_nprdma_svc_request_dump(char *buf, size_t max,
                                        const void *packet, size_t length)
{
    uct_nprdma_svc_request_t request;
    uct_nprdma_svc_operands_t operands;
    uct_nprdma_dump_t dump;

    if (!uct_nprdma_dump_begin(&dump, buf, max, "svc", packet, length, &request,
                               sizeof(request))) {
        return buf;
    }

    uct_nprdma_dump_add(&dump,
                        " %s(0x%x) sn %u flags 0x%x key 0x%" PRIx64
                        " address 0x%" PRIx64 " length %u",
                        UCT_NPRDMA_DUMP_NAME(uct_nprdma_dump_svc_types,
                                             request.type),
                        request.type, request.sn, request.flags, request.key,
                        request.address, request.length);
    uct_nprdma_dump_add_op(&dump, &request);
    if ((request.type == UCT_NPRDMA_SVC_ATOMIC) &&
        (length >= (sizeof(request) + sizeof(operands)))) {
        memcpy(&operands, (const char*)packet + sizeof(request),
               sizeof(operands));
        uct_nprdma_dump_add(&dump,
                            " value 0x%" PRIx64 " compare 0x%" PRIx64,
                            operands.value, operands.compare);
        return uct_nprdma_dump_end(&dump, length,
                                   sizeof(request) + sizeof(operands));
    }

    return uct_nprdma_dump_payload(&dump, packet, length, sizeof(request));
}

const char *uct_nprdma_svc_reply_dump(char *buf, size_t max, const void *packet,
                                      size_t length)
{
    uct_nprdma_svc_reply_t reply;
    uct_nprdma_dump_t dump;

    if (!uct_nprdma_dump_begin(&dump, buf, max, "svc", packet, length, &reply,
                               sizeof(reply))) {
        return buf;
    }

    uct_nprdma_dump_add(
            &dump, " %s(0x%x) sn %u status %s(%u) length %u",
            UCT_NPRDMA_DUMP_NAME(uct_nprdma_dump_svc_types, reply.type),
            reply.type, reply.sn,
            UCT_NPRDMA_DUMP_NAME(uct_nprdma_dump_statuses, reply.status),
            reply.status, reply.length);
    if ((reply.failed_status != UCT_NPRDMA_SVC_OK) || (reply.failed_sn != 0)) {
        uct_nprdma_dump_add(&dump, " failed sn %u status %s(%u)",
                            reply.failed_sn,
                            UCT_NPRDMA_DUMP_NAME(uct_nprdma_dump_statuses,
                                                 reply.failed_status),
                            reply.failed_status);
    }
    return uct_nprdma_dump_payload(&dump, packet, length, sizeof(reply));
}

const char *uct_nprdma_svc_populated_dump(char *buf, size_t max,
                                          const void *packet, size_t length)
{
    uct_nprdma_svc_populated_t populated;
    uct_nprdma_dump_t dump;
    uint32_t state;
    size_t i, count;

    if (!uct_nprdma_dump_begin(&dump, buf, max, "populated", packet, length,
                               &populated, sizeof(populated))) {
        return buf;
    }

    count = (length - sizeof(populated)) / sizeof(state);
    uct_nprdma_dump_add(&dump, " length %u states %zu", populated.length,
                        count);
    for (i = 0; (i < count) && (i < UCT_NPRDMA_DUMP_STATES); ++i) {
        memcpy(&state,
               (const char*)packet + sizeof(populated) + (i * sizeof(state)),
               sizeof(state));
        uct_nprdma_dump_add(&dump, " 0x%x", state);
    }
    if (count > UCT_NPRDMA_DUMP_STATES) {
        uct_nprdma_dump_add(&dump, " ...");
    }
    return uct_nprdma_dump_end(&dump, length,
                               sizeof(populated) + (count * sizeof(state)));
}
