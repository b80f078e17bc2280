/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "npemu_fabric.h"
#include "npemu_log.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifndef SHM_NORESERVE
#define SHM_NORESERVE 010000
#endif

#ifndef SHM_DEST
#define SHM_DEST 01000
#endif

/* How often attaching starts over when another process interferes. */
#define NPEMU_FABRIC_RETRIES 2000

/* Keys tried when somebody else's segment sits on the first ones. */
#define NPEMU_FABRIC_KEYS 16

/* Longest wait for the threads of a dying process, milliseconds. */
#define NPEMU_GONE_WAIT_MS 1000

static const uint32_t npemu_size_check =
        sizeof(npemu_slot_t) * 3 + sizeof(npemu_qp_shm_t) * 5 +
        sizeof(npemu_mr_shm_t) * 7 + sizeof(npemu_rq_shm_t) * 11 +
        sizeof(npemu_cq_shm_t) * 13 + sizeof(npemu_cqe_t) * 17 +
        sizeof(npemu_arena_shm_t) * 19 + sizeof(npemu_table_shm_t) * 23;

static uint64_t npemu_ns_inode(const char *path)
{
    struct stat st;

    return (stat(path, &st) == 0) ? st.st_ino : 0;
}

static uint64_t npemu_mix(uint64_t hash, uint64_t value)
{
    hash ^= value + 0x9e3779b97f4a7c15ull + (hash << 6) + (hash >> 2);
    hash ^= hash >> 30;
    hash *= 0xbf58476d1ce4e5b9ull;
    hash ^= hash >> 27;
    hash *= 0x94d049bb133111ebull;
    return hash ^ (hash >> 31);
}

ssize_t npemu_read_proc(const char *path, char *text, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t len;

    if (fd < 0) {
        return -1;
    }

    len = read(fd, text, size - 1);
    close(fd);
    if (len >= 0) {
        text[len] = '\0';
    }
    return len;
}

static uint64_t npemu_boot_id(void)
{
    uint64_t hash = 0;
    char text[64];
    ssize_t len, i;

    len = npemu_read_proc("/proc/sys/kernel/random/boot_id", text,
                          sizeof(text));
    if (len < 0) {
        return (uint64_t)gethostid();
    }

    for (i = 0; i < len; ++i) {
        hash = npemu_mix(hash, (unsigned char)text[i]);
    }
    return hash;
}

static uint64_t npemu_fabric_compute_id(void)
{
    uint64_t hash = npemu_boot_id();

    hash = npemu_mix(hash, npemu_ns_inode("/proc/self/ns/ipc"));
    hash = npemu_mix(hash, npemu_ns_inode("/proc/self/ns/pid"));
    return npemu_mix(hash, geteuid());
}

/* The id is asked for often. What it depends on can change: the user by setuid,
 * the namespaces before the process attaches, where it is computed anew. */
static _Atomic uint64_t npemu_fabric_cached_id;
static _Atomic uint32_t npemu_fabric_cached_uid;

static void npemu_fabric_refresh_id(void)
{
    atomic_store(&npemu_fabric_cached_uid, geteuid());
    atomic_store(&npemu_fabric_cached_id, npemu_fabric_compute_id());
}

uint64_t npemu_fabric_id(void)
{
    if ((atomic_load(&npemu_fabric_cached_id) == 0) ||
        (atomic_load(&npemu_fabric_cached_uid) != geteuid())) {
        npemu_fabric_refresh_id();
    }
    return atomic_load(&npemu_fabric_cached_id);
}

void *npemu_shm_attach(int id)
{
    struct shmid_ds ds;
    void *address;

    address = shmat(id, NULL, 0);
    if (address == (void*)-1) {
        return NULL;
    }

    /* A child must not look alive through our counters and locks */
    if ((shmctl(id, IPC_STAT, &ds) < 0) ||
        (madvise(address, ds.shm_segsz, MADV_DONTFORK) < 0)) {
        shmdt(address);
        return NULL;
    }

    return address;
}

