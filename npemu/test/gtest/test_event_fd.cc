/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Counters of events that processes signal to each other. */

#include "internals.h"
#include "npemu_test.h"

#include <cerrno>
#include <thread>

#include <fcntl.h>
#include <sys/eventfd.h>
#include <unistd.h>

using namespace npt;

namespace {

class Event {
public:
    Event() : event(npt_event_create(0))
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

    /* Takes what is there. @return the number of events. */
    int take_all()
    {
        int count = 0;

        EXPECT_EQ(0, fcntl(fd(), F_SETFL, fcntl(fd(), F_GETFL) | O_NONBLOCK));
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
