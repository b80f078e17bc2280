/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "operations.h"

#include <algorithm>
#include <cstring>

#include <sys/mman.h>
#include <unistd.h>

/* Requests that the target must refuse without accessing memory */
class test_error : public uct_buffer_test {
protected:
    static constexpr size_t page = 4096;
    static constexpr size_t size = 4 * page;

    test_error() : uct_buffer_test(8 * page) {}

    void SetUp() override
    {
        uct_buffer_test::SetUp();
        m_local->fill(1);
    }

    /* Status of one complete operation, which a flush may report */
    ucs_status_t
    run(const operation &op, uint64_t address, uct_rkey_t rkey)
    {
        ucs_status_t status = m_a->complete([&](uct_completion_t *comp) {
            return op.start(m_ab, address, rkey, *m_local, comp);
        });

        return (status == UCS_OK) ? m_a->flush_status(m_ab) : status;
    }

    const std::vector<operation> m_ops = {
        op_put_short, {"put_bcopy", 100, true, start_put_bcopy<100>},
        {"put_zcopy", 3 * page, true, start_put_zcopy<3 * page>},
        {"get_bcopy", 8, false, start_get_bcopy<8>},
        {"get_zcopy", 3 * page, false, start_get_zcopy<3 * page>},
        op_atomic_post, op_atomic_fetch
    };

    /* All operations fail. Only the buffer of a get that the NIC executes may
     * change, and a later flush reports no error. */
    void expect_refused(const buffer &remote, uint64_t address, uct_rkey_t rkey,
                        ucs_status_t expected)
    {
        std::vector<char> before(remote.ptr(), remote.ptr(remote.length()));
        std::vector<char> local(m_local->ptr(), m_local->ptr(8 * page));

        for (auto &op : m_ops) {
            ucs_status_t status = run(op, address, rkey);
            EXPECT_EQ(expected, status) << op.name << ": "
                                        << ucs_status_string(status);
            EXPECT_EQ(0, memcmp(remote.ptr(), before.data(), before.size()))
                    << op.name;
            if (op.name != std::string("get_zcopy")) {
                EXPECT_EQ(0, memcmp(local.data(), m_local->ptr(), 8 * page))
                        << op.name;
            }
            memcpy(m_local->ptr(), local.data(), 8 * page);
        }
        m_a->flush(m_ab);
        expect_alive();
    }

    /* The endpoint still works */
    void expect_alive()
    {
        buffer good(m_b->md(), page);
        uint64_t value = 0x42;

        EXPECT_EQ(UCS_OK, m_a->put(m_ab, &value, 8, good.address(),
                                   m_a->unpack(good.packed_key())));
        m_a->flush(m_ab);
        EXPECT_EQ(value, *good.ptr<uint64_t>());
        EXPECT_TRUE(m_a->failed.empty());
    }

    /* Memory that is registered and cannot be accessed */
    void expect_fault(void *ptr, size_t offset, bool readable = false)
    {
        buffer remote(m_b->md(), size, ptr);
        uct_rkey_t rkey = m_a->unpack(remote.packed_key());

        for (auto &op : m_ops) {
            if (!op.writes && readable) {
                continue;
            }
            EXPECT_EQ(UCS_ERR_INVALID_ADDR,
                      run(op, remote.address(offset), rkey)) << op.name;
        }
        m_a->flush(m_ab);
        expect_alive();
    }
};

TEST_F(test_error, range)
{
    buffer memory(m_b->md(), 3 * size); /* More than is registered */
    buffer remote(m_b->md(), size, memory.ptr(size));
    uct_rkey_t rkey = m_a->unpack(remote.packed_key());

    expect_refused(memory, remote.address(size), rkey, UCS_ERR_INVALID_ADDR);
    expect_refused(memory, remote.address(2 * size - 8), rkey,
                   UCS_ERR_INVALID_ADDR);
    expect_refused(memory, 0, rkey, UCS_ERR_INVALID_ADDR);
    expect_refused(memory, UINT64_MAX & ~7ul, rkey, UCS_ERR_INVALID_ADDR);
    for (auto &op : m_ops) {
        /* Half of the range is outside. Parts of an operation that is split may
         * succeed. */
        for (uint64_t address : {remote.address(size) - op.length / 2,
                                 remote.address() - op.length / 2}) {
            EXPECT_EQ(UCS_ERR_INVALID_ADDR, run(op, address, rkey)) << op.name;
            EXPECT_EQ((long)(2 * size),
                      std::count(memory.ptr(), memory.ptr(size), 0) +
                      std::count(memory.ptr(2 * size), memory.ptr(3 * size), 0))
                    << op.name;
            EXPECT_TRUE((op.length > 100) ||
                        (std::count(memory.ptr(), memory.ptr(3 * size), 0) ==
                         (long)(3 * size))) << op.name;
        }
        memset(memory.ptr(), 0, 3 * size);
    }
    expect_alive();
}

TEST_F(test_error, dead_key)
{
    buffer memory(m_b->md(), size);
    buffer remote(m_b->md(), size, memory.ptr());
    uct_rkey_t rkey = m_a->unpack(remote.packed_key());

    remote.deregister();
    expect_refused(memory, memory.address(), rkey, UCS_ERR_REJECTED);
    buffer again(m_b->md(), size, memory.ptr());
    expect_refused(memory, memory.address(), rkey, UCS_ERR_REJECTED);
}

