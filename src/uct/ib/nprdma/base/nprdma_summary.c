/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_summary.h"
#include "uct/ib/nprdma/net/nprdma_record.h"

#include <nprdma_page_state.h>
#include <ucm/access/nprdma_file.h>

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct uct_nprdma_summary_sums {
    uint64_t operations;
    uint64_t bytes_sent;
    uint64_t bytes_received;
    uint64_t slices;
    uint64_t hits;
    uint64_t absent_lines;
    uint64_t absent_states;
    uint64_t absent_local;
    uint64_t absent_small;
    uint64_t repair_us;
    uint64_t registered_bytes;
    uint64_t populated_bytes;
    uint64_t app_pinned_bytes;
    uint64_t pinned_bytes;
} uct_nprdma_summary_sums_t;


static struct {
    pthread_mutex_t           lock;
    ucs_list_link_t           ifaces;     /* open ones */
    unsigned                  num_mds;    /* open ones */
    int                       has_opened; /* an interface, at any time */
    int                       is_line;
    uct_nprdma_summary_sums_t sums;       /* of what has been closed */
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
static void uct_nprdma_summary_add(uct_nprdma_summary_sums_t *sums,
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

/* What is not in the pages of counters. The lock is held. */
static void uct_nprdma_summary_write(const uct_nprdma_summary_sums_t *sums)
{
    char lines[256];

    snprintf(lines, sizeof(lines),
             "registered_bytes %" PRIu64 "\npopulated_bytes %" PRIu64 "\n"
             "app_pinned_bytes %" PRIu64 "\npinned_bytes %" PRIu64 "\n",
             sums->registered_bytes, sums->populated_bytes,
             sums->app_pinned_bytes, sums->pinned_bytes);
    uct_nprdma_record_write(UCT_NPRDMA_RECORD_CLOSED, lines);
}

void uct_nprdma_summary_md_opened(void)
{
    pthread_mutex_lock(&uct_nprdma_summary.lock);
    ++uct_nprdma_summary.num_mds;
    pthread_mutex_unlock(&uct_nprdma_summary.lock);
}

void uct_nprdma_summary_md_closed(const uct_nprdma_mem_stats_t *mem)
{
    uct_nprdma_summary_sums_t *sums = &uct_nprdma_summary.sums;

    pthread_mutex_lock(&uct_nprdma_summary.lock);
    sums->registered_bytes += mem->registered_peak;
    sums->populated_bytes  += mem->pages_populated * NPRDMA_PAGE_SIZE;
    --uct_nprdma_summary.num_mds;
    if ((uct_nprdma_summary.num_mds == 0) && uct_nprdma_summary.has_opened) {
        uct_nprdma_summary_write(sums);
    }
    pthread_mutex_unlock(&uct_nprdma_summary.lock);
}

void uct_nprdma_summary_iface_opened(uct_nprdma_summary_entry_t *entry,
                                     const uct_nprdma_stats_t *stats,
                                     int is_line)
{
    entry->stats = stats;
    pthread_mutex_lock(&uct_nprdma_summary.lock);
    ucs_list_add_tail(&uct_nprdma_summary.ifaces, &entry->list);
    uct_nprdma_summary.is_line |= is_line;
    if (!uct_nprdma_summary.has_opened) {
        uct_nprdma_record_write(UCT_NPRDMA_RECORD_OPENED, "");
    }
    uct_nprdma_summary.has_opened = 1;
    pthread_mutex_unlock(&uct_nprdma_summary.lock);
}

void uct_nprdma_summary_iface_closed(uct_nprdma_summary_entry_t *entry,
                                     const uct_nprdma_mem_stats_t *mem)
{
    uct_nprdma_summary_sums_t *sums = &uct_nprdma_summary.sums;
    uint64_t pinned                 = uct_nprdma_summary_vm_pinned();

    pthread_mutex_lock(&uct_nprdma_summary.lock);
    ucs_list_del(&entry->list);
    uct_nprdma_summary_add(sums, entry->stats);
    uct_nprdma_summary_max(&sums->pinned_bytes, mem->pinned_bytes);
    uct_nprdma_summary_max(&sums->app_pinned_bytes,
                           (pinned > mem->pinned_bytes) ?
                           pinned - mem->pinned_bytes : 0);
    pthread_mutex_unlock(&uct_nprdma_summary.lock);
}

/* Bytes with a binary unit, as "12.3 MiB" */
static const char *
uct_nprdma_summary_bytes(uint64_t bytes, char *text, size_t size)
{
    static const char *units[] = { "B", "KiB", "MiB", "GiB", "TiB", "PiB",
                                   "EiB" };
    double value               = bytes;
    unsigned unit              = 0;

    while (value >= 1024) {
        value /= 1024;
        ++unit;
    }
    snprintf(text, size, (unit == 0) ? "%.0f %s" : "%.1f %s", value,
             units[unit]);
    return text;
}

/* nprdma-run writes the same for the job */
static void uct_nprdma_summary_line(const uct_nprdma_summary_sums_t *sums,
                                    char *line, size_t size)
{
    char text[6][32], share[48] = "no zero copy";

    if (sums->slices > 0) {
        /* Cut off, not rounded: 100 % means that none was repaired */
        snprintf(share, sizeof(share), "%" PRIu64 ".%02u %% without repair",
                 sums->hits * 100 / sums->slices,
                 (unsigned)(sums->hits * 10000 / sums->slices % 100));
    }
#define UCT_NPRDMA_SUMMARY_TEXT(_i, _name) \
    uct_nprdma_summary_bytes(sums->_name, text[_i], sizeof(text[_i]))
    snprintf(line, size,
             "%" PRIu64 " operations, %s sent, %s received; %s; absent: %"
             PRIu64 " lines, %" PRIu64 " states, %" PRIu64 " local, %" PRIu64
             " small; repairs %" PRIu64 ".%03u ms; registered %s, populated "
             "%s, pinned %s; transport pinned %s",
             sums->operations, UCT_NPRDMA_SUMMARY_TEXT(0, bytes_sent),
             UCT_NPRDMA_SUMMARY_TEXT(1, bytes_received), share,
             sums->absent_lines, sums->absent_states, sums->absent_local,
             sums->absent_small, sums->repair_us / 1000,
             (unsigned)(sums->repair_us % 1000),
             UCT_NPRDMA_SUMMARY_TEXT(2, registered_bytes),
             UCT_NPRDMA_SUMMARY_TEXT(3, populated_bytes),
             UCT_NPRDMA_SUMMARY_TEXT(4, app_pinned_bytes),
             UCT_NPRDMA_SUMMARY_TEXT(5, pinned_bytes));
#undef UCT_NPRDMA_SUMMARY_TEXT
}

static void uct_nprdma_summary_print(const uct_nprdma_summary_sums_t *sums)
{
    const char *rank = uct_nprdma_record_rank();
    nprdma_file_section_t section;
    char line[512], host[256] = "";

    gethostname(host, sizeof(host) - 1);
    uct_nprdma_summary_line(sums, line, sizeof(line));
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
    uct_nprdma_summary_sums_t sums;

    if (pthread_mutex_trylock(&uct_nprdma_summary.lock)) {
        return;
    }
    sums = uct_nprdma_summary.sums;
    ucs_list_for_each(entry, &uct_nprdma_summary.ifaces, list) {
        uct_nprdma_summary_add(&sums, entry->stats);
    }
    if (uct_nprdma_summary.has_opened) {
        uct_nprdma_summary_write(&sums);
    }
    if (uct_nprdma_summary.is_line) {
        uct_nprdma_summary_print(&sums);
    }
    pthread_mutex_unlock(&uct_nprdma_summary.lock);
}
