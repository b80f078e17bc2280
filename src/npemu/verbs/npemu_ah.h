/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Address handles. */

#ifndef NPEMU_AH_H
#define NPEMU_AH_H

#include "verbs/npemu_pd.h"

typedef struct npemu_ah {
    struct ibv_ah super;
    uint16_t      dlid;
    uint8_t       is_global;
    uint8_t       unroutable; /* nobody lives there */
    npemu_ud_t    path;
} npemu_ah_t;

static inline npemu_ah_t *npemu_ah(struct ibv_ah *ah)
{
    return npemu_container_of(ah, npemu_ah_t, super);
}

/**
 * Check an address vector.
 *
 * @param [in]  attr        The address.
 * @param [out] unroutable  1 if it is well formed and nobody lives there.
 *
 * @return 0 or EINVAL.
 */
int npemu_ah_check(struct ibv_context *context,
                   const struct ibv_ah_attr *attr, uint8_t *unroutable);

#endif
