/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "test_emlx5.h"

emlx5_node::emlx5_node(uint16_t lid, const emlx5_dma_config_t &config)
    : m_fake(fake_host_create(&config, lid)), m_out(EMLX5_MAX_CMD_OUT)
{
    begin(16);
    EXPECT_EQ(EMLX5_CMD_OK, command(EMLX5_OP(ALLOC_PD)));
    m_pd = EMLX5_GET32(out(), alloc_pd_out, pd);
    begin(16);
    EXPECT_EQ(EMLX5_CMD_OK, command(EMLX5_OP(ALLOC_UAR)));
    m_uar = EMLX5_GET32(out(), alloc_uar_out, uar);
}

emlx5_node::~emlx5_node()
{
    fake_host_destroy(m_fake);
}

uint8_t *emlx5_node::begin(uint32_t size)
{
    m_in.assign(EMLX5_CMD_BUFFER, 0);
    m_size = size;
    return m_in.data();
}

emlx5_cmd_status_t emlx5_node::command(uint16_t op)
{
    return fake_command(m_fake, op, m_in.data(), m_size, m_out.data());
}

uint64_t emlx5_node::memory(uint32_t size)
{
    uint64_t bus = m_next;

    m_next += (size + EMLX5_PAGE - 1) & ~(EMLX5_PAGE - 1u);
    EXPECT_LE(m_next, (uint64_t)FAKE_BASE + FAKE_SIZE);
    return bus;
}

uint8_t *emlx5_node::at(uint64_t bus, uint64_t length)
{
    uint8_t *memory = fake_at(m_fake, bus, length);

    EXPECT_NE(nullptr, memory);
    return memory;
}

void emlx5_node::run()
{
    EXPECT_LT(fake_run(m_fake, WORK_LIMIT), (unsigned)WORK_LIMIT);
}

emlx5_node::place &emlx5_node::find(uint32_t kind, uint32_t number)
{
    for (place &p : m_places[kind]) {
        if (p.number == number) {
            return p;
        }
    }
    ADD_FAILURE() << "no object " << number;
    return m_places[kind].front();
}

uint32_t emlx5_node::create_eq(uint64_t events)
{
    uint8_t *in   = begin(EMLX5_OFFSET(create_eq_in, pas) + 8);
    uint8_t *c    = in + EMLX5_OFFSET(create_eq_in, eq_context_entry);
    uint64_t ring = memory(EMLX5_PAGE);

    EMLX5_SET(c, eqc, log_eq_size, 6);
    EMLX5_SET(c, eqc, uar_page, m_uar);
    EMLX5_SET(c, eqc, intr, 1);
    emlx5_put_be64(in + EMLX5_OFFSET(create_eq_in, event_bitmask), events);
    emlx5_put_be64(in + EMLX5_OFFSET(create_eq_in, pas), ring);
    EXPECT_EQ(EMLX5_CMD_OK, command(EMLX5_OP(CREATE_EQ)));
    m_places[EQ].push_back(
            {EMLX5_GET32(out(), create_eq_out, eq_number), ring, 0, 0, 0});
    return m_places[EQ].back().number;
}

uint32_t emlx5_node::create_cq(uint32_t eqn, uint32_t log_size)
{
    uint8_t *in   = begin(EMLX5_OFFSET(create_cq_in, pas) + 8);
    uint8_t *c    = in + EMLX5_OFFSET(create_cq_in, cq_context);
    uint64_t ring = memory(EMLX5_PAGE), dbr = memory(64);

    EMLX5_SET(c, cqc, log_cq_size, log_size);
    EMLX5_SET(c, cqc, uar_page, m_uar);
    EMLX5_SET(c, cqc, c_eqn_or_apu_element, eqn);
    EMLX5_SET(c, cqc, dbr_addr, dbr);
    emlx5_put_be64(in + EMLX5_OFFSET(create_cq_in, pas), ring);
    EXPECT_EQ(EMLX5_CMD_OK, command(EMLX5_OP(CREATE_CQ)));
    memset(at(ring, EMLX5_PAGE), 0xff, EMLX5_PAGE);
    m_places[CQ].push_back(
            {EMLX5_GET32(out(), create_cq_out, cqn), ring, dbr, 0, 0});
    return m_places[CQ].back().number;
}

