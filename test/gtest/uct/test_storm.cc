/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "uct_test.h"

#include <atomic>
#include <csignal>
#include <cstring>
#include <thread>

#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/*
 * The owner of memory, or another process, takes it away and gives it back
 * continually while operations use it. Operations end with errors, never with a
 * signal, and afterwards everything works.
 */

enum weather_t {
    PROTECT,
    UNMAP,
    UNMAP_UNSEEN, /* By raw system calls, which bypass the hooks */
    TRUNCATE,
    TRUNCATE_BY_OTHER
};

static void PrintTo(weather_t weather, std::ostream *os)
{
    static const char *names[] = {"protect", "unmap", "unmap_unseen",
                                  "truncate", "truncate_by_other"};
    *os << names[weather];
}

/* Memory in the storm */
class storm {
public:
    static constexpr size_t length = 128 * 1024;

    explicit storm(weather_t weather) : m_weather(weather)
    {
        if (is_file()) {
            m_fd = memfd_create("nprdma-test", MFD_CLOEXEC);
            EXPECT_EQ(0, ftruncate(m_fd, length));
        }
        m_ptr = (char*)mmap((void*)hole_place, length, prot, flags(), m_fd, 0);
        EXPECT_EQ((char*)hole_place, m_ptr);
    }

    ~storm()
    {
        munmap(m_ptr, length);
        if (m_fd >= 0) {
            close(m_fd);
        }
    }

    char *ptr() const { return m_ptr; }

    void begin()
    {
        m_stop  = false;
        m_turns = 0;
        if (m_weather != TRUNCATE_BY_OTHER) {
            m_thread = std::thread([this]() {
                while (!m_stop) {
                    take();
                    give();
                    ++m_turns;
                }
            });
            return;
        }

        pid_t parent = getpid();
        m_pid        = fork();
        if (m_pid == 0) {
            while ((ftruncate(m_fd, 0) == 0) &&
                   (ftruncate(m_fd, length) == 0) && (getppid() == parent)) {
            }
            _exit(1);
        }
    }

    void end()
    {
        if (m_weather != TRUNCATE_BY_OTHER) {
            m_stop = true;
            m_thread.join();
            EXPECT_GT(m_turns, 0);
            return;
        }

        ::kill(m_pid, SIGKILL);
        EXPECT_EQ(m_pid, waitpid(m_pid, nullptr, 0));
        EXPECT_EQ(0, ftruncate(m_fd, length));
    }

private:
    static constexpr int prot = PROT_READ | PROT_WRITE;

    bool is_file() const
    {
        return (m_weather == TRUNCATE) || (m_weather == TRUNCATE_BY_OTHER);
    }

    int flags() const
    {
        return MAP_FIXED_NOREPLACE |
               (is_file() ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS);
    }

    void take()
    {
        switch (m_weather) {
        case PROTECT:
            mprotect(m_ptr, length, (m_turns % 2) ? PROT_READ : PROT_NONE);
            break;
        case UNMAP:
            munmap(m_ptr, length);
            break;
        case UNMAP_UNSEEN:
            syscall(SYS_munmap, m_ptr, length);
            break;
        default:
            EXPECT_EQ(0, ftruncate(m_fd, 0));
            break;
        }
    }

    void give()
    {
        switch (m_weather) {
        case PROTECT:
            mprotect(m_ptr, length, prot);
            break;
        case UNMAP:
            EXPECT_EQ(m_ptr, mmap(m_ptr, length, prot, flags(), -1, 0));
            break;
        case UNMAP_UNSEEN:
            EXPECT_EQ((long)m_ptr, syscall(SYS_mmap, m_ptr, length, prot,
                                           flags(), -1, 0L));
            break;
        default:
            EXPECT_EQ(0, ftruncate(m_fd, length));
            break;
        }
    }

    const weather_t   m_weather;
    int               m_fd = -1;
    char              *m_ptr;
    std::atomic<bool> m_stop;
    std::atomic<int>  m_turns;
    std::thread       m_thread;
    pid_t             m_pid = -1;
};

