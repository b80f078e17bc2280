/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_CONFIG_H_
#define UCT_NPRDMA_CONFIG_H_

#include "uct/ib/nprdma/compat/nprdma_compat.h"
#include "uct/ib/nprdma/mem/nprdma_mem_md.h"
#include "uct/ib/nprdma/net/nprdma_cm_types.h"
#include "uct/ib/nprdma/rma/nprdma_rma_iface.h"

/* Maximum number of bytes of inline data that are requested from a device */
#define UCT_NPRDMA_MAX_INLINE  1024

/* Maximum number of receives posted by one call */
#define UCT_NPRDMA_RX_MAX_BATCH  64

/* One number, or two: the second is for connections of kind BULK */
typedef UCS_CONFIG_ARRAY_FIELD(unsigned, values) uct_nprdma_levels_t;


/* Of interfaces. Most are in the table of the MD, so that an MD with a wrong
 * value is not offered, and a program that does not require it goes on. */
typedef struct uct_nprdma_iface_config {
    size_t   seg_size;
    unsigned tx_slots;
    unsigned tx_slots_min;
    unsigned rx_slots;
    unsigned tx_queue_len;
    unsigned tx_cq_len;
    unsigned svc_queue_len;
    unsigned tx_moderation;
    unsigned rx_max_batch;
    size_t   max_inline;
    char     *perf;
    char     *stats;
} uct_nprdma_iface_config_t;


/* The table of interfaces. UCX's own tests set these by their names there. */
typedef struct uct_nprdma_bufs_config {
    uct_iface_config_t super;
    unsigned           tx_slots;
    unsigned           tx_slots_min;
    unsigned           rx_slots;
} uct_nprdma_bufs_config_t;


/* UCX reads the members that users set; uct_nprdma_md_complete_config() fills
 * the others */
typedef struct uct_nprdma_md_config {
    uct_md_config_t            super;
    uct_nprdma_emulation_t     emulation;
    size_t                     max_pinned; /* of the whole process, bytes */
    unsigned                   svc_slots;  /* receives of the service */
    unsigned                   svc_threads; /* that bring in pages for it */
    uct_nprdma_levels_t        sl;
    uct_nprdma_levels_t        traffic_class;
    char                       *inject;
    uct_nprdma_device_config_t device;
    uct_nprdma_mem_config_t    mem;
    uct_nprdma_rma_config_t    rma;
    uct_nprdma_cm_config_t     cm;
    uct_nprdma_iface_config_t  iface;
} uct_nprdma_md_config_t;


extern ucs_config_field_t uct_nprdma_md_config_table[];
extern ucs_config_field_t uct_nprdma_iface_config_table[];

/* Fill the members that users do not set, and check all values. An error line
 * names the variable. */
ucs_status_t uct_nprdma_md_complete_config(uct_nprdma_md_config_t *config);

/* Check the values that UCX has read for an interface */
ucs_status_t
uct_nprdma_iface_check_config(const uct_nprdma_bufs_config_t *bufs);

/* Change the costs of a device as UCX_NPRDMA_PERF says, which was checked */
ucs_status_t
uct_nprdma_config_set_perf(const char *text, uct_nprdma_perf_t *perf);

/* Warn, once in a process, of each variable of the environment that earlier
 * versions had, with what to use instead */
void uct_nprdma_config_tell_removed(void);

#endif
