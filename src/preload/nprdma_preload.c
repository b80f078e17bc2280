/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * libnprdma_preload.so makes UCX load the component that was built for it. An
 * installation has one component for each UCX that it serves, in
 * ucx-VERSION/libuct_nprdma.so.0 beside this library. There are two ways in:
 * from LD_PRELOAD this library interposes uct_query_components(), which every
 * user of UCT calls first; and UCX 1.22 and later load it as a plugin, by the
 * name of a component. It needs libc alone, so the only cost to a process
 * without UCX is one small mapping.
 *
 * A process may have several UCX: packages bring copies, which have a suffix in
 * the names of their libraries. Each gets the component that was linked with
 * exactly these, from ucx-VERSION-SUFFIX, or none.
 */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include <nprdma_record_text.h>

#include <dirent.h>
#include <dlfcn.h>
#include <glob.h>
#include <pthread.h>
#include <string.h>
#include <sys/param.h>

#define PRELOAD_QUERY   "uct_query_components"
#define PRELOAD_STATUS  "ucs_status_string" /* of libucs */
#define PRELOAD_MAX_UCX 8

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
    char     suffix[NAME_MAX + 1]; /* "-SUFFIX", or nothing */
} preload_ucx_t;

preload_status_t uct_query_components(void ***components_p,
                                      unsigned *num_components_p);
preload_status_t ucs_module_global_init(void);

/* Of UCX's methods to allocate memory, mmap before huge pages: with these, one
 * page in a hundred that a program touches makes all of a window resident. Also
 * in nprdma.env. */
#define PRELOAD_ALLOC_PRIO "md:sysv,md:posix,md:*,mmap,thp,heap"

/* PRELOAD_STATUS of each UCX that has been served */
static const void     *preload_served[PRELOAD_MAX_UCX];
static pthread_mutex_t preload_lock = PTHREAD_MUTEX_INITIALIZER;

/* The first process of a rank, as RANK/PROCESS */
#define PRELOAD_FIRST "NPRDMA_RUN_FIRST"

static pid_t preload_first; /* this process, if it is the first */

/* A record of a process without a component */
static void preload_record(const char *state, const char *reason)
{
    const char *directory = nprdma_record_directory();
    const char *rank      = nprdma_record_getenv(0);
    nprdma_record_text_t record;
    char path[PATH_MAX];

    if (directory != NULL) {
        snprintf(path, sizeof(path), "%s/rank%.20s-%d", directory,
                 rank ? rank : "", (int)getpid());
        nprdma_record_begin(&record, state);
        nprdma_record_add(&record, "reason", "%s", reason);
        nprdma_record_put(&record, path);
    }
}

/* The first process of each rank, and of the command itself, leaves a record
 * before it uses UCX, and again if it executes another program. It tells a
 * program that does not use UCX from one that did not get this library. Other
 * processes leave none, because a script has many. */
__attribute__((constructor)) static void preload_started(void)
{
    const char *rank = nprdma_record_getenv(0);
    const char *first;
    char self[64];
    int length;

    if (nprdma_record_directory() == NULL) {
        return;
    }

    length = snprintf(self, sizeof(self), "%.20s/", rank ? rank : "");
    snprintf(self + length, 16, "%d", (int)getpid());
    first = getenv(PRELOAD_FIRST);
    if ((first == NULL) || strncmp(first, self, length) ||
        !strcmp(first, self)) {
        setenv(PRELOAD_FIRST, self, 1);
        preload_first = getpid();
        preload_record("started", "");
    }
}

__attribute__((destructor)) static void preload_ended(void)
{
    if (preload_first == getpid()) {
        preload_record("ended", "");
    }
}

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

    snprintf(ucx->suffix, sizeof(ucx->suffix), "%s", name + length);
    return (name[length] == '\0') || (name[length] == '-');
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
    if ((built->major != ucx->major) || (built->minor != ucx->minor) ||
        strcmp(built->suffix, ucx->suffix)) {
        return 0;
    }

    return (built->release == ucx->release) ? 2 : 1;
}

