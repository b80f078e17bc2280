/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "npemu_test.h"

#include "../../../test/gtest/refuse.h"

#include <algorithm>
#include <fstream>

#include <dirent.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>

namespace npt {

double ms_since(Clock::time_point start)
{
    return std::chrono::duration<double, std::milli>(Clock::now() - start)
            .count();
}

bool wait_until(const std::function<bool()> &condition, int ms)
{
    auto start = Clock::now();

    while (!condition()) {
        if (ms_since(start) > ms) {
            return false;
        }
        sched_yield();
    }
    return true;
}

bool is_readable(int fd, int ms)
{
    struct pollfd pfd = {fd, POLLIN, 0};

    return poll(&pfd, 1, ms) == 1;
}

std::set<int> open_fds()
{
    std::set<int> fds;
    DIR *dir = opendir("/proc/self/fd");

    while (struct dirent *entry = readdir(dir)) {
        int fd = atoi(entry->d_name);
        if ((entry->d_name[0] != '.') && (fd != dirfd(dir))) {
            fds.insert(fd);
        }
    }
    closedir(dir);
    return fds;
}

long locked_kb()
{
    std::ifstream file("/proc/self/status");
    std::string word;

    while ((file >> word) && (word != "VmLck:")) {
    }
    file >> word;
    return atol(word.c_str());
}

uint8_t pattern_byte(uint64_t seed, size_t index)
{
    uint64_t x = (seed + 1) * 0x9e3779b97f4a7c15ull + (index >> 3);

    x ^= x >> 29;
    x *= 0xbf58476d1ce4e5b9ull;
    x ^= x >> 32;
    return (uint8_t)(x >> (8 * (index & 7)));
}

void pattern_fill(void *buffer, size_t length, uint64_t seed)
{
    for (size_t i = 0; i < length; ++i) {
        ((uint8_t*)buffer)[i] = pattern_byte(seed, i);
    }
}

testing::AssertionResult pattern_holds(const void *buffer, size_t length,
                                       uint64_t seed)
{
    for (size_t i = 0; i < length; ++i) {
        if (((const uint8_t*)buffer)[i] != pattern_byte(seed, i)) {
            return testing::AssertionFailure()
                   << "byte " << i << " of " << length << " is "
                   << (int)((const uint8_t*)buffer)[i] << ", should be "
                   << (int)pattern_byte(seed, i);
        }
    }
    return testing::AssertionSuccess();
}

/* --- objects -------------------------------------------------------------- */

bool Buffer::InArena::is_used;

/* --- queue pairs ---------------------------------------------------------- */

void connect(Qp &one, Qp &other)
{
    EXPECT_EQ(0, one.to_init());
    EXPECT_EQ(0, other.to_init());
    /* Both ends must listen before one of them talks. */
    EXPECT_EQ(0, one.to_rtr(other.address()));
    EXPECT_EQ(0, other.to_rtr(one.address()));
    EXPECT_EQ(0, one.to_rts());
    EXPECT_EQ(0, other.to_rts());
}

bool has_async(Device &device, int ms)
{
    return is_readable(device.context->async_fd, ms);
}

AsyncEvent take_async(Device &device)
{
    ibv_async_event event;

    if (!has_async(device, WAIT_MS)) {
        ADD_FAILURE() << "no async event";
        return {-1, nullptr};
    }
    EXPECT_EQ(0, npemu_get_async_event(device.context, &event));
    npemu_ack_async_event(&event);
    return {event.event_type, event.element.qp};
}

/* --- processes ------------------------------------------------------------ */

void in_child(const std::function<void()> &body)
{
    Child child([&](Pipe &) { body(); });

    child.join();
}

bool become_user(unsigned uid)
{
    /* A change of user clears what a normal program has set. */
    return (setgroups(0, nullptr) == 0) && (setresgid(uid, uid, uid) == 0) &&
           (setresuid(uid, uid, uid) == 0) &&
           (prctl(PR_SET_DUMPABLE, 1, 0, 0, 0) == 0);
}

bool become_nobody()
{
    return (geteuid() != 0) || become_user(65534);
}

void connect_over(Pipe &pipe, Qp &qp)
{
    EXPECT_EQ(0, qp.to_init());
    EXPECT_TRUE(pipe.send(qp.address()));
    EXPECT_EQ(0, qp.to_rtr(pipe.recv<Address>()));
    EXPECT_EQ(0, qp.to_rts());
    /* The peer answers only from RTR on. */
    EXPECT_TRUE(pipe.signal());
    EXPECT_TRUE(pipe.await());
}

void be_idle(Pipe &pipe)
{
    Side side(QpOptions(), 1 << 20);

    connect_over(pipe, side.qp);
    EXPECT_TRUE(pipe.send(side.remote()));
    EXPECT_TRUE(pipe.await());
}

void hold_device(Pipe &pipe)
{
    Device device;

    pipe.signal();
    pipe.await();
}

std::string stderr_of(const std::function<void()> &body)
{
    testing::internal::CaptureStderr();
    body();
    return testing::internal::GetCapturedStderr();
}

void expect_line(const std::string &text, const std::function<void()> &body)
{
    std::string said = stderr_of(body);

    EXPECT_NE(std::string::npos, said.find(text)) << said;
    EXPECT_EQ(1, std::count(said.begin(), said.end(), '\n')) << said;
}

/* --- the kernel's table of shared memory ---------------------------------- */

std::vector<Segment> segments()
{
    std::vector<Segment> result;
    struct shm_info info;
    int max = shmctl(0, SHM_INFO, (struct shmid_ds*)&info);

    for (int i = 0; i <= max; ++i) {
        Segment it;
        it.id = shmctl(i, SHM_STAT, &it.ds);
        if (it.id >= 0) {
            result.push_back(it);
        }
    }
    return result;
}

static bool own_fabric;

bool has_own_fabric()
{
    return own_fabric;
}

} // namespace npt

/* Tests that damage the fabric, or count what is left of it, must be alone in
 * it: a new IPC namespace has a fabric of its own. */
int main(int argc, char **argv)
{
    /* A listing is no run, and is made at build time. */
    bool listing = false;
    for (int i = 1; i < argc; ++i) {
        listing = listing || (strstr(argv[i], "list_tests") != nullptr);
    }
    if (!listing) {
        npt::own_fabric = unshare(CLONE_NEWIPC) == 0;
    }
    if ((getenv("NPEMU_TEST_NO_GETFD") != nullptr) && /* Linux before 5.6 */
        (!refuse({SYS_pidfd_getfd}, ENOSYS) ||
         (syscall(SYS_pidfd_getfd, -1, -1, 0) != -1) || (errno != ENOSYS))) {
        perror("npemu_test: pidfd_getfd() is not refused");
        return 2;
    }
    testing::InitGoogleTest(&argc, argv);
    return RUN_ALL_TESTS();
}
