/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_PROBE_H_
#define NPRDMA_PROBE_H_

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

/**
 * A static probe (USDT) of the provider "nprdma", where bpftrace, perf and
 * SystemTap can attach to a running program. Without a tracer it is a nop. It
 * exists if the header sys/sdt.h did at build time. nprdma(7) lists the probes
 * with their arguments.
 *
 * @param [in] _name  Name of the probe.
 * @param [in] ...    Its arguments, integers or pointers, at most 12.
 */
#ifdef NPRDMA_WITH_USDT
#  define SDT_USE_VARIADIC
#  include <sys/sdt.h>
#  define NPRDMA_PROBE(_name, ...) STAP_PROBEV(nprdma, _name, ## __VA_ARGS__)
#else
#  define NPRDMA_PROBE(_name, ...) ((void)0)
#endif

#endif
