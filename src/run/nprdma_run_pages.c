/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_run_pages.h"

#include <nprdma_counters_page.h>

#include <dirent.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Counters of an interface, and the sums that they are part of */
static const struct {
    const char *name;
    size_t      sum; /* offset in nprdma_record_sums_t */
} nprdma_run_parts[] = {
#define NPRDMA_RUN_PART(_name, _sum) \
    { #_name, offsetof(nprdma_record_sums_t, _sum) }
    NPRDMA_RUN_PART(am_short_tx,    operations),
    NPRDMA_RUN_PART(am_bcopy_tx,    operations),
    NPRDMA_RUN_PART(am_zcopy_tx,    operations),
    NPRDMA_RUN_PART(put,            operations),
    NPRDMA_RUN_PART(get,            operations),
    NPRDMA_RUN_PART(atomic,         operations),
    NPRDMA_RUN_PART(am_bytes_tx,    bytes_sent),
    NPRDMA_RUN_PART(put_bytes,      bytes_sent),
    NPRDMA_RUN_PART(am_bytes_rx,    bytes_received),
    NPRDMA_RUN_PART(get_bytes,      bytes_received),
    NPRDMA_RUN_PART(nic_slices,     slices),
    NPRDMA_RUN_PART(nic_hits,       hits),
    NPRDMA_RUN_PART(suspect_lines,  absent_lines),
    NPRDMA_RUN_PART(suspect_states, absent_states),
    NPRDMA_RUN_PART(suspect_local,  absent_local),
    NPRDMA_RUN_PART(assist_small,   absent_small),
    NPRDMA_RUN_PART(populate_us,    repair_us),
    NPRDMA_RUN_PART(copy_us,        repair_us)
#undef NPRDMA_RUN_PART
};

#define NPRDMA_RUN_NUM_PARTS \
    (sizeof(nprdma_run_parts) / sizeof(nprdma_run_parts[0]))

typedef union {
    nprdma_counters_header_t header;
    char                     bytes[NPRDMA_COUNTERS_SIZE];
} nprdma_run_page_t;

static void nprdma_run_pages_path(const char *name, char *path, size_t size)
{
    snprintf(path, size, "%s%s", NPRDMA_RECORD_DIR, name);
}

void nprdma_run_pages_create(const char *name)
{
    char path[128];

    nprdma_run_pages_path(name, path, sizeof(path));
    mkdir(path, 0700);
}

static void nprdma_run_pages_add(nprdma_record_sums_t *sums, const char *name,
                                 uint64_t value)
{
    size_t i;

    for (i = 0; i < NPRDMA_RUN_NUM_PARTS; ++i) {
        if (!strcmp(nprdma_run_parts[i].name, name)) {
            *(uint64_t*)((char*)sums + nprdma_run_parts[i].sum) += value;
        }
    }
}

/* Returns whether it is the whole page of an interface. Its process may have
 * written anything into it. */
static int nprdma_run_pages_parse(nprdma_run_page_t *page,
                                  nprdma_record_sums_t *sums)
{
    const nprdma_counters_header_t *header = &page->header;
    const char *name, *end;
    uint64_t value;
    uint32_t i;

    if (memcmp(header->magic, NPRDMA_COUNTERS_MAGIC, sizeof(header->magic)) ||
        (header->version != NPRDMA_COUNTERS_VERSION) ||
        strncmp(header->kind, NPRDMA_COUNTERS_IFACE, sizeof(header->kind)) ||
        (header->num > sizeof(*page) / sizeof(value)) ||
        (header->values > sizeof(*page) - (header->num * sizeof(value))) ||
        (header->names > sizeof(*page)) || (header->names_size == 0) ||
        (header->names_size > sizeof(*page) - header->names)) {
        return 0;
    }

    memset(sums, 0, sizeof(*sums));
    name = page->bytes + header->names;
    end  = name + header->names_size;
    page->bytes[end - page->bytes - 1] = '\0';
    for (i = 0; (i < header->num) && (name < end); ++i) {
        memcpy(&value, page->bytes + header->values + (i * sizeof(value)),
               sizeof(value));
        nprdma_run_pages_add(sums, name, value);
        name += strlen(name) + 1;
    }
    return 1;
}

/* The file NAME.NUMBER of a process */
static void nprdma_run_pages_take_one(int dir, char *file,
                                      nprdma_run_job_t *job)
{
    int fd    = openat(dir, file, O_RDONLY | O_CLOEXEC | O_NONBLOCK |
                                  O_NOFOLLOW);
    char *dot = strrchr(file, '.');
    nprdma_record_sums_t sums;
    nprdma_run_page_t page;
    ssize_t length;

    if (fd < 0) {
        return;
    }

    length = pread(fd, &page, sizeof(page), 0);
    close(fd);
    unlinkat(dir, file, 0);
    if ((length == sizeof(page)) && (dot != NULL) &&
        nprdma_run_pages_parse(&page, &sums)) {
        *dot = '\0';
        nprdma_run_job_take_page(job, file, &sums);
    }
}

void nprdma_run_pages_take(const char *name, nprdma_run_job_t *job)
{
    struct dirent *entry;
    char path[128];
    DIR *dir;

    nprdma_run_pages_path(name, path, sizeof(path));
    dir = opendir(path);
    if (dir == NULL) {
        return;
    }

    while ((entry = readdir(dir)) != NULL) {
        if (entry->d_name[0] != '.') {
            nprdma_run_pages_take_one(dirfd(dir), entry->d_name, job);
        }
    }
    closedir(dir);
    rmdir(path);
}
