/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "test_mem.h"

#include <cstdlib>

#include <sys/mman.h>

/*
 * On-demand paging of the device in place of a memory monitor: the emulated
 * RNIC has it if NPEMU_ODP says so. The device brings pages in by itself, so
 * there are no states, no signature and no verification.
 */

namespace {

/* Must be set when a process opens the device first */
class environment {
public:
    explicit environment(const char *value)
    {
        setenv("NPEMU_ODP", value, 1);
    }
    ~environment() { unsetenv("NPEMU_ODP"); }
};

const config_t on_demand  = {{"NPRDMA_MONITOR", "odp"}};
const config_t views    = {{"NPRDMA_MONITOR", "emulated"}};
const config_t copy_mode  = {{"NPRDMA_MONITOR", "copy"}};

} // namespace

/* An initiator and a target, each with its own settings */
class test_on_demand_base : public test_mem {
protected:
    explicit test_on_demand_base(const char *odp) : m_env(odp) {}

    void SetUp() override { open(on_demand, on_demand); }

    static char content(unsigned seed, size_t i)
    {
        return 1 + (i * 7 + (i >> 12) * 13 + seed * 31) % 100;
    }

    static void fill(char *ptr, size_t length, unsigned seed)
    {
        for (size_t i = 0; i < length; ++i) {
            ptr[i] = content(seed, i);
        }
    }

    static bool holds(const char *ptr, size_t length, unsigned seed)
    {
        for (size_t i = 0; i < length; ++i) {
            if (ptr[i] != content(seed, i)) {
                return false;
            }
        }
        return true;
    }

    /* The operation ends its endpoint with an error */
    void expect_failure(ucs_status_t status)
    {
        EXPECT_NE(UCS_OK, status);
        m_a->wait([&]() { return m_a->failed.count(m_ab) > 0; });
    }

    environment m_env;
};

/* --- both sides may differ --------------------------------------------- */

struct tiers {
    const char     *name;
    const config_t &initiator, &target;
};

static void PrintTo(const tiers &it, std::ostream *out) { *out << it.name; }

class test_on_demand_tiers
    : public test_on_demand_base,
      public ::testing::WithParamInterface<std::tuple<const char*, tiers>> {
protected:
    test_on_demand_tiers() : test_on_demand_base(std::get<0>(GetParam())) {}

    const tiers &it() const { return std::get<1>(GetParam()); }

    void SetUp() override { open(it().initiator, it().target); }

    bool is_direct() const
    {
        return (&it().initiator != &copy_mode) && (&it().target != &copy_mode);
    }
};

INSTANTIATE_TEST_SUITE_P(
        all, test_on_demand_tiers,
        ::testing::Combine(
                ::testing::Values("explicit", "implicit"),
                ::testing::Values(
                        tiers{"both", on_demand, on_demand},
                        tiers{"to_views", on_demand, views},
                        tiers{"from_views", views, on_demand},
                        tiers{"to_copy", on_demand, copy_mode},
                        tiers{"from_copy", copy_mode, on_demand})),
        [](const auto &info) {
            return std::string(std::get<0>(info.param)) + "_" +
                   std::get<1>(info.param).name;
        });

TEST_P(test_on_demand_tiers, moves_the_right_data)
{
    for (size_t length : {size_t(100), 2 * page, size_t(10000), size_t(50000),
                          size_t(3 << 20)}) {
        size_t area = length + 2 * page;
        char *local = map(area);
        buffer remote(m_b->md(), area);
        uct_rkey_t rkey = m_a->unpack(remote.packed_key());

        /* No page is there yet */
        EXPECT_EQ(UCS_OK, get(local + 33, length, remote.address(7), rkey));
        EXPECT_EQ(0, memcmp(local, remote.ptr(), area)) << "zeros";

        fill(local, area, 1);
        EXPECT_EQ(UCS_OK, put(local + 33, length, remote.address(7), rkey));
        EXPECT_EQ(0, memcmp(local + 33, remote.ptr(7), length)) << length;
        EXPECT_EQ(0, remote.ptr()[6]);
        EXPECT_EQ(0, remote.ptr()[7 + length]);

        ASSERT_EQ(0, madvise(local, area, MADV_DONTNEED));
        EXPECT_EQ(UCS_OK, get(local + 50, length, remote.address(7), rkey));
        EXPECT_EQ(0, memcmp(local + 50, remote.ptr(7), length)) << length;
        EXPECT_EQ(0, local[49]);
        EXPECT_EQ(0, local[50 + length]);
    }
    EXPECT_TRUE(m_a->failed.empty());

    bool is_target = (&it().target == &on_demand);
    EXPECT_EQ(is_direct(), m_a->counter("nic_slices") > 0);
    EXPECT_EQ(is_direct() && is_target, m_a->counter("nic_on_demand") > 0);
    EXPECT_EQ(is_direct() && !is_target, m_a->counter("state_reads") > 0);
    if (is_target) {
        EXPECT_EQ(0u, m_a->counter("assist_populate"));
        EXPECT_EQ(0u, m_a->counter("assist_small"));
        EXPECT_EQ(0u, m_a->counter("suspect_lines"));
    }
}

