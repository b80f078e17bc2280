/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#define _GNU_SOURCE
#include "rmem_preload.h"
#include "rmem_heap.h"
#include "rmem_wire.h"

#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <malloc.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/param.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    RMEM_PRELOAD_FAILED = 125, /* As of env(1) and others */
    RMEM_PRELOAD_MIN_FD = 64   /* Lower ones are the program's */
};

/* Whether large allocations go to the window */
enum {
    RMEM_PRELOAD_NEVER,   /* Not by rmem-run, or a child */
    RMEM_PRELOAD_WANTED,  /* From the first one on */
    RMEM_PRELOAD_OPENING, /* A thread does it; those of others are local */
    RMEM_PRELOAD_OPEN
};

rmem_preload_t rmem_preload;

/* Of the linker: what RMEM_PRELOAD_REAL has defined */
extern const rmem_preload_real_t __start_rmem_preload_reals[];
extern const rmem_preload_real_t __stop_rmem_preload_reals[];

/* What rmem-run has set */
static struct {
    size_t     size, cache, min;
    unsigned   flags; /* Of rmem_params_t */
    int        is_stats;
    char       server[256];
    const char *token;
} rmem_preload_run;

static _Atomic int     rmem_preload_state;
static rmem_heap_t     *rmem_preload_heap;
static pthread_mutex_t rmem_preload_lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_bool     rmem_preload_is_full; /* It was said */
static int             rmem_preload_stderr = STDERR_FILENO;
static struct {
    const char *start;
    size_t     bytes;
} rmem_preload_libc; /* Its code */
static __typeof__(&rmem_discard) rmem_preload_discard;
static __typeof__(&rmem_stats)   rmem_preload_stats;
static __thread int    rmem_preload_inside
        __attribute__((tls_model("initial-exec")));


void *rmem_preload_real(const char *name)
{
    void *function = dlsym(RTLD_NEXT, name);

    if (function == NULL) {
        rmem_preload_say("no %s() in this libc", name);
        abort();
    }
    return function;
}

void rmem_preload_say(const char *format, ...)
{
    char text[512];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    dprintf(rmem_preload_stderr, "rmem-run: %s: %s\n",
            program_invocation_short_name, text);
}

bool rmem_preload_is_inside(void)
{
    return (rmem_preload_inside > 0) ||
           ((rmem_preload.is_inside != NULL) && rmem_preload.is_inside());
}


/* ---- the window ---- */

/* The program cannot go on without its memory. librmem has said why. */
static void rmem_preload_failed(int status, void *arg)
{
    _exit(RMEM_PRELOAD_FAILED);
}

/* The window's chunks that have no object. What the server has of them, and the
 * cache, is free for others. */
static void rmem_preload_unused(uint64_t offset, uint64_t length, void *arg)
{
    if (rmem_preload_discard(rmem_preload.rmem, rmem_preload.base + offset,
                             length) != RMEM_OK) {
        rmem_preload_failed(0, NULL);
    }
}

