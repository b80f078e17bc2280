/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "watch.h"

#define KMOD_WATCH_BATCH     64
#define KMOD_PAGEMAP_PRESENT (1ull << 63)
#define KMOD_PAGEMAP_FRAME   ((1ull << 55) - 1)

static void kmod_watch_words(const kmod_watch_t *watch, size_t first,
                             size_t count, uint32_t *copy)
{
    size_t i;

    for (i = 0; i < count; ++i) {
        copy[i] = __atomic_load_n(&watch->words[first + i], __ATOMIC_ACQUIRE);
    }
}

/*
 * An entry of pagemap that is all zero means that there is no mapping. munmap()
 * removes the mapping first, then calls the notifiers, and only then frees the
 * pages.
 */
static int kmod_watch_unmapped(kmod_watch_t *watch, size_t page, uint32_t word)
{
    uint64_t end = kmod_deadline();

    while (watch->words[page] == word) {
        if (kmod_time_ms() > end) {
            snprintf(watch->wrong, sizeof(watch->wrong),
                     "page %zu is not mapped, but its state is still %#x", page,
                     word);
            return 0;
        }
    }
    ++watch->changed;
    return 1;
}

/* Checks one page whose state was valid and did not change */
static int kmod_watch_page(kmod_watch_t *watch, size_t page, uint32_t word,
                           uint64_t entry)
{
    uint64_t frame = entry & KMOD_PAGEMAP_FRAME;

    if (entry == 0) {
        return kmod_watch_unmapped(watch, page, word);
    }

    ++watch->looks;
    if (!(entry & KMOD_PAGEMAP_PRESENT) || (frame == 0)) {
        snprintf(watch->wrong, sizeof(watch->wrong),
                 "page %zu is not there (pagemap %#llx), but its state is %#x",
                 page, (unsigned long long)entry, word);
        return 0;
    }
    if ((watch->seen[page] == word) && (watch->frames[page] != frame)) {
        snprintf(watch->wrong, sizeof(watch->wrong),
                 "page %zu went from frame %#llx to %#llx in state %#x", page,
                 (unsigned long long)watch->frames[page],
                 (unsigned long long)frame, word);
        return 0;
    }

    watch->repeated     += watch->seen[page] == word;
    watch->seen[page]    = word;
    watch->frames[page]  = frame;
    return 1;
}

/*
 * The owner's memory is being torn down. Soon all its pages must be absent,
 * before any of them is reused.
 */
static int kmod_watch_gone(kmod_watch_t *watch)
{
    uint64_t end = kmod_deadline();
    size_t i;

    watch->gone = 1;
    for (i = 0; i < watch->num_pages; ++i) {
        while (watch->words[i] & NPRDMA_PAGE_BITS) {
            if (kmod_time_ms() > end) {
                snprintf(watch->wrong, sizeof(watch->wrong),
                         "the process is gone, but page %zu is in state %#x", i,
                         watch->words[i]);
                return 0;
            }
        }
    }
    return 1;
}

static int kmod_watch_round(kmod_watch_t *watch)
{
    uint32_t before[KMOD_WATCH_BATCH], after[KMOD_WATCH_BATCH];
    uint64_t entries[KMOD_WATCH_BATCH];
    size_t first, count, i;
    ssize_t ret;

    for (first = 0; first < watch->num_pages; first += count) {
        count = watch->num_pages - first;
        count = (count < KMOD_WATCH_BATCH) ? count : KMOD_WATCH_BATCH;
        kmod_watch_words(watch, first, count, before);
        ret = pread(watch->pagemap, entries, count * sizeof(*entries),
                    (watch->address / PAGE + first) * sizeof(*entries));
        if (ret != (ssize_t)(count * sizeof(*entries))) {
            return kmod_watch_gone(watch);
        }
        kmod_watch_words(watch, first, count, after);
        for (i = 0; i < count; ++i) {
            if (before[i] != after[i]) {
                ++watch->changed;
            } else if ((before[i] & NPRDMA_PAGE_R) &&
                       !kmod_watch_page(watch, first + i, before[i],
                                        entries[i])) {
                return 0;
            }
        }
    }
    return 1;
}

static void *kmod_watch_thread(void *arg)
{
    kmod_watch_t *watch = arg;

    while (!__atomic_load_n(&watch->stop, __ATOMIC_ACQUIRE) && !watch->gone &&
           kmod_watch_round(watch)) {
    }
    return NULL;
}

void kmod_watch_start(kmod_watch_t *watch, const kmod_region_t *region,
                      pid_t pid)
{
    char path[64];

    memset(watch, 0, sizeof(*watch));
    snprintf(path, sizeof(path), "/proc/%d/pagemap", (int)pid);
    watch->words     = region->words;
    watch->address   = region->header->address;
    watch->num_pages = region->num_pages;
    watch->pagemap   = open(path, O_RDONLY | O_CLOEXEC);
    CHECK(watch->pagemap >= 0, "%s: %m", path);
    watch->seen   = calloc(watch->num_pages, sizeof(*watch->seen));
    watch->frames = calloc(watch->num_pages, sizeof(*watch->frames));
    CHECK(watch->seen != NULL && watch->frames != NULL);
    CHECK_EQ(pthread_create(&watch->thread, NULL, kmod_watch_thread, watch), 0);
}

static int kmod_watch_has_seen(void *arg)
{
    kmod_watch_t *watch = arg;

    return __atomic_load_n(&watch->repeated, __ATOMIC_ACQUIRE) > 0;
}

void kmod_watch_await(kmod_watch_t *watch)
{
    CHECK(kmod_await(kmod_watch_has_seen, watch));
}

void kmod_watch_stop(kmod_watch_t *watch)
{
    __atomic_store_n(&watch->stop, 1, __ATOMIC_RELEASE);
    CHECK_EQ(pthread_join(watch->thread, NULL), 0);
    CHECK(watch->wrong[0] == '\0', "%s", watch->wrong);
    printf("watched: %llu valid states, %llu seen again, %llu in change\n",
           (unsigned long long)watch->looks,
           (unsigned long long)watch->repeated,
           (unsigned long long)watch->changed);
    CHECK(watch->repeated > 0);
    close(watch->pagemap);
    free(watch->seen);
    free(watch->frames);
}
