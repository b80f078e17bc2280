/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "engine/npemu_dma.h"
#include "fabric/npemu_epoch.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

/* Position in a list. */
typedef struct {
    const npemu_dma_list_t *list;
    unsigned               index;
    uint64_t               offset; /* in that element */
} npemu_dma_pos_t;

static void npemu_dma_list_init(npemu_dma_list_t *list)
{
    list->count     = 0;
    list->tabled    = 0;
    list->on_demand = 0;
    list->outside   = 0;
    list->length    = 0;
}

static void npemu_dma_list_add(npemu_dma_list_t *list, uint64_t va,
                               uint64_t length)
{
    list->iov[list->count].iov_base = (void*)(uintptr_t)va;
    list->iov[list->count].iov_len  = length;
    list->view[list->count]       = NPEMU_VIEW_NONE;
    list->length                   += length;
    ++list->count;
}

/* The element that was added last is behind a table. */
static npemu_map_t npemu_dma_list_set_table(npemu_dma_list_t *list,
                                            npemu_table_t *tables,
                                            const npemu_mr_shm_t *mr,
                                            npemu_map_miss_t *miss)
{
    npemu_table_t *table = npemu_table_find(tables, mr->table, mr->table_gen);

    if (npemu_unlikely(table == NULL)) {
        miss->index = mr->table;
        miss->gen   = mr->table_gen;
        return NPEMU_MAP_TABLE;
    }

    list->view[list->count - 1] = mr->view;
    list->table[list->count - 1]  = table;
    list->tabled                  = 1;
    return NPEMU_MAP_OK;
}

/* Check, translate and add one range of a process. */
static inline npemu_map_t
npemu_dma_list_map(npemu_dma_list_t *list, npemu_peer_t *peer, uint32_t pd,
                   uint32_t key, uint32_t access, uint64_t addr,
                   uint64_t length, npemu_map_miss_t *miss)
{
    const npemu_mr_shm_t *mr;
    uint64_t va;

    mr = npemu_key_find(peer->shm, key, pd, access, addr, length, &va);
    if (npemu_unlikely(mr == NULL)) {
        return NPEMU_MAP_DENIED;
    }

    npemu_dma_list_add(list, va, length);
    if (npemu_likely(mr->view == NPEMU_VIEW_NONE)) {
        list->on_demand |= mr->access & IBV_ACCESS_ON_DEMAND;
        list->outside   |= !npemu_peer_maps(peer, va, length);
        return NPEMU_MAP_OK;
    }

    return npemu_dma_list_set_table(list, atomic_load(&peer->tables), mr,
                                    miss);
}

int npemu_dma_map_send(npemu_proc_t *proc, uint32_t pd, const npemu_wqe_t *wqe,
                       uint32_t access, npemu_dma_list_t *list)
{
    npemu_peer_t *self = npemu_peer_self(proc);
    int is_inline      = (wqe->flags & IBV_SEND_INLINE) && (access == 0);
    const struct ibv_sge *sge;
    npemu_map_miss_t miss;
    uint32_t i;

    npemu_dma_list_init(list);
    for (i = 0; i < wqe->num_sge; ++i) {
        sge = &wqe->sge[i];
        if (sge->length == 0) {
            continue;
        }

        if (is_inline) {
            npemu_dma_list_add(list, sge->addr, sge->length);
        } else if (npemu_unlikely(npemu_dma_list_map(list, self, pd, sge->lkey,
                                                     access, sge->addr,
                                                     sge->length, &miss) !=
                                  NPEMU_MAP_OK)) {
            return 0;
        }
    }
    return 1;
}