void *npemu_shm_create(int key, size_t size, int *id_p)
{
    int flags = IPC_CREAT | IPC_EXCL | SHM_NORESERVE | S_IRUSR | S_IWUSR;
    void *address;
    int saved_errno;
    int id;

    id = shmget(key, size, flags);
    if (id < 0) {
        return NULL;
    }

    address     = npemu_shm_attach(id);
    saved_errno = errno;
    if ((key == IPC_PRIVATE) || (address == NULL)) {
        shmctl(id, IPC_RMID, NULL);
    }
    errno = saved_errno;
    *id_p = id;
    return address;
}

static void npemu_fabric_init(npemu_fabric_shm_t *fabric)
{
    pthread_mutexattr_t attr;
    unsigned i;

    pthread_mutexattr_init(&attr);
    pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
    pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
    for (i = 0; i < NPEMU_MAX_PROCS; ++i) {
        pthread_mutex_init(&fabric->slots[i].life, &attr);
    }
    pthread_mutexattr_destroy(&attr);

    fabric->version    = NPEMU_SHM_VERSION;
    fabric->size_check = npemu_size_check;
    fabric->pid_ns     = npemu_ns_inode("/proc/self/ns/pid");
    fabric->fabric_id  = npemu_fabric_id();
    atomic_store(&fabric->magic, NPEMU_FABRIC_MAGIC);
}

typedef enum {
    NPEMU_CANDIDATE_GOOD,
    NPEMU_CANDIDATE_OTHER, /* something else, look further */
    NPEMU_CANDIDATE_BAD    /* our fabric, but not usable: refuse */
} npemu_candidate_t;

static npemu_candidate_t
npemu_fabric_check(npemu_fabric_shm_t *fabric, size_t size, int id)
{
    int known = atomic_load(&fabric->magic) == NPEMU_FABRIC_MAGIC;

    if (!known) {
        if (size != sizeof(npemu_fabric_shm_t)) {
            return NPEMU_CANDIDATE_OTHER;
        }

        npemu_error("shared memory segment %d is a damaged npemu fabric; end "
                    "the processes that use it (ipcs -mp)", id);
        return NPEMU_CANDIDATE_BAD;
    }

    if ((fabric->version != NPEMU_SHM_VERSION) ||
        (fabric->size_check != npemu_size_check) ||
        (size != sizeof(npemu_fabric_shm_t))) {
        npemu_error("shared memory segment %d is an npemu fabric of another "
                    "version (%u, this is %u); end the processes that use it "
                    "(ipcs -mp)", id, fabric->version, NPEMU_SHM_VERSION);
        return NPEMU_CANDIDATE_BAD;
    }

    if (fabric->pid_ns != npemu_ns_inode("/proc/self/ns/pid")) {
        return NPEMU_CANDIDATE_OTHER;
    }

    if ((fabric->fabric_id != npemu_fabric_id()) ||
        (atomic_load(&fabric->num_slots) > NPEMU_MAX_PROCS)) {
        npemu_error("shared memory segment %d is a damaged npemu fabric; end "
                    "the processes that use it (ipcs -mp)", id);
        return NPEMU_CANDIDATE_BAD;
    }

    return NPEMU_CANDIDATE_GOOD;
}

/* A process killed between shmget() and IPC_RMID leaves an empty segment that
 * nobody has attached: remove it. */
static void npemu_fabric_sweep(const struct shmid_ds *ds, int id)
{
    if ((ds->shm_nattch != 0) || (ds->shm_perm.mode & SHM_DEST) ||
        ((ds->shm_segsz != sizeof(npemu_fabric_shm_t)) &&
         (ds->shm_segsz != NPEMU_ARENA_SIZE)) ||
        (ds->shm_cpid <= 0) || (kill(ds->shm_cpid, 0) == 0) ||
        (errno != ESRCH)) {
        return;
    }

    npemu_info("removing shared memory segment %d of dead process %d", id,
               (int)ds->shm_cpid);
    shmctl(id, IPC_RMID, NULL);
}

