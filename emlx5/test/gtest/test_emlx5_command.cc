/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Registers: doorbells, and the state of the driver's interface. */

#include "test_emlx5.h"

class test_emlx5_command : public ::testing::Test {
protected:
    test_emlx5_command() : m_node(1)
    {
        m_queue = m_node.memory(4096);
        write_register(0x10, 0);
        write_register(0x14, m_queue);
    }

    void write_register(uint32_t offset, uint32_t value)
    {
        uint8_t data[4];

        emlx5_put_be32(data, value);
        emlx5_bar_write(m_node.hca(), offset, data, sizeof(data));
    }

    emlx5_node m_node;
    uint64_t   m_queue;
};

TEST_F(test_emlx5_command, uar)
{
    uint32_t cqn = m_node.create_cq(m_node.create_eq());
    uint32_t qpn = m_node.create_qp(cqn);
    uint8_t data[8] = {};

    /* Another page is refused, the own one is not */
    emlx5_put_be32(data + 4, qpn << 8);
    emlx5_bar_write(m_node.hca(), ((m_node.uar() + 1) * 4096) + 0x800, data, 8);
    EXPECT_EQ(1u, m_node.hca()->stats.bad_doorbells);
    emlx5_bar_write(m_node.hca(), (m_node.uar() * 4096) + 0x800, data, 8);
    EXPECT_EQ(1u, m_node.hca()->stats.bad_doorbells);
    /* Two halves */
    emlx5_bar_write(m_node.hca(), (m_node.uar() * 4096) + 0x900, data, 4);
    EXPECT_EQ(2u, m_node.hca()->stats.doorbells);
    emlx5_bar_write(m_node.hca(), (m_node.uar() * 4096) + 0x904, data + 4, 4);
    EXPECT_EQ(3u, m_node.hca()->stats.doorbells);
    EXPECT_EQ(1u, m_node.hca()->stats.bad_doorbells);
    emlx5_put_be32(data + 4, cqn);
    emlx5_bar_write(m_node.hca(), ((m_node.uar() + 1) * 4096) + 0x20, data, 8);
    EXPECT_EQ(2u, m_node.hca()->stats.bad_doorbells);
    m_node.run();
}

/* State of the driver's interface, in bits 10:8: 1 is disabled. So a driver
 * notices a reset that it has not asked for. */
TEST_F(test_emlx5_command, interface_is_disabled_by_a_reset)
{
    uint8_t data[4];

    emlx5_bar_read(m_node.hca(), 0x14, data, sizeof(data));
    EXPECT_EQ(0u, (emlx5_be32(data) >> 8) & 7);
    emlx5_reset_later(m_node.hca());
    m_node.run();
    emlx5_bar_read(m_node.hca(), 0x14, data, sizeof(data));
    EXPECT_EQ(1u, (emlx5_be32(data) >> 8) & 7);

    write_register(0x14, m_queue);
    emlx5_bar_read(m_node.hca(), 0x14, data, sizeof(data));
    EXPECT_EQ(0u, (emlx5_be32(data) >> 8) & 7);
}
