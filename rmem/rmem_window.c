/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#define _GNU_SOURCE
#include "rmem_window.h"
#include "rmem_cache.h"
#include "rmem_side.h"
#include "rmem_sigbus.h"
#include "rmem_uffd.h"

#include <errno.h>
#include <linux/userfaultfd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/param.h>
#include <sys/syscall.h>
#include <ucm/api/ucm.h>
#include <unistd.h>

enum {
    RMEM_WINDOW_BATCH      = 32,  /* Pages that leave together */
    RMEM_WINDOW_MIN_FRAMES = 256,
    RMEM_WINDOW_EVENTS     = UCM_EVENT_MADVISE | UCM_EVENT_MUNMAP |
                             UCM_EVENT_MREMAP,
    RMEM_WINDOW_PRIORITY   = -1000 /* Before others see the calls */
};

struct rmem_window {
    rmem_t       *rmem;
    rmem_uffd_t  uffd;
    rmem_cache_t cache;
    char         *bounce; /* Pages that gets bring; registered */
    const char   *zeros;  /* As many, never written, so without memory */
    char         *twins;
    size_t       mapped;  /* Bytes of these three */
    ucp_mem_h    memh;    /* Of bounce */
    pthread_t    thread;  /* With has_thread */
    bool         has_thread;
    /* The thread's: AddressSanitizer takes what a cancelled thread had on its
     * stack for used */
    struct uffd_msg msg;
};


/* ---- to the server ---- */

/* Lines of a dirty page that the server has not. The page is protected. */
static uint64_t rmem_window_mask(rmem_window_t *window, uint32_t page)
{
    const rmem_frame_t *frame = rmem_cache_frame(&window->cache, page);

    ++window->rmem->stats.dirty_pages;
    if ((window->rmem->params.flags & RMEM_PAGES) ||
        (frame->twin == RMEM_TWIN_NONE)) {
        ++window->rmem->stats.untwinned_pages;
        return UINT64_MAX;
    }

    return rmem_wire_diff(rmem_uffd_page(&window->uffd, page),
                     (frame->twin == RMEM_TWIN_ZEROS) ? window->zeros :
                     window->twins + (size_t)frame->twin * RMEM_PAGE_SIZE);
}

static int rmem_window_send(rmem_window_t *window, const rmem_record_t *records,
                            unsigned count)
{
    uint8_t *message = rmem_session_buffer(window->rmem);
    uint8_t *end;
    unsigned i;

    if (message == NULL) {
        return window->rmem->status;
    }

    memcpy(message, records, count * sizeof(*records));
    end = message + count * sizeof(*records);
    for (i = 0; i < count; ++i) {
        end = rmem_wire_gather(end,
                               rmem_uffd_page(&window->uffd, records[i].page),
                               records[i].mask);
    }
    return rmem_session_send(window->rmem, count, 0, end - message);
}

/* Where a run of pages ends that begins at i */
static unsigned rmem_window_run(const uint32_t *pages, unsigned count,
                                unsigned i)
{
    for (++i; (i < count) && (pages[i] == pages[i - 1] + 1); ++i) {}
    return i;
}

/* Sends what the server has not of some pages that are here, in ascending
 * order. They are clean then, also if the session fails: no page leaves after
 * that. */
static int rmem_window_clean(rmem_window_t *window, const uint32_t *pages,
                             unsigned count)
{
    rmem_cache_t  *cache = &window->cache;
    unsigned      num    = 0;
    rmem_record_t records[RMEM_WINDOW_BATCH];
    uint64_t      mask;
    unsigned      i, end;
    int           status;

    for (i = 0; i < count; i = end) {
        end    = rmem_window_run(pages, count, i);
        status = rmem_uffd_protect(&window->uffd, pages[i], end - i, true);
        if (status != RMEM_OK) {
            return status;
        }
    }

    for (i = 0; i < count; ++i) {
        if (cache->states[pages[i]] == RMEM_PAGE_DIRTY) {
            mask = rmem_window_mask(window, pages[i]);
            if (mask != 0) {
                records[num++] = (rmem_record_t){pages[i], 0, mask};
            }
            rmem_cache_clean(cache, pages[i], mask != 0);
        }
    }
    return (num == 0) ? RMEM_OK : rmem_window_send(window, records, num);
}

