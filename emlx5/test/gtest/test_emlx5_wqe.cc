/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Work requests and their lists of memory, as any guest may write them. */

#include "test_emlx5.h"

#include <algorithm>

class test_emlx5_wqe : public ::testing::Test {
protected:
    int parse(const std::vector<uint8_t> &bytes, emlx5_st_t st = EMLX5_ST_RC)
    {
        memset(&m_wqe, 0xee, sizeof(m_wqe));
        std::copy(bytes.begin(), bytes.end(), m_wqe.bytes);
        m_wqe.size = bytes.size();
        return emlx5_wqe_parse(&m_wqe, st);
    }

    static std::vector<uint8_t> write_request()
    {
        std::vector<uint8_t> wqe = wqe_ctrl(EMLX5_WQE_WRITE, 0x55, 7);

        wqe_remote(wqe, 0x1122334455667788, 0xabcd);
        wqe_data(wqe, 0x1000, 100, 0x4200);
        wqe_data(wqe, 0x9000, 28, 0x4300);
        return wqe;
    }

    emlx5_wqe_t m_wqe;
};

TEST_F(test_emlx5_wqe, inlined)
{
    std::vector<uint8_t> wqe = wqe_ctrl(EMLX5_WQE_SEND, 0x55, 7, 0);

    wqe.resize(48);
    emlx5_put_be32(&wqe[16], (1u << 31) | 20);
    ASSERT_EQ(0, parse(wqe));
    EXPECT_FALSE(m_wqe.signaled);
    ASSERT_EQ(1u, m_wqe.sgl.count);
    EXPECT_EQ(20u, m_wqe.sgl.total);
    EXPECT_EQ(20, m_wqe.sgl.sge[0].inlined);
    emlx5_put_be32(&wqe[16], (1u << 31) | 28);
    EXPECT_EQ(0, parse(wqe));
    emlx5_put_be32(&wqe[16], (1u << 31) | 29);
    EXPECT_EQ(-1, parse(wqe));
    emlx5_put_be32(&wqe[16], ~0u);
    EXPECT_EQ(-1, parse(wqe));
}

TEST_F(test_emlx5_wqe, opcodes_by_type)
{
    std::vector<uint8_t> wqe = write_request();

    EXPECT_EQ(0, parse(wqe, EMLX5_ST_UC));
    EXPECT_EQ(-1, parse(wqe, EMLX5_ST_UD));
    EXPECT_EQ(-1, parse(wqe, EMLX5_ST_UMR));
    wqe[3] = EMLX5_WQE_READ;
    EXPECT_EQ(0, parse(wqe, EMLX5_ST_RC));
    EXPECT_EQ(-1, parse(wqe, EMLX5_ST_UC));
    wqe[3] = 0x77;
    EXPECT_EQ(-1, parse(wqe, EMLX5_ST_RC));
}

TEST_F(test_emlx5_wqe, umr)
{
    std::vector<uint8_t> wqe = wqe_ctrl(EMLX5_WQE_UMR, 0x55, 7);

    wqe.resize(128 + 64);
    wqe[16] = EMLX5_UMR_INLINE | EMLX5_UMR_OFFSET;
    emlx5_put_be16(&wqe[20], 4);
    emlx5_put_be16(&wqe[22], 3);
    emlx5_put_be32(&wqe[32], 1);
    emlx5_put_be64(&wqe[24], 0x123);
    ASSERT_EQ(0, parse(wqe, EMLX5_ST_UMR));
    EXPECT_EQ(64u, m_wqe.umr.bytes);
    EXPECT_EQ(0x10003u * 16ull, m_wqe.umr.offset);
    EXPECT_EQ(0x123u, m_wqe.umr.mask);
    EXPECT_EQ(64u, m_wqe.umr.context);
    EXPECT_EQ(128u, m_wqe.umr.data);
    emlx5_put_be16(&wqe[20], 5);
    EXPECT_EQ(-1, parse(wqe, EMLX5_ST_UMR));
    EXPECT_EQ(-1, parse(wqe, EMLX5_ST_RC));
}