static void *rmem_preload_symbol(const char *name)
{
    static void *library;
    void *symbol;

    if (library == NULL) {
        library = dlopen(RMEM_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    }
    symbol = (library == NULL) ? NULL : dlsym(library, name);
    if (symbol == NULL) {
        rmem_preload_say("%s", dlerror());
        _exit(RMEM_PRELOAD_FAILED);
    }
    return symbol;
}

/* Returns the state */
static int rmem_preload_open_window(void)
{
    rmem_params_t params = {
        .size        = sizeof(params),
        .bytes       = rmem_preload_run.size,
        .cache_bytes = rmem_preload_run.cache,
        .token_file  = rmem_preload_run.token,
        .flags       = rmem_preload_run.flags,
        .on_error    = rmem_preload_failed
    };
    __typeof__(&rmem_open) open = rmem_preload_symbol("rmem_open");
    __typeof__(&rmem_map) map   = rmem_preload_symbol("rmem_map");
    size_t skipped = 0;
    void *base;
    int status;

    rmem_preload_discard   = rmem_preload_symbol("rmem_discard");
    rmem_preload_stats     = rmem_preload_symbol("rmem_stats");
    rmem_preload.sigaction = rmem_preload_symbol("rmem_sigbus_action");
    rmem_preload.is_inside = rmem_preload_symbol("rmem_sigbus_is_inside");

    status = open(rmem_preload_run.server, &params, &rmem_preload.rmem);
    if (status == RMEM_ERR_FULL) {
        rmem_preload_say("all memory is local");
        return RMEM_PRELOAD_NEVER;
    }
    if (status == RMEM_OK) {
        status = map(rmem_preload.rmem, &base);
    }
    if (status == RMEM_OK) {
        /* What is aligned for the heap is to be aligned in memory */
        skipped = MIN(-(uintptr_t)base % RMEM_HEAP_CHUNK, params.bytes);
        rmem_preload_heap = rmem_heap_create(params.bytes - skipped,
                                             rmem_preload_unused, NULL);
    }
    if (rmem_preload_heap == NULL) {
        rmem_preload_say("no window");
        _exit(RMEM_PRELOAD_FAILED);
    }

    if (rmem_preload_run.is_stats) {
        /* Many programs close theirs before they end */
        rmem_preload_stderr = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC,
                                    RMEM_PRELOAD_MIN_FD);
    }
    rmem_preload.base  = (char*)base + skipped;
    rmem_preload.bytes = params.bytes - skipped;
    return RMEM_PRELOAD_OPEN;
}

/* A program may choose the number of a descriptor, as shells do for those of
 * scripts: that would replace one of UCX, so these get high numbers */
static int rmem_preload_open(void)
{
    int low[RMEM_PRELOAD_MIN_FD];
    int count = 0;
    int fd, state;

    while (((fd = open("/", O_PATH | O_CLOEXEC)) >= 0) &&
           (fd < RMEM_PRELOAD_MIN_FD)) {
        low[count++] = fd;
    }
    if (fd >= 0) {
        close(fd);
        state = rmem_preload_open_window();
    }
    while (count > 0) {
        close(low[--count]);
    }
    /* The program may have no higher ones */
    return (fd >= 0) ? state : rmem_preload_open_window();
}

/* Whether there is a window, after this call. Without the mutex, which a thread
 * may have while it loads a library: the loader's lock is needed here as well.
 */
static bool rmem_preload_try(void)
{
    int state = RMEM_PRELOAD_WANTED;

    if (atomic_compare_exchange_strong(&rmem_preload_state, &state,
                                       RMEM_PRELOAD_OPENING)) {
        ++rmem_preload_inside;
        state = rmem_preload_open();
        atomic_store(&rmem_preload_state, state);
        --rmem_preload_inside;
    }
    return state == RMEM_PRELOAD_OPEN;
}

/* Without the mutex: nothing here can be waited for */
static void rmem_preload_forked(void)
{
    atomic_store(&rmem_preload_state, RMEM_PRELOAD_NEVER);
}

/* Called for each library: finds the code that has an address */
static int rmem_preload_library(struct dl_phdr_info *library, size_t size,
                                void *address)
{
    const ElfW(Phdr) *part = library->dlpi_phdr;
    const ElfW(Phdr) *end  = part + library->dlpi_phnum;
    const char *start;

    for (; part < end; ++part) {
        start = (const char*)library->dlpi_addr + part->p_vaddr;
        if ((size_t)((const char*)address - start) < part->p_memsz) {
            rmem_preload_libc.start = start;
            rmem_preload_libc.bytes = part->p_memsz;
            return 1;
        }
    }
    return 0;
}

/* rmem-run runs a program of its own to see whether a window opens */
__attribute__((constructor))
static void rmem_preload_init(void)
{
    const char *text = getenv("RMEM_RUN");
    const rmem_preload_real_t *real;
    int end = 0;

    if ((text == NULL) ||
        (sscanf(text, "%zu %zu %zu %u %d %255s %n", &rmem_preload_run.size,
                &rmem_preload_run.cache, &rmem_preload_run.min,
                &rmem_preload_run.flags, &rmem_preload_run.is_stats,
                rmem_preload_run.server, &end) < 6)) {
        return;
    }

    rmem_preload_run.token = strdup(text + end);
    /* Its address here may be in the program, if that uses it, too */
    dl_iterate_phdr(rmem_preload_library, dlsym(RTLD_NEXT, "getpid"));
    for (real = __start_rmem_preload_reals; real < __stop_rmem_preload_reals;
         ++real) {
        *real->function = dlsym(RTLD_NEXT, real->name);
    }
    pthread_atfork(NULL, NULL, rmem_preload_forked);
    atomic_store(&rmem_preload_state, RMEM_PRELOAD_WANTED);
    if (getenv("RMEM_RUN_CHECK") != NULL) {
        rmem_preload_try();
        _exit(0);
    }
}

