/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_MD_H_
#define UCT_NPRDMA_MD_H_

#include "nprdma_config.h"

#include "uct/ib/nprdma/compat/nprdma_compat.h"
#include "uct/ib/nprdma/mem/nprdma_mem_md.h"
#include "uct/ib/nprdma/net/nprdma_counters.h"
#include "uct/ib/nprdma/service/nprdma_service.h"

#include <stdatomic.h>

/* Tables of functions that UCX calls; the component defines them */
typedef struct uct_nprdma_tables {
    uct_md_ops_t             *md;
    uct_iface_ops_t          *iface;
    uct_iface_internal_ops_t *iface_internal;
} uct_nprdma_tables_t;


/* A memory domain: an open device, the memory that it reaches, and the service
 * for peers */
typedef struct uct_nprdma_md {
    uct_nprdma_mem_md_t       super;
    const uct_nprdma_tables_t *tables;
    uct_nprdma_service_t      *service;
    uct_nprdma_rma_config_t   rma;       /* configuration of operations */
    uct_nprdma_cm_config_t    cm;        /* and of interfaces */
    uct_nprdma_iface_config_t iface;     /* with own copies of strings */
    /* Open interfaces, plus 1 until it is closed */
    atomic_uint               refs;
} uct_nprdma_md_t;


/* List the usable devices; none with an invalid configuration */
ucs_status_t
uct_nprdma_query_md_resources(uct_component_t *component,
                              uct_md_resource_desc_t **resources_p,
                              unsigned *num_resources_p);

/* Open an MD; the configuration is copied. UCS_ERR_UNSUPPORTED: the process
 * cannot serve peers. */
ucs_status_t
uct_nprdma_md_open(uct_component_t *component,
                   const uct_nprdma_tables_t *tables, const char *md_name,
                   const uct_md_config_t *config, uct_md_h *md_p);

/* Close an MD; does nothing in a forked child. Live registrations end. While
 * interfaces are open, the MD stays until the last of them is closed, because
 * their handlers and the service's thread use it. Either case is logged as one
 * warning. */
void uct_nprdma_md_close(uct_md_h md);

/* Add a reference of an interface */
void uct_nprdma_md_get(uct_nprdma_md_t *md);

/* Drop the reference of an interface, or of the user */
void uct_nprdma_md_put(uct_nprdma_md_t *md);

/* UCS_ERR_UNSUPPORTED in a forked child of the process that opened the MD */
ucs_status_t uct_nprdma_md_check_owner(const uct_nprdma_md_t *md);

/* The numbers need not be of the same moment */
void uct_nprdma_md_stats(uct_nprdma_md_t *md, uct_nprdma_mem_stats_t *stats);

/* Show the memory statistics in the UCS virtual file system, below an object
 * that the MD outlives */
void uct_nprdma_md_vfs(uct_nprdma_md_t *md, void *obj);

/* Seconds that a registration of a length takes on average */
ucs_linear_func_t uct_nprdma_md_reg_cost(const uct_nprdma_md_t *md);

/* List the ports in state ACTIVE */
ucs_status_t
uct_nprdma_query_tl_devices(uct_md_h md,
                            uct_tl_device_resource_t **tl_devices_p,
                            unsigned *num_tl_devices_p);

#endif
