/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "test_mem.h"

#include <cstdlib>
#include <fstream>
#include <map>
#include <set>

#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
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

TEST_F(test_mem, key_has_range_and_region)
{
    buffer memory(m_b->md(), size);
    buffer inner(m_b->md(), 100, memory.ptr(page + 7));
    auto key = packed(inner.packed_key());

    EXPECT_EQ(inner.address(), +key.address);
    EXPECT_EQ(100u, +key.length);
    ASSERT_EQ(UCT_NPRDMA_KEY_FLAG_REGION, +key.flags);
    EXPECT_LE(+key.region_address, inner.address());
    EXPECT_EQ(0u, key.region_address % page);
    EXPECT_NE(0u, +key.region_id);
    EXPECT_NE(0u, +key.signature);
    EXPECT_EQ(3u, (std::set<uint32_t>{+key.r_rkey, +key.w_rkey,
                                      +key.s_rkey}.size()));

    /* All of one region */
    auto outer = packed(memory.packed_key());
    EXPECT_EQ(+outer.region_id, +key.region_id);
    EXPECT_EQ(+outer.r_rkey, +key.r_rkey);
    EXPECT_NE(+outer.key, +key.key);
}

TEST_F(test_mem, key_allows_the_requested_access)
{
    buffer get_only(m_b->md(), size, nullptr, UCT_MD_MEM_ACCESS_REMOTE_GET);
    buffer put_only(m_b->md(), size, nullptr, UCT_MD_MEM_ACCESS_REMOTE_PUT);
    buffer amo_only(m_b->md(), size, nullptr, UCT_MD_MEM_ACCESS_REMOTE_ATOMIC);
    auto get_key = packed(get_only.packed_key());
    auto put_key = packed(put_only.packed_key());
    auto amo_key = packed(amo_only.packed_key());

    EXPECT_NE(0u, +get_key.r_rkey);
    EXPECT_EQ(0u, +get_key.w_rkey);
    EXPECT_NE(0u, +get_key.s_rkey);
    EXPECT_EQ(0u, +put_key.r_rkey);
    EXPECT_NE(0u, +put_key.w_rkey);
    EXPECT_NE(0u, +put_key.s_rkey);
    EXPECT_EQ(0u, +amo_key.flags);

    std::vector<char> data(size, 1);
    EXPECT_EQ(UCS_ERR_REJECTED,
              put(data.data(), size, get_only.address(),
                  m_a->unpack(get_only.packed_key())));
    EXPECT_EQ(UCS_ERR_REJECTED,
              get(data.data(), size, put_only.address(),
                  m_a->unpack(put_only.packed_key())));
    EXPECT_EQ((long)size, std::count(get_only.ptr(), get_only.ptr(size), 0));
    EXPECT_EQ((long)size, std::count(data.begin(), data.end(), 1));
}

TEST_F(test_mem, outside_of_registration)
{
    /* In the same region, where the device itself would permit the access */
    buffer memory(m_b->md(), 3 * size);
    uct_mem_h memh  = reg(memory.ptr(size), size);
    uct_rkey_t rkey = m_a->unpack(pack(memh));
    std::vector<char> data(size, 1);

    memory.fill(1);
    EXPECT_EQ(UCS_OK, get(data.data(), size, memory.address(size), rkey));
    for (size_t offset : {size_t(0), size - 1, size + 1, 2 * size}) {
        std::vector<char> before(memory.ptr(), memory.ptr(3 * size));
        std::fill(data.begin(), data.end(), 1);
        EXPECT_EQ(UCS_ERR_INVALID_ADDR,
                  put(data.data(), size, memory.address(offset), rkey))
                << offset;
        EXPECT_EQ(UCS_ERR_INVALID_ADDR,
                  get(data.data(), size, memory.address(offset), rkey))
                << offset;
        /* Memory outside of the registration is unchanged */
        EXPECT_EQ(0, memcmp(before.data(), memory.ptr(), size));
        EXPECT_EQ(0, memcmp(&before[2 * size], memory.ptr(2 * size), size));
    }
    EXPECT_TRUE(m_a->failed.empty());
    ASSERT_EQ(UCS_OK, uct_md_mem_dereg(m_b->md(), memh));
}

