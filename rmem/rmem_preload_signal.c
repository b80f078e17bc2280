/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* R1 and R2: what would take the window's pages from its handler */

#define _GNU_SOURCE
#undef _FORTIFY_SOURCE
#include "rmem_preload.h"

#include <errno.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/select.h>


const sigset_t *rmem_preload_mask(const sigset_t *set, sigset_t *copy)
{
    if (set == NULL) {
        return NULL;
    }

    *copy = *set;
    sigdelset(copy, SIGBUS);
    return copy;
}

/* What executed the program may have blocked it */
__attribute__((constructor))
static void rmem_preload_unblock(void)
{
    sigset_t bus;

    sigemptyset(&bus);
    sigaddset(&bus, SIGBUS);
    RMEM_PRELOAD_REAL(sigprocmask)(SIG_UNBLOCK, &bus, NULL);
}

RMEM_PRELOAD_EXPORT
int sigaction(int sig, const struct sigaction *action, struct sigaction *old)
{
    struct sigaction copy;

    if (action != NULL) {
        copy = *action;
        sigdelset(&copy.sa_mask, SIGBUS);
        action = &copy;
    }
    if ((sig == SIGBUS) && (rmem_preload.sigaction != NULL) &&
        !rmem_preload_is_inside() &&
        (rmem_preload.sigaction(action, old) == 0)) {
        return 0;
    }
    return RMEM_PRELOAD_REAL(sigaction)(sig, action, old);
}

RMEM_PRELOAD_EXPORT
__sighandler_t signal(int sig, __sighandler_t handler)
{
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    struct sigaction old;

    if (sig != SIGBUS) {
        return RMEM_PRELOAD_REAL(signal)(sig, handler);
    }
    return (sigaction(sig, &action, &old) == 0) ? old.sa_handler : SIG_ERR;
}

/* Handlers run with the mask of a call that waits */
#define RMEM_PRELOAD_MASKED(name, params, ...) \
    RMEM_PRELOAD_EXPORT int name params; \
    int name params \
    { \
        sigset_t copy; \
\
        return RMEM_PRELOAD_REAL(name)(__VA_ARGS__); \
    }
#define MASK rmem_preload_mask(set, &copy)

RMEM_PRELOAD_MASKED(sigprocmask, (int how, const sigset_t *set, sigset_t *old),
                    how, MASK, old)
RMEM_PRELOAD_MASKED(pthread_sigmask,
                    (int how, const sigset_t *set, sigset_t *old),
                    how, MASK, old)
RMEM_PRELOAD_MASKED(sigsuspend, (const sigset_t *set), MASK)
RMEM_PRELOAD_MASKED(ppoll,
                    (struct pollfd *fds, nfds_t count,
                     const struct timespec *timeout, const sigset_t *set),
                    fds, count, timeout, MASK)
RMEM_PRELOAD_MASKED(__ppoll_chk,
                    (struct pollfd *fds, nfds_t count,
                     const struct timespec *timeout, const sigset_t *set,
                     size_t room), fds, count, timeout, MASK, room)
RMEM_PRELOAD_MASKED(pselect,
                    (int count, fd_set *in, fd_set *out, fd_set *other,
                     const struct timespec *timeout, const sigset_t *set),
                    count, in, out, other, timeout, MASK)


/* ---- the mapping ---- */

static int rmem_preload_refuse(const char *call, int error)
{
    rmem_preload_say("%s() of memory in the window is refused", call);
    errno = error;
    return -1;
}

RMEM_PRELOAD_EXPORT
int mprotect(void *address, size_t length, int protection)
{
    return rmem_preload_owns(address) ?
           rmem_preload_refuse("mprotect", EINVAL) :
           RMEM_PRELOAD_REAL(mprotect)(address, length, protection);
}

RMEM_PRELOAD_EXPORT
int mlock(const void *address, size_t length)
{
    return rmem_preload_owns(address) ?
           rmem_preload_refuse("mlock", ENOMEM) :
           RMEM_PRELOAD_REAL(mlock)(address, length);
}

/* Also before there is a window: it could not evict then */
RMEM_PRELOAD_EXPORT
int mlockall(int flags)
{
    return rmem_preload_refuse("mlockall", EPERM);
}
