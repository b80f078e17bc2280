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
    atomic_uint               refs;      /* open interfaces, plus 1 until it is
                                          * closed */
} uct_nprdma_md_t;


/* Version-neutral MD attributes; nprdma_glue.h copies them to those of UCX */
typedef struct uct_nprdma_md_caps {
    uint64_t          flags;
    uint64_t          reg_mem_types;
    uint64_t          reg_nonblock_mem_types;
    uint64_t          cache_mem_types;
    uint64_t          access_mem_types;
    size_t            rkey_packed_size;
    ucs_linear_func_t reg_cost;
} uct_nprdma_md_caps_t;


/**
 * List the usable devices as MD resources.
 *
 * @param [in]  component        Component.
 * @param [out] resources_p      Array that the caller frees; NULL without a
 *                               device.
 * @param [out] num_resources_p  Number of devices.
 *
 * @return UCS_OK, also with an invalid configuration, which lists no device; or
 *         UCS_ERR_NO_MEMORY.
 */
ucs_status_t
uct_nprdma_query_md_resources(uct_component_t *component,
                              uct_md_resource_desc_t **resources_p,
                              unsigned *num_resources_p);

/**
 * Open an MD.
 *
 * @param [in]  component  Component.
 * @param [in]  tables     Tables of functions; not copied.
 * @param [in]  md_name    Name of the device.
 * @param [in]  config     Configuration, a uct_nprdma_md_config_t, copied.
 * @param [out] md_p       The MD, to be closed with uct_nprdma_md_close().
 *
 * @return UCS_OK; UCS_ERR_INVALID_PARAM for an invalid configuration,
 *         UCS_ERR_NO_DEVICE, UCS_ERR_NO_MEMORY, UCS_ERR_IO_ERROR, or
 *         UCS_ERR_UNSUPPORTED if the process cannot serve peers, with a logged
 *         reason.
 */
ucs_status_t
uct_nprdma_md_open(uct_component_t *component,
                   const uct_nprdma_tables_t *tables, const char *md_name,
                   const uct_md_config_t *config, uct_md_h *md_p);

/**
 * Close an MD; does nothing in a forked child. Live registrations end. While
 * interfaces are open, the MD stays until the last of them is closed, because
 * their handlers and the service's thread use it. Either case is logged as one
 * warning.
 *
 * @param [in] md  MD.
 */
void uct_nprdma_md_close(uct_md_h md);

/** Add a reference of an interface, until uct_nprdma_md_put(). */
void uct_nprdma_md_get(uct_nprdma_md_t *md);

/**
 * Drop the reference of an interface, or of the user.
 *
 * @param [in] md  MD, freed with the last reference.
 */
void uct_nprdma_md_put(uct_nprdma_md_t *md);

/**
 * Check that this process may open interfaces.
 *
 * @param [in] md  MD.
 *
 * @return UCS_OK, or UCS_ERR_UNSUPPORTED with a logged reason in a forked child
 *         of the process that opened the MD.
 */
ucs_status_t uct_nprdma_md_check_owner(const uct_nprdma_md_t *md);

/**
 * Fill the memory statistics of an MD.
 *
 * @param [in]  md     MD.
 * @param [out] stats  Filled; the numbers need not be of the same moment.
 */
void uct_nprdma_md_stats(uct_nprdma_md_t *md, uct_nprdma_mem_stats_t *stats);

/**
 * Show the memory statistics in the UCS virtual file system, below an object.
 *
 * @param [in] md   MD; must live as long as the node.
 * @param [in] obj  Object that has a node.
 */
void uct_nprdma_md_vfs(uct_nprdma_md_t *md, void *obj);

/**
 * Fill the version-neutral attributes.
 *
 * @param [in]  md    MD.
 * @param [out] caps  Filled.
 */
void uct_nprdma_md_caps(uct_nprdma_md_t *md, uct_nprdma_md_caps_t *caps);

/**
 * List the ports in state ACTIVE as transport devices "device:port".
 *
 * @param [in]  md                MD.
 * @param [out] tl_devices_p      Array that the caller frees; NULL without a
 *                                port.
 * @param [out] num_tl_devices_p  Number of ports.
 *
 * @return UCS_OK, or UCS_ERR_NO_MEMORY with a logged reason.
 */
ucs_status_t
uct_nprdma_query_tl_devices(uct_md_h md,
                            uct_tl_device_resource_t **tl_devices_p,
                            unsigned *num_tl_devices_p);

#endif
