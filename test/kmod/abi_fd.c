/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * The interface between processes: which process may do what with which
 * descriptor, and the limits of users.
 */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "kmod_test.h"

#include <fcntl.h>
#include <grp.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define NUM_PAGES 64
#define PARAMETER "/sys/module/nprdma/parameters/"


static void send_fd(int socket, int fd)
{
    union {
        struct cmsghdr head;
        char           buffer[CMSG_SPACE(sizeof(int))];
    } control            = {.buffer = {0}};
    char byte            = 0;
    struct iovec iov     = {&byte, 1};
    struct msghdr msg    = {.msg_iov        = &iov,
                            .msg_iovlen     = 1,
                            .msg_control    = &control,
                            .msg_controllen = sizeof(control)};
    struct cmsghdr *cmsg = CMSG_FIRSTHDR(&msg);

    cmsg->cmsg_level = SOL_SOCKET;
    cmsg->cmsg_type  = SCM_RIGHTS;
    cmsg->cmsg_len   = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(cmsg), &fd, sizeof(fd));
    CHECK_EQ(sendmsg(socket, &msg, 0), 1);
}

static int receive_fd(int socket)
{
    union {
        struct cmsghdr head;
        char           buffer[CMSG_SPACE(sizeof(int))];
    } control;
    char byte;
    struct iovec iov  = {&byte, 1};
    struct msghdr msg = {.msg_iov        = &iov,
                         .msg_iovlen     = 1,
                         .msg_control    = &control,
                         .msg_controllen = sizeof(control)};
    int fd;

    CHECK_EQ(recvmsg(socket, &msg, 0), 1);
    CHECK(CMSG_FIRSTHDR(&msg) != NULL);
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&msg)), sizeof(fd));
    return fd;
}

/* Every call on a context of another process */
static void check_refused(int ctx, uint32_t region)
{
    union {
        struct {
            uint32_t size, flags, region;
        } head;
        uint8_t bytes[512];
    } arg;
    unsigned nr;

    for (nr = 0; nr <= _IOC_NR(NPRDMA_IOC_STATS); ++nr) {
        memset(&arg, 0, sizeof(arg));
        arg.head.size   = sizeof(arg);
        arg.head.region = region;
        CHECK_CALL(ctx, _IO(NPRDMA_IOC_TYPE, nr), &arg, EPERM);
    }
}

static void fork_is_refused(void)
{
    int ctx = kmod_open();
    unsigned char vec;
    kmod_region_t region;
    pid_t pid;

    kmod_region_create(&region, ctx, kmod_map(NUM_PAGES * PAGE),
                       NUM_PAGES * PAGE);
    memset(region.memory, 1, region.length);
    kmod_populate_all(&region, 0, NUM_PAGES, NPRDMA_IOC_POPULATE_WRITE);
    pid = fork();
    if (pid == 0) {
        check_refused(ctx, region.id);
        /* The child has not inherited the mapping of the states */
        CHECK(mincore(region.header, PAGE, &vec) < 0);
        CHECK_EQ(errno, ENOMEM);
        /* Closing it in the child does not close the parent's */
        close(ctx);
        _exit(0);
    }
    CHECK_EQ(kmod_wait(pid), 0);
    CHECK_EQ(region.header->dead, 0);
    kmod_populate_all(&region, 0, NUM_PAGES, NPRDMA_IOC_POPULATE_WRITE);
    kmod_region_destroy(&region);
}

static void exec_is_refused(void)
{
    char number[16];
    int ctx = open(NPRDMA_DEVICE_PATH, O_RDWR); /* not closed by exec */
    pid_t pid;

    CHECK(ctx >= 0, "%m");
    pid = fork();
    if (pid == 0) {
        ctx = open(NPRDMA_DEVICE_PATH, O_RDWR);
        snprintf(number, sizeof(number), "%d", ctx);
        execl("/proc/self/exe", "abi_fd", "refused", number, NULL);
        _exit(99);
    }
    CHECK_EQ(kmod_wait(pid), 0);
}

static void threads_and_vfork_share(void)
{
    struct nprdma_ioc_query query = {.size = sizeof(query)};
    int ctx                       = kmod_open();
    volatile int error            = -1;
    pid_t pid;

    pid = vfork();
    if (pid == 0) {
        error = kmod_call(ctx, NPRDMA_IOC_QUERY, &query);
        _exit(0);
    }
    CHECK_EQ(kmod_wait(pid), 0);
    CHECK_EQ(error, 0);
}

/* A context that is passed on is useless; a passed states descriptor can be
 * mapped */
