/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#define _GNU_SOURCE
#include "rmem_sigbus.h"
#include "rmem.h"
#include "rmem_side.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

enum {
    RMEM_SIGBUS_MAX = 16 /* Windows of a process */
};

/* A thread that faults in a window knows that this one stays, so the handler
 * needs no lock */
typedef struct {
    _Atomic(char*)        base; /* NULL: unused */
    size_t                bytes;
    rmem_sigbus_resolve_t resolve;
    void                  *arg;
} rmem_sigbus_range_t;

static rmem_sigbus_range_t rmem_sigbus_ranges[RMEM_SIGBUS_MAX];

static pthread_mutex_t  rmem_sigbus_lock = PTHREAD_MUTEX_INITIALIZER;
static bool             rmem_sigbus_ready;    /* The handler was installed */
static struct sigaction rmem_sigbus_previous; /* What it calls for others */

__thread int rmem_inside __attribute__((tls_model("initial-exec")));

int rmem_sigbus_is_inside(void)
{
    return rmem_inside;
}

void rmem_sigbus_others(sigset_t *signals)
{
    sigfillset(signals);
    sigdelset(signals, SIGBUS);
    sigdelset(signals, SIGSEGV);
    sigdelset(signals, SIGILL);
    sigdelset(signals, SIGFPE);
    sigdelset(signals, SIGTRAP);
    sigdelset(signals, SIGABRT);
}

static rmem_sigbus_range_t *rmem_sigbus_range(const void *address)
{
    rmem_sigbus_range_t *range = rmem_sigbus_ranges;
    rmem_sigbus_range_t *end   = range + RMEM_SIGBUS_MAX;
    const char          *base;

    for (; range < end; ++range) {
        base = range->base;
        if ((base != NULL) &&
            ((size_t)((const char*)address - base) < range->bytes)) {
            return range;
        }
    }
    return NULL;
}


/* ---- the handler ---- */

/* Whether an access was a write. A read that is taken for one only costs time.
 */
static bool rmem_sigbus_is_write(const void *context)
{
    const mcontext_t *machine = &((const ucontext_t*)context)->uc_mcontext;
#ifdef __x86_64__

    return machine->gregs[REG_ERR] & 2;
#else
    const struct _aarch64_ctx *head = (const void*)machine->__reserved;

    while ((head->magic != 0) && (head->magic != ESR_MAGIC)) {
        head = (const void*)((const char*)head + head->size);
    }
    return (head->magic == 0) ||
           ((((const struct esr_context*)head)->esr >> 6) & 1);
#endif
}

/* As without this handler. The default action comes when the instruction is
 * repeated, or the signal that was sent is raised again and unblocked. */
static void rmem_sigbus_chain(int sig, siginfo_t *info, void *context)
{
    struct sigaction action = rmem_sigbus_previous;

    if ((action.sa_handler != SIG_DFL) && (action.sa_handler != SIG_IGN)) {
        if (action.sa_flags & SA_RESETHAND) {
            rmem_sigbus_previous.sa_handler = SIG_DFL;
        }
        action.sa_sigaction(sig, info, context);
        return;
    }

    if ((action.sa_handler == SIG_DFL) || (info->si_code > 0)) {
        ++rmem_inside;
        action.sa_handler = SIG_DFL;
        sigaction(sig, &action, NULL);
        --rmem_inside;
        if (info->si_code <= 0) {
            raise(sig);
        }
    }
}

static void rmem_sigbus_handler(int sig, siginfo_t *info, void *context)
{
    rmem_sigbus_range_t *range = (info->si_code != BUS_ADRERR) ? NULL :
                                 rmem_sigbus_range(info->si_addr);
    int saved_errno            = errno;

    if ((range == NULL) ||
        (range->resolve(range->arg, info->si_addr,
                        rmem_sigbus_is_write(context)) != RMEM_OK)) {
        rmem_sigbus_chain(sig, info, context);
    }
    errno = saved_errno;
}

/* The system call: hooks of memory events concern the program's calls. The file
 * has no page. */
void *rmem_sigbus_forbid(void *address, size_t bytes, int flags)
{
    int fd    = memfd_create("rmem", MFD_CLOEXEC);
    void *ret = (void*)syscall(SYS_mmap, address, bytes, PROT_READ | PROT_WRITE,
                               MAP_SHARED | flags, fd, 0);

    close(fd);
    return ret;
}

static int rmem_sigbus_refuse(void *arg, const void *address, bool is_write)
{
    return rmem_error(RMEM_ERR_UNSUPPORTED, "a child of fork() used memory "
                      "that its parent has in a window");
}

/* A child has no window, but a handler that says what kills it. Other memory
 * may be there by now. A child of vfork() has its parent's memory, and may
 * touch the window. */
static void rmem_sigbus_forked(void)
{
    rmem_sigbus_range_t *range;

    for (range = rmem_sigbus_ranges;
         range < rmem_sigbus_ranges + RMEM_SIGBUS_MAX; ++range) {
        if ((range->base != NULL) && (range->resolve != rmem_sigbus_refuse) &&
            (rmem_sigbus_forbid(range->base, range->bytes,
                                MAP_FIXED_NOREPLACE) != range->base)) {
            range->base = NULL;
        }
        range->resolve = rmem_sigbus_refuse;
    }
}

/* It stays until the process ends: it may be in the chain of others. It needs a
 * stack of the usual size, so SA_ONSTACK is not set. */
static void rmem_sigbus_install(void)
{
    struct sigaction current;
    struct sigaction action = {
        .sa_sigaction = rmem_sigbus_handler,
        .sa_flags     = SA_SIGINFO | SA_NODEFER | SA_RESTART
    };

    sigaction(SIGBUS, NULL, &current);
    if (current.sa_sigaction != rmem_sigbus_handler) {
        rmem_sigbus_previous = current;
        rmem_sigbus_others(&action.sa_mask);
        sigaction(SIGBUS, &action, NULL);
    }
    if (!rmem_sigbus_ready) {
        pthread_atfork(NULL, NULL, rmem_sigbus_forked);
        rmem_sigbus_ready = true;
    }
}


/* ---- ranges, and what the program wants ---- */

int rmem_sigbus_add(char *base, size_t bytes, rmem_sigbus_resolve_t resolve,
                    void *arg)
{
    rmem_sigbus_range_t *range = rmem_sigbus_ranges;
    rmem_sigbus_range_t *end   = range + RMEM_SIGBUS_MAX;

    pthread_mutex_lock(&rmem_sigbus_lock);
    rmem_sigbus_install();
    for (; (range < end) && (range->base != NULL); ++range) {}
    if (range < end) {
        range->bytes   = bytes;
        range->resolve = resolve;
        range->arg     = arg;
        range->base    = base;
    }
    pthread_mutex_unlock(&rmem_sigbus_lock);
    return (range < end) ? RMEM_OK :
           rmem_error(RMEM_ERR_NOMEM, "this process has %d windows already",
                      RMEM_SIGBUS_MAX);
}

void rmem_sigbus_remove(const char *base)
{
    rmem_sigbus_range_t *range = rmem_sigbus_range(base);

    if (range != NULL) {
        range->base = NULL;
    }
}

int rmem_sigbus_action(const struct sigaction *action, struct sigaction *old)
{
    struct sigaction previous = rmem_sigbus_previous;

    if (!rmem_sigbus_ready) {
        return -1;
    }

    if (action != NULL) {
        rmem_sigbus_previous = *action;
    }
    if (old != NULL) {
        *old = previous;
    }
    return 0;
}
