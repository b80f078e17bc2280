/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "firmware/emlx5_cmdq.h"
#include "base/emlx5_log.h"
#include "firmware/emlx5_cmd.h"
#include "object/emlx5_eq.h"

#include <stdlib.h>

/* An entry of the queue */
enum {
    EMLX5_ENTRY_SIZE     = 64,
    EMLX5_ENTRY_TYPE     = 0,
    EMLX5_ENTRY_IN_SIZE  = 4,
    EMLX5_ENTRY_IN_BOX   = 8,
    EMLX5_ENTRY_IN       = 16,
    EMLX5_ENTRY_OUT      = 32,
    EMLX5_ENTRY_OUT_BOX  = 48,
    EMLX5_ENTRY_OUT_SIZE = 56,
    EMLX5_ENTRY_TOKEN    = 60,
    EMLX5_ENTRY_STATUS   = 63,  /* of the delivery << 1 | 1 if it is ours */
    EMLX5_ENTRY_DATA     = 16,  /* bytes of input, and of output, in it */
    EMLX5_MIN_SIZE       = 8,   /* of input and output: opcode, status */
    EMLX5_TYPE_PCI       = 7
};

/* A mailbox */
enum {
    EMLX5_BOX_SIZE  = 576,
    EMLX5_BOX_DATA  = 512,
    EMLX5_BOX_NEXT  = 560,
    EMLX5_BOX_BLOCK = 568,
    EMLX5_BOX_TOKEN = 573,
    EMLX5_BOX_ALIGN = 512
};

/* Why a command could not be delivered */
typedef enum {
    EMLX5_DELIVERED          = 0,
    EMLX5_BAD_TOKEN          = 2,
    EMLX5_BAD_BLOCK          = 3,
    EMLX5_BAD_OUT_ALIGNMENT  = 4,
    EMLX5_BAD_IN_ALIGNMENT   = 5,
    EMLX5_FIRMWARE_ERROR     = 6,
    EMLX5_BAD_IN_SIZE        = 7,
    EMLX5_BAD_OUT_SIZE       = 8,
    EMLX5_BAD_ENTRY          = 0x10
} emlx5_delivery_t;

/* Begin of the syndromes of this firmware, which is for people */
enum { EMLX5_SYNDROME = 0x4e0000 };

/* The input's rest; the buffer has room for in_size. */
static emlx5_delivery_t emlx5_cmdq_read_boxes(emlx5_hca_t *hca,
                                              const uint8_t *entry,
                                              uint8_t *in, uint32_t in_size)
{
    uint64_t next = emlx5_be64(entry + EMLX5_ENTRY_IN_BOX);
    uint32_t done = EMLX5_ENTRY_DATA, block, part;
    uint8_t box[EMLX5_BOX_SIZE];

    for (block = 0; done < in_size; ++block) {
        if ((next == 0) || (next % EMLX5_BOX_ALIGN != 0)) {
            return EMLX5_BAD_IN_ALIGNMENT;
        }
        if (emlx5_dma_read(&hca->dma, next, box, sizeof(box)) != 0) {
            return EMLX5_FIRMWARE_ERROR;
        }
        if (box[EMLX5_BOX_TOKEN] != entry[EMLX5_ENTRY_TOKEN]) {
            return EMLX5_BAD_TOKEN;
        }
        if (emlx5_be32(box + EMLX5_BOX_BLOCK) != block) {
            return EMLX5_BAD_BLOCK;
        }
        part = in_size - done;
        part = (part < EMLX5_BOX_DATA) ? part : EMLX5_BOX_DATA;
        memcpy(in + done, box, part);
        done += part;
        next  = emlx5_be64(box + EMLX5_BOX_NEXT);
    }
    return EMLX5_DELIVERED;
}

static emlx5_delivery_t emlx5_cmdq_write_boxes(emlx5_hca_t *hca,
                                               const uint8_t *entry,
                                               const uint8_t *out,
                                               uint32_t out_size)
{
    uint64_t next = emlx5_be64(entry + EMLX5_ENTRY_OUT_BOX);
    uint32_t done = EMLX5_ENTRY_DATA, part;
    uint8_t link[8];

    while (done < out_size) {
        if ((next == 0) || (next % EMLX5_BOX_ALIGN != 0)) {
            return EMLX5_BAD_OUT_ALIGNMENT;
        }
        if (emlx5_dma_read(&hca->dma, next + EMLX5_BOX_NEXT, link,
                           sizeof(link)) != 0) {
            return EMLX5_FIRMWARE_ERROR;
        }
        part = out_size - done;
        part = (part < EMLX5_BOX_DATA) ? part : EMLX5_BOX_DATA;
        emlx5_dma_write(&hca->dma, next, out + done, part);
        done += part;
        next  = emlx5_be64(link);
    }
    return EMLX5_DELIVERED;
}

