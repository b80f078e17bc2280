/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifdef HAVE_CONFIG_H
#  include "config.h"
#endif

#include "nprdma_service_int.h"

#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <time.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>


/* While the application progresses the thread only looks in now and then. A
 * request waits for at most two of these when progress stops. */
#define UCT_NPRDMA_SERVICE_BACKOFF_NS   300000

/* How long the thread waits for progress to be done with a few requests */
#define UCT_NPRDMA_SERVICE_RETRY_NS     20000

/* The time slice that the thread asks for; 100 us is the shortest there is */
#define UCT_NPRDMA_SERVICE_SLICE_NS     100000


/* The first version of the kernel's structure: libc 2.36 does not declare it,
 * and the kernel's own header cannot be included next to <sched.h>. */
typedef struct uct_nprdma_sched_attr {
    uint32_t size;
    uint32_t policy;
    uint64_t flags;
    int32_t  nice;
    uint32_t priority;
    uint64_t runtime;  /* Of SCHED_OTHER: the slice, in nanoseconds */
    uint64_t deadline;
    uint64_t period;
} uct_nprdma_sched_attr_t;


void uct_nprdma_service_thread_wakeup(uct_nprdma_service_t *service)
{
    uint64_t one = 1;
    ssize_t ret  = write(service->wakeup_fd, &one, sizeof(one));

    /* Can only fail when the counter is full, and then it is awake */
    (void)ret;
}

/* Progress executes a few requests at a time. There is no hurry either: while
 * it does, the thread is not needed. */
static void uct_nprdma_service_begin(uct_nprdma_service_t *service)
{
    struct timespec interval = { .tv_nsec = UCT_NPRDMA_SERVICE_RETRY_NS };

    while (!uct_nprdma_service_try_begin(service)) {
        nanosleep(&interval, NULL);
    }
    service->by_thread = 1;
}

static int uct_nprdma_service_drain(uct_nprdma_service_t *service)
{
    int blocked;

    uct_nprdma_service_begin(service);
    while (uct_nprdma_service_run(service, UCT_NPRDMA_SERVICE_MAX_REQUESTS,
                                  &blocked) > 0) {
        /* Let others have a turn */
        uct_nprdma_service_end(service);
        uct_nprdma_service_begin(service);
    }
    blocked = blocked || service->attention || (service->num_probes > 0);
    uct_nprdma_service_end(service);
    return blocked;
}

/* Ask for an event, and make sure that there is nothing left without one */
static void uct_nprdma_service_arm(uct_nprdma_service_t *service)
{
    ibv_req_notify_cq(service->recv_cq, 0);
    if (uct_nprdma_service_drain(service)) {
        ibv_req_notify_cq(service->send_cq, 0);
        uct_nprdma_service_drain(service);
    }
}

static void uct_nprdma_service_get_events(uct_nprdma_service_t *service)
{
    struct ibv_cq *cq;
    void *cq_context;
    uint64_t value;
    ssize_t ret;

    while (service->md->super.verbs->get_cq_event(service->channel, &cq,
                                            &cq_context) == 0) {
        service->md->super.verbs->ack_cq_events(cq, 1);
    }

    ret = read(service->wakeup_fd, &value, sizeof(value));
    (void)ret; /* Not readable if the event was one of the channel */
}

/*
 * Stay away while the application's progress does the work.
 */
static void uct_nprdma_service_back_off(uct_nprdma_service_t *service)
{
    struct timespec interval = { .tv_nsec = UCT_NPRDMA_SERVICE_BACKOFF_NS };
    unsigned num_executed, num_polls;
    struct pollfd pfd;

    do {
        num_executed = service->num_executed;
        num_polls    = service->num_polls;
        pfd.fd       = service->wakeup_fd;
        pfd.events   = POLLIN;
        if (ppoll(&pfd, 1, &interval, NULL) > 0) {
            break;
        }
    } while ((service->num_polls != num_polls) &&
             (service->num_executed != num_executed));
}

/*
 * With one CPU per rank the thread must take the CPU from an application that
 * computes, and a peer waits for that. Linux (6.12 and later) lets a thread of
 * a shorter slice do so at once, without any privilege; before, or if refused,
 * it waits for the end of the application's slice when the load is high.
 */
static void uct_nprdma_service_thread_shorten_slice(void)
{
    uct_nprdma_sched_attr_t attr = { .size = sizeof(attr) };

    if ((syscall(SYS_sched_getattr, 0, &attr, sizeof(attr), 0) == 0) &&
        (attr.policy == SCHED_OTHER)) {
        attr.runtime = UCT_NPRDMA_SERVICE_SLICE_NS;
        (void)syscall(SYS_sched_setattr, 0, &attr, 0);
    }
}

static void *uct_nprdma_service_thread(void *arg)
{
    uct_nprdma_service_t *service = arg;
    unsigned num_polls            = service->num_polls;
    struct pollfd pfds[2];

    uct_nprdma_service_thread_shorten_slice();

    pfds[0].fd     = service->channel->fd;
    pfds[0].events = POLLIN;
    pfds[1].fd     = service->wakeup_fd;
    pfds[1].events = POLLIN;

    while (!service->stop) {
        uct_nprdma_service_arm(service);
        poll(pfds, 2, -1);
        uct_nprdma_service_get_events(service);
        uct_nprdma_service_drain(service);
        if (service->num_polls != num_polls) {
            uct_nprdma_service_back_off(service);
            num_polls = service->num_polls;
        }
    }

    return NULL;
}

static void uct_nprdma_service_tell_no_thread(uct_nprdma_service_t *service,
                                              int error)
{
    struct rlimit limit;

    if (!service->told_no_thread && (getrlimit(RLIMIT_NPROC, &limit) == 0)) {
        ucs_warn("%s: no thread for the service: %s (ulimit -u is %zu): "
                 "requests of peers wait until this process calls progress",
                 service->md->super.name, strerror(error),
                 (size_t)limit.rlim_cur);
        service->told_no_thread = 1;
    }
}

void uct_nprdma_service_thread_start(uct_nprdma_service_t *service)
{
    sigset_t all, old;
    int ret;

    if (service->has_thread) {
        return;
    }

    /* The application's signals are none of its business, but for those that
     * tell of its memory */
    service->stop = 0;
    sigfillset(&all);
    sigdelset(&all, SIGSEGV);
    sigdelset(&all, SIGBUS);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    ret = pthread_create(&service->thread, NULL, uct_nprdma_service_thread,
                         service);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (ret != 0) {
        uct_nprdma_service_tell_no_thread(service, ret);
        return;
    }

    service->has_thread = 1;
    pthread_setname_np(service->thread, "nprdma-service");
}

void uct_nprdma_service_thread_stop(uct_nprdma_service_t *service)
{
    if (!service->has_thread) {
        return;
    }

    service->stop = 1;
    uct_nprdma_service_thread_wakeup(service);
    pthread_join(service->thread, NULL);
    service->has_thread = 0;
}
