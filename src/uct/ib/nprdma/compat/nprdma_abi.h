/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_ABI_H_
#define UCT_NPRDMA_ABI_H_

/**
 * The tables that we hand to UCX have no version in them, and libuct has the
 * same name and no symbol versions in all releases: so compare the running
 * UCX with the one that this was built for, before anything is registered.
 *
 * @return Whether they agree; if not, one error line has been logged.
 */
int uct_nprdma_abi_is_compatible(void);

#endif
