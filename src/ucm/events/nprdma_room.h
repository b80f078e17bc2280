/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_ROOM_H_
#define NPRDMA_ROOM_H_

#include "nprdma_hook.h"
#include "nprdma_psi.h"

BEGIN_C_DECLS

/**
 * How much memory the process may take before one of its cgroups meets its
 * limit. The kernel cannot take back what nprdma keeps, except in swap. So
 * where it finds no other memory to take, it kills a process at once, without
 * the stalls that PSI would report (admin-guide/cgroup-v2.rst, "memory.max").
 * Therefore hooks ask here before memory is taken.
 */


/** Levels of cgroups with a limit that are looked at, the innermost first */
#define NPRDMA_ROOM_MAX_GROUPS 8


typedef struct nprdma_room_group {
    int         usage_fd;
    int         limit_fd;
    int         stat_fd;  /* -1: none */
    int         folder_fd;
    const nprdma_psi_names_t *names;
    uint64_t    limit;    /* Atomic, also for C++; these two at `read_at` */
    uint64_t    cached;   /* Bytes of files, which the kernel can take back */
} nprdma_room_group_t;

/** All zeros: without limits */
typedef struct nprdma_room {
    unsigned            num_groups;
    uint64_t            read_at;   /* Milliseconds; atomic */
    uint64_t            called_at; /* The same */
    nprdma_room_group_t groups[NPRDMA_ROOM_MAX_GROUPS];
} nprdma_room_t;


/**
 * Find the cgroups of the process. If it moves to others, this does not follow.
 * A cgroup whose files cannot be opened counts as one without a limit.
 *
 * @param [out] room    To be closed by @ref nprdma_room_close.
 * @param [in]  params  Where the kernel's files are.
 */
void nprdma_room_open(nprdma_room_t *room, const nprdma_psi_params_t *params);


/** Close all descriptors. There is no limit from then on. May be repeated. */
void nprdma_room_close(nprdma_room_t *room);


/**
 * For hooks; keeps errno. One read for each cgroup that has a limit. Limits,
 * and how much of the memory is of files that were not used lately, are at most
 * 0.1 s old.
 *
 * @param [in] length   Bytes that are about to be taken; may be 0.
 * @param [in] percent  Of the limit, up to which memory may be used.
 *
 * @return Nonzero if no cgroup uses more with them.
 */
int nprdma_room_has(nprdma_room_t *room, size_t length, unsigned percent);


/**
 * For hooks; keeps errno. Reads as @ref nprdma_room_has does.
 *
 * @param [in]  percent  Of the limit, up to which memory may be used.
 * @param [in]  own      Bytes that are used by this process.
 * @param [out] part_p   Of what is left, the part of the process: as large a
 *                       part as it has of what is used. So the parts of all
 *                       processes together are not more than what is left.
 *
 * @return Bytes that may still be taken. Both are SIZE_MAX without a limit.
 */
size_t nprdma_room_left(nprdma_room_t *room, unsigned percent, size_t own,
                        size_t *part_p);


/**
 * For hooks; keeps errno. Call the other processes of a cgroup that has no room
 * (nprdma_psi.h), so that they give back what they keep. At most once in 2 s.
 *
 * @param [in] length, percent  As for @ref nprdma_room_has.
 *
 * @return Nonzero if they were called.
 */
int nprdma_room_call(nprdma_room_t *room, size_t length, unsigned percent);

END_C_DECLS

#endif
