/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_summary.h"

#include "run/nprdma_record.h"

#include <nprdma_page_state.h>
#include <ucm/access/nprdma_file.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct {
    pthread_mutex_t      lock;
    ucs_list_link_t      ifaces;     /* open ones */
    unsigned             num_mds;    /* open ones */
    int                  has_opened; /* an interface, at any time */
    int                  is_line;
    int                  is_sent;    /* nothing is new since the record */
    nprdma_record_sums_t sums;       /* of what has been closed */
} uct_nprdma_summary = {
    .lock   = PTHREAD_MUTEX_INITIALIZER,
    .ifaces = UCS_LIST_INITIALIZER(&uct_nprdma_summary.ifaces,
                                   &uct_nprdma_summary.ifaces)
};

/* Locks and numbers of the parent are not of this process. Interfaces of the
 * parent are not closed in a child. */
static void uct_nprdma_summary_reset(void)
{
    memset(&uct_nprdma_summary, 0, sizeof(uct_nprdma_summary));
    pthread_mutex_init(&uct_nprdma_summary.lock, NULL);
    ucs_list_head_init(&uct_nprdma_summary.ifaces);
}

void uct_nprdma_summary_init(void)
{
    pthread_atfork(NULL, NULL, uct_nprdma_summary_reset);
}

void uct_nprdma_summary_refused(void)
{
    nprdma_record_t record;

    if (nprdma_record_begin(&record, NPRDMA_RECORD_REFUSED)) {
        nprdma_record_add(&record, "reason", "%s",
                          "nprdma was built for UCX " NPRDMA_UCX_VERSION
                          " and refused to load into another UCX (its error "
                          "message says how that differs)");
        nprdma_record_send(&record);
    }
}

/* Pages that any RDMA device pins for this process, by the kernel's count, in
 * bytes */
static uint64_t uct_nprdma_summary_vm_pinned(void)
{
    unsigned long long kib = 0;
    char line[256];
    FILE *stream;

    stream = fopen("/proc/self/status", "re");
    if (stream == NULL) {
        return 0;
    }
    while ((fgets(line, sizeof(line), stream) != NULL) &&
           strncmp(line, "VmPin:", 6)) {
    }
    if (!strncmp(line, "VmPin:", 6)) {
        kib = strtoull(line + 6, NULL, 10);
    }
    fclose(stream);
    return kib * 1024;
}

static void uct_nprdma_summary_max(uint64_t *sum, uint64_t value)
{
    if (value > *sum) {
        *sum = value;
    }
}

/* Reads counters while another thread may write them, as
 * uct_nprdma_stats_vfs_show() */
__attribute__((no_sanitize("thread")))
static void uct_nprdma_summary_add(nprdma_record_sums_t *sums,
                                   const uct_nprdma_stats_t *stats)
{
    sums->operations     += stats->am_short_tx + stats->am_bcopy_tx +
                            stats->am_zcopy_tx + stats->put + stats->get +
                            stats->atomic;
    sums->bytes_sent     += stats->am_bytes_tx + stats->put_bytes;
    sums->bytes_received += stats->am_bytes_rx + stats->get_bytes;
    sums->slices         += stats->nic_slices;
    sums->hits           += stats->nic_hits;
    sums->absent_lines   += stats->suspect_lines;
    sums->absent_states  += stats->suspect_states;
    sums->absent_local   += stats->suspect_local;
    sums->absent_small   += stats->assist_small;
    sums->repair_us      += stats->populate_us + stats->copy_us;
}

/* The lock is held */
static void uct_nprdma_summary_send(const nprdma_record_sums_t *sums)
{
    nprdma_record_t record;

    uct_nprdma_summary.is_sent = 1;
    if (nprdma_record_begin(&record, NPRDMA_RECORD_COUNTED)) {
        nprdma_record_add_sums(&record, sums);
        nprdma_record_send(&record);
    }
}

