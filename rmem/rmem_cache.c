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
    TAILQ_INIT(&cache->queues[0]);
    TAILQ_INIT(&cache->queues[1]);
    TAILQ_INIT(&cache->free);
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
    bool         is_new = !rmem_cache_take_ghost(cache, page);
    rmem_frame_t *frame = TAILQ_FIRST(&cache->free);

    if (frame != NULL) {
        TAILQ_REMOVE(&cache->free, frame, entry);
    } else {
        /* In no list before, which would take memory */
        frame = &cache->frames[cache->used_frames];
    }
    frame->page   = page;
    frame->is_new = is_new;
    frame->twin   = (cache->states[page] == RMEM_PAGE_ABSENT) ?
                    RMEM_TWIN_NONE : RMEM_TWIN_ZEROS;
    TAILQ_INSERT_TAIL(&cache->queues[is_new], frame, entry);
    cache->new_frames += is_new;
    ++cache->used_frames;
    cache->links[page]  = frame - cache->frames;
    cache->states[page] = state;
}

static void rmem_cache_remove(rmem_cache_t *cache, rmem_frame_t *frame)
{
    TAILQ_REMOVE(&cache->queues[frame->is_new], frame, entry);
    TAILQ_INSERT_HEAD(&cache->free, frame, entry);
    cache->new_frames -= frame->is_new;
    --cache->used_frames;
}

uint32_t rmem_cache_victims(rmem_cache_t *cache, uint32_t *pages, uint32_t max)
{
    rmem_frame_t *next[]    = {TAILQ_FIRST(&cache->queues[0]),
                               TAILQ_FIRST(&cache->queues[1])};
    uint32_t     new_frames = cache->new_frames;
    rmem_frame_t *frame;
    uint32_t     count, place;
    bool         is_new;

    for (count = 0; (count < max) && (count < cache->used_frames); ++count) {
        is_new       = (next[0] == NULL) ||
                       (new_frames > cache->max_frames / 4);
        new_frames  -= is_new;
        frame        = next[is_new];
        next[is_new] = TAILQ_NEXT(frame, entry);
        for (place = count; (place > 0) && (pages[place - 1] > frame->page);
             --place) {
            pages[place] = pages[place - 1];
        }
        pages[place] = frame->page;
    }
    return count;
}

void rmem_cache_evicted(rmem_cache_t *cache, uint32_t page)
{
    rmem_frame_t *frame = rmem_cache_frame(cache, page);

    cache->states[page] = (frame->twin == RMEM_TWIN_ZEROS) ? RMEM_PAGE_VIRGIN :
                          RMEM_PAGE_ABSENT;
    if (frame->is_new) {
        cache->ghosts[cache->next_ghost] = page;
        cache->links[page]               = cache->next_ghost;
        cache->next_ghost = (cache->next_ghost + 1) % cache->max_ghosts;
    }
    rmem_cache_remove(cache, frame);
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
    rmem_frame_t *frame = rmem_cache_frame(cache, page);

    if (rmem_cache_is_here(cache, page)) {
        rmem_cache_drop_twin(cache, frame);
        rmem_cache_remove(cache, frame);
    } else {
        rmem_cache_take_ghost(cache, page);
    }
    cache->states[page] = RMEM_PAGE_VIRGIN;
}

uint32_t rmem_cache_take_twin(rmem_cache_t *cache, uint32_t page)
{
    rmem_frame_t *frame = rmem_cache_frame(cache, page);

    if ((frame->twin != RMEM_TWIN_NONE) || (cache->free_twins == 0)) {
        return RMEM_TWIN_NONE;
    }

    frame->twin = cache->twins[--cache->free_twins];
    return frame->twin;
}

void rmem_cache_clean(rmem_cache_t *cache, uint32_t page, bool is_sent)
{
    rmem_frame_t *frame = rmem_cache_frame(cache, page);

    if (is_sent || (frame->twin != RMEM_TWIN_ZEROS)) {
        rmem_cache_drop_twin(cache, frame);
    }
    cache->states[page] = RMEM_PAGE_CLEAN;
}
