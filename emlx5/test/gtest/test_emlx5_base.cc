/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* The lowest part: transactions. */

#include "test_emlx5.h"

#include <memory>

class test_emlx5_base_dma : public ::testing::Test {
protected:
    enum : size_t { LENGTH = 20000 };

    void start(const emlx5_dma_config_t &config)
    {
        m_node.reset(new emlx5_node(1, config));
        m_bus = m_node->memory(2 * LENGTH) + 100;
        m_dma = &m_node->hca()->dma;
        for (size_t i = 0; i < LENGTH; ++i) {
            m_data.push_back(i * 7 + (i >> 8));
        }
    }

    void check_both_ways()
    {
        std::vector<uint8_t> back(LENGTH);

        emlx5_dma_put(m_dma, m_bus, m_data.data(), LENGTH);
        emlx5_dma_expire(m_dma, 1);
        EXPECT_EQ(0, memcmp(m_node->at(m_bus, LENGTH), m_data.data(), LENGTH));
        ASSERT_EQ(0, emlx5_dma_read(m_dma, m_bus, back.data(), LENGTH));
        EXPECT_EQ(m_data, back);
    }

    std::unique_ptr<emlx5_node> m_node;
    emlx5_dma_t                 *m_dma;
    uint64_t                    m_bus;
    std::vector<uint8_t>        m_data;
};

TEST_F(test_emlx5_base_dma, transactions)
{
    for (uint64_t seed = 1; seed < 20; ++seed) {
        m_data.clear();
        start({64, 256, 0, 1, 0, seed});
        check_both_ways();
        EXPECT_LE(m_node->fake()->longest, 256u);
        EXPECT_EQ(0u, m_node->fake()->crossing);
        EXPECT_GE(m_dma->stats.writes, LENGTH / 256);
        EXPECT_EQ(LENGTH, m_dma->stats.write_bytes);
    }
}

TEST_F(test_emlx5_base_dma, order_of_reads)
{
    std::vector<uint8_t> back(LENGTH);

    for (int reorder : {0, 1}) {
        start({64, 64, 0, reorder, 0, 1});
        ASSERT_EQ(0, emlx5_dma_read(m_dma, m_bus, back.data(), LENGTH));
        if (reorder) {
            EXPECT_GT(m_node->fake()->backward, LENGTH / 64 / 4);
        } else {
            EXPECT_EQ(0u, m_node->fake()->backward);
        }
    }
}

/* Payload is overtaken by what is written after it, and is not lost. */
TEST_F(test_emlx5_base_dma, relaxed_writes)
{
    unsigned overtaken = 0;
    uint8_t flag       = 1;

    start({64, 64, 0, 0, 1, 5});
    for (unsigned i = 0; i < 50; ++i) {
        memset(m_node->at(m_bus, 64), 0, 64);
        emlx5_dma_put(m_dma, m_bus, m_data.data() + 64, 64);
        emlx5_dma_write(m_dma, m_bus + 4096, &flag, 1);
        EXPECT_EQ(1, *m_node->at(m_bus + 4096));
        overtaken += memcmp(m_node->at(m_bus, 28), m_data.data() + 64, 28) != 0;
        EXPECT_EQ(UINT64_MAX, emlx5_dma_expire(m_dma, 1));
        EXPECT_EQ(0, memcmp(m_node->at(m_bus, 64), m_data.data() + 64, 64));
    }
    EXPECT_GT(overtaken, 10u);
    EXPECT_LT(overtaken, 40u);
}

TEST_F(test_emlx5_base_dma, faults)
{
    uint8_t back[100];

    start({64, 256, 0, 1, 0, 1});
    memset(back, 1, sizeof(back));
    EXPECT_EQ(-1, emlx5_dma_read(m_dma, 0, back, sizeof(back)));
    EXPECT_EQ(0, back[0] | back[99]);
    /* The error was that batch's */
    EXPECT_EQ(0, emlx5_dma_read(m_dma, m_bus, back, sizeof(back)));
}

TEST_F(test_emlx5_base_dma, not_without_permission)
{
    uint8_t back[8];

    start({});
    emlx5_hca_set_bus_master(m_node->hca(), 0);
    memset(m_node->at(m_bus, 8), 7, 8);
    EXPECT_EQ(-1, emlx5_dma_read(m_dma, m_bus, back, 8));
    EXPECT_EQ(0, back[0]);
    emlx5_dma_write(m_dma, m_bus, m_data.data(), 8);
    EXPECT_EQ(7, *m_node->at(m_bus));
    EXPECT_EQ(2u, m_dma->stats.refused);
    emlx5_hca_set_bus_master(m_node->hca(), 1);
    EXPECT_EQ(0, emlx5_dma_read(m_dma, m_bus, back, 8));
    /* Not between the request of a reset and the reset either */
    emlx5_reset_later(m_node->hca());
    EXPECT_EQ(-1, emlx5_dma_read(m_dma, m_bus, back, 8));
    m_node->run();
    EXPECT_EQ(0, emlx5_dma_read(m_dma, m_bus, back, 8));
}
