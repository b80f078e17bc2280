/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "rmem_cache.h"

#include <string.h>
#include <sys/mman.h>

#define RMEM_CACHE_NONE  UINT32_MAX


/* Only what is used of it takes memory: windows are large */
int rmem_cache_init(rmem_cache_t *cache, uint32_t pages, uint32_t frames,
                    uint32_t twins)
{
    uint32_t i;

    memset(cache, 0, sizeof(*cache));
    cache->pages      = pages;
    cache->max_frames = frames;
    cache->max_ghosts = frames / 2;
    cache->max_twins  = twins;
    cache->free_twins = twins;
    cache->free_frame = RMEM_CACHE_NONE;
    cache->mapped     = frames * sizeof(*cache->frames) + pages +
                        ((size_t)pages + cache->max_ghosts + twins) *
                        sizeof(uint32_t);
    cache->frames     = mmap(NULL, cache->mapped, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
                             0);
    if (cache->frames == MAP_FAILED) {
        cache->frames = NULL;
        return -1;
    }

    cache->links  = (uint32_t*)(cache->frames + frames);
    cache->ghosts = cache->links + pages;
    cache->twins  = cache->ghosts + cache->max_ghosts;
    cache->states = (uint8_t*)(cache->twins + twins);
    for (i = 0; i < cache->max_ghosts; ++i) {
        cache->ghosts[i] = RMEM_CACHE_NONE;
    }
    for (i = 0; i < twins; ++i) {
        cache->twins[i] = twins - 1 - i;
    }
    for (i = 0; i < RMEM_QUEUE_LAST; ++i) {
        cache->queues[i].head = RMEM_CACHE_NONE;
        cache->queues[i].tail = RMEM_CACHE_NONE;
    }
    return 0;
}

void rmem_cache_cleanup(rmem_cache_t *cache)
{
    if (cache->frames != NULL) {
        munmap(cache->frames, cache->mapped);
    }
}

uint32_t rmem_cache_ahead(rmem_cache_t *cache, uint32_t page)
{
    rmem_stream_t *stream = &cache->streams[0];
    rmem_stream_t *last   = &cache->streams[RMEM_CACHE_STREAMS];
    uint32_t      most    = cache->max_frames / 4;
    uint32_t      count   = 1;
    uint32_t      ahead   = 1;
    rmem_stream_t *s;

    for (s = cache->streams; s < last; ++s) {
        if ((s->ahead > 0) && (s->next == page)) {
            stream = s;
            ahead  = s->ahead * 4;
            break;
        }
        if (s->used < stream->used) {
            stream = s;
        }
    }

    most  = (most > RMEM_CACHE_MAX_AHEAD) ? RMEM_CACHE_MAX_AHEAD : most;
    ahead = (ahead > most) ? most : ahead;
    while ((count < ahead) && (count < cache->pages - page) &&
           (cache->states[page + count] == cache->states[page])) {
        ++count;
    }
    stream->next  = page + count;
    stream->ahead = ahead;
    stream->used  = ++cache->clock;
    return count;
}


/* ---- queues ---- */

static void rmem_cache_push(rmem_cache_t *cache, uint32_t index)
{
    rmem_frame_t *frame = &cache->frames[index];
    rmem_queue_t *queue = &cache->queues[frame->queue];

    frame->prev = queue->tail;
    frame->next = RMEM_CACHE_NONE;
    if (queue->tail == RMEM_CACHE_NONE) {
        queue->head = index;
    } else {
        cache->frames[queue->tail].next = index;
    }
    queue->tail = index;
    ++queue->length;
}

static void rmem_cache_unlink(rmem_cache_t *cache, uint32_t index)
{
    rmem_frame_t *frame = &cache->frames[index];
    rmem_queue_t *queue = &cache->queues[frame->queue];

    if (frame->prev == RMEM_CACHE_NONE) {
        queue->head = frame->next;
    } else {
        cache->frames[frame->prev].next = frame->next;
    }
    if (frame->next == RMEM_CACHE_NONE) {
        queue->tail = frame->prev;
    } else {
        cache->frames[frame->next].prev = frame->prev;
    }
    --queue->length;
}

/* Whether the page is a ghost, which it is no more then */
static int rmem_cache_take_ghost(rmem_cache_t *cache, uint32_t page)
{
    uint32_t place = cache->links[page];

    if ((place >= cache->max_ghosts) || (cache->ghosts[place] != page)) {
        return 0;
    }

    cache->ghosts[place] = RMEM_CACHE_NONE;
    return 1;
}