/* With all rights, of physically contiguous memory */
uint32_t emlx5_node::create_mkey(uint64_t start, uint64_t length, uint64_t bus)
{
    uint32_t list  = EMLX5_OFFSET(create_mkey_in, klm_pas_mtt);
    uint32_t pages = (length + EMLX5_PAGE - 1) / EMLX5_PAGE, i;
    uint8_t *in    = begin(list + (((pages + 1) / 2) * 16));
    uint8_t *c     = in + EMLX5_OFFSET(create_mkey_in, memory_key_mkey_entry);

    EMLX5_SET(in, create_mkey_in, translations_octword_actual_size,
              (pages + 1) / 2);
    EMLX5_SET(c, mkc, a, 1);
    EMLX5_SET(c, mkc, rw, 1);
    EMLX5_SET(c, mkc, rr, 1);
    EMLX5_SET(c, mkc, lw, 1);
    EMLX5_SET(c, mkc, lr, 1);
    EMLX5_SET(c, mkc, access_mode_1_0, 1);
    EMLX5_SET(c, mkc, mkey_7_0, 0x42);
    EMLX5_SET(c, mkc, pd, m_pd);
    EMLX5_SET(c, mkc, start_addr, start);
    EMLX5_SET(c, mkc, len, length);
    EMLX5_SET(c, mkc, translations_octword_size, (pages + 1) / 2);
    EMLX5_SET(c, mkc, log_page_size, 12);
    for (i = 0; i < pages; ++i) {
        emlx5_put_be64(in + list + (8 * i),
                       (bus + ((uint64_t)i * EMLX5_PAGE)) | 3);
    }
    EXPECT_EQ(EMLX5_CMD_OK, command(EMLX5_OP(CREATE_MKEY)));
    return (EMLX5_GET32(out(), create_mkey_out, mkey_index) << 8) | 0x42;
}

uint32_t emlx5_node::create_qp(uint32_t cqn, emlx5_st_t st)
{
    uint8_t *in   = begin(EMLX5_OFFSET(create_qp_in, pas) + 16);
    uint8_t *c    = in + EMLX5_OFFSET(create_qp_in, qpc);
    uint64_t ring = memory(2 * EMLX5_PAGE), dbr = memory(64);

    EMLX5_SET(c, qpc, st, st);
    EMLX5_SET(c, qpc, pd, m_pd);
    EMLX5_SET(c, qpc, uar_page, m_uar);
    EMLX5_SET(c, qpc, log_rq_size, log_queue);
    EMLX5_SET(c, qpc, log_rq_stride, 2); /* 64 bytes */
    EMLX5_SET(c, qpc, log_sq_size, log_queue);
    EMLX5_SET(c, qpc, cqn_snd, cqn);
    EMLX5_SET(c, qpc, cqn_rcv, cqn);
    EMLX5_SET(c, qpc, dbr_addr, dbr);
    emlx5_put_be64(in + EMLX5_OFFSET(create_qp_in, pas), ring);
    emlx5_put_be64(in + EMLX5_OFFSET(create_qp_in, pas) + 8, ring + EMLX5_PAGE);
    EXPECT_EQ(EMLX5_CMD_OK, command(EMLX5_OP(CREATE_QP)));
    m_places[QP].push_back(
            {EMLX5_GET32(out(), create_qp_out, qpn), ring, dbr, 0, 0});
    return m_places[QP].back().number;
}

