/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * Preloaded, it makes a UCX without statistics look like one that has them.
 */

void ucs_stats_node_alloc(void);

void ucs_stats_node_alloc(void)
{
}
