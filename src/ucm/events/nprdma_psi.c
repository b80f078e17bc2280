/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "nprdma_psi.h"

#include <ucs/debug/log.h>
#include <ucs/sys/compiler_def.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>


/* Longer than any of the files that are read here */
#define NPRDMA_PSI_TEXT_MAX 16384

/* Memory is short if less than one of these parts is left */
#define NPRDMA_PSI_PARTS 20

#define NPRDMA_PSI_TRIGGER 0
#define NPRDMA_PSI_INOTIFY 1


static const nprdma_psi_names_t nprdma_psi_names_v2 = {
    "memory.current", "memory.high", "memory.max",
    {"inactive_file", "active_file"}, "cgroup.max.depth"
};

static const nprdma_psi_names_t nprdma_psi_names_v1 = {
    "memory.usage_in_bytes", "memory.soft_limit_in_bytes",
    "memory.limit_in_bytes", {"total_inactive_file", "total_active_file"},
    "cgroup.clone_children"
};


/* ---- files ---- */

static int nprdma_psi_join(char *path, const char *folder, const char *name)
{
    int length = snprintf(path, PATH_MAX, "%s/%s", folder, name);

    return ((length > 0) && (length < PATH_MAX)) ? 0 : -1;
}

/* @return 0, or -1 if the file cannot be read or is too long */
static int nprdma_psi_read(const char *folder, const char *name, char *text)
{
    char path[PATH_MAX];
    size_t length = 0;
    ssize_t ret;
    int fd;

    if (nprdma_psi_join(path, folder, name) != 0) {
        return -1;
    }

    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return -1;
    }

    do {
        ret = read(fd, text + length, NPRDMA_PSI_TEXT_MAX - length);
        length += (ret > 0) ? (size_t)ret : 0;
    } while ((ret > 0) && (length < NPRDMA_PSI_TEXT_MAX));
    close(fd);
    if ((ret < 0) || (length == NPRDMA_PSI_TEXT_MAX)) {
        return -1;
    }

    text[length] = '\0';
    return 0;
}

/* @return 0, or -1 if @a text does not begin with a number or "max" */
static int nprdma_psi_parse(const char *text, uint64_t *value_p)
{
    char *end;

    text += strspn(text, " \t");
    if (strncmp(text, "max", 3) == 0) {
        *value_p = UINT64_MAX;
        return 0;
    }

    if ((*text < '0') || (*text > '9')) {
        return -1;
    }

    errno    = 0;
    *value_p = strtoull(text, &end, 10);
    return (errno == 0) ? 0 : -1;
}

static int nprdma_psi_number(const char *folder, const char *name,
                             uint64_t *value_p)
{
    char text[NPRDMA_PSI_TEXT_MAX];

    return (nprdma_psi_read(folder, name, text) != 0) ?
           -1 : nprdma_psi_parse(text, value_p);
}

/* Of a line "NAME VALUE" or "NAME: VALUE" */
static int nprdma_psi_field(const char *text, const char *name,
                            uint64_t *value_p)
{
    size_t length    = strlen(name);
    const char *line = text;

    while (line != NULL) {
        line += (*line == '\n');
        if ((strncmp(line, name, length) == 0) &&
            ((line[length] == ' ') || (line[length] == ':'))) {
            return nprdma_psi_parse(line + length + 1, value_p);
        }
        line = strchr(line, '\n');
    }

    return -1;
}


/* It has kB (proc_pid_status(5)) */
uint64_t nprdma_psi_own(const nprdma_psi_params_t *params)
{
    char text[NPRDMA_PSI_TEXT_MAX];
    uint64_t value;

    return ((nprdma_psi_read(params->proc, "self/status", text) == 0) &&
            (nprdma_psi_field(text, "RssAnon", &value) == 0)) ?
           value * 1024 : UINT64_MAX;
}


/* ---- the cgroup of the process ---- */

static int nprdma_psi_is_folder(const char *path)
{
    struct stat st;

    return (stat(path, &st) == 0) && S_ISDIR(st.st_mode);
}

