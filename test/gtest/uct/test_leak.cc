/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "test_mem.h"

/*
 * Objects that a user forgets to close, or closes in the wrong order. One
 * warning reports it, and nothing of nprdma uses freed memory: the memory
 * hooks, the async handlers of the interfaces and the threads of the service
 * keep running.
 */

namespace {

/* Freed memory is reused, and does not keep its contents */
void reuse_freed_memory()
{
    std::vector<std::vector<char>> blocks;

    for (size_t i = 0; i < 2000; ++i) {
        blocks.emplace_back(100 + i * 4, (char)0xfe);
    }
}

class test_leak : public ::testing::TestWithParam<const char*> {
protected:
    static constexpr size_t size = 4u << 20;

    void SetUp() override
    {
        find_component();
        m_config["NPRDMA_MONITOR"] = GetParam();
        for (auto &ptr : m_memory) {
            ptr = (char*)mmap(nullptr, size, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            ASSERT_NE(MAP_FAILED, (void*)ptr);
            memset(ptr, 1, size);
        }
    }

    void TearDown() override
    {
        /* The memory hooks run, and must not reach freed objects */
        reuse_freed_memory();
        for (auto ptr : m_memory) {
            EXPECT_EQ(0, munmap(ptr, size));
        }
        reuse_freed_memory();
        EXPECT_EQ(0u, count_regions());
    }

    /* Registers all of the memory and does not deregister it. @return a packed
     * key. */
    std::vector<char> leak(const entity &e)
    {
        std::vector<char> key(e.md_attr().rkey_packed_size);

        for (auto ptr : m_memory) {
            uct_mem_h memh;
            EXPECT_EQ(UCS_OK, uct_md_mem_reg(e.md(), ptr, size,
                                             UCT_MD_MEM_ACCESS_ALL, &memh));
            EXPECT_EQ(UCS_OK, uct_md_mkey_pack(e.md(), memh, key.data()));
        }
        return key;
    }

    config_t m_config;
    char     *m_memory[3];
};

TEST_P(test_leak, interface)
{
    complaints log;
    entity a(m_config), b(m_config);
    uct_rkey_t rkey = a.unpack(leak(b));
    uct_ep_h ep     = a.connect(b.address());
    std::vector<char> local(size);

    a.add_progress(&b);
    a.close_md();
    b.close_md();
    EXPECT_EQ(2u, count(log, "closed with 1 open interfaces"));
    EXPECT_EQ(2u, log.lines().size());
    reuse_freed_memory();

    /* Wire-up, its timers and the service's thread start after this */
    EXPECT_EQ(UCS_OK, a.get(ep, local.data(), size, (uint64_t)m_memory[2],
                          rkey));
    EXPECT_EQ(1, local[size / 2]);
    EXPECT_EQ(UCS_OK, a.get(ep, local.data(), 100, (uint64_t)m_memory[2],
                          rkey));
}

TEST_P(test_leak, endpoints)
{
    complaints log;
    auto a          = std::make_unique<entity>(m_config);
    entity b(m_config);
    uct_rkey_t rkey = a->unpack(leak(b));
    uct_ep_h ep     = a->connect(b.address());
    std::vector<char> local(size);
    uct_iov_t iov   = {local.data(), size, nullptr, 0, 1};
    completion comp;

    a->add_progress(&b);
    EXPECT_EQ(UCS_OK, a->get(ep, local.data(), size, (uint64_t)m_memory[2],
                          rkey));
    EXPECT_EQ(UCS_INPROGRESS, a->retry([&]() {
        return uct_ep_get_zcopy(ep, &iov, 1, (uint64_t)m_memory[2], rkey,
                                &comp);
    }));
    leak(*a);
    a->leak_endpoints();
    a.reset();
    EXPECT_EQ(1u, count(log, "closed with 1 endpoints"));
    EXPECT_EQ(1u, count(log, "closed with 3 live registrations"));
    EXPECT_EQ(2u, log.lines().size());

    /* Outstanding operations have ended: nothing is written any more */
    EXPECT_TRUE(comp.done);
    reuse_freed_memory();
    auto before = local;
    memset(m_memory[2], 2, size);
    b.progress();
    EXPECT_EQ(before, local);
}

INSTANTIATE_TEST_SUITE_P(zcopy, test_leak, ::testing::Values("auto", "copy"),
                         [](const auto &info) { return info.param; });

} // namespace
