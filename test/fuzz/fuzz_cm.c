/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * Wire-up packets and the trailers of connections by socket address. Any peer
 * that knows the number of our UD queue pair, or our TCP port, can send one, so
 * the parsers must withstand any bytes.
 */

#include "fuzz.h"

#include "uct/ib/nprdma/wire/nprdma_wire.h"

static void fuzz_check_accepted(const void *data, size_t size,
                                const uct_nprdma_cm_packet_t *packet)
{
    FUZZ_CHECK(size == sizeof(*packet));
    FUZZ_CHECK(!memcmp(data, packet, sizeof(*packet)));
    FUZZ_CHECK(packet->magic == UCT_NPRDMA_CM_MAGIC);
    FUZZ_CHECK(packet->version == UCT_NPRDMA_WIRE_VERSION);
    FUZZ_CHECK(packet->type >= UCT_NPRDMA_CM_REQ);
    FUZZ_CHECK(packet->type < UCT_NPRDMA_CM_TYPE_LAST);
    FUZZ_CHECK(packet->kind < UCT_NPRDMA_CONN_KIND_LAST);
    FUZZ_CHECK(packet->reason < UCT_NPRDMA_CM_REASON_LAST);
    FUZZ_CHECK(packet->ud_qpn <= 0xffffff);
    if ((packet->type == UCT_NPRDMA_CM_REQ) ||
        (packet->type == UCT_NPRDMA_CM_REP)) {
        /* Values that become queue pair attributes */
        FUZZ_CHECK(packet->qp.qpn <= 0xffffff);
        FUZZ_CHECK(packet->qp.psn <= 0xffffff);
        FUZZ_CHECK((packet->qp.dev.mtu >= 1) && (packet->qp.dev.mtu <= 5));
        FUZZ_CHECK(packet->qp.dev.version == UCT_NPRDMA_WIRE_VERSION);
    }
}

static void fuzz_trailer(const char *data, size_t size)
{
    uct_nprdma_sock_trailer_t again;
    uct_nprdma_dev_addr_t dev;

    if (!uct_nprdma_sock_trailer_find(data, size, &dev)) {
        return;
    }

    FUZZ_CHECK(size >= sizeof(again));
    FUZZ_CHECK(dev.version == UCT_NPRDMA_WIRE_VERSION);
    FUZZ_CHECK((dev.mtu >= 1) && (dev.mtu <= 5));
    uct_nprdma_sock_trailer_init(&again, &dev);
    FUZZ_CHECK(!memcmp(&again, data + size - sizeof(again), sizeof(again)));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    void *copy = fuzz_copy(data, size);
    uct_nprdma_cm_packet_t packet;

    if (uct_nprdma_cm_parse(copy, size, &packet)) {
        fuzz_check_accepted(copy, size, &packet);
    }

    fuzz_trailer(copy, size);
    free(copy);
    return 0;
}
