/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_counters.h"
#include "nprdma_record.h"
#include "uct/ib/nprdma/net/nprdma_conn_types.h"

#include <nprdma_page_state.h>
#include <ucm/access/nprdma_file.h>

#include <ucs/debug/log.h>
#include <ucs/sys/compiler_def.h>
#include <ucs/sys/string.h>

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The values do not share a cache line with what is written once */
#define UCT_NPRDMA_COUNTERS_ALIGN 64

_Static_assert(sizeof(uct_nprdma_stats_t) % sizeof(uint64_t) == 0,
               "the values have 64 bits each");
_Static_assert(sizeof(uct_nprdma_device_stats_t) == 3 * sizeof(uint64_t),
               "UCT_NPRDMA_DEVICE_STAT_NAMES has a name for each value");

static struct {
    pthread_mutex_t lock;  /* held during fork() */
    ucs_list_link_t pages; /* open ones */
    int             has_handlers;
} uct_nprdma_counters = {
    .lock  = PTHREAD_MUTEX_INITIALIZER,
    .pages = UCS_LIST_INITIALIZER(&uct_nprdma_counters.pages,
                                  &uct_nprdma_counters.pages)
};


/* By system calls: UCM would report calls of the C library to handlers that
 * take locks, which another thread of a child's parent may have held */
static void *uct_nprdma_counters_map(void *address, int fd)
{
    int flags = (fd < 0) ? (MAP_PRIVATE | MAP_ANONYMOUS) : MAP_SHARED;

    return (void*)syscall(SYS_mmap, address, NPRDMA_COUNTERS_SIZE,
                          PROT_READ | PROT_WRITE,
                          flags | ((address != NULL) ? MAP_FIXED : 0), fd, 0);
}

static void uct_nprdma_counters_unmap(void *address)
{
    syscall(SYS_munmap, address, NPRDMA_COUNTERS_SIZE);
}

static void uct_nprdma_counters_prepare(void)
{
    pthread_mutex_lock(&uct_nprdma_counters.lock);
}

static void uct_nprdma_counters_parent(void)
{
    pthread_mutex_unlock(&uct_nprdma_counters.lock);
}

/* What a child counts with its copies of the parent's objects is not the
 * parent's */
static void uct_nprdma_counters_child(void)
{
    uct_nprdma_counters_t *counters;

    ucs_list_for_each(counters, &uct_nprdma_counters.pages, list) {
        if (counters->fd >= 0) {
            uct_nprdma_counters_map(counters->header, -1);
        }
    }
    pthread_mutex_unlock(&uct_nprdma_counters.lock);
}

static int uct_nprdma_counters_add(uct_nprdma_counters_t *counters)
{
    int ret = 0;

    pthread_mutex_lock(&uct_nprdma_counters.lock);
    if (!uct_nprdma_counters.has_handlers) {
        ret = pthread_atfork(uct_nprdma_counters_prepare,
                             uct_nprdma_counters_parent,
                             uct_nprdma_counters_child);
        uct_nprdma_counters.has_handlers = (ret == 0);
    }
    if (ret == 0) {
        ucs_list_add_tail(&uct_nprdma_counters.pages, &counters->list);
    }
    pthread_mutex_unlock(&uct_nprdma_counters.lock);
    return ret;
}

/* Programs close descriptors that they do not know, and then use the number */
static int uct_nprdma_counters_owns_fd(const uct_nprdma_counters_t *counters)
{
    struct stat st;

    return (counters->fd >= 0) && (fstat(counters->fd, &st) == 0) &&
           S_ISREG(st.st_mode) && (st.st_ino == counters->inode);
}

static void uct_nprdma_counters_create(uct_nprdma_counters_t *counters,
                                       const char *device)
{
    struct stat st;

    counters->fd = uct_nprdma_record_page();
    if (counters->fd < 0) {
        counters->fd = nprdma_file_create(NPRDMA_COUNTERS_FILE,
                                         NPRDMA_COUNTERS_SIZE);
    }
    if ((counters->fd < 0) || (fstat(counters->fd, &st) < 0)) {
        ucs_debug("%s: nprdma-top will not see this process: %m", device);
        return;
    }
    counters->inode = st.st_ino;
}

ucs_status_t
uct_nprdma_counters_open(uct_nprdma_counters_t *counters, const char *kind,
                         const char *device, const char *names,
                         size_t names_size, unsigned num)
{
    size_t values = uct_nprdma_align_up(sizeof(*counters->header) + names_size,
                                        UCT_NPRDMA_COUNTERS_ALIGN);
    nprdma_counters_header_t *header;

    ucs_assert(values + (num * sizeof(uint64_t)) <= NPRDMA_COUNTERS_SIZE);
    uct_nprdma_counters_create(counters, device);
    header = uct_nprdma_counters_map(NULL, counters->fd);
    if (header == MAP_FAILED) {
        ucs_error("%s: failed to map counters: %m", device);
        goto err;
    }

    counters->header = header;
    counters->values = UCS_PTR_BYTE_OFFSET(header, values);
    if (uct_nprdma_counters_add(counters) != 0) {
        ucs_error("%s: failed to register what is to be done at fork()",
                  device);
        goto err_unmap;
    }

    memcpy(header + 1, names, names_size);
    header->version    = NPRDMA_COUNTERS_VERSION;
    header->pid        = getpid();
    header->num        = num;
    header->values     = values;
    header->names      = sizeof(*header);
    header->names_size = names_size;
    ucs_snprintf_zero(header->kind, sizeof(header->kind), "%s", kind);
    ucs_snprintf_zero(header->device, sizeof(header->device), "%s", device);
    /* A reader takes the page only with it */
    atomic_thread_fence(memory_order_release);
    memcpy(header->magic, NPRDMA_COUNTERS_MAGIC,
           sizeof(NPRDMA_COUNTERS_MAGIC));
    return UCS_OK;

err_unmap:
    uct_nprdma_counters_unmap(header);
err:
    if (counters->fd >= 0) {
        close(counters->fd);
    }
    return UCS_ERR_NO_MEMORY;
}

void uct_nprdma_counters_set_mode(uct_nprdma_counters_t *counters,
                                  const char *mode)
{
    ucs_snprintf_zero(counters->header->mode, sizeof(counters->header->mode),
                      "%s", mode);
}

void uct_nprdma_counters_close(uct_nprdma_counters_t *counters)
{
    pthread_mutex_lock(&uct_nprdma_counters.lock);
    ucs_list_del(&counters->list);
    pthread_mutex_unlock(&uct_nprdma_counters.lock);
    uct_nprdma_counters_unmap(counters->header);
    if (uct_nprdma_counters_owns_fd(counters)) {
        close(counters->fd);
    }
}
