/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef UCT_NPRDMA_ABI_H_
#define UCT_NPRDMA_ABI_H_

/* Compare the running UCX with the one of the build, before anything is
 * registered. The tables that are passed to UCX contain no version, and libuct
 * has the same name and no symbol versions in all releases. If they do not
 * agree, one error line has been logged. */
int uct_nprdma_abi_is_compatible(void);


/* That line */
const char *uct_nprdma_abi_reason(void);

#endif