static void passed_on(void)
{
    int sockets[2];
    struct nprdma_ioc_states_info info = {.size = sizeof(info)};
    struct nprdma_states_header *header;
    const volatile uint32_t *words;
    kmod_region_t region;
    int ctx, states;
    char byte = 0;
    pid_t pid;

    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0, "%m");
    pid = fork();
    if (pid == 0) {
        close(sockets[1]);
        ctx    = receive_fd(sockets[0]);
        states = receive_fd(sockets[0]);
        check_refused(ctx, 1);
        close(ctx);
        CHECK_CALL(states, NPRDMA_IOC_STATES_INFO, &info, 0);
        CHECK_EQ(info.abi, NPRDMA_ABI_VERSION);
        CHECK_EQ(info.owner, 0);
        CHECK_EQ(info.length, NUM_PAGES * PAGE);
        header = mmap(NULL, info.states_size, PROT_READ, MAP_SHARED, states, 0);
        CHECK(header != MAP_FAILED, "%m");
        close(states);
        words = (void*)((uint8_t*)header + info.states_offset);
        CHECK_EQ(header->magic, NPRDMA_STATES_MAGIC);
        CHECK_EQ(header->id, info.id);
        CHECK_EQ(header->address, info.address);
        CHECK_EQ(header->signature, info.signature);
        CHECK_EQ(words[0] & NPRDMA_PAGE_BITS, NPRDMA_PAGE_BITS);
        CHECK_EQ(words[NUM_PAGES - 1], 0);
        CHECK_EQ(write(sockets[0], &byte, 1), 1);
        /* The owner exits: all pages are absent, and the mapping stays */
        CHECK_EQ(read(sockets[0], &byte, 1), 0);
        CHECK_EQ(words[0] & NPRDMA_PAGE_BITS, 0);
        CHECK_EQ(header->dead, 1);
        _exit(0);
    }

    close(sockets[0]);
    ctx = kmod_open();
    kmod_region_create(&region, ctx, kmod_map(NUM_PAGES * PAGE),
                       NUM_PAGES * PAGE);
    kmod_populate_all(&region, 0, 1, NPRDMA_IOC_POPULATE_WRITE);
    CHECK_CALL(region.states_fd, NPRDMA_IOC_STATES_INFO, &info, 0);
    CHECK_EQ(info.owner, 1);
    send_fd(sockets[1], ctx);
    send_fd(sockets[1], region.states_fd);
    CHECK_EQ(read(sockets[1], &byte, 1), 1);
    close(ctx);
    CHECK_EQ(region.header->dead, 1);
    close(sockets[1]);
    CHECK_EQ(kmod_wait(pid), 0);
}

static int map_error(int fd, size_t length, int prot, int flags, off_t offset)
{
    void *memory = mmap(NULL, length, prot, flags, fd, offset);

    if (memory == MAP_FAILED) {
        return errno;
    }
    munmap(memory, length);
    return 0;
}

static void states_are_read_only(void)
{
    struct nprdma_ioc_states_info info = {.size = sizeof(info)};
    int ctx                            = kmod_open();
    kmod_region_t region;
    struct iovec from, to;
    uint32_t word = 3;
    char path[64];
    size_t size;
    int fd, mem;

    kmod_region_create(&region, ctx, kmod_map(NUM_PAGES * PAGE),
                       NUM_PAGES * PAGE);
    fd   = region.states_fd;
    size = region.states_size;
    CHECK_EQ(fcntl(fd, F_GETFD), FD_CLOEXEC);
    CHECK_EQ(fcntl(fd, F_GETFL) & O_ACCMODE, O_RDONLY);

    CHECK_EQ(map_error(fd, size, PROT_READ, MAP_SHARED, 0), 0);
    CHECK_EQ(map_error(fd, PAGE, PROT_READ, MAP_SHARED, PAGE), 0);
    CHECK_EQ(map_error(fd, size, PROT_READ | PROT_WRITE, MAP_SHARED, 0),
             EACCES);
    CHECK_EQ(map_error(fd, size, PROT_WRITE, MAP_SHARED, 0), EACCES);
    CHECK_EQ(map_error(fd, size, PROT_READ | PROT_EXEC, MAP_SHARED, 0), EPERM);
    CHECK_EQ(map_error(fd, size, PROT_READ, MAP_PRIVATE, 0), EINVAL);
    CHECK_EQ(map_error(fd, size + PAGE, PROT_READ, MAP_SHARED, 0), EINVAL);
    CHECK_EQ(map_error(fd, PAGE, PROT_READ, MAP_SHARED, size), EINVAL);
    CHECK_EQ(map_error(fd, size, PROT_READ, MAP_SHARED, PAGE), EINVAL);

    CHECK(mprotect(region.header, size, PROT_READ | PROT_WRITE) < 0);
    CHECK_EQ(errno, EACCES);
    CHECK(mprotect(region.header, size, PROT_READ | PROT_EXEC) < 0);
    CHECK_EQ(errno, EACCES);
    CHECK(mremap(region.header, size, size + PAGE, MREMAP_MAYMOVE) ==
          MAP_FAILED);
    CHECK(write(fd, &word, sizeof(word)) < 0);
    CHECK(read(fd, &word, sizeof(word)) < 0);
    CHECK(ftruncate(fd, 0) < 0);

    /* Nor opened for writing by its name, nor written by a debugger */
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    CHECK(open(path, O_RDWR) < 0);
    from.iov_base = &word;
    from.iov_len  = sizeof(word);
    to.iov_base   = (void*)region.words;
    to.iov_len    = sizeof(word);
    CHECK(process_vm_writev(getpid(), &from, 1, &to, 1, 0) < 0);
    mem = open("/proc/self/mem", O_RDWR);
    CHECK(mem >= 0, "%m");
    CHECK(pwrite(mem, &word, sizeof(word), (off_t)region.words) < 0);
    CHECK_EQ(region.words[0], 0);

    CHECK_CALL(fd, NPRDMA_IOC_QUERY, &info, ENOTTY);
    info.flags = 1;
    CHECK_CALL(fd, NPRDMA_IOC_STATES_INFO, &info, EINVAL);
    info.flags = 0;
    info.size  = 8;
    CHECK_CALL(fd, NPRDMA_IOC_STATES_INFO, &info, EINVAL);
    info.size  = PAGE + 1;
    CHECK_CALL(fd, NPRDMA_IOC_STATES_INFO, &info, E2BIG);
    CHECK_CALL(fd, NPRDMA_IOC_STATES_INFO, NULL, EFAULT);
}

