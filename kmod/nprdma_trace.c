// SPDX-License-Identifier: GPL-2.0-only
/* Copyright (c) 2026 The nprdma authors. */

/* The tracepoints of nprdma_trace.h are defined here, and only here. */

#define CREATE_TRACE_POINTS
#include "nprdma_trace.h"
