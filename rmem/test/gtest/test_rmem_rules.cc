/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * The rules of rmem_preload.h. These tests are a program that knows nothing of
 * remote memory: main() runs it under rmem-run, with a server and a cache of
 * 8 MiB. RMEM_TEST_OPTION: one more option of rmem-run.
 */

#include "memd.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <thread>
#include <vector>

#include <dlfcn.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>


/* The address that the program has of it is not that of libc */
extern "C" pid_t getpid() noexcept
{
    return syscall(SYS_getpid);
}

class test_rmem_rules : public ::testing::Test {
protected:
    static constexpr size_t page  = 4096;
    static constexpr size_t bytes = 4 << 20, others = 16 << 20;

    void SetUp() override
    {
        m_memory = (unsigned char*)calloc(1, bytes);
        ASSERT_TRUE(is_window(m_memory));
    }

    void TearDown() override
    {
        free(m_memory);
    }

    /* The mapping of the program that has an address */
    static std::string mapping(const void *address)
    {
        std::ifstream maps("/proc/self/maps");
        std::string   line;
        uintptr_t     start = 0, end = 0;

        while (std::getline(maps, line)) {
            sscanf(line.c_str(), "%zx-%zx", &start, &end);
            if (((uintptr_t)address >= start) && ((uintptr_t)address < end)) {
                return line;
            }
        }
        return "";
    }

    /* The window is one mapping of the size that main() has chosen */
    static bool is_window(const void *address)
    {
        uintptr_t start = 0, end = 0;

        sscanf(mapping(address).c_str(), "%zx-%zx", &start, &end);
        return end - start == 256 << 20;
    }

    static void leave()
    {
        static auto memory = (volatile unsigned char*)calloc(1, others);

        for (size_t i = 0; i < 2 * others; i += page) {
            memory[i % others] += 1;
        }
    }

    /* All of the memory has left then */
    void fill(int value)
    {
        unsigned char here[bytes / page];
        unsigned      count = 0;

        memset(m_memory, value, bytes);
        leave();
        ASSERT_EQ(0, mincore(m_memory, bytes, here));
        for (unsigned char one : here) {
            count += one & 1;
        }
        ASSERT_EQ(0u, count);
    }

    bool has(size_t at, size_t length, int value) const
    {
        return (m_memory[at] == value) &&
               !memcmp(m_memory + at, m_memory + at + 1, length - 1);
    }

    unsigned char *m_memory;
};


/* ---- R1 ---- */

static volatile int            calls;
static volatile unsigned char *touched;

TEST_F(test_rmem_rules, handler_stays)
{
    struct sigaction action = {}, old;
    sigset_t         all;
    unsigned char    *empty;

    calls               = 0;
    action.sa_flags     = SA_SIGINFO;
    action.sa_sigaction = [](int, siginfo_t *info, void*) {
        ++calls;
        mmap((void*)((uintptr_t)info->si_addr & -page), page,
             PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
             -1, 0);
    };
    fill(1);
    ASSERT_EQ(0, sigaction(SIGBUS, &action, nullptr));
    EXPECT_TRUE(has(0, bytes, 1));
    EXPECT_EQ(0, calls);
    empty = (unsigned char*)mmap(nullptr, page, PROT_READ | PROT_WRITE,
                                 MAP_SHARED, memfd_create("empty", 0), 0);
    EXPECT_EQ(0, empty[0]);
    EXPECT_EQ(1, calls);
    ASSERT_EQ(0, sigaction(SIGBUS, nullptr, &old));
    EXPECT_EQ(action.sa_sigaction, old.sa_sigaction);
    signal(SIGBUS, SIG_DFL);

    fill(2);
    sigfillset(&all);
    ASSERT_EQ(0, sigprocmask(SIG_BLOCK, &all, nullptr));
    EXPECT_TRUE(has(0, bytes, 2));
    fill(3);
    ASSERT_EQ(0, pthread_sigmask(SIG_SETMASK, &all, nullptr));
    EXPECT_TRUE(has(0, bytes, 3));
    fill(4);
    action.sa_handler = [](int) { ++calls; *touched += 1; };
    action.sa_flags   = 0;
    sigfillset(&action.sa_mask);
    touched = m_memory;
    ASSERT_EQ(0, sigaction(SIGUSR1, &action, nullptr));
    ASSERT_EQ(0, sigprocmask(SIG_UNBLOCK, &all, nullptr));
    raise(SIGUSR1);
    EXPECT_EQ(2, calls);
    EXPECT_EQ(5, m_memory[0]);
}


