/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_ASSERT_H_
#define NPRDMA_ASSERT_H_

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include <ucs/debug/assert.h>

/**
 * Assert a rule of ARCHITECTURE 3. Exists with --enable-debug only; otherwise
 * the condition is compiled, but not evaluated.
 *
 * ucs_assert() follows the configuration of UCX instead, because structures of
 * UCX differ with it. Debian's UCX has it in release builds. Therefore a
 * condition that costs time on the data path is not for ucs_assert().
 *
 * @param [in] _cond  Condition, which may call functions without effects.
 */
#ifdef NPRDMA_ENABLE_DEBUG
#  define nprdma_assert(_cond) ucs_assert_always(_cond)
#else
#  define nprdma_assert(_cond) ((void)(0 && (_cond)))
#endif

#endif
