/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * libnprdma_preload.so makes a UCX before 1.22 load the component. Such a UCX
 * loads only components that it was built with. From LD_PRELOAD this library
 * interposes uct_query_components(), which every user of UCT calls first. It
 * opens the component, then passes the call on. It needs libc alone, so the
 * only cost to a process without UCX is one small mapping.
 */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PRELOAD_UCT "libuct.so.0"

/* Path of the component from the directory of this library */
#define PRELOAD_RELATIVE "/../ucx/libuct_nprdma.so.0"

/* ucs_status_t is packed to one byte; this is the value of
 * UCS_ERR_UNSUPPORTED */
#define PRELOAD_ERR_UNSUPPORTED (-22)

typedef signed char preload_status_t;
typedef preload_status_t (*preload_query_t)(void ***components_p,
                                            unsigned *num_components_p);

preload_status_t uct_query_components(void ***components_p,
                                      unsigned *num_components_p);

static preload_query_t preload_query;
static pthread_once_t  preload_once = PTHREAD_ONCE_INIT;

/* The component of the installation that contains this library, so that a moved
 * or staged installation works; otherwise the configured path */
static const char *preload_component_path(char *buffer, size_t size)
{
    const char *path = secure_getenv("NPRDMA_COMPONENT");
    const char *slash;
    Dl_info self;

    if (path != NULL) {
        return path;
    }

    if (dladdr((void*)uct_query_components, &self) &&
        ((slash = strrchr(self.dli_fname, '/')) != NULL) &&
        ((size_t)(slash - self.dli_fname) + sizeof(PRELOAD_RELATIVE) <= size)) {
        memcpy(buffer, self.dli_fname, slash - self.dli_fname);
        strcpy(buffer + (slash - self.dli_fname), PRELOAD_RELATIVE);
        if (access(buffer, R_OK) == 0) {
            return buffer;
        }
    }

    return NPRDMA_COMPONENT;
}

static void preload_load(void)
{
    char buffer[4096];
    void *uct;

    /* RTLD_NEXT does not find libuct if a plug-in of the program has loaded
     * UCX: libuct is in no scope that is searched from here. The handle is kept
     * open. */
    uct = dlopen(PRELOAD_UCT, RTLD_LAZY | RTLD_NOLOAD);
    if (uct != NULL) {
        preload_query = (preload_query_t)dlsym(uct, "uct_query_components");
    }
    if (preload_query == NULL) {
        fprintf(stderr, "nprdma: error: uct_query_components() was called, but "
                        "no %s is loaded\n", PRELOAD_UCT);
        return;
    }

    if (dlopen(preload_component_path(buffer, sizeof(buffer)),
               RTLD_NOW | RTLD_LOCAL) == NULL) {
        fprintf(stderr, "nprdma: error: transport not loaded: %s\n", dlerror());
    }
}

/**
 * Interposes the function of this name in libuct: loads the component at the
 * first call, then calls the function of libuct.
 *
 * @param [out] components_p      As in libuct: the array of components.
 * @param [out] num_components_p  As in libuct: their number.
 *
 * @return The result of libuct; UCS_ERR_UNSUPPORTED if no libuct is loaded.
 */
__attribute__((visibility("default"))) preload_status_t
uct_query_components(void ***components_p, unsigned *num_components_p)
{
    pthread_once(&preload_once, preload_load);
    if (preload_query == NULL) {
        return PRELOAD_ERR_UNSUPPORTED;
    }

    return preload_query(components_p, num_components_p);
}