/* ---- R2 ---- */

TEST_F(test_rmem_rules, mapping_stays)
{
    std::string before = mapping(m_memory);

    fill(1);
    EXPECT_EQ(0, madvise(m_memory + 16 * page, 16 * page, MADV_HUGEPAGE));
    EXPECT_EQ(0, madvise(m_memory, bytes, MADV_SEQUENTIAL));
    EXPECT_EQ(0, madvise(m_memory + page, 2 * page, MADV_DONTNEED));
    EXPECT_TRUE(has(0, page, 1));
    EXPECT_TRUE(has(page, 2 * page, 0));
    EXPECT_TRUE(has(3 * page, bytes - 3 * page, 1));
    EXPECT_EQ(-1, munmap(m_memory, page));
    EXPECT_EQ(EINVAL, errno);
    EXPECT_EQ(-1, mprotect(m_memory, page, PROT_READ));
    EXPECT_EQ(EINVAL, errno);
    EXPECT_EQ(MAP_FAILED, mremap(m_memory, page, 2 * page, MREMAP_MAYMOVE));
    EXPECT_EQ(-1, mlock(m_memory, page));
    EXPECT_EQ(-1, mlockall(MCL_CURRENT));
    EXPECT_EQ(EPERM, errno);
    EXPECT_EQ(before, mapping(m_memory));
    fill(2);
    EXPECT_TRUE(has(0, bytes, 2));
}


/* ---- R3 ---- */

class test_rmem_rules_calls : public test_rmem_rules {
protected:
    void SetUp() override
    {
        test_rmem_rules::SetUp();
        m_fd = mkstemp(m_path);
        ASSERT_GE(m_fd, 0);
    }

    void TearDown() override
    {
        close(m_fd);
        unlink(m_path);
        test_rmem_rules::TearDown();
    }

    iovec at(size_t offset, size_t length) const
    {
        return {m_memory + offset, length};
    }

    void socket_pair(int type)
    {
        ASSERT_EQ(0, socketpair(AF_UNIX, type, 0, m_fds));
    }

    void close_pair()
    {
        close(m_fds[0]);
        close(m_fds[1]);
    }

    void messages(int type)
    {
        iovec     iov    = at(200000, 30000);
        msghdr    msg    = {};
        socklen_t length = 0;

        socket_pair(type);
        msg.msg_iov    = &iov;
        msg.msg_iovlen = 1;
        fill(1);
        EXPECT_EQ(30000, send(m_fds[0], m_memory, 30000, 0));
        fill(2);
        EXPECT_EQ(30000, recv(m_fds[1], m_memory, 60000, MSG_PEEK));
        fill(2);
        EXPECT_EQ(30000, recv(m_fds[1], m_memory, 60000, 0));
        EXPECT_TRUE(has(0, 30000, 1) && (m_memory[30000] == 2));
        fill(3);
        EXPECT_EQ(30000, sendmsg(m_fds[0], &msg, 0));
        fill(4);
        EXPECT_EQ(30000, recvmsg(m_fds[1], &msg, 0));
        EXPECT_TRUE(has(200000, 30000, 3));
        fill(5);
        EXPECT_EQ(30000, sendto(m_fds[0], m_memory, 30000, 0, nullptr, 0));
        fill(6);
        EXPECT_EQ(30000, recvfrom(m_fds[1], m_memory, 30000, 0, nullptr,
                                  &length));
        EXPECT_TRUE(has(0, 30000, 5));
        close_pair();
    }

