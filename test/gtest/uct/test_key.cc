/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "test_mem.h"

#include <functional>
#include <set>

#include <sys/mman.h>

/*
 * A peer that forges the fields of the keys it has been given, and uses them on
 * its own NIC: which memory of the target can it reach? doc/architecture.md,
 * Security, has the expected answers.
 *
 * The pages of the target, all in one region:
 *
 *   0..15    registered for everything, from the middle of the first page to
 *            the middle of the last one, and exported
 *   20..29   registered for get only, and exported
 *   40..49   registered, never exported, and used by the target's operations
 *   60..69   was registered and exported; the registration has ended
 *   the rest was never registered
 */
class test_key : public test_mem, public ::testing::WithParamInterface<
                                          const char*> {
protected:
    using pages_t = std::set<size_t>;
    using change_t = std::function<void(uct_nprdma_rkey_t&)>;

    static constexpr size_t num_pages = 80;
    static constexpr size_t area      = num_pages * page;
    /* Large enough that the NIC executes the put; smaller ones go to the
     * service */
    static constexpr size_t view = 3;

    test_key() { m_config["NPRDMA_REVOKE"] = GetParam(); }

    bool is(const char *mode) const
    {
        return strcmp(GetParam(), mode) == 0;
    }

    void SetUp() override
    {
        test_mem::SetUp();
        m_ptr = map(area);
        fill();

        m_all     = reg(at(0) + 100, 15 * page + 50 - 100);
        m_get     = reg(at(20), 10 * page, UCT_MD_MEM_ACCESS_REMOTE_GET);
        m_private = reg(at(40), 10 * page);
        m_all_key = pack(m_all);
        m_get_key = pack(m_get);
        use(at(0) + 100, 15 * page + 50 - 100, m_all_key, true);
        use(at(20), 10 * page, m_get_key, false);
        operate();

        uct_mem_h ended = reg(at(60), 10 * page);
        use(at(60), 10 * page, pack(ended), true);
        ASSERT_EQ(UCS_OK, uct_md_mem_dereg(m_b->md(), ended));
        fill();
    }

    void TearDown() override
    {
        for (auto memh : {m_all, m_get, m_private}) {
            EXPECT_EQ(UCS_OK, uct_md_mem_dereg(m_b->md(), memh));
        }
        test_mem::TearDown();
    }

    char *at(size_t index) const { return m_ptr + index * page; }

    /* A page's contents tell which page it is. No byte is 0 or 0xEE. */
    static char content(size_t i)
    {
        return 1 + (i / page * 7 + i % page) % 100;
    }

    void fill()
    {
        for (size_t i = 0; i < area; ++i) {
            m_ptr[i] = content(i);
        }
    }

    /* Operations of an honest peer */
    void use(char *ptr, size_t length, const std::vector<char> &key,
             bool is_put)
    {
        std::vector<char> data(length);
        uct_rkey_t rkey = m_a->unpack(key);

        ASSERT_EQ(UCS_OK, get(data.data(), length, (uint64_t)ptr, rkey));
        ASSERT_EQ(0, memcmp(data.data(), ptr, length));
        if (is_put) {
            ASSERT_EQ(UCS_OK, put(data.data(), length, (uint64_t)ptr, rkey));
        }
    }

    /* The target itself puts from and gets to memory that is not exported */
    void operate()
    {
        buffer other(m_a->md(), 10 * page);
        uct_rkey_t rkey = m_b->unpack(other.packed_key());
        uct_iov_t iov   = {at(40), 10 * page, m_private, 0, 1};

        for (bool is_put : {true, false}) {
            ASSERT_EQ(UCS_OK, m_b->complete([&](uct_completion_t *comp) {
                return start_zcopy(is_put, m_ba, iov, other.address(), rkey,
                                   comp);
            }));
        }
        /* The NIC executed it */
        EXPECT_GE(m_b->counter("nic_slices"), 2u);
        EXPECT_EQ(0u, m_b->counter("assist_fetch") +
                      m_b->counter("assist_store"));
    }

    /* A copy of the exported key with the attacker's changes */
    uct_rkey_t forge(const change_t &change)
    {
        auto key = packed(m_all_key);
        change(key);
        auto begin = (const char*)&key;
        return m_a->unpack(std::vector<char>(begin, begin + sizeof(key)));
    }

    /* A key for an unlimited range whose states are those of the exported
     * pages. Reading other pages with it passes every check of the
     * initiator. */
    uct_rkey_t forge_at(size_t index, const change_t &change)
    {
        return forge([&](uct_nprdma_rkey_t &key) {
            uint64_t distance   = (uint64_t)at(index) - (uint64_t)at(1);
            key.region_address += distance;
            key.region_id       = ++m_region_id;
            key.address         = key.region_address;
            key.length          = UINT64_MAX / 2 - key.address;
            key.signature       = 0;
            change(key);
        });
    }

    /* The NIC ends a connection that uses a remote key that does not exist
     * or does not permit the access. The service refuses reads of absent
     * memory. */
    void reconnect(ucs_status_t status)
    {
        if ((status != UCS_OK) && (status != UCS_ERR_REJECTED) &&
            (status != UCS_ERR_INVALID_ADDR)) {
            m_a->wait([&]() { return !m_a->failed.empty(); });
        }
        if (!m_a->failed.empty()) {
            m_a->disconnect(m_ab);
            m_ab = m_a->connect(m_b->address());
            m_a->failed.clear();
        }
    }

    /* Whether the contents of a page become readable, whatever status the
     * operation returns */
    bool is_readable(size_t index, const change_t &change)
    {
        std::vector<char> data(page, 0);

        reconnect(get(data.data(), page, (uint64_t)at(index),
                      forge_at(index, change)));
        return memcmp(data.data(), at(index), page) == 0;
    }

    /* The pages of a view that a put changes, whatever status it returns */
    pages_t writable_in(size_t index, const change_t &change)
    {
        std::vector<char> junk(view * page, (char)0xEE);
        pages_t result;

        reconnect(put(junk.data(), junk.size(), (uint64_t)at(index),
                      forge_at(index, change)));
        for (size_t i = index; i < index + view; ++i) {
            if (memchr(at(i), 0xEE, page) != nullptr) {
                result.insert(i);
            }
        }
        fill();
        return result;
    }

    pages_t readable()
    {
        pages_t result;

        for (size_t i = 0; i < num_pages; ++i) {
            if (is_readable(i, [](auto &) {})) {
                result.insert(i);
            }
        }
        return result;
    }

    pages_t writable()
    {
        pages_t result;

        for (size_t i = 0; i + view <= num_pages; ++i) {
            auto more = writable_in(i, [](auto &) {});
            result.insert(more.begin(), more.end());
        }
        return result;
    }

    static pages_t range(size_t first, size_t end, pages_t more = {})
    {
        for (; first < end; ++first) {
            more.insert(first);
        }
        return more;
    }

    /* Pages that were revoked are out of reach */
    void await_revocation()
    {
        if (is("lazy")) {
            m_a->wait([&]() { return m_b->counter("pages_revoked") >= 10; });
        }
    }

    /* The emulated RNIC numbers its keys consecutively, so those of the local
     * region lie between the first one's keys and those of a region that is
     * created now */
    std::vector<int> emulated_distances()
    {
        static constexpr size_t granule = 256ul << 20;
        std::vector<int> result;
        void *far = mmap(nullptr, 2 * granule, PROT_NONE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        EXPECT_NE(MAP_FAILED, far);
        uct_mem_h memh = reg((char*)far + granule, page);
        int last = packed(pack(memh)).r_rkey - packed(m_all_key).r_rkey;
        EXPECT_EQ(UCS_OK, uct_md_mem_dereg(m_b->md(), memh));
        munmap(far, 2 * granule);
        EXPECT_GT(last, 3);
        EXPECT_LT(last, 200);
        for (int distance = -4; distance <= last; ++distance) {
            result.push_back(distance);
        }
        return result;
    }

    /* Those of mlx5 have an index above a byte that changes with each use */
    static std::vector<int> mlx5_distances()
    {
        std::vector<int> result;
        for (int index = -6; index <= 6; ++index) {
            for (int use = -1; use <= 1; ++use) {
                result.push_back(index * 256 + use);
            }
        }
        return result;
    }

    std::vector<int> distances()
    {
        return is_fast() ? emulated_distances() : mlx5_distances();
    }

    /* Status of the service's reply to a request with this key */
    ucs_status_t ask(bool is_put, size_t offset, size_t length, uint64_t key)
    {
        std::vector<char> data(length, (char)0xEE);
        uct_rkey_t rkey = forge([&](uct_nprdma_rkey_t &forged) {
            forged         = {};
            forged.version = UCT_NPRDMA_KEY_VERSION;
            forged.key     = key;
            forged.length  = UINT64_MAX;
        });
        uint64_t address    = (uint64_t)m_ptr + offset;
        ucs_status_t status = is_put ? put(data.data(), length, address, rkey) :
                                       get(data.data(), length, address, rkey);

        EXPECT_TRUE(m_a->failed.empty());
        return status;
    }

    char              *m_ptr = nullptr;
    uct_mem_h         m_all, m_get, m_private;
    std::vector<char> m_all_key, m_get_key;
    uint64_t          m_region_id = 1;
    complaints        m_log; /* Of the device and the service */
};

/* Forged address, length, region and signature reach whole pages of any live
 * registration. Pages that were populated for reading only cannot be
 * written. */
TEST_P(test_key, forged_range)
{
    pages_t ended = range(60, 70);

    if (!is("never")) {
        await_revocation();
        ended.clear();
    }
    EXPECT_EQ(range(0, 16, range(20, 30, ended)), readable());
    EXPECT_EQ(range(0, 16, ended), writable());
}

/* Forged remote keys. A key for get only opens the same read view, and no other
 * number opens anything. The numbers tried include those of local views. */
TEST_P(test_key, forged_remote_keys)
{
    auto other = packed(m_get_key);

    await_revocation();
    EXPECT_EQ(+packed(m_all_key).r_rkey, +other.r_rkey);
    EXPECT_EQ(0u, +other.w_rkey);

    for (int distance : distances()) {
        auto change = [&](uct_nprdma_rkey_t &key) {
            key.r_rkey += distance;
            key.w_rkey += distance;
        };
        EXPECT_FALSE(is_readable(42, change)) << distance;
        EXPECT_EQ(pages_t(), writable_in(42, change)) << distance;
        /* With the right numbers the endpoint works */
        EXPECT_EQ(distance == 0, is_readable(5, change)) << distance;
    }
}

/* Keys can be guessed. A guess opens live registrations, and nothing that was
 * never exported. */
TEST_P(test_key, guessed_keys)
{
    uint64_t known = packed(m_all_key).key;
    int found      = 0;

    for (int generation = -4; generation <= 4; ++generation) {
        for (uint32_t index = 0; index < 16; ++index) {
            uint64_t key = ((uint64_t)((uint32_t)(known >> 32) + generation)
                            << 32) | index;
            if (!(key >> 32 & 1)) {
                continue; /* Never live: the peer refuses it */
            }
            EXPECT_NE(UCS_OK, ask(false, 45 * page, 64, key));
            EXPECT_NE(UCS_OK, ask(true, 45 * page, 64, key));
            found += (ask(false, 25 * page, 64, key) == UCS_OK);
        }
    }
    EXPECT_EQ(1, found);
    EXPECT_EQ(nullptr, memchr(at(40), 0xEE, 10 * page));
}

INSTANTIATE_TEST_SUITE_P(modes, test_key,
                         ::testing::Values("lazy", "strict", "never"),
                         [](const auto &info) { return info.param; });
