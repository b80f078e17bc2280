/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "nprdma_room.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>


/* Longer than a number, and than memory.stat up to the field that is needed */
#define NPRDMA_ROOM_TEXT_MAX 4096

/* Milliseconds for which limits and cached memory are not read again */
#define NPRDMA_ROOM_READ_MS 100

/* Milliseconds between two calls */
#define NPRDMA_ROOM_CALL_MS 2000


/* ---- files; by system calls, because the C library's functions may be
 * instrumented ---- */

/* @return Length of the text, which ends with a zero; 0 if there is none */
NPRDMA_HOOK
static size_t nprdma_room_read(int fd, char *text)
{
    long ret = syscall(SYS_pread64, fd, text, NPRDMA_ROOM_TEXT_MAX - 1, 0L);

    text[(ret > 0) ? ret : 0] = '\0';
    return (ret > 0) ? (size_t)ret : 0;
}

/* @return The number; UINT64_MAX for "max", and all else */
NPRDMA_HOOK
static uint64_t nprdma_room_parse(const char *text)
{
    uint64_t value = 0;
    const char *digit;

    for (digit = text; (*digit >= '0') && (*digit <= '9'); ++digit) {
        if (value > UINT64_MAX / 16) {
            return UINT64_MAX;
        }
        value = (value * 10) + (uint64_t)(*digit - '0');
    }

    return (digit == text) ? UINT64_MAX : value;
}

NPRDMA_HOOK
static uint64_t nprdma_room_number(int fd)
{
    char text[NPRDMA_ROOM_TEXT_MAX];

    return (nprdma_room_read(fd, text) == 0) ? UINT64_MAX :
                                               nprdma_room_parse(text);
}

/* @return What is behind "NAME ", or NULL */
NPRDMA_HOOK
static const char *nprdma_room_behind(const char *line, const char *name)
{
    while ((*name != '\0') && (*line == *name)) {
        ++line;
        ++name;
    }

    return ((*name == '\0') && (*line == ' ')) ? line + 1 : NULL;
}

/* @return The value of a line "NAME VALUE", or 0 */
NPRDMA_HOOK
static uint64_t nprdma_room_field(const char *text, const char *name)
{
    const char *line = text;
    const char *behind;
    uint64_t value;

    while (*line != '\0') {
        behind = nprdma_room_behind(line, name);
        if (behind != NULL) {
            value = nprdma_room_parse(behind);
            return (value > NPRDMA_PSI_NO_LIMIT) ? 0 : value;
        }

        while ((*line != '\0') && (*line != '\n')) {
            ++line;
        }
        line += (*line == '\n');
    }

    return 0;
}

NPRDMA_HOOK
static uint64_t nprdma_room_cached(const nprdma_room_group_t *group)
{
    char text[NPRDMA_ROOM_TEXT_MAX];
    uint64_t sum = 0;
    unsigned i;

    nprdma_room_read(group->stat_fd, text);
    for (i = 0; i < NPRDMA_PSI_NUM_CACHED; ++i) {
        sum += nprdma_room_field(text, group->names->cached[i]);
    }
    return sum;
}


/* ---- asking ---- */

NPRDMA_HOOK
static void nprdma_room_refresh(nprdma_room_t *room)
{
    nprdma_room_group_t *group;
    uint64_t limit, cached;
    unsigned i;

    /* One thread reads, others go by what was there before */
    if (!nprdma_hook_is_due(&room->read_at, NPRDMA_ROOM_READ_MS)) {
        return;
    }

    for (i = 0; i < room->num_groups; ++i) {
        group  = &room->groups[i];
        limit  = nprdma_room_number(group->limit_fd);
        cached = (limit > NPRDMA_PSI_NO_LIMIT) ? 0 : nprdma_room_cached(group);
        __atomic_store_n(&group->limit, limit, __ATOMIC_RELAXED);
        __atomic_store_n(&group->cached, cached, __ATOMIC_RELAXED);
    }
}

/* @return Nonzero if the cgroup has a limit, of which *bound_p is a part, and
 *         uses *usage_p */
NPRDMA_HOOK
static int nprdma_room_group_read(const nprdma_room_group_t *group,
                                  unsigned percent, uint64_t *usage_p,
                                  uint64_t *bound_p)
{
    uint64_t limit  = __atomic_load_n(&group->limit, __ATOMIC_RELAXED);
    uint64_t cached = __atomic_load_n(&group->cached, __ATOMIC_RELAXED);
    uint64_t usage;

    if (limit > NPRDMA_PSI_NO_LIMIT) {
        return 0;
    }

    usage = nprdma_room_number(group->usage_fd);
    if (usage == UINT64_MAX) {
        return 0;
    }

    *usage_p = usage - ((cached < usage) ? cached : usage);
    *bound_p = limit / 100 * percent;
    return 1;
}

