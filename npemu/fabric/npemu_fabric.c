/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "fabric/npemu_fabric.h"
#include "base/npemu_log.h"
#include "fabric/npemu_segment.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Time in which a process settles its offer, milliseconds; one is enough. Later
 * others withdraw it. */
#define NPEMU_FABRIC_SETTLE_MS 100

/* Time after which attaching fails, milliseconds. */
#define NPEMU_FABRIC_LIMIT_MS 10000

/* Longest wait for the threads of a dying process, milliseconds. */
#define NPEMU_GONE_WAIT_MS 1000

#define NPEMU_GUID_PREFIX 0x026e700000000000ull

static const uint32_t npemu_size_check =
        sizeof(npemu_slot_t) * 3 + sizeof(npemu_qp_shm_t) * 5 +
        sizeof(npemu_mr_shm_t) * 7 + sizeof(npemu_rq_shm_t) * 11 +
        sizeof(npemu_cq_shm_t) * 13 + sizeof(npemu_cqe_t) * 17 +
        sizeof(npemu_arena_shm_t) * 19 + sizeof(npemu_table_shm_t) * 23 +
        sizeof(npemu_port_shm_t) * 29;

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
    hash = npemu_mix(hash, npemu_ns_inode("/proc/self/ns/user"));
    return npemu_mix(hash, geteuid());
}

/* The id is read often, so it is cached. The user and the namespaces, on which
 * it depends, can change, but an attached process stays with its fabric. */
static _Atomic uint64_t npemu_fabric_cached_id;
static _Atomic uint32_t npemu_fabric_cached_uid;
static _Atomic int npemu_fabric_attached_pid;

static void npemu_fabric_refresh_id(void)
{
    atomic_store(&npemu_fabric_cached_uid, geteuid());
    atomic_store(&npemu_fabric_cached_id, npemu_fabric_compute_id());
}

uint64_t npemu_fabric_id(void)
{
    if ((atomic_load(&npemu_fabric_cached_id) == 0) ||
        ((atomic_load(&npemu_fabric_cached_uid) != geteuid()) &&
         (atomic_load(&npemu_fabric_attached_pid) != getpid()))) {
        npemu_fabric_refresh_id();
    }
    return atomic_load(&npemu_fabric_cached_id);
}

uint64_t npemu_guid(void)
{
    return NPEMU_GUID_PREFIX | (npemu_fabric_id() & 0xffffffffffull);
}

/* The subnet prefix names the fabric. Programs that compare prefixes to decide
 * whether a peer is reachable are right, then. */
void npemu_gid(union ibv_gid *gid)
{
    gid->global.subnet_prefix = htobe64(0xfe80000000000000ull |
                                        (npemu_fabric_id() >> 16));
    gid->global.interface_id  = htobe64(npemu_guid());
}

/* Does this user namespace map every user? */
static int npemu_fabric_maps_all_users(void)
{
    char text[128], *end;
    unsigned long first, outside, count;

    if (npemu_read_proc("/proc/self/uid_map", text, sizeof(text)) <= 0) {
        return 0;
    }

    first   = strtoul(text, &end, 10);
    outside = strtoul(end, &end, 10);
    count   = strtoul(end, &end, 10);
    return (first == 0) && (outside == 0) && (count == UINT32_MAX);
}

/*
 * Users are distinguished by their numbers, and by the kernel's checks of the
 * effective one. Two kinds of processes cannot rely on that, and are refused.
 * Returns 0, or ENODEV with an error line.
 */
static int npemu_fabric_check_user(void)
{
    unsigned long overflow = 65534;
    uid_t real, effective, saved;
    char text[32];

    /* The real user of a setuid program can stop and kill it, and so could
     * block processes of its effective user. */
    if ((getresuid(&real, &effective, &saved) < 0) || (real != effective) ||
        (saved != effective)) {
        npemu_error("no emulated RNIC for a program that runs with the rights "
                    "of two users (setuid): user %u as %u", (unsigned)real,
                    (unsigned)effective);
        return ENODEV;
    }

    /* All users without a number in the user namespace have this one. */
    if (npemu_read_proc("/proc/sys/kernel/overflowuid", text, sizeof(text)) >
        0) {
        overflow = strtoul(text, NULL, 10);
    }
    if ((effective == overflow) && !npemu_fabric_maps_all_users()) {
        npemu_error("no emulated RNIC for user %u in this user namespace: "
                    "users that it does not map have this number, too",
                    (unsigned)effective);
        return ENODEV;
    }

    return 0;
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
    fabric->user_ns    = npemu_ns_inode("/proc/self/ns/user");
    fabric->fabric_id  = npemu_fabric_id();
    atomic_store(&fabric->state, NPEMU_FABRIC_OFFERED);
    atomic_store(&fabric->magic, NPEMU_FABRIC_MAGIC);
}

typedef enum {
    NPEMU_CANDIDATE_GOOD,
    NPEMU_CANDIDATE_OTHER, /* something else: search on */
    NPEMU_CANDIDATE_BAD    /* our fabric, but not usable: fail */
} npemu_candidate_t;