void rmem_cache_add(rmem_cache_t *cache, uint32_t page, int state)
{
    bool         is_remote = (cache->states[page] == RMEM_PAGE_ABSENT);
    bool         is_again  = rmem_cache_take_ghost(cache, page);
    uint32_t     index     = cache->free_frame;
    rmem_frame_t *frame;

    if (index == RMEM_CACHE_NONE) {
        /* No frame was given back, so those that follow were never used. They
         * are in no list, which would take their memory. */
        index = cache->used_frames;
        frame = &cache->frames[index];
    } else {
        frame             = &cache->frames[index];
        cache->free_frame = frame->next;
    }
    ++cache->used_frames;

    frame->page          = page;
    frame->twin          = is_remote ? RMEM_TWIN_NONE : RMEM_TWIN_ZEROS;
    frame->queue         = is_again ? RMEM_QUEUE_AGAIN : RMEM_QUEUE_NEW;
    frame->is_remote     = is_remote;
    cache->links[page]   = index;
    cache->states[page]  = state;
    rmem_cache_push(cache, index);
}

static void rmem_cache_free_frame(rmem_cache_t *cache, uint32_t index)
{
    cache->frames[index].next = cache->free_frame;
    cache->free_frame         = index;
    --cache->used_frames;
}

uint32_t rmem_cache_victims(rmem_cache_t *cache, uint32_t *pages, uint32_t max)
{
    rmem_queue_t *queue;
    uint32_t     count, index, place, page;

    for (count = 0; count < max; ++count) {
        queue = &cache->queues[RMEM_QUEUE_NEW];
        if ((queue->length <= cache->max_frames / 4) &&
            (cache->queues[RMEM_QUEUE_AGAIN].length > 0)) {
            queue = &cache->queues[RMEM_QUEUE_AGAIN];
        }
        index = queue->head;
        if (index == RMEM_CACHE_NONE) {
            break;
        }
        page  = cache->frames[index].page;
        rmem_cache_unlink(cache, index);
        for (place = count; (place > 0) && (pages[place - 1] > page); --place) {
            pages[place] = pages[place - 1];
        }
        pages[place] = page;
    }
    return count;
}

void rmem_cache_evicted(rmem_cache_t *cache, uint32_t page)
{
    uint32_t index      = cache->links[page];
    rmem_frame_t *frame = &cache->frames[index];

    cache->states[page] = frame->is_remote ? RMEM_PAGE_ABSENT :
                                             RMEM_PAGE_VIRGIN;
    if (frame->queue == RMEM_QUEUE_NEW) {
        cache->ghosts[cache->next_ghost] = page;
        cache->links[page]               = cache->next_ghost;
        cache->next_ghost = (cache->next_ghost + 1) % cache->max_ghosts;
    }
    rmem_cache_free_frame(cache, index);
}

static void rmem_cache_drop_twin(rmem_cache_t *cache, rmem_frame_t *frame)
{
    if (frame->twin < cache->max_twins) {
        cache->twins[cache->free_twins++] = frame->twin;
    }
    frame->twin = RMEM_TWIN_NONE;
}

void rmem_cache_discard(rmem_cache_t *cache, uint32_t page)
{
    uint32_t index = cache->links[page];

    if (rmem_cache_is_here(cache, page)) {
        rmem_cache_drop_twin(cache, &cache->frames[index]);
        rmem_cache_unlink(cache, index);
        rmem_cache_free_frame(cache, index);
    } else {
        rmem_cache_take_ghost(cache, page);
    }
    cache->states[page] = RMEM_PAGE_VIRGIN;
}

uint32_t rmem_cache_take_twin(rmem_cache_t *cache, uint32_t page)
{
    rmem_frame_t *frame = rmem_cache_frame(cache, page);

    if (cache->free_twins > 0) {
        frame->twin = cache->twins[--cache->free_twins];
    }
    return frame->twin;
}

void rmem_cache_clean(rmem_cache_t *cache, uint32_t page, bool is_sent)
{
    rmem_frame_t *frame = rmem_cache_frame(cache, page);

    frame->is_remote |= is_sent;
    if (frame->is_remote) {
        rmem_cache_drop_twin(cache, frame);
    }
    cache->states[page] = RMEM_PAGE_CLEAN;
}
