/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "test_mem.h"

#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Bytes of a range that have a page, the zero page included */
static size_t resident(const void *ptr, size_t length)
{
    std::vector<uint64_t> entries(length / page);
    int fd      = open("/proc/self/pagemap", O_RDONLY);
    ssize_t ret = pread(fd, entries.data(), entries.size() * 8,
                        (uintptr_t)ptr / page * 8);

    close(fd);
    EXPECT_EQ((ssize_t)(entries.size() * 8), ret);
    return page * std::count_if(entries.begin(), entries.end(),
                                [](uint64_t entry) { return entry >> 63; });
}

/* ---- keys ---- */

/* UCX demands so since keys say whether they can be invalidated */
TEST_F(test_mem, only_keys_are_invalidated)
{
    buffer memory(m_b->md(), size);
    uct_mem_h memh = reg(memory.ptr(), size);

    memory.deregister();
    memory.fill(1);
    if (UCT_API < UCT_VERSION(1, 15)) {
        invalidate(m_b->md(), memh);
        return;
    }

    ASSERT_EQ(UCS_ERR_INVALID_PARAM, try_invalidate(m_b->md(), memh));
    /* The registration remains, and so it can get a key */
    uct_rkey_t rkey = m_a->unpack(pack(memh));
    expect_works(memory, 0, size, rkey);
    invalidate(m_b->md(), memh);
    expect_revoked(memory, 0, size, rkey);
}

/* ---- cost ---- */

/* From here on, any system call but the last one kills this process */
static void forbid_system_calls()
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS)
    };
    struct sock_fprog program = {sizeof(filter) / sizeof(filter[0]), filter};

    if ((prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) ||
        (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)) {
        _exit(3);
    }
}

