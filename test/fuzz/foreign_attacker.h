/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_FOREIGN_ATTACKER_H_
#define NPRDMA_FOREIGN_ATTACKER_H_

#include "uct/ib/nprdma/wire/nprdma_wire.h"

/* The target, from the addresses of its interface */
typedef struct {
    uct_nprdma_dev_addr_t   dev;
    uct_nprdma_iface_addr_t iface;
} foreign_target_t;

/* What was sent, and must have been counted in this way */
typedef struct {
    unsigned long malformed;    /* exact number */
    unsigned long oversized;    /* at most: the device may drop them itself */
    unsigned long stale;        /* at most: repeated until one is answered */
} foreign_tally_t;


/**
 * Send every kind of foreign packet to an interface.
 *
 * @param [in]  target  Interface to attack.
 * @param [in]  seed    Seed of the random packets.
 * @param [out] tally   What was sent.
 *
 * @return 0, or -1 if the interface no longer answers or npemu returned an
 *         error. The reason is on standard error.
 */
int foreign_attack(const foreign_target_t *target, unsigned seed,
                   foreign_tally_t *tally);

#endif
