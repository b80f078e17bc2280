/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "test_mem.h"

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif

/*
 * Memory under a userfaultfd of the application, with on-demand paging. A
 * userfaultfd for all faults serves npemu0 as well. One for faults of user mode
 * does not, and neither does any for devices whose driver does not wait
 * (hmm_range_fault() gives up): then the operation ends with an error. It never
 * hangs, and never moves other data.
 */

namespace {

const config_t on_demand = {{"NPRDMA_MONITOR", "odp"}};

char content(size_t i) { return 1 + (i * 7 + (i >> 12) * 13) % 100; }

/* Memory whose absent pages a thread of this process provides */
class provided_memory {
public:
    static constexpr size_t length = 64 * page;

    explicit provided_memory(int flags)
    {
        m_ptr = (char*)mmap(nullptr, length, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        EXPECT_NE(MAP_FAILED, (void*)m_ptr);
        m_uffd = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | flags);
        m_quit = eventfd(0, EFD_CLOEXEC);
        if (!start()) {
            m_error = errno;
        }
    }

    ~provided_memory()
    {
        if (m_thread.joinable()) {
            eventfd_write(m_quit, 1);
            m_thread.join();
        }
        close(m_quit);
        if (m_uffd >= 0) {
            close(m_uffd);
        }
        munmap(m_ptr, length);
    }

    provided_memory(const provided_memory&) = delete;

    char *ptr() { return m_ptr; }
    int error() const { return m_error; }
    unsigned num_provided() const { return m_num_provided; }

    bool is_right(size_t begin, size_t end) const
    {
        for (size_t i = begin; i < end; ++i) {
            if (m_ptr[i] != content(i)) {
                return false;
            }
        }
        return true;
    }

private:
    bool start()
    {
        uffdio_api api      = {};
        uffdio_register reg = {};

        api.api         = UFFD_API;
        reg.range.start = (uintptr_t)m_ptr;
        reg.range.len   = length;
        reg.mode        = UFFDIO_REGISTER_MODE_MISSING;
        if ((m_uffd < 0) || (ioctl(m_uffd, UFFDIO_API, &api) != 0) ||
            (ioctl(m_uffd, UFFDIO_REGISTER, &reg) != 0)) {
            return false;
        }

        m_thread = std::thread([this]() { serve(); });
        return true;
    }

    void serve()
    {
        pollfd fds[2] = {{m_uffd, POLLIN, 0}, {m_quit, POLLIN, 0}};
        uffd_msg msg;

        while ((poll(fds, 2, -1) > 0) && !(fds[1].revents & POLLIN)) {
            while (read(m_uffd, &msg, sizeof(msg)) == sizeof(msg)) {
                provide(msg.arg.pagefault.address & ~(page - 1));
            }
        }
    }

    void provide(uintptr_t address)
    {
        std::vector<char> data(page);
        uffdio_copy copy = {};

        for (size_t i = 0; i < page; ++i) {
            data[i] = content(address - (uintptr_t)m_ptr + i);
        }
        copy.dst = address;
        copy.src = (uintptr_t)data.data();
        copy.len = page;
        ++m_num_provided; /* Before the thread that waits goes on */
        EXPECT_EQ(0, ioctl(m_uffd, UFFDIO_COPY, &copy));
    }

    char                  *m_ptr;
    int                   m_uffd, m_quit, m_error = 0;
    std::atomic<unsigned> m_num_provided{0};
    std::thread           m_thread;
};

} // namespace

/* The memory is the target's, or the initiator's */
class test_on_demand_uffd
    : public test_mem,
      public ::testing::WithParamInterface<
              std::tuple<const char*, bool, bool>> {
protected:
    static constexpr size_t length = provided_memory::length;
    static constexpr size_t half   = length / 2;

    void SetUp() override
    {
        setenv("NPEMU_ODP", std::get<0>(GetParam()), 1);
        connect(on_demand);
    }

    void TearDown() override
    {
        test_mem::TearDown();
        unsetenv("NPEMU_ODP");
    }

    void connect(const config_t &config)
    {
        m_a = std::make_unique<entity>(config);
        m_b = std::make_unique<entity>(config);
        m_a->add_progress(m_b.get());
        m_b->add_progress(m_a.get());
        m_ab = m_a->connect(m_b->address());
        m_ba = m_b->connect(m_a->address());
    }

    static bool is_local() { return std::get<1>(GetParam()); }
    static bool is_get() { return std::get<2>(GetParam()); }

    /* Is the provided memory read, or written? */
    static bool is_source() { return is_get() != is_local(); }

    /* One operation on the second half of both */
    ucs_status_t move(char *provided, char *other)
    {
        char *local    = is_local() ? provided : other;
        char *remote   = is_local() ? other : provided;
        uct_mem_h memh = reg(remote, length);
        auto rkey      = m_a->unpack(pack(memh));
        auto func      = is_get() ? &test_on_demand_uffd::get :
                                    &test_on_demand_uffd::put;
        ucs_status_t status = (this->*func)(local + half, half,
                                            (uint64_t)remote + half, rkey);

        EXPECT_EQ(UCS_OK, uct_md_mem_dereg(m_b->md(), memh));
        return status;
    }

    /* Is the second half the same in both, and the source as it was? */
    static bool is_moved(const char *provided, const std::vector<char> &other)
    {
        for (size_t i = half; i < length; ++i) {
            if ((other[i] != provided[i]) ||
                (other[i] != (is_source() ? content(i) : other[0]))) {
                return false;
            }
        }
        return true;
    }
};

