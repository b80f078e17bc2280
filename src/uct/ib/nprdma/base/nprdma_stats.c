/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_stats.h"

#include <ucm/access/nprdma_file.h>

#include <ucs/debug/log.h>
#include <ucs/sys/string.h>
#include <ucs/vfs/base/vfs_cb.h>
#include <ucs/vfs/base/vfs_obj.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define UCT_NPRDMA_STATS_FILE  "file:"

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

int uct_nprdma_stats_is_summary(const char *spec)
{
    return !strcmp(spec, "summary");
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

void uct_nprdma_stats_dump(const uct_nprdma_stats_t *stats,
                           const uct_nprdma_mem_stats_t *mem, const char *spec,
                           const char *device)
{
    nprdma_file_section_t section;
    FILE *stream;
    int ret;

    if ((*spec == '\0') || uct_nprdma_stats_is_summary(spec)) {
        return;
    }

    stream = uct_nprdma_stats_open(spec);
    if (stream == NULL) {
        return;
    }

    /* A block is from one interface of one process, and blocks must not mix */
    nprdma_file_begin(&section);
    flockfile(stream);
    fprintf(stream, "# nprdma %s pid %d\n", device, getpid());
#define UCT_NPRDMA_STAT_PRINT(_name) \
    fprintf(stream, "%s %" PRIu64 "\n", #_name, stats->_name);
    UCT_NPRDMA_FOREACH_STAT(UCT_NPRDMA_STAT_PRINT)
#undef UCT_NPRDMA_STAT_PRINT
#define UCT_NPRDMA_STAT_PRINT(_name) \
    fprintf(stream, "%s %" PRIu64 "\n", #_name, mem->_name);
    UCT_NPRDMA_FOREACH_MEM_STAT(UCT_NPRDMA_STAT_PRINT)
#undef UCT_NPRDMA_STAT_PRINT
    ret = fflush(stream);
    funlockfile(stream);
    if (ret != 0) {
        ucs_error("UCX_NPRDMA_STATS: failed to write: %m");
    }

    if ((stream != stderr) && (stream != stdout)) {
        fclose(stream);
    }
    nprdma_file_end(&section);
}

/* Reads counters while another thread writes them, on purpose: an aligned
 * 64-bit load returns a value that was stored, and atomics would cost time on
 * the data path */
__attribute__((no_sanitize("thread")))
static void uct_nprdma_stats_vfs_show(void *obj, ucs_string_buffer_t *strb,
                                      void *arg_ptr, uint64_t arg_u64)
{
    const uct_nprdma_stats_t *stats = arg_ptr;

#define UCT_NPRDMA_STAT_SHOW(_name) \
    ucs_string_buffer_appendf(strb, "%s %" PRIu64 "\n", #_name, stats->_name);
    UCT_NPRDMA_FOREACH_STAT(UCT_NPRDMA_STAT_SHOW)
#undef UCT_NPRDMA_STAT_SHOW
}

void uct_nprdma_stats_print_mem(const uct_nprdma_mem_stats_t *stats,
                                ucs_string_buffer_t *strb)
{
#define UCT_NPRDMA_STAT_SHOW(_name) \
    ucs_string_buffer_appendf(strb, "%s %" PRIu64 "\n", #_name, stats->_name);
    UCT_NPRDMA_FOREACH_MEM_STAT(UCT_NPRDMA_STAT_SHOW)
#undef UCT_NPRDMA_STAT_SHOW
}

void uct_nprdma_stats_vfs(void *obj, uct_nprdma_stats_t *stats)
{
    ucs_vfs_obj_add_ro_file(obj, uct_nprdma_stats_vfs_show, stats, 0,
                            "nprdma_counters");
}