class test_storm : public uct_pair_test,
                   public ::testing::WithParamInterface<weather_t> {
protected:
    void SetUp() override
    {
        uct_pair_test::SetUp();
        m_storm.reset(new storm(GetParam()));
        memset(m_storm->ptr(), 1, storm::length);
        m_failed = m_done = 0;
    }

    void TearDown() override
    {
        m_calm.reset();
        m_stormy.reset();
        m_storm.reset();
        uct_pair_test::TearDown();
    }

    /* The memory of stormy changes all the time, that of calm never */
    void init(const entity &stormy, const entity &calm)
    {
        m_stormy.reset(new buffer(stormy.md(), storm::length, m_storm->ptr()));
        m_calm.reset(new buffer(calm.md(), storm::length));
        m_calm->fill(1);
    }

    using op_t = std::function<ucs_status_t(uct_completion_t*)>;

    /* Any result but a signal or an unexpected error */
    void run(const op_t &op)
    {
        completion comp;
        ucs_status_t status = m_a->retry([&]() { return op(&comp); });

        if (status == UCS_INPROGRESS) {
            m_a->wait([&]() { return comp.done; });
            status = comp.status;
        }
        if (status == UCS_OK) {
            ++m_done;
        } else {
            ASSERT_EQ(UCS_ERR_INVALID_ADDR, status)
                    << ucs_status_string(status);
            ++m_failed;
        }
    }

    void flush()
    {
        run([this](uct_completion_t *comp) {
            return uct_ep_flush(m_ab, 0, comp);
        });
    }

    static size_t pack(void *dest, void *arg)
    {
        memset(dest, 5, (size_t)arg);
        return (size_t)arg;
    }

    static void unpack(void *arg, const void *data, size_t length)
    {
        memcpy(arg, data, length);
    }

    static ucs_status_t
    on_am(void *arg, void *, size_t, unsigned)
    {
        ++*(int*)arg;
        return UCS_OK;
    }

    /* Each kind of operation once */
    void operate(char *local, uint64_t remote, uct_rkey_t rkey)
    {
        auto iov = [=](size_t length) {
            return uct_iov_t{local, length, UCT_MEM_HANDLE_NULL, 0, 1};
        };

        for (size_t length : {1, 8, 13, 64}) {
            run([=](uct_completion_t *) {
                return uct_ep_put_short(m_ab, local, length, remote, rkey);
            });
        }
        for (size_t length : {8, 4096, 8192}) {
            run([=](uct_completion_t *) {
                auto ret = uct_ep_put_bcopy(m_ab, pack, (void*)length, remote,
                                            rkey);
                return (ret < 0) ? (ucs_status_t)ret : UCS_OK;
            });
            run([=](uct_completion_t *comp) {
                static char data[8192];
                return uct_ep_get_bcopy(m_ab, unpack, data, length, remote,
                                        rkey, comp);
            });
        }
        flush();
        for (size_t length : {8, 100, 4096, 8192, 16384, 32000, 100000}) {
            run([=](uct_completion_t *comp) {
                auto piece = iov(length);
                return uct_ep_put_zcopy(m_ab, &piece, 1, remote, rkey, comp);
            });
            run([=](uct_completion_t *comp) {
                auto piece = iov(length);
                return uct_ep_get_zcopy(m_ab, &piece, 1, remote + 8, rkey,
                                        comp);
            });
        }
        run([=](uct_completion_t *) {
            return uct_ep_atomic64_post(m_ab, UCT_ATOMIC_OP_ADD, 1, remote,
                                        rkey);
        });
        run([=](uct_completion_t *comp) {
            return uct_ep_atomic32_fetch(m_ab, UCT_ATOMIC_OP_XOR, 1,
                                         (uint32_t*)local, remote, rkey, comp);
        });
        run([=](uct_completion_t *comp) {
            return uct_ep_atomic_cswap64(m_ab, 1, 2, remote, rkey,
                                         (uint64_t*)local, comp);
        });
        flush();
        run([=](uct_completion_t *) {
            return uct_ep_am_short(m_ab, 1, 0, local, 24);
        });
        run([=](uct_completion_t *comp) {
            auto piece = iov(5000);
            return uct_ep_am_zcopy(m_ab, 1, nullptr, 0, &piece, 1, 0, comp);
        });
        flush();
    }

    /* Many stores, so that some fall into the moments without memory */
    void store(char *local, uint64_t remote, uct_rkey_t rkey)
    {
        for (int i = 0; i < 500; ++i) {
            run([=](uct_completion_t *) {
                return uct_ep_put_short(m_ab, local, 8, remote + i % 8 * 8,
                                        rkey);
            });
            if (i % 50 == 0) {
                flush();
            }
        }
    }

    void go_on(char *local, uint64_t remote, uct_rkey_t rkey)
    {
        auto deadline = std::chrono::steady_clock::now() +
                        std::chrono::seconds(5);
        {
            complaints quiet;

            m_storm->begin();
            for (int i = 0; (i < 60) || (((m_failed < 20) || (m_done < 20)) &&
                                         (std::chrono::steady_clock::now() <
                                          deadline)); ++i) {
                operate(local, remote, rkey);
                store(local, remote, rkey);
            }
            m_storm->end();
            flush(); /* Reports the errors of operations without a completion */
        }
        EXPECT_GT(m_failed, 0);
        EXPECT_GT(m_done, 0);

        m_failed = 0;
        operate(local, remote, rkey);
        EXPECT_EQ(0, m_failed);
        EXPECT_TRUE(m_a->failed.empty());
        EXPECT_TRUE(m_b->failed.empty());
    }

    void target()
    {
        init(*m_b, *m_a);
        uct_rkey_t rkey = m_a->unpack(m_stormy->packed_key());
        int num_ams     = 0;

        uct_iface_set_am_handler(m_b->iface(), 1, on_am, &num_ams, 0);
        m_a->wire_up(m_ab, m_calm->ptr(), m_stormy->address(), rkey);
        go_on(m_calm->ptr(), m_stormy->address(), rkey);
        m_a->wait([&]() { return num_ams > 0; });
    }

    void initiator()
    {
        init(*m_a, *m_b);
        uct_rkey_t rkey = m_a->unpack(m_calm->packed_key());
        int num_ams     = 0;

        uct_iface_set_am_handler(m_b->iface(), 1, on_am, &num_ams, 0);
        m_a->wire_up(m_ab, m_stormy->ptr(), m_calm->address(), rkey);
        go_on(m_stormy->ptr(), m_calm->address(), rkey);
        m_a->wait([&]() { return num_ams > 0; });
    }

    std::unique_ptr<storm>  m_storm;
    std::unique_ptr<buffer> m_stormy, m_calm;
    int                     m_failed, m_done;
};

