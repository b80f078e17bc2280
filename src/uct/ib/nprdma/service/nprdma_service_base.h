/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_SERVICE_BASE_H_
#define UCT_NPRDMA_SERVICE_BASE_H_

#include <stdatomic.h>

/* Responder's side of a connection of kind SVC */
typedef struct uct_nprdma_service_conn uct_nprdma_service_conn_t;

typedef struct uct_nprdma_service uct_nprdma_service_t;


/* The part of a service that progress reads; first member of
 * uct_nprdma_service_t */
typedef struct uct_nprdma_service_base {
    atomic_uint num_conns;
} uct_nprdma_service_base_t;

#endif
