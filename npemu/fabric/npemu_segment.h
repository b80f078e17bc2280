/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * System V segments that belong to this user alone.
 *
 * A segment has no key, so no other user can name it, and it is marked for
 * destruction at once, so the kernel frees it with its last attachment. The
 * creator of a segment can change its owner and keeps all rights to it. So a
 * segment is ours only if this user is both creator and owner and no other user
 * has any permission. Other segments are neither read nor written.
 *
 * The low 12 bits of the size, as the kernel stores it, are the kind of a
 * segment. They distinguish it from segments of other programs of this user.
 */

#ifndef NPEMU_SEGMENT_H
#define NPEMU_SEGMENT_H

#include <stddef.h>

/* Low bits of the size; they do not change with NPEMU_SHM_VERSION. */
typedef enum {
    NPEMU_SEGMENT_FABRIC = 0x6e1,
    NPEMU_SEGMENT_ARENA  = 0x6e2
} npemu_segment_kind_t;

/* A walk over the kernel's table of segments. */
typedef struct {
    int next; /* index in the table */
    int max;
} npemu_segment_walk_t;

/** Create a segment of zeros and attach it. A child of fork() does not inherit
 * the attachment, and the last npemu_segment_detach() frees the segment.
 * `id_p`: shmid, by which processes of this user attach it. Returns its
 * address, or NULL with errno of shmget(), shmat() or madvise(). */
void *npemu_segment_create(npemu_segment_kind_t kind, size_t size, int *id_p);

/**
 * Attach a segment that npemu_segment_create() made in a process of this user.
 * A child of fork() does not inherit the attachment. `size_p`: bytes, rounded
 * up to pages. Returns its address, or NULL with errno: EPERM if the segment is
 * not of this kind or not of this user alone, else that of shmat() or
 * madvise().
 */
void *npemu_segment_attach(npemu_segment_kind_t kind, int id, size_t *size_p);

/** Detach what one of the two functions above returned. */
void npemu_segment_detach(void *address);

/** Start a walk over all segments of the IPC namespace. It finds every segment
 * that exists from before its start to after its end. Returns 0, or -1 with
 * errno of shmctl(). */
int npemu_segment_walk(npemu_segment_walk_t *walk);

/** The next segment of a kind that is of this user alone. Removes segments that
 * processes had not finished when they were killed. Returns shmid, or -1 at the
 * end of the walk. */
int npemu_segment_next(npemu_segment_walk_t *walk, npemu_segment_kind_t kind);

#endif
