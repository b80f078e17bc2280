/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_stats.h"
#include "uct/ib/nprdma/net/nprdma_bounce.h"
#include "uct/ib/nprdma/net/nprdma_record.h"

#include <nprdma_page_state.h>
#include <nprdma_record_text.h>
#include <ucm/access/nprdma_file.h>

#include <ucs/debug/log.h>
#include <ucs/sys/math.h>
#include <ucs/sys/string.h>
#include <ucs/vfs/base/vfs_cb.h>
#include <ucs/vfs/base/vfs_obj.h>

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define UCT_NPRDMA_STATS_FILE  "file:"

typedef struct uct_nprdma_stats_sums {
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
} uct_nprdma_stats_sums_t;


static struct {
    pthread_mutex_t         lock;
    ucs_list_link_t         ifaces;     /* open ones */
    unsigned                num_mds;    /* open ones */
    int                     has_opened; /* an interface, at any time */
    int                     is_line;
    uct_nprdma_stats_sums_t sums;       /* of what has been closed */
} uct_nprdma_stats = {
    .lock   = PTHREAD_MUTEX_INITIALIZER,
    .ifaces = UCS_LIST_INITIALIZER(&uct_nprdma_stats.ifaces,
                                   &uct_nprdma_stats.ifaces)
};


/* ---- counters of an interface ---- */

static int uct_nprdma_stats_is_summary(const char *spec)
{
    return !strcmp(spec, "summary");
}

ucs_status_t uct_nprdma_stats_check(const char *spec)
{
    size_t prefix_len = strlen(UCT_NPRDMA_STATS_FILE);

    if ((*spec == '\0') || uct_nprdma_stats_is_summary(spec) ||
        !strcmp(spec, "stderr") || !strcmp(spec, "stdout") ||
        (!strncmp(spec, UCT_NPRDMA_STATS_FILE, prefix_len) &&
         (spec[prefix_len] != '\0'))) {
        return UCS_OK;
    }

    ucs_error("UCX_NPRDMA_STATS: '%s' is none of summary, stderr, stdout, "
              "file:PATH", spec);
    return UCS_ERR_INVALID_PARAM;
}

static FILE *uct_nprdma_stats_open(const char *spec)
{
    char path[4096];
    FILE *stream;
    int fd;

    if (!strcmp(spec, "stderr")) {
        return stderr;
    }

    if (!strcmp(spec, "stdout")) {
        return stdout;
    }

    ucs_fill_filename_template(spec + strlen(UCT_NPRDMA_STATS_FILE), path,
                               sizeof(path));
    fd     = nprdma_file_append(path, 0666);
    stream = (fd < 0) ? NULL : fdopen(fd, "a");
    if (stream == NULL) {
        ucs_error("UCX_NPRDMA_STATS: failed to open %s: %s", path,
                  (errno == EPERM) ? "it belongs to another user" :
                                     strerror(errno));
        if (fd >= 0) {
            close(fd);
        }
    }
    return stream;
}

/* Reads counters while another thread writes them, on purpose: an aligned
 * 64-bit load returns a value that was stored, and atomics would cost time on
 * the data path */