void uct_nprdma_summary_md_opened(void)
{
    pthread_mutex_lock(&uct_nprdma_summary.lock);
    ++uct_nprdma_summary.num_mds;
    pthread_mutex_unlock(&uct_nprdma_summary.lock);
}

void uct_nprdma_summary_md_closed(const uct_nprdma_mem_stats_t *mem)
{
    nprdma_record_sums_t *sums = &uct_nprdma_summary.sums;

    pthread_mutex_lock(&uct_nprdma_summary.lock);
    sums->registered_bytes += mem->registered_peak;
    sums->populated_bytes  += mem->pages_populated * NPRDMA_PAGE_SIZE;
    --uct_nprdma_summary.num_mds;
    if ((uct_nprdma_summary.num_mds == 0) && uct_nprdma_summary.has_opened) {
        uct_nprdma_summary_send(sums);
    }
    pthread_mutex_unlock(&uct_nprdma_summary.lock);
}

void uct_nprdma_summary_iface_opened(uct_nprdma_summary_entry_t *entry,
                                     const uct_nprdma_stats_t *stats,
                                     int is_line)
{
    nprdma_record_t record;

    entry->stats = stats;
    pthread_mutex_lock(&uct_nprdma_summary.lock);
    ucs_list_add_tail(&uct_nprdma_summary.ifaces, &entry->list);
    uct_nprdma_summary.is_line |= is_line;
    uct_nprdma_summary.is_sent  = 0;
    if (!uct_nprdma_summary.has_opened &&
        nprdma_record_begin(&record, NPRDMA_RECORD_OPENED)) {
        nprdma_record_send(&record);
    }
    uct_nprdma_summary.has_opened = 1;
    pthread_mutex_unlock(&uct_nprdma_summary.lock);
}

void uct_nprdma_summary_iface_closed(uct_nprdma_summary_entry_t *entry,
                                     const uct_nprdma_mem_stats_t *mem)
{
    nprdma_record_sums_t *sums = &uct_nprdma_summary.sums;
    uint64_t pinned            = uct_nprdma_summary_vm_pinned();

    pthread_mutex_lock(&uct_nprdma_summary.lock);
    ucs_list_del(&entry->list);
    uct_nprdma_summary_add(sums, entry->stats);
    uct_nprdma_summary_max(&sums->pinned_bytes, mem->pinned_bytes);
    uct_nprdma_summary_max(&sums->app_pinned_bytes,
                           (pinned > mem->pinned_bytes) ?
                           pinned - mem->pinned_bytes : 0);
    uct_nprdma_summary.is_sent = 0;
    pthread_mutex_unlock(&uct_nprdma_summary.lock);
}

static void uct_nprdma_summary_print(const nprdma_record_sums_t *sums)
{
    const char *rank = nprdma_record_rank();
    nprdma_file_section_t section;
    char line[512], host[256] = "";

    gethostname(host, sizeof(host) - 1);
    nprdma_record_line(sums, line, sizeof(line));
    nprdma_file_begin(&section);
    if (rank != NULL) {
        fprintf(stderr, "# nprdma rank %.20s (%s, pid %d): %s\n", rank, host,
                (int)getpid(), line);
    } else {
        fprintf(stderr, "# nprdma process %d (%s): %s\n", (int)getpid(), host,
                line);
    }
    nprdma_file_end(&section);
}

void uct_nprdma_summary_exit(void)
{
    uct_nprdma_summary_entry_t *entry;
    nprdma_record_sums_t sums;

    if (pthread_mutex_trylock(&uct_nprdma_summary.lock)) {
        return;
    }
    sums = uct_nprdma_summary.sums;
    ucs_list_for_each(entry, &uct_nprdma_summary.ifaces, list) {
        uct_nprdma_summary_add(&sums, entry->stats);
    }
    if (uct_nprdma_summary.has_opened && !uct_nprdma_summary.is_sent) {
        uct_nprdma_summary_send(&sums);
    }
    if (uct_nprdma_summary.is_line) {
        uct_nprdma_summary_print(&sums);
    }
    pthread_mutex_unlock(&uct_nprdma_summary.lock);
}
