/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * ucp_limited kill_receiver|kill_sender|reclaim [MIB]
 *
 * A message of MIB (96) from a client to a server, connected by socket address.
 * A control group limits memory to a third of it, and the limit is reached in
 * the middle of the message:
 *   kill_receiver  the pages that the message fills are too many, and there is
 *                  no swap: the kernel kills the receiver. The sender gets an
 *                  error.
 *   kill_sender    a thread of the sender takes all memory once half of the
 *                  message has arrived: the kernel kills the sender. The
 *                  receiver gets an error, and its buffer stays as it is.
 *   reclaim        both are in the group, and their buffers are files that are
 *                  larger than the limit: the kernel writes pages to the disk
 *                  and takes them, all the time. The message is right.
 *
 * In version 2 of control groups, reclaim uses memory.high, which makes
 * processes wait; version 1 has no such limit.
 */

#define _GNU_SOURCE
#include "ucp_socket.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/vfs.h>

#define SIZE      (self.size)
#define LIMIT     (SIZE / 3)
#define PAGE      4096ul
#define ERROR_SEC 100           /* Until an error is reported */
#define SKIPPED   77

/* Of the versions of control groups */
typedef struct {
    const char *root;
    const char *limit;          /* A process is killed */
    const char *reclaim;        /* Pages are taken */
    const char *killed;         /* File that counts killed processes */
    const char *reached;        /* File and field that count it */
    const char *field;
} version_t;

static const version_t versions[] = {
    {"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.limit_in_bytes",
     "memory.oom_control", "memory.failcnt", ""},
    {"/sys/fs/cgroup", "memory.max", "memory.high", "memory.events",
     "memory.events", "high "}
};

static struct {
    size_t          size;               /* Of the message */
    const version_t *version;
    char            group[128];
    pid_t           parent;
    int             is_file;            /* Buffers are files */
    ucp_context_h   context;
    ucp_worker_h    worker;
    ucp_ep_h        ep;
    ucs_status_t    error;
} self;

static struct {
    atomic_uint port;
    atomic_int  has_half;               /* Of the message has arrived */
    atomic_int  is_killed;              /* The sender */
} *shared;

static void skip(const char *why)
{
    printf("SKIPPED: %s\n", why);
    exit(SKIPPED);
}


/* ---- the control group ---- */

static int write_file(const char *dir, const char *name, const char *text)
{
    char path[256];
    int fd, is_written;

    snprintf(path, sizeof(path), "%s/%s", dir, name);
    fd         = open(path, O_WRONLY);
    is_written = (fd >= 0) && (write(fd, text, strlen(text)) > 0);
    close(fd);
    return is_written;
}

/* @return The number behind a field of a file of the group. */
static unsigned long read_field(const char *name, const char *field)
{
    char path[256], line[256];
    unsigned long value = 0;
    FILE *file;

    snprintf(path, sizeof(path), "%s/%s", self.group, name);
    file = fopen(path, "r");
    CHECK(file != NULL, "%s: %m", path);
    while (fgets(line, sizeof(line), file) != NULL) {
        if (!strncmp(line, field, strlen(field))) {
            value = strtoul(line + strlen(field), NULL, 10);
        }
    }
    fclose(file);
    return value;
}

static void remove_group(void)
{
    if ((getpid() != self.parent) || (self.group[0] == '\0')) {
        return;
    }
    /* Ended processes leave it a moment later */
    while ((rmdir(self.group) != 0) && (errno == EBUSY)) {
        usleep(1000);
    }
}

static void make_group(void)
{
    char limit[32];
    unsigned i;

    snprintf(limit, sizeof(limit), "%lu", LIMIT);
    for (i = 0; i < sizeof(versions) / sizeof(versions[0]); ++i) {
        self.version = &versions[i];
        write_file(self.version->root, "cgroup.subtree_control", "+memory");
        snprintf(self.group, sizeof(self.group), "%s/nprdma-limited.XXXXXX",
                 self.version->root);
        if (mkdtemp(self.group) == NULL) {
            continue;
        }
        if (write_file(self.group, self.is_file ? self.version->reclaim :
                                                  self.version->limit, limit)) {
            atexit(remove_group);
            return;
        }
        rmdir(self.group);
    }
    self.group[0] = '\0';
    skip("no control group of memory, or no right to make one");
}