/* Before the destructors of UCX: what frees memory later has no window */
__attribute__((destructor))
static void rmem_preload_fini(void)
{
    rmem_stats_t stats;

    if ((atomic_exchange(&rmem_preload_state, RMEM_PRELOAD_NEVER) ==
         RMEM_PRELOAD_OPEN) && rmem_preload_run.is_stats) {
        rmem_preload_stats(rmem_preload.rmem, &stats);
        rmem_preload_say("faults %lu hits %lu fetched %lu virgin %lu evicted "
                         "%lu dirty %lu untwinned %lu messages %lu "
                         "fetched_bytes %lu sent_bytes %lu saved_bytes %ld",
                         stats.faults, stats.hits, stats.fetched_pages,
                         stats.virgin_pages, stats.evicted_pages,
                         stats.dirty_pages, stats.untwinned_pages,
                         stats.messages, stats.fetched_pages * RMEM_PAGE_SIZE,
                         stats.sent_bytes, (long)(stats.dirty_pages *
                         RMEM_PAGE_SIZE - stats.sent_bytes));
    }
}


/* ---- allocations ---- */

/* What libc allocates for itself it gives to the kernel */
static bool rmem_preload_is_libc(const void *caller)
{
    return (size_t)((const char*)caller - rmem_preload_libc.start) <
           rmem_preload_libc.bytes;
}

/* NULL: the memory is to be local. caller: where the return goes to */
static void *rmem_preload_alloc(size_t size, size_t align, bool is_zero,
                                const void *caller)
{
    uint64_t offset;
    int is_new = 0;

    if ((size < rmem_preload_run.min) || rmem_preload_is_inside() ||
        rmem_preload_is_libc(caller) || !rmem_preload_try()) {
        return NULL;
    }

    pthread_mutex_lock(&rmem_preload_lock);
    offset = rmem_heap_alloc(rmem_preload_heap, size, align, &is_new);
    pthread_mutex_unlock(&rmem_preload_lock);
    if (offset == RMEM_HEAP_NONE) {
        if (!atomic_exchange(&rmem_preload_is_full, true)) {
            rmem_preload_say("no room for %zu bytes in the window (--size): "
                             "such memory is local", size);
        }
        return NULL;
    }
    if (is_zero && !is_new) {
        memset(rmem_preload.base + offset, 0, size);
    }
    return rmem_preload.base + offset;
}

/* In a child the memory is gone already */
static void rmem_preload_free(void *ptr)
{
    uint64_t offset = (char*)ptr - rmem_preload.base;
    int error       = errno;

    if (atomic_load(&rmem_preload_state) != RMEM_PRELOAD_OPEN) {
        return;
    }

    pthread_mutex_lock(&rmem_preload_lock);
    if (rmem_heap_size(rmem_preload_heap, offset) == 0) {
        rmem_preload_say("free(): %p is no allocation", ptr);
        abort();
    }
    rmem_heap_free(rmem_preload_heap, offset);
    pthread_mutex_unlock(&rmem_preload_lock);
    errno = error;
}

RMEM_PRELOAD_EXPORT
void *malloc(size_t size)
{
    void *ptr = rmem_preload_alloc(size, 1, false,
                                   __builtin_return_address(0));

    return (ptr != NULL) ? ptr : RMEM_PRELOAD_REAL(malloc)(size);
}

RMEM_PRELOAD_EXPORT
void free(void *ptr)
{
    if (rmem_preload_owns(ptr)) {
        rmem_preload_free(ptr);
    } else {
        RMEM_PRELOAD_REAL(free)(ptr);
    }
}