static npemu_candidate_t npemu_fabric_damaged(int id)
{
    npemu_error("shared memory segment %d is a damaged npemu fabric; end the "
                "processes that use it (ipcs -mp)", id);
    return NPEMU_CANDIDATE_BAD;
}

static npemu_candidate_t
npemu_fabric_check(npemu_fabric_shm_t *fabric, size_t size, int id)
{
    uint64_t magic = atomic_load(&fabric->magic);
    uint32_t state;

    if (magic == 0) {
        return NPEMU_CANDIDATE_OTHER; /* its creator will see our offer */
    }

    if (magic != NPEMU_FABRIC_MAGIC) {
        return npemu_fabric_damaged(id);
    }

    if ((fabric->version != NPEMU_SHM_VERSION) ||
        (fabric->size_check != npemu_size_check) ||
        (size != sizeof(npemu_fabric_shm_t))) {
        npemu_error("shared memory segment %d is an npemu fabric of another "
                    "version (%u, this is %u); end the processes that use it "
                    "(ipcs -mp)", id, fabric->version, NPEMU_SHM_VERSION);
        return NPEMU_CANDIDATE_BAD;
    }

    if ((fabric->pid_ns != npemu_ns_inode("/proc/self/ns/pid")) ||
        (fabric->user_ns != npemu_ns_inode("/proc/self/ns/user"))) {
        return NPEMU_CANDIDATE_OTHER;
    }

    state = atomic_load(&fabric->state);
    if ((fabric->fabric_id != npemu_fabric_id()) ||
        (state < NPEMU_FABRIC_OFFERED) || (state > NPEMU_FABRIC_WITHDRAWN) ||
        (atomic_load(&fabric->num_slots) > NPEMU_MAX_PROCS)) {
        return npemu_fabric_damaged(id);
    }

    return NPEMU_CANDIDATE_GOOD;
}

/* --- election --------------------------------------------------------------*/

/*
 * Another user could take any lock that protects the creation, so the processes
 * that find no fabric elect one without a lock. Each *offers* a segment of its
 * own, and then reads all segments. Of any two offers, the process that made
 * the later one sees the earlier one, and withdraws it or gives up its own: so
 * at most one offer is ever *settled*. The lower id stays, so that one of the
 * competitors does settle. The kernel frees the offer of a killed process. The
 * offer of a stopped process is withdrawn after NPEMU_FABRIC_SETTLE_MS, and its
 * creator notices when it tries to settle the offer.
 */
typedef struct {
    int                own_id;    /* segment that this process offers, or -1 */
    int                timed_out; /* withdraw offers whatever their id */
    int                offers;    /* those of others that stay */
    npemu_fabric_shm_t *found;    /* the settled one, NULL if there is none */
} npemu_fabric_search_t;

/* A segment that the search has found: withdraw it or count it. Returns 1 if it
 * is the fabric. */
static int npemu_fabric_found(npemu_fabric_search_t *search,
                              npemu_fabric_shm_t *fabric, int id)
{
    uint32_t state = NPEMU_FABRIC_OFFERED;

    if (search->timed_out ||
        ((search->own_id >= 0) && (search->own_id < id))) {
        atomic_compare_exchange_strong(&fabric->state, &state,
                                       NPEMU_FABRIC_WITHDRAWN);
    } else {
        state           = atomic_load(&fabric->state);
        search->offers += (state == NPEMU_FABRIC_OFFERED);
    }
    return state == NPEMU_FABRIC_SETTLED;
}

/* Read all segments. Returns 0, or ENODEV with an error line. */
static int npemu_fabric_search(npemu_fabric_search_t *search)
{
    npemu_candidate_t candidate;
    npemu_segment_walk_t walk;
    npemu_fabric_shm_t *fabric;
    size_t size;
    int id;

    if (npemu_segment_walk(&walk) < 0) {
        npemu_error("no System V shared memory (shmctl: %s), which the "
                    "emulated RNIC needs", strerror(errno));
        return ENODEV;
    }

    while ((id = npemu_segment_next(&walk, NPEMU_SEGMENT_FABRIC)) >= 0) {
        if (id == search->own_id) {
            continue;
        }

        fabric = npemu_segment_attach(NPEMU_SEGMENT_FABRIC, id, &size);
        if (fabric == NULL) {
            continue; /* freed since */
        }

        candidate = npemu_fabric_check(fabric, size, id);
        if ((candidate == NPEMU_CANDIDATE_GOOD) &&
            npemu_fabric_found(search, fabric, id)) {
            search->found = fabric;
            return 0;
        }

        npemu_segment_detach(fabric);
        if (candidate == NPEMU_CANDIDATE_BAD) {
            return ENODEV;
        }
    }

    return 0;
}

/* Offer a segment, and settle it if no other one stays. Returns 0, ENOMEM or
 * ENODEV. */
