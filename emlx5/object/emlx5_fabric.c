/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "object/emlx5_fabric.h"

void emlx5_fabric_add(emlx5_fabric_t *fabric, emlx5_hca_t *hca)
{
    fabric->port[fabric->num_ports++] = hca;
    hca->fabric                       = fabric;
}

emlx5_hca_t *emlx5_fabric_find(const emlx5_hca_t *hca, uint32_t lid)
{
    emlx5_hca_t *peer;

    if ((lid == 0) || (lid > hca->fabric->num_ports)) {
        return NULL;
    }
    peer = hca->fabric->port[lid - 1];
    return peer->present ? peer : NULL;
}

void emlx5_fabric_count(emlx5_hca_t *from, emlx5_hca_t *to, uint32_t bytes)
{
    uint32_t packets = (bytes + EMLX5_MAX_MTU - 1) / EMLX5_MAX_MTU;

    packets                     = (packets > 0) ? packets : 1;
    from->stats.sent_packets   += packets;
    from->stats.sent_bytes     += bytes;
    to->stats.received_packets += packets;
    to->stats.received_bytes   += bytes;
}
