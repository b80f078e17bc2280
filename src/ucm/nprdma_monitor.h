/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_MONITOR_H_
#define NPRDMA_MONITOR_H_

#include "nprdma_monitor_types.h"
#include "nprdma_populate.h"

BEGIN_C_DECLS

/*
 * The memory monitor: which pages of this process a NIC may access. Addresses
 * that stay, and pages behind them that go, are the idea of NP-RDMA (arXiv
 * 2310.11062). Regions before their first use are that of Gerofi et al.
 * (doi 10.1145/2966884.2966888). ARCHITECTURE 3 has the order of all steps.
 */


/**
 * Create a monitor.
 *
 * @param [in]  params     Copied.
 * @param [out] monitor_p  To be given to @ref nprdma_monitor_destroy.
 *
 * @return UCS_OK; UCS_ERR_INVALID_PARAM after a log line that names the
 *         parameter; UCS_ERR_UNSUPPORTED if memory events are not available
 *         (switched off by UCX_MEM_EVENTS=n, or hooks cannot be installed):
 *         no access by the NIC is safe without them; UCS_ERR_NO_DEVICE if the
 *         back end cannot be used; UCS_ERR_NO_MEMORY.
 */
ucs_status_t nprdma_monitor_create(const nprdma_monitor_params_t *params,
                                   nprdma_monitor_t **monitor_p);


/**
 * Destroy a monitor and its regions. In a child made by fork() this only frees
 * the memory of the child: the regions are the parent's.
 *
 * @param [in] monitor  Monitor that no thread uses. A warning reports the
 *                      number of registrations that are still live. They end:
 *                      the nprdma_range_t is not accessed, and must not be
 *                      passed to @ref nprdma_monitor_unregister any more.
 */
void nprdma_monitor_destroy(nprdma_monitor_t *monitor);


/**
 * Register a range: find a region that covers it, or create one. Accesses and
 * populates no memory: it need not even be mapped yet. If there is a region,
 * this makes no system call and takes only the lock of that region.
 *
 * Must not be called in memory hooks.
 *
 * @param [in]  monitor  Monitor.
 * @param [in]  address  First byte.
 * @param [in]  length   Bytes, at least one.
 * @param [out] range    Memory of the caller, which stays in place until
 *                       @ref nprdma_monitor_unregister. Ranges may overlap.
 *
 * @return UCS_OK; UCS_ERR_INVALID_PARAM if the range is empty, wraps around, or
 *         ends in the last page of the address space;
 *         UCS_ERR_UNSUPPORTED in a forked child. If a region has to be created:
 *         UCS_ERR_NO_MEMORY; UCS_ERR_EXCEEDS_LIMIT (too many regions, or they
 *         use a quarter of the file descriptors, or there is no descriptor);
 *         UCS_ERR_OUT_OF_RANGE (RLIMIT_FSIZE); or the error of attach.
 */
ucs_status_t nprdma_monitor_register(nprdma_monitor_t *monitor,
                                     uintptr_t address, size_t length,
                                     nprdma_range_t *range);


/**
 * As @ref nprdma_monitor_register, for the buffer of an operation of this
 * process. The region is local: only local scatter/gather entries of work
 * requests refer to it, and peers have no key of it.
 */
ucs_status_t nprdma_monitor_register_local(nprdma_monitor_t *monitor,
                                           uintptr_t address, size_t length,
                                           nprdma_range_t *range);


/**
 * End a registration. Parameter `revoke` of the monitor says how long its pages
 * stay accessible to the NIC, ready for the next registration. Never allocates,
 * so the memory hooks of a registration cache may call it.
 *
 * @param [in] monitor     Monitor.
 * @param [in] range       Live range that no thread populates.
 * @param [in] invalidate  Nonzero: a peer may use its key after this returns.
 *                         Revoke all pages of the range at once, and close its
 *                         region: for peers that have its keys, the NIC does
 *                         not access them any more, even if they are registered
 *                         again, which creates another region. For other live
 *                         ranges in these pages only software is left.
 */
void nprdma_monitor_unregister(nprdma_monitor_t *monitor, nprdma_range_t *range,
                               int invalidate);


/**
 * Do one tick of NPRDMA_REVOKE_LAZY, in place of its thread. For tests whose
 * monitor has no thread (nprdma_monitor_params_t::revoke_tick is 0).
 *
 * @return Nonzero if work is left for the next ticks.
 */
int nprdma_monitor_tick(nprdma_monitor_t *monitor);


/**
 * @param [in]  monitor  Monitor.
 * @param [out] stats    Filled. The counters are not read at the same moment.
 */
void nprdma_monitor_query(nprdma_monitor_t *monitor,
                          nprdma_monitor_stats_t *stats);


/**
 * Count pages and their events from zero again: what the monitor has done so
 * far was not for the application. Regions are counted as before. Called before
 * other threads use the monitor.
 *
 * @param [in] monitor  Monitor.
 */
void nprdma_monitor_restart_stats(nprdma_monitor_t *monitor);


/**
 * In a child after fork(), before it calls any other function of src/ucm:
 * release the locks that are not held during fork(). They protect what is
 * opened once per process, and a child opens its own. For a handler of
 * pthread_atfork() of the caller.
 */
void nprdma_monitor_forked(void);

END_C_DECLS

#endif
