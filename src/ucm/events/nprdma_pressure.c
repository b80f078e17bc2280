/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "nprdma_pressure.h"
#include "nprdma_hook.h"
#include "nprdma_room.h"

#include <nprdma_thread.h>

#include <ucs/debug/log.h>

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>


/* Without a limit */
#define NPRDMA_PRESSURE_NEVER 1e300

/* Nanoseconds, and how many, for which a hook waits for other processes */
#define NPRDMA_PRESSURE_PAUSE  200000
#define NPRDMA_PRESSURE_PAUSES 50

/* Stalls of 0.1 s in 2 s: windows that are multiples of 2 s need no privileges
 * (psi.rst) */
#define NPRDMA_PRESSURE_PARAMS \
    { \
        .psi             = { \
            .proc    = "/proc", \
            .cgroup  = "/sys/fs/cgroup", \
            .trigger = "some 100000 2000000" \
        }, \
        .sample_seconds  = 1, \
        .holdoff_seconds = 1 \
    }


static struct {
    pthread_mutex_t           life; /* Adding and removing. Taken first, and
                                     * never by the thread */
    pthread_mutex_t           lock; /* The fields from here on. Not held while
                                     * a function of a client runs */
    pthread_cond_t            returned; /* `running` has changed */
    ucs_list_link_t           clients;
    nprdma_pressure_client_t *running; /* Whose function runs, or NULL */
    pthread_t                 thread;
    int                       has_thread;
    int                       stop;
    _Atomic int               wake_fd; /* eventfd; -1: no thread */
    uint32_t                  round;
    int                       is_open; /* psi is */
    nprdma_psi_t              psi;
    int                       is_short; /* Clients have to be told */
    double                    told;     /* Time when they were told last */
    double                    sample;   /* Time of the next sample */
    nprdma_room_t             room; /* Open while there is a thread */
    nprdma_pressure_params_t  params;
} nprdma_pressure = {
    .life     = PTHREAD_MUTEX_INITIALIZER,
    .lock     = PTHREAD_MUTEX_INITIALIZER,
    .returned = PTHREAD_COND_INITIALIZER,
    .clients  = UCS_LIST_INITIALIZER(&nprdma_pressure.clients,
                                     &nprdma_pressure.clients),
    .wake_fd  = -1,
    .params   = NPRDMA_PRESSURE_PARAMS
};


static pthread_once_t nprdma_pressure_once = PTHREAD_ONCE_INIT;
static int nprdma_pressure_installed; /* Result of that, 0 or errno */


