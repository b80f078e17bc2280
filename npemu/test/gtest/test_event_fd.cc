/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Counters of events that processes signal to each other. */

#include "internals.h"
#include "npemu_test.h"

#include <atomic>
#include <cerrno>
#include <functional>
#include <thread>

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

using namespace npt;

namespace {

class Event {
public:
    Event(bool nonblock = false) : event(npt_event_create(nonblock))
    {
        EXPECT_NE(nullptr, event) << strerror(errno);
    }

    ~Event()
    {
        npt_event_destroy(event);
    }

    Event(const Event &) = delete;

    int fd() const { return npt_event_fd(event); }
    void signal() { npt_event_signal(event, npt_event_signal_fd(event)); }

    bool readable() const
    {
        struct pollfd pfd = {fd(), POLLIN, 0};
        return poll(&pfd, 1, 0) == 1;
    }

    void set_nonblocking()
    {
        ASSERT_EQ(0, fcntl(fd(), F_SETFL, fcntl(fd(), F_GETFL) | O_NONBLOCK));
    }

    /* Takes what is there. @return the number of events. */
    int take_all()
    {
        int count = 0;

        set_nonblocking();
        while (npt_event_take(event) == 0) {
            ++count;
        }
        EXPECT_EQ(EAGAIN, errno);
        return count;
    }

    npt_event *event;
};

/* A descriptor that is something else now, until the end of the scope. */
class Replaced {
public:
    Replaced(int fd, int by) : m_fd(fd), m_saved(dup(fd))
    {
        EXPECT_EQ(fd, dup2(by, fd));
    }

    ~Replaced()
    {
        dup2(m_saved, m_fd);
        close(m_saved);
    }

private:
    int m_fd, m_saved;
};

} // namespace

TEST(test_event_fd, take_waits)
{
    Event e;
    std::atomic<bool> taken{false};

    std::thread taker([&] {
        EXPECT_EQ(0, npt_event_take(e.event));
        taken = true;
    });
    EXPECT_FALSE(wait_until([&] { return taken.load(); }, 20));
    e.signal();
    taker.join();
    EXPECT_FALSE(e.readable());
}

/* A full pipe that is read at the same time. An event too many is legal. */
TEST(test_event_fd, none_is_lost_in_a_race)
{
    constexpr int COUNT = 50000;
    Event e;
    int taken = 0;

    fcntl(e.fd(), F_SETPIPE_SZ, 4096);
    std::thread signaller([&] {
        for (int i = 0; i < COUNT; ++i) {
            e.signal();
        }
    });
    while (taken < COUNT / 2) {
        ASSERT_EQ(0, npt_event_take(e.event)); /* each wait must end */
        ++taken;
    }
    signaller.join();
    taken += e.take_all();
    EXPECT_GE(taken, COUNT);
    EXPECT_EQ(0u, npt_event_owed(e.event));
}

TEST(test_event_fd, is_reached_from_another_process)
{
    Event e;
    pid_t parent = getpid();
    Child child([&](Pipe &) {
        int fd = npt_event_open(e.event, parent);
        ASSERT_GE(fd, 0) << strerror(errno);
        for (int i = 0; i < 5; ++i) {
            npt_event_signal(e.event, fd);
        }
        close(fd);
    });
    child.join();
    EXPECT_EQ(5, e.take_all());
}

TEST(test_event_fd, other_file_is_not_opened)
{
    Event e;
    int fds[2];

    ASSERT_EQ(0, pipe(fds));
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (int by : {fds[0], eventfd(0, EFD_CLOEXEC), null}) {
        Replaced replaced(e.fd(), by);

        errno = 0;
        EXPECT_EQ(-1, npt_event_open(e.event, getpid())) << by;
        EXPECT_EQ(ESTALE, errno) << by;
        close(by);
    }
    close(fds[1]);
    int fd = npt_event_open(e.event, getpid());
    EXPECT_GE(fd, 0);
    close(fd);
}

TEST(test_event_fd, process_that_has_ended)
{
    Event e;
    Child child([](Pipe &) {});
    pid_t pid = child.pid();

    child.join();
    EXPECT_EQ(-1, npt_event_open(e.event, pid));
}

/* Calls the function with one descriptor more each time, until it succeeds. */
static void with_few_descriptors(const std::function<bool()> &function)
{
    struct rlimit before, few;
    unsigned num_refused = 0;
    bool done            = false;

    ASSERT_EQ(0, getrlimit(RLIMIT_NOFILE, &before));
    for (few = before, few.rlim_cur = 3; !done; ++few.rlim_cur) {
        ASSERT_GT(64u, few.rlim_cur);
        ASSERT_EQ(0, setrlimit(RLIMIT_NOFILE, &few));
        errno = 0;
        done  = function();
        if (!done) {
            EXPECT_EQ(EMFILE, errno) << few.rlim_cur;
            ++num_refused;
        }
        ASSERT_EQ(0, setrlimit(RLIMIT_NOFILE, &before));
    }
    EXPECT_LT(0u, num_refused);
}

/* Nothing is said to be another file because it could not be looked at. */
TEST(test_event_fd, no_descriptor_is_left)
{
    in_child([] {
        npt_event *event = nullptr;
        int fd           = -1;

        with_few_descriptors([&] {
            event = npt_event_create(0);
            return event != nullptr;
        });
        ASSERT_NE(nullptr, event);
        with_few_descriptors([&] {
            fd = npt_event_open(event, getpid());
            return fd >= 0;
        });
        close(fd);
        npt_event_destroy(event);
    });
}

/* With no reader left a write to a pipe would raise SIGPIPE. */
TEST(test_event_fd, owner_that_has_ended_raises_no_signal)
{
    in_child([] {
        signal(SIGPIPE, SIG_DFL);
        npt_event *event = npt_event_create(0);
        ASSERT_NE(nullptr, event);
        int fd = npt_event_open(event, getpid());
        ASSERT_GE(fd, 0);
        close(npt_event_fd(event));
        close(npt_event_signal_fd(event));
        npt_event_signal(event, fd);
        close(fd);
    });
}