    char m_path[32] = "rmem_rules.XXXXXX";
    int  m_fd;
    int  m_fds[2];
};

TEST_F(test_rmem_rules_calls, files)
{
    iovec iov[2] = {at(100, 5000), at(100000, 7000)};

    fill(7);
    EXPECT_EQ((ssize_t)bytes, write(m_fd, m_memory, bytes));
    fill(8);
    EXPECT_EQ((ssize_t)bytes, pwrite(m_fd, m_memory, bytes, bytes));
    fill(9);
    EXPECT_EQ((ssize_t)bytes, pread(m_fd, m_memory, bytes, 0));
    EXPECT_TRUE(has(0, bytes, 7));
    fill(9);
    EXPECT_EQ((off_t)bytes, lseek(m_fd, bytes, SEEK_SET));
    EXPECT_EQ((ssize_t)bytes - 1, read(m_fd, m_memory, bytes - 1));
    EXPECT_TRUE(has(0, bytes - 1, 8) && (m_memory[bytes - 1] == 9));
    fill(3);
    EXPECT_EQ(12000, pwritev(m_fd, iov, 2, 0));
    EXPECT_EQ(0, lseek(m_fd, 0, SEEK_SET));
    fill(4);
    EXPECT_EQ(12000, readv(m_fd, iov, 2));
    EXPECT_TRUE(has(100, 5000, 3) && has(100000, 7000, 3));
    EXPECT_TRUE((m_memory[99] == 4) && (m_memory[5100] == 4));
    fill(5);
    EXPECT_EQ(0, lseek(m_fd, 0, SEEK_SET));
    EXPECT_EQ(12000, writev(m_fd, iov, 2));
    fill(6);
    EXPECT_EQ(12000, preadv(m_fd, iov, 2, 0));
    EXPECT_TRUE(has(100, 5000, 5) && has(100000, 7000, 5));
}

/* At an offset, or where the file is, which may be a stream */
TEST_F(test_rmem_rules_calls, flags)
{
    iovec iov = at(0, bytes);

    fill(1);
    EXPECT_EQ((ssize_t)bytes, pwritev2(m_fd, &iov, 1, 0, RWF_DSYNC));
    EXPECT_EQ((ssize_t)bytes, pwritev2(m_fd, &iov, 1, -1, 0));
    fill(2);
    EXPECT_EQ(0, preadv2(m_fd, &iov, 1, -1, 0));
    EXPECT_EQ((ssize_t)bytes - 1, preadv2(m_fd, &iov, 1, 1, 0));
    EXPECT_TRUE(has(0, bytes - 1, 1) && (m_memory[bytes - 1] == 2));
    EXPECT_EQ(-1, preadv(m_fd, &iov, 1, -1));
    EXPECT_EQ(EINVAL, errno);
    socket_pair(SOCK_STREAM);
    EXPECT_EQ(1, send(m_fds[0], "x", 1, 0));
    EXPECT_EQ(1, preadv2(m_fds[1], &iov, 1, -1, 0));
    EXPECT_EQ('x', m_memory[0]);
    close_pair();
}

/* Several buffers, one of them local, and more than one part */
TEST_F(test_rmem_rules_calls, long_vectors)
{
    std::vector<char> local(3000, 2);
    iovec             iov[3] = {at(0, 2000000), {local.data(), 3000},
                                at(2000001, 2000000)};

    fill(1);
    EXPECT_EQ(4003000, writev(m_fd, iov, 3));
    fill(0);
    std::fill(local.begin(), local.end(), 0);
    EXPECT_EQ(4003000, preadv(m_fd, iov, 3, 0));
    EXPECT_TRUE(has(0, 2000000, 1) && has(2000001, 2000000, 1));
    EXPECT_EQ(0, m_memory[2000000]);
    EXPECT_EQ(std::vector<char>(3000, 2), local);
}

