/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * ucp_fork used|passive|sleep|hooks
 *
 * Processes of which one has forked the other, each with a context of its own,
 * exchange messages of all sizes in both directions.
 *
 * used      the parent opens its context before fork(), so UCX's thread exists
 *           in the parent only; and it exchanges with one child after another
 * passive   the child creates its endpoint when it has received a message
 * sleep     both sleep while there is nothing to do
 * hooks     no thread of UCX or of ours is in a memory hook, where a fork()
 *           would leave the lock of the hooks held in the child: neither when a
 *           child connects nor when it has ended. The first children start
 *           threads, and malloc() maps memory for these. Later it does so for
 *           none.
 */

#include "ucp_pair.h"

#include <ucm/api/ucm.h>

#include <dirent.h>
#include <limits.h>
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>

enum {
    MAX_SIZE = 3 << 20
};

static const size_t sizes[] = {8, 8000, 200000, MAX_SIZE};

/* To the other side; the side whose pair.number is 1 is the second one */
static ucp_ep_h      ep;
static ucs_status_t  error;     /* UCS_OK until the endpoint fails */
static ucp_address_t *address;

static int sleeps, is_passive;

static void wait_events(void)
{
    if ((ucp_worker_progress(pair.worker) == 0) && sleeps) {
        CHECK_OK(ucp_worker_wait(pair.worker));
    }
}

static void open_side(void)
{
    open_ucp(UCP_FEATURE_TAG | (sleeps ? UCP_FEATURE_WAKEUP : 0),
             &pair.context, &pair.worker);
}

/* ---- messages ---- */

static void finish(ucs_status_ptr_t request)
{
    while (!is_done(request)) {
        wait_events();
    }
    CHECK_OK(wait_for(pair.worker, request));
}

static uint64_t place_of(unsigned message, int is_second)
{
    return ((uint64_t)message * 2 + is_second) * MAX_SIZE;
}

static ucs_status_ptr_t start_send(unsigned i, char *out)
{
    if (ep == NULL) {
        ep = new_ep_to(pair.worker, address, &error);
    }
    fill(out, sizes[i], place_of(i, pair.number));
    return ucp_tag_send_nbx(ep, out, sizes[i], i, &none);
}

/* Each side sends and receives a message of each size. A passive one sends
 * when it has received. */
static void exchange(void)
{
    int is_late              = is_passive && pair.number;
    char *in                 = new_memory(MAX_SIZE);
    char *out                = new_memory(MAX_SIZE);
    ucs_status_ptr_t receive, send = NULL;
    unsigned i;

    for (i = 0; i < sizeof(sizes) / sizeof(sizes[0]); ++i) {
        receive = ucp_tag_recv_nbx(pair.worker, in, sizes[i], i, -1, &none);
        if (!is_late) {
            send = start_send(i, out);
        }
        finish(receive);
        expect(in, sizes[i], place_of(i, !pair.number));
        if (is_late) {
            send = start_send(i, out);
        }
        finish(send);
    }
    pair_meet();
    munmap(in, MAX_SIZE);
    munmap(out, MAX_SIZE);
}

static void run(int fd, int is_second)
{
    pair.fd     = fd;
    pair.number = is_second;
    address = pair_exchange_addresses();
    exchange();
    close_ep(pair.worker, ep, 0);
    pair_meet();
    ep = NULL;
    free(address);
}

/* ---- before a fork() ---- */

/* Segments of the emulated RNIC after open_side() */
static unsigned own_segments;

/* Those of other processes that are mapped, and its own. One may be mapped in
 * several pieces. */
static unsigned num_segments(void)
{
    FILE *file         = fopen("/proc/self/maps", "r");
    unsigned count     = 0;
    unsigned long last = 0;
    unsigned long inode;
    char line[512];

    CHECK(file != NULL, "fopen: %m");
    while (fgets(line, sizeof(line), file) != NULL) {
        if ((strstr(line, "/SYSV") != NULL) &&
            (sscanf(line, "%*s %*s %*s %*s %lu", &inode) == 1)) {
            count += (inode != last);
            last   = inode;
        }
    }
    fclose(file);
    return count;
}

