/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#define _GNU_SOURCE
#include "memd_store.h"
#include "rmem_side.h"
#include "rmem.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Where this thread goes when the kernel has no page of the pool's file for it;
 * NULL while it does not access the pool */
static __thread sigjmp_buf *store_guard;

static void on_sigbus(int sig)
{
    if (store_guard != NULL) {
        siglongjmp(*store_guard, 1);
    }
    signal(sig, SIG_DFL); /* The instruction is executed again */
}

static int open_file(memd_store_t *store, const char *file)
{
    struct stat st;

    store->fd = open(file, O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0600);
    if ((store->fd < 0) || (fstat(store->fd, &st) != 0)) {
        return rmem_error(-1, "pool %s: %s", file, strerror(errno));
    }
    if (!S_ISREG(st.st_mode)) {
        return rmem_error(-1, "pool %s is no regular file", file);
    }
    if (flock(store->fd, LOCK_EX | LOCK_NB) != 0) {
        return rmem_error(-1, "pool %s is in use by another process", file);
    }
    /* It may be a file of something else */
    if ((st.st_size != 0) && ((uint64_t)st.st_size != store->size)) {
        return rmem_error(-1, "pool %s is a file of %lld bytes, not of a "
                          "server with this --size: remove it", file,
                          (long long)st.st_size);
    }

    if (ftruncate(store->fd, 0) || ftruncate(store->fd, store->size) ||
        fallocate(store->fd, 0, 0, store->size)) {
        rmem_error(-1, "pool %s has no room for %llu bytes: %s", file,
                   (unsigned long long)store->size, strerror(errno));
        return ftruncate(store->fd, 0) | -1;
    }
    return 0;
}

int memd_store_open(memd_store_t *store, const char *file, uint64_t size)
{
    /* nprdma's handler, which calls this one, takes its flags */
    struct sigaction action = {
        .sa_handler = on_sigbus,
        .sa_flags   = SA_NODEFER
    };
    int is_file = (file != NULL);
    void *base, *lent;

    memset(store, 0, sizeof(*store));
    ucs_list_head_init(&store->extents);
    store->size = size;
    store->fd   = -1;
    if (is_file && (open_file(store, file) != 0)) {
        goto err;
    }

    base = mmap(NULL, size, PROT_READ | PROT_WRITE,
                MAP_SHARED | MAP_NORESERVE | (is_file ? 0 : MAP_ANONYMOUS),
                store->fd, 0);
    /* An old size of 0 duplicates a shared mapping */
    lent = (base == MAP_FAILED) ? base : mremap(base, 0, size, MREMAP_MAYMOVE);
    if ((lent == MAP_FAILED) || (mprotect(lent, size, PROT_READ) != 0)) {
        rmem_error(-1, "a pool of %llu bytes: %s", (unsigned long long)size,
                   strerror(errno));
        goto err;
    }
    store->base = base;
    store->lent = lent;
    madvise(base, size, MADV_RANDOM);
    madvise(lent, size, MADV_RANDOM);
    sigaction(SIGBUS, &action, NULL);
    if (memd_store_clear(store, 0, RMEM_PAGE_SIZE) != RMEM_OK) {
        memd_store_close(store);
        return rmem_error(-1, "pool %s: its file system has no holes",
                          is_file ? file : "");
    }
    return 0;

err:
    if (store->fd >= 0) {
        close(store->fd);
    }
    return -1;
}

/* Nothing of what was stored is left in the file */
void memd_store_close(memd_store_t *store)
{
    munmap(store->base, store->size);
    munmap(store->lent, store->size);
    if (store->fd >= 0) {
        if (ftruncate(store->fd, 0) != 0) {
            rmem_error(-1, "pool: %s", strerror(errno));
        }
        close(store->fd);
    }
}

int memd_store_alloc(memd_store_t *store, uint64_t bytes, memd_extent_t *extent)
{
    uint64_t start = 0;
    memd_extent_t *next;

    ucs_list_for_each(next, &store->extents, list) {
        if (next->offset - start >= bytes) {
            break;
        }
        start = next->offset + next->bytes;
    }
    if (store->size - start < bytes) {
        return RMEM_ERR_FULL;
    }

    extent->offset = start;
    extent->bytes  = bytes;
    store->held   += bytes;
    ucs_list_insert_before(&next->list, &extent->list);
    return RMEM_OK;
}

void memd_store_free(memd_store_t *store, memd_extent_t *extent)
{
    store->held -= extent->bytes;
    ucs_list_del(&extent->list);
}

/* The kernel takes the pages from both mappings. A file gets its blocks back,
 * so that the disk cannot become full later. */
int memd_store_clear(memd_store_t *store, uint64_t offset, uint64_t bytes)
{
    if (madvise(store->base + offset, bytes, MADV_REMOVE) ||
        ((store->fd >= 0) && fallocate(store->fd, 0, offset, bytes))) {
        return rmem_error(RMEM_ERR_RANGE, "cannot clear %llu bytes of the "
                          "pool: %s", (unsigned long long)bytes,
                          strerror(errno));
    }
    return RMEM_OK;
}

bool memd_store_is_here(memd_store_t *store, uint64_t offset,
                        const memd_message_t *message)
{
    bool is_here = true;
    unsigned char state;
    uint8_t *place;
    unsigned i;

    if ((store->fd < 0) || (message->lines.flags & RMEM_LINES_FREE)) {
        return true;
    }
    for (i = 0; i < message->lines.records; ++i) {
        place = store->base + offset +
                (uint64_t)message->records[i].page * RMEM_PAGE_SIZE;
        if ((mincore(place, RMEM_PAGE_SIZE, &state) != 0) || !(state & 1)) {
            madvise(place, RMEM_PAGE_SIZE, MADV_WILLNEED);
            is_here = false;
        }
    }
    return is_here;
}

static int store_records(memd_store_t *store, uint64_t offset,
                         const memd_message_t *message)
{
    const rmem_record_t *record = message->records;
    const rmem_record_t *end    = record + message->lines.records;
    const uint8_t *data         = message->data;
    int status                  = RMEM_OK;
    uint64_t place;

    for (; (record < end) && (status == RMEM_OK); ++record) {
        place = offset + (uint64_t)record->page * RMEM_PAGE_SIZE;
        if (message->lines.flags & RMEM_LINES_FREE) {
            status = memd_store_clear(store, place, (uint64_t)record->count *
                                                    RMEM_PAGE_SIZE);
        } else {
            data = rmem_wire_scatter(data, store->base + place, record->mask);
        }
    }
    return status;
}

int memd_store_lines(memd_store_t *store, uint64_t offset,
                     const memd_message_t *message)
{
    volatile int status = RMEM_ERR_RANGE;
    sigjmp_buf guard;

    /* Without signals: to save them takes a system call for each message */
    if (sigsetjmp(guard, 0) == 0) {
        store_guard = &guard;
        status      = store_records(store, offset, message);
    }
    store_guard = NULL;
    return status;
}
