/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * ucp_fork before|after|used|passive|siblings|thread|sleep|killed|hooks
 *
 * Processes of which one has forked the other, each with a context of its own,
 * exchange messages of all sizes in both directions.
 *
 * before    the parent opens its context after fork()
 * after     it has done so before, so UCX's thread exists in the parent only
 * used      it has exchanged messages with another child, too
 * passive   the child creates its endpoint when it has received a message
 * siblings  two children exchange, and the parent only waits
 * thread    a thread of the parent forks
 * sleep     both sleep while there is nothing to do
 * killed    two children, of which one is killed; the other notices
 * hooks     no thread of UCX or of ours is in a memory hook, where a fork()
 *           would leave the lock of the hooks held in the child: neither when a
 *           child connects nor when it has ended. The first children start
 *           threads, and malloc() maps memory for these. Later it does so for
 *           none.
 */

#include "ucp_common.h"

#include <ucm/api/ucm.h>

#include <dirent.h>
#include <limits.h>
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>

enum {
    MAX_SIZE = 3 << 20
};

static const size_t sizes[] = {8, 8000, 200000, MAX_SIZE};

/* One side of an exchange */
typedef struct {
    ucp_context_h context;
    ucp_worker_h  worker;
    ucp_ep_h      ep;
    ucs_status_t  error;     /* UCS_OK until the endpoint fails */
    int           fd;        /* to the other side */
    int           is_second; /* the other one is not */
    void          *address;  /* of the other side */
    size_t        length;
} side_t;

static int sleeps, is_passive;


static void wait_events(side_t *side)
{
    if ((ucp_worker_progress(side->worker) == 0) && sleeps) {
        CHECK_OK(ucp_worker_wait(side->worker));
    }
}

static void open_side(side_t *side)
{
    open_ucp(UCP_FEATURE_TAG | (sleeps ? UCP_FEATURE_WAKEUP : 0),
             &side->context, &side->worker);
}

/* ---- the socket, beside UCX ---- */

static void put_bytes(int fd, const void *data, size_t size)
{
    CHECK(write(fd, data, size) == (ssize_t)size, "write: %m");
}

static void get_bytes(int fd, void *data, size_t size)
{
    CHECK(recv(fd, data, size, MSG_WAITALL) == (ssize_t)size,
          "the other side has gone");
}

static void connect_side(side_t *side)
{
    ucp_address_t *address;
    size_t length;

    CHECK_OK(ucp_worker_get_address(side->worker, &address, &length));
    put_bytes(side->fd, &length, sizeof(length));
    put_bytes(side->fd, address, length);
    ucp_worker_release_address(side->worker, address);

    get_bytes(side->fd, &side->length, sizeof(side->length));
    side->address = new_memory(side->length);
    get_bytes(side->fd, side->address, side->length);
}

/* The other side has told that it needs nothing more, and so has this one */
static void meet(side_t *side)
{
    char byte = 0;

    put_bytes(side->fd, &byte, 1);
    while (recv(side->fd, &byte, 1, MSG_DONTWAIT) != 1) {
        ucp_worker_progress(side->worker);
    }
}

/* ---- messages ---- */

static void finish(side_t *side, ucs_status_ptr_t request)
{
    while (!is_done(request)) {
        wait_events(side);
    }
    CHECK_OK(wait_for(side->worker, request));
}

static uint64_t place_of(unsigned message, int is_second)
{
    return ((uint64_t)message * 2 + is_second) * MAX_SIZE;
}

static ucs_status_ptr_t start_send(side_t *side, unsigned i, char *out)
{
    if (side->ep == NULL) {
        side->ep = new_ep_to(side->worker, side->address, &side->error);
    }
    fill(out, sizes[i], place_of(i, side->is_second));
    return ucp_tag_send_nbx(side->ep, out, sizes[i], i, &none);
}

/* Each side sends and receives a message of each size. A passive one sends
 * when it has received. */
static void exchange(side_t *side)
{
    int is_late              = is_passive && side->is_second;
    char *in                 = new_memory(MAX_SIZE);
    char *out                = new_memory(MAX_SIZE);
    ucs_status_ptr_t receive, send = NULL;
    unsigned i;

    for (i = 0; i < sizeof(sizes) / sizeof(sizes[0]); ++i) {
        receive = ucp_tag_recv_nbx(side->worker, in, sizes[i], i, -1, &none);
        if (!is_late) {
            send = start_send(side, i, out);
        }
        finish(side, receive);
        expect(in, sizes[i], place_of(i, !side->is_second));
        if (is_late) {
            send = start_send(side, i, out);
        }
        finish(side, send);
    }
    meet(side);
    munmap(in, MAX_SIZE);
    munmap(out, MAX_SIZE);
}