npemu_map_t npemu_dma_map_recv(npemu_peer_t *peer, uint32_t pd,
                               const npemu_rq_wqe_t *wqe, uint32_t skip,
                               uint64_t length, npemu_dma_list_t *list,
                               npemu_map_miss_t *miss)
{
    uint32_t i, size, num_sge = wqe->num_sge;
    npemu_map_t ret;

    npemu_dma_list_init(list);
    num_sge = (num_sge < NPEMU_MAX_SGE) ? num_sge : NPEMU_MAX_SGE;
    for (i = 0; (i < num_sge) && (length > 0); ++i) {
        size = wqe->sge[i].length;
        if (skip >= size) {
            skip -= size;
            continue;
        }

        size = (size - skip < length) ? size - skip : length;
        ret  = npemu_dma_list_map(list, peer, pd, wqe->sge[i].lkey,
                                  IBV_ACCESS_LOCAL_WRITE,
                                  wqe->sge[i].addr + skip, size, miss);
        if (ret != NPEMU_MAP_OK) {
            return ret;
        }
        length -= size;
        skip    = 0;
    }
    /* This device has no on-demand paging for receives */
    return ((length == 0) && !list->on_demand) ? NPEMU_MAP_OK :
                                                 NPEMU_MAP_DENIED;
}

npemu_map_t npemu_dma_map_range(npemu_peer_t *peer, uint32_t pd, uint32_t key,
                                uint32_t access, uint64_t addr,
                                uint64_t length, npemu_dma_list_t *list,
                                npemu_map_miss_t *miss)
{
    npemu_dma_list_init(list);
    return npemu_dma_list_map(list, peer, pd, key, access, addr, length, miss);
}

void npemu_dma_gather(const npemu_dma_list_t *list, void *buffer)
{
    unsigned i;

    for (i = 0; i < list->count; ++i) {
        memcpy(buffer, list->iov[i].iov_base, list->iov[i].iov_len);
        buffer = (uint8_t*)buffer + list->iov[i].iov_len;
    }
}

static void npemu_dma_scatter(const npemu_dma_list_t *list, const void *buffer)
{
    unsigned i;

    for (i = 0; i < list->count; ++i) {
        memcpy(list->iov[i].iov_base, buffer, list->iov[i].iov_len);
        buffer = (const uint8_t*)buffer + list->iov[i].iov_len;
    }
}

npemu_dma_status_t npemu_dma_copy_local(npemu_proc_t *proc,
                                        const npemu_dma_list_t *list,
                                        void *buffer, int to_list)
{
    npemu_dma_list_t plain;

    if (npemu_unlikely(list->tabled)) {
        npemu_dma_list_plain(&plain, buffer, list->length);
        return npemu_dma_copy_tabled(npemu_peer_self(proc),
                                     &plain, list, to_list);
    }

    if (npemu_unlikely(list->on_demand)) {
        npemu_dma_list_plain(&plain, buffer, list->length);
        return npemu_dma_copy(npemu_peer_self(proc), &plain,
                              list, to_list);
    }

    if (to_list) {
        npemu_dma_scatter(list, buffer);
    } else {
        npemu_dma_gather(list, buffer);
    }
    return NPEMU_DMA_OK;
}

/* Cut the next bytes out of a list. Returns the number of elements. */
static unsigned npemu_dma_slice(npemu_dma_pos_t *pos, uint64_t length,
                                struct iovec *iov)
{
    const struct iovec *elem;
    unsigned count = 0;
    uint64_t size;

    while (length > 0) {
        elem = &pos->list->iov[pos->index];
        size = elem->iov_len - pos->offset;
        size = (size < length) ? size : length;

        iov[count].iov_base = (uint8_t*)elem->iov_base + pos->offset;
        iov[count].iov_len  = size;
        ++count;

        length      -= size;
        pos->offset += size;
        if (pos->offset == elem->iov_len) {
            ++pos->index;
            pos->offset = 0;
        }
    }
    return count;
}

/*
 * Copy between two lists by the CPU. The bytes of `remote` are mapped here, at
 * their addresses plus `shift`.
 */
static void npemu_dma_move(const struct iovec *local,
                           const struct iovec *remote, intptr_t shift,
                           uint64_t length, int to_remote)
{
    uint64_t local_at = 0, remote_at = 0, size;
    uint8_t *here, *there;

    for (; length > 0; length -= size) {
        size = local->iov_len - local_at;
        size = (size < remote->iov_len - remote_at) ?
                       size : remote->iov_len - remote_at;
        size = (size < length) ? size : length;

        here  = (uint8_t*)local->iov_base + local_at;
        there = (uint8_t*)remote->iov_base + remote_at + shift;
        memmove(to_remote ? there : here, to_remote ? here : there, size);

        local_at  += size;
        remote_at += size;
        if (local_at == local->iov_len) {
            ++local;
            local_at = 0;
        }
        if (remote_at == remote->iov_len) {
            ++remote;
            remote_at = 0;
        }
    }
}

