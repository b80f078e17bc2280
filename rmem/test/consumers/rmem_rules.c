/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * rmem_rules RULE: a program that knows nothing of remote memory and does what
 * one rule of rmem_preload.h is for, with memory that has left. Runs under
 * rmem-run with a cache of 8 MiB.
 */

#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

/* PART is what rmem-run holds at a time: an eighth of the cache */
enum { PAGE = 4096, PART = 1 << 20, BYTES = 4 << 20, OTHERS = 32 << 20 };

#define CHECK(condition) \
    if (!(condition)) { \
        fprintf(stderr, "line %d: %s: %s\n", __LINE__, #condition, \
                strerror(errno)); \
        exit(1); \
    }

static unsigned char *memory; /* Of the window, BYTES long, has left */
static volatile int calls;
static volatile unsigned char *touched;


static void leave(void)
{
    static volatile unsigned char *others;
    size_t i;
    int turn;

    if (others == NULL) {
        others = malloc(OTHERS);
    }
    for (turn = 0; turn < 2; ++turn) {
        for (i = 0; i < OTHERS; i += PAGE) {
            others[i] += 1;
        }
    }
}

static void fill(int value)
{
    memset(memory, value, BYTES);
    leave();
}

static int has(const unsigned char *at, size_t length, int value)
{
    return (*at == value) && !memcmp(at, at + 1, length - 1);
}


/* ---- R1 ---- */

static void on_signal(int sig)
{
    ++calls;
    *touched += 1;
}

static void on_bus(int sig, siginfo_t *info, void *context)
{
    ++calls;
    mmap((void*)((uintptr_t)info->si_addr & -PAGE), PAGE,
         PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
         0);
}

static void handler_stays(void)
{
    struct sigaction action = {.sa_sigaction = on_bus, .sa_flags = SA_SIGINFO};
    struct sigaction old;
    unsigned char *empty;
    sigset_t all;
    int fd = memfd_create("empty", 0);

    fill(1);
    CHECK(sigaction(SIGBUS, &action, NULL) == 0);
    CHECK(has(memory, BYTES, 1));
    CHECK(calls == 0);
    empty = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(empty[0] == 0);
    CHECK(calls == 1);
    CHECK(sigaction(SIGBUS, NULL, &old) == 0);
    CHECK(old.sa_sigaction == on_bus);
    signal(SIGBUS, SIG_DFL);

    fill(2);
    sigfillset(&all);
    CHECK(sigprocmask(SIG_BLOCK, &all, NULL) == 0);
    CHECK(has(memory, BYTES, 2));
    fill(3);
    CHECK(pthread_sigmask(SIG_SETMASK, &all, NULL) == 0);
    CHECK(has(memory, BYTES, 3));
    fill(4);
    action.sa_handler = on_signal;
    action.sa_flags   = 0;
    sigfillset(&action.sa_mask);
    touched = memory;
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    CHECK(sigprocmask(SIG_UNBLOCK, &all, NULL) == 0);
    raise(SIGUSR1);
    CHECK((calls == 2) && (memory[0] == 5));
}


/* ---- R2 ---- */

static void mapping_stays(void)
{
    fill(1);
    CHECK(madvise(memory + 16 * PAGE, 16 * PAGE, MADV_HUGEPAGE) == 0);
    CHECK(madvise(memory, BYTES, MADV_SEQUENTIAL) == 0);
    CHECK(madvise(memory + PAGE, 2 * PAGE, MADV_DONTNEED) == 0);
    CHECK(has(memory, PAGE, 1));
    CHECK(has(memory + PAGE, 2 * PAGE, 0));
    CHECK(has(memory + 3 * PAGE, BYTES - 3 * PAGE, 1));
    CHECK((munmap(memory, PAGE) == -1) && (errno == EINVAL));
    CHECK((mprotect(memory, PAGE, PROT_READ) == -1) && (errno == EINVAL));
    CHECK(mremap(memory, PAGE, 2 * PAGE, MREMAP_MAYMOVE) == MAP_FAILED);
    CHECK(mlock(memory, PAGE) == -1);
    CHECK((mlockall(MCL_CURRENT) == -1) && (errno == EPERM));
    fill(2);
    CHECK(has(memory, BYTES, 2));
}


/* ---- R3 ---- */

static void files(int fd)
{
    struct iovec iov[2] = {{memory + 100, 5000}, {memory + 100000, 7000}};

    fill(7);
    CHECK(write(fd, memory, BYTES) == BYTES);
    fill(8);
    CHECK(pwrite(fd, memory, BYTES, BYTES) == BYTES);
    fill(9);
    CHECK(pread(fd, memory, BYTES, 0) == BYTES);
    CHECK(has(memory, BYTES, 7));
    fill(9);
    CHECK(lseek(fd, BYTES, SEEK_SET) == BYTES);
    CHECK(read(fd, memory, BYTES) == BYTES);
    CHECK(has(memory, BYTES, 8));
    fill(3);
    CHECK(pwritev(fd, iov, 2, 0) == 12000);
    CHECK(lseek(fd, 0, SEEK_SET) == 0);
    fill(4);
    CHECK(readv(fd, iov, 2) == 12000);
    CHECK(has(memory + 100, 5000, 3) && has(memory + 100000, 7000, 3));
    CHECK((memory[99] == 4) && (memory[5100] == 4));
    fill(5);
    CHECK(lseek(fd, 0, SEEK_SET) == 0);
    CHECK(writev(fd, iov, 2) == 12000);
    fill(6);
    CHECK(preadv(fd, iov, 2, 0) == 12000);
    CHECK(has(memory + 100, 5000, 5) && has(memory + 100000, 7000, 5));
}