static int rmem_window_evict(rmem_window_t *window)
{
    uint32_t pages[RMEM_WINDOW_BATCH];
    unsigned count, i, end;
    int      status;

    count  = rmem_cache_victims(&window->cache, pages, RMEM_WINDOW_BATCH);
    status = rmem_window_clean(window, pages, count);
    for (i = 0; (i < count) && (status == RMEM_OK); i = end) {
        end    = rmem_window_run(pages, count, i);
        status = rmem_uffd_drop(&window->uffd, pages[i], end - i);
    }
    if (status != RMEM_OK) {
        return status;
    }

    for (i = 0; i < count; ++i) {
        rmem_cache_evicted(&window->cache, pages[i]);
    }
    window->rmem->stats.evicted_pages += count;
    return RMEM_OK;
}


/* ---- from the server ---- */

/* What pages that are not here have */
static int rmem_window_get(rmem_window_t *window, uint32_t page, uint32_t count,
                           const char **source_p)
{
    rmem_t *rmem = window->rmem;

    if (window->cache.states[page] == RMEM_PAGE_VIRGIN) {
        rmem->stats.virgin_pages += count;
        *source_p                 = window->zeros;
        return RMEM_OK;
    }

    rmem->stats.fetched_pages += count;
    *source_p                  = window->bounce;
    return rmem_session_get(rmem, (uint64_t)page * RMEM_PAGE_SIZE,
                            window->bounce, (size_t)count * RMEM_PAGE_SIZE,
                            window->memh);
}

/* The content of a page with a twin to be is in a local buffer, or protected */
static void rmem_window_take_twin(rmem_window_t *window, uint32_t page,
                                  const char *content)
{
    uint32_t twin = rmem_cache_take_twin(&window->cache, page);

    if (twin != RMEM_TWIN_NONE) {
        memcpy(window->twins + (size_t)twin * RMEM_PAGE_SIZE, content,
               RMEM_PAGE_SIZE);
    }
}

/* A page comes, and with it those that a stream needs next. Pages of a stream
 * of writes come dirty and without twins: each would fault once more. */
static int rmem_window_fetch(rmem_window_t *window, uint32_t page,
                             bool is_write)
{
    rmem_cache_t *cache = &window->cache;
    uint32_t     count  = rmem_cache_ahead(cache, page);
    const char   *source;
    uint32_t     i;
    int          status = window->rmem->status;

    while ((status == RMEM_OK) &&
           (cache->used_frames + count > cache->max_frames)) {
        status = rmem_window_evict(window);
    }
    if (status == RMEM_OK) {
        status = rmem_window_get(window, page, count, &source);
    }
    if (status == RMEM_OK) {
        status = rmem_uffd_copy(&window->uffd, page, count, source, !is_write);
    }
    if (status != RMEM_OK) {
        return status;
    }

    for (i = 0; i < count; ++i) {
        rmem_cache_add(cache, page + i,
                       is_write ? RMEM_PAGE_DIRTY : RMEM_PAGE_CLEAN);
    }
    if (is_write && (count == 1)) {
        rmem_window_take_twin(window, page, source);
    }
    return RMEM_OK;
}

/* The first write to a page. A stream may have read ahead what it writes now;
 * then it is as for pages that come. */
static int rmem_window_lift(rmem_window_t *window, uint32_t page)
{
    uint32_t count = rmem_cache_ahead(&window->cache, page);

    if (count == 1) {
        rmem_window_take_twin(window, page,
                              rmem_uffd_page(&window->uffd, page));
    }
    memset(window->cache.states + page, RMEM_PAGE_DIRTY, count);
    return rmem_uffd_protect(&window->uffd, page, count, false);
}

/* Makes an access possible. Another thread may have done it already. */
static int rmem_window_fault(rmem_window_t *window, uint32_t page,
                             bool is_write)
{
    window->rmem->stats.hits += (window->cache.states[page] !=
                                 RMEM_PAGE_ABSENT);
    if (!rmem_cache_is_here(&window->cache, page)) {
        return rmem_window_fetch(window, page, is_write);
    }

    if (!is_write) {
        return RMEM_OK;
    }

    return (window->cache.states[page] == RMEM_PAGE_CLEAN) ?
           rmem_window_lift(window, page) :
           rmem_uffd_protect(&window->uffd, page, 1, false);
}

/* A thread has accessed an address; perhaps that of a child of vfork() */
static int rmem_window_resolve(void *arg, const void *address, bool is_write)
{
    rmem_window_t *window = arg;
    uint32_t page         = ((const char*)address - window->uffd.base) /
                            RMEM_PAGE_SIZE;
    int status, cancel;

    /* As rmem_enter(), whose two system calls the handler does not need */
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
    ++rmem_inside;
    if (pthread_mutex_lock(&window->rmem->lock) != 0) {
        rmem_error(RMEM_ERR_ARG, "a call of librmem, or on_error(), has "
                   "touched the window");
        abort();
    }
    ++window->rmem->stats.faults;
    status = rmem_window_fault(window, page, is_write);
    pthread_mutex_unlock(&window->rmem->lock);
    --rmem_inside;
    pthread_setcancelstate(cancel, NULL);
    return status;
}


