/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "uct_test.h"

#include <csignal>

#include <sys/mman.h>
#include <sys/resource.h>

/*
 * The owner takes buffers away before their operation is complete, which UCX
 * forbids. The result is an error, not a signal. The tests run in processes of
 * their own, which a signal would end.
 */

enum way_t {
    UNMAP,
    PROTECT
};

struct taken_case {
    bool   zcopy;
    bool   is_put;
    bool   is_late; /* Not before the operation is posted */
    way_t  way;
    size_t length;
};

class taker {
public:
    explicit taker(const taken_case &what)
        : m_what(what),
          m_config({{"NPRDMA_MONITOR", what.zcopy ? "auto" : "copy"}}),
          m_self(m_config), m_other(m_config),
          m_remote(m_other.md(), what.length)
    {
        m_self.add_progress(&m_other);
        m_ep   = m_self.connect(m_other.address());
        m_rkey = m_self.unpack(m_remote.packed_key());
        m_ptr  = mmap((void*)hole_place, what.length, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
        EXPECT_EQ((void*)hole_place, m_ptr);
        m_local.reset(new buffer(m_self.md(), what.length, m_ptr));
        m_local->fill(1);
        m_remote.fill(2);
        m_self.wire_up(m_ep, m_remote.ptr(), m_remote.address(), m_rkey);
    }

    void take()
    {
        if (m_what.way == UNMAP) {
            ASSERT_EQ(0, munmap(m_ptr, m_what.length));
        } else {
            ASSERT_EQ(0, mprotect(m_ptr, m_what.length, PROT_NONE));
        }
    }

    ucs_status_t operate()
    {
        completion comp;
        uct_iov_t iov = {m_ptr, m_what.length, m_local->memh(), 0, 1};

        if (!m_what.is_late) {
            take();
        }
        ucs_status_t status = m_self.retry([&]() {
            return start_zcopy(m_what.is_put, m_ep, iov, m_remote.address(),
                               m_rkey, &comp);
        });
        EXPECT_EQ(UCS_INPROGRESS, status);
        EXPECT_FALSE(comp.done);
        if (m_what.is_late) {
            take();
        }
        m_self.wait([&]() { return comp.done; });
        return comp.status;
    }

    /* The endpoint still works, and reports no further error */
    void expect_works()
    {
        uint64_t value = 0x1122334455667788;

        m_self.flush(m_ep);
        ASSERT_EQ(UCS_OK, m_self.put(m_ep, &value, 8, m_remote.address(),
                                     m_rkey));
        m_self.flush(m_ep);
        EXPECT_EQ(value, *m_remote.ptr<uint64_t>());
        EXPECT_TRUE(m_self.failed.empty());
    }

private:
    const taken_case        m_what;
    const config_t          m_config;
    entity                  m_self, m_other;
    buffer                  m_remote;
    std::unique_ptr<buffer> m_local;
    uct_ep_h                m_ep;
    uct_rkey_t              m_rkey;
    void                    *m_ptr;
};

PEER_FUNCTION(taken_away)
{
    taken_case what     = parent.get<taken_case>();
    struct rlimit limit = {};
    complaints log;
    int told = 0;

    /* A process that dies here leaves neither a core file nor a sanitizer's
     * report */
    setrlimit(RLIMIT_CORE, &limit);
    signal(SIGSEGV, SIG_DFL);

    taker self(what);
    ucs_status_t status = self.operate();
    self.expect_works();
    for (auto &line : log.lines()) {
        told += line.find("unmapped or protected before") != std::string::npos;
    }
    EXPECT_EQ((status == UCS_OK) ? 0 : 1, told);
    parent.put(status);
    return 0;
}

static constexpr size_t kib = 1024;

static void expect_error(std::initializer_list<taken_case> cases)
{
    for (taken_case what : cases) {
        peer taken("taken_away");

        SCOPED_TRACE(testing::Message() << "length " << what.length);
        taken.put(what);
        ASSERT_EQ(0, taken.join()); /* No signal has ended it */
        ucs_status_t status = taken.get<ucs_status_t>();
        EXPECT_EQ(UCS_ERR_INVALID_ADDR, status) << ucs_status_string(status);
    }
}

/* What is protected late is not here: nothing reports mprotect(), and the NIC
 * may be done before */
TEST(test_taken, by_the_caller)
{
    expect_error({{true, false, false, UNMAP, 64 * kib},
                  {true, true, false, PROTECT, 64 * kib},
                  {true, false, true, UNMAP, 4096 * kib},
                  {true, true, true, UNMAP, 4096 * kib}});
}

/* Operations for which the CPU accesses the buffer: small gets are copied,
 * somewhat larger ones are scanned, and copy mode copies everything */
TEST(test_taken, touched_by_the_cpu)
{
    expect_error({{true, false, true, UNMAP, 8},
                  {true, false, true, UNMAP, 4 * kib},
                  {true, false, true, PROTECT, 4 * kib},
                  {true, false, true, PROTECT, 32 * kib},
                  {false, false, true, UNMAP, 64 * kib},
                  {false, true, true, PROTECT, 4096 * kib}});
}