static double nprdma_pressure_now(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static int nprdma_pressure_is_armed(const nprdma_pressure_client_t *client)
{
    return __atomic_load_n(&client->armed, __ATOMIC_SEQ_CST) != 0;
}

NPRDMA_HOOK
static void nprdma_pressure_wake(void)
{
    const uint64_t one = 1;
    int fd             = atomic_load(&nprdma_pressure.wake_fd);
    int saved          = errno;

    /* Fails only if the counter is at its end: then the thread wakes, too */
    if ((fd >= 0) && (write(fd, &one, sizeof(one)) < 0)) {
        errno = saved;
    }
}

NPRDMA_HOOK
void nprdma_pressure_arm(nprdma_pressure_client_t *client)
{
    if (!__atomic_load_n(&client->armed, __ATOMIC_SEQ_CST) &&
        !__atomic_exchange_n(&client->armed, 1, __ATOMIC_SEQ_CST)) {
        nprdma_pressure_wake();
    }
}

NPRDMA_HOOK
void nprdma_pressure_disarm(nprdma_pressure_client_t *client)
{
    __atomic_exchange_n(&client->armed, 0, __ATOMIC_SEQ_CST);
}

NPRDMA_HOOK
int nprdma_pressure_has_room(size_t length, unsigned percent)
{
    return nprdma_room_has(&nprdma_pressure.room, length, percent);
}

NPRDMA_HOOK
int nprdma_pressure_is_limited(void)
{
    static const int resources[] = { RLIMIT_AS, RLIMIT_DATA };
    int saved                    = errno;
    int is_limited               = 0;
    struct rlimit limit;
    unsigned i;

    for (i = 0; i < 2; ++i) {
        is_limited |= (syscall(SYS_prlimit64, 0, resources[i], NULL, &limit) ==
                       0) && (limit.rlim_cur != RLIM_INFINITY);
    }
    errno = saved;
    return is_limited;
}

NPRDMA_HOOK
size_t nprdma_pressure_mapped(const ucm_event_t *event)
{
    return ((event->mmap.result == MAP_FAILED) && (event->mmap.fd == -1) &&
            (event->mmap.prot != PROT_NONE) &&
            !(event->mmap.flags & MAP_NORESERVE)) ?
           event->mmap.size : 0;
}

NPRDMA_HOOK
size_t nprdma_pressure_left(unsigned percent)
{
    size_t part;

    return nprdma_room_left(&nprdma_pressure.room, percent, 0, &part);
}

size_t nprdma_pressure_part(unsigned percent, size_t *left_p)
{
    size_t part;

    *left_p = nprdma_room_left(&nprdma_pressure.room, percent,
                               nprdma_psi_own(&nprdma_pressure.params.psi),
                               &part);
    return part;
}

NPRDMA_HOOK
void nprdma_pressure_await_room(size_t length, unsigned percent)
{
    const struct timespec pause = { .tv_nsec = NPRDMA_PRESSURE_PAUSE };
    int saved                   = errno;
    int i;

    if (!nprdma_room_call(&nprdma_pressure.room, length, percent)) {
        return;
    }

    for (i = 0; (i < NPRDMA_PRESSURE_PAUSES) &&
                !nprdma_pressure_has_room(length, percent); ++i) {
        syscall(SYS_nanosleep, &pause, NULL);
    }
    errno = saved;
}


/* ---- the thread; the lock is held ---- */

static int nprdma_pressure_has_armed(void)
{
    nprdma_pressure_client_t *client;
    int has_armed = 0;

    ucs_list_for_each(client, &nprdma_pressure.clients, list) {
        if (nprdma_pressure_is_armed(client)) {
            has_armed = 1;
        } else {
            client->due = 0;
        }
    }

    return has_armed;
}

/* Releases the lock meanwhile */
static void nprdma_pressure_call(nprdma_pressure_client_t *client,
                                 void (*func)(void *arg))
{
    nprdma_pressure.running = client;
    pthread_mutex_unlock(&nprdma_pressure.lock);
    func(client->arg);
    pthread_mutex_lock(&nprdma_pressure.lock);
    nprdma_pressure.running = NULL;
    pthread_cond_broadcast(&nprdma_pressure.returned);
}

/* The first armed client that was not yet told in this round. From the start of
 * the list each time, because clients come and go while one is called. */
static nprdma_pressure_client_t *nprdma_pressure_next(void)
{
    nprdma_pressure_client_t *client;

    ucs_list_for_each(client, &nprdma_pressure.clients, list) {
        if (nprdma_pressure_is_armed(client) &&
            (client->round != nprdma_pressure.round)) {
            client->round = nprdma_pressure.round;
            return client;
        }
    }

    return NULL;
}

static void nprdma_pressure_tell(void)
{
    nprdma_pressure_client_t *client;

    ucs_debug("memory pressure: kept memory is given back");
    ++nprdma_pressure.round;
    while (!nprdma_pressure.stop &&
           ((client = nprdma_pressure_next()) != NULL)) {
        nprdma_pressure_call(client, client->give_back);
    }
    nprdma_pressure.is_short = 0;
    nprdma_pressure.told     = nprdma_pressure_now();
}

/* An armed client whose tick is due, or NULL and the time of the first tick */
static nprdma_pressure_client_t *
nprdma_pressure_next_tick(double now, double *due_p)
{
    nprdma_pressure_client_t *client;

    ucs_list_for_each(client, &nprdma_pressure.clients, list) {
        if ((client->tick == NULL) || !nprdma_pressure_is_armed(client)) {
            continue;
        }

        if (client->due == 0) {
            client->due = now + client->tick_seconds;
        } else if (client->due <= now) {
            client->due = now + client->tick_seconds;
            return client;
        }
        if (client->due < *due_p) {
            *due_p = client->due;
        }
    }

    return NULL;
}

/* @return Time at which there is something to do, if nothing happens before */
static double nprdma_pressure_work(void)
{
    double now = nprdma_pressure_now();
    double due = NPRDMA_PRESSURE_NEVER;
    nprdma_pressure_client_t *client;
    double next;

    while (!nprdma_pressure.stop &&
           ((client = nprdma_pressure_next_tick(now, &due)) != NULL)) {
        nprdma_pressure_call(client, client->tick);
    }

    if (nprdma_psi_needs_samples(&nprdma_pressure.psi)) {
        if (now >= nprdma_pressure.sample) {
            nprdma_pressure.sample    = now +
                                        nprdma_pressure.params.sample_seconds;
            nprdma_pressure.is_short |=
                    nprdma_psi_sample(&nprdma_pressure.psi);
        }
        due = (nprdma_pressure.sample < due) ? nprdma_pressure.sample : due;
    }

    if (nprdma_pressure.is_short) {
        next = nprdma_pressure.told + nprdma_pressure.params.holdoff_seconds;
        if (now >= next) {
            nprdma_pressure_tell();
        } else {
            due = (next < due) ? next : due;
        }
    }

    return due;
}

/* Sleep until @a due, or until something happens. Releases the lock. */
static void nprdma_pressure_sleep(double due)
{
    int wake_fd = atomic_load(&nprdma_pressure.wake_fd);
    struct pollfd fds[NPRDMA_PSI_NUM_FDS + 1];
    double seconds;
    uint64_t count;
    int timeout;

    nprdma_psi_prepare(&nprdma_pressure.psi, fds);
    fds[NPRDMA_PSI_NUM_FDS].fd      = wake_fd;
    fds[NPRDMA_PSI_NUM_FDS].events  = POLLIN;
    fds[NPRDMA_PSI_NUM_FDS].revents = 0;

    timeout = -1;
    if (due < NPRDMA_PRESSURE_NEVER) {
        seconds = due - nprdma_pressure_now();
        /* Rounded up: to wake too early means to wake twice */
        timeout = (seconds <= 0) ? 0 :
                  (seconds > 86400) ? 86400000 : (int)(seconds * 1e3) + 1;
    }

    pthread_mutex_unlock(&nprdma_pressure.lock);
    if ((poll(fds, NPRDMA_PSI_NUM_FDS + 1, timeout) > 0) &&
        (fds[NPRDMA_PSI_NUM_FDS].revents != 0)) {
        /* Nonblocking: only resets it */
        (void)!read(wake_fd, &count, sizeof(count));
    }
    pthread_mutex_lock(&nprdma_pressure.lock);
    nprdma_pressure.is_short |= nprdma_psi_check(&nprdma_pressure.psi, fds);
}

static void nprdma_pressure_open(void)
{
    if (!nprdma_pressure.is_open) {
        nprdma_psi_open(&nprdma_pressure.psi, &nprdma_pressure.params.psi);
        nprdma_pressure.is_open  = 1;
        nprdma_pressure.is_short = 0;
        nprdma_pressure.sample   = 0;
    }
}

static void nprdma_pressure_close(void)
{
    nprdma_psi_close(&nprdma_pressure.psi);
    nprdma_pressure.is_open = 0;
}

static void *nprdma_pressure_run(void *arg)
{
    double due;

    pthread_mutex_lock(&nprdma_pressure.lock);
    while (!nprdma_pressure.stop) {
        if (nprdma_pressure_has_armed()) {
            nprdma_pressure_open();
            due = nprdma_pressure_work();
        } else {
            nprdma_pressure_close();
            due = NPRDMA_PRESSURE_NEVER;
        }
        if (!nprdma_pressure.stop) {
            nprdma_pressure_sleep(due);
        }
    }
    nprdma_pressure_close();
    pthread_mutex_unlock(&nprdma_pressure.lock);
    return NULL;
}


/* ---- fork ---- */

static void nprdma_pressure_prepare(void)
{
    pthread_mutex_lock(&nprdma_pressure.life);
    pthread_mutex_lock(&nprdma_pressure.lock);
}

static void nprdma_pressure_parent(void)
{
    pthread_mutex_unlock(&nprdma_pressure.lock);
    pthread_mutex_unlock(&nprdma_pressure.life);
}

/* Descriptors are shared with the parent: the child must not wake its thread.
 * Clients may be in memory that is all zeros here: they are forgotten. */
static void nprdma_pressure_child(void)
{
    int fd = atomic_exchange(&nprdma_pressure.wake_fd, -1);

    if (fd >= 0) {
        close(fd);
        nprdma_pressure_close();
        nprdma_room_close(&nprdma_pressure.room);
    }
    ucs_list_head_init(&nprdma_pressure.clients);
    pthread_cond_init(&nprdma_pressure.returned, NULL);
    nprdma_pressure.running    = NULL;
    nprdma_pressure.has_thread = 0;
    nprdma_pressure_parent();
}


static void nprdma_pressure_install(void)
{
    nprdma_pressure_installed = pthread_atfork(nprdma_pressure_prepare,
                                               nprdma_pressure_parent,
                                               nprdma_pressure_child);
}

int nprdma_pressure_init(void)
{
    pthread_once(&nprdma_pressure_once, nprdma_pressure_install);
    return nprdma_pressure_installed;
}


/* ---- clients ---- */

static int nprdma_pressure_start(void)
{
    int fd, ret;

    fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (fd < 0) {
        return errno;
    }

    nprdma_pressure.psi.trigger_fd = -1;
    nprdma_pressure.psi.inotify_fd = -1;
    nprdma_pressure.is_open        = 0;
    nprdma_pressure.stop           = 0;
    nprdma_pressure.told           = -NPRDMA_PRESSURE_NEVER;
    nprdma_room_open(&nprdma_pressure.room, &nprdma_pressure.params.psi);
    atomic_store(&nprdma_pressure.wake_fd, fd);
    ret = nprdma_thread_start(&nprdma_pressure.thread, nprdma_pressure_run,
                              NULL);
    if (ret != 0) {
        atomic_store(&nprdma_pressure.wake_fd, -1);
        close(fd);
        nprdma_room_close(&nprdma_pressure.room);
        return ret;
    }

    pthread_setname_np(nprdma_pressure.thread, "nprdma-pressure");
    nprdma_pressure.has_thread = 1;
    return 0;
}

ucs_status_t nprdma_pressure_add(nprdma_pressure_client_t *client)
{
    int ret = nprdma_pressure_init();

    pthread_mutex_lock(&nprdma_pressure.life);
    pthread_mutex_lock(&nprdma_pressure.lock);
    if ((ret == 0) && !nprdma_pressure.has_thread) {
        ret = nprdma_pressure_start();
    }
    if (ret == 0) {
        nprdma_pressure_disarm(client);
        client->round = nprdma_pressure.round;
        client->due   = 0;
        ucs_list_add_tail(&nprdma_pressure.clients, &client->list);
    }
    pthread_mutex_unlock(&nprdma_pressure.lock);
    pthread_mutex_unlock(&nprdma_pressure.life);
    if (ret == 0) {
        return UCS_OK;
    }

    ucs_warn("cannot start the thread that gives memory back when it is short "
             "(%s): no memory is kept", strerror(ret));
    return UCS_ERR_NO_RESOURCE;
}

/* @return Nonzero if it was in the list, from which it is removed */
static int nprdma_pressure_unlink(nprdma_pressure_client_t *removed)
{
    nprdma_pressure_client_t *client;

    ucs_list_for_each(client, &nprdma_pressure.clients, list) {
        if (client == removed) {
            ucs_list_del(&client->list);
            return 1;
        }
    }

    return 0;
}

void nprdma_pressure_remove(nprdma_pressure_client_t *client)
{
    int is_last = 0;

    pthread_mutex_lock(&nprdma_pressure.life);
    pthread_mutex_lock(&nprdma_pressure.lock);
    if (nprdma_pressure_unlink(client)) {
        is_last = ucs_list_is_empty(&nprdma_pressure.clients);
    }
    while (nprdma_pressure.running == client) {
        pthread_cond_wait(&nprdma_pressure.returned, &nprdma_pressure.lock);
    }
    nprdma_pressure.stop |= is_last;
    pthread_mutex_unlock(&nprdma_pressure.lock);

    if (is_last) {
        nprdma_pressure_wake();
        pthread_join(nprdma_pressure.thread, NULL);
        close(atomic_exchange(&nprdma_pressure.wake_fd, -1));
        nprdma_room_close(&nprdma_pressure.room);
        nprdma_pressure.has_thread = 0;
    }
    pthread_mutex_unlock(&nprdma_pressure.life);
}

void nprdma_pressure_set_params(const nprdma_pressure_params_t *params)
{
    static const nprdma_pressure_params_t defaults = NPRDMA_PRESSURE_PARAMS;

    pthread_mutex_lock(&nprdma_pressure.lock);
    nprdma_pressure.params = (params == NULL) ? defaults : *params;
    pthread_mutex_unlock(&nprdma_pressure.lock);
}
