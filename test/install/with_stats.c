/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * Preload library: a UCX without statistics looks like one that has them.
 */

void ucs_stats_node_alloc(void);

void ucs_stats_node_alloc(void)
{
}
