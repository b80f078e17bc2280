/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Messages as long as the port says they may be, and one byte longer. */

#include "npemu_test.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include <sys/mman.h>
#include <unistd.h>

using namespace npt;

/*
 * Address space for the longest message that takes a few megabytes: all but the
 * end of it is one piece of memory, mapped again and again.
 */
class Expanse {
public:
    Expanse(Device &device, size_t length) : length(length)
    {
        int fd       = memfd_create("npemu-expanse", MFD_CLOEXEC);
        void *memory = mmap(nullptr, length, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
                            0);

        EXPECT_EQ(0, ftruncate(fd, PIECE));
        if (memory == MAP_FAILED) {
            ADD_FAILURE() << "mmap of " << length << ": " << strerror(errno);
            close(fd);
            return;
        }
        data = (uint8_t*)memory;
        for (size_t at = 0; at + 2 * PIECE <= length; at += PIECE) {
            EXPECT_EQ(data + at, mmap(data + at, PIECE, PROT_READ | PROT_WRITE,
                                      MAP_SHARED | MAP_FIXED, fd, 0));
        }
        close(fd);
        mr = npemu_reg_mr(device.pd, data, length, ACCESS_ALL);
        EXPECT_NE(nullptr, mr) << strerror(errno);
    }

    ~Expanse()
    {
        if (mr != nullptr) {
            EXPECT_EQ(0, npemu_dereg_mr(mr));
        }
        if (data != nullptr) {
            munmap(data, length);
        }
    }

    Expanse(const Expanse &) = delete;

    /* In segments, since one of 32 bits need not hold a whole message. */
    std::vector<ibv_sge> list(size_t size) const
    {
        std::vector<ibv_sge> result;
        size_t step = (size / 16 + 4096) & ~(size_t)4095;

        for (size_t at = 0; at < size; at += step) {
            size_t left = std::min(step, size - at);
            result.push_back({(uintptr_t)data + at, (uint32_t)left, mr->lkey});
        }
        return result;
    }

    Remote remote() const { return {(uintptr_t)data, mr->rkey}; }

    static constexpr size_t PIECE = 2 << 20;

    uint8_t *data = nullptr;
    size_t   length;
    ibv_mr  *mr = nullptr;
};

class test_message_size : public testing::Test {
protected:
    /* Before the device: it is asked for when that is opened. */
    struct WithoutPinning {
        WithoutPinning() { setenv("NPEMU_PIN", "none", 1); }
        ~WithoutPinning() { unsetenv("NPEMU_PIN"); }
    };

    void SetUp() override
    {
#ifdef __SANITIZE_THREAD__
        GTEST_SKIP() << "ThreadSanitizer takes gigabytes for such copies";
#endif
        ibv_port_attr port;
        QpOptions options;

        options.sge = 16;
        ASSERT_EQ(0, npemu_query_port(device.context, 1, &port));
        max  = port.max_msg_sz;
        pair = std::make_unique<Pair>(device, options, options);
        from = std::make_unique<Expanse>(device, max + PAGE);
        to   = std::make_unique<Expanse>(device, max + PAGE);
        pattern_fill(from->data + max - PAGE, 2 * PAGE, 1);
        memset(to->data + max - PAGE, 0xa5, 2 * PAGE);
    }

    /* Whether the last page of a message has come, and nothing behind it. */
    void expect_arrived(size_t size)
    {
        size_t end = size - (max - PAGE);

        EXPECT_TRUE(pattern_holds(to->data + max - PAGE, end, 1));
        for (size_t i = end; i < 2 * PAGE; ++i) {
            ASSERT_EQ(0xa5, to->data[max - PAGE + i]) << i;
        }
    }

    static constexpr size_t PAGE = 4096;

    WithoutPinning           without_pinning;
    Device                   device;
    size_t                   max = 0;
    std::unique_ptr<Pair>    pair;
    std::unique_ptr<Expanse> from, to;
};

TEST_F(test_message_size, longest_send)
{
    ASSERT_EQ(0, pair->b.post_recv(1, to->list(max)));
    Wr send(2, IBV_WR_SEND, from->list(max));
    ASSERT_EQ(0, pair->a.post(send));
    pair->cq_a.expect(2);
    ibv_wc wc = pair->cq_b.wait();
    EXPECT_EQ(IBV_WC_SUCCESS, wc.status);
    EXPECT_EQ(max, wc.byte_len);
    expect_arrived(max);
}

/* A receive may have more room than any message needs, and less by one byte. */
TEST_F(test_message_size, receive_longer_than_any_message)
{
    std::vector<ibv_sge> twice = to->list(max);
    for (ibv_sge &sge : twice) {
        sge.length *= 2;
        sge.addr    = (uintptr_t)to->data;
    }
    ASSERT_EQ(0, pair->b.post_recv(1, twice));
    ASSERT_EQ(0, pair->b.post_recv(2, to->list(max - 1)));
    Wr small(3, IBV_WR_SEND, {from->list(max)[0]});
    small.list[0].length = PAGE;
    ASSERT_EQ(0, pair->a.post(small));
    pair->cq_a.expect(3);
    pair->cq_b.expect(1);
    Wr send(4, IBV_WR_SEND, from->list(max));
    ASSERT_EQ(0, pair->a.post(send));
    pair->cq_a.expect(4, IBV_WC_REM_INV_REQ_ERR);
    pair->cq_b.expect(2, IBV_WC_LOC_LEN_ERR);
}

/* IBA 11.6.2: longer than what the port takes is a local length error. */
TEST_F(test_message_size, one_byte_too_many_is_refused)
{
    const struct {
        ibv_wr_opcode opcode;
        const Expanse &local, &remote;
    } cases[] = {{IBV_WR_SEND, *from, *to},
                 {IBV_WR_RDMA_WRITE, *from, *to},
                 {IBV_WR_RDMA_WRITE_WITH_IMM, *from, *to},
                 {IBV_WR_RDMA_READ, *to, *from}};

    for (auto &it : cases) {
        SCOPED_TRACE(it.opcode);
        Pair other(device, pair->a.options, pair->b.options);
        ASSERT_EQ(0, other.b.post_recv(1, to->list(max + 1)));
        Wr wr(2, it.opcode, it.local.list(max + 1));
        if (it.opcode != IBV_WR_SEND) {
            wr.rdma(it.remote.remote());
        }
        ASSERT_EQ(0, other.a.post(wr));
        other.cq_a.expect(2, IBV_WC_LOC_LEN_ERR);
        EXPECT_EQ(IBV_QPS_ERR, other.a.state());
        other.cq_b.expect_empty();
        EXPECT_EQ(IBV_QPS_RTS, other.b.state());
    }
    EXPECT_EQ(0xa5, to->data[max - 1]);
}
