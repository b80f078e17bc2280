/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "uct_test.h"

#include <algorithm>
#include <cstring>

#include <sys/mman.h>
#include <unistd.h>

/* Requests that the target must refuse without accessing memory */
class test_error : public uct_pair_test {
protected:
    static constexpr size_t page = 4096;
    static constexpr size_t size = 4 * page;

    /* One complete operation. run() returns its status. */
    struct operation {
        const char *name;
        size_t     length;
        bool       writes;
        std::function<ucs_status_t(uint64_t address, uct_rkey_t rkey)> run;
    };

    void SetUp() override
    {
        uct_pair_test::SetUp();
        m_local.reset(new buffer(m_a->md(), 8 * page));
        m_local->fill(1);
        m_result.assign(8 * page, 'r');

        add("put_short", 8, true, [this](uint64_t address, uct_rkey_t rkey) {
            return flushed([&]() {
                return uct_ep_put_short(m_ab, m_local->ptr(), 8, address, rkey);
            });
        });
        add("put_bcopy", 100, true, [this](uint64_t address, uct_rkey_t rkey) {
            return flushed([&]() {
                ssize_t packed = uct_ep_put_bcopy(m_ab, pack_100,
                                                  m_local->ptr(), address,
                                                  rkey);
                return (packed < 0) ? (ucs_status_t)packed : UCS_OK;
            });
        });
        add("put_zcopy", 3 * page, true,
            [this](uint64_t address, uct_rkey_t rkey) {
            uct_iov_t iov = {m_local->ptr(), 3 * page, m_local->memh(), 0, 1};
            return completed([&](uct_completion_t *comp) {
                return uct_ep_put_zcopy(m_ab, &iov, 1, address, rkey, comp);
            });
        });
        add("get_bcopy", 8, false, [this](uint64_t address, uct_rkey_t rkey) {
            return completed([&](uct_completion_t *comp) {
                return uct_ep_get_bcopy(m_ab, unpack, m_result.data(), 8,
                                        address, rkey, comp);
            });
        });
        add("get_zcopy", 3 * page, false,
            [this](uint64_t address, uct_rkey_t rkey) {
            uct_iov_t iov = {m_result.data(), 3 * page, nullptr, 0, 1};
            return completed([&](uct_completion_t *comp) {
                return uct_ep_get_zcopy(m_ab, &iov, 1, address, rkey, comp);
            });
        });
        add("atomic_post", 8, true, [this](uint64_t address, uct_rkey_t rkey) {
            return flushed([&]() {
                return uct_ep_atomic64_post(m_ab, UCT_ATOMIC_OP_ADD, 1, address,
                                            rkey);
            });
        });
        add("atomic_fetch", 4, true, [this](uint64_t address, uct_rkey_t rkey) {
            return completed([&](uct_completion_t *comp) {
                return uct_ep_atomic32_fetch(m_ab, UCT_ATOMIC_OP_ADD, 1,
                                             (uint32_t*)m_result.data(),
                                             address, rkey, comp);
            });
        });
    }

    void TearDown() override
    {
        m_local.reset();
        uct_pair_test::TearDown();
    }

    void add(const char *name, size_t length, bool writes,
             std::function<ucs_status_t(uint64_t, uct_rkey_t)> run)
    {
        m_ops.push_back({name, length, writes, run});
    }

    static size_t pack_100(void *dest, void *arg)
    {
        memcpy(dest, arg, 100);
        return 100;
    }

    static void unpack(void *arg, const void *data, size_t length)
    {
        memcpy(arg, data, length);
    }

    /* Status of an operation that only a flush reports */
    ucs_status_t flushed(const std::function<ucs_status_t()> &op)
    {
        completion comp;
        ucs_status_t status = m_a->retry(op);
        if (status != UCS_OK) {
            return status;
        }
        status = m_a->retry([&]() { return uct_ep_flush(m_ab, 0, &comp); });
        if (status == UCS_INPROGRESS) {
            m_a->wait([&]() { return comp.done; });
            status = comp.status;
        }
        return status;
    }

    ucs_status_t
    completed(const std::function<ucs_status_t(uct_completion_t*)> &op)
    {
        completion comp;
        ucs_status_t status = m_a->retry([&]() { return op(&comp); });
        if (status == UCS_INPROGRESS) {
            m_a->wait([&]() { return comp.done; });
            status = comp.status;
        }
        return status;
    }

    /* All operations fail. Only the buffer of a get that the NIC executes may
     * change, and a later flush reports no error. */
    void expect_refused(const buffer &remote, uint64_t address, uct_rkey_t rkey,
                        ucs_status_t expected)
    {
        std::vector<char> before(remote.ptr(), remote.ptr(remote.length()));
        std::vector<char> result = m_result;

        for (auto &op : m_ops) {
            ucs_status_t status = op.run(address, rkey);
            EXPECT_EQ(expected, status) << op.name << ": "
                                        << ucs_status_string(status);
            EXPECT_EQ(0, memcmp(remote.ptr(), before.data(), before.size()))
                    << op.name;
            if (op.name == std::string("get_zcopy")) {
                m_result = result;
            }
            EXPECT_EQ(result, m_result) << op.name;
        }
        m_a->flush(m_ab);
        expect_alive();
    }