TEST_F(test_rmem_rules_calls, errors)
{
    iovec        wrong[2] = {at(0, 100), {(void*)8, 100}};
    volatile int count    = -1; /* For the compiler */

    fill(1);
    EXPECT_EQ(-1, writev(m_fd, wrong + 1, 1));
    EXPECT_EQ(EFAULT, errno);
    ASSERT_EQ(200, write(m_fd, m_memory, 200));
    fill(2);
    EXPECT_EQ(100, preadv(m_fd, wrong, 2, 0));
    EXPECT_TRUE(has(0, 100, 1) && (m_memory[100] == 2));
    std::swap(wrong[0], wrong[1]);
    EXPECT_EQ(-1, writev(m_fd, wrong, 2));
    EXPECT_EQ(EFAULT, errno);
    EXPECT_EQ(0, pread(m_fd, m_memory, 0, 0));
    for (size_t length : {100u, 100000u}) {
        EXPECT_EQ(-1, read(-1, m_memory, length));
        EXPECT_EQ(EBADF, errno);
    }
    EXPECT_EQ(-1, readv(m_fd, wrong, count));
    EXPECT_EQ(EINVAL, errno);
}

/* Local memory is aligned as that of the program is */
TEST_F(test_rmem_rules_calls, direct)
{
    int fd = open(m_path, O_RDWR | O_DIRECT);

    if (fd < 0) {
        ASSERT_EQ(EINVAL, errno); /* A file system without it */
        return;
    }
    fill(1);
    EXPECT_EQ((ssize_t)bytes, write(fd, m_memory, bytes));
    fill(2);
    EXPECT_EQ((ssize_t)page, pread(fd, m_memory, page, 0));
    EXPECT_EQ((ssize_t)bytes - (ssize_t)page,
              pread(fd, m_memory + page, bytes - page, page));
    EXPECT_TRUE(has(0, bytes, 1));
    close(fd);
}

TEST_F(test_rmem_rules_calls, streams)
{
    FILE *file = fdopen(dup(m_fd), "w+");

    ASSERT_NE(nullptr, file);
    fill(7);
    EXPECT_EQ(bytes / 1000, fwrite(m_memory, 1000, bytes / 1000, file));
    fill(65);
    EXPECT_EQ(20000u, fwrite_unlocked(m_memory, 1, 20000, file));
    rewind(file);
    fill(9);
    EXPECT_EQ(bytes / 1000, fread(m_memory, 1000, bytes / 1000, file));
    EXPECT_TRUE(has(0, bytes / 1000 * 1000, 7));
    EXPECT_EQ(20000u, fread_unlocked(m_memory, 1, bytes, file));
    EXPECT_TRUE(has(0, 20000, 65));
    EXPECT_EQ(0u, fread(m_memory, 0, 5, file));
    fclose(file);
}

TEST_F(test_rmem_rules_calls, stream_sockets)
{
    messages(SOCK_STREAM);
}

TEST_F(test_rmem_rules_calls, datagrams)
{
    messages(SOCK_DGRAM);
}

/* A message is never divided; what the kernel leaves alone stays */
TEST_F(test_rmem_rules_calls, long_messages)
{
    const int size = 3 << 20;
    ssize_t   sent;

    socket_pair(SOCK_SEQPACKET);
    setsockopt(m_fds[0], SOL_SOCKET, SO_SNDBUFFORCE, &size, sizeof(size));
    fill(1);
    sent = send(m_fds[0], m_memory, 2 << 20, 0);
    if (sent < 0) {
        EXPECT_EQ(EMSGSIZE, errno); /* Only root may have such buffers */
    } else {
        EXPECT_EQ(2 << 20, sent);
        fill(2);
        EXPECT_EQ(2 << 20, recv(m_fds[1], m_memory, bytes, 0));
        EXPECT_TRUE(has(0, 2 << 20, 1) && (m_memory[2 << 20] == 2));
    }
    fill(3);
    EXPECT_EQ(30000, send(m_fds[0], m_memory, 30000, 0));
    fill(4);
    EXPECT_EQ(30000, recv(m_fds[1], m_memory, 100, MSG_TRUNC));
    EXPECT_TRUE(has(0, 100, 3) && has(100, 30000, 4));
    close_pair();
}

