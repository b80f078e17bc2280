/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * As much of libucp as libnprdma_preload.so knows about. Its version is
 * FAKE_UCX_VERSION of the environment.
 */

#include <stdio.h>
#include <stdlib.h>

void ucp_get_version(unsigned *major, unsigned *minor, unsigned *release);

void ucp_get_version(unsigned *major, unsigned *minor, unsigned *release)
{
    const char *version = getenv("FAKE_UCX_VERSION");

    if ((version == NULL) ||
        (sscanf(version, "%u.%u.%u", major, minor, release) != 3)) {
        fprintf(stderr, "FAKE_UCX_VERSION is no version\n");
        abort();
    }
}