static void streams(const char *path)
{
    FILE *file = fopen(path, "w+");

    CHECK(file != NULL);
    fill(7);
    CHECK(fwrite(memory, 1000, BYTES / 1000, file) == BYTES / 1000);
    fill(65);
    CHECK(fwrite_unlocked(memory, 1, 20000, file) == 20000);
    rewind(file);
    fill(9);
    CHECK(fread(memory, 1000, BYTES / 1000, file) == BYTES / 1000);
    CHECK(has(memory, BYTES / 1000 * 1000, 7));
    CHECK(fread_unlocked(memory, 1, BYTES, file) == 20000);
    CHECK(has(memory, 20000, 65));
    fclose(file);
}

static void sockets(int type)
{
    struct iovec iov   = {memory + 200000, 30000};
    struct msghdr msg  = {.msg_iov = &iov, .msg_iovlen = 1};
    socklen_t length   = 0;
    int fds[2];

    CHECK(socketpair(AF_UNIX, type, 0, fds) == 0);
    fill(1);
    CHECK(send(fds[0], memory, 30000, 0) == 30000);
    fill(2);
    CHECK(recv(fds[1], memory, 60000, 0) == 30000);
    CHECK(has(memory, 30000, 1) && (memory[30000] == 2));
    fill(3);
    CHECK(sendmsg(fds[0], &msg, 0) == 30000);
    fill(4);
    CHECK(recvmsg(fds[1], &msg, 0) == 30000);
    CHECK(has(iov.iov_base, 30000, 3));
    fill(5);
    CHECK(sendto(fds[0], memory, 30000, 0, NULL, 0) == 30000);
    fill(6);
    CHECK(recvfrom(fds[1], memory, 30000, 0, NULL, &length) == 30000);
    CHECK(has(memory, 30000, 5));
    close(fds[0]);
    close(fds[1]);
}

/* libc reads into memory of its own; with --min 512 it could be remote */
static void own_buffers(void)
{
    FILE *file = fopen("/proc/self/maps", "r");
    DIR *dir   = opendir("/proc/self");

    CHECK((file != NULL) && (dir != NULL));
    CHECK((fgetc(file) != EOF) && (readdir(dir) != NULL));
    rewind(file);
    rewinddir(dir);
    leave();
    CHECK((fgetc(file) != EOF) && (readdir(dir) != NULL));
    fclose(file);
    closedir(dir);
}

static void system_calls(void)
{
    struct epoll_event *events = (struct epoll_event*)memory;
    struct epoll_event event   = {.events = EPOLLIN, .data.u32 = 42};
    char path[]                = "/tmp/rmem_rules.XXXXXX";
    int fd                     = mkstemp(path);
    int epoll                  = epoll_create1(0);
    int fds[2];

    own_buffers();
    files(fd);
    streams(path);
    unlink(path);
    sockets(SOCK_STREAM);
    sockets(SOCK_DGRAM);
    CHECK(pipe(fds) == 0);
    CHECK(write(fds[1], "x", 1) == 1);
    CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, fds[0], &event) == 0);
    fill(1);
    CHECK(epoll_wait(epoll, events, BYTES / sizeof(*events), -1) == 1);
    CHECK(events[0].data.u32 == 42);
    fill(1);
    CHECK(getrandom(memory, BYTES, 0) == BYTES);
    CHECK(!has(memory, BYTES, 1));
    /* The rest of a pipe is not waited for */
    fill(1);
    CHECK(read(fds[0], memory, BYTES) == 1);
    CHECK((memory[0] == 'x') && (memory[1] == 1));
    CHECK(fcntl(fds[0], F_SETPIPE_SZ, PART) == PART);
    CHECK(write(fds[1], memory, PART) == PART);
    fill(2);
    CHECK(read(fds[0], memory, BYTES) == PART);
}


/* ---- R5 ---- */

static void children(char *self)
{
    char *args[] = {self, "mapping", NULL};
    unsigned char *local;
    int status;
    pid_t pid;

    fill(1);
    pid = fork();
    if (pid == 0) {
        local = malloc(BYTES);
        memset(local, 1, BYTES);
        free(local);
        free(memory);
        execv(self, args);
        _exit(2);
    }
    CHECK((waitpid(pid, &status, 0) == pid) && (status == 0));
    CHECK(has(memory, BYTES, 1));
}

int main(int argc, char **argv)
{
    void *grown;
    size_t i;

    CHECK(argc == 2);
    memory = malloc(BYTES);
    if (!strcmp(argv[1], "handler")) {
        handler_stays();
    } else if (!strcmp(argv[1], "mapping")) {
        mapping_stays();
    } else if (!strcmp(argv[1], "calls")) {
        system_calls();
    } else if (!strcmp(argv[1], "children")) {
        children(argv[0]);
    } else {
        CHECK(!strcmp(argv[1], "allocations"));
        fill(1);
        grown = realloc(memory, 3 * BYTES);
        CHECK(has(grown, BYTES, 1));
        leave();
        memory = realloc(grown, 100);
        CHECK(has(memory, 100, 1));
        free(memory);
        for (i = 64; i < 2 * BYTES; i += i / 2) {
            CHECK(posix_memalign((void**)&memory, 4096, i) == 0);
            CHECK((uintptr_t)memory % 4096 == 0);
            grown      = malloc(i); /* So that their chunk stays in use */
            touched    = grown;
            touched[0] = 2;
            touched    = memory; /* No compiler knows what is there then */
            touched[0] = 1;
            free(memory);
            memory  = calloc(1, i);
            touched = memory;
            CHECK(touched[0] == 0);
            free(grown);
            CHECK(has(memory, i, 0));
            memset(memory, 1, i);
            free(memory);
        }
    }
    return 0;
}