RMEM_PRELOAD_EXPORT
void *calloc(size_t count, size_t size)
{
    void *ptr = NULL;
    size_t bytes;

    if (!__builtin_mul_overflow(count, size, &bytes)) {
        ptr = rmem_preload_alloc(bytes, 1, true, __builtin_return_address(0));
    }
    return (ptr != NULL) ? ptr : RMEM_PRELOAD_REAL(calloc)(count, size);
}

/* Without the mutex, which a thread of the parent may have in a child: nothing
 * changes the size of an allocation */
RMEM_PRELOAD_EXPORT
size_t malloc_usable_size(void *ptr)
{
    return rmem_preload_owns(ptr) ?
           rmem_heap_size(rmem_preload_heap, (char*)ptr - rmem_preload.base) :
           RMEM_PRELOAD_REAL(malloc_usable_size)(ptr);
}

RMEM_PRELOAD_EXPORT
void *realloc(void *ptr, size_t size)
{
    bool is_window = rmem_preload_owns(ptr);
    size_t old     = malloc_usable_size(ptr);
    void *copy;

    if (is_window && (size <= old) && (size >= old / 2)) {
        return ptr;
    }
    if (is_window && (size == 0)) {
        free(ptr);
        return NULL;
    }

    copy = rmem_preload_alloc(size, 1, false, __builtin_return_address(0));
    if (copy == NULL) {
        if (!is_window) {
            return RMEM_PRELOAD_REAL(realloc)(ptr, size);
        }
        copy = RMEM_PRELOAD_REAL(malloc)(size);
    }
    if ((copy != NULL) && (ptr != NULL)) {
        memcpy(copy, ptr, MIN(old, size));
        free(ptr);
    }
    return copy;
}

RMEM_PRELOAD_EXPORT
void *reallocarray(void *ptr, size_t count, size_t size)
{
    size_t bytes;

    if (__builtin_mul_overflow(count, size, &bytes)) {
        errno = ENOMEM;
        return NULL;
    }
    return realloc(ptr, bytes);
}

RMEM_PRELOAD_EXPORT
void *memalign(size_t align, size_t size)
{
    void *ptr = NULL;

    if ((align & (align - 1)) == 0) {
        ptr = rmem_preload_alloc(size, align + !align, false,
                                 __builtin_return_address(0));
    }
    return (ptr != NULL) ? ptr : RMEM_PRELOAD_REAL(memalign)(align, size);
}

RMEM_PRELOAD_EXPORT
void *aligned_alloc(size_t align, size_t size)
{
    return memalign(align, size);
}

RMEM_PRELOAD_EXPORT
int posix_memalign(void **ptr_p, size_t align, size_t size)
{
    void *ptr;

    if ((align % sizeof(void*) != 0) || ((align & (align - 1)) != 0) ||
        (align == 0)) {
        return EINVAL;
    }

    ptr = memalign(align, size);
    if (ptr == NULL) {
        return ENOMEM;
    }
    *ptr_p = ptr;
    return 0;
}


/* ---- threads and connections of librmem and of UCX ---- */

typedef struct {
    void *(*function)(void*);
    void *arg;
} rmem_preload_thread_t;

static void *rmem_preload_thread(void *arg)
{
    rmem_preload_thread_t thread = *(rmem_preload_thread_t*)arg;

    free(arg);
    ++rmem_preload_inside;
    return thread.function(thread.arg);
}

RMEM_PRELOAD_EXPORT
int pthread_create(pthread_t *thread, const pthread_attr_t *attr,
                   void *(*function)(void*), void *arg)
{
    rmem_preload_thread_t *inside;

    if (!rmem_preload_is_inside()) {
        return RMEM_PRELOAD_REAL(pthread_create)(thread, attr, function, arg);
    }

    inside = malloc(sizeof(*inside));
    if (inside == NULL) {
        return EAGAIN;
    }
    *inside = (rmem_preload_thread_t){function, arg};
    return RMEM_PRELOAD_REAL(pthread_create)(thread, attr, rmem_preload_thread,
                                             inside);
}

/* A program that this one executes, and that lives longer, would keep the
 * connection: the server would not see that the session has ended */
RMEM_PRELOAD_EXPORT
int socket(int domain, int type, int protocol)
{
    return RMEM_PRELOAD_REAL(socket)(domain, rmem_preload_is_inside() ?
                                     type | SOCK_CLOEXEC : type, protocol);
}
