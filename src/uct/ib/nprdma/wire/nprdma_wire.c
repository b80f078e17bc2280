/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_wire.h"

#include <string.h>

static int uct_nprdma_dev_addr_is_valid(const uct_nprdma_dev_addr_t *dev)
{
    return (dev->version == UCT_NPRDMA_WIRE_VERSION) && (dev->mtu >= 1) &&
           (dev->mtu <= 5);
}

int uct_nprdma_cm_parse(const void *data, size_t length,
                        uct_nprdma_cm_packet_t *packet)
{
    if (length != sizeof(*packet)) {
        return 0;
    }

    /* QPNs and PSNs have 24 bits. QP 0 and 1 are reserved by InfiniBand. */
    memcpy(packet, data, sizeof(*packet));
    if ((packet->magic != UCT_NPRDMA_CM_MAGIC) ||
        (packet->version != UCT_NPRDMA_WIRE_VERSION) ||
        (packet->type < UCT_NPRDMA_CM_REQ) ||
        (packet->type >= UCT_NPRDMA_CM_TYPE_LAST) ||
        (packet->kind >= UCT_NPRDMA_CONN_KIND_LAST) ||
        (packet->reason >= UCT_NPRDMA_CM_REASON_LAST) ||
        (packet->ud_qpn >> 24) || (packet->ud_qpn < 2) ||
        (packet->qp.qpn >> 24) || (packet->qp.psn >> 24)) {
        return 0;
    }

    /* Only REQ and REP carry the address of a QP to connect to */
    return ((packet->type != UCT_NPRDMA_CM_REQ) &&
            (packet->type != UCT_NPRDMA_CM_REP)) ||
           ((packet->qp.qpn >= 2) &&
            uct_nprdma_dev_addr_is_valid(&packet->qp.dev));
}

int uct_nprdma_am_parse(const void *data, size_t length)
{
    uct_nprdma_am_hdr_t hdr;

    if (length < sizeof(hdr)) {
        return -1;
    }

    memcpy(&hdr, data, sizeof(hdr));
    if (hdr.length != (length - sizeof(hdr))) {
        return -1;
    }

    if (hdr.type == UCT_NPRDMA_AM_FIN) {
        return (hdr.length == 0) ? UCT_NPRDMA_AM_FIN : -1;
    }

    if ((hdr.type != UCT_NPRDMA_AM_DATA) ||
        (hdr.am_id >= UCT_NPRDMA_AM_ID_MAX)) {
        return -1;
    }

    return UCT_NPRDMA_AM_DATA;
}

void uct_nprdma_sock_trailer_init(void *buf, const uct_nprdma_dev_addr_t *dev)
{
    const uct_nprdma_sock_trailer_t trailer = {
        .magic = UCT_NPRDMA_SOCK_MAGIC,
        .dev   = *dev
    };

    memcpy(buf, &trailer, sizeof(trailer));
}

int uct_nprdma_sock_trailer_find(const void *data, size_t length,
                                 uct_nprdma_dev_addr_t *dev)
{
    uct_nprdma_sock_trailer_t trailer;

    if (length < sizeof(trailer)) {
        return 0;
    }

    memcpy(&trailer, (const char*)data + length - sizeof(trailer),
           sizeof(trailer));
    *dev = trailer.dev;
    return (trailer.magic == UCT_NPRDMA_SOCK_MAGIC) &&
           uct_nprdma_dev_addr_is_valid(dev);
}
