/* SPDX-License-Identifier: GPL-2.0-only */
/* Copyright (c) 2026 The nprdma authors. */

#ifndef NPRDMA_DEBUGFS_H
#define NPRDMA_DEBUGFS_H

void nprdma_debugfs_init(void);
void nprdma_debugfs_exit(void);

#endif