static int npemu_fabric_offer(npemu_fabric_search_t *search)
{
    uint32_t state = NPEMU_FABRIC_OFFERED;
    npemu_fabric_shm_t *fabric;
    int ret;

    fabric = npemu_segment_create(NPEMU_SEGMENT_FABRIC, sizeof(*fabric),
                                  &search->own_id);
    if (fabric == NULL) {
        ret = errno;
        npemu_error("cannot make the shared memory of the emulated RNIC "
                    "(%zu bytes): %s%s", sizeof(*fabric), strerror(ret),
                    (ret == ENOSPC) ? " (kernel.shmmni, ipcs -m)" : "");
        return (ret == ENOMEM) ? ENOMEM : ENODEV;
    }

    npemu_fabric_init(fabric);
    ret = npemu_fabric_search(search);
    if ((ret == 0) && (search->found == NULL) && (search->offers == 0) &&
        atomic_compare_exchange_strong(&fabric->state, &state,
                                       NPEMU_FABRIC_SETTLED)) {
        search->found = fabric;
    } else {
        npemu_segment_detach(fabric);
    }
    return ret;
}

/* Pauses of random length, so that two processes do not collide repeatedly. */
static void npemu_fabric_pause(void)
{
    uint64_t random       = npemu_mix(npemu_time_ns(), getpid());
    struct timespec pause = {.tv_nsec = 100000 + random % 1000000};

    nanosleep(&pause, NULL);
}

npemu_fabric_shm_t *npemu_fabric_attach(void)
{
    uint64_t start = npemu_time_ns();
    npemu_fabric_search_t search;
    uint64_t elapsed_ms;
    int ret;

    npemu_fabric_refresh_id();
    ret = npemu_fabric_check_user();
    while (ret == 0) {
        elapsed_ms = (npemu_time_ns() - start) / 1000000;
        search     = (npemu_fabric_search_t){
                .own_id    = -1,
                .timed_out = elapsed_ms > NPEMU_FABRIC_SETTLE_MS
        };

        ret = npemu_fabric_search(&search);
        if ((ret == 0) && (search.found == NULL) && (search.offers == 0)) {
            ret = npemu_fabric_offer(&search);
        }
        if (search.found != NULL) {
            atomic_store(&npemu_fabric_attached_pid, getpid());
            return search.found;
        }

        if ((ret == 0) && (elapsed_ms > NPEMU_FABRIC_LIMIT_MS)) {
            npemu_error("other processes have been making the shared memory of "
                        "the emulated RNIC for 10 seconds");
            ret = ENODEV;
        } else if (ret == 0) {
            npemu_fabric_pause();
        }
    }

    errno = ret;
    return NULL;
}

void npemu_fabric_detach(npemu_fabric_shm_t *fabric)
{
    npemu_segment_detach(fabric);
    atomic_store(&npemu_fabric_attached_pid, 0);
}

/* --- slots -----------------------------------------------------------------*/

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
        atomic_store(&seq->seq, npemu_epoch_even(atomic_load(&seq->seq)));
        atomic_store(&seq->dma, npemu_epoch_even(atomic_load(&seq->dma)));
    }
    atomic_store(&slot->nthreads, 0);

    while ((num_slots <= index) &&
           !atomic_compare_exchange_weak(&fabric->num_slots, &num_slots,
                                         index + 1)) {
    }
}

int npemu_slot_claim(npemu_fabric_shm_t *fabric)
{
    npemu_slot_t *slot;
    unsigned i, index;
    int ret;

    for (i = 1; i <= NPEMU_MAX_PROCS; ++i) {
        /* Slot 0 last: QPNs 0 and 1 are reserved for management */
        index = i % NPEMU_MAX_PROCS;
        slot  = &fabric->slots[index];
        ret   = pthread_mutex_trylock(&slot->life);
        if (ret == EOWNERDEAD) {
            pthread_mutex_consistent(&slot->life);
            /* A thread of the dead process may still write to memory of others;
             * exec has ended those of this one */
            atomic_store(&slot->ready, 0);
            if (slot->pid != getpid()) {
                npemu_slot_is_gone(slot, atomic_load(&slot->gen));
            }
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
int npemu_slot_is_closing(npemu_slot_t *slot, uint32_t gen)
{
    return npemu_slot_owner_lives(npemu_slot_owner(slot)) &&
           (atomic_load(&slot->ready) != gen) &&
           (atomic_load(&slot->gen) == gen);
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

    pid = slot->pid;
    if ((atomic_load(&slot->gen) != gen) || (pid == 0)) {
        return 1; /* another process has taken the slot since */
    }

    /* The robust mutex shows that one thread is dead. A pidfd becomes readable
     * when all are. After exec it does not: then wait for the whole time. exec
     * ends the other threads before it releases the mutex. A process that has
     * closed the device has no thread in a request when it gives the slot
     * back. */
    pfd.fd = syscall(SYS_pidfd_open, pid, 0);
    if (pfd.fd < 0) {
        return 1;
    }

    for (i = 0, done = 0; (i < NPEMU_GONE_WAIT_MS) && !done; ++i) {
        done = (npemu_slot_owner(slot) == 0) ||
               (atomic_load(&slot->gen) != gen) ||
               (syscall(SYS_ppoll, &pfd, 1, &zero, NULL, 0) > 0);
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