/* --- the target's memory changes --------------------------------------- */

class test_on_demand : public test_on_demand_base {
protected:
    test_on_demand() : test_on_demand_base("explicit") {}
};

/* Nothing of the application is pinned, and no region is left at the end */
TEST_F(test_on_demand, nothing_is_pinned)
{
    char *first = map(1 << 20);
    buffer other(m_b->md(), 1 << 20);
    /* Slots of the transport are pinned at the first operation */
    ASSERT_EQ(UCS_OK, put(first, 1 << 20, other.address(),
                          m_a->unpack(other.packed_key())));
    uint64_t pinned  = m_b->counter("pinned_bytes");
    uint64_t regions = m_b->counter("odp_regions");
    long locked      = proc_status_kb(getpid(), "VmLck:");

    {
        buffer remote(m_b->md(), 64 << 20);
        uct_rkey_t rkey = m_a->unpack(remote.packed_key());
        char *local     = map(1 << 20);

        EXPECT_EQ(regions + 2, m_b->counter("odp_regions"));
        EXPECT_EQ(UCS_OK, put(local, 1 << 20, remote.address(12345), rkey));
        /* A repeated slice may pin a few more slots of the transport */
        EXPECT_GT(pinned + (1 << 20), m_b->counter("pinned_bytes"));
        EXPECT_EQ(locked, proc_status_kb(getpid(), "VmLck:"));
    }
    EXPECT_EQ(regions, m_b->counter("odp_regions"));
    EXPECT_LE(regions + 2, m_b->counter("odp_regions_created"));
    EXPECT_EQ(0u, m_b->counter("pages_populated"));
    EXPECT_EQ(0u, m_b->counter("memory_events"));
}

/* The initiator's own pages are verified by its own tier, whatever the target
 * has */
class test_on_demand_local : public test_on_demand_base {
protected:
    test_on_demand_local() : test_on_demand_base("explicit") {}

    void SetUp() override
    {
        open({{"NPRDMA_MONITOR", "emulated"},
              {"NPRDMA_FAULT_RATE", "0.005"}, {"NPRDMA_FAULT_SEED", "1"}},
             on_demand);
    }
};

TEST_F(test_on_demand_local, taken_page_is_sent_again)
{
    char *local = map(size);
    buffer remote(m_b->md(), size);
    uct_rkey_t rkey = m_a->unpack(remote.packed_key());

    for (unsigned round = 0; round < 200; ++round) {
        fill(local, size, round);
        ASSERT_EQ(UCS_OK, put(local, size, remote.address(), rkey));
        ASSERT_TRUE(holds(remote.ptr(), size, round)) << round;
        fill(remote.ptr(), size, round + 50);
        ASSERT_EQ(UCS_OK, get(local, size, remote.address(), rkey));
        ASSERT_TRUE(holds(local, size, round + 50)) << round;
    }
    EXPECT_LT(0u, m_a->counter("suspect_local"));
    EXPECT_LT(0u, m_a->counter("nic_on_demand"));
}

/* --- what cannot be repaired ------------------------------------------- */

enum broken { NOT_MAPPED, READ_ONLY, TRUNCATED };

