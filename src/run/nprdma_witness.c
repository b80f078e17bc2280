/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * libnprdma_witness.so: nprdma-run preloads it into the processes of its job.
 * It tells nprdma-run which ranks there are, and which libraries a process had
 * when it ended. So nprdma-run knows why a rank did not use nprdma. It needs
 * libc alone, and does nothing outside of a run.
 */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_record.h"

#include <limits.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    char uct[512];      /* path of UCX's libuct; empty: not loaded */
    int  has_component; /* nprdma's component is loaded */
    int  has_mpi;
} nprdma_witness_t;

/* The process that has loaded this library; a child of fork() is another one,
 * and ends without a record */
static pid_t nprdma_witness_owner;

/* libnprdma_preload.so has the name of a component, by a link, where UCX loads
 * it as a plugin. It is none. */
static int nprdma_witness_is_link(const char *path)
{
    char real[PATH_MAX];

    return (realpath(path, real) != NULL) &&
           (strstr(real, "/libuct_nprdma.so") == NULL);
}

static int
nprdma_witness_library(struct dl_phdr_info *info, size_t size, void *arg)
{
    const char *slash         = strrchr(info->dlpi_name, '/');
    const char *name          = (slash == NULL) ? info->dlpi_name : slash + 1;
    nprdma_witness_t *witness = arg;

    (void)size;
    if (!strncmp(name, "libuct.so", 9)) {
        strncpy(witness->uct, info->dlpi_name, sizeof(witness->uct) - 1);
    } else if (!strncmp(name, "libuct_nprdma.so", 16)) {
        if (!nprdma_witness_is_link(info->dlpi_name)) {
            witness->has_component = 1;
        }
    } else if (!strncmp(name, "libmpi.so", 9) ||
               !strncmp(name, "libmpich.so", 11) ||
               !strncmp(name, "liboshmem.so", 12)) {
        witness->has_mpi = 1;
    }
    return 0;
}

__attribute__((constructor)) static void nprdma_witness_start(void)
{
    nprdma_record_t record;

    nprdma_witness_owner = getpid();
    if ((nprdma_record_rank() != NULL) &&
        nprdma_record_begin(&record, NPRDMA_RECORD_STARTED)) {
        nprdma_record_send(&record);
    }
}

__attribute__((destructor)) static void nprdma_witness_end(void)
{
    nprdma_witness_t witness = {};
    nprdma_record_t record;

    if ((getpid() != nprdma_witness_owner) ||
        !nprdma_record_begin(&record, NPRDMA_RECORD_ENDED)) {
        return;
    }

    dl_iterate_phdr(nprdma_witness_library, &witness);
    if ((nprdma_record_rank() == NULL) && (witness.uct[0] == '\0') &&
        !witness.has_mpi) {
        return;
    }

    nprdma_record_add(&record, "mpi", "%d", witness.has_mpi);
    nprdma_record_add(&record, "component", "%d", witness.has_component);
    if (witness.uct[0] != '\0') {
        nprdma_record_add(&record, "uct", "%s", witness.uct);
    }
    nprdma_record_send(&record);
}
