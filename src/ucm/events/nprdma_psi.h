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
 * admin-guide/cgroup-v2.rst). Four ways:
 *
 *   a PSI trigger    of the cgroup, else of the machine: wakes poll()
 *   memory.events    of the cgroup: inotify wakes poll(), as its usage reaches
 *                    memory.high or memory.max
 *   a call           of another process of the cgroup, for which there is too
 *                    little room: inotify wakes poll(), as it opens a file of
 *                    the cgroup (nprdma_room.h)
 *   a sample         usage against limits, and MemAvailable: by a timer of the
 *                    caller, where the kernel refuses the trigger, or where a
 *                    cgroup has a limit
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


/** No limit is above this: "max" counts as UINT64_MAX, and cgroup v1 has some
 * 2^63 where none is set */
#define NPRDMA_PSI_NO_LIMIT ((uint64_t)1 << 62)


/** Fields of memory.stat: pages of files, which the kernel takes back before it
 * kills. They are not what a process wrote to anonymous or shared memory. */
#define NPRDMA_PSI_NUM_CACHED 2


/** Names of a version's files. A limit that is not set is a huge number, or
 *  "max", in both. */
typedef struct nprdma_psi_names {
    const char *usage;
    const char *high;
    const char *max;
    const char *cached[NPRDMA_PSI_NUM_CACHED];
    const char *call; /* A file that hardly anything reads: to open it calls the
                       * processes of the cgroup */
} nprdma_psi_names_t;


typedef struct nprdma_psi {
    nprdma_psi_params_t params;
    int                 trigger_fd;  /* -1: refused, so samples are needed */
    int                 inotify_fd;  /* -1: none */
    uint64_t            events;      /* Sum of counts in memory.events */
    char                v2[PATH_MAX]; /* Folder of the process' cgroup, or
                                       * empty */
    char                v1[PATH_MAX]; /* The same in cgroup v1 */
    int                 is_limited;  /* A cgroup has a limit */
    size_t              v2_root;     /* Length of the root's path in it */
    size_t              v1_root;
} nprdma_psi_t;


/**
 * Find the cgroups of the process.
 *
 * @param [out] psi     For @ref nprdma_psi_find_group only; nothing is opened.
 * @param [in]  params  Copied; the strings are not.
 */
void nprdma_psi_locate(nprdma_psi_t *psi, const nprdma_psi_params_t *params);


/** Called with the folder of a cgroup. @return Nonzero to end the search. */
typedef int (*nprdma_psi_func_t)(void *arg, const char *folder,
                                 const nprdma_psi_names_t *names);


/**
 * Call a function for each cgroup in which the process is, from the innermost
 * to the root.
 *
 * @return Nonzero if the function has ended the search.
 */
int nprdma_psi_find_group(const nprdma_psi_t *psi, nprdma_psi_func_t func,
                          void *arg);


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


/** @return Nonzero if the caller has to call @ref nprdma_psi_sample repeatedly:
 *          there is no trigger, or a cgroup has a limit, which it may meet
 *          before anything stalls. */
static inline int nprdma_psi_needs_samples(const nprdma_psi_t *psi)
{
    return (psi->trigger_fd < 0) || psi->is_limited;
}


/**
 * @param [in] params  Where the kernel's files are.
 *
 * @return Bytes of memory of this process that is resident, and of no file;
 *         UINT64_MAX if that cannot be read.
 */
uint64_t nprdma_psi_own(const nprdma_psi_params_t *params);


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
