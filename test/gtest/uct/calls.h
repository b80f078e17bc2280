/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_TEST_CALLS_H_
#define NPRDMA_TEST_CALLS_H_

#include <uct/api/uct.h>

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/** @return System calls by which the emulated RNIC of an MD has copied memory
 *          of other processes. Only differences mean something. */
uint64_t calls_count(uct_md_h md);

#ifdef __cplusplus
}
#endif

#endif