/* ---- what the program does with the mapping ---- */

/* A length of zero is refused by the kernel. madvise() takes it: that is right
 * for advice, which needs no help here. */
static void rmem_window_on_advice(rmem_window_t *window, ucm_event_t *event)
{
    void   *address = event->madvise.addr;
    size_t length   = roundup(event->madvise.length, RMEM_PAGE_SIZE);

    event->madvise.length = 0;
    if ((event->madvise.advice == MADV_DONTNEED) &&
        (rmem_discard(window->rmem, address, length) != RMEM_OK)) {
        event->madvise.addr = window->rmem->base + 1; /* Is refused */
    }
}

/* The window has to stay one mapping: userfaultfd fills no two at a time. The
 * program's calls are changed to ones that do nothing, or fail with EINVAL. */
static void rmem_window_on_event(ucm_event_type_t type, ucm_event_t *event,
                                 void *arg)
{
    rmem_window_t *window = arg;

    if (type == UCM_EVENT_MADVISE) {
        if (rmem_uffd_has(&window->uffd, event->madvise.addr) &&
            (event->madvise.result != 0)) {
            rmem_window_on_advice(window, event);
        }
    } else if (type == UCM_EVENT_MUNMAP) {
        if (rmem_uffd_has(&window->uffd, event->munmap.address)) {
            event->munmap.size = 0;
        }
    } else if (rmem_uffd_has(&window->uffd, event->mremap.address)) {
        event->mremap.new_size = 0;
    }
}


/* ---- faults that a thread of the window serves ---- */

static void *rmem_window_serve(void *arg)
{
    rmem_window_t *window = arg;
    struct uffd_msg *msg  = &window->msg;
    void *page;

    ++rmem_inside;
    /* Is cancelled there */
    while (read(window->uffd.fd, msg, sizeof(*msg)) == sizeof(*msg)) {
        page = (void*)(uintptr_t)msg->arg.pagefault.address;
        if (rmem_window_resolve(window, page, msg->arg.pagefault.flags &
                                (UFFD_PAGEFAULT_FLAG_WRITE |
                                 UFFD_PAGEFAULT_FLAG_WP)) != RMEM_OK) {
            rmem_sigbus_forbid(page, RMEM_PAGE_SIZE, MAP_FIXED);
        }
        /* Also if another fault has brought the page */
        rmem_uffd_wake(&window->uffd, page);
    }
    return NULL;
}


/* ---- flush and discard ---- */

int rmem_window_flush(rmem_window_t *window)
{
    uint32_t dirty[RMEM_WINDOW_BATCH];
    uint32_t page, count = 0;
    uint32_t pages = window->cache.pages;
    int status     = RMEM_OK;

    for (page = 0; (page < pages) && (status == RMEM_OK); ++page) {
        if (window->cache.states[page] == RMEM_PAGE_DIRTY) {
            dirty[count++] = page;
        }
        if ((count == RMEM_WINDOW_BATCH) || (page == pages - 1)) {
            status = rmem_window_clean(window, dirty, count);
            count  = 0;
        }
    }
    return status;
}

/* Of virgin pages the server has zeros anyway */
int rmem_window_discard(rmem_window_t *window, uint32_t first, uint32_t count)
{
    const uint8_t *states = window->cache.states;
    uint32_t      end     = first + count;
    uint32_t      page;
    int           status;

    for (; (first < end) && (states[first] == RMEM_PAGE_VIRGIN); ++first) {}
    if (first == end) {
        return RMEM_OK;
    }

    status = rmem_session_drop(window->rmem, first, end - first);
    if (status == RMEM_OK) {
        status = rmem_uffd_drop(&window->uffd, first, end - first);
    }
    for (page = first; (page < end) && (status == RMEM_OK); ++page) {
        rmem_cache_discard(&window->cache, page);
    }
    return status;
}


/* ---- map ---- */

