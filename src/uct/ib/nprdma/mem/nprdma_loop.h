/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_LOOP_H_
#define UCT_NPRDMA_LOOP_H_

#include "uct/ib/nprdma/net/nprdma_device.h"

/* A connection of a port with itself, for checks of what the device does to
 * memory of this process */
typedef struct uct_nprdma_loop {
    uct_nprdma_device_t *dev;
    uint8_t             port_num;
    struct ibv_cq       *cq;
    struct ibv_qp       *qps[2];  /* Requester, responder */
    unsigned            posted;   /* Work requests in flight */
    int                 is_refused; /* One was not posted */
} uct_nprdma_loop_t;


/* Zero if no port of the device is active */
int uct_nprdma_loop_init(uct_nprdma_loop_t *loop, uct_nprdma_device_t *dev);

/* Zero if there is no connection; uct_nprdma_loop_close() in any case */
int uct_nprdma_loop_open(uct_nprdma_loop_t *loop);

void uct_nprdma_loop_close(uct_nprdma_loop_t *loop);

/* A READ or WRITE; uct_nprdma_loop_wait() reports errors */
void uct_nprdma_loop_post(uct_nprdma_loop_t *loop, enum ibv_wr_opcode opcode,
                          const void *local, uint32_t lkey, size_t length,
                          uint64_t address, uint32_t rkey);

/* Wait until all have completed. Returns the first error, or
 * IBV_WC_GENERAL_ERR if one was not posted or does not complete. */
enum ibv_wc_status uct_nprdma_loop_wait(uct_nprdma_loop_t *loop);

#endif