/* Look at all segments. Returns 0 and the fabric or NULL, or -1 to refuse. */
static int npemu_fabric_find(npemu_fabric_shm_t **fabric_p)
{
    npemu_candidate_t candidate;
    struct shm_info info;
    struct shmid_ds ds;
    void *address;
    int i, id, max;

    *fabric_p = NULL;
    max       = shmctl(0, SHM_INFO, (void*)&info);
    if (max < 0) {
        npemu_error("no System V shared memory (shmctl: %s), which the "
                    "emulated RNIC needs", strerror(errno));
        return -1;
    }

    for (i = 0; i <= max; ++i) {
        id = shmctl(i, SHM_STAT, &ds);
        if ((id < 0) || (ds.shm_perm.uid != geteuid()) ||
            ((ds.shm_perm.mode & 0777) != (S_IRUSR | S_IWUSR))) {
            continue;
        }

        npemu_fabric_sweep(&ds, id);
        if (!(ds.shm_perm.mode & SHM_DEST) ||
            (ds.shm_segsz < NPEMU_PAGE_SIZE) ||
            (ds.shm_segsz == NPEMU_ARENA_SIZE)) {
            continue;
        }

        address = npemu_shm_attach(id);
        if (address == NULL) {
            continue; /* freed meanwhile */
        }

        candidate = npemu_fabric_check(address, ds.shm_segsz, id);
        if (candidate == NPEMU_CANDIDATE_GOOD) {
            *fabric_p = address;
            return 0;
        }

        shmdt(address);
        if (candidate == NPEMU_CANDIDATE_BAD) {
            return -1;
        }
    }

    return 0;
}

/*
 * The key is the lock of creation: shmget(IPC_EXCL) lets one process through,
 * and IPC_RMID takes the key away again when the segment is complete. Segments
 * are found while they are marked for destruction only, so nobody sees a half
 * made one. Returns 1 made, 0 try again, -1 failure.
 */
static int npemu_fabric_create(npemu_fabric_shm_t **fabric_p)
{
    int base = (int)(npemu_fabric_id() & 0x3fffffff) | 0x40000000;
    npemu_fabric_shm_t *fabric;
    struct shmid_ds ds;
    int i, id, ret;

    for (i = 0; i < NPEMU_FABRIC_KEYS; ++i) {
        fabric = npemu_shm_create(base + i, sizeof(*fabric), &id);
        if (fabric != NULL) {
            break;
        }

        if (errno != EEXIST) {
            npemu_error("cannot make the shared memory of the emulated RNIC "
                        "(%zu bytes): %s", sizeof(*fabric), strerror(errno));
            return -1;
        }

        id = shmget(base + i, 0, 0);
        if ((id >= 0) && (shmctl(id, IPC_STAT, &ds) == 0) &&
            (ds.shm_perm.uid == geteuid())) {
            /* being made right now, or its maker was killed doing so */
            npemu_fabric_sweep(&ds, id);
            return 0;
        }
    }

    if (i == NPEMU_FABRIC_KEYS) {
        npemu_error("cannot make the shared memory of the emulated RNIC: keys "
                    "0x%x to 0x%x belong to other users", base, base + i - 1);
        return -1;
    }

    /* Somebody may have finished one between our search and now */
    ret = npemu_fabric_find(fabric_p);
    if ((ret != 0) || (*fabric_p != NULL)) {
        shmctl(id, IPC_RMID, NULL);
        shmdt(fabric);
        return (ret != 0) ? -1 : 1;
    }

    npemu_fabric_init(fabric);
    shmctl(id, IPC_RMID, NULL);
    *fabric_p = fabric;
    return 1;
}

npemu_fabric_shm_t *npemu_fabric_attach(void)
{
    const struct timespec pause = {.tv_nsec = 1000000};
    npemu_fabric_shm_t *fabric;
    int i, ret;

    npemu_fabric_refresh_id();
    for (i = 0; i < NPEMU_FABRIC_RETRIES; ++i) {
        if (npemu_fabric_find(&fabric) < 0) {
            errno = ENODEV;
            return NULL;
        }

        if (fabric != NULL) {
            return fabric;
        }

        ret = npemu_fabric_create(&fabric);
        if (ret > 0) {
            return fabric;
        } else if (ret < 0) {
            errno = (errno == ENOMEM) ? ENOMEM : ENODEV;
            return NULL;
        }

        nanosleep(&pause, NULL);
    }

    npemu_error("another process has been making the shared memory of the "
                "emulated RNIC for too long (stopped?)");
    errno = ENODEV;
    return NULL;
}

