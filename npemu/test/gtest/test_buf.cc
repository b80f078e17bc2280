/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * Buffers in the arena (ibv_alloc_buf): peers reach them without a system call,
 * by every operation, and as strictly as other memory.
 */

#include "npemu_region.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <future>

using namespace npt;

namespace {

constexpr size_t SIZE = 256 << 10;

/* All of the buffer is this. */
void expect_all(const Buffer &buffer, uint8_t value)
{
    EXPECT_EQ((ptrdiff_t)buffer.length,
              std::count(buffer.data, buffer.data + buffer.length, value));
}

/* A peer that accesses buffers in the arena of this process. */
class test_buf : public testing::Test {
protected:
    test_buf() : peer(SIZE) {}

    void SetUp() override
    {
        device = std::make_unique<Device>();
        peer.connect(*device);
    }

    void TearDown() override
    {
        if (!HasFatalFailure()) {
            peer.dismiss();
        }
    }

    Servant                 peer; /* first: it forks */
    std::unique_ptr<Device> device;
    Buffer::InArena         in_arena;
};

TEST_F(test_buf, lives_as_long_as_its_registrations)
{
    ibv_pd *pd    = npemu_alloc_pd(device->context);
    ibv_buf *buf  = nullptr;
    uint8_t *data = (uint8_t*)npemu_alloc_buf(pd, SIZE, &buf);

    EXPECT_EQ(EBUSY, npemu_dealloc_pd(pd));
    ibv_mr *mr = npemu_reg_mr(pd, data + 1, SIZE - 1, ACCESS_ALL);
    ASSERT_NE(nullptr, mr);
    npemu_free_buf(buf);
    npemu_free_buf(buf); /* no handle any more: ignored */

    /* Other buffers do not get its memory */
    memset(data, 0x77, SIZE);
    for (int i = 0; i < 4; ++i) {
        Buffer other(*device, SIZE);
        other.fill_byte(i);
    }
    EXPECT_EQ((ptrdiff_t)SIZE, std::count(data, data + SIZE, 0x77));
    EXPECT_EQ(0, npemu_dereg_mr(mr));
    EXPECT_EQ(0, npemu_dealloc_pd(pd));
}

TEST_F(test_buf, is_pinned)
{
    size_t before = npemu_pinned();
    {
        Buffer buffer(*device, SIZE);
        EXPECT_EQ(before + SIZE, npemu_pinned());
    }
    EXPECT_EQ(before, npemu_pinned());
}

/* What rides in the completion, in its ring, and what is copied; to pieces.
 * That all bytes arrive is shown by test_stress. */
TEST_F(test_buf, is_reached_without_system_calls)
{
    Buffer buffer(*device, SIZE), other(*device, SIZE);

    for (size_t length : {1, 64, 65, 4096, 8192, 8449, 65537, 200000}) {
        pattern_fill(peer.shared.data, length, length);
        peer.qp().recv(7, {buffer.sge(5, 1), other.sge(1, length)});
        EXPECT_EQ(IBV_WC_SUCCESS, peer.rdma(IBV_WR_SEND, {}, 0, length));
        EXPECT_TRUE(peer.cq().expect(7));
        EXPECT_EQ(0u, peer.calls) << length;
        other.data[0] = buffer.data[5];
        EXPECT_TRUE(pattern_holds(other.data, length, length));

        for (auto opcode : {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ}) {
            EXPECT_EQ(IBV_WC_SUCCESS,
                      peer.rdma(opcode, buffer.remote(3), 0, length));
            EXPECT_EQ(0u, peer.calls) << length;
            EXPECT_EQ(0, memcmp(buffer.data + 3, peer.shared.data, length));
        }
    }
    *(uint64_t*)buffer.data = 40;
    EXPECT_EQ(IBV_WC_SUCCESS, peer.run({IBV_WR_ATOMIC_FETCH_AND_ADD,
                                        buffer.remote(), 0, 8, 2}));
    EXPECT_EQ(0u, peer.calls);
    EXPECT_EQ(42u, *(uint64_t*)buffer.data);
}

/* --- as strict as other memory --------------------------------------------*/

/* What a peer may not do changes nothing, not in its neighbours either. */
TEST_F(test_buf, access_is_checked)
{
    const struct {
        ibv_wr_opcode opcode;
        int           access;
        ptrdiff_t     offset; /* of the first byte, in an MR of SIZE bytes */
        size_t        length;
        uint32_t      key;    /* xored */
    } forbidden[] = {
            {IBV_WR_RDMA_WRITE, ACCESS_ALL, SIZE - 100, 101, 0},
            {IBV_WR_RDMA_WRITE, ACCESS_ALL, -1, 100, 0},
            {IBV_WR_RDMA_WRITE, ACCESS_ALL, 0, 9000, 1 << 20},
            {IBV_WR_RDMA_WRITE,
             IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ, 0, 9000, 0},
            {IBV_WR_RDMA_READ, IBV_ACCESS_LOCAL_WRITE, 0, 9000, 0}};

    for (auto &how : forbidden) {
        SCOPED_TRACE(&how - forbidden);
        Buffer before(*device, SIZE), buffer(*device, SIZE, how.access),
                after(*device, SIZE), own(*device, SIZE);
        Pair pair(*device);

        for (auto *it : {&before, &buffer, &after}) {
            it->fill_byte(0x5a);
        }
        Remote remote = buffer.remote(how.offset);
        remote.rkey  ^= how.key;
        Wr wr(1, how.opcode, {own.sge(0, how.length)});
        EXPECT_EQ(0, pair.a.post(wr.rdma(remote)));
        pair.cq_a.expect(1, IBV_WC_REM_ACCESS_ERR);
        for (auto *it : {&before, &buffer, &after}) {
            expect_all(*it, 0x5a);
        }
    }
}

TEST_F(test_buf, forked_child_has_no_part_in_it)
{
    Buffer buffer(*device, SIZE);

    in_child([&] {
        unsigned char resident;
        ibv_buf *mine = nullptr;

        EXPECT_EQ(-1, mincore(buffer.data, PAGE, &resident)) << "it is mapped";
        EXPECT_EQ(nullptr, npemu_alloc_buf(device->pd, SIZE, &mine));
        EXPECT_EQ(EPERM, errno);
    });
    pattern_fill(peer.shared.data, 70000, 5);
    EXPECT_EQ(IBV_WC_SUCCESS,
              peer.rdma(IBV_WR_RDMA_WRITE, buffer.remote(), 0, 70000));
    EXPECT_TRUE(pattern_holds(buffer.data, 70000, 5));
}

/* --- a peer that is stopped while it copies -------------------------------*/

/* Three copies, and the page that stops the first one */
constexpr size_t LONG = 192 << 10, STOP = 32 << 10;

uint8_t *trap_page;

/* The source of a copy is not there: the copy stands still. */
void trap(int)
{
    raise(SIGSTOP);
    mprotect(trap_page, PAGE, PROT_READ | PROT_WRITE);
}

/* Nobody can stop what it will write: the end of the registration waits. */
TEST(test_buf_held, stopped_peer_is_waited_for)
{
    Child peer([](Pipe &pipe) {
        Side own(QpOptions(), LONG);

        own.buffer.fill_byte(0x33);
        connect_over(pipe, own.qp);
        Remote remote = pipe.recv<Remote>();
        trap_page     = own.buffer.data + STOP;
        signal(SIGSEGV, trap);
        mprotect(trap_page, PAGE, PROT_NONE);
        own.write(1, remote, LONG);
        EXPECT_TRUE(own.cq.expect(1));
        EXPECT_TRUE(pipe.await());
    });
    Buffer::InArena in_arena;
    Side side(QpOptions(), LONG);
    connect_over(peer.pipe(), side.qp);
    peer.pipe().send(side.remote());
    peer.expect_stopped();
    EXPECT_EQ(0, side.buffer.data[LONG - 1]) << "in the midst of it";
    auto done = std::async(std::launch::async, [&] {
        side.buffer.dereg();
        /* All that is ever written has been */
        return side.buffer.data[LONG - 1];
    });
    EXPECT_EQ(std::future_status::timeout,
              done.wait_for(std::chrono::milliseconds(100)));
    peer.resume();
    EXPECT_EQ(0x33, done.get());
    peer.release();
    EXPECT_EQ(IBV_QPS_RTS, side.qp.state());
}

} // namespace
