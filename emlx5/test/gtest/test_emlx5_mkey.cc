/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Memory keys: what they permit, and what they translate to. */

#include "test_emlx5.h"

class test_emlx5_mkey : public ::testing::Test {
protected:
    enum { LENGTH = 4 * EMLX5_PAGE };

    test_emlx5_mkey() : m_node(1)
    {
        m_bus = m_node.memory(LENGTH);
        /* Neither begins nor ends with a page */
        m_va     = 0x700000000000ull + 0x234;
        m_length = LENGTH - 0x234 - 100;
        m_key    = m_node.create_mkey(m_va, m_length, m_bus);
    }

    int check(uint64_t va, uint64_t length,
              uint32_t rights = EMLX5_REMOTE_WRITE, uint32_t key = 0,
              uint32_t pd = 0)
    {
        emlx5_access_t access = {(key != 0) ? key : m_key,
                                 (pd != 0) ? pd : m_node.pd(), rights, va,
                                 length, 0};

        return emlx5_mkey_check(m_node.hca(), &access);
    }

    emlx5_mkey_t *mkey()
    {
        return (emlx5_mkey_t*)emlx5_table_get(&m_node.hca()->mkeys, m_key >> 8);
    }

    emlx5_node m_node;
    uint64_t   m_bus, m_va, m_length;
    uint32_t   m_key;
};

TEST_F(test_emlx5_mkey, range)
{
    EXPECT_EQ(0, check(m_va, m_length));
    EXPECT_EQ(0, check(m_va + m_length - 1, 1));
    EXPECT_EQ(-1, check(m_va + m_length, 1));
    EXPECT_EQ(-1, check(m_va - 1, 1));
    EXPECT_EQ(-1, check(m_va, m_length + 1));
    EXPECT_EQ(-1, check(m_va + 1, ~0ull));
    EXPECT_EQ(-1, check(~0ull, 2));
    EXPECT_EQ(-1, check(0, m_va + 1));
    /* No memory is no access */
    EXPECT_EQ(0, check(0, 0));
}

TEST_F(test_emlx5_mkey, rights)
{
    EXPECT_EQ(-1, check(m_va, 1, EMLX5_REMOTE_WRITE, m_key ^ 1));
    EXPECT_EQ(-1, check(m_va, 1, EMLX5_REMOTE_WRITE, m_key ^ 0x100));
    EXPECT_EQ(-1, check(m_va, 1, EMLX5_REMOTE_WRITE, ~0u));
    EXPECT_EQ(-1, check(m_va, 1, EMLX5_REMOTE_WRITE, m_key, m_node.pd() + 1));
    EMLX5_SET(mkey()->context, mkc, rw, 0);
    EXPECT_EQ(-1, check(m_va, 1));
    EXPECT_EQ(0, check(m_va, 1, EMLX5_REMOTE_READ));
    EMLX5_SET(mkey()->context, mkc, free, 1);
    EXPECT_EQ(-1, check(m_va, 1, EMLX5_REMOTE_READ));
}

/* The driver empties entries of memory that is gone; others are usable. */
TEST_F(test_emlx5_mkey, emptied_entry)
{
    memset(mkey()->translation + 8, 0, 8);
    EXPECT_EQ(0, check(m_va, 100));
    EXPECT_EQ(-1, check(m_va + 4096, 1));
    EXPECT_EQ(-1, check(m_va, 4096));
    EXPECT_EQ(0, check(m_va + 8192, 100));
}

/* A key that refers to others: to itself without end, and usefully */
TEST_F(test_emlx5_mkey, list_of_keys)
{
    uint32_t inner  = m_key;
    uint32_t outer  = m_node.create_mkey(0, 8192, m_bus);
    emlx5_mkey_t *k = (emlx5_mkey_t*)emlx5_table_get(&m_node.hca()->mkeys,
                                                     outer >> 8);
    emlx5_access_t access = {outer, m_node.pd(), EMLX5_REMOTE_READ, 90, 20,
                             0};
    std::vector<uint8_t> data(20);

    EMLX5_SET(k->context, mkc, access_mode_1_0, 2);
    ASSERT_GE(k->octowords, 2u);
    emlx5_put_be32(k->translation, 100);
    emlx5_put_be32(k->translation + 4, inner);
    emlx5_put_be64(k->translation + 8, m_va);
    emlx5_put_be32(k->translation + 16, 100);
    emlx5_put_be32(k->translation + 20, inner);
    emlx5_put_be64(k->translation + 24, m_va + 4096);
    memset(m_node.at(m_bus + 0x234 + 90, 10), 1, 10);
    memset(m_node.at(m_bus + 0x234 + 4096, 10), 2, 10);
    ASSERT_EQ(0, emlx5_mkey_get(m_node.hca(), &access, data.data()));
    ASSERT_EQ(0, emlx5_dma_finish(&m_node.hca()->dma));
    EXPECT_EQ(std::vector<uint8_t>(10, 1),
              std::vector<uint8_t>(data.begin(), data.begin() + 10));
    EXPECT_EQ(std::vector<uint8_t>(10, 2),
              std::vector<uint8_t>(data.begin() + 10, data.end()));

    emlx5_put_be32(k->translation + 4, outer);
    emlx5_put_be64(k->translation + 8, 0);
    EXPECT_EQ(-1, check(0, 1, EMLX5_REMOTE_READ, outer));
}