class test_on_demand_broken : public test_on_demand_base,
                              public ::testing::WithParamInterface<broken> {
protected:
    test_on_demand_broken() : test_on_demand_base("explicit") {}

    /* The file, mapped below free space. The kernel takes space from the top:
     * a part that the test unmaps is not taken for other memory, which the
     * test's put would change. */
    char *map_below_space(int fd, size_t length)
    {
        const size_t space = 1ul << 30;
        void *ptr          = mmap(nullptr, space, PROT_NONE,
                                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                                  -1, 0);

        EXPECT_NE(MAP_FAILED, ptr);
        EXPECT_EQ(ptr, mmap(ptr, length, PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_FIXED, fd, 0));
        EXPECT_EQ(0, munmap(static_cast<char*>(ptr) + length, space - length));
        m_maps.emplace_back(ptr, length);
        return static_cast<char*>(ptr);
    }

    void expect_no_mapping_in(const char *hole, size_t length)
    {
        char *other = map(length);

        EXPECT_TRUE((other + length <= hole) || (other >= hole + length));
    }
};

static const char *const broken_names[] = {"not_mapped", "read_only",
                                           "truncated"};

INSTANTIATE_TEST_SUITE_P(all, test_on_demand_broken,
                         ::testing::Values(NOT_MAPPED, READ_ONLY, TRUNCATED),
                         [](const auto &info) {
                             return broken_names[info.param];
                         });

/* A put that the device cannot execute ends its endpoint with an error and a
 * line about it. No other memory changes, and the target lives. */
TEST_P(test_on_demand_broken, target_is_a_clear_error)
{
    char *local = map(size);
    int fd      = memfd_create("on_demand", 0);
    ASSERT_EQ(0, ftruncate(fd, size));
    char *ptr = map_below_space(fd, size);
    complaints log;
    {
        buffer remote(m_b->md(), size, ptr);
        uct_rkey_t rkey = m_a->unpack(remote.packed_key());

        fill(ptr, size, 1);
        fill(local, size, 2);
        switch (GetParam()) {
        case NOT_MAPPED:
            ASSERT_EQ(0, munmap(ptr + size / 2, size / 2));
            expect_no_mapping_in(ptr + size / 2, size / 2);
            break;
        case READ_ONLY:
            ASSERT_EQ(0, mprotect(ptr + size / 2, size / 2, PROT_READ));
            break;
        case TRUNCATED:
            ASSERT_EQ(0, ftruncate(fd, size / 2));
            break;
        }
        expect_failure(put(local + size / 2, size / 2,
                           remote.address(size / 2), rkey));
        EXPECT_TRUE(holds(ptr, size / 2, 1));
        if (GetParam() == READ_ONLY) {
            EXPECT_EQ(content(1, size - 1), ptr[size - 1]);
        }
    }
    EXPECT_LE(1u, count(log, "on-demand"));
    m_a->disconnect(m_ab);
    close(fd);
}

/* --- keys -------------------------------------------------------------- */

class test_on_demand_revoke
    : public test_on_demand_base,
      public ::testing::WithParamInterface<const char*> {
protected:
    test_on_demand_revoke() : test_on_demand_base("explicit") {}

    void SetUp() override
    {
        open(on_demand, {{"NPRDMA_MONITOR", "odp"},
                         {"NPRDMA_REVOKE", GetParam()}});
    }
};

INSTANTIATE_TEST_SUITE_P(all, test_on_demand_revoke,
                         ::testing::Values("lazy", "strict", "never"),
                         [](const auto &info) { return info.param; });

/* In every mode the end of a registration is the end of its keys */
TEST_P(test_on_demand_revoke, end_of_a_registration_ends_its_key)
{
    char *ptr = map(size), *local = map(size);
    uct_mem_h memh  = reg(ptr, size);
    uct_rkey_t rkey = m_a->unpack(pack(memh));

    fill(ptr, size, 1);
    fill(local, size, 2);
    ASSERT_EQ(UCS_OK, put(local, size, (uint64_t)ptr, rkey));
    ASSERT_EQ(UCS_OK, uct_md_mem_dereg(m_b->md(), memh));
    fill(ptr, size, 3);
    expect_failure(put(local, size, (uint64_t)ptr, rkey));
    EXPECT_TRUE(holds(ptr, size, 3));
    m_a->disconnect(m_ab);
}

struct forged {
    const char *name;
    void       (*change)(uct_nprdma_rkey_t &key);
};

static void PrintTo(const forged &it, std::ostream *out) { *out << it.name; }

