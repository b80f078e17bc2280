/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* One function: an emulated host channel adapter with one port. */

#ifndef EMLX5_HCA_H
#define EMLX5_HCA_H

#include "base/emlx5_limits.h"
#include "base/emlx5_table.h"
#include "host/emlx5_dma.h"
#include "object/emlx5_work.h"

enum { EMLX5_CMD_SLOTS = 32, EMLX5_CAPS_SIZE = 4096, EMLX5_DESC_SIZE = 64 };

struct emlx5_hca;
struct emlx5_fabric;

/* An entry of the command queue, to be executed */
typedef struct {
    emlx5_work_t     work;
    struct emlx5_hca *hca;
} emlx5_slot_t;

/* What the guest did to it, and what it did */
typedef struct {
    uint64_t commands, failed_commands;
    uint64_t doorbells, bad_doorbells;
    uint64_t sends, writes, reads, atomics, datagrams, umrs;
    uint64_t failed_requests, dropped_datagrams;
    uint64_t cqes, eqes, interrupts;
    uint64_t sent_packets, sent_bytes, received_packets, received_bytes;
    uint64_t maps, unmaps; /* messages about changes of the guest's IOMMU */
} emlx5_hca_stats_t;

typedef struct emlx5_hca {
    emlx5_host_t        *host;
    emlx5_dma_t         dma;
    emlx5_queue_t       queue;
    emlx5_hca_stats_t   stats;
    int                 bus_master; /* PCI: it may do DMA */
    int                 resetting;
    emlx5_work_t        reset_work;

    /* Objects of the guest, by number */
    emlx5_table_t       eqs, cqs, mkeys, srqs, qps;
    emlx5_table_t       pds, tds, xrcds, uars, counters; /* only numbers */
    uint64_t            translations; /* bytes, of all keys */

    /* Port */
    struct emlx5_fabric *fabric;
    uint16_t            lid;
    uint64_t            guid;
    int                 present; /* plugged into a guest */
    uint32_t            chunk;   /* bytes of a message that are moved at once */
    uint32_t            cap_mask;
    uint8_t             description[EMLX5_DESC_SIZE];

    /* Firmware */
    uint64_t            cmdq;    /* bus address */
    uint32_t            cmdq_high, cmdq_state;
    uint32_t            cmd_eqn; /* event queue of command completions, or 0 */
    uint16_t            issi;
    uint8_t             caps[EMLX5_CAPS_SIZE]; /* as the driver has set them */
    int                 caps_are_set;
    emlx5_slot_t        slot[EMLX5_CMD_SLOTS];
    uint32_t            latch[EMLX5_MAX_UAR];  /* first half of a doorbell */
} emlx5_hca_t;

/** Makes a function without objects. The host outlives it, and its address in
 * the fabric is not 0. @return 0, or -1 if there is no memory; nothing to clean
 * up then. */
int emlx5_hca_init(emlx5_hca_t *hca, emlx5_host_t *host,
                   const emlx5_dma_config_t *config, uint16_t lid);

/** Frees the tables; call emlx5_reset() before. */
void emlx5_hca_cleanup(emlx5_hca_t *hca);

/** PCI's command register permits or forbids DMA. */
void emlx5_hca_set_bus_master(emlx5_hca_t *hca, int bus_master);

/** Raises an interrupt, after the guest can see what was written. Nothing
 * happens if there is no such vector. */
void emlx5_hca_interrupt(emlx5_hca_t *hca, unsigned vector);

#endif
