/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "uct_test.h"

#include <ucm/api/ucm.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* The child may do anything with its copy of the objects, and the parent goes
 * on */
class test_fork : public uct_buffer_test {
protected:
    static constexpr size_t size = 20000;

    test_fork() : uct_buffer_test(size) {}

    void SetUp() override
    {
        uct_buffer_test::SetUp();
        ASSERT_EQ(UCS_OK, uct_iface_set_am_handler(m_b->iface(), 1, on_am,
                                                   &m_received, 0));
    }

    static ucs_status_t
    on_am(void *arg, void *data, size_t length, unsigned flags)
    {
        (void)flags;
        EXPECT_EQ(sizeof(uint64_t), length);
        memcpy(arg, data, sizeof(uint64_t));
        return UCS_OK;
    }

    /* Both kinds of connections, and both ways to serve requests */
    void communicate()
    {
        uint64_t number = ++m_count;

        m_local->fill(number);
        ASSERT_EQ(UCS_OK, m_a->put(m_ab, m_local->ptr(), size,
                                   m_remote->address(), m_rkey));
        m_a->flush(m_ab);
        EXPECT_EQ(0, memcmp(m_local->ptr(), m_remote->ptr(), size));

        ASSERT_EQ(UCS_OK, m_a->retry([&]() {
            return uct_ep_am_short(m_ab, 1, number, nullptr, 0);
        }));
        m_a->wait([&]() { return m_received == number; });
    }

    /* As fork(), but no handler of fork() runs */
    static pid_t plain_clone()
    {
        return syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, nullptr);
    }

    static bool sleeps(const std::filesystem::path &thread)
    {
        std::string stat;

        std::getline(std::ifstream(thread / "stat"), stat);
        return stat.find(") S ") != std::string::npos;
    }

    static bool others_sleep()
    {
        for (auto &thread :
             std::filesystem::directory_iterator("/proc/self/task")) {
            if ((thread.path().filename() != std::to_string(gettid())) &&
                !sleeps(thread)) {
                return false;
            }
        }
        return true;
    }

    /* Forks. The child exits with the function's result, and its output is
     * kept. A thread of UCX that allocates memory meanwhile holds a lock of UCM
     * that stays held in the child, with any transport: so it sleeps. */
    pid_t start(const std::function<int()> &function,
                pid_t (*make_child)() = fork)
    {
        int fds[2];

        EXPECT_EQ(0, pipe(fds));
        fflush(nullptr);
        await(others_sleep);
        pid_t pid = make_child();
        if (pid == 0) {
            alarm(patience.count() + 10); /* After await() has ended */
            dup2(fds[1], STDOUT_FILENO);
            dup2(fds[1], STDERR_FILENO);
            close(fds[0]);
            close(fds[1]);
            end(function());
        }
        close(fds[1]);
        m_output_fd = fds[0];
        return pid;
    }

    /* Exits like a program, except under LeakSanitizer, which would report in
     * the child what only threads of the parent refer to */
    [[noreturn]] static void end(int status)
    {
#ifdef __SANITIZE_ADDRESS__
        fflush(nullptr);
        _exit(status);
#else
        exit(status);
#endif
    }

    /* Whether the child has written all of its output */
    bool read_output()
    {
        struct pollfd pfd = {m_output_fd, POLLIN, 0};
        char data[4096];
        ssize_t ret;

        if (poll(&pfd, 1, 0) == 0) {
            return false;
        }

        ret = read(m_output_fd, data, sizeof(data));
        if (ret > 0) {
            m_output.append(data, ret);
        }
        return ret <= 0;
    }

    /* The parent communicates until the child has ended */
    void communicate_until_end(pid_t pid)
    {
        int status;

        do {
            ASSERT_NO_FATAL_FAILURE(communicate());
        } while (!read_output());
        close(m_output_fd);
        ASSERT_EQ(pid, waitpid(pid, &status, 0));
        EXPECT_TRUE(WIFEXITED(status)) << status << '\n' << m_output;
        EXPECT_EQ(0, WEXITSTATUS(status)) << m_output;

        for (int i = 0; i < 10; ++i) {
            ASSERT_NO_FATAL_FAILURE(communicate());
        }
        EXPECT_TRUE(m_a->failed.empty());
        EXPECT_TRUE(m_b->failed.empty());
    }

    size_t count_output(const std::string &text) const
    {
        size_t count = 0;

        for (size_t pos = m_output.find(text); pos != std::string::npos;
             pos        = m_output.find(text, pos + 1)) {
            ++count;
        }
        return count;
    }

    /* Runs in the child. Returns 0 if everything is refused, otherwise the
     * number of the first operation that is not. */
    int use()
    {
        uct_iov_t iov  = {m_local->ptr(), 8, m_local->memh(), 0, 1};
        uint64_t value = 0xdead;
        completion comp;
        uct_mem_h memh;
        std::vector<ucs_status_t> results;

        results.push_back(uct_ep_am_short(m_ab, 1, value, nullptr, 0));
        results.push_back((ucs_status_t)uct_ep_am_bcopy(m_ab, 1, pack, nullptr,
                                                        0));
        results.push_back(uct_ep_put_short(m_ab, &value, sizeof(value),
                                           m_remote->address(), m_rkey));
        results.push_back(uct_ep_put_zcopy(m_ab, &iov, 1, m_remote->address(),
                                           m_rkey, &comp));
        results.push_back(uct_ep_get_zcopy(m_ab, &iov, 1, m_remote->address(),
                                           m_rkey, &comp));
        results.push_back(uct_ep_atomic64_post(m_ab, UCT_ATOMIC_OP_ADD, 1,
                                               m_remote->address(), m_rkey));
        results.push_back(uct_ep_flush(m_ab, 0, nullptr));
        results.push_back(uct_iface_flush(m_a->iface(), 0, nullptr));
        results.push_back(uct_ep_check(m_ab, 0, nullptr));
        results.push_back(uct_iface_event_arm(m_a->iface(),
                                              UCT_EVENT_RECV));
        results.push_back(uct_md_mem_reg(m_a->md(), &value, sizeof(value),
                                         UCT_MD_MEM_ACCESS_ALL, &memh));
        try {
            m_a->connect(m_b->address());
            return -1;
        } catch (const std::runtime_error &refused) {
        }
        for (size_t i = 0; i < results.size(); ++i) {
            if (results[i] != UCS_ERR_UNSUPPORTED) {
                return i + 1;
            }
        }
        return 0;
    }

    static size_t pack(void *dest, void *arg)
    {
        (void)arg;
        memset(dest, 0, 8);
        return 8;
    }

    /* What UCM reports in a child, in memory that both share */
    struct events {
        pid_t            parent;
        std::atomic<int> count;
    };

    static void on_event(ucm_event_type_t type, ucm_event_t *event, void *arg)
    {
        events *seen = (events*)arg;

        (void)type;
        (void)event;
        if (getpid() != seen->parent) {
            ++seen->count;
        }
    }

    uint64_t    m_received  = 0;
    uint64_t    m_count     = 0;
    int         m_output_fd = -1;
    std::string m_output;
};

