/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_bounce.h"
#include "nprdma_device.h"

#include <ucs/arch/atomic.h>
#include <ucs/debug/log.h>
#include <ucs/debug/memtrack_int.h>
#include <ucs/sys/sys.h>

#include <linux/capability.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

/* Maximum number of slots that one growth of a pool adds */
#define UCT_NPRDMA_BOUNCE_GROW_MAX  16u

struct uct_nprdma_bounce_chunk {
    uct_nprdma_bounce_chunk_t *next;
    struct ibv_mr             *mr;
    void                      *base;
    struct ibv_buf            *buf;       /* NULL: mmap() is its source */
    size_t                    length;     /* pinned bytes, whole pages */
    uct_nprdma_slot_t         slots[];
};

static atomic_size_t uct_nprdma_bounce_budget = UCT_NPRDMA_MAX_PINNED;
/* Of the least slots that pools need */
static atomic_size_t uct_nprdma_bounce_most   = UCT_NPRDMA_MAX_PINNED;
static atomic_size_t uct_nprdma_bounce_used;
static atomic_size_t uct_nprdma_bounce_first; /* what auto has found, or 0 */


unsigned long long uct_nprdma_proc_status(const char *name, int base)
{
    unsigned long long value = 0;
    char line[256];
    FILE *stream;

    stream = fopen("/proc/self/status", "re");
    if (stream == NULL) {
        return 0;
    }
    while (fgets(line, sizeof(line), stream) != NULL) {
        if (!strncmp(line, name, strlen(name))) {
            value = strtoull(line + strlen(name), NULL, base);
            break;
        }
    }
    fclose(stream);
    return value;
}

static size_t uct_nprdma_bounce_left(void)
{
    unsigned long long locked;
    struct rlimit rlim;

    if ((getrlimit(RLIMIT_MEMLOCK, &rlim) != 0) ||
        (rlim.rlim_cur == RLIM_INFINITY) ||
        (uct_nprdma_proc_status("CapEff:", 16) & UCS_BIT(CAP_IPC_LOCK))) {
        return SIZE_MAX;
    }

    /* By mlock() and by RDMA devices, which the kernel counts separately */
    locked = UCS_KBYTE * (uct_nprdma_proc_status("VmLck:", 10) +
                          uct_nprdma_proc_status("VmPin:", 10));
    locked = ucs_min(locked, rlim.rlim_cur);
    return ucs_max(rlim.rlim_cur - locked, UCT_NPRDMA_MIN_PINNED);
}

size_t uct_nprdma_bounce_auto(void)
{
    size_t value = 0;

    atomic_compare_exchange_strong(&uct_nprdma_bounce_first, &value,
                                   uct_nprdma_bounce_left());
    return ucs_min(atomic_load(&uct_nprdma_bounce_first),
                   UCT_NPRDMA_MAX_PINNED);
}

void uct_nprdma_bounce_set_budget(size_t max_pinned)
{
    static atomic_flag told = ATOMIC_FLAG_INIT;
    size_t most             = atomic_load(&uct_nprdma_bounce_first);
    int is_auto             = (max_pinned ==
                               ucs_min(most, UCT_NPRDMA_MAX_PINNED));

    if (is_auto && (max_pinned < UCT_NPRDMA_FULL_PINNED) &&
        !atomic_flag_test_and_set(&told)) {
        ucs_warn("nprdma is slow: the limit of locked memory leaves it %zu "
                 "bytes. Set it to %zu KiB (ulimit -l), or set "
                 "UCX_NPRDMA_MAX_PINNED to what there is", max_pinned,
                 (size_t)(UCT_NPRDMA_MAX_PINNED / UCS_KBYTE));
    }
    atomic_store(&uct_nprdma_bounce_most, is_auto ? most : max_pinned);
    atomic_store(&uct_nprdma_bounce_budget, max_pinned);
}

size_t uct_nprdma_bounce_pinned(void)
{
    return atomic_load(&uct_nprdma_bounce_used);
}

void uct_nprdma_bounce_forked(void)
{
    atomic_store(&uct_nprdma_bounce_used, 0);
}

/* Reserve a part of the budget if its total use then stays within a limit */
static int uct_nprdma_bounce_reserve(size_t length, size_t limit)
{
    size_t used = atomic_load(&uct_nprdma_bounce_used);

    do {
        if ((used + length) > limit) {
            return 0;
        }
    } while (!atomic_compare_exchange_weak(&uct_nprdma_bounce_used, &used,
                                           used + length));
    return 1;
}

/* Use of the budget up to which pools become larger than they have to be: a
 * part of it, which leaves room for the smallest pools of those that come
 * later */
