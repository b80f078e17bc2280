/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_CONFIG_H_
#define UCT_NPRDMA_CONFIG_H_

#include "uct/ib/nprdma/compat/nprdma_compat.h"
#include "uct/ib/nprdma/mem/nprdma_mem_md.h"
#include "uct/ib/nprdma/net/nprdma_cm_types.h"
#include "uct/ib/nprdma/rma/nprdma_rma_config.h"

/* More is not asked of a device, even if it could */
#define UCT_NPRDMA_MAX_INLINE  1024

/* Receives given to the device by one call */
#define UCT_NPRDMA_RX_MAX_BATCH  64

typedef struct uct_nprdma_md_config {
    uct_md_config_t            super;
    uct_nprdma_emulation_t     emulation;
    size_t                     max_pinned; /* process-wide, bytes */
    unsigned                   svc_slots;  /* receives of the service */
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
    char                   *stats;
    uct_nprdma_cm_config_t cm;
} uct_nprdma_iface_config_t;


extern ucs_config_field_t uct_nprdma_md_config_table[];
extern ucs_config_field_t uct_nprdma_iface_config_table[];

/**
 * Check values that UCX has parsed.
 *
 * @param [in] config  Configuration of an MD.
 *
 * @return UCS_OK, or UCS_ERR_INVALID_PARAM with a logged reason that names the
 *         variable.
 */
ucs_status_t uct_nprdma_md_check_config(const uct_nprdma_md_config_t *config);

/**
 * Check values that UCX has parsed.
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
 * interfaces, before UCX reads them: a program that does not insist on nprdma
 * should go on without it, and UCX's parser takes "1.5" or what does not fit
 * for some other number, names no prefix, and tells it several times.
 *
 * @return UCS_OK, or UCS_ERR_INVALID_PARAM. The first variable that is wrong is
 *         named in one error line, once for as long as the variables stay as
 *         they are.
 */
ucs_status_t uct_nprdma_config_check_env(void);

#endif