/* Whether UCX's thread has nothing to do */
static int async_sleeps(void)
{
    DIR *dir   = opendir("/proc/self/task");
    int sleeps = 1;
    char path[300], line[512];
    struct dirent *entry;
    FILE *file;

    CHECK(dir != NULL, "opendir: %m");
    while ((entry = readdir(dir)) != NULL) {
        snprintf(path, sizeof(path), "/proc/self/task/%s/stat", entry->d_name);
        file = fopen(path, "r");
        if ((file != NULL) && (fgets(line, sizeof(line), file) != NULL) &&
            (strstr(line, "(async) ") != NULL)) {
            sleeps &= (strstr(line, "(async) S") != NULL);
        }
        if (file != NULL) {
            fclose(file);
        }
    }
    closedir(dir);
    return sleeps;
}

/* UCX's thread looks up each event in a table, under a lock that is never
 * released in a child of that moment. Such a child waits for ever when it opens
 * a worker, whatever the transport. So the parent forks when the last child is
 * gone, and the thread sleeps. */
static void await_rest(void)
{
    while ((num_segments() > own_segments) || !async_sleeps()) {
        ucp_worker_progress(pair.worker);
    }
}

/* ---- processes ---- */

/* With a child that has a context of its own; the parent's side is open */
static void with_child(void)
{
    int fds[2];
    pid_t pid;

    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0, "socketpair: %m");
    await_rest();
    pid = start_child();
    if (pid == 0) {
        close(fds[0]);
        ep = NULL;
        open_side();
        run(fds[1], 1);
        close_ucp(pair.context, pair.worker);
        exit(0);
    }
    close(fds[1]);
    run(fds[0], 0);
    expect_end(pid, 0);
    close(fds[0]);
}

/* ---- memory hooks ---- */

static struct {
    pthread_t    self;      /* the only thread whose calls do not count */
    atomic_uint  num_calls;
    char         name[16];  /* of the thread of the last call */
    unsigned     type;      /* of its event */
} hooks;

static void on_hook(ucm_event_type_t type, ucm_event_t *event, void *arg)
{
    if (!pthread_equal(pthread_self(), hooks.self)) {
        prctl(PR_GET_NAME, hooks.name);
        hooks.type = type;
        atomic_fetch_add(&hooks.num_calls, 1);
    }
}

static void no_hooks(void)
{
    static const unsigned num_first = 2;
    unsigned i;

    hooks.self = pthread_self();
    mallopt(M_TRIM_THRESHOLD, INT_MAX); /* free() gives nothing back */
    CHECK_OK(ucm_set_event_handler(UCM_EVENT_MMAP | UCM_EVENT_MUNMAP |
                                   UCM_EVENT_MREMAP | UCM_EVENT_SHMAT |
                                   UCM_EVENT_SHMDT | UCM_EVENT_SBRK |
                                   UCM_EVENT_BRK | UCM_EVENT_MADVISE |
                                   UCM_EVENT_FLAG_NO_INSTALL, -5, on_hook,
                                   NULL));
    for (i = 0; i < num_first + 5; ++i) {
        if (i == num_first) {
            CHECK(hooks.num_calls > 0, "hooks are not observed");
            hooks.num_calls = 0;
        }
        with_child();
        await_rest();
    }
    CHECK(hooks.num_calls == 0, "%u calls of hooks, the last one by thread "
          "'%s', event 0x%x", hooks.num_calls, hooks.name, hooks.type);
}

int main(int argc, char **argv)
{
    const char *mode = (argc == 2) ? argv[1] : "";

    sleeps     = !strcmp(mode, "sleep");
    is_passive = !strcmp(mode, "passive");
    open_side();
    own_segments = num_segments();
    if (!strcmp(mode, "hooks")) {
        no_hooks();
    } else {
        CHECK(!strcmp(mode, "used") || sleeps || is_passive,
              "unknown mode '%s'", mode);
        with_child();
        with_child();
    }
    close_ucp(pair.context, pair.worker);
    return 0;
}