NPRDMA_HOOK
static int nprdma_room_group_has(const nprdma_room_group_t *group,
                                 size_t length, unsigned percent)
{
    uint64_t usage, bound;

    return !nprdma_room_group_read(group, percent, &usage, &bound) ||
           ((length <= bound) && (usage <= bound - length));
}

NPRDMA_HOOK
int nprdma_room_has(nprdma_room_t *room, size_t length, unsigned percent)
{
    int saved_errno = errno;
    int has_room    = 1;
    unsigned i;

    if (room->num_groups > 0) {
        nprdma_room_refresh(room);
    }
    for (i = 0; has_room && (i < room->num_groups); ++i) {
        has_room = nprdma_room_group_has(&room->groups[i], length, percent);
    }
    errno = saved_errno;
    return has_room;
}

NPRDMA_HOOK
size_t nprdma_room_left(nprdma_room_t *room, unsigned percent, size_t own,
                        size_t *part_p)
{
    int saved_errno = errno;
    size_t left     = SIZE_MAX;
    uint64_t usage, bound;
    size_t rest, part;
    unsigned i;

    *part_p = SIZE_MAX;
    if (room->num_groups > 0) {
        nprdma_room_refresh(room);
    }
    for (i = 0; i < room->num_groups; ++i) {
        if (nprdma_room_group_read(&room->groups[i], percent, &usage, &bound)) {
            rest    = (usage < bound) ? bound - usage : 0;
            part    = (own < usage) ?
                      (size_t)((double)rest * (double)own / (double)usage) :
                      rest;
            left    = (rest < left) ? rest : left;
            *part_p = (part < *part_p) ? part : *part_p;
        }
    }
    errno = saved_errno;
    return left;
}

NPRDMA_HOOK
int nprdma_room_call(nprdma_room_t *room, size_t length, unsigned percent)
{
    int saved_errno = errno;
    nprdma_room_group_t *group;
    unsigned i;
    long fd;

    if ((room->num_groups == 0) ||
        !nprdma_hook_is_due(&room->called_at, NPRDMA_ROOM_CALL_MS)) {
        return 0;
    }

    nprdma_room_refresh(room);
    for (i = 0; i < room->num_groups; ++i) {
        group = &room->groups[i];
        if (!nprdma_room_group_has(group, length, percent)) {
            fd = syscall(SYS_openat, group->folder_fd, group->names->call,
                         O_RDONLY | O_CLOEXEC);
            if (fd >= 0) {
                syscall(SYS_close, fd);
            }
        }
    }
    errno = saved_errno;
    return 1;
}


/* ---- opening ---- */

static int nprdma_room_open_file(const char *folder, const char *name)
{
    char path[PATH_MAX];
    int length = snprintf(path, sizeof(path), "%s/%s", folder, name);

    if ((length < 0) || ((size_t)length >= sizeof(path))) {
        return -1;
    }

    return open(path, O_RDONLY | O_CLOEXEC);
}

static void nprdma_room_close_group(nprdma_room_group_t *group)
{
    int *fds[] = { &group->usage_fd, &group->limit_fd, &group->stat_fd,
                  &group->folder_fd };
    unsigned i;

    for (i = 0; i < sizeof(fds) / sizeof(fds[0]); ++i) {
        if (*fds[i] >= 0) {
            close(*fds[i]);
            *fds[i] = -1;
        }
    }
}

/* @return Nonzero if no more can be opened */
static int nprdma_room_add(void *arg, const char *folder,
                           const nprdma_psi_names_t *names)
{
    nprdma_room_t *room        = arg;
    nprdma_room_group_t *group = &room->groups[room->num_groups];

    group->usage_fd = nprdma_room_open_file(folder, names->usage);
    group->limit_fd = nprdma_room_open_file(folder, names->max);
    group->stat_fd  = nprdma_room_open_file(folder, "memory.stat");
    group->folder_fd = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
    group->names    = names;
    group->limit    = UINT64_MAX;
    if ((group->usage_fd < 0) || (group->limit_fd < 0)) {
        nprdma_room_close_group(group); /* The root has none */
        return 0;
    }

    return ++room->num_groups == NPRDMA_ROOM_MAX_GROUPS;
}

void nprdma_room_open(nprdma_room_t *room, const nprdma_psi_params_t *params)
{
    nprdma_psi_t psi;

    memset(room, 0, sizeof(*room));
    nprdma_psi_locate(&psi, params);
    nprdma_psi_find_group(&psi, nprdma_room_add, room);
}

void nprdma_room_close(nprdma_room_t *room)
{
    while (room->num_groups > 0) {
        nprdma_room_close_group(&room->groups[--room->num_groups]);
    }
}
