/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_FOREIGN_ATTACKER_H_
#define NPRDMA_FOREIGN_ATTACKER_H_

#include "uct/ib/nprdma/wire/nprdma_wire.h"

/* Whom to send to, as the addresses of the interface tell it */
typedef struct {
    uct_nprdma_dev_addr_t   dev;
    uct_nprdma_iface_addr_t iface;
} foreign_target_t;

/* What was sent and must have been counted as such */
typedef struct {
    unsigned long malformed;    /* exactly */
    unsigned long oversized;    /* at most: the device may drop them itself */
    unsigned long stale;        /* at most: repeated until one is answered */
} foreign_tally_t;


/**
 * Send every kind of packet that does not belong there to an interface.
 *
 * @param [in]  target  Whom to send to.
 * @param [in]  seed    Of the random packets.
 * @param [out] tally   What was sent.
 *
 * @return 0, or -1 when the interface has stopped answering or npemu refused
 *         something; says what on standard error.
 */
int foreign_attack(const foreign_target_t *target, unsigned seed,
                   foreign_tally_t *tally);

#endif