/* Whether a comma-separated list of @a length bytes has an item */
static int nprdma_psi_lists(const char *list, size_t length, const char *item)
{
    size_t item_length = strlen(item);
    size_t start       = 0;
    size_t end;

    do {
        for (end = start; (end < length) && (list[end] != ','); ++end) {
        }
        if ((end - start == item_length) &&
            (memcmp(list + start, item, item_length) == 0)) {
            return 1;
        }
        start = end + 1;
    } while (end < length);

    return 0;
}

/*
 * Find the path of a hierarchy in /proc/self/cgroup, whose lines are
 * ID:CONTROLLERS:PATH (cgroups(7)).
 *
 * @param [in]  controller  Empty: that of cgroup v2.
 * @param [out] length_p    Length of the path.
 */
static const char *nprdma_psi_group(const char *text, const char *controller,
                                    size_t *length_p)
{
    const char *line = text;
    const char *list, *path;

    while ((line != NULL) && (*line != '\0')) {
        list = strchr(line, ':');
        path = (list == NULL) ? NULL : strchr(list + 1, ':');
        if (path == NULL) {
            return NULL;
        }

        ++list;
        if (nprdma_psi_lists(list, (size_t)(path - list), controller)) {
            ++path;
            *length_p = strcspn(path, "\n");
            return path;
        }
        line = strchr(path, '\n');
        line = (line == NULL) ? NULL : line + 1;
    }

    return NULL;
}

/* The folder of the process' cgroup under @a root. In a container without a
 * cgroup namespace the path is the host's, and what is mounted is the cgroup
 * itself. */
static void nprdma_psi_locate_in(const char *text, const char *controller,
                                 const char *root, char *folder,
                                 size_t *root_p)
{
    size_t length = 0;
    const char *path;
    int ret;

    folder[0] = '\0';
    *root_p   = strlen(root);
    path      = nprdma_psi_group(text, controller, &length);
    if ((path == NULL) || !nprdma_psi_is_folder(root)) {
        return;
    }

    length -= ((length > 0) && (path[length - 1] == '/'));
    ret     = snprintf(folder, PATH_MAX, "%s%.*s", root, (int)length, path);
    if ((ret < 0) || (ret >= PATH_MAX) || !nprdma_psi_is_folder(folder)) {
        snprintf(folder, PATH_MAX, "%s", root);
    }
}

/* cgroup v2 is mounted alone, or beside v1 in a folder of its own */
void nprdma_psi_locate(nprdma_psi_t *psi, const nprdma_psi_params_t *params)
{
    const char *root = params->cgroup;
    char text[NPRDMA_PSI_TEXT_MAX];
    char path[PATH_MAX];

    psi->params = *params;
    psi->v1[0] = psi->v2[0] = '\0';
    if (nprdma_psi_read(psi->params.proc, "self/cgroup", text) != 0) {
        return;
    }

    if ((nprdma_psi_join(path, root, "cgroup.controllers") == 0) &&
        (access(path, F_OK) == 0)) {
        nprdma_psi_locate_in(text, "", root, psi->v2, &psi->v2_root);
        return;
    }

    if (nprdma_psi_join(path, root, "unified") == 0) {
        nprdma_psi_locate_in(text, "", path, psi->v2, &psi->v2_root);
    }
    if (nprdma_psi_join(path, root, "memory") == 0) {
        nprdma_psi_locate_in(text, "memory", path, psi->v1, &psi->v1_root);
    }
}


/* The cgroup of the process and all above it */
static int nprdma_psi_find_above(const char *own, size_t root_length,
                                 const nprdma_psi_names_t *names,
                                 nprdma_psi_func_t func, void *arg)
{
    char folder[PATH_MAX];
    char *slash;

    if (own[0] == '\0') {
        return 0;
    }

    snprintf(folder, sizeof(folder), "%s", own);
    for (;;) {
        if (func(arg, folder, names)) {
            return 1;
        }

        slash = strrchr(folder, '/');
        if ((slash == NULL) || ((size_t)(slash - folder) < root_length)) {
            return 0;
        }
        *slash = '\0';
    }
}

