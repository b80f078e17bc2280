/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * As much of libuct as libnprdma_preload.so knows about. With FAKE_STATS it is
 * one of a UCX with statistics.
 */

#include <stdio.h>

signed char uct_query_components(void ***components_p, unsigned *number_p);
void ucs_stats_node_alloc(void);

signed char uct_query_components(void ***components_p, unsigned *number_p)
{
    *components_p = NULL;
    *number_p     = 0;
    puts("libuct asked");
    return 0;
}

#ifdef FAKE_STATS
void ucs_stats_node_alloc(void)
{
}
#endif