PEER_FUNCTION(register_without_system_calls)
{
    static const size_t length = 1ul << 30;
    entity self;
    char *ptr = (char*)mmap(nullptr, length, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    int forbid = parent.get<int>();

    buffer covers(self.md(), length, ptr);
    uct_mem_h memh;
    ucs_status_t status = UCS_OK;
    if (forbid) {
        forbid_system_calls();
    }
    for (int i = 0; (i < 10000) && (status == UCS_OK); ++i) {
        /* Many registrations at once: 500 need more than one page of handles */
        static uct_mem_h memhs[500];
        for (auto &other : memhs) {
            if (i > 0) {
                break;
            }
            uct_md_mem_reg(self.md(), ptr, length, UCT_MD_MEM_ACCESS_ALL,
                           &other);
        }
        status = uct_md_mem_reg(self.md(), ptr + i * page, length / 2,
                                UCT_MD_MEM_ACCESS_ALL, &memh);
        if (status == UCS_OK) {
            status = uct_md_mem_dereg(self.md(), memh);
        }
    }
    if (!forbid) {
        /* A system call that the filter must catch */
        forbid_system_calls();
        syscall(SYS_getppid);
    }
    syscall(SYS_exit_group, (status == UCS_OK) ? 0 : 1);
    return 0;
}

TEST_F(test_mem, covered_buffer_makes_no_system_call)
{
    peer with("register_without_system_calls");
    peer control("register_without_system_calls");

    with.put<int>(1);
    EXPECT_EQ(0, with.join());
    control.put<int>(0);
    EXPECT_EQ(128 + SIGSYS, control.join());
}

TEST_F(test_mem, packing_leaves_untouched_memory_alone)
{
    buffer small(m_b->md(), size);
    buffer large(m_b->md(), 64 * size);

    for (auto *memory : {&small, &large}) {
        size_t half = memory->length() / 2;
        /* A huge page would cover part of the other half */
        madvise(memory->ptr(), memory->length(), MADV_NOHUGEPAGE);
        memset(memory->ptr(), 1, half);
        uct_rkey_t rkey = m_a->unpack(memory->packed_key());
        EXPECT_EQ(half, resident(memory->ptr(), memory->length()));
        std::vector<char> result(half);
        EXPECT_EQ(UCS_OK, get(result.data(), half, memory->address(), rkey));
        EXPECT_EQ((long)half, std::count(result.begin(), result.end(), 1));
        /* The service's thread had time to populate more */
        EXPECT_EQ(0u, resident(memory->ptr(half), half));
    }
}

/* Present pages of a short buffer are in the views when its key is packed: to
 * wake a thread for them takes longer. That thread does the rest of a long one
 * (the control). */
TEST_F(test_mem, packing_populates_a_short_buffer_at_once)
{
    static constexpr size_t most = 2ul << 20;
    buffer small(m_b->md(), most);
    buffer large(m_b->md(), 2 * most);

    small.fill(1);
    large.fill(1);
    uint64_t before = m_b->counter("pages_populated");
    small.packed_key();
    EXPECT_EQ(most / page, m_b->counter("pages_populated") - before);
    EXPECT_EQ(0u, m_b->counter("prefetch_jobs"));

    before = m_b->counter("pages_populated");
    large.packed_key();
    EXPECT_EQ(1u, m_b->counter("prefetch_jobs"));
    EXPECT_LE(most / page, m_b->counter("pages_populated") - before);
    m_b->wait([&]() {
        return m_b->counter("pages_populated") - before == 2 * most / page;
    });
}

/* ucp_mem_advise(): absent pages come into memory, and the first get of them
 * needs no help of the target. Without a key it opens no page to peers. */
TEST_F(test_mem, advice_populates)
{
    buffer memory(m_b->md(), 64 * size);
    auto populated = [&]() { return m_b->counter("pages_populated"); };
    auto advise    = [&](size_t offset, unsigned advice) {
        return uct_md_mem_advise(m_b->md(), memory.memh(), memory.ptr(offset),
                                 memory.length(), (uct_mem_advice_t)advice);
    };

    ASSERT_TRUE(m_b->md_attr().cap.flags & UCT_MD_FLAG_ADVISE);
    EXPECT_EQ(UCS_OK, advise(0, UCT_MADV_WILLNEED));
    EXPECT_EQ(0u, populated());

    uct_rkey_t rkey = m_a->unpack(memory.packed_key());
    EXPECT_EQ(UCS_ERR_INVALID_PARAM, advise(1, UCT_MADV_WILLNEED));
    EXPECT_EQ(UCS_OK, advise(0, UCT_MADV_NORMAL));
    EXPECT_EQ(0u, populated());

    EXPECT_EQ(UCS_OK, advise(0, UCT_MADV_WILLNEED));
    m_b->wait([&]() { return populated() == memory.length() / page; });
    for (size_t i = 0; i < memory.length(); i += 61 * page) {
        uint64_t value = 1;
        EXPECT_EQ(UCS_OK,
                  get(&value, sizeof(value), memory.address(i), rkey));
        EXPECT_EQ(0u, value);
    }
    EXPECT_EQ(0u, m_b->counter("served_fetches"));
}

TEST_F(test_mem, nothing_is_pinned)
{
    static const long limit_kb = 4096; /* UCX_NPRDMA_MAX_PINNED */
    buffer memory(m_b->md(), 64 * size);
    uct_rkey_t rkey = m_a->unpack(memory.packed_key());

    ASSERT_GT(memory.length(), limit_kb * 2048u);
    memory.fill(1);
    expect_works(memory, 0, memory.length(), rkey);
    EXPECT_LE(proc_status_kb(getpid(), "VmLck:"), limit_kb);
}

TEST_F(test_mem, local_handle_is_not_dereferenced)
{
    /* UCP before 1.16 passes any value, because the MD requests none */
    auto *garbage = reinterpret_cast<uct_mem_h>(uintptr_t(0x5a));
    buffer remote(m_b->md(), size);
    std::vector<char> local(size, 1);
    uct_iov_t iov   = {local.data(), size, garbage, 0, 1};
    uct_rkey_t rkey = m_a->unpack(remote.packed_key());

    for (bool is_put : {true, false}) {
        ASSERT_EQ(UCS_OK, m_a->complete([&](uct_completion_t *comp) {
            return start_zcopy(is_put, m_ab, iov, remote.address(), rkey, comp);
        }));
        EXPECT_EQ(0, memcmp(remote.ptr(), local.data(), size));
        remote.fill(1);
    }
}

/* ---- configuration ---- */

TEST(test_mem_config, nothing_is_kept_unless_revocation_is_strict)
{
    complaints log;
    {
        entity keeps(config_t{{"NPRDMA_LAZY_UNMAP", "64m"},
                              {"NPRDMA_REVOKE", "strict"}});
    }
    size_t count = log.lines().size();
#ifndef __SANITIZE_ADDRESS__ /* It keeps nothing either, and says so */
    EXPECT_EQ(0u, count) << "the control";
#endif
    { entity keeps_nothing(config_t{{"NPRDMA_LAZY_UNMAP", "64m"}}); }
    ASSERT_EQ(count + 1, log.lines().size());
    EXPECT_NE(std::string::npos,
              log.lines().back().find("it needs UCX_NPRDMA_REVOKE"));
}

TEST(test_mem_config, order_in_mlx5_devices_is_none_of_the_emulated_one)
{
    static const char *name = "MLX5_RELAXED_PACKET_ORDERING_ON";

    setenv(name, "all", 1);
    {
        entity owner;
        buffer memory(owner.md(), page);
        memory.packed_key();
        EXPECT_EQ(1u, owner.counter("regions"));
    }
    unsetenv(name);
}
