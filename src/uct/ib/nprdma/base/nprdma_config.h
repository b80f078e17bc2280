/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_CONFIG_H_
#define UCT_NPRDMA_CONFIG_H_

#include <ucs/type/status.h>

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
