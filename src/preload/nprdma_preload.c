/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * libnprdma_preload.so makes UCX load the component that was built for it. An
 * installation has one component for each UCX that it serves, in
 * ucx-VERSION/libuct_nprdma.so.0 beside this library. There are two ways in:
 * from LD_PRELOAD this library interposes uct_query_components(), which every
 * user of UCT calls first; and UCX 1.22 and later load it as a plugin, by the
 * name of a component. It needs libc alone, so the only cost to a process
 * without UCX is one small mapping.
 */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include <dirent.h>
#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/param.h>

#define PRELOAD_UCT "libuct.so.0"
#define PRELOAD_UCP "libucp.so.0"

/* ucs_status_t is packed to one byte; these are the values of UCS_OK and
 * UCS_ERR_UNSUPPORTED */
#define PRELOAD_OK              0
#define PRELOAD_ERR_UNSUPPORTED (-22)

typedef signed char preload_status_t;
typedef preload_status_t (*preload_query_t)(void ***components_p,
                                            unsigned *num_components_p);
typedef void (*preload_ucp_version_t)(unsigned *major, unsigned *minor,
                                      unsigned *release);

typedef struct {
    unsigned major;
    unsigned minor;
    unsigned release;
} preload_ucx_t;

preload_status_t uct_query_components(void ***components_p,
                                      unsigned *num_components_p);
preload_status_t ucs_module_global_init(void);

/* Of UCX's methods to allocate memory, mmap before huge pages: with these, one
 * page in a hundred that a program touches makes all of a window resident. Also
 * in nprdma.env. */
#define PRELOAD_ALLOC_PRIO "md:sysv,md:posix,md:*,mmap,thp,heap"

static preload_query_t preload_query;
static pthread_once_t  preload_once = PTHREAD_ONCE_INIT;

/* UCX reads its variables before it looks for components. The user's own value
 * stays. */
__attribute__((constructor)) static void preload_set_defaults(void)
{
    setenv("UCX_ALLOC_PRIO", PRELOAD_ALLOC_PRIO, 0);
}

/* The UCX that a component is for, from the name of its directory. Returns 0
 * for any other name. */
static int preload_parse(const char *name, preload_ucx_t *ucx)
{
    int length = 0;

    if ((sscanf(name, "ucx-%u.%u.%u%n", &ucx->major, &ucx->minor, &ucx->release,
                &length) != 3) ||
        (length == 0)) {
        return 0;
    }

    return name[length] == '\0';
}

static int preload_is_component(const struct dirent *entry)
{
    preload_ucx_t ucx;

    return preload_parse(entry->d_name, &ucx);
}

/* How well a component fits: 2 for its own UCX, 1 for another release of it,
 * with which the component compares the tables itself, 0 for any other */
static int preload_fits(const preload_ucx_t *built, const preload_ucx_t *ucx)
{
    if ((built->major != ucx->major) || (built->minor != ucx->minor)) {
        return 0;
    }

    return (built->release == ucx->release) ? 2 : 1;
}

/* Cuts the last part off a path; returns 0 if it has none */
static int preload_parent(char *path)
{
    char *slash = strrchr(path, '/');

    if (slash == NULL) {
        return 0;
    }

    *slash = '\0';
    return 1;
}

/* The directory of a symbol's library: of the file, not of a link to it */
static int preload_directory(const void *symbol, char *path)
{
    Dl_info info;

    return dladdr(symbol, &info) && (info.dli_fname != NULL) &&
           (realpath(info.dli_fname, path) != NULL) && preload_parent(path);
}

/* Finds out which UCX is loaded. Only libucp has a version. A program that uses
 * UCT alone does not load it, so it is taken from beside libuct. Its handle is
 * kept open as well. Returns 0 if there is none. */
static int preload_find_ucx(void *uct, const char *libdir, preload_ucx_t *ucx)
{
    preload_ucp_version_t get_version = NULL;
    char path[PATH_MAX + sizeof("/" PRELOAD_UCP)];
    void *ucp;

    ucp = dlopen(PRELOAD_UCP, RTLD_LAZY | RTLD_NOLOAD);
    if ((ucp == NULL) && (libdir[0] != '\0')) {
        snprintf(path, sizeof(path), "%s/" PRELOAD_UCP, libdir);
        ucp = dlopen(path, RTLD_LAZY | RTLD_LOCAL);
    }
    if (ucp != NULL) {
        get_version = (preload_ucp_version_t)dlsym(ucp, "ucp_get_version");
    }
    if (get_version == NULL) {
        return 0;
    }

    get_version(&ucx->major, &ucx->minor, &ucx->release);
    return 1;
}

