/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "nprdma_early.h"
#include "nprdma_monitor.h"
#include "nprdma_monitor_int.h"
#include "ucm/events/nprdma_pressure.h"

/* Percent of the limit of a cgroup. The kernel cannot take back what came in
 * early, so the rest is for memory that the program takes anyway. */
#define NPRDMA_EARLY_ROOM 75


/* Whole pages of a buffer; empty if it is too small to fill a block */
static nprdma_span_t nprdma_early_pages(const nprdma_monitor_t *monitor,
                                        uintptr_t address, size_t length)
{
    const uintptr_t mask = NPRDMA_PAGE_SIZE - 1;
    uintptr_t end        = address + length;

    if ((monitor->forecast == NULL) || (length < NPRDMA_FORECAST_MIN / 2) ||
        (end < address) || (end > UINTPTR_MAX - mask)) {
        return nprdma_span(0, 0);
    }

    return nprdma_span(address & ~mask, (end + mask) & ~mask);
}

void nprdma_early_filled(nprdma_monitor_t *monitor, uintptr_t address,
                         size_t length)
{
    nprdma_span_t span = nprdma_early_pages(monitor, address, length);

    if (span.start < span.end) {
        nprdma_forecast_filled(monitor->forecast, span);
    }
}

void nprdma_early_shown(nprdma_monitor_t *monitor, uintptr_t address,
                        size_t length)
{
    nprdma_span_t span = nprdma_early_pages(monitor, address, length);

    if (span.start < span.end) {
        nprdma_forecast_shown(monitor->forecast, span);
    }
}

/* @return Nonzero if the cgroups have room for the block, where it begins */
static int nprdma_early_has_room(nprdma_monitor_t *monitor,
                                 const nprdma_forecast_piece_t *piece)
{
    if (piece->span.start != piece->block.start) {
        return 1;
    }

    pthread_mutex_lock(&monitor->lock);
    if (!monitor->is_room_open) {
        nprdma_pressure_open_room(&monitor->room);
        monitor->is_room_open = 1;
    }
    pthread_mutex_unlock(&monitor->lock);
    return nprdma_room_has(&monitor->room,
                           piece->block.end - piece->block.start,
                           NPRDMA_EARLY_ROOM);
}

/* Hooks wait for a piece that has begun: nothing here allocates */
static void nprdma_early_piece(nprdma_monitor_t *monitor,
                               const nprdma_forecast_piece_t *piece,
                               nprdma_range_t *range)
{
    ucs_status_t status;

    if (!nprdma_forecast_begin(monitor->forecast, piece)) {
        return;
    }

    status = (range == NULL) ? UCS_ERR_NO_MEMORY :
             nprdma_monitor_populate(monitor, range, piece->span.start,
                                     piece->span.end - piece->span.start,
                                     NPRDMA_POPULATE_WRITE);
    nprdma_forecast_end(monitor->forecast, piece, status == UCS_OK);
}

int nprdma_early_page_in(nprdma_monitor_t *monitor)
{
    nprdma_forecast_piece_t piece;
    nprdma_range_t range;

    if ((monitor->forecast == NULL) ||
        !nprdma_forecast_peek(monitor->forecast, &piece)) {
        return 0;
    }

    /* All of the block, so that its region is that of the operation. May create
     * the region, and allocate for it (ARCHITECTURE 4: hooks wait for no thread
     * that may allocate). */
    if (!nprdma_early_has_room(monitor, &piece) ||
        (nprdma_monitor_register_local(monitor, piece.block.start,
                                       piece.block.end - piece.block.start,
                                       &range) != UCS_OK)) {
        nprdma_early_piece(monitor, &piece, NULL);
        return 1;
    }

    nprdma_early_piece(monitor, &piece, &range);
    nprdma_monitor_unregister(monitor, &range, 0);
    return 1;
}