void npemu_fabric_detach(npemu_fabric_shm_t *fabric)
{
    shmdt(fabric);
}

static void npemu_slot_reset(npemu_fabric_shm_t *fabric, unsigned index)
{
    npemu_slot_t *slot = &fabric->slots[index];
    uint32_t gen       = atomic_load(&slot->gen) + 1;
    uint32_t num_slots = atomic_load(&fabric->num_slots);
    npemu_thread_seq_t *seq;
    unsigned i;

    atomic_store(&slot->ready, 0);
    atomic_store(&slot->gen, (gen & 0xfffff) ? gen : gen + 1);
    for (i = 0; i < NPEMU_MAX_THREADS; ++i) {
        seq = &fabric->threads[index][i];
        atomic_fetch_add(&seq->seq, atomic_load(&seq->seq) & 1);
        atomic_fetch_add(&seq->dma, atomic_load(&seq->dma) & 1);
    }
    atomic_store(&slot->nthreads, 0);

    while ((num_slots <= index) &&
           !atomic_compare_exchange_weak(&fabric->num_slots, &num_slots,
                                         index + 1)) {
    }
}

int npemu_slot_claim(npemu_fabric_shm_t *fabric)
{
    unsigned i, index;
    int ret;

    for (i = 1; i <= NPEMU_MAX_PROCS; ++i) {
        /* Slot 0 last: the QPNs 0 and 1 are not for us */
        index = i % NPEMU_MAX_PROCS;
        ret   = pthread_mutex_trylock(&fabric->slots[index].life);
        if (ret == EOWNERDEAD) {
            pthread_mutex_consistent(&fabric->slots[index].life);
        } else if (ret != 0) {
            continue;
        }

        npemu_slot_reset(fabric, index);
        return index;
    }

    return -1;
}

void npemu_slot_release(npemu_slot_t *slot)
{
    atomic_store(&slot->ready, 0);
    pthread_mutex_unlock(&slot->life);
}

NPEMU_HOOK
int npemu_slot_is_gone(npemu_slot_t *slot, uint32_t gen)
{
    const struct timespec pause = {.tv_nsec = 1000000};
    const struct timespec zero  = {0};
    struct pollfd pfd           = {.events = POLLIN};
    int i, pid, done;

    if (npemu_slot_is_alive(slot, gen)) {
        return 0;
    }

    if (atomic_load(&slot->gen) != gen) {
        return 1; /* long gone: the slot has been taken anew */
    }

    pid = slot->pid;
    if (pid == 0) {
        return 1;
    }

    /* The robust mutex tells that one thread is dead. A pidfd becomes readable
     * when all are. After exec it never does: then wait the time out, for exec
     * has ended the other threads before it released the mutex. */
    pfd.fd = syscall(SYS_pidfd_open, pid, 0);
    if (pfd.fd < 0) {
        return 1;
    }

    for (i = 0, done = 0; (i < NPEMU_GONE_WAIT_MS) && !done; ++i) {
        done = syscall(SYS_ppoll, &pfd, 1, &zero, NULL, 0) > 0;
        if (!done) {
            syscall(SYS_nanosleep, &pause, NULL);
        }
    }
    syscall(SYS_close, pfd.fd);
    return 1;
}

int npemu_pid_is_stopped(int pid)
{
    char path[32], text[512];
    const char *state;

    snprintf(path, sizeof(path), "/proc/%d/stat", pid);
    if (npemu_read_proc(path, text, sizeof(text)) <= 0) {
        return 0;
    }

    state = strrchr(text, ')');
    return (state != NULL) && (state[1] == ' ') &&
           ((state[2] == 'T') || (state[2] == 't'));
}