static void preload_print_names(struct dirent **names, int count)
{
    int i;

    for (i = 0; i < count; ++i) {
        fprintf(stderr, "%s%s", i ? ", " : "",
                names[i]->d_name + strlen("ucx-"));
    }
}

/* One line that says which UCX this is, what is installed, and what to do */
static void preload_print_none(const preload_ucx_t *ucx, const char *libdir,
                               const char *base, struct dirent **names,
                               int count)
{
    flockfile(stderr);
    fprintf(stderr, "nprdma: error: transport not loaded: ");
    if (ucx == NULL) {
        fprintf(stderr, "the UCX in %s has no " PRELOAD_UCP ", so its version "
                        "is unknown; NPRDMA_COMPONENT selects a component of "
                        "%s", libdir, base);
    } else {
        fprintf(stderr, "no component for UCX %u.%u.%u (%s) in %s, ",
                ucx->major, ucx->minor, ucx->release, libdir, base);
        fprintf(stderr, (count > 0) ? "only for " : "nor any other");
        preload_print_names(names, count);
        fprintf(stderr, "; to add it: nprdma-build-for-ucx --prefix DIR");
    }
    fprintf(stderr, "\n");
    funlockfile(stderr);
}

/* The best of the installed components; NULL if none fits. If nobody knows the
 * version, a single one is tried: it compares the tables itself. */
static const char *preload_choose(const preload_ucx_t *ucx,
                                  struct dirent **names, int count)
{
    const char *best = NULL;
    int best_fit     = 0;
    preload_ucx_t built;
    int i, fit;

    if (ucx == NULL) {
        return (count == 1) ? names[0]->d_name : NULL;
    }

    /* Of other releases the newest, which is the last */
    for (i = 0; i < count; ++i) {
        preload_parse(names[i]->d_name, &built);
        fit = preload_fits(&built, ucx);
        if ((fit > 0) && (fit >= best_fit)) {
            best     = names[i]->d_name;
            best_fit = fit;
        }
    }
    return best;
}

/* Puts the path of the component for this UCX into a buffer. Looks beside this
 * library, so that a moved or staged installation works; if no component is
 * there, in the configured directory. */
static int preload_component_path(void *uct, char *buffer, size_t size)
{
    char base[PATH_MAX] = "", libdir[PATH_MAX] = "";
    struct dirent **names = NULL;
    int count             = 0;
    preload_ucx_t ucx, *known;
    const char *name;
    int i;

    /* The address of uct_query_components() may be libuct's */
    if (preload_directory(&preload_once, base)) {
        count = scandir(base, &names, preload_is_component, versionsort);
    }
    if (count <= 0) {
        free(names);
        names = NULL;
        snprintf(base, sizeof(base), "%s", NPRDMA_COMPONENTS);
        count = scandir(base, &names, preload_is_component, versionsort);
    }
    count = MAX(count, 0);

    preload_directory((const void*)preload_query, libdir);
    known = preload_find_ucx(uct, libdir, &ucx) ? &ucx : NULL;
    name  = preload_choose(known, names, count);
    if (name != NULL) {
        snprintf(buffer, size, "%s/%s/libuct_nprdma.so.0", base, name);
    } else {
        preload_print_none(known, libdir, base, names, count);
    }

    for (i = 0; i < count; ++i) {
        free(names[i]);
    }
    free(names);
    return name != NULL;
}

static void preload_load(void)
{
    const char *path = secure_getenv("NPRDMA_COMPONENT");
    char buffer[PATH_MAX + NAME_MAX + sizeof("//libuct_nprdma.so.0")];
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

    if (path == NULL) {
        if (!preload_component_path(uct, buffer, sizeof(buffer))) {
            return;
        }
        path = buffer;
    }

    if (dlopen(path, RTLD_NOW | RTLD_LOCAL) == NULL) {
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

/**
 * UCX calls the function of this name in each plugin after it has loaded it:
 * loads the component, unless uct_query_components() above has.
 *
 * @return UCS_OK. If there is no component, an error line has been printed, and
 *         UCX goes on without it.
 */
__attribute__((visibility("default"))) preload_status_t
ucs_module_global_init(void)
{
    pthread_once(&preload_once, preload_load);
    return PRELOAD_OK;
}
