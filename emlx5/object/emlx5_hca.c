/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "object/emlx5_hca.h"

#include <stdio.h>
#include <string.h>

/* Vendor's part of GUIDs, as IEEE gave it to Mellanox */
static const uint64_t emlx5_guid_base = 0x0002c90300000000ull;


/* 0x100, a key with index 1, ends lists of memory, so keys begin higher. QPs 0
 * and 1 are for management; drivers take lower numbers for special. */
enum { EMLX5_FIRST_MKEY = 16, EMLX5_FIRST_QP = 0x40 };

static int emlx5_hca_init_tables(emlx5_hca_t *hca)
{
    return emlx5_table_init(&hca->eqs, 1, 1 << EMLX5_LOG_MAX_EQ) |
           emlx5_table_init(&hca->cqs, 1, 1 << EMLX5_LOG_MAX_CQ) |
           emlx5_table_init(&hca->mkeys, EMLX5_FIRST_MKEY,
                            1 << EMLX5_LOG_MAX_MKEY) |
           emlx5_table_init(&hca->srqs, 1, 1 << EMLX5_LOG_MAX_SRQ) |
           emlx5_table_init(&hca->qps, EMLX5_FIRST_QP, 1 << EMLX5_LOG_MAX_QP) |
           emlx5_table_init(&hca->pds, 1, 1 << EMLX5_LOG_MAX_PD) |
           emlx5_table_init(&hca->tds, 1, 1 << EMLX5_LOG_MAX_TD) |
           emlx5_table_init(&hca->xrcds, 1, 1 << EMLX5_LOG_MAX_XRCD) |
           emlx5_table_init(&hca->uars, EMLX5_FIRST_UAR, EMLX5_MAX_UAR) |
           emlx5_table_init(&hca->counters, 1, EMLX5_MAX_COUNTERS);
}

static void emlx5_hca_cleanup_tables(emlx5_hca_t *hca)
{
    emlx5_table_cleanup(&hca->eqs);
    emlx5_table_cleanup(&hca->cqs);
    emlx5_table_cleanup(&hca->mkeys);
    emlx5_table_cleanup(&hca->srqs);
    emlx5_table_cleanup(&hca->qps);
    emlx5_table_cleanup(&hca->pds);
    emlx5_table_cleanup(&hca->tds);
    emlx5_table_cleanup(&hca->xrcds);
    emlx5_table_cleanup(&hca->uars);
    emlx5_table_cleanup(&hca->counters);
}

int emlx5_hca_init(emlx5_hca_t *hca, emlx5_host_t *host,
                   const emlx5_dma_config_t *config, uint16_t lid)
{
    memset(hca, 0, sizeof(*hca));
    hca->host    = host;
    hca->lid     = lid;
    hca->guid    = emlx5_guid_base | lid;
    hca->chunk   = EMLX5_MAX_MTU;
    emlx5_dma_init(&hca->dma, host, config);
    emlx5_queue_init(&hca->queue);
    snprintf((char*)hca->description, sizeof(hca->description), "emlx5 port %u",
             lid);
    if (emlx5_hca_init_tables(hca) != 0) {
        emlx5_hca_cleanup_tables(hca);
        return -1;
    }
    return 0;
}

void emlx5_hca_cleanup(emlx5_hca_t *hca)
{
    emlx5_hca_cleanup_tables(hca);
}

void emlx5_hca_set_bus_master(emlx5_hca_t *hca, int bus_master)
{
    hca->bus_master  = bus_master;
    hca->dma.enabled = bus_master && !hca->resetting;
}

void emlx5_hca_interrupt(emlx5_hca_t *hca, unsigned vector)
{
    if (vector < EMLX5_VECTORS) {
        emlx5_dma_drain(&hca->dma);
        ++hca->stats.interrupts;
        hca->host->interrupt(hca->host, vector);
    }
}
