/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "nprdma_maps.h"
#include "nprdma_hook.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>


/* Fields of a line that are numbers: start-end perms offset dev inode path */
enum {
    NPRDMA_MAPS_START,
    NPRDMA_MAPS_END,
    NPRDMA_MAPS_PERMS,
    NPRDMA_MAPS_OFFSET,
    NPRDMA_MAPS_MAJOR,
    NPRDMA_MAPS_MINOR,
    NPRDMA_MAPS_INODE,
    NPRDMA_MAPS_REST
};


typedef struct nprdma_maps_parser {
    unsigned field;
    uint64_t value[NPRDMA_MAPS_REST];
} nprdma_maps_parser_t;


NPRDMA_HOOK
static int nprdma_maps_digit(char c)
{
    if ((c >= '0') && (c <= '9')) {
        return c - '0';
    }

    return ((c >= 'a') && (c <= 'f')) ? (c - 'a' + 10) : -1;
}

NPRDMA_HOOK
static void nprdma_maps_restart(nprdma_maps_parser_t *parser)
{
    unsigned i;

    parser->field = 0;
    for (i = 0; i < NPRDMA_MAPS_REST; ++i) {
        parser->value[i] = 0;
    }
}

/* @return Nonzero at the end of a line, whose numbers are complete then */
NPRDMA_HOOK
static int nprdma_maps_feed(nprdma_maps_parser_t *parser, char c)
{
    int digit = nprdma_maps_digit(c);
    unsigned base;

    if (c == '\n') {
        return 1;
    }

    if (parser->field >= NPRDMA_MAPS_REST) {
        return 0;
    }

    if ((c == ' ') || (c == ':') ||
        ((c == '-') && (parser->field == NPRDMA_MAPS_START))) {
        ++parser->field;
    } else if (digit >= 0) {
        base = (parser->field == NPRDMA_MAPS_INODE) ? 10 : 16;
        parser->value[parser->field] = parser->value[parser->field] * base +
                                       digit;
    }

    return 0;
}

/* Whether a mapping is a further piece of the segment that ends at @a end */
NPRDMA_HOOK
static int nprdma_maps_continues(const uint64_t *value, const uint64_t *first,
                                 uintptr_t end)
{
    return (value[NPRDMA_MAPS_START] == end) &&
           (value[NPRDMA_MAPS_INODE] == first[NPRDMA_MAPS_INODE]) &&
           (value[NPRDMA_MAPS_MAJOR] == first[NPRDMA_MAPS_MAJOR]) &&
           (value[NPRDMA_MAPS_MINOR] == first[NPRDMA_MAPS_MINOR]) &&
           (value[NPRDMA_MAPS_OFFSET] ==
            value[NPRDMA_MAPS_START] - first[NPRDMA_MAPS_START]);
}

NPRDMA_HOOK
uintptr_t nprdma_maps_segment_end(uintptr_t address)
{
    nprdma_maps_parser_t parser, first;
    uintptr_t end = 0;
    char buffer[1024];
    long fd, size, i;

    fd = syscall(SYS_openat, AT_FDCWD, "/proc/self/maps", O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return 0;
    }

    nprdma_maps_restart(&parser);
    nprdma_maps_restart(&first);
    while ((size = syscall(SYS_read, fd, buffer, sizeof(buffer))) > 0) {
        for (i = 0; i < size; ++i) {
            if (!nprdma_maps_feed(&parser, buffer[i])) {
                continue;
            }

            if (parser.value[NPRDMA_MAPS_START] == address) {
                first = parser;
                end   = parser.value[NPRDMA_MAPS_END];
            } else if ((end != 0) &&
                       nprdma_maps_continues(parser.value, first.value, end)) {
                end = parser.value[NPRDMA_MAPS_END];
            }
            nprdma_maps_restart(&parser);
        }
    }

    syscall(SYS_close, fd);
    return end;
}
