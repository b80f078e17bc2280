/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef RMEM_CACHE_H_
#define RMEM_CACHE_H_

/*
 * Which pages of a window are in local memory, and which ones leave. Pure: it
 * knows numbers of pages, takes no lock, and moves no data.
 *
 * Replacement is 2Q (Johnson and Shasha, VLDB 1994) without the references to
 * present pages, which nothing reports: a page that comes goes to the queue of
 * new pages, or, if it has left that one lately (a ghost), to the queue of
 * pages that are used again. Both are FIFOs. New pages have a quarter of the
 * frames, ghosts are as many as half of the frames.
 *
 * Every change of a page's state happens while the mutex of the session is
 * held, with the system calls that belong to it. So no state says that a page
 * is on its way.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#ifdef __cplusplus
extern "C" {
#endif

/* State of a page */
enum {
    RMEM_PAGE_VIRGIN, /* Not here; the server has zeros */
    RMEM_PAGE_ABSENT, /* Not here */
    RMEM_PAGE_CLEAN,  /* Here, write-protected, as the server has it */
    RMEM_PAGE_DIRTY   /* Here, and the program may write to it */
};

/* Twins: copies of pages as the server has them */
#define RMEM_TWIN_NONE  UINT32_MAX       /* No copy: the page is sent whole */
#define RMEM_TWIN_ZEROS (UINT32_MAX - 1) /* The server has zeros */

enum {
    RMEM_CACHE_STREAMS   = 8,
    RMEM_CACHE_MAX_AHEAD = 16 /* Pages that one fault brings */
};

/* A place for a page that is here */
typedef struct rmem_frame {
    TAILQ_ENTRY(rmem_frame) entry; /* Of its queue, or of free frames */
    uint32_t                page;
    uint32_t                twin;   /* ZEROS until something else is sent */
    bool                    is_new; /* In the queue of new pages */
} rmem_frame_t;

typedef TAILQ_HEAD(rmem_queue, rmem_frame) rmem_queue_t; /* From old to young */

/* Faults at consecutive addresses */
typedef struct {
    uint32_t next;  /* Page that continues it */
    uint32_t ahead; /* Pages that the last fault wanted; 0: unused */
    uint64_t used;
} rmem_stream_t;

typedef struct {
    size_t        mapped;  /* Bytes of the next five */
    rmem_frame_t  *frames;
    uint32_t      *links;  /* Of all pages: frame, or place among the ghosts */
    uint32_t      *ghosts; /* Ring of pages */
    uint32_t      *twins;  /* Free ones */
    uint8_t       *states; /* Of all pages */
    uint32_t      pages, max_frames, max_ghosts, max_twins;
    uint32_t      used_frames, new_frames, next_ghost, free_twins;
    rmem_queue_t  queues[2]; /* Of frames: used again; new */
    rmem_queue_t  free;
    rmem_stream_t streams[RMEM_CACHE_STREAMS];
    uint64_t      clock;   /* Of the streams */
} rmem_cache_t;

/* Returns -1 if memory lacks. All pages are virgin. frames: at least 4. */
int rmem_cache_init(rmem_cache_t *cache, uint32_t pages, uint32_t frames,
                    uint32_t twins);
void rmem_cache_cleanup(rmem_cache_t *cache);

/* A fault at a page: how many pages from this one on are to be served. All have
 * the state of this one. */
uint32_t rmem_cache_ahead(rmem_cache_t *cache, uint32_t page);

/* The page comes, CLEAN or DIRTY; there is a free frame (used_frames). A virgin
 * page has the twin ZEROS. */
void rmem_cache_add(rmem_cache_t *cache, uint32_t page, int state);

/* Pages that are to leave next, at most max, in ascending order */
uint32_t rmem_cache_victims(rmem_cache_t *cache, uint32_t *pages, uint32_t max);

/* A clean page has left. */
void rmem_cache_evicted(rmem_cache_t *cache, uint32_t page);

/* The page is virgin again, wherever it was. The caller tells the server. */
void rmem_cache_discard(rmem_cache_t *cache, uint32_t page);

/* A free twin for a page that is here, or RMEM_TWIN_NONE: the page has one, or
 * none is free. */
uint32_t rmem_cache_take_twin(rmem_cache_t *cache, uint32_t page);

/* A present page becomes CLEAN. is_sent: the server gets what it has. */
void rmem_cache_clean(rmem_cache_t *cache, uint32_t page, bool is_sent);

static inline int rmem_cache_is_here(const rmem_cache_t *cache, uint32_t page)
{
    return cache->states[page] >= RMEM_PAGE_CLEAN;
}

/* The frame of a page that is here */
static inline rmem_frame_t *
rmem_cache_frame(const rmem_cache_t *cache, uint32_t page)
{
    return &cache->frames[cache->links[page]];
}

#ifdef __cplusplus
}
#endif

#endif
