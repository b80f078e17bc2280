/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "test_mem.h"

#include <sys/mman.h>

/* The end of registrations: revoked memory stays revoked */

/* Memory that munmap() keeps is to peers what unmapped memory is */
class test_mem_end_kept : public test_mem {
protected:
    test_mem_end_kept()
    {
        m_config = {{"NPRDMA_REVOKE", "strict"}, {"NPRDMA_LAZY_UNMAP", "64m"}};
    }
};

TEST_F(test_mem_end_kept, old_keys_do_not_reach_it)
{
    std::vector<char> result(size, 0);
    char *ptr = map(size);
    memset(ptr, 0x5a, size);
    uct_mem_h memh  = reg(ptr, size);
    uct_rkey_t rkey = m_a->unpack(pack(memh));
    auto get_old    = [&]() {
        return get(result.data(), size, (uint64_t)ptr, rkey);
    };

    ASSERT_EQ(UCS_OK, get_old());
    EXPECT_EQ(0x5a, result[size - 1]);
    munmap(ptr, size);
    if (msync(ptr, size, MS_ASYNC) != 0) {
        ASSERT_EQ(UCS_OK, uct_md_mem_dereg(m_b->md(), memh));
        GTEST_SKIP() << "nothing is kept with this sanitizer";
    }

    std::fill(result.begin(), result.end(), 0);
    EXPECT_NE(UCS_OK, get_old());
    /* A signature, which absent pages show, may have such a byte */
    EXPECT_EQ(result.end(),
              std::search_n(result.begin(), result.end(), 16, 0x5a));
    ASSERT_EQ(UCS_OK, uct_md_mem_dereg(m_b->md(), memh));
    EXPECT_EQ(UCS_ERR_REJECTED, get_old());

    /* It comes back as other memory, with a key of its own */
    ASSERT_EQ(ptr, map(size));
    {
        buffer memory(m_b->md(), size, ptr);
        std::fill(result.begin(), result.end(), 1);
        EXPECT_EQ(UCS_OK, get(result.data(), size, memory.address(),
                              m_a->unpack(memory.packed_key())));
        EXPECT_EQ((ptrdiff_t)size, std::count(result.begin(), result.end(), 0));
        memory.fill(3);
        expect_works(memory, 0, size, m_a->unpack(memory.packed_key()));
    }
}

/* Nothing but invalidation takes pages from peers */
class test_mem_end_never : public test_mem {
protected:
    test_mem_end_never() { m_config["NPRDMA_REVOKE"] = "never"; }
};

/* An operation of the owner that is in progress at the invalidation does not
 * leave the pages to peers either */
TEST_F(test_mem_end_never, invalidation_outlasts_operations)
{
    buffer memory(m_b->md(), size), other(m_a->md(), size);
    uct_mem_h memh   = reg(memory.ptr(), size);
    uct_rkey_t rkey  = m_a->unpack(pack(memh));
    uct_rkey_t local = m_b->unpack(other.packed_key());
    uct_ep_h ep      = m_b->connect(m_a->address());
    uct_iov_t iov    = {memory.ptr(), size, nullptr, 0, 1};

    memory.deregister();
    memory.fill(1);
    expect_works(memory, 0, size, rkey);
    m_b->flush(ep);
    for (bool is_put : {true, false}) {
        completion comp;
        ASSERT_EQ(UCS_INPROGRESS, m_b->retry([&]() {
            return start_zcopy(is_put, ep, iov, other.address(), local, &comp);
        }));
        invalidate(m_b->md(), memh);
        m_b->wait([&]() { return comp.done; });
        EXPECT_EQ(UCS_OK, comp.status);
        expect_revoked(memory, 0, size, rkey);
        memh = reg(memory.ptr(), size);
        rkey = m_a->unpack(pack(memh));
        expect_works(memory, 0, size, rkey);
    }
    ASSERT_EQ(UCS_OK, uct_md_mem_dereg(m_b->md(), memh));
}
