/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_COUNTERS_PAGE_H_
#define NPRDMA_COUNTERS_PAGE_H_

#include <stdint.h>

/*
 * A page of counters, which other programs read while the process runs, and
 * nprdma-run also after that. It begins with a header. The header describes the
 * rest, because the reader may belong to another version.
 */
#define NPRDMA_COUNTERS_SIZE    4096
#define NPRDMA_COUNTERS_FILE    "nprdma-counters"
#define NPRDMA_COUNTERS_MAGIC   "nprdma counters"
#define NPRDMA_COUNTERS_VERSION 1

/* Values of `kind` */
#define NPRDMA_COUNTERS_IFACE   "interface"
#define NPRDMA_COUNTERS_DEVICE  "device"

typedef struct nprdma_counters_header {
    char     magic[16];
    uint32_t version;
    uint32_t pid;        /* of the owner, in its own PID namespace */
    uint32_t num;        /* number of values, 64 bits each */
    uint32_t values;     /* offset of the values, bytes */
    uint32_t names;      /* offset of their names, strings that end with 0 */
    uint32_t names_size; /* bytes of all names */
    char     kind[16];   /* NPRDMA_COUNTERS_xx */
    char     device[64]; /* device and port */
    char     mode[16];   /* of a device: the way to watch memory */
} nprdma_counters_header_t;

#endif
