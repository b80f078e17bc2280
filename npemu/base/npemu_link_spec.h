/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* NPEMU_LINK: what it says, and how verbs express a rate. */

#ifndef NPEMU_LINK_SPEC_H
#define NPEMU_LINK_SPEC_H

#include <stddef.h>
#include <stdint.h>

/* Ports that several processes can name. */
#define NPEMU_LINK_PORTS 64

typedef enum {
    NPEMU_ARB_FAIR, /* queue pairs have equal shares */
    NPEMU_ARB_FIFO, /* in the order of posting */
    NPEMU_ARB_PRIO  /* higher service levels first, fair among equal ones */
} npemu_arb_t;

typedef struct {
    uint64_t rate;       /* bytes per second; 0: there is no wire */
    uint64_t latency_ns; /* from side to side, besides the rate */
    uint32_t port;       /* from 1; 0: one of its own */
    uint32_t arb;        /* npemu_arb_t */
} npemu_link_spec_t;

/** Parse RATE[,latency=T][,port=N][,arb=fair|fifo|prio]. `spec`: what it says;
 * no wire after an error. `item`: the item that is wrong, cut off where it does
 * not fit. Returns 0, or EINVAL. */
int npemu_link_spec_parse(const char *text, npemu_link_spec_t *spec,
                          char *item, size_t size);

/** The width and the speed of a port, as in ibv_port_attr, of which the data
 * rate is nearest to rate. They have steps (IBA volume 2, 5.1), without line
 * code from 2 Gbit/s to 12 lanes of 100 Gbit/s. */
void npemu_link_spec_speed(uint64_t rate, uint8_t *width, uint8_t *speed);

#endif
