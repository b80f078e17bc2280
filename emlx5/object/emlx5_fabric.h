/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* The switch that joins the functions: a table of ports by LID. */

#ifndef EMLX5_FABRIC_H
#define EMLX5_FABRIC_H

#include "object/emlx5_hca.h"

typedef struct emlx5_fabric {
    emlx5_hca_t *port[EMLX5_MAX_FUNCTIONS]; /* by LID - 1 */
    unsigned    num_ports;
} emlx5_fabric_t;

/** Plugs a function in; its LID is the number of its port, from 1 on. */
void emlx5_fabric_add(emlx5_fabric_t *fabric, emlx5_hca_t *hca);

/** @return The function that a packet to any LID reaches, NULL if none: no such
 * port, or nothing is plugged in there. */
emlx5_hca_t *emlx5_fabric_find(const emlx5_hca_t *hca, uint32_t lid);

/** Counts packets of a message, or a part of it, from one port to another. */
void emlx5_fabric_count(emlx5_hca_t *from, emlx5_hca_t *to, uint32_t bytes);

#endif