/* The directory of a symbol's library, and the suffix in its name: of the file,
 * not of a link to it. Returns 0 if they are unknown. */
static int preload_directory(const void *symbol, char *path, char *suffix)
{
    Dl_info info;
    char *slash;

    if (!dladdr(symbol, &info) || (info.dli_fname == NULL) ||
        (realpath(info.dli_fname, path) == NULL)) {
        return 0;
    }

    slash = strrchr(path, '/');
    snprintf(suffix, NAME_MAX + 1, "%s", slash + 1 + strcspn(slash + 1, "-."));
    suffix[strcspn(suffix, ".")] = '\0';
    *slash                       = '\0';
    return 1;
}

/* What a library and those that it needs call by a name, whatever the program
 * has of that name. The handle is kept open. */
static void *preload_own_symbol(const void *address, const char *name)
{
    Dl_info info;
    void *lib;

    lib = dladdr(address, &info) ?
          dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD) : NULL;
    if (lib == NULL) {
        lib = dlopen(NULL, RTLD_LAZY); /* The program has no name there */
    }
    return (lib == NULL) ? NULL : dlsym(lib, name);
}

/* Finds out the version of the UCX that has this function in libucs, and the
 * suffix of its libuct. Only libucp has a version. A program that uses UCT
 * alone does not load it, so it is looked for beside libucs, and kept open.
 * Returns 0 if there is none. */
static int preload_find_ucx(const void *status, char *libdir,
                            preload_ucx_t *ucx)
{
    char pattern[PATH_MAX + sizeof("/libucp-*.so*")];
    preload_ucp_version_t get_version = NULL;
    glob_t files                      = {0};
    size_t i;
    void *ucp;

    if (!preload_directory(status, libdir, ucx->suffix)) {
        return 0;
    }

    snprintf(pattern, sizeof(pattern), "%s/libucp%s.so*", libdir,
             ucx->suffix[0] ? "-*" : "");
    glob(pattern, 0, NULL, &files);
    for (i = 0; (i < files.gl_pathc) && (get_version == NULL); ++i) {
        ucp = dlopen(files.gl_pathv[i], RTLD_LAZY | RTLD_LOCAL);
        if ((ucp != NULL) && (dlsym(ucp, PRELOAD_STATUS) == status)) {
            preload_directory(dlsym(ucp, PRELOAD_QUERY), libdir, ucx->suffix);
            get_version = (preload_ucp_version_t)dlsym(ucp, "ucp_get_version");
            get_version(&ucx->major, &ucx->minor, &ucx->release);
        }
    }
    globfree(&files);
    return get_version != NULL;
}

/* One line to standard error and into the record. The record is the last one of
 * this process. */
__attribute__((format(printf, 1, 2)))
static void preload_refuse(const char *format, ...)
{
    char reason[2 * PATH_MAX], line[sizeof(reason) + 64];
    va_list args;

    va_start(args, format);
    vsnprintf(reason, sizeof(reason), format, args);
    va_end(args);
    /* By one call, as the line of nprdma_stats.c */
    snprintf(line, sizeof(line), "nprdma: error: transport not loaded: %s\n",
             reason);
    fputs(line, stderr);
    preload_first = 0;
    preload_record("refused", reason);
}