int nprdma_psi_find_group(const nprdma_psi_t *psi, nprdma_psi_func_t func,
                          void *arg)
{
    return nprdma_psi_find_above(psi->v2, psi->v2_root, &nprdma_psi_names_v2,
                                 func, arg) ||
           nprdma_psi_find_above(psi->v1, psi->v1_root, &nprdma_psi_names_v1,
                                 func, arg);
}

static int nprdma_psi_group_is_limited(void *arg, const char *folder,
                                       const nprdma_psi_names_t *names)
{
    uint64_t limit;

    return (nprdma_psi_number(folder, names->max, &limit) == 0) &&
           (limit < NPRDMA_PSI_NO_LIMIT);
}


/* ---- trigger and memory.events ---- */

static int nprdma_psi_open_trigger(const char *folder, const char *name,
                                   const char *trigger)
{
    size_t size = strlen(trigger) + 1;
    char path[PATH_MAX];
    int fd;

    if ((folder[0] == '\0') || (nprdma_psi_join(path, folder, name) != 0)) {
        return -1;
    }

    fd = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) {
        ucs_debug("memory pressure: cannot open %s: %m", path);
        return -1;
    }

    if (write(fd, trigger, size) != (ssize_t)size) {
        ucs_debug("memory pressure: %s refuses a trigger: %m", path);
        close(fd);
        return -1;
    }

    ucs_debug("memory pressure: trigger \"%s\" in %s", trigger, path);
    return fd;
}

/* What a cgroup met at its limits. `low` is left out: the memory that it counts
 * was taken although it was protected, because other cgroups are short of it */
static uint64_t nprdma_psi_count_events(const nprdma_psi_t *psi)
{
    static const char *names[] = { "high", "max", "oom" };
    char text[NPRDMA_PSI_TEXT_MAX];
    uint64_t sum = 0;
    uint64_t value;
    unsigned i;

    if (nprdma_psi_read(psi->v2, "memory.events", text) != 0) {
        return psi->events;
    }

    for (i = 0; i < ucs_static_array_size(names); ++i) {
        if (nprdma_psi_field(text, names[i], &value) == 0) {
            sum += value;
        }
    }

    return sum;
}

/* @return Nonzero: the search ends */
static int nprdma_psi_watch_call(void *arg, const char *folder,
                                 const nprdma_psi_names_t *names)
{
    const nprdma_psi_t *psi = arg;
    char path[PATH_MAX];

    return (nprdma_psi_join(path, folder, names->call) == 0) &&
           (inotify_add_watch(psi->inotify_fd, path, IN_OPEN) < 0) &&
           (errno != ENOENT); /* The root of cgroup v2 has no limit */
}

static void nprdma_psi_open_inotify(nprdma_psi_t *psi)
{
    char path[PATH_MAX];

    psi->inotify_fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    if (psi->inotify_fd < 0) {
        return;
    }

    if ((psi->v2[0] != '\0') &&
        (nprdma_psi_join(path, psi->v2, "memory.events") == 0) &&
        (inotify_add_watch(psi->inotify_fd, path, IN_MODIFY) >= 0)) {
        ucs_debug("memory pressure: watching %s", path);
        psi->events = nprdma_psi_count_events(psi);
    }
    nprdma_psi_find_group(psi, nprdma_psi_watch_call, psi);
}

void nprdma_psi_open(nprdma_psi_t *psi, const nprdma_psi_params_t *params)
{
    nprdma_psi_locate(psi, params);
    psi->events     = 0;
    psi->is_limited = nprdma_psi_find_group(psi, nprdma_psi_group_is_limited,
                                            NULL);
    psi->trigger_fd = nprdma_psi_open_trigger(psi->v2, "memory.pressure",
                                              params->trigger);
    if (psi->trigger_fd < 0) {
        psi->trigger_fd = nprdma_psi_open_trigger(params->proc,
                                                  "pressure/memory",
                                                  params->trigger);
    }
    nprdma_psi_open_inotify(psi);
    if (nprdma_psi_needs_samples(psi)) {
        ucs_debug("memory pressure: a timer compares usage with limits");
    }
}

static void nprdma_psi_close_fd(int *fd_p)
{
    if (*fd_p >= 0) {
        close(*fd_p);
        *fd_p = -1;
    }
}