/* What it closes first finds out that it is a child */
TEST_F(test_fork, child_of_clone_closes)
{
    for (bool has_flushed : { true, false }) {
        ASSERT_NO_FATAL_FAILURE(communicate());
        pid_t pid = start([this, has_flushed]() -> int {
            bool is_refused = !has_flushed ||
                              (uct_ep_flush(m_ab, 0, nullptr) ==
                               UCS_ERR_UNSUPPORTED);
            TearDown();
            fflush(nullptr);
            _exit(is_refused ? 0 : 1);
        }, plain_clone);
        ASSERT_NO_FATAL_FAILURE(communicate_until_end(pid));
        EXPECT_EQ(1u, count_output("opened before fork()")) << m_output;
        m_output.clear();
    }
}

TEST_F(test_fork, child_is_refused)
{
    ASSERT_NO_FATAL_FAILURE(communicate());
    pid_t pid = start([this]() {
        int ret = 0;

        for (int i = 0; (i < 3) && (ret == 0); ++i) {
            ret = use();
            for (int j = 0; j < 1000; ++j) {
                /* The child does not receive messages of the parent */
                ret += (m_a->progress() + m_b->progress()) * 100;
            }
        }
        TearDown();
        return ret;
    });
    ASSERT_NO_FATAL_FAILURE(communicate_until_end(pid));
    EXPECT_EQ(1u, count_output("refuse all operations")) << m_output;
}

/* UCM's handlers take locks, which another thread may hold in fork(). So what
 * is done in the child before fork() returns must not reach them. */
TEST_F(test_fork, the_childs_handlers_change_no_memory_by_the_c_library)
{
    static const int types = UCM_EVENT_MMAP | UCM_EVENT_MUNMAP |
                             UCM_EVENT_MREMAP | UCM_EVENT_MADVISE |
                             UCM_EVENT_SBRK;
    void *page = mmap(nullptr, sizeof(events), PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(MAP_FAILED, page);
    events *seen = new (page) events{getpid(), {0}};
    int status;

    ASSERT_NO_FATAL_FAILURE(communicate());
    ASSERT_EQ(UCS_OK, ucm_set_event_handler(types | UCM_EVENT_FLAG_NO_INSTALL,
                                            0, on_event, seen));
    for (bool is_control : {false, true}) {
        pid_t pid = fork();
        if (pid == 0) {
            if (is_control) {
                munmap(mmap(nullptr, 1, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS,
                            -1, 0), 1);
            }
            _exit(0);
        }
        ASSERT_EQ(pid, waitpid(pid, &status, 0));
        EXPECT_EQ(0, status);
        EXPECT_EQ(is_control, seen->count > 0) << seen->count;
    }
    ucm_unset_event_handler(types, on_event, seen);
    munmap(page, sizeof(events));
}
