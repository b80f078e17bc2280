/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "fabric/npemu_segment.h"
#include "base/npemu_log.h"
#include "base/npemu_util.h"
#include "fabric/npemu_shm.h"

#include <errno.h>
#include <signal.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SHM_NORESERVE
#define SHM_NORESERVE 010000
#endif

#ifndef SHM_DEST
#define SHM_DEST 01000
#endif

#define NPEMU_SEGMENT_MODE (S_IRUSR | S_IWUSR)

static int npemu_segment_kind(const struct shmid_ds *ds)
{
    return ds->shm_segsz & (NPRDMA_PAGE_SIZE - 1);
}

/* Only the creator and the owner of a segment can change its permissions. If
 * both are this user, and always were, no other user has it attached. */
static int npemu_segment_is_ours(const struct shmid_ds *ds)
{
    uid_t user = geteuid();

    return (ds->shm_perm.cuid == user) && (ds->shm_perm.uid == user) &&
           ((ds->shm_perm.mode & 0777) == NPEMU_SEGMENT_MODE) &&
           (ds->shm_segsz > NPRDMA_PAGE_SIZE);
}

static int npemu_segment_is(const struct shmid_ds *ds,
                            npemu_segment_kind_t kind)
{
    return npemu_segment_is_ours(ds) && (ds->shm_perm.mode & SHM_DEST) &&
           (npemu_segment_kind(ds) == (int)kind);
}

/* Without memory hooks, see npemu_madvise() */
static void *npemu_segment_map(int id)
{
    return (void*)syscall(SYS_shmat, id, NULL, 0);
}

void npemu_segment_detach(void *address)
{
    syscall(SYS_shmdt, address);
}

/* Returns 0 if the segment is what it should be, else an errno value. */
static int npemu_segment_check(npemu_segment_kind_t kind, int id, size_t *size)
{
    struct shmid_ds ds;

    if (shmctl(id, IPC_STAT, &ds) < 0) {
        return errno;
    }

    *size = ds.shm_segsz;
    return npemu_segment_is(&ds, kind) ? 0 : EPERM;
}

void *npemu_segment_attach(npemu_segment_kind_t kind, int id, size_t *size_p)
{
    size_t size = 0;
    void *address;
    int ret;

    ret = npemu_segment_check(kind, id, &size);
    if (ret != 0) {
        errno = ret;
        return NULL;
    }

    address = npemu_segment_map(id);
    if (address == (void*)-1) {
        return NULL;
    }

    /* The id may refer to another segment by now. From the attachment on it
     * cannot change, so this checks the segment that is attached. */
    ret = npemu_segment_check(kind, id, &size);
    if ((ret == 0) && (npemu_madvise(address, size, MADV_DONTFORK) < 0)) {
        ret = errno; /* a child must not inherit it */
    }
    if (ret != 0) {
        npemu_segment_detach(address);
        errno = ret;
        return NULL;
    }

    *size_p = size - kind;
    return address;
}

void *npemu_segment_create(npemu_segment_kind_t kind, size_t size, int *id_p)
{
    int flags = IPC_CREAT | IPC_EXCL | SHM_NORESERVE | NPEMU_SEGMENT_MODE;
    void *address;
    int id, error;

    size = (size + NPRDMA_PAGE_SIZE - 1) & ~(NPRDMA_PAGE_SIZE - 1);
    id   = shmget(IPC_PRIVATE, size + kind, flags);
    if (id < 0) {
        return NULL;
    }

    /* Marked before it is attached, it would be freed at once */
    address = npemu_segment_map(id);
    error   = errno;
    shmctl(id, IPC_RMID, NULL);
    if (address == (void*)-1) {
        errno = error;
        return NULL;
    }

    if (npemu_madvise(address, size + kind, MADV_DONTFORK) < 0) {
        error = errno;
        npemu_segment_detach(address);
        errno = error;
        return NULL;
    }

    *id_p = id;
    return address;
}

/* --- the kernel's table ----------------------------------------------------*/

int npemu_segment_walk(npemu_segment_walk_t *walk)
{
    struct shm_info info;

    walk->next = 0;
    walk->max  = shmctl(0, SHM_INFO, (void*)&info);
    return (walk->max < 0) ? -1 : 0;
}

/* Remove the segment of a process that was killed before it could mark the
 * segment for destruction. Only its creator has ever had it attached. */
static void npemu_segment_sweep(const struct shmid_ds *ds, int id)
{
    int kind = npemu_segment_kind(ds);

    if ((ds->shm_perm.mode & SHM_DEST) || (ds->shm_nattch != 0) ||
        ((kind != NPEMU_SEGMENT_FABRIC) && (kind != NPEMU_SEGMENT_ARENA)) ||
        ((ds->shm_lpid != 0) && (ds->shm_lpid != ds->shm_cpid)) ||
        (ds->shm_cpid <= 0) || (kill(ds->shm_cpid, 0) == 0) ||
        (errno != ESRCH)) {
        return;
    }

    npemu_info("removing shared memory segment %d of dead process %d", id,
               (int)ds->shm_cpid);
    shmctl(id, IPC_RMID, NULL);
}

int npemu_segment_next(npemu_segment_walk_t *walk, npemu_segment_kind_t kind)
{
    struct shmid_ds ds;
    int id;

    while (walk->next <= walk->max) {
        /* Fails for an unused index, and without permission to read */
        id = shmctl(walk->next++, SHM_STAT, &ds);
        if ((id < 0) || !npemu_segment_is_ours(&ds)) {
            continue;
        }

        npemu_segment_sweep(&ds, id);
        if (npemu_segment_is(&ds, kind)) {
            return id;
        }
    }
    return -1;
}