TEST_F(test_mem, key_of_earlier_registration)
{
    buffer memory(m_b->md(), size);
    uct_mem_h memh         = reg(memory.ptr(), size);
    std::vector<char> old  = pack(memh);
    uct_rkey_t rkey        = m_a->unpack(old);

    /* Its region stays: without it the NIC would refuse the key */
    buffer other(m_b->md(), page, memory.ptr(size - page));
    other.packed_key();
    memory.deregister();
    invalidate(m_b->md(), memh);
    /* The same range, and most likely the same index in all tables */
    for (int i = 0; i < 600; ++i) {
        memh     = reg(memory.ptr(), size);
        auto key = packed(pack(memh));
        ASSERT_NE(+packed(old).key, +key.key);
        ASSERT_EQ(UCS_OK, uct_md_mem_dereg(m_b->md(), memh));
    }
    memory.fill(1);
    expect_revoked(memory, 0, size, rkey);
}

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

TEST_F(test_mem, covered_buffer_makes_no_region)
{
    static const size_t length = 1ul << 30;
    char *ptr = (char*)mmap(nullptr, length, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    ASSERT_NE(MAP_FAILED, ptr);
    {
        buffer all(m_b->md(), length, ptr);

        /* No region exists before a key is packed */
        EXPECT_EQ(0u, count_regions());
        ASSERT_TRUE(has_region(all));
        size_t regions = count_regions();
        EXPECT_GE(regions, 1u);
        for (size_t part : {size_t(1), page, size, length / 2, length}) {
            for (size_t offset = 0; offset + part <= length;
                 offset       += std::max(length / 16, part)) {
                buffer inner(m_b->md(), part, ptr + offset);
                ASSERT_TRUE(has_region(inner));
                ASSERT_EQ(regions, count_regions());
            }
        }
        EXPECT_EQ(0u, resident(ptr, size));
    }
    /* A later registration makes none either, because regions are kept */
    size_t regions = count_regions();
    {
        buffer again(m_b->md(), length, ptr);
        ASSERT_TRUE(has_region(again));
        EXPECT_EQ(regions, count_regions());
    }
    munmap(ptr, length);
}

TEST_F(test_mem, registration_takes_less_than_a_microsecond)
{
    static const size_t length = 1ul << 30;
    char *ptr = (char*)mmap(nullptr, length, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    double best = 1;

    ASSERT_NE(MAP_FAILED, ptr);
    for (int i = 0; i < 100; ++i) {
        static const int count = 1000;
        double start           = now();
        for (int j = 0; j < count; ++j) {
            uct_mem_h memh;
            ASSERT_EQ(UCS_OK, uct_md_mem_reg(m_b->md(), ptr, length,
                                             UCT_MD_MEM_ACCESS_ALL, &memh));
            ASSERT_EQ(UCS_OK, uct_md_mem_dereg(m_b->md(), memh));
        }
        best = std::min(best, (now() - start) / count);
    }
    RecordProperty("nanoseconds", int(best * 1e9));
    printf("mem_reg and mem_dereg of 1 GiB: %.0f ns\n", best * 1e9);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    EXPECT_LT(best, 1e-6);
#endif
    munmap(ptr, length);
}

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

/* Present pages of a short buffer are in the windows when its key is packed: to
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


TEST_F(test_mem, counters)
{
    char name[] = "/tmp/nprdma-test.XXXXXX";
    int fd      = mkstemp(name);
    ASSERT_GE(fd, 0);
    {
        entity self({{"NPRDMA_STATS", std::string("file:") + name}});
        buffer memory(self.md(), size);
        memory.fill(1);
        memory.packed_key();
    }

    std::ifstream file(name);
    std::map<std::string, uint64_t> counters;
    std::string line;
    while (std::getline(file, line)) {
        size_t space = line.find(' ');
        if (line[0] != '#') {
            counters[line.substr(0, space)] = std::stoull(line.substr(space));
        }
    }
    close(fd);
    unlink(name);
    EXPECT_EQ(1u, counters.at("regions"));
    EXPECT_EQ(1u, counters.at("regions_created"));
    EXPECT_EQ(0u, counters.at("registrations"));
    EXPECT_EQ(size / page, counters.at("pages_populated"));
    EXPECT_EQ(0u, counters.at("populate_faults"));
    EXPECT_EQ((256ul << 20) / 1024, counters.at("state_bytes"));
    EXPECT_GT(counters.at("pinned_bytes"), 0u);
    EXPECT_LE(counters.at("pinned_bytes"), 4ul << 20);
}


TEST_F(test_mem, local_handle_is_not_dereferenced)
{
    /* UCP before 1.16 passes any value, because the MD requests none */
    auto *garbage = reinterpret_cast<uct_mem_h>(uintptr_t(0x5a));
    buffer remote(m_b->md(), size);
    std::vector<char> local(size, 1);
    uct_iov_t iov   = {local.data(), size, garbage, 0, 1};
    uct_rkey_t rkey = m_a->unpack(remote.packed_key());

    for (bool is_get : {false, true}) {
        completion comp;
        ASSERT_EQ(UCS_INPROGRESS, m_a->retry([&]() {
            return is_get ? uct_ep_get_zcopy(m_ab, &iov, 1, remote.address(),
                                             rkey, &comp) :
                            uct_ep_put_zcopy(m_ab, &iov, 1, remote.address(),
                                             rkey, &comp);
        }));
        m_a->wait([&]() { return comp.done; });
        EXPECT_EQ(UCS_OK, comp.status);
        EXPECT_EQ(0, memcmp(remote.ptr(), local.data(), size));
        remote.fill(1);
    }
}


/* ---- copy mode ---- */

class test_mem_copy : public test_mem {
protected:
    config_t config() override { return {{"NPRDMA_MONITOR", "copy"}}; }
};

TEST_F(test_mem_copy, works)
{
    buffer memory(m_b->md(), size);

    memory.fill(1);
    EXPECT_FALSE(has_region(memory));
    EXPECT_EQ(0u, count_regions());
    expect_works(memory, 5, size - 9, m_a->unpack(memory.packed_key()));
}

TEST_F(test_mem, works_without_region)
{
    struct rlimit before, none;
    complaints log;

    /* No descriptors, so no page states */
    ASSERT_EQ(0, getrlimit(RLIMIT_NOFILE, &before));
    none          = before;
    none.rlim_cur = 0;
    ASSERT_EQ(0, setrlimit(RLIMIT_NOFILE, &none));
    std::unique_ptr<buffer> first, second;
    EXPECT_NO_THROW(first.reset(new buffer(m_b->md(), size)));
    EXPECT_NO_THROW(second.reset(new buffer(m_b->md(), size)));
    ASSERT_TRUE(first && second);
    first->packed_key();
    second->packed_key();
    ASSERT_EQ(0, setrlimit(RLIMIT_NOFILE, &before));

    EXPECT_EQ(1u, count(log, "bounce buffers"));
    EXPECT_FALSE(has_region(*first));
    first->fill(1);
    expect_works(*first, 0, size, m_a->unpack(first->packed_key()));

    /* When descriptors are available again, regions are created again */
    first->deregister();
    second->deregister();
    buffer again(m_b->md(), size, first->ptr());
    EXPECT_TRUE(has_region(again));
    expect_works(again, 0, size, m_a->unpack(again.packed_key()));
}


/* ---- configuration ---- */

static ucs_status_t open_with(const config_t &config)
{
    try {
        entity self(config);
        return UCS_OK;
    } catch (std::runtime_error &error) {
        return UCS_ERR_INVALID_PARAM;
    }
}

TEST(test_mem_config, wrong_values_are_named)
{
    const std::vector<std::pair<std::string, std::string>> wrong = {
        {"MONITOR", "maybe"}, {"REGION_SIZE", "3m"}, {"REGION_SIZE", "1m"},
        {"REGION_SIZE", "0"}, {"REGION_CACHE", "inf"}, {"REVOKE", "soon"},
        {"SLICE", "5000"}, {"SLICE", "0"}, {"SLICE", "1g"}, {"SCAN_MAX", "2g"},
        {"MAX_TRIES", "0"}, {"STATE_CACHE", "8g"},
        {"LAZY_UNMAP", "64"}, {"LAZY_UNMAP", "255k"}, {"LAZY_UNMAP", "2t"},
        {"LAZY_UNMAP", "inf"}, {"LAZY_UNMAP", "auto"}, {"LAZY_UNMAP", "-1"},
        {"LAZY_UNMAP", ""}, {"LAZY_UNMAP", "64m,zeroed"}, {"LAZY_UNMAP", "x"},
        {"RECLAIM", "all"}, {"RECLAIM_RATE", "-1"}, {"RECLAIM_RATE", "nan"},
        {"SEED", "x"}
    };

    for (auto &pair : wrong) {
        complaints log;
        EXPECT_EQ(UCS_ERR_INVALID_PARAM,
                  open_with({{"NPRDMA_" + pair.first, pair.second}}))
                << pair.first << "=" << pair.second;
        EXPECT_EQ(1u, log.lines().size()) << pair.first << "=" << pair.second;
        std::string item = pair.first;
        std::transform(item.begin(), item.end(), item.begin(), ::tolower);
        EXPECT_EQ(1u, count(log, pair.first) + count(log, item))
                << pair.first << "=" << pair.second;
    }
}

TEST(test_mem_config, wrong_fault_plan_is_named)
{
    /* The emulated device refuses it */
    for (std::string plan : {"rate=2", "seed=x"}) {
        complaints log;
        testing::internal::CaptureStderr();
        ucs_status_t status = open_with({{"NPRDMA_FAULT", plan}});
        std::string output  = testing::internal::GetCapturedStderr();

        EXPECT_EQ(UCS_ERR_INVALID_PARAM, status);
        EXPECT_EQ(0u, log.lines().size());
        EXPECT_NE(std::string::npos, output.find(plan));
        EXPECT_EQ(1, std::count(output.begin(), output.end(), '\n')) << output;
    }
}

TEST(test_mem_config, right_values_are_taken)
{
    complaints log;

    for (const char *monitor : {"auto", "copy"}) {
        EXPECT_EQ(UCS_OK, open_with({{"NPRDMA_MONITOR", monitor},
                                     {"NPRDMA_REGION_SIZE", "2m"},
                                     {"NPRDMA_REGION_CACHE", "0"},
                                     {"NPRDMA_REVOKE", "never"},
                                     {"NPRDMA_SLICE", "4k"},
                                     {"NPRDMA_SCAN_MAX", "0"},
                                     {"NPRDMA_MAX_TRIES", "1"},
                                     {"NPRDMA_STATE_CACHE", "0"},
                                     {"NPRDMA_LAZY_UNMAP", "1g"},
                                     {"NPRDMA_RECLAIM", "logical"},
                                     {"NPRDMA_RECLAIM_RATE", "1e3"},
                                     {"NPRDMA_SEED", "7"},
                                     {"NPRDMA_FAULT", "rate=0.01,seed=1"}}));
    }
    for (auto &line : log.lines()) {
        /* Without zero copy nothing is kept */
        EXPECT_NE(std::string::npos, line.find("LAZY_UNMAP has no effect"))
                << line;
    }
}

/* What needs a monitor has no effect without one: one line tells why */
TEST(test_mem_config, nothing_is_kept_without_a_monitor)
{
    config_t config = {{"NPRDMA_MONITOR", "copy"}};
    {
        complaints log;
        EXPECT_EQ(UCS_OK, open_with(config));
        EXPECT_EQ(0u, log.lines().size()) << "nothing was asked for";
    }

    config["NPRDMA_LAZY_UNMAP"] = "64m";
    complaints log;
    EXPECT_EQ(UCS_OK, open_with(config));
    ASSERT_EQ(1u, log.lines().size());
    EXPECT_NE(std::string::npos,
              log.lines()[0].find("UCX_NPRDMA_LAZY_UNMAP has no effect"));
    EXPECT_NE(std::string::npos,
              log.lines()[0].find("UCX_NPRDMA_MONITOR=copy"));
}

TEST(test_mem_config, nothing_is_kept_unless_revocation_is_strict)
{
    complaints log;
    EXPECT_EQ(UCS_OK, open_with({{"NPRDMA_LAZY_UNMAP", "64m"},
                                 {"NPRDMA_REVOKE", "strict"}}));
    size_t count = log.lines().size();
#ifndef __SANITIZE_ADDRESS__ /* It keeps nothing either, and says so */
    EXPECT_EQ(0u, count) << "the control";
#endif
    EXPECT_EQ(UCS_OK, open_with({{"NPRDMA_LAZY_UNMAP", "64m"}}));
    ASSERT_EQ(count + 1, log.lines().size());
    EXPECT_NE(std::string::npos,
              log.lines().back().find("it needs UCX_NPRDMA_REVOKE"));
}