static void close_side(side_t *side)
{
    close_ep(side->worker, side->ep, 0);
    meet(side);
    side->ep = NULL;
    munmap(side->address, side->length);
}

static void end_side(side_t *side)
{
    close_ucp(side->context, side->worker);
}

static void run(side_t *side, int fd, int is_second)
{
    side->fd        = fd;
    side->is_second = is_second;
    connect_side(side);
    exchange(side);
    close_side(side);
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
static void await_rest(side_t *side)
{
    while ((num_segments() > own_segments) || !async_sleeps()) {
        ucp_worker_progress(side->worker);
    }
}

/* ---- processes ---- */

static void make_pair(int *fds)
{
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0, "socketpair: %m");
}

/* A child with a context of its own */
static pid_t fork_child(int fd, int other_fd, int is_second)
{
    side_t side = {};
    pid_t pid   = start_child();

    if (pid == 0) {
        close(other_fd);
        open_side(&side);
        run(&side, fd, is_second);
        end_side(&side);
        exit(0);
    }
    return pid;
}

/* The parent has opened its side */
static void *with_child(void *parent)
{
    int fds[2];
    pid_t pid;

    make_pair(fds);
    await_rest(parent);
    pid = fork_child(fds[1], fds[0], 1);
    close(fds[1]);
    run(parent, fds[0], 0);
    expect_end(pid, 0);
    close(fds[0]);
    return NULL;
}

static void before(void)
{
    side_t side = {};
    int fds[2];
    pid_t pid;

    make_pair(fds);
    pid = fork_child(fds[1], fds[0], 1);
    close(fds[1]);
    open_side(&side);
    run(&side, fds[0], 0);
    expect_end(pid, 0);
    end_side(&side);
}

static void siblings(void)
{
    pid_t pids[2];
    int fds[2];

    make_pair(fds);
    pids[0] = fork_child(fds[0], fds[1], 0);
    pids[1] = fork_child(fds[1], fds[0], 1);
    close(fds[0]);
    close(fds[1]);
    expect_end(pids[0], 0);
    expect_end(pids[1], 0);
}

/* Exchanges, and then sends to a peer that no longer progresses until the
 * endpoint fails, because it has been killed */
static void outlive(int fd, int is_second)
{
    side_t side              = {.fd = fd, .is_second = is_second};
    char *out                = new_memory(MAX_SIZE);
    ucs_status_ptr_t request = NULL;

    open_side(&side);
    connect_side(&side);
    exchange(&side);
    if (is_second) {
        raise(SIGKILL);
    }

    while (side.error == UCS_OK) {
        if (is_done(request)) {
            wait_for(side.worker, request);
            request = ucp_tag_send_nbx(side.ep, out, MAX_SIZE, 0, &none);
        }
        ucp_worker_progress(side.worker);
    }
    wait_for(side.worker, request);
    close_ep(side.worker, side.ep, UCP_EP_CLOSE_FLAG_FORCE);
    end_side(&side);
    exit(0);
}

static void killed(void)
{
    pid_t pids[2];
    int fds[2], i;

    make_pair(fds);
    for (i = 0; i < 2; ++i) {
        pids[i] = start_child();
        if (pids[i] == 0) {
            outlive(fds[i], i);
        }
    }
    expect_end(pids[0], 0);
    expect_end(pids[1], 1);
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

static void no_hooks(side_t *parent)
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
        with_child(parent);
        await_rest(parent);
    }
    CHECK(hooks.num_calls == 0, "%u calls of hooks, the last one by thread "
          "'%s', event 0x%x", hooks.num_calls, hooks.name, hooks.type);
}

int main(int argc, char **argv)
{
    const char *mode = (argc == 2) ? argv[1] : "";
    side_t side      = {};
    pthread_t thread;

    if (!strcmp(mode, "before")) {
        before();
        return 0;
    }

    sleeps     = !strcmp(mode, "sleep");
    is_passive = !strcmp(mode, "passive");
    open_side(&side);
    own_segments = num_segments();
    if (!strcmp(mode, "siblings")) {
        siblings();
    } else if (!strcmp(mode, "killed")) {
        killed();
    } else if (!strcmp(mode, "thread")) {
        CHECK(pthread_create(&thread, NULL, with_child, &side) == 0,
              "pthread_create");
        pthread_join(thread, NULL);
    } else if (!strcmp(mode, "hooks")) {
        no_hooks(&side);
    } else {
        CHECK(!strcmp(mode, "after") || !strcmp(mode, "used") || sleeps ||
              is_passive, "unknown mode '%s'", mode);
        with_child(&side);
        if (!strcmp(mode, "used")) {
            with_child(&side);
        }
    }
    end_side(&side);
    return 0;
}