static void emlx5_cmdq_execute(emlx5_cmd_t *cmd)
{
    emlx5_hca_stats_t *stats = &cmd->hca->stats;
    emlx5_cmd_status_t status;

    /* The driver may free memory that late payload would still be written to */
    emlx5_dma_expire(&cmd->hca->dma, 1);
    cmd->op = emlx5_be16(cmd->in);
    status  = emlx5_cmd_execute(cmd);
    emlx5_log((status == EMLX5_CMD_OK) ? EMLX5_LOG_COMMAND : EMLX5_LOG_EVENT,
              "port %u: %s (%#x) of %u bytes: status %#x", cmd->hca->lid,
              emlx5_cmd_name(cmd->op), cmd->op, cmd->in_size, status);
    ++stats->commands;
    cmd->out[0] = status;
    if (status != EMLX5_CMD_OK) {
        ++stats->failed_commands;
        emlx5_put_be32(cmd->out + 4, EMLX5_SYNDROME | cmd->op);
    }
}

/* Delivers one command. The output's first bytes go to "head". */
static emlx5_delivery_t emlx5_cmdq_deliver(emlx5_hca_t *hca,
                                           const uint8_t *entry, uint8_t *head)
{
    uint32_t in_size  = emlx5_be32(entry + EMLX5_ENTRY_IN_SIZE);
    uint32_t out_size = emlx5_be32(entry + EMLX5_ENTRY_OUT_SIZE);
    emlx5_delivery_t status;
    emlx5_cmd_t cmd = {.hca = hca, .in_size = in_size};
    uint8_t *in, *out;

    if ((in_size < EMLX5_MIN_SIZE) || (in_size > EMLX5_MAX_CMD_IN)) {
        return EMLX5_BAD_IN_SIZE;
    }
    if ((out_size < EMLX5_MIN_SIZE) || (out_size > EMLX5_MAX_CMD_OUT)) {
        return EMLX5_BAD_OUT_SIZE;
    }
    in  = calloc(1, (size_t)in_size + EMLX5_CMD_BUFFER);
    out = calloc(1, EMLX5_MAX_CMD_OUT);
    if ((in == NULL) || (out == NULL)) {
        status = EMLX5_FIRMWARE_ERROR;
        goto free;
    }
    memcpy(in, entry + EMLX5_ENTRY_IN, EMLX5_ENTRY_DATA);
    status = emlx5_cmdq_read_boxes(hca, entry, in, in_size);
    if (status == EMLX5_DELIVERED) {
        cmd.in  = in;
        cmd.out = out;
        emlx5_cmdq_execute(&cmd);
        status = emlx5_cmdq_write_boxes(hca, entry, out, out_size);
    }
    memcpy(head, out, EMLX5_ENTRY_DATA);
free:
    free(in);
    free(out);
    return status;
}

static void emlx5_cmdq_work(emlx5_work_t *work)
{
    emlx5_slot_t *slot = emlx5_container_of(work, emlx5_slot_t, work);
    emlx5_hca_t *hca   = slot->hca;
    uint32_t number    = slot - hca->slot;
    uint64_t at        = hca->cmdq + ((uint64_t)number * EMLX5_ENTRY_SIZE);
    /* The command that makes or destroys this queue is polled */
    uint32_t eqn       = hca->cmd_eqn;
    uint8_t entry[EMLX5_ENTRY_SIZE], head[EMLX5_ENTRY_DATA] = {0};
    uint8_t data[EMLX5_EQE_DATA] = {0};
    emlx5_delivery_t status = EMLX5_BAD_ENTRY;
    uint8_t byte;

    if ((hca->cmdq == 0) ||
        (emlx5_dma_read(&hca->dma, at, entry, sizeof(entry)) != 0) ||
        !(entry[EMLX5_ENTRY_STATUS] & 1)) {
        return;
    }
    if (entry[EMLX5_ENTRY_TYPE] == EMLX5_TYPE_PCI) {
        status = emlx5_cmdq_deliver(hca, entry, head);
    }
    if (status != EMLX5_DELIVERED) {
        emlx5_event("port %u: command not delivered: %#x", hca->lid, status);
    }
    emlx5_dma_write(&hca->dma, at + EMLX5_ENTRY_OUT, head, sizeof(head));
    byte = status << 1;
    emlx5_dma_write(&hca->dma, at + EMLX5_ENTRY_STATUS, &byte, 1);
    if ((eqn != 0) && (eqn == hca->cmd_eqn)) {
        emlx5_put_be32(data, 1u << number);
        emlx5_eq_post(hca, eqn, EMLX5_EVENT_COMMAND, 0, data);
    }
}

void emlx5_cmdq_init(emlx5_hca_t *hca)
{
    unsigned i;

    for (i = 0; i < EMLX5_CMD_SLOTS; ++i) {
        hca->slot[i].hca = hca;
        emlx5_work_init(&hca->slot[i].work, emlx5_cmdq_work);
    }
}

void emlx5_cmdq_ring(emlx5_hca_t *hca, uint32_t slots)
{
    unsigned i;

    for (i = 0; i < EMLX5_CMD_SLOTS; ++i) {
        if ((slots >> i) & 1) {
            emlx5_work_add(&hca->queue, &hca->slot[i].work);
        }
    }
}
