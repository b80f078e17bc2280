/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_CONFIG_H_
#define UCT_NPRDMA_CONFIG_H_

#include "uct/ib/nprdma/compat/nprdma_compat.h"
#include "uct/ib/nprdma/mem/nprdma_mem_md.h"
#include "uct/ib/nprdma/net/nprdma_cm_types.h"
#include "uct/ib/nprdma/rma/nprdma_rma_config.h"

/* Maximum number of bytes of inline data that are requested from a device */
#define UCT_NPRDMA_MAX_INLINE  1024

/* Maximum number of receives posted by one call */
#define UCT_NPRDMA_RX_MAX_BATCH  64

typedef struct uct_nprdma_md_config {
    uct_md_config_t            super;
    uct_nprdma_emulation_t     emulation;
    size_t                     max_pinned; /* of the whole process, bytes */
    unsigned                   svc_slots;   /* receives of the service */
    unsigned                   svc_threads; /* that bring in pages for it */
    uct_nprdma_device_config_t device;
    uct_nprdma_mem_config_t    mem;
    uct_nprdma_rma_config_t    rma;
} uct_nprdma_md_config_t;


typedef struct uct_nprdma_iface_config {
    uct_iface_config_t     super;
    size_t                 seg_size;
    unsigned               tx_slots;
    unsigned               tx_slots_min;
    unsigned               rx_slots;
    unsigned               rx_slots_min;
    unsigned               tx_queue_len;
    unsigned               tx_cq_len;
    unsigned               tx_moderation;
    unsigned               rx_max_batch;
    unsigned               svc_queue_len;
    size_t                 max_inline;
    char                   *perf;
    char                   *stats;
    uct_nprdma_cm_config_t cm;
} uct_nprdma_iface_config_t;


extern ucs_config_field_t uct_nprdma_md_config_table[];
extern ucs_config_field_t uct_nprdma_iface_config_table[];

/**
 * Check the values that UCX has parsed.
 *
 * @param [in] config  Configuration of an MD.
 *
 * @return UCS_OK, or UCS_ERR_INVALID_PARAM with a logged reason that names the
 *         variable.
 */
ucs_status_t uct_nprdma_md_check_config(const uct_nprdma_md_config_t *config);

/**
 * Check the values that UCX has parsed.
 *
 * @param [in] config  Configuration of an interface.
 *
 * @return UCS_OK, or UCS_ERR_INVALID_PARAM with a logged reason that names the
 *         variable.
 */
ucs_status_t
uct_nprdma_iface_check_config(const uct_nprdma_iface_config_t *config);

/**
 * Check all variables UCX_NPRDMA_xx of the environment, of MDs and of
 * interfaces, before UCX reads them. After an error, a program that does not
 * require nprdma can continue without it. UCX's parser accepts "1.5" and
 * numbers that are too large as other numbers. Its messages do not name the
 * prefix, and appear several times.
 *
 * @return UCS_OK, or UCS_ERR_INVALID_PARAM. One log line names the first
 *         invalid variable; it is not repeated while the variables are the
 *         same.
 */
ucs_status_t uct_nprdma_config_check_env(void);

#endif