static int create_region(int ctx, size_t length, int *fd)
{
    struct nprdma_ioc_region_create create = {
        .size = sizeof(create), .address = 1 << 30, .length = length
    };
    int ret = kmod_call(ctx, NPRDMA_IOC_REGION_CREATE, &create);

    *fd = (ret == 0) ? create.states_fd : -1;
    return ret;
}

/* As many regions as the limits permit, and the error of the next one */
static void fill(int ctx, size_t length, int expected_count, int expected)
{
    int count, fd;

    for (count = 0; count <= expected_count; ++count) {
        if (create_region(ctx, length, &fd) != 0) {
            break;
        }
        close(fd);
    }
    CHECK_EQ(count, expected_count);
    CHECK_EQ(create_region(ctx, length, &fd), expected);
}

static void set_parameter(const char *path, const char *value)
{
    CHECK_EQ(kmod_write_file(path, value), 0);
}

/* Runs as a user without privileges; the device is open before the change of
 * user */
static void limited_user(void)
{
    int ctx = kmod_open(), other = kmod_open();
    struct nprdma_ioc_query query = {.size = sizeof(query)};
    int total = open(PARAMETER "max_total_bytes", O_WRONLY);
    int bytes = open(PARAMETER "max_user_bytes", O_WRONLY);
    int fd;

    set_parameter(PARAMETER "max_user_regions", "10");
    set_parameter(PARAMETER "max_user_bytes", "500000");
    CHECK(setgroups(0, NULL) == 0 && setgid(65534) == 0, "%m");
    CHECK(setresuid(65534, 65534, 65534) == 0, "%m");
    /* It was opened by root, and is accounted to root */
    CHECK_CALL(other, NPRDMA_IOC_QUERY, &query, 0);
    close(ctx);
    ctx = kmod_open();

    fill(ctx, PAGE, 10, EDQUOT);
    CHECK_CALL(ctx, NPRDMA_IOC_QUERY, &query, 0);
    CHECK_EQ(query.user_regions, 10);
    CHECK(query.user_bytes >= 10 * 2 * PAGE);
    CHECK_EQ(query.max_user_regions, 10);
    close(ctx);

    /* Closed regions count no more. 1 MiB of states exceeds the limit. */
    ctx = kmod_open();
    CHECK_CALL(ctx, NPRDMA_IOC_QUERY, &query, 0);
    CHECK_EQ(query.user_regions, 0);
    CHECK_EQ(query.user_bytes, 0);
    CHECK_EQ(create_region(ctx, 1 << 30, &fd), EDQUOT);
    CHECK_CALL(ctx, NPRDMA_IOC_QUERY, &query, 0);
    CHECK_EQ(query.user_bytes, 0);
    CHECK_EQ(query.user_regions, 0);
    CHECK_EQ(write(bytes, "1000000000", 10), 10);
    CHECK_EQ(write(total, "500000", 6), 6);
    CHECK_EQ(create_region(ctx, 1 << 30, &fd), ENOSPC);
    CHECK_EQ(create_region(ctx, 1 << 20, &fd), 0);
}

