/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* A function behind a socket: the server's side of vfio-user. QEMU is the
 * client. Handlers of its messages answer, and put work into the function's
 * queue; they never do DMA, because a DMA waits for QEMU's answer, and other
 * messages are handled while it does. */

#ifndef EMLX5_VFIO_H
#define EMLX5_VFIO_H

#include "bus/emlx5_config.h"
#include "bus/emlx5_conn.h"
#include "bus/emlx5_irq.h"
#include "object/emlx5_hca.h"

enum { EMLX5_VFIO_WINDOW = 64 }; /* DMA messages without an answer */

struct emlx5_loop;

/* A DMA message that waits for its answer */
typedef struct {
    int      busy;
    uint16_t id;
    void     *data;  /* of a read; NULL for a write */
    uint32_t length;
} emlx5_pending_t;

typedef struct emlx5_vfio {
    emlx5_host_t      host;
    emlx5_hca_t       hca;
    emlx5_conn_t      conn;
    emlx5_config_t    config;
    emlx5_irq_t       irq;
    struct emlx5_loop *loop;
    int               listener;
    char              path[108];
    emlx5_pending_t   pending[EMLX5_VFIO_WINDOW];
    unsigned          reads, writes; /* of them */
    int               read_failed;
    uint16_t          next_id;
    uint64_t          faults;
} emlx5_vfio_t;

/** Makes a function without a guest, and listens at a socket, which replaces
 * what is there. @return 0, or -1 after an error, which was printed. */
int emlx5_vfio_init(emlx5_vfio_t *vfio, struct emlx5_loop *loop,
                    const char *path, const emlx5_dma_config_t *config,
                    uint16_t lid);

/** Disconnects and removes the socket. */
void emlx5_vfio_cleanup(emlx5_vfio_t *vfio);

/** A guest comes; the descriptor becomes the function's. */
void emlx5_vfio_plug(emlx5_vfio_t *vfio, int fd);

/** The guest has gone: everything it made is destroyed. Not while the function,
 * or one that talks with it, waits for a DMA. */
void emlx5_vfio_unplug(emlx5_vfio_t *vfio);

/** Handles the message that vfio->conn has received. */
void emlx5_vfio_handle(emlx5_vfio_t *vfio);

#endif
