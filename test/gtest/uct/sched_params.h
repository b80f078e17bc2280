/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_TEST_SCHED_PARAMS_H_
#define NPRDMA_TEST_SCHED_PARAMS_H_

#include <uct/api/uct.h>

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Numbers of the scheduler that no user sets. Those that are not there stay. */
typedef struct {
    int    has_prio_max;
    size_t prio_max;
    int    has_quota;
    size_t quota;      /* 0: the scheduler's own; SIZE_MAX: none */
    int    has_busy_slice;
    size_t busy_slice;
    int    is_shared;  /* Large operations are on the queue pair of requests */
} sched_params_t;

/** For interfaces of the MD that are opened later. */
void sched_params_set(uct_md_h md, const sched_params_t *params);

#ifdef __cplusplus
}
#endif

#endif