/* TCP discards what MSG_TRUNC receives, and writes nothing */
TEST_F(test_rmem_rules_calls, discarded_bytes)
{
    int         listener = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in local    = {};
    socklen_t   length   = sizeof(local);

    local.sin_family      = AF_INET;
    local.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ASSERT_EQ(0, bind(listener, (sockaddr*)&local, length));
    ASSERT_EQ(0, listen(listener, 1));
    ASSERT_EQ(0, getsockname(listener, (sockaddr*)&local, &length));
    m_fds[0] = socket(AF_INET, SOCK_STREAM, 0);
    ASSERT_EQ(0, connect(m_fds[0], (sockaddr*)&local, length));
    m_fds[1] = accept(listener, nullptr, nullptr);
    fill(1);
    EXPECT_EQ(100, send(m_fds[0], m_memory, 100, 0));
    fill(2);
    EXPECT_EQ(100, recv(m_fds[1], m_memory, 100, MSG_TRUNC));
    EXPECT_TRUE(has(0, bytes, 2));
    close(listener);
    close_pair();
}

TEST_F(test_rmem_rules_calls, all_of_a_stream)
{
    const size_t length = 3 << 20;

    socket_pair(SOCK_STREAM);
    fill(1);
    std::thread sender([&] {
        EXPECT_EQ((ssize_t)length, send(m_fds[0], m_memory, length, 0));
    });
    std::vector<char> local(length);
    EXPECT_EQ((ssize_t)length, recv(m_fds[1], local.data(), length,
                                    MSG_WAITALL));
    sender.join();
    std::thread again([&] {
        EXPECT_EQ((ssize_t)length, send(m_fds[0], local.data(), length, 0));
    });
    fill(2);
    EXPECT_EQ((ssize_t)length, recv(m_fds[1], m_memory, length, MSG_WAITALL));
    EXPECT_TRUE(has(0, length, 1) && (m_memory[length] == 2));
    again.join();
    close_pair();
}

/* Of msghdr all is in the window: the structure, buffers, name, control data */
TEST_F(test_rmem_rules_calls, names_and_control_data)
{
    auto        *msg   = (msghdr*)m_memory;
    auto        *iov   = (iovec*)(m_memory + 10 * page);
    auto        *name  = (sockaddr_in*)(m_memory + 20 * page);
    auto        *head  = (cmsghdr*)(m_memory + 30 * page);
    auto        *size  = (socklen_t*)(m_memory + 40 * page);
    const int   yes    = 1;
    int         server = socket(AF_INET, SOCK_DGRAM, 0);
    int         client = socket(AF_INET, SOCK_DGRAM, 0);
    sockaddr_in local  = {};
    socklen_t   length = sizeof(local);

    local.sin_family      = AF_INET;
    local.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ASSERT_EQ(0, bind(server, (sockaddr*)&local, length));
    ASSERT_EQ(0, getsockname(server, (sockaddr*)&local, &length));
    setsockopt(server, IPPROTO_IP, IP_PKTINFO, &yes, sizeof(yes));
    memcpy(name, &local, sizeof(local));
    leave();
    EXPECT_EQ(3, sendto(client, "one", 3, 0, (sockaddr*)name, length));
    memset(name, 0, sizeof(*name));
    *iov = at(50 * page, 100);
    *msg = {name, sizeof(*name), iov, 1, head, 1000, 0};
    leave();
    ASSERT_EQ(3, recvmsg(server, msg, 0));
    EXPECT_EQ(0, memcmp(m_memory + 50 * page, "one", 3));
    EXPECT_EQ(htonl(INADDR_LOOPBACK), name->sin_addr.s_addr);
    EXPECT_EQ(sizeof(*name), msg->msg_namelen);
    EXPECT_EQ(CMSG_SPACE(sizeof(in_pktinfo)), msg->msg_controllen);
    EXPECT_EQ(IP_PKTINFO, head->cmsg_type);
    msg->msg_controllen = 0;
    iov->iov_len        = 3;
    leave();
    EXPECT_EQ(3, sendmsg(server, msg, 0));
    memset(name, 0, sizeof(*name));
    *size = sizeof(*name);
    leave();
    EXPECT_EQ(3, recvfrom(client, m_memory, 100, 0, (sockaddr*)name, size));
    EXPECT_EQ(local.sin_port, name->sin_port);
    EXPECT_EQ(sizeof(*name), *size);
    close(client);
    close(server);
}

