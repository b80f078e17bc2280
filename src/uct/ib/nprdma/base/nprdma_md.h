/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_MD_H_
#define UCT_NPRDMA_MD_H_

#include "nprdma_config.h"

#include "uct/ib/nprdma/compat/nprdma_compat.h"
#include "uct/ib/nprdma/mem/nprdma_mem_md.h"
#include "uct/ib/nprdma/net/nprdma_counters.h"
#include "uct/ib/nprdma/service/nprdma_service.h"

#include <stdatomic.h>

/* The tables of functions that UCX sees; the component has them */
typedef struct uct_nprdma_tables {
    uct_md_ops_t             *md;
    uct_iface_ops_t          *iface;
    uct_iface_internal_ops_t *iface_internal;
} uct_nprdma_tables_t;


/* A memory domain: an opened device, the memory that it reaches, and the
 * service of that to peers. */
typedef struct uct_nprdma_md {
    uct_nprdma_mem_md_t       super;
    const uct_nprdma_tables_t *tables;
    uct_nprdma_service_t      *service;
    uct_nprdma_rma_config_t   rma;       /* configuration of operations */
    atomic_uint               refs;      /* interfaces, and 1 until it is
                                            closed */
} uct_nprdma_md_t;


/* Version-neutral MD attributes; nprdma_compat.h puts them into UCX's. */
typedef struct uct_nprdma_md_caps {
    uint64_t          flags;
    uint64_t          reg_mem_types;
    uint64_t          reg_nonblock_mem_types;
    uint64_t          cache_mem_types;
    uint64_t          access_mem_types;
    size_t            rkey_packed_size;
    ucs_linear_func_t reg_cost;
} uct_nprdma_md_caps_t;


/** Devices that may be used here, as MD resources. */
ucs_status_t
uct_nprdma_query_md_resources(uct_component_t *component,
                              uct_md_resource_desc_t **resources_p,
                              unsigned *num_resources_p);

/** Open the device named md_name. The tables stay. */
ucs_status_t
uct_nprdma_md_open(uct_component_t *component,
                   const uct_nprdma_tables_t *tables, const char *md_name,
                   const uct_md_config_t *config, uct_md_h *md_p);

/**
 * Close what uct_nprdma_md_open() opened; does nothing in a forked child.
 *
 * @param [in] md  MD. Registrations that are still live end, and with
 *                 interfaces that are still open it stays until the last of
 *                 them is closed: their handlers and the service's thread use
 *                 it. Each is told in one warning.
 */
void uct_nprdma_md_close(uct_md_h md);

/** Keep an MD for one more interface, until @ref uct_nprdma_md_put. */
void uct_nprdma_md_get(uct_nprdma_md_t *md);

/**
 * An interface does not use its MD any more.
 *
 * @param [in] md  MD, invalid afterwards if it was closed before.
 */
void uct_nprdma_md_put(uct_nprdma_md_t *md);

/**
 * @return UCS_OK, or UCS_ERR_UNSUPPORTED with a logged reason in a forked child
 *         of the process that opened the MD.
 */
ucs_status_t uct_nprdma_md_check_owner(const uct_nprdma_md_t *md);

/**
 * Count what an MD knows of the memory of its process.
 *
 * @param [in]  md     MD.
 * @param [out] stats  Filled; the numbers need not be of one moment.
 */
void uct_nprdma_md_stats(uct_nprdma_md_t *md, uct_nprdma_mem_stats_t *stats);

/**
 * Show these counters in the UCS virtual file system, below an object.
 *
 * @param [in] md   MD; must live as long as the node.
 * @param [in] obj  Object that has a node there already.
 */
void uct_nprdma_md_vfs(uct_nprdma_md_t *md, void *obj);

/** Fill the version-neutral attributes. */
void uct_nprdma_md_caps(uct_nprdma_md_t *md, uct_nprdma_md_caps_t *caps);

/** Ports in state ACTIVE, as transport resources "device:port". */
ucs_status_t
uct_nprdma_query_tl_devices(uct_md_h md,
                            uct_tl_device_resource_t **tl_devices_p,
                            unsigned *num_tl_devices_p);

#endif