TEST_P(test_storm, target)
{
    target();
}

/* The target's application makes no calls: the service's thread answers */
TEST_P(test_storm, target_computes)
{
    init(*m_b, *m_a);
    uct_rkey_t rkey = m_a->unpack(m_stormy->packed_key());
    uint64_t value  = 7, old = 0;
    int num_ams     = 0;
    int failed      = 0;

    uct_iface_set_am_handler(m_b->iface(), 1, on_am, &num_ams, 0);
    m_a->wire_up(m_ab, m_calm->ptr(), m_stormy->address(), rkey);
    complaints quiet;
    m_storm->begin();
    for (int i = 0; (i < 500) || ((failed == 0) && (i < 5000)); ++i) {
        completion comp;
        ucs_status_t status;

        /* Not retry(), which makes progress of both entities */
        while ((status = uct_ep_atomic64_fetch(m_ab, UCT_ATOMIC_OP_ADD, value,
                                               &old, m_stormy->address(), rkey,
                                               &comp)) ==
               UCS_ERR_NO_RESOURCE) {
            uct_iface_progress(m_a->iface());
        }
        while ((status == UCS_INPROGRESS) && !comp.done) {
            uct_iface_progress(m_a->iface());
        }
        status = comp.done ? comp.status : status;
        failed += status != UCS_OK;
        ASSERT_TRUE((status == UCS_OK) || (status == UCS_ERR_INVALID_ADDR))
                << ucs_status_string(status);
    }
    m_storm->end();
    /* The guard admits hardly any request while the memory is absent */
    EXPECT_TRUE((failed > 0) || (GetParam() == UNMAP));
}

TEST_P(test_storm, initiator)
{
    initiator();
}

INSTANTIATE_TEST_SUITE_P(all, test_storm,
                         ::testing::Values(PROTECT, UNMAP, UNMAP_UNSEEN,
                                           TRUNCATE, TRUNCATE_BY_OTHER),
                         ::testing::PrintToStringParamName());

/* In copy mode everything is copied, on both sides */
class test_storm_copy : public test_storm {
protected:
    config_t config() override { return {{"NPRDMA_MONITOR", "copy"}}; }
};

TEST_P(test_storm_copy, target)
{
    target();
}

TEST_P(test_storm_copy, initiator)
{
    initiator();
}

INSTANTIATE_TEST_SUITE_P(all, test_storm_copy,
                         ::testing::Values(PROTECT, TRUNCATE_BY_OTHER),
                         ::testing::PrintToStringParamName());


/* The application may keep the address of the handler for ever. The test runs
 * in a process of its own, in which no other test has opened the component. */
PEER_FUNCTION(opens_and_closes)
{
    void *handle = dlopen(NPRDMA_TEST_COMPONENT, RTLD_NOW);

    EXPECT_NE(nullptr, handle) << dlerror();
    EXPECT_EQ(0, dlclose(handle));
    parent.put(dlopen(NPRDMA_TEST_COMPONENT, RTLD_NOW | RTLD_NOLOAD) !=
               nullptr);
    return 0;
}

TEST(test_storm_end, component_stays)
{
    peer other("opens_and_closes");

    EXPECT_EQ(0, other.join());
    EXPECT_TRUE(other.get<bool>());
}