INSTANTIATE_TEST_SUITE_P(
        all, test_on_demand_uffd,
        ::testing::Combine(::testing::Values("explicit", "implicit"),
                           ::testing::Bool(), ::testing::Bool()),
        [](const auto &info) {
            return std::string(std::get<0>(info.param)) +
                   (std::get<2>(info.param) ? "_get" : "_put") +
                   (std::get<1>(info.param) ? "_local" : "_remote");
        });

TEST_P(test_on_demand_uffd, all_faults_are_served)
{
    provided_memory provided(0);
    std::vector<char> other(length, 101);

    if (provided.error() == EPERM) {
        GTEST_SKIP() << "no userfaultfd for faults of the kernel";
    }
    ASSERT_EQ(0, provided.error());
    ASSERT_EQ(UCS_OK, move(provided.ptr(), other.data()));
    EXPECT_EQ(half / page, provided.num_provided());
    EXPECT_LT(0u, m_a->counter("nic_on_demand"));
    EXPECT_TRUE(is_moved(provided.ptr(), other));
    EXPECT_TRUE(provided.is_right(0, half));
}

/* Pages that the program has touched are like all others. One that it has not
 * is an error of the operation that names the reason. */
TEST_P(test_on_demand_uffd, faults_of_user_mode_only)
{
    provided_memory provided(UFFD_USER_MODE_ONLY);
    std::vector<char> other(length, 101);

    ASSERT_EQ(0, provided.error());
    ASSERT_TRUE(provided.is_right(half, length));
    EXPECT_EQ(UCS_OK, move(provided.ptr(), other.data()));
    EXPECT_EQ(half / page, provided.num_provided());

    ASSERT_EQ(0, madvise(provided.ptr() + half, half, MADV_DONTNEED));
    std::fill(other.begin(), other.end(), 102);
    complaints log;
    EXPECT_NE(UCS_OK, move(provided.ptr(), other.data()));
    m_a->wait([&]() { return m_a->failed.count(m_ab) > 0; });
    EXPECT_EQ(1u, count(log, "under a userfaultfd?"));
    EXPECT_EQ(std::vector<char>(length, 102), other);
    EXPECT_TRUE(provided.is_right(0, length)) << "a page is waited for";
    m_a->disconnect(m_ab);

    /* A new endpoint of the same interfaces works */
    m_ab = m_a->connect(m_b->address());
    EXPECT_EQ(UCS_OK, move(provided.ptr(), other.data()));
    EXPECT_TRUE(is_moved(provided.ptr(), other));
}

/* The way out: other tiers bring such pages in by software. The kernel module's
 * does so in the guest only. */
TEST_P(test_on_demand_uffd, other_tiers_serve_faults_of_user_mode)
{
    std::vector<config_t> configs = {{{"NPRDMA_MONITOR", "copy"}},
                                     {{"NPRDMA_MONITOR", "emulated"}}};

    if (access("/dev/nprdma", R_OK | W_OK) == 0) {
        configs.push_back({{"NPRDMA_MONITOR", "kernel"}});
    }
    for (const config_t &config : configs) {
        provided_memory provided(UFFD_USER_MODE_ONLY);
        std::vector<char> other(length, 101);

        connect(config);
        ASSERT_EQ(0, provided.error());
        EXPECT_EQ(UCS_OK, move(provided.ptr(), other.data()));
        EXPECT_EQ(0u, m_a->counter("nic_on_demand"));
        EXPECT_TRUE(is_moved(provided.ptr(), other));
    }
}
