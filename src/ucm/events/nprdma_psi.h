/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_PSI_H_
#define NPRDMA_PSI_H_

#include <ucs/sys/compiler_def.h>

#include <limits.h>
#include <poll.h>
#include <stddef.h>
#include <stdint.h>

BEGIN_C_DECLS

/**
 * Whether memory is short, for this process or its cgroups, as the kernel
 * reports it (Linux, Documentation/accounting/psi.rst and
 * admin-guide/cgroup-v2.rst). Three ways:
 *
 *   a PSI trigger    of the cgroup, else of the machine: wakes poll()
 *   memory.events    of the cgroup: inotify wakes poll(), as its usage reaches
 *                    memory.high or memory.max
 *   a sample         usage against limits, and MemAvailable: by a timer of the
 *                    caller, only where the kernel refuses the trigger
 *
 * Nothing here allocates. One thread at a time uses an object.
 */


#define NPRDMA_PSI_NUM_FDS 2


/** Where the kernel's files are. A test has its own. */
typedef struct nprdma_psi_params {
    const char *proc;    /* "/proc" */
    const char *cgroup;  /* "/sys/fs/cgroup" */
    const char *trigger; /* As psi.rst has it: some|full STALL WINDOW, in us */
} nprdma_psi_params_t;


typedef struct nprdma_psi {
    nprdma_psi_params_t params;
    int                 trigger_fd;  /* -1: refused, so samples are needed */
    int                 inotify_fd;  /* -1: no memory.events */
    uint64_t            events;      /* Sum of counts in memory.events */
    char                v2[PATH_MAX]; /* Folder of the process' cgroup, or
                                       * empty */
    char                v1[PATH_MAX]; /* The same in cgroup v1 */
    size_t              v2_root;     /* Length of the root's path in it */
    size_t              v1_root;
} nprdma_psi_t;


/**
 * Open what the kernel offers, and log at level debug what that is. The files
 * that do not exist or that cannot be parsed are left out.
 *
 * @param [out] psi     To be closed by @ref nprdma_psi_close.
 * @param [in]  params  Copied; the strings are not.
 */
void nprdma_psi_open(nprdma_psi_t *psi, const nprdma_psi_params_t *params);


/** Close all descriptors. May be repeated. */
void nprdma_psi_close(nprdma_psi_t *psi);


/** Fill in what poll() is to wait for; negative descriptors are ignored. */
void nprdma_psi_prepare(const nprdma_psi_t *psi,
                        struct pollfd fds[NPRDMA_PSI_NUM_FDS]);


/**
 * @param [in] psi  A trigger that reports an error (its cgroup was removed) is
 *                  closed: samples are needed from then on.
 * @param [in] fds  As poll() has left them.
 *
 * @return Nonzero if memory is short.
 */
int nprdma_psi_check(nprdma_psi_t *psi,
                     const struct pollfd fds[NPRDMA_PSI_NUM_FDS]);


/** @return Nonzero if there is no trigger, so the caller has to call @ref
 *          nprdma_psi_sample from time to time. */
static inline int nprdma_psi_needs_samples(const nprdma_psi_t *psi)
{
    return psi->trigger_fd < 0;
}


/**
 * Compare usage with limits. Memory is short if less than 5 % of the machine's
 * is available, or if a cgroup, that of the process or one above it, uses its
 * memory.high (soft limit in cgroup v1) or 95 % of its memory.max (limit).
 * Pages of files that were not used lately do not count as used.
 *
 * @return Nonzero if memory is short; zero also if no file can be read.
 */
int nprdma_psi_sample(const nprdma_psi_t *psi);

END_C_DECLS

#endif