    /* The endpoint still works */
    void expect_alive()
    {
        buffer good(m_b->md(), page);
        uint64_t value = 0x42;

        EXPECT_EQ(UCS_OK, flushed([&]() {
            return uct_ep_put_short(m_ab, &value, 8, good.address(),
                                    m_a->unpack(good.packed_key()));
        }));
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
                      op.run(remote.address(offset), rkey)) << op.name;
        }
        m_a->flush(m_ab);
        expect_alive();
    }

    std::unique_ptr<buffer> m_local;
    std::vector<char>       m_result;
    std::vector<operation>  m_ops;
};

TEST_F(test_error, valid_keys_pass)
{
    buffer remote(m_b->md(), size);

    for (auto &op : m_ops) {
        EXPECT_EQ(UCS_OK, op.run(remote.address(),
                                 m_a->unpack(remote.packed_key()))) << op.name;
    }
}

TEST_F(test_error, key_with_a_flipped_bit_is_refused)
{
    buffer remote(m_b->md(), size);
    const std::vector<char> good = remote.packed_key();

    /* The key follows version, flags and the device's keys. The loop leaves out
     * bits that make the key impossible, which unpack refuses. */
    for (int bit : {0, 1, 8, 20, 21, 33, 40, 63}) {
        std::vector<char> packed = good;
        packed.at(16 + (bit / 8)) ^= 1 << (bit % 8);
        expect_refused(remote, remote.address(), m_a->unpack(packed),
                       UCS_ERR_REJECTED);
    }
}

TEST_F(test_error, garbage_key_is_refused)
{
    buffer remote(m_b->md(), size);
    const std::vector<char> good = remote.packed_key();

    EXPECT_THROW(m_a->unpack(std::vector<char>(good.size(), 0)),
                 std::runtime_error);
    /* Version, flags, reserved, and the bit that marks a live key */
    for (int byte : {0, 1, 2, 3, 20}) {
        std::vector<char> packed = good;
        packed.at(byte) ^= (byte == 20) ? 1 : 0x80;
        EXPECT_THROW(m_a->unpack(packed), std::runtime_error) << byte;
    }
}

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
            EXPECT_EQ(UCS_ERR_INVALID_ADDR, op.run(address, rkey)) << op.name;
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
                  op.run(memory.address(), m_a->unpack(get.packed_key())))
                << op.name;
        EXPECT_EQ((!op.writes || is_atomic) ? UCS_ERR_REJECTED : UCS_OK,
                  op.run(memory.address(), m_a->unpack(put.packed_key())))
                << op.name;
    }
}

TEST_F(test_error, unmapped)
{
    void *ptr = mmap((void*)remote_place, size, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    ASSERT_EQ((void*)remote_place, ptr);
    munmap(ptr, size);
    expect_fault(ptr, 0);
}

TEST_F(test_error, prot_none)
{
    void *ptr = mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
                     0);
    expect_fault(ptr, 0);
    munmap(ptr, size);
}

TEST_F(test_error, read_only)
{
    void *ptr = mmap(nullptr, size, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1,
                     0);
    expect_fault(ptr, 0, true);
    munmap(ptr, size);
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

TEST_F(test_error, hole)
{
    char *ptr = (char*)mmap((void*)remote_place, size, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE,
                            -1, 0);
    buffer remote(m_b->md(), size, ptr);
    uct_rkey_t rkey = m_a->unpack(remote.packed_key());

    munmap(ptr + 2 * page, page);
    for (auto &op : m_ops) {
        EXPECT_EQ((op.length > page) ? UCS_ERR_INVALID_ADDR : UCS_OK,
                  op.run(remote.address(), rkey)) << op.name;
    }
    munmap(ptr, size);
    expect_alive();
}

TEST_F(test_error, flush_reports_the_error_once)
{
    buffer good(m_b->md(), page);
    buffer bad(m_b->md(), page);
    uct_rkey_t good_key = m_a->unpack(good.packed_key());
    uct_rkey_t bad_key  = m_a->unpack(bad.packed_key());
    uint64_t value      = 1, result;
    completion comp;

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
    ASSERT_EQ(UCS_INPROGRESS, m_a->retry([&]() {
        return uct_ep_get_bcopy(m_ab, unpack, &result, 8, good.address(),
                                good_key, &comp);
    }));
    m_a->wait([&]() { return comp.done; });
    EXPECT_EQ(UCS_OK, comp.status);
    EXPECT_EQ(value, *good.ptr<uint64_t>(0));
    EXPECT_EQ(value, *good.ptr<uint64_t>(8));
    EXPECT_EQ(0u, *bad.ptr<uint64_t>());

    m_a->flush(m_ab, UCS_ERR_REJECTED);
    m_a->flush(m_ab);
}

TEST_F(test_error, invalidate)
{
    buffer memory(m_b->md(), size);
    uct_mem_h memh;
    uct_rkey_t rkey;

    ASSERT_EQ(UCS_OK, uct_md_mem_reg(m_b->md(), memory.ptr(), size,
                                     UCT_MD_MEM_ACCESS_ALL, &memh));
    std::vector<char> packed(m_b->md_attr().rkey_packed_size);
    ASSERT_EQ(UCS_OK, uct_md_mkey_pack(m_b->md(), memh, packed.data()));
    rkey = m_a->unpack(packed);
    invalidate(m_b->md(), memh);
    expect_refused(memory, memory.address(), rkey, UCS_ERR_REJECTED);
}