static uint64_t user_bytes(int ctx)
{
    struct nprdma_ioc_query query = {.size = sizeof(query)};

    CHECK_CALL(ctx, NPRDMA_IOC_QUERY, &query, 0);
    return query.user_bytes;
}

/* Allow this many more bytes of kernel memory, by the parameter open as fd */
static void allow_more(int fd, int ctx, size_t bytes)
{
    char value[32];
    int length = snprintf(value, sizeof(value), "%llu",
                          (unsigned long long)user_bytes(ctx) + bytes);

    CHECK_EQ(pwrite(fd, value, length, 0), length);
}

/*
 * Each populated page takes 8 bytes of tables, so memory runs out later,
 * possibly during a registration. User 0 is limited only by the total.
 */
static void limited_tables(const char *parameter, uid_t uid, int expected)
{
    const size_t length = 16 << 20;
    int fd              = open(parameter, O_WRONLY);
    struct nprdma_ioc_register reg = {.size = sizeof(reg), .length = 1};
    struct nprdma_ioc_populate arg;
    kmod_region_t region;
    uint64_t bytes;
    int ret;

    CHECK(setresuid(uid, uid, uid) == 0, "%m");
    kmod_region_create(&region, kmod_open(), kmod_map(length), length);
    allow_more(fd, region.ctx, 3 * PAGE);
    CHECK_EQ(kmod_populate(&region, 0, length / PAGE, 0, &arg), expected);
    CHECK_EQ(arg.done, (uintptr_t)region.memory + (6 << 20));
    CHECK_EQ(arg.populated, 3 * 512);
    CHECK_EQ(kmod_count(&region, 0, 3 * 512, NPRDMA_PAGE_R), 3 * 512);

    allow_more(fd, region.ctx, PAGE);
    bytes       = user_bytes(region.ctx) + PAGE;
    reg.region  = region.id;
    reg.address = (uintptr_t)region.memory;
    do {
        reg.registration = 0;
        ret = kmod_call(region.ctx, NPRDMA_IOC_REGISTER, &reg);
        CHECK((ret == expected) || (user_bytes(region.ctx) <= bytes));
    } while (ret == 0);
    CHECK_EQ(ret, expected);
    kmod_region_destroy(&region);
}

static void total_is_limited(void)
{
    limited_tables(PARAMETER "max_total_bytes", 0, ENOSPC);
}

/* CAP_SYS_RESOURCE exceeds the limits of users, as long as the process has
 * it */
static void privileged_user(void)
{
    int ctx = kmod_open();
    int fd, i;

    set_parameter(PARAMETER "max_user_regions", "1");
    set_parameter(PARAMETER "max_user_bytes", "1");
    for (i = 0; i < 3; ++i) {
        CHECK_EQ(create_region(ctx, PAGE, &fd), 0);
        close(fd);
    }
    CHECK(setresuid(65534, 65534, 65534) == 0, "%m");
    CHECK_EQ(create_region(ctx, PAGE, &fd), EDQUOT);
}

static void user_is_limited(void)
{
    limited_tables(PARAMETER "max_user_bytes", 65534, EDQUOT);
}

/* In a process of its own. Afterwards the limits are restored. */
static void run_limited(void (*run)(void))
{
    static const char *const names[] = {PARAMETER "max_user_regions",
                                        PARAMETER "max_user_bytes",
                                        PARAMETER "max_total_bytes"};
    char old[3][32];
    int status, i;
    pid_t pid;

    for (i = 0; i < 3; ++i) {
        snprintf(old[i], sizeof(old[i]), "%lld",
                 kmod_read_number(names[i], ""));
    }
    CHECK(chmod(NPRDMA_DEVICE_PATH, 0666) == 0, "%m");
    pid = fork();
    if (pid == 0) {
        run();
        fflush(stdout);
        _exit(0);
    }
    status = kmod_wait(pid);
    for (i = 0; i < 3; ++i) {
        set_parameter(names[i], old[i]);
    }
    CHECK_EQ(status, 0);
}

static void limits(void)
{
    run_limited(limited_user);
    run_limited(total_is_limited);
    run_limited(user_is_limited);
    run_limited(privileged_user);
}

static const kmod_case_t cases[] = {
    {"fork_is_refused", fork_is_refused},
    {"exec_is_refused", exec_is_refused},
    {"threads_and_vfork_share", threads_and_vfork_share},
    {"passed_on", passed_on},
    {"states_are_read_only", states_are_read_only},
    {"limits", limits},
    {NULL, NULL}
};

int main(int argc, char **argv)
{
    if ((argc == 3) && !strcmp(argv[1], "refused")) {
        check_refused(atoi(argv[2]), 1);
        return 0;
    }
    return kmod_main(cases, argc, argv);
}
