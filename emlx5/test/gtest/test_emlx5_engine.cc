/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Messages between two functions, and what a hostile driver can write. */

#include "test_emlx5.h"

#include <memory>

class test_emlx5_engine : public ::testing::Test {
protected:
    enum { LENGTH = 4 * EMLX5_PAGE };

    struct end {
        explicit end(uint16_t lid) : node(lid)
        {
            bus = node.memory(LENGTH);
            key = node.create_mkey(bus, LENGTH, bus);
            cqn = node.create_cq(node.create_eq(~0ull));
        }

        emlx5_node node;
        uint64_t   bus;
        uint32_t   key, cqn, qpn;
    };

    test_emlx5_engine() : m_fabric(), m_a(1), m_b(2)
    {
        emlx5_fabric_add(&m_fabric, m_a.node.hca());
        emlx5_fabric_add(&m_fabric, m_b.node.hca());
    }

    void connect(emlx5_st_t st = EMLX5_ST_RC)
    {
        m_a.qpn = m_a.node.create_qp(m_a.cqn, st);
        m_b.qpn = m_b.node.create_qp(m_b.cqn, st);
        m_a.node.connect(m_a.qpn, 2, m_b.qpn);
        m_b.node.connect(m_b.qpn, 1, m_a.qpn);
    }

    void run()
    {
        m_a.node.run();
        m_b.node.run();
    }

    emlx5_qp_t *qp(end &e)
    {
        return (emlx5_qp_t*)emlx5_table_get(&e.node.hca()->qps, e.qpn);
    }

    std::vector<uint8_t> request(uint8_t opcode, uint32_t length,
                                 uint16_t index = 0)
    {
        std::vector<uint8_t> wqe = wqe_ctrl(opcode, m_a.qpn, index);

        if ((opcode == EMLX5_WQE_WRITE) || (opcode == EMLX5_WQE_READ)) {
            wqe_remote(wqe, m_b.bus, m_b.key);
        }
        wqe_data(wqe, m_a.bus, length, m_a.key);
        return wqe_end(wqe);
    }

    emlx5_fabric_t m_fabric;
    end            m_a, m_b;
};

TEST_F(test_emlx5_engine, write_and_read)
{
    connect();
    for (unsigned i = 0; i < LENGTH; ++i) {
        *m_a.node.at(m_a.bus + i) = i * 3 + (i >> 8);
    }
    m_a.node.post_send(m_a.qpn, request(EMLX5_WQE_WRITE, LENGTH));
    run();
    EXPECT_EQ(EMLX5_CQE_REQ, m_a.node.cqe_opcode(m_a.cqn, 0));
    EXPECT_EQ(0, memcmp(m_a.node.at(m_a.bus, LENGTH),
                        m_b.node.at(m_b.bus, LENGTH), LENGTH));
    EXPECT_GT(m_b.node.fake()->drains, 0u);

    memset(m_a.node.at(m_a.bus, LENGTH), 0, LENGTH);
    m_a.node.post_send(m_a.qpn, request(EMLX5_WQE_READ, LENGTH, 1));
    run();
    EXPECT_EQ(EMLX5_CQE_REQ, m_a.node.cqe_opcode(m_a.cqn, 1));
    EXPECT_EQ((uint32_t)LENGTH, emlx5_be32(m_a.node.cqe(m_a.cqn, 1) + 44));
    EXPECT_EQ(0, memcmp(m_a.node.at(m_a.bus, LENGTH),
                        m_b.node.at(m_b.bus, LENGTH), LENGTH));
    EXPECT_EQ((uint64_t)LENGTH, m_b.node.hca()->stats.received_bytes);
    EXPECT_EQ((uint64_t)LENGTH, m_b.node.hca()->stats.sent_bytes);
}

/* The rights of an XRC request are those of the shared queue that it names: its
 * protection domain, and only if it is in the XRC domain of the queue pair */
