/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "config.h"

#include "provider.h"

#include "uct/ib/nprdma/net/nprdma_bounce.h"
#include "uct/ib/nprdma/net/nprdma_device.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* The handle of a buffer is its address */
enum { MAX_BUFS = 16 };

struct pool {
    uct_nprdma_bounce_t       bounce;
    uct_nprdma_device_t       dev;
    uct_nprdma_verbs_t        verbs;
    uct_nprdma_device_stats_t stats;
};

provider_counts_t provider_counts;
int provider_mrs_left;

static struct {
    char   *base;
    size_t size;
} provider_bufs[MAX_BUFS];


static void *provider_alloc_buf(struct ibv_pd *pd UCS_V_UNUSED, size_t size,
                                struct ibv_buf **buf)
{
    char *base = aligned_alloc(ucs_get_page_size(), size);

    provider_bufs[provider_counts.bufs].base = base;
    provider_bufs[provider_counts.bufs].size = size;
    ++provider_counts.bufs;
    *buf = (struct ibv_buf*)base;
    return base;
}

static void *provider_refuse_buf(struct ibv_pd *pd UCS_V_UNUSED,
                                 size_t size UCS_V_UNUSED,
                                 struct ibv_buf **buf UCS_V_UNUSED)
{
    ++provider_counts.refused;
    errno = ENOMEM;
    return NULL;
}

static void provider_free_buf(struct ibv_buf *buf)
{
    int i;

    for (i = 0; i < provider_counts.bufs; ++i) {
        if (provider_bufs[i].base == (char*)buf) {
            provider_bufs[i] = provider_bufs[--provider_counts.bufs];
            free(buf);
            return;
        }
    }
    abort();
}

static int provider_is_buf(const char *addr, size_t length)
{
    int i;

    for (i = 0; i < provider_counts.bufs; ++i) {
        if ((addr == provider_bufs[i].base) &&
            (length <= provider_bufs[i].size)) {
            return 1;
        }
    }
    return 0;
}

static struct ibv_mr *provider_register(struct ibv_pd *pd UCS_V_UNUSED,
                                        void *addr, size_t length,
                                        int access UCS_V_UNUSED)
{
    struct ibv_mr *mr;

    if (provider_mrs_left == 0) {
        errno = EINVAL;
        return NULL;
    }

    --provider_mrs_left;
    mr         = calloc(1, sizeof(*mr));
    mr->addr   = addr;
    mr->length = length;
    ++provider_counts.mrs;
    provider_counts.mrs_of_bufs += provider_is_buf(addr, length);
    return mr;
}

static int provider_deregister(struct ibv_mr *mr)
{
    --provider_counts.mrs;
    provider_counts.mrs_of_bufs -= provider_is_buf(mr->addr, mr->length);
    free(mr);
    return 0;
}

pool_t *pool_open(provider_alloc_t alloc, size_t slot_size, unsigned slots,
                  unsigned min_slots)
{
    pool_t *pool = calloc(1, sizeof(*pool));

    strcpy(pool->dev.name, "provider0");
    pool->dev.verbs         = &pool->verbs;
    pool->dev.stats         = &pool->stats;
    pool->verbs.register_mr = provider_register;
    pool->verbs.dereg_mr    = provider_deregister;
    if (alloc != PROVIDER_HAS_NONE) {
        pool->verbs.alloc_buf = (alloc == PROVIDER_GIVES) ?
                                provider_alloc_buf : provider_refuse_buf;
        pool->verbs.free_buf  = provider_free_buf;
    }
    if (uct_nprdma_bounce_init(&pool->bounce, &pool->dev, slot_size, slots,
                               min_slots, "tests") != UCS_OK) {
        free(pool);
        return NULL;
    }
    return pool;
}

void pool_close(pool_t *pool)
{
    uct_nprdma_bounce_cleanup(&pool->bounce);
    free(pool);
}

unsigned pool_grow(pool_t *pool)
{
    return uct_nprdma_bounce_grow(&pool->bounce);
}

unsigned pool_use(pool_t *pool)
{
    uct_nprdma_slot_t *slot, *taken = NULL;
    unsigned good = 0, count = 0;
    size_t size   = pool->bounce.slot_size;

    while ((slot = uct_nprdma_bounce_get(&pool->bounce)) != NULL) {
        memset(slot->data, ++count, size);
        slot->next = taken;
        taken      = slot;
    }
    while ((slot = taken) != NULL) {
        taken = slot->next;
        good += (slot->data[0] == (char)count) &&
                (slot->data[size - 1] == (char)count);
        --count;
        uct_nprdma_bounce_put(slot);
    }
    return good;
}

void pool_set_budget(size_t bytes)
{
    uct_nprdma_bounce_set_budget(bytes);
}

size_t pool_pinned(void)
{
    return uct_nprdma_bounce_pinned();
}