__attribute__((no_sanitize("thread")))
static void uct_nprdma_stats_print(const uct_nprdma_stats_t *stats,
                                   ucs_string_buffer_t *strb)
{
#define UCT_NPRDMA_STAT_PRINT(_name) \
    ucs_string_buffer_appendf(strb, "%s %" PRIu64 "\n", #_name, stats->_name);
    UCT_NPRDMA_FOREACH_STAT(UCT_NPRDMA_STAT_PRINT)
}

void uct_nprdma_stats_print_mem(const uct_nprdma_mem_stats_t *stats,
                                ucs_string_buffer_t *strb)
{
    UCT_NPRDMA_FOREACH_MEM_STAT(UCT_NPRDMA_STAT_PRINT)
#undef UCT_NPRDMA_STAT_PRINT
}

static void uct_nprdma_stats_vfs_show(void *obj, ucs_string_buffer_t *strb,
                                      void *arg_ptr, uint64_t arg_u64)
{
    uct_nprdma_stats_print(arg_ptr, strb);
}

void uct_nprdma_stats_vfs(void *obj, uct_nprdma_stats_t *stats)
{
    ucs_vfs_obj_add_ro_file(obj, uct_nprdma_stats_vfs_show, stats, 0,
                            "nprdma_counters");
}

static void uct_nprdma_stats_dump(const uct_nprdma_stats_t *stats,
                                  const uct_nprdma_mem_stats_t *mem,
                                  const char *spec, const char *device)
{
    ucs_string_buffer_t block = UCS_STRING_BUFFER_INITIALIZER;
    nprdma_file_section_t section;
    FILE *stream;

    if ((*spec == '\0') || uct_nprdma_stats_is_summary(spec)) {
        return;
    }

    stream = uct_nprdma_stats_open(spec);
    if (stream == NULL) {
        return;
    }

    ucs_string_buffer_appendf(&block, "# nprdma %s pid %d\n", device, getpid());
    uct_nprdma_stats_print(stats, &block);
    uct_nprdma_stats_print_mem(mem, &block);
    /* By one call, because blocks of several interfaces must not mix */
    nprdma_file_begin(&section);
    if ((fputs(ucs_string_buffer_cstr(&block), stream) == EOF) ||
        (fflush(stream) != 0)) {
        ucs_error("UCX_NPRDMA_STATS: failed to write: %m");
    }
    if ((stream != stderr) && (stream != stdout)) {
        fclose(stream);
    }
    nprdma_file_end(&section);
    ucs_string_buffer_cleanup(&block);
}


/* ---- sums of the process ---- */

/* Locks and numbers of the parent are not of this process. Interfaces of the
 * parent are not closed in a child. */
static void uct_nprdma_stats_reset(void)
{
    memset(&uct_nprdma_stats, 0, sizeof(uct_nprdma_stats));
    pthread_mutex_init(&uct_nprdma_stats.lock, NULL);
    ucs_list_head_init(&uct_nprdma_stats.ifaces);
}

void uct_nprdma_stats_init(void)
{
    pthread_atfork(NULL, NULL, uct_nprdma_stats_reset);
}

/* Reads counters while another thread may write them, as
 * uct_nprdma_stats_print() */
__attribute__((no_sanitize("thread")))
static void uct_nprdma_stats_add(uct_nprdma_stats_sums_t *sums,
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
static void uct_nprdma_stats_write(const uct_nprdma_stats_sums_t *sums)
{
    char lines[256];

    snprintf(lines, sizeof(lines),
             "registered_bytes %" PRIu64 "\npopulated_bytes %" PRIu64 "\n"
             "app_pinned_bytes %" PRIu64 "\npinned_bytes %" PRIu64 "\n",
             sums->registered_bytes, sums->populated_bytes,
             sums->app_pinned_bytes, sums->pinned_bytes);
    uct_nprdma_record_write(UCT_NPRDMA_RECORD_CLOSED, lines);
}

void uct_nprdma_stats_md_opened(void)
{
    pthread_mutex_lock(&uct_nprdma_stats.lock);
    ++uct_nprdma_stats.num_mds;
    pthread_mutex_unlock(&uct_nprdma_stats.lock);
}

void uct_nprdma_stats_md_closed(const uct_nprdma_mem_stats_t *mem)
{
    uct_nprdma_stats_sums_t *sums = &uct_nprdma_stats.sums;

    pthread_mutex_lock(&uct_nprdma_stats.lock);
    sums->registered_bytes += mem->registered_peak;
    sums->populated_bytes  += mem->pages_populated * NPRDMA_PAGE_SIZE;
    --uct_nprdma_stats.num_mds;
    if ((uct_nprdma_stats.num_mds == 0) && uct_nprdma_stats.has_opened) {
        uct_nprdma_stats_write(sums);
    }
    pthread_mutex_unlock(&uct_nprdma_stats.lock);
}

void uct_nprdma_stats_iface_opened(uct_nprdma_stats_entry_t *entry,
                                   const uct_nprdma_stats_t *stats,
                                   const char *spec)
{
    entry->stats = stats;
    pthread_mutex_lock(&uct_nprdma_stats.lock);
    ucs_list_add_tail(&uct_nprdma_stats.ifaces, &entry->list);
    uct_nprdma_stats.is_line |= uct_nprdma_stats_is_summary(spec);
    if (!uct_nprdma_stats.has_opened) {
        uct_nprdma_record_write(UCT_NPRDMA_RECORD_OPENED, "");
    }
    uct_nprdma_stats.has_opened = 1;
    pthread_mutex_unlock(&uct_nprdma_stats.lock);
}

void uct_nprdma_stats_iface_closed(uct_nprdma_stats_entry_t *entry,
                                   const uct_nprdma_mem_stats_t *mem,
                                   const char *spec, const char *device)
{
    uct_nprdma_stats_sums_t *sums = &uct_nprdma_stats.sums;
    uint64_t pinned               =
            UCS_KBYTE * uct_nprdma_proc_status("VmPin:", 10);
    uint64_t others               = (pinned > mem->pinned_bytes) ?
                                    pinned - mem->pinned_bytes : 0;

    uct_nprdma_stats_dump(entry->stats, mem, spec, device);
    pthread_mutex_lock(&uct_nprdma_stats.lock);
    ucs_list_del(&entry->list);
    uct_nprdma_stats_add(sums, entry->stats);
    sums->pinned_bytes     = ucs_max(sums->pinned_bytes, mem->pinned_bytes);
    sums->app_pinned_bytes = ucs_max(sums->app_pinned_bytes, others);
    pthread_mutex_unlock(&uct_nprdma_stats.lock);
}

/* Bytes with a binary unit, as "12.3 MiB" */
static const char *
uct_nprdma_stats_bytes(uint64_t bytes, char *text, size_t size)
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
static void uct_nprdma_stats_line(const uct_nprdma_stats_sums_t *sums,
                                  char *line, size_t size)
{
    char text[6][32], share[48] = "no zero copy";

    if (sums->slices > 0) {
        /* Cut off, not rounded: 100 % means that none was repaired */
        snprintf(share, sizeof(share), "%" PRIu64 ".%02u %% without repair",
                 sums->hits * 100 / sums->slices,
                 (unsigned)(sums->hits * 10000 / sums->slices % 100));
    }
#define UCT_NPRDMA_STATS_TEXT(_i, _name) \
    uct_nprdma_stats_bytes(sums->_name, text[_i], sizeof(text[_i]))
    snprintf(line, size,
             "%" PRIu64 " operations, %s sent, %s received; %s; absent: %"
             PRIu64 " lines, %" PRIu64 " states, %" PRIu64 " local, %" PRIu64
             " small; repairs %" PRIu64 ".%03u ms; registered %s, populated "
             "%s, pinned %s; transport pinned %s",
             sums->operations, UCT_NPRDMA_STATS_TEXT(0, bytes_sent),
             UCT_NPRDMA_STATS_TEXT(1, bytes_received), share,
             sums->absent_lines, sums->absent_states, sums->absent_local,
             sums->absent_small, sums->repair_us / 1000,
             (unsigned)(sums->repair_us % 1000),
             UCT_NPRDMA_STATS_TEXT(2, registered_bytes),
             UCT_NPRDMA_STATS_TEXT(3, populated_bytes),
             UCT_NPRDMA_STATS_TEXT(4, app_pinned_bytes),
             UCT_NPRDMA_STATS_TEXT(5, pinned_bytes));
#undef UCT_NPRDMA_STATS_TEXT
}

static void uct_nprdma_stats_print_sums(const uct_nprdma_stats_sums_t *sums)
{
    const char *rank = nprdma_record_getenv(0);
    nprdma_file_section_t section;
    char sums_text[512], line[1024], host[256] = "";

    gethostname(host, sizeof(host) - 1);
    uct_nprdma_stats_line(sums, sums_text, sizeof(sums_text));
    if (rank != NULL) {
        snprintf(line, sizeof(line), "# nprdma rank %.20s (%s, pid %d): %s\n",
                 rank, host, (int)getpid(), sums_text);
    } else {
        snprintf(line, sizeof(line), "# nprdma process %d (%s): %s\n",
                 (int)getpid(), host, sums_text);
    }
    /* By one call, because lines of several processes must not mix. To a stream
     * without a buffer, fprintf() of glibc 2.41 writes pieces of 128 bytes. */
    nprdma_file_begin(&section);
    fputs(line, stderr);
    nprdma_file_end(&section);
}

void uct_nprdma_stats_exit(void)
{
    uct_nprdma_stats_entry_t *entry;
    uct_nprdma_stats_sums_t sums;

    if (pthread_mutex_trylock(&uct_nprdma_stats.lock)) {
        return;
    }
    sums = uct_nprdma_stats.sums;
    ucs_list_for_each(entry, &uct_nprdma_stats.ifaces, list) {
        uct_nprdma_stats_add(&sums, entry->stats);
    }
    if (uct_nprdma_stats.has_opened) {
        uct_nprdma_stats_write(&sums);
    }
    if (uct_nprdma_stats.is_line) {
        uct_nprdma_stats_print_sums(&sums);
    }
    pthread_mutex_unlock(&uct_nprdma_stats.lock);
}