/* Which UCX this is, what is installed, and what to do */
static void preload_refuse_none(const preload_ucx_t *ucx, const char *libdir,
                                const char *base, struct dirent **names,
                                int count)
{
    char list[1024] = "";
    size_t length   = 0;
    int i;

    if (ucx == NULL) {
        preload_refuse("the UCX in %s has no libucp.so.0, so its version is "
                       "unknown; NPRDMA_COMPONENT selects a component of %s",
                       libdir, base);
        return;
    }

    for (i = 0; (i < count) && (length < sizeof(list)); ++i) {
        length += snprintf(list + length, sizeof(list) - length, "%s %s",
                           i ? "," : "only for",
                           names[i]->d_name + strlen("ucx-"));
    }
    preload_refuse("no component for UCX %u.%u.%u%s (%s) in %s, %s; to add it: "
                   "nprdma-build-for-ucx --prefix DIR%s%s", ucx->major,
                   ucx->minor, ucx->release, ucx->suffix, libdir, base,
                   i ? list : "nor any other", ucx->suffix[0] ? " " : "",
                   ucx->suffix[0] ? libdir : "");
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
static int preload_component_path(const void *status, char *buffer,
                                  size_t size)
{
    char base[PATH_MAX] = "", libdir[PATH_MAX] = "";
    struct dirent **names = NULL;
    int count             = 0;
    preload_ucx_t ucx, *known;
    const char *chosen;
    int i;

    if (preload_directory(&preload_lock, base, ucx.suffix)) {
        count = scandir(base, &names, preload_is_component, versionsort);
    }
    if (count <= 0) {
        free(names);
        names = NULL;
        snprintf(base, sizeof(base), "%s", NPRDMA_COMPONENTS);
        count = scandir(base, &names, preload_is_component, versionsort);
    }
    count = MAX(count, 0);

    known  = preload_find_ucx(status, libdir, &ucx) ? &ucx : NULL;
    chosen = preload_choose(known, names, count);
    if (chosen != NULL) {
        snprintf(buffer, size, "%s/%s/libuct_nprdma.so.0", base, chosen);
    } else {
        preload_refuse_none(known, libdir, base, names, count);
    }

    for (i = 0; i < count; ++i) {
        free(names[i]);
    }
    free(names);
    return chosen != NULL;
}

static void preload_load(const void *status)
{
    const char *path = secure_getenv("NPRDMA_COMPONENT");
    int mode         = RTLD_NOW | RTLD_LOCAL;
    char buffer[PATH_MAX + NAME_MAX + sizeof("//libuct_nprdma.so.0")];
    void *visible;

    if (path == NULL) {
        if (!preload_component_path(status, buffer, sizeof(buffer))) {
            return;
        }
        path = buffer;
    }

    /* If another UCX is visible to all, its symbols must not come first */
    visible = dlsym(RTLD_DEFAULT, PRELOAD_STATUS);
    if ((visible != NULL) && (visible != status)) {
        mode |= RTLD_DEEPBIND;
    }
    if (dlopen(path, mode) == NULL) {
        preload_refuse("%s", dlerror());
    }
}

/* Loads the component for the UCX of a library, once */
static void preload_serve(const void *address)
{
    const void *status = preload_own_symbol(address, PRELOAD_STATUS);
    int i;

    pthread_mutex_lock(&preload_lock);
    for (i = 0; (i < PRELOAD_MAX_UCX) && (preload_served[i] != status); ++i) {
        if (preload_served[i] == NULL) {
            preload_served[i] = status;
            preload_load(status);
            break;
        }
    }
    pthread_mutex_unlock(&preload_lock);
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
    preload_query_t query;

    /* What is called without this library. If a plug-in of the program has
     * loaded UCX, libuct is in no scope that is searched from here. */
    query = (preload_query_t)dlsym(RTLD_NEXT, PRELOAD_QUERY);
    if (query == NULL) {
        query = (preload_query_t)preload_own_symbol(__builtin_return_address(0),
                                                    PRELOAD_QUERY);
    }
    if (query == NULL) {
        fprintf(stderr, "nprdma: error: " PRELOAD_QUERY "() was called, but no "
                        "libuct is loaded\n");
        return PRELOAD_ERR_UNSUPPORTED;
    }

    preload_serve((const void*)query);
    return query(components_p, num_components_p);
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
    preload_serve(__builtin_return_address(0));
    return PRELOAD_OK;
}
