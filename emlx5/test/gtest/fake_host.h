/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* A computer for the model without QEMU: its memory is an array. And a driver
 * that gives commands. */

#ifndef EMLX5_FAKE_HOST_H
#define EMLX5_FAKE_HOST_H

#include "firmware/emlx5_bar.h"
#include "firmware/emlx5_cmd.h"
#include "firmware/emlx5_cmdq.h"
#include "firmware/emlx5_monitor.h"
#include "object/emlx5_fabric.h"
#include "object/emlx5_hca.h"

/* Bus addresses: the memory begins at FAKE_BASE, what is outside faults */
enum { FAKE_BASE = 1 << 20, FAKE_SIZE = 1 << 20 };

typedef struct {
    emlx5_host_t   host;
    emlx5_hca_t    hca;
    emlx5_fabric_t alone;      /* until it is added to another one */
    uint8_t        memory[FAKE_SIZE];
    uint32_t       interrupts; /* a bit for each vector raised */
    unsigned       writes, drains, pauses, faults;
    unsigned       longest;    /* transaction */
    unsigned       crossing;   /* transactions that cross 4 KiB */
    uint64_t       last_read;  /* bus address */
    unsigned       backward;   /* reads below the one before */
} fake_host_t;

/** Makes a computer with a function in it, which may do DMA. */
fake_host_t *fake_host_create(const emlx5_dma_config_t *config, uint16_t lid);

/** Plugs its function out and frees it. */
void fake_host_destroy(fake_host_t *fake);

/** @return The memory at a bus address, NULL if some of it is outside. */
uint8_t *fake_at(fake_host_t *fake, uint64_t bus, uint64_t length);

/** Does the function's work until there is none that is ready, at most so much.
 * @return How much was done. */
unsigned fake_run(fake_host_t *fake, unsigned limit);

/**
 * Executes a command, without the queue.
 *
 * @param [in]  in    Input; its opcode is set here.
 * @param [out] out   EMLX5_MAX_CMD_OUT bytes.
 *
 * @return Its status.
 */
emlx5_cmd_status_t fake_command(fake_host_t *fake, uint16_t op, uint8_t *in,
                                uint32_t size, uint8_t *out);

#endif