TEST_F(test_emlx5_engine, xrc_has_domain_of_srq)
{
    uint64_t bus = m_b.node.memory(EMLX5_PAGE);
    emlx5_pages_t ring;
    emlx5_srq_t *srq;
    uint8_t list[8];

    emlx5_put_be64(list, bus);
    ASSERT_EQ(0, emlx5_pages_init(&ring, list, 8, 0, 0, EMLX5_PAGE));
    srq = emlx5_srq_create(m_b.node.hca(), &ring);
    ASSERT_TRUE(srq != NULL);
    for (int wrong = 0; wrong < 4; ++wrong) {
        std::vector<uint8_t> wqe;

        connect(EMLX5_ST_XRC);
        EMLX5_SET(qp(m_b)->context, qpc, xrcd, 9);
        qp(m_b)->pd = 0;
        srq->pd     = m_b.node.pd() + (wrong == 1);
        srq->xrcd   = 9 + (wrong == 2);
        srq->cqn    = (wrong == 3) ? 0 : m_b.cqn;
        wqe         = wqe_ctrl(EMLX5_WQE_WRITE, m_a.qpn, 0);
        wqe.resize(32);
        emlx5_put_be32(&wqe[16], srq->number);
        wqe_remote(wqe, m_b.bus, m_b.key);
        wqe_data(wqe, m_a.bus, 8, m_a.key);
        m_a.node.post_send(m_a.qpn, wqe_end(wqe));
        run();
        EXPECT_EQ(wrong ? EMLX5_CQE_REQ_ERROR : EMLX5_CQE_REQ,
                  m_a.node.cqe_opcode(m_a.cqn, wrong));
        EXPECT_EQ(wrong ? EMLX5_QP_ERR : EMLX5_QP_RTS, qp(m_b)->state);
    }
}

/* A smaller ring must have room for what the driver has not consumed */
TEST_F(test_emlx5_engine, cq_keeps_its_entries)
{
    emlx5_cq_t *cq = (emlx5_cq_t*)emlx5_table_get(&m_a.node.hca()->cqs,
                                                  m_a.cqn);
    auto resize = [&](uint32_t log_size) {
        uint8_t *in = m_a.node.begin(EMLX5_OFFSET(modify_cq_in, pas) + 8);
        uint8_t *c  = in + EMLX5_OFFSET(modify_cq_in, cq_context);

        EMLX5_SET(in, modify_cq_in, op_mod, 1);
        EMLX5_SET(in, modify_cq_in, cqn, m_a.cqn);
        EMLX5_SET(c, cqc, log_cq_size, log_size);
        emlx5_put_be64(in + EMLX5_OFFSET(modify_cq_in, pas), m_a.bus);
        return m_a.node.command(EMLX5_OP(MODIFY_CQ));
    };

    connect();
    for (int i = 0; i < 9; ++i) {
        m_a.node.post_send(m_a.qpn, request(EMLX5_WQE_WRITE, 8, i));
    }
    run();
    ASSERT_EQ(9u, cq->producer);
    EXPECT_EQ(EMLX5_CMD_BAD_CQ_SIZE, resize(3));
    EXPECT_EQ(9u, cq->producer);
    EXPECT_EQ(6u, cq->log_size);

    emlx5_put_be32(m_a.node.at(cq->dbr, 4), 1);
    EXPECT_EQ(EMLX5_CMD_OK, resize(3));
    EXPECT_EQ(3u, cq->log_size);
}

/* The data's own key is wrong: no byte goes */
TEST_F(test_emlx5_engine, own_key)
{
    std::vector<uint8_t> wqe = wqe_ctrl(EMLX5_WQE_WRITE, 0, 0);

    connect();
    wqe_remote(wqe, m_b.bus, m_b.key);
    wqe_data(wqe, m_a.bus + LENGTH, 8, m_a.key);
    memset(m_b.node.at(m_b.bus, 8), 0x66, 8);
    m_a.node.post_send(m_a.qpn, wqe_end(wqe));
    run();
    EXPECT_EQ(0x04, m_a.node.cqe(m_a.cqn, 0)[55]);
    EXPECT_EQ(0x66, *m_b.node.at(m_b.bus));
}

