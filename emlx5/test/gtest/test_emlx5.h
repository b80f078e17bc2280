/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* For tests of the emulated adapter: two computers, joined by the switch. */

#ifndef EMLX5_TEST_H
#define EMLX5_TEST_H

extern "C" {
#include "engine/emlx5_sq.h"
#include "fake_host.h"
#include "object/emlx5_cq.h"
#include "object/emlx5_eq.h"
#include "object/emlx5_mkey.h"
#include "object/emlx5_qp.h"
#include "object/emlx5_reset.h"
#include "object/emlx5_srq.h"
}

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

/* What a test wants to be done at once; an endless loop reaches it */
enum { WORK_LIMIT = 10000 };

/* Like a driver: makes objects by commands, and writes rings. */
class emlx5_node {
public:
    explicit emlx5_node(uint16_t lid, const emlx5_dma_config_t &config = {});
    ~emlx5_node();

    emlx5_hca_t *hca()
    {
        return &m_fake->hca;
    }

    fake_host_t *fake()
    {
        return m_fake;
    }

    /* Executes a command of m_in, m_size bytes. The output is m_out. */
    emlx5_cmd_status_t command(uint16_t op);

    /* Begins the input of a command. */
    uint8_t *begin(uint32_t size);

    /* Memory of the guest, aligned to a page, and its bus address */
    uint64_t memory(uint32_t size);

    uint8_t *at(uint64_t bus, uint64_t length = 1);

    /* Work until nothing is left: fails after WORK_LIMIT. */
    void run();

    uint32_t create_eq(uint64_t events = 0);
    uint32_t create_cq(uint32_t eqn, uint32_t log_size = 6);
    uint32_t create_mkey(uint64_t start, uint64_t length, uint64_t bus);
    uint32_t create_qp(uint32_t cqn, emlx5_st_t st = EMLX5_ST_RC);
    void connect(uint32_t qpn, uint16_t lid, uint32_t remote);

    /* The number of the last created object's ring */
    uint64_t ring(uint32_t kind, uint32_t number) const;

    /* Writes a request of these bytes at the producer, which goes on. */
    void post_send(uint32_t qpn, const std::vector<uint8_t> &wqe);
    void post_recv(uint32_t qpn, uint64_t va, uint32_t length, uint32_t key);

    /* The CQE with this index, 64 bytes; its opcode, 15 if it is not there */
    const uint8_t *cqe(uint32_t cqn, uint32_t index);
    int cqe_opcode(uint32_t cqn, uint32_t index);

    uint32_t pd() const
    {
        return m_pd;
    }

    uint32_t uar() const
    {
        return m_uar;
    }

    uint8_t *out()
    {
        return m_out.data();
    }

    enum { EQ, CQ, QP, KINDS };

    enum : uint32_t { log_queue = 4 }; /* requests of a QP */

private:
    struct place {
        uint32_t number;
        uint64_t ring, dbr;
        uint16_t sends, receives;
    };

    place &find(uint32_t kind, uint32_t number);

    fake_host_t          *m_fake;
    std::vector<uint8_t> m_in, m_out;
    uint32_t             m_size = 0;
    uint64_t             m_next = FAKE_BASE;
    uint32_t             m_pd, m_uar;
    std::vector<place>   m_places[KINDS];
};

/* Work requests as a driver writes them */
std::vector<uint8_t> wqe_ctrl(uint8_t opcode, uint32_t qpn, uint16_t index,
                              int signaled = 1);
void wqe_data(std::vector<uint8_t> &wqe, uint64_t va, uint32_t length,
              uint32_t key);
void wqe_remote(std::vector<uint8_t> &wqe, uint64_t va, uint32_t key);

/* Sets the size in the control segment. */
std::vector<uint8_t> wqe_end(std::vector<uint8_t> wqe);

#endif