static size_t uct_nprdma_bounce_part(size_t budget, unsigned part)
{
    size_t least = (budget < UCT_NPRDMA_FULL_PINNED) ? UCT_NPRDMA_MIN_PINNED :
                                                       UCT_NPRDMA_FULL_PINNED;

    return ucs_min(budget / part, budget - least);
}

static size_t
uct_nprdma_bounce_length(const uct_nprdma_bounce_t *pool, unsigned num_slots)
{
    return uct_nprdma_align_up(num_slots * pool->slot_size,
                               ucs_get_page_size());
}

static void uct_nprdma_bounce_log_reg_failure(const uct_nprdma_bounce_t *pool,
                                              size_t length)
{
    struct rlimit rlim;

    /* The kernel returns EPERM for a limit of 0 */
    if (((errno == ENOMEM) || (errno == EPERM)) &&
        (getrlimit(RLIMIT_MEMLOCK, &rlim) == 0) &&
        (rlim.rlim_cur != RLIM_INFINITY)) {
        ucs_error("%s: cannot pin %zu bytes for %s: the limit of locked memory "
                  "is %zu bytes (ulimit -l). nprdma needs at least %zu that "
                  "nothing else locks, and UCX_NPRDMA_MAX_PINNED must not be "
                  "above that", pool->dev->name, length, pool->name,
                  (size_t)rlim.rlim_cur, (size_t)UCT_NPRDMA_MIN_PINNED);
    } else {
        ucs_error("%s: cannot register %zu bytes for %s: %m", pool->dev->name,
                  length, pool->name);
    }
}

