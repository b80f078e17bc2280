/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * Tables for the NIC: those of this process that have MRs, and those of peers,
 * which are mapped when they are first needed.
 *
 * Memory hooks must not run while a work request is executed, so memory is
 * allocated here by system calls only.
 */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "iommu/npemu_table.h"
#include "base/npemu_log.h"
#include "fabric/npemu_epoch.h"
#include "fabric/npemu_peer.h"
#include "iommu/npemu_kernel.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Tables of one peer that are kept mapped. */
#define NPEMU_TABLE_CACHE 256

/* --- mapping ---------------------------------------------------------------*/

npemu_iommu_header_t *npemu_table_map(int fd, size_t size)
{
    long addr;

    addr = syscall(SYS_mmap, NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED,
                   fd, 0);
    if (addr == -1) {
        return NULL;
    }

    /* A forked child has no right to it, and must not keep it allocated */
    syscall(SYS_madvise, addr, size, MADV_DONTFORK);
    return (npemu_iommu_header_t*)addr;
}

void npemu_table_unmap(npemu_iommu_header_t *header, size_t size)
{
    syscall(SYS_munmap, header, size);
}

/* Check a header. Returns a description of the error, NULL if there is none. */
static const char *npemu_table_check(const npemu_iommu_header_t *header,
                                     size_t size, int pid)
{
    if (atomic_load(&header->magic) != NPEMU_TABLE_MAGIC) {
        return "it is not that of a region";
    }
    if (header->version != NPEMU_TABLE_VERSION) {
        return "its region was made by another version";
    }
    if (header->pid != pid) {
        return "its region is another process'";
    }
    if ((header->length == 0) ||
        ((header->address | header->length) & (NPRDMA_PAGE_SIZE - 1)) ||
        (header->address + header->length < header->address) ||
        (header->length / NPRDMA_PAGE_SIZE > size) ||
        (npemu_table_size(header->length / NPRDMA_PAGE_SIZE) != size)) {
        return "its region is damaged";
    }
    return NULL;
}

/* Map the table behind a descriptor; `gen` is left to the caller. Returns a
 * description of the error, NULL on success. */
static const char *npemu_table_open(npemu_table_t *table, int fd, int pid)
{
    npemu_iommu_header_t *header;
    const char *problem;
    struct stat st;
    int seals;

    seals = fcntl(fd, F_GET_SEALS);
    if ((seals < 0) && (errno == EBADF)) {
        return "it is not open";
    }
    if ((seals < 0) && npemu_kernel_is_states(fd)) {
        return npemu_kernel_open(table, fd, pid);
    }
    if ((seals < 0) || !(seals & F_SEAL_SHRINK) || (fstat(fd, &st) < 0) ||
        (st.st_size < (off_t)npemu_table_size(1))) {
        return "it is not that of a region";
    }

    header = npemu_table_map(fd, st.st_size);
    if (header == NULL) {
        return "it cannot be mapped";
    }

    problem = npemu_table_check(header, st.st_size, pid);
    if (problem != NULL) {
        npemu_table_unmap(header, st.st_size);
        return problem;
    }

    table->kernel    = NULL;
    table->header    = header;
    table->address   = header->address;
    table->num_pages = header->length / NPRDMA_PAGE_SIZE;
    table->signature = (uint8_t*)header + NPEMU_TABLE_SIGNATURE;
    table->states    = (nprdma_page_state_t*)((uint8_t*)header +
                                              NPEMU_TABLE_STATES);
    atomic_store(&table->used, 1);
    return NULL;
}

static void npemu_table_close(npemu_table_t *table)
{
    if (table->kernel != NULL) {
        npemu_kernel_close(table);
    } else {
        npemu_table_unmap(table->header, npemu_table_size(table->num_pages));
    }
    table->header = NULL;
}

/* Has its owner destroyed it? */
static int npemu_table_is_dead(const npemu_table_t *table)
{
    return (table->kernel != NULL) ?
                   (__atomic_load_n(&table->kernel->dead, __ATOMIC_ACQUIRE) !=
                    0) :
                   (atomic_load(&table->header->dead) != 0);
}