void nprdma_psi_close(nprdma_psi_t *psi)
{
    nprdma_psi_close_fd(&psi->trigger_fd);
    nprdma_psi_close_fd(&psi->inotify_fd);
}

void nprdma_psi_prepare(const nprdma_psi_t *psi,
                        struct pollfd fds[NPRDMA_PSI_NUM_FDS])
{
    fds[NPRDMA_PSI_TRIGGER].fd      = psi->trigger_fd;
    fds[NPRDMA_PSI_TRIGGER].events  = POLLPRI;
    fds[NPRDMA_PSI_TRIGGER].revents = 0;
    fds[NPRDMA_PSI_INOTIFY].fd      = psi->inotify_fd;
    fds[NPRDMA_PSI_INOTIFY].events  = POLLIN;
    fds[NPRDMA_PSI_INOTIFY].revents = 0;
}

/* @return Nonzero if a count of memory.events has grown */
static int nprdma_psi_has_grown(nprdma_psi_t *psi)
{
    uint64_t events = nprdma_psi_count_events(psi);

    if (events <= psi->events) {
        return 0;
    }

    psi->events = events;
    return 1;
}

/* @return Nonzero if that, or if a process of the cgroups calls */
static int nprdma_psi_has_event(nprdma_psi_t *psi)
{
    char notes[4096] __attribute__((aligned(8)));
    const struct inotify_event *note;
    int is_called = 0;
    ssize_t length, at;

    while ((length = read(psi->inotify_fd, notes, sizeof(notes))) > 0) {
        for (at = 0; at < length; at += sizeof(*note) + note->len) {
            note       = (const struct inotify_event*)(notes + at);
            is_called |= (note->mask & IN_OPEN) != 0;
        }
    }

    return nprdma_psi_has_grown(psi) || is_called;
}

int nprdma_psi_check(nprdma_psi_t *psi,
                     const struct pollfd fds[NPRDMA_PSI_NUM_FDS])
{
    int is_short = 0;

    if (fds[NPRDMA_PSI_TRIGGER].revents & POLLERR) {
        ucs_debug("memory pressure: the trigger has gone, a timer compares "
                  "usage with limits");
        nprdma_psi_close_fd(&psi->trigger_fd);
    } else if (fds[NPRDMA_PSI_TRIGGER].revents & POLLPRI) {
        is_short = 1;
    }
    if (fds[NPRDMA_PSI_INOTIFY].revents & POLLIN) {
        is_short |= nprdma_psi_has_event(psi);
    }

    return is_short;
}


/* ---- samples ---- */

static int nprdma_psi_machine_is_short(const nprdma_psi_t *psi)
{
    char text[NPRDMA_PSI_TEXT_MAX];
    uint64_t total, available;

    return (nprdma_psi_read(psi->params.proc, "meminfo", text) == 0) &&
           (nprdma_psi_field(text, "MemTotal", &total) == 0) &&
           (nprdma_psi_field(text, "MemAvailable", &available) == 0) &&
           (available < total / NPRDMA_PSI_PARTS);
}

static int nprdma_psi_group_is_short(void *arg, const char *folder,
                                     const nprdma_psi_names_t *names)
{
    char text[NPRDMA_PSI_TEXT_MAX];
    uint64_t usage, limit, bytes;
    unsigned i;

    if (nprdma_psi_number(folder, names->usage, &usage) != 0) {
        return 0;
    }

    if (nprdma_psi_read(folder, "memory.stat", text) == 0) {
        for (i = 0; i < NPRDMA_PSI_NUM_CACHED; ++i) {
            if (nprdma_psi_field(text, names->cached[i], &bytes) == 0) {
                usage -= (bytes < usage) ? bytes : usage;
            }
        }
    }

    if ((nprdma_psi_number(folder, names->high, &limit) == 0) &&
        (usage >= limit)) {
        return 1;
    }

    return (nprdma_psi_number(folder, names->max, &limit) == 0) &&
           (usage >= limit - limit / NPRDMA_PSI_PARTS);
}

int nprdma_psi_sample(const nprdma_psi_t *psi)
{
    return nprdma_psi_machine_is_short(psi) ||
           nprdma_psi_find_group(psi, nprdma_psi_group_is_short, NULL);
}