TEST_F(test_rmem_rules_calls, pipes_and_events)
{
    auto        *events = (epoll_event*)m_memory;
    epoll_event event   = {};
    int         epoll   = epoll_create1(0);

    event.events   = EPOLLIN;
    event.data.u32 = 42;
    ASSERT_EQ(0, pipe(m_fds));
    ASSERT_EQ(1, write(m_fds[1], "x", 1));
    ASSERT_EQ(0, epoll_ctl(epoll, EPOLL_CTL_ADD, m_fds[0], &event));
    fill(1);
    EXPECT_EQ(1, epoll_wait(epoll, events, bytes / sizeof(*events), -1));
    EXPECT_EQ(42u, events[0].data.u32);
    EXPECT_TRUE(has(sizeof(event), page, 1));
    fill(1);
    EXPECT_EQ(1, epoll_pwait(epoll, events, 1, -1, nullptr));
    EXPECT_EQ(42u, events[0].data.u32);
    close(epoll);
    fill(1);
    EXPECT_EQ((ssize_t)bytes, getrandom(m_memory, bytes, 0));
    EXPECT_FALSE(has(bytes - 4096, 4096, 1));
    /* The rest of a pipe is not waited for */
    fill(1);
    EXPECT_EQ(1, read(m_fds[0], m_memory, bytes));
    EXPECT_TRUE((m_memory[0] == 'x') && has(1, bytes - 1, 1));
    ASSERT_EQ(1 << 20, fcntl(m_fds[0], F_SETPIPE_SZ, 1 << 20));
    EXPECT_EQ(1 << 20, write(m_fds[1], m_memory + 1, 1 << 20));
    fill(2);
    EXPECT_EQ(1 << 20, read(m_fds[0], m_memory, bytes));
    EXPECT_TRUE(has(0, 1 << 20, 1));
    close_pair();
}

/* Less than could be read would tell a program that nothing is left */
TEST_F(test_rmem_rules_calls, no_read_is_short)
{
    const int size  = 8 << 20;
    int       zeros = open("/dev/zero", O_RDONLY);
    ssize_t   sent, ready;

    fill(1);
    EXPECT_EQ((ssize_t)bytes, read(zeros, m_memory, bytes));
    EXPECT_TRUE(has(0, bytes, 0));
    close(zeros);
    socket_pair(SOCK_STREAM);
    setsockopt(m_fds[0], SOL_SOCKET, SO_SNDBUFFORCE, &size, sizeof(size));
    for (ssize_t length : {100, 32768, 32769, 50000, 3 << 20}) {
        SCOPED_TRACE(length);
        fill(1);
        sent = send(m_fds[0], m_memory, length, MSG_DONTWAIT);
        fill(2);
        ready = recv(m_fds[1], m_memory, bytes, 0);
        EXPECT_EQ(sent, ready);
        EXPECT_TRUE(has(0, ready, 1) && has(ready, bytes - ready, 2));
    }
    close_pair();
}