void emlx5_node::connect(uint32_t qpn, uint16_t lid, uint32_t remote)
{
    static const uint16_t ops[] = {EMLX5_OP(RST2INIT_QP), EMLX5_OP(INIT2RTR_QP),
                                   EMLX5_OP(RTR2RTS_QP)};

    for (uint16_t op : ops) {
        uint8_t *in = begin(EMLX5_OFFSET(rst2init_qp_in, qpc) +
                            EMLX5_SIZE(qpc));
        uint8_t *c  = in + EMLX5_OFFSET(rst2init_qp_in, qpc);

        EMLX5_SET(in, rst2init_qp_in, qpn, qpn);
        EMLX5_SET(c, qpc, pd, m_pd);
        EMLX5_SET(c, qpc, rre, 1);
        EMLX5_SET(c, qpc, rwe, 1);
        EMLX5_SET(c, qpc, rae, 1);
        EMLX5_SET(c, qpc, q_key, 0x1234);
        EMLX5_SET(c, qpc, cqn_snd, m_places[CQ].back().number);
        EMLX5_SET(c, qpc, cqn_rcv, m_places[CQ].back().number);
        EMLX5_SET(c, qpc, remote_qpn, remote);
        EMLX5_SET(c, qpc, rnr_retry, 0);
        EMLX5_SET(c + EMLX5_OFFSET(qpc, primary_address_path), ads, rlid, lid);
        EMLX5_SET(c + EMLX5_OFFSET(qpc, primary_address_path), ads, ack_timeout,
                  1);
        ASSERT_EQ(EMLX5_CMD_OK, command(op));
    }
}

uint64_t emlx5_node::ring(uint32_t kind, uint32_t number) const
{
    return const_cast<emlx5_node*>(this)->find(kind, number).ring;
}

void emlx5_node::post_send(uint32_t qpn, const std::vector<uint8_t> &wqe)
{
    place &p       = find(QP, qpn);
    uint32_t begin = 64 << log_queue, i;
    uint64_t dbr   = p.dbr;

    for (i = 0; i < wqe.size(); ++i) {
        *at(p.ring + begin +
            (((p.sends * 64u) + i) & ((64u << log_queue) - 1))) = wqe[i];
    }
    p.sends += (wqe.size() + 63) / 64;
    emlx5_put_be32(at(dbr + 4, 4), p.sends);
    emlx5_sq_ring(hca(), m_uar, qpn);
}

void emlx5_node::post_recv(uint32_t qpn, uint64_t va, uint32_t length,
                           uint32_t key)
{
    place &p     = find(QP, qpn);
    uint8_t *wqe = at(p.ring + (64 * (p.receives & ((1u << log_queue) - 1))),
                      64);

    emlx5_put_be32(wqe, length);
    emlx5_put_be32(wqe + 4, key);
    emlx5_put_be64(wqe + 8, va);
    emlx5_put_be32(wqe + 16, 0);
    emlx5_put_be32(wqe + 20, 0x100);
    ++p.receives;
    emlx5_put_be32(at(p.dbr, 4), p.receives);
}

const uint8_t *emlx5_node::cqe(uint32_t cqn, uint32_t index)
{
    return at(find(CQ, cqn).ring + (64 * index), 64);
}

int emlx5_node::cqe_opcode(uint32_t cqn, uint32_t index)
{
    return cqe(cqn, index)[63] >> 4;
}

std::vector<uint8_t> wqe_ctrl(uint8_t opcode, uint32_t qpn, uint16_t index,
                              int signaled)
{
    std::vector<uint8_t> wqe(16);

    emlx5_put_be16(&wqe[1], index);
    wqe[3] = opcode;
    emlx5_put_be32(&wqe[4], qpn << 8);
    wqe[11] = signaled ? 2 << 2 : 0;
    return wqe;
}

void wqe_data(std::vector<uint8_t> &wqe, uint64_t va, uint32_t length,
              uint32_t key)
{
    size_t at = wqe.size();

    wqe.resize(at + 16);
    emlx5_put_be32(&wqe[at], length);
    emlx5_put_be32(&wqe[at + 4], key);
    emlx5_put_be64(&wqe[at + 8], va);
}

void wqe_remote(std::vector<uint8_t> &wqe, uint64_t va, uint32_t key)
{
    size_t at = wqe.size();

    wqe.resize(at + 16);
    emlx5_put_be64(&wqe[at], va);
    emlx5_put_be32(&wqe[at + 8], key);
}

std::vector<uint8_t> wqe_end(std::vector<uint8_t> wqe)
{
    emlx5_put_be32(&wqe[4], emlx5_be32(&wqe[4]) | (uint32_t)(wqe.size() / 16));
    return wqe;
}
