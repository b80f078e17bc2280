/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "host/emlx5_dma.h"
#include "base/emlx5_limits.h"
#include "base/emlx5_log.h"
#include "base/emlx5_time.h"

#include <string.h>

enum {
    EMLX5_DMA_PAUSE_ODDS = 16,         /* one of this many transactions waits */
    EMLX5_DMA_DEFER_NS   = 2000 * 1000 /* longest time that payload waits */
};

void emlx5_dma_init(emlx5_dma_t *dma, emlx5_host_t *host,
                    const emlx5_dma_config_t *config)
{
    memset(dma, 0, sizeof(*dma));
    dma->host         = host;
    dma->config       = *config;
    dma->random.state = config->seed;
}

/* Length of the next transaction, which ends at a multiple of EMLX5_DMA_UNIT
 * and, as PCIe demands, does not cross 4 KiB. */
static uint32_t emlx5_dma_piece(emlx5_dma_t *dma, uint64_t iova, size_t length)
{
    uint32_t piece = dma->config.max_tlp, units;

    if (piece == 0) {
        return (length < EMLX5_DMA_WHOLE) ? length : EMLX5_DMA_WHOLE;
    }
    units = (piece - dma->config.min_tlp) / EMLX5_DMA_UNIT;
    piece = dma->config.min_tlp +
            (emlx5_random_below(&dma->random, units + 1) * EMLX5_DMA_UNIT);
    piece -= iova % EMLX5_DMA_UNIT;
    if (piece > EMLX5_PAGE - (iova % EMLX5_PAGE)) {
        piece = EMLX5_PAGE - (iova % EMLX5_PAGE);
    }
    return (length < piece) ? length : piece;
}

static void emlx5_dma_pause(emlx5_dma_t *dma)
{
    if ((dma->config.delay_us > 0) &&
        (emlx5_random_below(&dma->random, EMLX5_DMA_PAUSE_ODDS) == 0)) {
        dma->host->pause(dma->host, 1 + emlx5_random_below(&dma->random,
                                                    dma->config.delay_us));
    }
}

static void emlx5_dma_shuffle(emlx5_dma_t *dma)
{
    emlx5_tlp_t tlp;
    unsigned i, j;

    for (i = dma->count - 1; i > 0; --i) {
        j             = emlx5_random_below(&dma->random, i + 1);
        tlp           = dma->batch[i];
        dma->batch[i] = dma->batch[j];
        dma->batch[j] = tlp;
    }
}

/* Carries out the batch: all at once, or in groups with pauses between them. */
static void emlx5_dma_execute(emlx5_dma_t *dma)
{
    unsigned done, group;

    if (dma->count == 0) {
        return;
    }
    if (dma->config.reorder_reads) {
        emlx5_dma_shuffle(dma);
    }
    for (done = 0; done < dma->count; done += group) {
        group = dma->count - done;
        if (dma->config.delay_us > 0) {
            emlx5_dma_pause(dma);
            group = 1 + emlx5_random_below(&dma->random, group);
        }
        if (dma->host->read(dma->host, dma->batch + done, group) != 0) {
            dma->failed = 1;
        }
    }
    dma->count = 0;
}

void emlx5_dma_get(emlx5_dma_t *dma, uint64_t iova, void *data, size_t length)
{
    uint32_t piece;

    if (!dma->enabled) {
        memset(data, 0, length);
        dma->failed = (length > 0) ? 1 : dma->failed;
        ++dma->stats.refused;
        return;
    }
    dma->stats.read_bytes += length;
    for (; length > 0; length -= piece) {
        if (dma->count == EMLX5_DMA_BATCH) {
            emlx5_dma_execute(dma);
        }
        piece = emlx5_dma_piece(dma, iova, length);
        dma->batch[dma->count++] = (emlx5_tlp_t){iova, data, piece};
        ++dma->stats.reads;
        iova += piece;
        data  = (uint8_t*)data + piece;
    }
}

int emlx5_dma_finish(emlx5_dma_t *dma)
{
    int failed;

    emlx5_dma_execute(dma);
    failed      = dma->failed;
    dma->failed = 0;
    return failed ? -1 : 0;
}

int emlx5_dma_read(emlx5_dma_t *dma, uint64_t iova, void *data, size_t length)
{
    emlx5_dma_get(dma, iova, data, length);
    return emlx5_dma_finish(dma);
}

/* 1 if the payload now waits, to be overtaken. */
static int emlx5_dma_defer(emlx5_dma_t *dma, const emlx5_tlp_t *tlp)
{
    emlx5_dma_deferred_t *d;

    if ((tlp->length > EMLX5_DMA_TLP) ||
        (dma->num_deferred == EMLX5_DMA_DEFERRED) ||
        (emlx5_random_below(&dma->random, 2) == 0)) {
        return 0;
    }
    for (d = dma->deferred; d->length != 0; ++d) {
    }
    d->iova   = tlp->iova;
    d->length = tlp->length;
    d->until  = emlx5_now() +
               emlx5_random_below(&dma->random, EMLX5_DMA_DEFER_NS);
    memcpy(d->data, tlp->data, tlp->length);
    ++dma->num_deferred;
    return 1;
}

static void emlx5_dma_post(emlx5_dma_t *dma, uint64_t iova, const void *data,
                           size_t length, int may_wait)
{
    emlx5_tlp_t tlp;

    if (!dma->enabled) {
        ++dma->stats.refused;
        return;
    }
    dma->stats.write_bytes += length;
    for (; length > 0; length -= tlp.length) {
        tlp.iova   = iova;
        tlp.data   = (void*)data;
        tlp.length = emlx5_dma_piece(dma, iova, length);
        ++dma->stats.writes;
        if (!may_wait || !emlx5_dma_defer(dma, &tlp)) {
            emlx5_dma_pause(dma);
            dma->host->write(dma->host, &tlp);
        }
        iova += tlp.length;
        data  = (const uint8_t*)data + tlp.length;
    }
}

void emlx5_dma_write(emlx5_dma_t *dma, uint64_t iova, const void *data,
                     size_t length)
{
    emlx5_dma_post(dma, iova, data, length, 0);
}

void emlx5_dma_put(emlx5_dma_t *dma, uint64_t iova, const void *data,
                   size_t length)
{
    emlx5_dma_post(dma, iova, data, length, dma->config.relaxed_writes);
}

void emlx5_dma_drain(emlx5_dma_t *dma)
{
    dma->host->drain(dma->host);
}

uint64_t emlx5_dma_expire(emlx5_dma_t *dma, int all)
{
    uint64_t now, next = UINT64_MAX;
    emlx5_dma_deferred_t *d;
    emlx5_tlp_t tlp;

    if (dma->num_deferred == 0) {
        return next;
    }
    now = emlx5_now();
    for (d = dma->deferred; d < dma->deferred + EMLX5_DMA_DEFERRED; ++d) {
        if (d->length == 0) {
            continue;
        }
        if (!all && (d->until > now)) {
            next = (d->until < next) ? d->until : next;
            continue;
        }
        tlp       = (emlx5_tlp_t){d->iova, d->data, d->length};
        d->length = 0;
        --dma->num_deferred;
        dma->host->write(dma->host, &tlp);
    }
    return next;
}

void emlx5_dma_reset(emlx5_dma_t *dma)
{
    unsigned i;

    for (i = 0; i < EMLX5_DMA_DEFERRED; ++i) {
        dma->deferred[i].length = 0;
    }
    dma->num_deferred = 0;
    dma->count        = 0;
    dma->failed       = 0;
}