/* Divides cache_bytes: buffers, then an eighth for twins, the rest for pages */
static int rmem_window_init_cache(rmem_window_t *window)
{
    const rmem_params_t *params = &window->rmem->params;
    uint64_t pages  = window->rmem->params.bytes / RMEM_PAGE_SIZE;
    size_t   buffer = RMEM_CACHE_MAX_AHEAD * RMEM_PAGE_SIZE;
    size_t   other  = RMEM_SESSION_BYTES + buffer;
    uint64_t frames = (params->cache_bytes > other) ?
                      (params->cache_bytes - other) / RMEM_PAGE_SIZE : 0;
    uint64_t twins;

    if (frames < RMEM_WINDOW_MIN_FRAMES) {
        return rmem_error(RMEM_ERR_ARG, "a cache of %zu bytes is too small: a "
                          "window needs %zu", params->cache_bytes,
                          other + RMEM_WINDOW_MIN_FRAMES * RMEM_PAGE_SIZE);
    }

    twins   = (params->flags & RMEM_PAGES) ? 0 : frames / 8;
    frames -= twins;
    if (frames > pages) {
        frames = (pages < 4) ? 4 : pages;
    }
    window->mapped = 2 * buffer + twins * RMEM_PAGE_SIZE;
    window->bounce = mmap(NULL, window->mapped, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (window->bounce == MAP_FAILED) {
        return RMEM_ERR_NOMEM;
    }

    window->zeros = window->bounce + buffer;
    window->twins = window->bounce + 2 * buffer;
    /* A huge page of zeros would be memory */
    madvise(window->bounce, window->mapped, MADV_NOHUGEPAGE);
    if (rmem_cache_init(&window->cache, pages, frames, twins) != 0) {
        return RMEM_ERR_NOMEM;
    }
    if (window->rmem->stats.messages > 0) {
        memset(window->cache.states, RMEM_PAGE_ABSENT, pages);
    }
    return RMEM_OK;
}

static int rmem_window_init(rmem_window_t *window)
{
    rmem_t *rmem                = window->rmem;
    bool is_kernel              = (rmem->params.flags & RMEM_KERNEL_FAULTS);
    ucp_mem_map_params_t params = {
        .field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS |
                      UCP_MEM_MAP_PARAM_FIELD_LENGTH,
        .length     = RMEM_CACHE_MAX_AHEAD * RMEM_PAGE_SIZE
    };
    int status;

    status = rmem_window_init_cache(window);
    if (status == RMEM_OK) {
        status = rmem_uffd_open(&window->uffd, rmem->params.bytes, is_kernel);
    }
    if (status != RMEM_OK) {
        return status;
    }

    /* It takes no signals of the program: they are blocked here */
    window->has_thread = is_kernel &&
                         (pthread_create(&window->thread, NULL,
                                         rmem_window_serve, window) == 0);
    if (is_kernel && !window->has_thread) {
        return RMEM_ERR_NOMEM;
    }

    params.address = window->bounce;
    if ((ucm_set_event_handler(RMEM_WINDOW_EVENTS, RMEM_WINDOW_PRIORITY,
                               rmem_window_on_event, window) != UCS_OK) ||
        (ucp_mem_map(rmem->side.context, &params, &window->memh) != UCS_OK)) {
        return rmem_error(RMEM_ERR_UNSUPPORTED, "no window: UCX reports no "
                          "calls of madvise(), or registers no memory");
    }
    return rmem_sigbus_add(window->uffd.base, rmem->params.bytes,
                           rmem_window_resolve, window);
}

static int rmem_window_open(rmem_t *rmem)
{
    rmem_window_t *window = calloc(1, sizeof(*window));
    int status;

    if (window == NULL) {
        return RMEM_ERR_NOMEM;
    }

    window->rmem    = rmem;
    window->uffd.fd = -1;
    status          = rmem_window_init(window);
    if (status != RMEM_OK) {
        rmem_window_close(window);
        return status;
    }

    rmem->window = window;
    rmem->base   = window->uffd.base;
    return RMEM_OK;
}

int rmem_map(rmem_t *rmem, void **base_p)
{
    int status = rmem_enter(rmem, true);

    if (status != RMEM_OK) {
        return status;
    }

    status = (rmem->window != NULL) ? RMEM_ERR_ARG : rmem->status;
    if (status == RMEM_OK) {
        status = rmem_window_open(rmem);
    }
    *base_p = rmem->base;
    return rmem_leave(rmem, status);
}

void rmem_window_close(rmem_window_t *window)
{
    ucm_unset_event_handler(RMEM_WINDOW_EVENTS, rmem_window_on_event, window);
    rmem_sigbus_remove(window->uffd.base);
    if (window->has_thread) {
        pthread_cancel(window->thread);
        pthread_join(window->thread, NULL);
    }
    rmem_uffd_close(&window->uffd);
    if (window->memh != NULL) {
        ucp_mem_unmap(window->rmem->side.context, window->memh);
    }
    if ((window->bounce != NULL) && (window->bounce != MAP_FAILED)) {
        munmap(window->bounce, window->mapped);
    }
    rmem_cache_cleanup(&window->cache);
    free(window);
}
