/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * libnprdma_preload.so: makes a UCX older than 1.22, which loads only the
 * components it was built with, load ours too. Put in LD_PRELOAD it stands in
 * front of uct_query_components(), the first thing every user of UCT calls, and
 * opens the component before it passes the call on. It needs libc alone, so a
 * process without UCX gains nothing but one small mapping.
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

/* Where the component is, seen from the directory of this library */
#define PRELOAD_RELATIVE "/../ucx/libuct_nprdma.so.0"

/* ucs_status_t is packed to one byte; this is its UCS_ERR_UNSUPPORTED */
#define PRELOAD_ERR_UNSUPPORTED (-22)

typedef signed char preload_status_t;
typedef preload_status_t (*preload_query_t)(void ***components_p,
                                            unsigned *num_components_p);

preload_status_t uct_query_components(void ***components_p,
                                      unsigned *num_components_p);

static preload_query_t preload_query;
static pthread_once_t  preload_once = PTHREAD_ONCE_INIT;

/* The component in the same installation as this library, so that a moved or
 * staged installation works; else where it was configured to be. */
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

    /* Not RTLD_NEXT: where a plug-in of the program brought UCX in, libuct is
     * in no scope that is searched from here. The handle is kept. */
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
 * Stands in for the function of this name in libuct: loads the component at the
 * first call, then calls the real one.
 *
 * @param components_p     As in libuct: gets the array of components.
 * @param num_components_p As in libuct: gets their number.
 *
 * @return What the real one returns; UCS_ERR_UNSUPPORTED if there is none.
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