class test_on_demand_forged
    : public test_on_demand_base,
      public ::testing::WithParamInterface<std::tuple<bool, forged>> {
protected:
    test_on_demand_forged() : test_on_demand_base("explicit") {}

    /* Memory between unregistered pages. It neither begins nor ends with a
     * page: a key reaches it to the byte. */
    static constexpr size_t area  = size + 2 * page;
    static constexpr size_t first = page + 100;
};

static const forged forgeries[] = {
    {"swapped_rkeys",
     [](auto &key) {
         uint32_t r_rkey = key.r_rkey;
         key.r_rkey      = key.w_rkey;
         key.w_rkey      = r_rkey;
     }},
    {"other_rkeys",
     [](auto &key) {
         key.r_rkey += 0x1300;
         key.w_rkey += 0x1300;
     }},
    {"one_page_more",
     [](auto &key) {
         key.address -= page;
         key.length  += 2 * page;
     }},
    {"all_memory",
     [](auto &key) {
         key.address = 0;
         key.length  = UINT64_MAX;
     }},
    /* Its data is taken for states */
    {"as_region",
     [](auto &key) {
         key.flags          = UCT_NPRDMA_KEY_FLAG_REGION;
         key.s_rkey         = key.r_rkey;
         key.region_address = key.address & -page;
         key.region_id      = 99;
         key.signature      = 0x0101010101010101;
     }}
};

INSTANTIATE_TEST_SUITE_P(all, test_on_demand_forged,
                         ::testing::Combine(::testing::Bool(),
                                            ::testing::ValuesIn(forgeries)),
                         [](const auto &info) {
                             return std::string(std::get<1>(info.param).name) +
                                    (std::get<0>(info.param) ? "_get" : "_put");
                         });

/* Each operation ends, and the memory around the registration neither changes
 * nor is read */
TEST_P(test_on_demand_forged, key_reaches_no_other_memory)
{
    const auto &[is_get, it] = GetParam();
    char *memory    = map(area), *local = map(area);
    uct_mem_h memh  = reg(memory + first, size);
    const auto real = pack(memh);
    auto key        = packed(real);
    auto begin      = (const char*)&key;
    complaints log;

    it.change(key);
    uct_rkey_t rkey = m_a->unpack(std::vector<char>(begin,
                                                    begin + sizeof(key)));

    fill(memory, area, 1);
    memset(local, 0, area);
    for (size_t offset : {first, first - 1, first + 1, size_t(0), 2 * page}) {
        uint64_t address    = (uint64_t)memory + offset;
        ucs_status_t status = is_get ? get(local, size, address, rkey) :
                                       put(local, size, address, rkey);

        EXPECT_TRUE((offset == first) || (status != UCS_OK)) << offset;
        EXPECT_TRUE(holds(memory, first, 1)) << offset;
        EXPECT_EQ(content(1, first + size), memory[first + size]) << offset;
        EXPECT_EQ(content(1, area - 1), memory[area - 1]) << offset;
        EXPECT_NE(content(1, area - 1), local[size - 1]) << offset;
        m_a->disconnect(m_ab);
        m_a->failed.clear();
        m_ab = m_a->connect(m_b->address());
    }

    /* The target serves honest peers */
    fill(memory, area, 2);
    EXPECT_EQ(UCS_OK, get(local, size, (uint64_t)memory + first,
                          m_a->unpack(real)));
    EXPECT_EQ(0, memcmp(local, memory + first, size));
    ASSERT_EQ(UCS_OK, uct_md_mem_dereg(m_b->md(), memh));
}

/* --- choice ------------------------------------------------------------ */

TEST(test_on_demand_choice, device_without_it)
{
    complaints log;

    EXPECT_THROW(std::make_unique<entity>(on_demand), std::exception);
    EXPECT_EQ(1u, count(log, "the device has no on-demand paging"));
}

TEST(test_on_demand_choice, auto_takes_it_where_it_is)
{
    environment env("explicit");
    const config_t fault = {{"NPRDMA_FAULT_RATE", "0.1"}};
    entity with, tested(fault);

    EXPECT_LT(0u, with.counter("odp_regions_created"));
    EXPECT_EQ(0u, tested.counter("odp_regions_created"))
            << "a fault plan is for memory monitors";
}
