/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include <ucm/regions/nprdma_reg.h>

#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <thread>

class test_reg : public ::testing::Test {
protected:
    void SetUp() override
    {
        ASSERT_EQ(UCS_OK, nprdma_reg_table_create(0, &m_sums, &m_table));
    }

    void TearDown() override
    {
        nprdma_reg_table_destroy(m_table);
    }

    nprdma_reg_t *
    add(uintptr_t address, size_t length,
        uint32_t access = NPRDMA_REG_ACCESS_ALL)
    {
        nprdma_reg_t *reg = nullptr;
        EXPECT_EQ(UCS_OK, nprdma_reg_alloc(m_table, address, length, access,
                                           &reg));
        nprdma_reg_publish(reg);
        return reg;
    }

    void remove(nprdma_reg_t *reg)
    {
        nprdma_reg_retire(reg);
        nprdma_reg_free(m_table, reg);
    }

    ucs_status_t get(uint64_t key, uintptr_t address, size_t length,
                     uint32_t access = NPRDMA_REG_ACCESS_PUT)
    {
        nprdma_reg_t *reg;
        ucs_status_t status = nprdma_reg_get(m_table, key, address, length,
                                             access, &reg);
        if (status == UCS_OK) {
            nprdma_reg_put(reg);
        }
        return status;
    }

    nprdma_reg_sums_t m_sums    = {};
    nprdma_reg_table_t *m_table = nullptr;
};

TEST_F(test_reg, bytes_and_their_peak)
{
    nprdma_reg_sums_t sums;
    nprdma_reg_t *first  = add(1000, 100);
    nprdma_reg_t *second = add(1050, 200);

    nprdma_reg_table_query(m_table, &sums);
    EXPECT_EQ(300u, sums.bytes);
    EXPECT_EQ(300u, sums.peak);
    remove(first);
    nprdma_reg_table_query(m_table, &sums);
    EXPECT_EQ(200u, sums.bytes);
    EXPECT_EQ(300u, sums.peak);
    first = add(0, 40);
    remove(second);
    remove(first);
    nprdma_reg_table_query(m_table, &sums);
    EXPECT_EQ(0u, sums.bytes);
    EXPECT_EQ(300u, sums.peak);
}

TEST_F(test_reg, bounds)
{
    uint64_t key = nprdma_reg_key(add(1000, 100));

    EXPECT_EQ(UCS_OK, get(key, 1000, 100));
    EXPECT_EQ(UCS_OK, get(key, 1000, 0));
    EXPECT_EQ(UCS_OK, get(key, 1099, 1));
    EXPECT_EQ(UCS_OK, get(key, 1100, 0));
    EXPECT_EQ(UCS_ERR_OUT_OF_RANGE, get(key, 999, 1));
    EXPECT_EQ(UCS_ERR_OUT_OF_RANGE, get(key, 999, 2));
    EXPECT_EQ(UCS_ERR_OUT_OF_RANGE, get(key, 1000, 101));
    EXPECT_EQ(UCS_ERR_OUT_OF_RANGE, get(key, 1099, 2));
    EXPECT_EQ(UCS_ERR_OUT_OF_RANGE, get(key, 1101, 0));
}

TEST_F(test_reg, no_wrap_around)
{
    nprdma_reg_t *reg;

    uint64_t key = nprdma_reg_key(add(1000, 100));
    EXPECT_EQ(UCS_ERR_OUT_OF_RANGE, get(key, 1050, SIZE_MAX));
    EXPECT_EQ(UCS_ERR_OUT_OF_RANGE, get(key, 1050, SIZE_MAX - 1049));
    EXPECT_EQ(UCS_ERR_OUT_OF_RANGE, get(key, UINTPTR_MAX, 2));

    EXPECT_EQ(UCS_ERR_INVALID_PARAM,
              nprdma_reg_alloc(m_table, UINTPTR_MAX - 10, 100,
                               NPRDMA_REG_ACCESS_ALL, &reg));
}

TEST_F(test_reg, access)
{
    uint64_t key = nprdma_reg_key(add(0, 8, NPRDMA_REG_ACCESS_GET));

    EXPECT_EQ(UCS_OK, get(key, 0, 8, NPRDMA_REG_ACCESS_GET));
    EXPECT_EQ(UCS_ERR_REJECTED, get(key, 0, 8, NPRDMA_REG_ACCESS_PUT));
    EXPECT_EQ(UCS_ERR_REJECTED, get(key, 0, 8, NPRDMA_REG_ACCESS_ATOMIC));
    EXPECT_EQ(UCS_ERR_REJECTED, get(key, 0, 8, NPRDMA_REG_ACCESS_ALL));
}

TEST_F(test_reg, dead_keys)
{
    nprdma_reg_t *reg = add(1000, 100);
    uint64_t key      = nprdma_reg_key(reg);

    EXPECT_EQ(1u, nprdma_reg_table_count(m_table));
    remove(reg);
    EXPECT_EQ(0u, nprdma_reg_table_count(m_table));
    EXPECT_EQ(UCS_ERR_NO_ELEM, get(key, 1000, 1));

    /* The key stays invalid, also after its entry has been used again */
    std::set<uint64_t> keys;
    bool reused = false;
    while (!reused) {
        reg    = add(1000, 100);
        reused = (uint32_t)nprdma_reg_key(reg) == (uint32_t)key;
        EXPECT_TRUE(keys.insert(nprdma_reg_key(reg)).second);
        EXPECT_EQ(UCS_ERR_NO_ELEM, get(key, 1000, 1));
        remove(reg);
    }
    EXPECT_EQ(0u, keys.count(key));
}

TEST_F(test_reg, wrong_keys)
{
    uint64_t key = nprdma_reg_key(add(1000, 100));

    EXPECT_TRUE(nprdma_reg_key_is_valid(key));
    EXPECT_FALSE(nprdma_reg_key_is_valid(0));
    EXPECT_FALSE(nprdma_reg_key_is_valid(UINT64_MAX));
    for (int bit = 0; bit < 64; ++bit) {
        EXPECT_EQ(UCS_ERR_NO_ELEM, get(key ^ (UINT64_C(1) << bit), 1000, 1))
                << "bit " << bit;
    }
}

TEST_F(test_reg, remove_waits_for_users)
{
    nprdma_reg_t *reg = add(1000, 100);
    uint64_t key      = nprdma_reg_key(reg);
    std::atomic<bool> removed(false);
    nprdma_reg_t *user;

    ASSERT_EQ(UCS_OK, nprdma_reg_get(m_table, key, 1000, 1,
                                     NPRDMA_REG_ACCESS_GET, &user));
    std::thread remover([&]() {
        remove(reg);
        removed = true;
    });

    /* From the beginning of the removal no further lookup finds it */
    while (get(key, 1000, 1) == UCS_OK) {
        std::this_thread::yield();
    }
    EXPECT_FALSE(removed);

    nprdma_reg_put(user);
    remover.join();
    EXPECT_TRUE(removed);
}