/* The peer's array of tables; a page uses memory from its first access on. */
static npemu_table_t *npemu_table_array(npemu_peer_t *peer)
{
    npemu_table_t *tables = atomic_load(&peer->tables);
    long addr;

    if (tables == NULL) {
        addr = syscall(SYS_mmap, NULL, NPEMU_MAX_TABLES * sizeof(*tables),
                       PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (addr != -1) {
            tables = (npemu_table_t*)addr;
            atomic_store(&peer->tables, tables);
        }
    }
    return tables;
}

void npemu_table_detach_all(npemu_peer_t *peer)
{
    npemu_table_t *tables = atomic_load(&peer->tables);
    unsigned i;

    if (tables == NULL) {
        return;
    }

    for (i = 0; i < peer->tables_end; ++i) {
        if (tables[i].header != NULL) {
            npemu_table_close(&tables[i]);
        }
    }
    syscall(SYS_munmap, tables, NPEMU_MAX_TABLES * sizeof(*tables));
    atomic_store(&peer->tables, NULL);
}

/* --- tables of this process ------------------------------------------------*/

void npemu_table_init(npemu_proc_t *proc)
{
    pthread_mutex_init(&proc->tables_lock, NULL);
}

void npemu_table_cleanup(npemu_proc_t *proc)
{
    unsigned i;

    for (i = 0; i < NPEMU_MAX_TABLES; ++i) {
        if (proc->table_refs[i] != 0) {
            close(proc->shm->tables[i].fd);
        }
    }
    pthread_mutex_destroy(&proc->tables_lock);
}

/* The record of a table that has one, else a free one; NPEMU_MAX_TABLES if all
 * are in use. */
static uint32_t npemu_table_record(npemu_proc_t *proc, uint64_t id)
{
    uint32_t i, found = NPEMU_MAX_TABLES;

    for (i = 0; i < NPEMU_MAX_TABLES; ++i) {
        if (proc->table_refs[i] == 0) {
            found = (found < i) ? found : i;
        } else if (proc->shm->tables[i].id == id) {
            return i;
        }
    }
    return found;
}

/* Give a table that has just been mapped a record. */
static int npemu_table_publish(npemu_proc_t *proc, const npemu_table_t *fresh,
                               npemu_table_t *table, uint32_t index, int fd)
{
    npemu_table_shm_t *shm = &proc->shm->tables[index];
    npemu_peer_t *self     = npemu_peer_self(proc);

    /* A duplicate: the caller may close its descriptor, as with a dma-buf */
    shm->fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    if (shm->fd < 0) {
        return errno;
    }

    shm->id = fresh->header->id;
    if (self->tables_end <= index) {
        self->tables_end = index + 1;
    }
    table->header      = fresh->header;
    table->states      = fresh->states;
    table->signature   = fresh->signature;
    table->address     = fresh->address;
    table->num_pages   = fresh->num_pages;
    table->kernel      = fresh->kernel;
    table->kernel_size = fresh->kernel_size;
    atomic_store(&shm->gen, atomic_load(&shm->gen) + 1);
    atomic_store(&table->gen, atomic_load(&shm->gen));
    return 0;
}

int npemu_table_get(npemu_proc_t *proc, int fd, uint32_t *index_p,
                    npemu_table_t **table_p)
{
    npemu_peer_t *self = npemu_peer_self(proc);
    npemu_table_t fresh, *tables;
    const char *problem;
    uint32_t index;
    int ret = 0;

    problem = npemu_table_open(&fresh, fd, proc->pid);
    if ((problem != NULL) && (fcntl(fd, F_GETFD) < 0)) {
        /* No log line: programs probe so whether the verb is supported */
        return EBADF;
    } else if (problem != NULL) {
        npemu_error("cannot register descriptor %d: %s", fd, problem);
        return EINVAL;
    }

    pthread_mutex_lock(&proc->tables_lock);
    tables = npemu_table_array(self);
    index  = npemu_table_record(proc, fresh.header->id);
    if (tables == NULL) {
        ret = ENOMEM;
    } else if (index == NPEMU_MAX_TABLES) {
        ret = ENOSPC;
    } else if (proc->table_refs[index] == 0) {
        ret = npemu_table_publish(proc, &fresh, &tables[index], index, fd);
        if (ret == 0) {
            fresh.header = NULL; /* it stays mapped */
        }
    }
    if (ret == 0) {
        ++proc->table_refs[index];
        *index_p = index;
        *table_p = &tables[index];
    }
    pthread_mutex_unlock(&proc->tables_lock);

    if (fresh.header != NULL) {
        npemu_table_close(&fresh);
    }
    if (ret != 0) {
        /* Only debug: the caller may release another region and retry */
        npemu_debug("cannot register descriptor %d: %s", fd,
                    (ret == ENOSPC) ? "too many regions have MRs" :
                                      strerror(ret));
    }
    return ret;
}

void npemu_table_put(npemu_proc_t *proc, uint32_t index)
{
    npemu_peer_t *self     = npemu_peer_self(proc);
    npemu_table_shm_t *shm = &proc->shm->tables[index];
    npemu_table_t *table   = &atomic_load(&self->tables)[index];

    pthread_mutex_lock(&proc->tables_lock);
    if (--proc->table_refs[index] == 0) {
        atomic_store(&table->gen, 0);
        atomic_store(&shm->gen, atomic_load(&shm->gen) + 1);
        npemu_table_close(table);
        close(shm->fd);
    }
    pthread_mutex_unlock(&proc->tables_lock);
}

/* --- tables of peers -------------------------------------------------------*/

static void npemu_table_drop(npemu_proc_t *proc, npemu_peer_t *peer,
                             npemu_table_t *table)
{
    atomic_store(&table->gen, 0);
    npemu_epoch_quiesce(proc, NPEMU_QUIESCE_LOCAL);
    npemu_table_close(table);
    --peer->num_tables;
}

/* Unmap dead tables, then idle ones while there are too many. */
static void npemu_table_sweep(npemu_proc_t *proc, npemu_peer_t *peer)
{
    npemu_table_t *tables = atomic_load(&peer->tables);
    unsigned i, round, idle;

    for (round = 0; round < 3; ++round) {
        for (i = 0; i < peer->tables_end; ++i) {
            if (tables[i].header == NULL) {
                continue;
            }

            idle = (round > 0) && !atomic_exchange(&tables[i].used, 0);
            if ((atomic_load(&tables[i].gen) !=
                 atomic_load(&peer->shm->tables[i].gen)) ||
                npemu_table_is_dead(&tables[i]) ||
                (idle && (peer->num_tables >= NPEMU_TABLE_CACHE))) {
                npemu_table_drop(proc, peer, &tables[i]);
            }
        }
        if (peer->num_tables < NPEMU_TABLE_CACHE) {
            break;
        }
    }
}

/* Map the table that a record of a peer refers to. Returns a description of the
 * error, NULL on success. */
static const char *npemu_table_open_peer(npemu_proc_t *proc,
                                         npemu_peer_t *peer, uint32_t index)
{
    npemu_table_shm_t *shm = &peer->shm->tables[index];
    npemu_table_t *table   = &atomic_load(&peer->tables)[index];
    const char *problem;
    int fd;

    fd = npemu_peer_get_file(peer, shm->fd);
    if ((fd < 0) && ((errno == EPERM) || (errno == ENOSYS))) {
        return "the kernel, or a seccomp filter, refuses pidfd_getfd()";
    } else if (fd < 0) {
        return strerror(errno);
    }

    problem = npemu_table_open(table, fd, peer->pid);
    close(fd);
    if (problem != NULL) {
        return problem;
    }

    if (peer->tables_end <= index) {
        peer->tables_end = index + 1;
    }
    ++peer->num_tables;
    if (table->header->id != shm->id) {
        npemu_table_drop(proc, peer, table);
        return "it now belongs to another region";
    }
    return NULL;
}

static int npemu_table_attach_locked(npemu_proc_t *proc, npemu_peer_t *peer,
                                     uint32_t index, uint32_t gen)
{
    npemu_table_shm_t *shm = &peer->shm->tables[index];
    npemu_table_t *tables  = npemu_table_array(peer);
    const char *problem;

    if (tables == NULL) {
        npemu_error("no memory for the IOMMU tables of process %d", peer->pid);
        return ENOMEM;
    }

    if (atomic_load(&tables[index].gen) == gen) {
        return 0; /* another thread has mapped it */
    }

    npemu_table_sweep(proc, peer);
    if (tables[index].header != NULL) {
        return 0; /* the record is another table's: the MR is not valid */
    }

    problem = npemu_table_open_peer(proc, peer, index);
    if (problem == NULL) {
        atomic_store(&tables[index].gen, gen);
        return 0;
    }

    /* An error only if the record is still that of the table */
    if ((atomic_load(&shm->gen) != gen) || !npemu_peer_is_alive(peer)) {
        return 0;
    }
    npemu_error("cannot map the IOMMU table of process %d, its descriptor %d: "
                "%s", peer->pid, shm->fd, problem);
    return EIO;
}

int npemu_table_attach(npemu_proc_t *proc, unsigned slot, uint32_t peer_gen,
                       uint32_t index, uint32_t gen)
{
    npemu_peer_t *peer;
    int ret = 0;

    pthread_mutex_lock(&proc->peers_lock);
    peer = atomic_load(&proc->peers[slot]);
    if ((peer != NULL) && (peer->gen == peer_gen) && !peer->is_self) {
        ret = npemu_table_attach_locked(proc, peer, index, gen);
    }
    pthread_mutex_unlock(&proc->peers_lock);
    return ret;
}
