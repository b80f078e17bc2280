/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_KERNEL_H_
#define NPRDMA_KERNEL_H_

#include "nprdma_backend.h"

#include <nprdma_uapi.h>

/* What the two back ends of the kernel module share: the module owns the states
 * of a region */


/* Data of the back end for a region */
typedef struct nprdma_kernel_priv {
    int                          ctx;  /* The open module */
    uint32_t                     id;
    struct nprdma_states_header *map;  /* Mapping of the states descriptor */
    size_t                       size; /* of the mapping, bytes */
} nprdma_kernel_priv_t;


/* An ioctl() without the C library */
int nprdma_kernel_call(int ctx, unsigned long request, void *arg);

/* A call that cannot fail, in a function that must not change errno */
void nprdma_kernel_call_hook(int ctx, unsigned long request, void *arg);

/* For an error of calls that create something */
ucs_status_t nprdma_kernel_status(int error);

/* The process's open module, between open and close */
int nprdma_kernel_context(void);


/* Create a region of the module, and map its states, as
 * nprdma_backend_t::region_create. The caller owns the descriptor of the
 * states. */
ucs_status_t nprdma_kernel_create(nprdma_region_t *region,
                                  nprdma_kernel_priv_t **self_p,
                                  int *states_fd_p);

/* Take pages away from devices by a call of the module. When it returns, no
 * device accesses them through views, even if another thread, or the kernel,
 * has taken them. For memory hooks. Returns the pages that lost a bit. */
size_t nprdma_kernel_take(const nprdma_region_t *region,
                          const nprdma_kernel_priv_t *self, size_t first,
                          size_t count, uint32_t bits, int touch);


/* Functions of nprdma_backend_t. open ignores the device. */
ucs_status_t nprdma_kernel_open(const char *device, char *why);
void nprdma_kernel_close(void);
void nprdma_kernel_region_destroy(nprdma_region_t *region, void *priv);
void nprdma_kernel_unregister(void *priv, nprdma_range_t *range);
uint32_t nprdma_kernel_get_revocations(void *priv);
ucs_status_t nprdma_kernel_populate(void *priv, nprdma_populate_t *populate);
size_t nprdma_kernel_next_resident(const nprdma_region_t *region, void *priv,
                                   size_t first, size_t end);
void nprdma_kernel_query(void *priv, nprdma_backend_stats_t *stats);

#endif