/* Which side caused EFAULT, or a short copy? Read one byte of each page of the
 * local side. */
static npemu_dma_status_t npemu_dma_failed_side(const struct iovec *iov,
                                                unsigned count)
{
    struct iovec byte, probe;
    uint64_t addr, end;
    unsigned i;
    char c;

    for (i = 0; i < count; ++i) {
        addr = (uintptr_t)iov[i].iov_base;
        end  = addr + iov[i].iov_len;
        while (addr < end) {
            byte  = (struct iovec){&c, 1};
            probe = (struct iovec){(void*)(uintptr_t)addr, 1};
            if (process_vm_readv(getpid(), &byte, 1, &probe, 1, 0) != 1) {
                return NPEMU_DMA_LOCAL;
            }
            addr = (addr | (NPRDMA_PAGE_SIZE - 1)) + 1;
        }
    }
    return NPEMU_DMA_REMOTE;
}

static npemu_dma_status_t
npemu_dma_chunk(npemu_peer_t *peer, const struct iovec *local,
                unsigned num_local, const struct iovec *remote,
                unsigned num_remote, uint64_t length, int to_remote)
{
    ssize_t ret;

    ret = npemu_epoch_copy(peer->pid, local, num_local, remote, num_remote,
                           to_remote);
    if (npemu_likely(ret == (ssize_t)length)) {
        return NPEMU_DMA_OK;
    }

    if ((ret >= 0) || (errno == EFAULT)) {
        return npemu_peer_is_alive(peer) ?
                       npemu_dma_failed_side(local, num_local) :
                       NPEMU_DMA_GONE;
    }

    if ((errno == ESRCH) || !npemu_peer_is_alive(peer)) {
        return NPEMU_DMA_GONE;
    }

    npemu_peer_denied(peer, "process_vm_readv or _writev", errno);
    return NPEMU_DMA_DENIED;
}

npemu_dma_status_t npemu_dma_copy(npemu_peer_t *peer,
                                  const npemu_dma_list_t *local,
                                  const npemu_dma_list_t *remote,
                                  int to_remote)
{
    npemu_dma_pos_t local_pos  = {.list = local};
    npemu_dma_pos_t remote_pos = {.list = remote};
    struct iovec local_iov[NPEMU_MAX_SGE], remote_iov[NPEMU_MAX_SGE];
    int is_mapped              = !(remote->outside | local->on_demand |
                                   remote->on_demand);
    unsigned num_local, num_remote;
    npemu_dma_status_t status;
    uint64_t done, length;

    if (npemu_unlikely(local->tabled | remote->tabled)) {
        return npemu_dma_copy_tabled(peer, local, remote, to_remote);
    }

    /* The kernel reports unmapped pages; a copy by the CPU would end the
     * process */
    if (peer->is_self && !(local->on_demand | remote->on_demand)) {
        npemu_dma_move(local->iov, remote->iov, 0, local->length, to_remote);
        return NPEMU_DMA_OK;
    }

    for (done = 0; done < local->length; done += length) {
        length = local->length - done;
        length = (length < NPEMU_DMA_CHUNK) ? length : NPEMU_DMA_CHUNK;

        /* The kernel reuses pids: another process may have this one */
        if (npemu_unlikely(!npemu_peer_is_alive(peer))) {
            return NPEMU_DMA_GONE;
        }

        num_local  = npemu_dma_slice(&local_pos, length, local_iov);
        num_remote = npemu_dma_slice(&remote_pos, length, remote_iov);
        if (is_mapped) {
            npemu_dma_move(local_iov, remote_iov, npemu_peer_shift(peer),
                           length, to_remote);
            continue;
        }

        status = npemu_dma_chunk(peer, local_iov, num_local, remote_iov,
                                 num_remote, length, to_remote);
        if (npemu_unlikely(status != NPEMU_DMA_OK)) {
            return status;
        }
    }
    return NPEMU_DMA_OK;
}