/* A writer that fills the pipe reports only the first bytes. What it adds when
 * a read has begun comes with that read, or nothing tells of it. */
TEST_F(test_rmem_rules_calls, pipe_is_read_empty)
{
    const size_t      total  = 3000000000;
    std::vector<char> block(300000);
    int               epoll  = epoll_create1(0);
    epoll_event       event  = {};
    int               num    = 1;
    size_t            length = 0;

    event.events = EPOLLIN | EPOLLET;
    ASSERT_EQ(0, pipe(m_fds));
    ASSERT_EQ(0, fcntl(m_fds[0], F_SETFL, O_NONBLOCK));
    ASSERT_EQ(0, epoll_ctl(epoll, EPOLL_CTL_ADD, m_fds[0], &event));
    std::thread writer([&] {
        for (size_t sent = 0; sent < total; sent += block.size()) {
            EXPECT_EQ((ssize_t)block.size(),
                      write(m_fds[1], block.data(), block.size()));
        }
    });
    while (length < total) {
        num = (num == 1) ? epoll_wait(epoll, &event, 1, 5000) : num;
        length += std::max<ssize_t>(read(m_fds[0], m_memory, 100000), 0);
    }
    writer.join();
    EXPECT_EQ(1, num) << "a read left something in the pipe";
    close(epoll);
    close_pair();
}

/* libc reads into 4 KiB of its own */
TEST_F(test_rmem_rules_calls, buffers_of_libc)
{
    FILE *file = fdopen(dup(m_fd), "r");

    ASSERT_EQ(100, pwrite(m_fd, m_memory, 100, 0));
    EXPECT_EQ(0, fgetc(file));
    leave();
    rewind(file);
    EXPECT_EQ(0, fgetc(file));
    EXPECT_EQ(0, setvbuf(file, (char*)m_memory, _IOFBF, bytes));
    leave();
    rewind(file);
    EXPECT_EQ(0, fgetc(file));
    fclose(file);
}

TEST_F(test_rmem_rules_calls, cancelled_ones_leave_nothing)
{
    auto size = [] {
        size_t pages;

        std::ifstream("/proc/self/statm") >> pages;
        return pages * page;
    };
    size_t before = 0;

    ASSERT_EQ(0, pipe(m_fds));
    for (unsigned i = 0; i < 40; ++i) {
        std::thread reader([this] { read(m_fds[0], m_memory, bytes); });
        usleep(1000);
        pthread_cancel(reader.native_handle());
        reader.join();
        before = (i == 0) ? size() : before;
    }
    EXPECT_LT(size(), before + (8 << 20));
    close_pair();
}


/* ---- R4 ---- */

static std::atomic<char*>    window_start, window_end; /* For what follows */
static std::atomic<unsigned> by_program, by_thread, remote;

static void allocate(std::atomic<unsigned> &count)
{
    char *memory = (char*)malloc(1 << 20);

    remote += (memory >= window_start) && (memory < window_end);
    free(memory);
    ++count;
}

/* librmem calls it while it serves a fault, and the program does not */
extern "C" int clock_gettime(clockid_t clock, timespec *time) noexcept
{
    static auto real = (int (*)(clockid_t, timespec*))dlsym(RTLD_NEXT,
                                                            "clock_gettime");

    if (window_start != nullptr) {
        allocate(by_program);
    }
    return real(clock, time);
}

/* The first caller is UCX. It makes one thread more. */
extern "C" int pthread_create(pthread_t *thread, const pthread_attr_t *attr,
                              void *(*function)(void*), void *arg) noexcept
{
    static auto real = (int (*)(pthread_t*, const pthread_attr_t*,
                                void *(*)(void*), void*))
        dlsym(RTLD_NEXT, "pthread_create");
    static bool is_made;
    pthread_t   more;

    if (!is_made) {
        is_made = true;
        real(&more, nullptr, [](void*) -> void* {
            while (window_start == nullptr) {
                usleep(1000);
            }
            allocate(by_thread);
            return nullptr;
        }, nullptr);
    }
    return real(thread, attr, function, arg);
}