static void join_group(void)
{
    CHECK(write_file(self.group, "cgroup.procs", "0"), "cgroup.procs: %m");
}

static void check_no_swap(void)
{
    FILE *file = fopen("/proc/swaps", "r");
    int lines  = 0, c;

    while ((file != NULL) && ((c = getc(file)) != EOF)) {
        lines += (c == '\n');
    }
    if (lines > 1) {
        skip("there is swap");
    }
}

/* Files must have a disk */
static void check_disk(void)
{
    struct statfs fs;

    CHECK(!statfs(".", &fs), "statfs: %m");
    if (fs.f_type == TMPFS_MAGIC) {
        skip("the current directory has no disk");
    }
}


/* ---- both sides ---- */

static char *new_buffer(void)
{
    char path[] = "./ucp_limited.XXXXXX";
    char *ptr;
    int fd;

    if (!self.is_file) {
        return new_memory(SIZE);
    }

    fd = mkstemp(path);
    CHECK((fd >= 0) && !unlink(path) && !ftruncate(fd, SIZE), "mkstemp: %m");
    ptr = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(ptr != MAP_FAILED, "mmap: %m");
    close(fd);
    return ptr;
}

static void close_worker(unsigned flags)
{
    close_ep(self.worker, self.ep, flags);
    close_ucp(self.context, self.worker);
}

/* Behind this, UCP chooses RDMA for large messages */
static void say_hello(int is_first)
{
    char hello               = 0;
    int i;

    for (i = 0; i < 2; ++i) {
        CHECK_OK(wait_for(self.worker, (i == is_first) ?
                 ucp_tag_recv_nbx(self.worker, &hello, 1, 2, -1, &none) :
                 ucp_tag_send_nbx(self.ep, &hello, 1, 2, &none)));
    }
}

/* The peer is killed: the endpoint fails in time, and the request ends */
static void expect_error(ucs_status_ptr_t request)
{
    double deadline = now() + ERROR_SEC;
    ucs_status_t status;

    while ((self.error == UCS_OK) || !is_done(request)) {
        ucp_worker_progress(self.worker);
        CHECK(now() < deadline, "no error in %d s: endpoint '%s', request %s",
              ERROR_SEC, ucs_status_string(self.error),
              is_done(request) ? "done" : "not done");
    }
    status = wait_for(self.worker, request);
    CHECK(status != UCS_OK, "the request succeeded");
    printf("request '%s', endpoint '%s'\n", ucs_status_string(status),
           ucs_status_string(self.error));
}


/* ---- the sender ---- */

static void *take_all_memory(void *arg)
{
    size_t i;
    char *ptr;

    while (!atomic_load(&shared->has_half)) {
        usleep(100);
    }
    ptr = new_memory(SIZE);
    for (i = 0; i < SIZE; i += PAGE) {
        ptr[i] = 1;
    }
    return arg;
}

/* In the group its data do not fit, so they are those of untouched memory */
static void be_sender(int is_killed, int is_peer_killed)
{
    ucs_status_ptr_t request;
    pthread_t thread;
    char *data;

    open_ucp(UCP_FEATURE_TAG, &self.context, &self.worker);
    while (atomic_load(&shared->port) == 0) {
        usleep(1000);
    }
    self.ep = connect_to(self.worker, AF_INET, atomic_load(&shared->port),
                         &self.error);
    say_hello(1);
    if (is_killed || self.is_file) {
        join_group();
    }
    data = new_buffer();
    if (!is_killed) {
        fill(data, SIZE, 0);
    } else {
        CHECK(!pthread_create(&thread, NULL, take_all_memory, NULL),
              "pthread_create");
    }

    request = ucp_tag_send_nbx(self.ep, data, SIZE, 1, &none);
    if (is_peer_killed) {
        expect_error(request);
    } else {
        CHECK_OK(wait_for(self.worker, request));
        CHECK(!is_killed, "not killed");
    }
    close_worker(is_peer_killed ? UCP_EP_CLOSE_FLAG_FORCE : 0);
}