TEST_F(test_error, access)
{
    buffer memory(m_b->md(), size);
    buffer get(m_b->md(), size, memory.ptr(), UCT_MD_MEM_ACCESS_REMOTE_GET);
    buffer put(m_b->md(), size, memory.ptr(), UCT_MD_MEM_ACCESS_REMOTE_PUT);

    for (auto &op : m_ops) {
        bool is_atomic = !strncmp(op.name, "atomic", 6);
        EXPECT_EQ(op.writes ? UCS_ERR_REJECTED : UCS_OK,
                  run(op, memory.address(), m_a->unpack(get.packed_key())))
                << op.name;
        EXPECT_EQ((!op.writes || is_atomic) ? UCS_ERR_REJECTED : UCS_OK,
                  run(op, memory.address(), m_a->unpack(put.packed_key())))
                << op.name;
    }
}

/* UCP before 1.17 takes it for memory that allows all */
TEST_F(test_error, local_access)
{
    buffer memory(m_b->md(), size);
    buffer local(m_b->md(), size, memory.ptr(), UCT_MD_MEM_ACCESS_LOCAL_WRITE);

    for (auto &op : m_ops) {
        EXPECT_EQ((UCT_API < UCT_VERSION(1, 17)) ? UCS_OK : UCS_ERR_REJECTED,
                  run(op, memory.address(), m_a->unpack(local.packed_key())))
                << op.name;
    }
}

TEST_F(test_error, unmapped_or_read_only)
{
    void *ptr = mmap((void*)remote_place, size, PROT_READ,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);

    ASSERT_EQ((void*)remote_place, ptr);
    expect_fault(ptr, 0, true);
    munmap(ptr, size);
    expect_fault(ptr, 0);
}

TEST_F(test_error, truncated_file)
{
    int fd = memfd_create("nprdma-test", MFD_CLOEXEC);
    ASSERT_EQ(0, ftruncate(fd, size));
    void *ptr = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    memset(ptr, 1, size);
    ASSERT_EQ(0, ftruncate(fd, page));
    expect_fault(ptr, page);
    munmap(ptr, size);
    close(fd);
}

TEST_F(test_error, flush_reports_the_error_once)
{
    buffer good(m_b->md(), page);
    buffer bad(m_b->md(), page);
    uct_rkey_t good_key = m_a->unpack(good.packed_key());
    uct_rkey_t bad_key  = m_a->unpack(bad.packed_key());
    uint64_t value      = 1;

    bad.deregister();
    for (uint64_t address : {good.address(), bad.address(), good.address(8)}) {
        ASSERT_EQ(UCS_OK, m_a->retry([&]() {
            return uct_ep_put_short(m_ab, &value, 8, address,
                                    (address == bad.address()) ? bad_key :
                                                                 good_key);
        }));
    }
    /* The next reply carries the error of the put. The get that it answers has
     * a status of its own. */
    EXPECT_EQ(UCS_OK, m_a->complete([&](uct_completion_t *comp) {
        return start_get_bcopy<8>(m_ab, good.address(), good_key, *m_local,
                                  comp);
    }));
    EXPECT_EQ(value, *good.ptr<uint64_t>(0));
    EXPECT_EQ(value, *good.ptr<uint64_t>(8));
    EXPECT_EQ(0u, *bad.ptr<uint64_t>());

    m_a->flush(m_ab, UCS_ERR_REJECTED);
    m_a->flush(m_ab);
}

class test_error_copy : public test_error {
protected:
    test_error_copy() { m_config["MONITOR"] = "copy"; }
};

/* The get ends by the reply that has the error of the put, and the flush ends
 * with the get */
TEST_F(test_error_copy, flush_reports_what_ends_a_get)
{
    buffer good(m_b->md(), size);
    buffer bad(m_b->md(), page);
    uct_rkey_t good_key = m_a->unpack(good.packed_key());
    uct_rkey_t bad_key  = m_a->unpack(bad.packed_key());
    uint64_t value      = 1;
    completion get, flush;

    bad.deregister();
    m_a->flush(m_ab);
    ASSERT_EQ(UCS_OK, m_a->retry([&]() {
        return uct_ep_put_short(m_ab, &value, 8, good.address(), good_key);
    }));
    ASSERT_EQ(UCS_OK, uct_ep_put_short(m_ab, &value, 8, bad.address(),
                                       bad_key));
    ASSERT_EQ(UCS_INPROGRESS, start_get_zcopy<3 * page>(
                                      m_ab, good.address(), good_key, *m_local,
                                      &get));
    ASSERT_EQ(UCS_INPROGRESS, uct_ep_flush(m_ab, 0, &flush));
    m_a->wait([&]() { return flush.done; });
    EXPECT_TRUE(get.done);
    EXPECT_EQ(UCS_ERR_REJECTED, flush.status);
    m_a->flush(m_ab);
}

TEST_F(test_error, flush_reports_a_put_without_completion)
{
    buffer bad(m_b->md(), page);
    uct_rkey_t rkey = m_a->unpack(bad.packed_key());

    bad.deregister();
    EXPECT_EQ(UCS_INPROGRESS, m_a->retry([&]() {
        return start_put_zcopy<8>(m_ab, bad.address(), rkey, *m_local, NULL);
    }));
    m_a->flush(m_ab, UCS_ERR_REJECTED);
}