TEST_F(test_rmem_rules, what_librmem_allocates_is_local)
{
    uintptr_t start = 0, end = 0;

    fill(1);
    sscanf(mapping(m_memory).c_str(), "%zx-%zx", &start, &end);
    window_end   = (char*)end;
    window_start = (char*)start;
    touched      = m_memory;
    ++touched[0];
    while (by_thread == 0) {
        usleep(1000);
    }
    window_start = nullptr;
    EXPECT_GT(by_program, 0u);
    EXPECT_EQ(0u, remote);
}


/* ---- R5 ---- */

TEST_F(test_rmem_rules, children)
{
    int   status;
    pid_t pid;

    fill(1);
    pid = fork();
    if (pid == 0) {
        auto *local = (unsigned char*)calloc(1, bytes);
        memset(local, 1, bytes);
        bool is_local = !is_window(local) &&
                        (mapping(m_memory).find("memfd:") != std::string::npos);
        free(local);
        free(m_memory);
        if (!is_local) {
            _exit(1);
        }
        /* A window is not opened before memory is asked for */
        execl("/bin/sh", "sh", "-c",
              "while read -r l; do case $l in *librmem.so*) exit 2; esac; done "
              "</proc/self/maps; exec \"$0\" "
              "--gtest_filter=test_rmem_rules.mapping_stays",
              program_invocation_name, nullptr);
        _exit(3);
    }
    ASSERT_EQ(pid, waitpid(pid, &status, 0));
    EXPECT_EQ(0, status);
    EXPECT_TRUE(has(0, bytes, 1));
}

TEST_F(test_rmem_rules, allocations)
{
    unsigned char *others[2] = {};

    fill(1);
    m_memory = (unsigned char*)realloc(m_memory, 3 * bytes);
    EXPECT_TRUE(has(0, bytes, 1));
    leave();
    m_memory = (unsigned char*)realloc(m_memory, 100);
    EXPECT_TRUE(has(0, 100, 1));
    for (size_t i = 64; i < 2 * bytes; i += i / 2) {
        free(m_memory);
        ASSERT_EQ(0, posix_memalign((void**)&others[0], 4096, i));
        EXPECT_EQ(0u, (uintptr_t)others[0] % 4096);
        others[1] = (unsigned char*)malloc(i); /* Their chunk stays in use */
        touched    = others[1];
        touched[0] = 2;
        touched    = others[0]; /* No compiler knows what is there then */
        touched[0] = 1;
        free(others[0]);
        m_memory = (unsigned char*)calloc(1, i);
        touched  = m_memory;
        EXPECT_EQ(0, touched[0]);
        free(others[1]);
        EXPECT_TRUE(has(0, i, 0));
        memset(m_memory, 1, i);
    }
}

/* Returns the status of this program under rmem-run */
static int run(char **argv)
{
    std::vector<std::string> words = {RMEM_TEST_RUN, "--cache", "8M", "--size",
                                      "256M", "--min", "4K"};
    std::vector<char*>       args;
    const char               *option = getenv("RMEM_TEST_OPTION");
    memd                     server;
    int                      status;

    words.insert(words.end(), {"--server", server.where(), "--token",
                               server.token(), option ? option : "--stats"});
    for (auto &one : words) {
        args.push_back(&one[0]);
    }
    while (*argv != nullptr) {
        args.push_back(*argv++);
    }
    args.push_back(nullptr);
    pid_t pid = fork();
    if (pid == 0) {
        execv(args[0], args.data());
        _exit(127);
    }
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int main(int argc, char **argv)
{
    if (getenv("RMEM_RUN") == nullptr) {
        return run(argv);
    }
    ::testing::InitGoogleTest(&argc, argv);
    return RUN_ALL_TESTS();
}