TEST_F(test_emlx5_engine, interleaved)
{
    uint32_t first, second;

    connect();
    first = m_a.qpn;
    m_a.node.post_send(first, request(EMLX5_WQE_WRITE, LENGTH));
    connect();
    second = m_a.qpn;
    m_a.node.hca()->chunk = 256;
    m_a.node.post_send(second, request(EMLX5_WQE_WRITE, 8));
    run();
    /* The short one does not wait for the long one */
    EXPECT_EQ(second, emlx5_be32(m_a.node.cqe(m_a.cqn, 0) + 56) & 0xffffff);
    EXPECT_EQ(first, emlx5_be32(m_a.node.cqe(m_a.cqn, 1) + 56) & 0xffffff);
}

/* The peer is reset in the middle of a message. */
TEST_F(test_emlx5_engine, peer_is_reset)
{
    connect();
    m_b.node.post_recv(m_b.qpn, m_b.bus, LENGTH, m_b.key);
    m_a.node.hca()->chunk = 256;
    m_a.node.post_send(m_a.qpn, request(EMLX5_WQE_SEND, LENGTH));
    ASSERT_EQ(1u, fake_run(m_a.node.fake(), 1));
    EXPECT_TRUE(qp(m_a)->in_progress);
    emlx5_reset(m_b.node.hca());
    m_a.node.run();
    EXPECT_TRUE(qp(m_a)->in_progress || (qp(m_a)->state == EMLX5_QP_ERR));
}

TEST_F(test_emlx5_engine, cq_overrun)
{
    uint32_t eqn = 1;

    m_a.cqn = m_a.node.create_cq(eqn, 1);
    connect();
    for (unsigned i = 0; i < 3; ++i) {
        m_a.node.post_send(m_a.qpn, request(EMLX5_WQE_WRITE, 8, i));
    }
    run();
    const uint8_t *eqe = m_a.node.at(m_a.node.ring(emlx5_node::EQ, eqn), 64);
    EXPECT_EQ(EMLX5_EVENT_CQ_ERROR, eqe[1]);
    EXPECT_EQ(m_a.cqn, emlx5_be32(eqe + 32));
}

/* Entries that are there when the queue is armed count as well. */
TEST_F(test_emlx5_engine, moderation)
{
    emlx5_cq_t *cq = (emlx5_cq_t*)emlx5_table_get(&m_a.node.hca()->cqs,
                                                  m_a.cqn);
    unsigned i;

    connect();
    emlx5_cq_moderate(cq, 0, 3);
    m_a.node.post_send(m_a.qpn, request(EMLX5_WQE_WRITE, 8, 0));
    run();
    emlx5_cq_ring(m_a.node.hca(), m_a.node.uar(), 0, m_a.cqn);
    run();
    for (i = 1; i < 3; ++i) {
        EXPECT_EQ(0u, m_a.node.hca()->stats.eqes) << i;
        m_a.node.post_send(m_a.qpn, request(EMLX5_WQE_WRITE, 8, i));
        run();
    }
    EXPECT_EQ(1u, m_a.node.hca()->stats.eqes);
    /* Nothing of interest behind the last solicited one */
    emlx5_cq_ring(m_a.node.hca(), m_a.node.uar(), (1 << 24) | 3, m_a.cqn);
    run();
    EXPECT_EQ(1u, m_a.node.hca()->stats.eqes);
    /* All at once without moderation */
    emlx5_cq_moderate(cq, 0, 0);
    emlx5_cq_ring(m_a.node.hca(), m_a.node.uar(), 2, m_a.cqn);
    run();
    EXPECT_EQ(2u, m_a.node.hca()->stats.eqes);
}
