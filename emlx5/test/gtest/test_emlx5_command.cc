/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Commands and their queue, with what a driver would not send. */

#include "test_emlx5.h"

class test_emlx5_command : public ::testing::Test {
protected:
    test_emlx5_command() : m_node(1)
    {
        m_queue = m_node.memory(4096);
        m_boxes = m_node.memory(16 * 1024);
        write_register(0x10, 0);
        write_register(0x14, m_queue);
    }

    void write_register(uint32_t offset, uint32_t value)
    {
        uint8_t data[4];

        emlx5_put_be32(data, value);
        emlx5_bar_write(m_node.hca(), offset, data, sizeof(data));
    }

    uint8_t *entry(unsigned slot = 0)
    {
        return m_node.at(m_queue + (64 * slot), 64);
    }

    uint64_t box(unsigned index)
    {
        return m_boxes + (1024 * index);
    }

    /* A chain of mailboxes */
    void make_boxes(unsigned first, unsigned count)
    {
        for (unsigned i = 0; i < count; ++i) {
            uint8_t *b = m_node.at(box(first + i), 576);

            memset(b, 0, 576);
            emlx5_put_be64(b + 560, (i + 1 < count) ? box(first + i + 1) : 0);
            emlx5_put_be32(b + 568, i);
            b[573] = 0x99;
        }
    }

    /* An entry as the driver writes it: QUERY_ISSI, out of 112 bytes */
    void make_entry(uint32_t in_size = 16, uint32_t out_size = 112)
    {
        uint8_t *e = entry();

        make_boxes(0, 2);
        make_boxes(4, 2);
        memset(e, 0, 64);
        e[0] = 7;
        emlx5_put_be32(e + 4, in_size);
        emlx5_put_be64(e + 8, box(0));
        emlx5_put_be16(e + 16, EMLX5_OP(QUERY_ISSI));
        emlx5_put_be64(e + 48, box(4));
        emlx5_put_be32(e + 56, out_size);
        e[60] = 0x99;
        e[63] = 1;
    }

    /* Executes what is in slot 0. Returns the status of the delivery, -1 if
     * the entry is not the driver's again. */
    int ring(uint32_t slots = 1)
    {
        write_register(0x18, slots);
        m_node.run();
        return (entry()[63] & 1) ? -1 : entry()[63] >> 1;
    }

    emlx5_node m_node;
    uint64_t   m_queue, m_boxes;
};

TEST_F(test_emlx5_command, boxes)
{
    /* More input than boxes */
    make_entry(16 + 1025);
    EXPECT_EQ(5, ring());
    make_entry(16 + 1024);
    EXPECT_EQ(0, ring());
    /* A box in the middle of nowhere, and one that is not aligned */
    make_entry(100);
    emlx5_put_be64(entry() + 8, 0x1000000000000000ull);
    EXPECT_EQ(6, ring());
    emlx5_put_be64(entry() + 8, box(0) + 8);
    entry()[63] = 1;
    EXPECT_EQ(5, ring());
    /* Of another command, and not in order */
    make_entry(100);
    m_node.at(box(0), 576)[573] = 0x98;
    EXPECT_EQ(2, ring());
    make_entry(1000);
    emlx5_put_be32(m_node.at(box(1) + 568, 4), 2);
    EXPECT_EQ(3, ring());
    /* A chain that is a circle */
    make_entry(1 << 20);
    emlx5_put_be64(m_node.at(box(1) + 560, 8), box(0));
    EXPECT_EQ(3, ring());
    /* Output */
    make_entry(16, 16 + 1025);
    EXPECT_EQ(4, ring());
    make_entry(16, 16 + 1024);
    EXPECT_EQ(0, ring());
}

TEST_F(test_emlx5_command, not_ours)
{
    make_entry();
    entry()[63] = 0;
    EXPECT_EQ(0, ring(~0u));
    EXPECT_EQ(0u, m_node.hca()->stats.commands);
    make_entry();
    entry()[0] = 1;
    EXPECT_EQ(0x10, ring());
    /* No queue, and one that is not in memory */
    make_entry();
    m_node.hca()->cmdq = 0;
    EXPECT_EQ(-1, ring());
    m_node.hca()->cmdq = 0x1000000000000000ull;
    EXPECT_EQ(-1, ring());
}

TEST_F(test_emlx5_command, event)
{
    uint32_t eqn = m_node.create_eq(1 << EMLX5_EVENT_COMMAND);
    uint8_t arm[4];

    emlx5_put_be32(arm, eqn << 24);
    emlx5_bar_write(m_node.hca(), (m_node.uar() * 4096) + 0x40, arm, 4);
    make_entry();
    ASSERT_EQ(0, ring());
    const uint8_t *eqe = m_node.at(m_node.ring(emlx5_node::EQ, eqn), 64);
    EXPECT_EQ(EMLX5_EVENT_COMMAND, eqe[1]);
    EXPECT_EQ(1u, emlx5_be32(eqe + 32));
    EXPECT_EQ(1u << 1, m_node.fake()->interrupts);
}

/* Numbers that were never given, for all commands about numbers */
TEST_F(test_emlx5_command, dealloc)
{
    for (uint16_t op : {EMLX5_OP(DEALLOC_PD), EMLX5_OP(DEALLOC_UAR),
                        EMLX5_OP(DEALLOC_TRANSPORT_DOMAIN),
                        EMLX5_OP(DEALLOC_XRCD), EMLX5_OP(DEALLOC_Q_COUNTER)}) {
        for (uint32_t number : {0u, 100u, 0xffffffu}) {
            emlx5_put_be32(m_node.begin(16) + 8, number);
            EXPECT_EQ(EMLX5_CMD_BAD_RES, m_node.command(op)) << op;
        }
    }
    emlx5_put_be32(m_node.begin(16) + 8, m_node.pd());
    EXPECT_EQ(EMLX5_CMD_OK, m_node.command(EMLX5_OP(DEALLOC_PD)));
    EXPECT_EQ(EMLX5_CMD_BAD_RES, m_node.command(EMLX5_OP(DEALLOC_PD)));
}

TEST_F(test_emlx5_command, states)
{
    static const uint16_t path[] = {EMLX5_OP(RST2INIT_QP),
                                    EMLX5_OP(INIT2RTR_QP),
                                    EMLX5_OP(RTR2RTS_QP)};
    uint32_t qpn = m_node.create_qp(m_node.create_cq(m_node.create_eq()));

    for (unsigned state = 0; state <= 3; ++state) {
        for (unsigned i = 0; i < 3; ++i) {
            if (i == state) {
                continue;
            }
            uint8_t *in = m_node.begin(EMLX5_OFFSET(rst2init_qp_in, qpc) +
                                       EMLX5_SIZE(qpc));
            EMLX5_SET(in, rst2init_qp_in, qpn, qpn);
            EXPECT_EQ(EMLX5_CMD_BAD_QP_STATE, m_node.command(path[i]));
        }
        if (state < 3) {
            uint8_t *in = m_node.begin(EMLX5_OFFSET(rst2init_qp_in, qpc) +
                                       EMLX5_SIZE(qpc));
            EMLX5_SET(in, rst2init_qp_in, qpn, qpn);
            EXPECT_EQ(EMLX5_CMD_OK, m_node.command(path[state]));
        }
    }
}

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

TEST_F(test_emlx5_command, monitor)
{
    uint8_t back[8];

    emlx5_bar_read(m_node.hca(), EMLX5_BAR_MONITOR, back, 8);
    EXPECT_EQ(EMLX5_MONITOR_MAGIC, emlx5_le64(back));
}