/* Memory to which the device has a shorter way, if there is any */
static ucs_status_t
uct_nprdma_bounce_alloc(const uct_nprdma_bounce_t *pool,
                        uct_nprdma_bounce_chunk_t *chunk)
{
    const uct_nprdma_verbs_t *verbs = pool->dev->verbs;

    if (verbs->alloc_buf != NULL) {
        chunk->base = verbs->alloc_buf(pool->dev->pd, chunk->length,
                                       &chunk->buf);
        if (chunk->base != NULL) {
            return UCS_OK;
        }

        chunk->buf = NULL;
        ucs_debug("%s: no buffer of the device for %s: %m", pool->dev->name,
                  pool->name);
    }

    chunk->base = mmap(NULL, chunk->length, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (chunk->base == MAP_FAILED) {
        ucs_error("failed to allocate %zu bytes for %s: %m", chunk->length,
                  pool->name);
        return UCS_ERR_NO_MEMORY;
    }

    /* The NIC keeps writing to the parent's pages after fork(). If a child
     * shared them, the next write by the parent's CPU would copy the page, and
     * the NIC would not see the copy. */
    madvise(chunk->base, chunk->length, MADV_DONTFORK);
    return UCS_OK;
}

static void uct_nprdma_bounce_free(const uct_nprdma_bounce_t *pool,
                                   uct_nprdma_bounce_chunk_t *chunk)
{
    if (chunk->buf != NULL) {
        pool->dev->verbs->free_buf(chunk->buf);
    } else {
        munmap(chunk->base, chunk->length);
    }
}

/* Allocate and register num_slots more slots. The caller has reserved the
 * budget. */
static ucs_status_t
uct_nprdma_bounce_add_chunk(uct_nprdma_bounce_t *pool, unsigned num_slots)
{
    uct_nprdma_bounce_chunk_t *chunk;
    uct_nprdma_slot_t *slot;
    unsigned i;

    chunk = ucs_calloc(1, sizeof(*chunk) + (num_slots * sizeof(*slot)),
                       "nprdma_bounce");
    if (chunk == NULL) {
        ucs_error("failed to allocate %u descriptors for %s", num_slots,
                  pool->name);
        return UCS_ERR_NO_MEMORY;
    }

    chunk->length = uct_nprdma_bounce_length(pool, num_slots);
    if (uct_nprdma_bounce_alloc(pool, chunk) != UCS_OK) {
        goto err_free;
    }

    chunk->mr = pool->dev->verbs->register_mr(pool->dev->pd, chunk->base,
                                             chunk->length,
                                             IBV_ACCESS_LOCAL_WRITE);
    if (chunk->mr == NULL) {
        uct_nprdma_bounce_log_reg_failure(pool, chunk->length);
        goto err_release;
    }

    for (i = num_slots; i-- > 0;) {
        slot       = &chunk->slots[i];
        slot->pool = pool;
        slot->data = (char*)chunk->base + (i * pool->slot_size);
        slot->lkey = chunk->mr->lkey;
        uct_nprdma_bounce_put(slot);
    }

    ucs_atomic_add64(&pool->dev->stats->pinned_bytes, chunk->length);
    pool->num_slots += num_slots;
    chunk->next      = pool->chunks;
    pool->chunks     = chunk;
    ucs_debug("%s: %s has %u slots of %zu bytes", pool->dev->name, pool->name,
              pool->num_slots, pool->slot_size);
    return UCS_OK;

err_release:
    uct_nprdma_bounce_free(pool, chunk);
err_free:
    ucs_free(chunk);
    return UCS_ERR_NO_MEMORY;
}

ucs_status_t
uct_nprdma_bounce_init(uct_nprdma_bounce_t *pool, struct uct_nprdma_device *dev,
                       size_t slot_size, unsigned max_slots,
                       unsigned min_slots, const char *name)
{
    size_t budget = atomic_load(&uct_nprdma_bounce_budget);
    size_t most   = atomic_load(&uct_nprdma_bounce_most);
    ucs_status_t status;
    unsigned num_slots;
    size_t length;

    pool->free      = NULL;
    pool->num_free  = 0;
    pool->num_slots = 0;
    pool->max_slots = max_slots;
    pool->slot_size = uct_nprdma_align_up(slot_size, UCS_SYS_CACHE_LINE_SIZE);
    pool->dev        = dev;
    pool->name      = name;
    pool->chunks    = NULL;

    num_slots = max_slots;
    length    = uct_nprdma_bounce_length(pool, num_slots);
    while ((num_slots > min_slots) &&
           !uct_nprdma_bounce_reserve(length,
                                      uct_nprdma_bounce_part(budget, 4))) {
        num_slots = ucs_max(num_slots / 2, min_slots);
        length    = uct_nprdma_bounce_length(pool, num_slots);
    }

    if ((num_slots <= min_slots) &&
        !uct_nprdma_bounce_reserve(length, most)) {
        ucs_error("%s: no pinned memory left for %s of one more UCX context or "
                  "worker: %zu of %zu bytes are in use, %zu more are needed "
                  "(ulimit -l, UCX_NPRDMA_MAX_PINNED)",
                  dev->name, name, uct_nprdma_bounce_pinned(), most, length);
        return UCS_ERR_NO_MEMORY;
    }

    if (budget < UCT_NPRDMA_FULL_PINNED) {
        /* Slots are short, and scarce: as many as the pages have room for */
        num_slots = ucs_min(length / pool->slot_size, max_slots);
    }

    status = uct_nprdma_bounce_add_chunk(pool, num_slots);
    if (status != UCS_OK) {
        atomic_fetch_sub(&uct_nprdma_bounce_used, length);
    }
    return status;
}

unsigned uct_nprdma_bounce_grow(uct_nprdma_bounce_t *pool)
{
    size_t budget = atomic_load(&uct_nprdma_bounce_budget);
    unsigned num_slots;
    size_t length;

    num_slots = ucs_min(ucs_min(pool->num_slots, UCT_NPRDMA_BOUNCE_GROW_MAX),
                        pool->max_slots - pool->num_slots);
    if (num_slots == 0) {
        return 0;
    }

    length = uct_nprdma_bounce_length(pool, num_slots);
    if (!uct_nprdma_bounce_reserve(length, uct_nprdma_bounce_part(budget, 2))) {
        pool->max_slots = pool->num_slots; /* this pool does not grow again */
        return 0;
    }

    if (uct_nprdma_bounce_add_chunk(pool, num_slots) != UCS_OK) {
        atomic_fetch_sub(&uct_nprdma_bounce_used, length);
        pool->max_slots = pool->num_slots;
        return 0;
    }

    return num_slots;
}

void uct_nprdma_bounce_cleanup(uct_nprdma_bounce_t *pool)
{
    uct_nprdma_bounce_chunk_t *chunk;
    int ret;

    while ((chunk = pool->chunks) != NULL) {
        pool->chunks = chunk->next;
        ret          = pool->dev->verbs->dereg_mr(chunk->mr);
        if (ret != 0) {
            ucs_warn("%s: failed to deregister memory of %s: %s",
                     pool->dev->name, pool->name, strerror(ret));
        }
        uct_nprdma_bounce_free(pool, chunk);
        atomic_fetch_sub(&uct_nprdma_bounce_used, chunk->length);
        ucs_atomic_sub64(&pool->dev->stats->pinned_bytes, chunk->length);
        ucs_free(chunk);
    }

    pool->free      = NULL;
    pool->num_free  = 0;
    pool->num_slots = 0;
}

void uct_nprdma_slot_release_comp(struct uct_nprdma_net_iface *iface,
                                  uct_nprdma_conn_t *conn,
                                  uct_nprdma_comp_t *comp, ucs_status_t status)
{
    --conn->num_slots;
    uct_nprdma_bounce_put(ucs_container_of(comp, uct_nprdma_slot_t, comp));
}