/* ---- the receiver ---- */

static void on_request(ucp_conn_request_h request, void *arg)
{
    self.ep = accept_request(self.worker, request, &self.error);
}

/* Until the buffer has changed in the middle. The receiver gets no more of the
 * message until the sender is gone. */
static void wait_for_kill(const volatile char *data, ucs_status_ptr_t request)
{
    while (data[SIZE / 2] != 0) {
        ucp_worker_progress(self.worker);
        CHECK(!is_done(request), "the message has arrived already");
    }
    atomic_store(&shared->has_half, 1);
    while (!atomic_load(&shared->is_killed)) {
        usleep(1000);
    }
}

static void be_receiver(int is_killed, int is_peer_killed)
{
    ucs_status_ptr_t request;
    ucp_listener_h listener;
    char *data, *copy;

    open_ucp(UCP_FEATURE_TAG, &self.context, &self.worker);
    atomic_store(&shared->port, listen_anywhere(self.worker, AF_INET,
                                                on_request, &listener));
    while (self.ep == NULL) {
        ucp_worker_progress(self.worker);
    }
    say_hello(0);
    ucp_listener_destroy(listener);
    if (is_killed || self.is_file) {
        join_group();
    }
    data = new_buffer();
    if (is_peer_killed) {
        memset(data, 0xff, SIZE);
    }

    request = ucp_tag_recv_nbx(self.worker, data, SIZE, 1, -1, &none);
    if (is_peer_killed) {
        wait_for_kill(data, request);
        expect_error(request);
        copy = new_memory(SIZE);
        memcpy(copy, data, SIZE);
        close_worker(UCP_EP_CLOSE_FLAG_FORCE);
        CHECK(!memcmp(data, copy, SIZE), "the buffer has changed afterwards");
        return;
    }

    CHECK_OK(wait_for(self.worker, request));
    CHECK(!is_killed, "not killed");
    expect(data, SIZE, 0);
    while (self.error == UCS_OK) {
        ucp_worker_progress(self.worker);
    }
    close_worker(UCP_EP_CLOSE_FLAG_FORCE);
}


/* ---- the parent ---- */

static pid_t start(void (*func)(int is_killed, int is_peer_killed),
                   int is_killed, int is_peer_killed)
{
    pid_t pid = start_child();

    if (pid == 0) {
        func(is_killed, is_peer_killed);
        exit(0);
    }
    return pid;
}

int main(int argc, char **argv)
{
    const char *mode  = (argc > 1) ? argv[1] : "";
    int kill_sender   = !strcmp(mode, "kill_sender");
    int kill_receiver = !strcmp(mode, "kill_receiver");
    unsigned long num;
    pid_t sender, receiver;

    self.is_file = !strcmp(mode, "reclaim");
    CHECK(kill_sender || kill_receiver || self.is_file,
          "usage: ucp_limited kill_receiver|kill_sender|reclaim [MIB]");
    self.size   = (size_t)((argc > 2) ? atoi(argv[2]) : 96) << 20;
    self.parent = getpid();
    check_no_swap();
    check_disk();
    make_group();
    shared = new_shared(sizeof(*shared));

    receiver = start(be_receiver, kill_receiver, kill_sender);
    sender   = start(be_sender, kill_sender, kill_receiver);
    if (kill_receiver) {
        expect_end(receiver, 1);
        expect_end(sender, 0);
    } else {
        expect_end(sender, kill_sender);
        atomic_store(&shared->is_killed, 1);
        expect_end(receiver, 0);
    }

    num = self.is_file ?
          read_field(self.version->reached, self.version->field) :
          read_field(self.version->killed, "oom_kill ");
    printf("%s: %lu times\n", mode, num);
    CHECK(num > 0, "the limit was not reached");
    return 0;
}
