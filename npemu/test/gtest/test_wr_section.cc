/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * ibv_wr_post(3): from ibv_wr_start() to ibv_wr_complete() or ibv_wr_abort() is
 * a critical section of the queue pair, and what is collected there is posted
 * as a whole or not at all.
 */

#include "npemu_test.h"

#include <atomic>
#include <cerrno>
#include <thread>

#include <sched.h>

using namespace npt;

class test_wr_section : public testing::Test {
protected:
    static constexpr uint64_t RC_OPS = IBV_QP_EX_WITH_SEND |
                                       IBV_QP_EX_WITH_RDMA_WRITE |
                                       IBV_QP_EX_WITH_RDMA_READ;

    test_wr_section() :
        cq_a(device, 4096), cq_b(device, 4096), a(device, cq_a, cq_a),
        b(device, cq_b, cq_b), local(device, 8192), remote(device, 8192)
    {
    }

    /* Makes @a qp one of this type with room for @a send_wr requests. */
    void extend(Qp &qp, ibv_qp_type type, uint64_t ops, uint32_t send_wr)
    {
        ibv_qp_init_attr_ex attr = {};

        attr.qp_type             = type;
        attr.send_cq             = qp.qp->send_cq;
        attr.recv_cq             = qp.qp->recv_cq;
        attr.cap.max_send_wr     = send_wr;
        attr.cap.max_recv_wr     = 16;
        attr.cap.max_send_sge    = 2;
        attr.cap.max_recv_sge    = 1;
        attr.cap.max_inline_data = 64;
        attr.pd                  = device.pd;
        attr.send_ops_flags      = ops;
        attr.comp_mask           = IBV_QP_INIT_ATTR_PD |
                         IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
        EXPECT_EQ(0, npemu_destroy_qp(qp.qp));
        qp.options.type = type;
        qp.qp           = npemu_create_qp_ex(device.context, &attr);
        ASSERT_NE(nullptr, qp.qp) << strerror(errno);
    }

    /* Connects `a`, on which the requests are collected, with `b`. */
    void start_rc(uint32_t send_wr)
    {
        ASSERT_NO_FATAL_FAILURE(extend(a, IBV_QPT_RC, RC_OPS, send_wr));
        ex = npemu_qp_to_qp_ex(a);
        ASSERT_NE(nullptr, ex);
        connect(a, b);
    }

    /* A write of 8 bytes, each to the place of its own in the target. */
    void write(uint64_t wr_id, size_t place = 0)
    {
        ex->wr_id    = wr_id;
        ex->wr_flags = IBV_SEND_SIGNALED;
        ibv_wr_rdma_write(ex, remote.mr->rkey, remote.at(8 * place));
        ibv_wr_set_sge(ex, local.mr->lkey, local.at(8 * place), 8);
    }

    /* A thread that wants to enter, and is seen waiting: not in within the
     * time that it would take. Leaves the section; then it comes in. */
    template<typename Leave> void expect_held(const Leave &leave)
    {
        std::atomic<bool> is_near{false}, is_inside{false};
        std::thread other([&] {
            is_near = true;
            ibv_wr_start(ex);
            is_inside = true;
            write(99);
            EXPECT_EQ(0, ibv_wr_complete(ex));
        });

        EXPECT_TRUE(wait_until([&] { return is_near.load(); }));
        EXPECT_FALSE(wait_until([&] { return is_inside.load(); }, 20));
        leave();
        EXPECT_TRUE(wait_until([&] { return is_inside.load(); }));
        other.join();
    }

    Device     device;
    Cq         cq_a, cq_b;
    Qp         a, b;
    Buffer     local, remote;
    ibv_qp_ex *ex = nullptr;
};

/* --- one at a time -------------------------------------------------------- */

TEST_F(test_wr_section, complete_admits_the_next_thread)
{
    ASSERT_NO_FATAL_FAILURE(start_rc(16));
    ibv_wr_start(ex);
    write(1);
    expect_held([&] {
        write(2);
        EXPECT_EQ(0, ibv_wr_complete(ex));
    });
    cq_a.expect(1, IBV_WC_SUCCESS, 2);
    cq_a.expect(99);
    cq_a.expect_empty();
}

TEST_F(test_wr_section, abort_admits_the_next_thread)
{
    ASSERT_NO_FATAL_FAILURE(start_rc(16));
    ibv_wr_start(ex);
    write(1);
    expect_held([&] { ibv_wr_abort(ex); });
    cq_a.expect(99);
    cq_a.expect_empty();
}

TEST_F(test_wr_section, failure_admits_the_next_thread)
{
    ASSERT_NO_FATAL_FAILURE(start_rc(2));
    ibv_wr_start(ex);
    write(1);
    expect_held([&] {
        write(2);
        write(3);
        EXPECT_EQ(ENOMEM, ibv_wr_complete(ex));
    });
    cq_a.expect(99);
    cq_a.expect_empty();
}

/* Another queue pair is another section. */
TEST_F(test_wr_section, does_not_block_other_queue_pairs)
{
    ASSERT_NO_FATAL_FAILURE(start_rc(16));
    ASSERT_EQ(0, b.to_state(IBV_QPS_RESET));
    ASSERT_NO_FATAL_FAILURE(extend(b, IBV_QPT_RC, RC_OPS, 16));
    ASSERT_EQ(0, a.to_state(IBV_QPS_RESET));
    connect(a, b);

    ibv_wr_start(ex);
    write(1);
    std::thread other([&] {
        ibv_qp_ex *own = npemu_qp_to_qp_ex(b);
        ibv_wr_start(own);
        own->wr_id    = 2;
        own->wr_flags = IBV_SEND_SIGNALED;
        ibv_wr_rdma_read(own, remote.mr->rkey, remote.at(0));
        ibv_wr_set_sge(own, local.mr->lkey, local.at(0), 8);
        EXPECT_EQ(0, ibv_wr_complete(own));
        cq_b.expect(2);
    });
    other.join();
    EXPECT_EQ(0, ibv_wr_complete(ex));
    cq_a.expect(1);
}

/*
 * The section is the user's: other verbs work within it, also those which wait
 * for the thread of the device, and what others do to the QP.
 */
TEST_F(test_wr_section, other_verbs_work_within)
{
    ASSERT_NO_FATAL_FAILURE(start_rc(16));
    ASSERT_EQ(0, a.post_recv(8, {local.sge()}));
    ibv_wr_start(ex);
    write(1);
    {
        Cq cq(device);
        Qp c(device, cq, cq), d(device, cq, cq);
        Buffer buffer(device, 4096);
        connect(c, d);
        Wr send(5, IBV_WR_RDMA_WRITE, {buffer.sge(0, 8)});
        ASSERT_EQ(0, c.post(send.rdma(buffer, 64)));
        cq.expect(5);
        cq_a.expect_empty();
    }

    /* The peer's request fails `a`; the thread flushes its receives. */
    Wr wrong(2, IBV_WR_RDMA_WRITE, {remote.sge(0, 8)});
    ASSERT_EQ(0, b.post(wrong.rdma(Remote{local.at(0), 0x7f7f7f7f})));
    cq_b.expect(2, IBV_WC_REM_ACCESS_ERR);
    cq_a.expect(8, IBV_WC_WR_FLUSH_ERR);
    EXPECT_EQ(IBV_EVENT_QP_ACCESS_ERR, take_async(device).type);
    EXPECT_EQ(IBV_QPS_ERR, a.state());
    EXPECT_EQ(0, a.to_state(IBV_QPS_ERR));
    EXPECT_EQ(0, ibv_wr_complete(ex));
    cq_a.expect(1, IBV_WC_WR_FLUSH_ERR);
}

class test_wr_section_threads : public test_wr_section {
protected:
    static constexpr uint64_t THREADS = 4, BATCHES = 400, LENGTH = 3;
    static constexpr uint64_t TOTAL   = THREADS * BATCHES * LENGTH;

    void post_batch(uint64_t first)
    {
        ibv_wr_start(ex);
        for (uint64_t i = 0; i < LENGTH; ++i) {
            write(first + i, first / (BATCHES * LENGTH));
            sched_yield(); /* let the others in, if they can come in */
        }
        EXPECT_EQ(0, ibv_wr_complete(ex));
    }

    void post_list(uint64_t first)
    {
        ibv_sge sge             = local.sge(0, 8);
        ibv_send_wr wrs[LENGTH] = {}, *bad;

        for (uint64_t i = 0; i < LENGTH; ++i) {
            wrs[i].wr_id               = first + i;
            wrs[i].opcode              = IBV_WR_RDMA_WRITE;
            wrs[i].send_flags          = IBV_SEND_SIGNALED;
            wrs[i].sg_list             = &sge;
            wrs[i].num_sge             = 1;
            wrs[i].wr.rdma.remote_addr = remote.at(4096);
            wrs[i].wr.rdma.rkey        = remote.mr->rkey;
            wrs[i].next = (i + 1 < LENGTH) ? &wrs[i + 1] : nullptr;
        }
        EXPECT_EQ(0, ibv_post_send(a, wrs, &bad));
    }

    void run_thread(uint64_t t)
    {
        while (!is_started) {
            sched_yield();
        }
        for (uint64_t i = 0; i < BATCHES; ++i) {
            uint64_t first = (t * BATCHES + i) * LENGTH;
            (t == 0) ? post_list(first) : post_batch(first);
        }
    }

    /* In the order of each thread, and a batch without others between */
    void expect_in_order()
    {
        std::vector<uint64_t> next(THREADS, 0);
        uint64_t previous = 0;

        for (uint64_t i = 0; i < TOTAL; ++i) {
            ibv_wc wc = cq_a.wait();
            if (wc.status != IBV_WC_SUCCESS) {
                ADD_FAILURE() << "completion " << i << " of " << TOTAL << ": "
                              << wc.status;
                break;
            }
            uint64_t thread = wc.wr_id / (BATCHES * LENGTH);
            uint64_t number = wc.wr_id % (BATCHES * LENGTH);
            ASSERT_GT(THREADS, thread);
            EXPECT_EQ(next[thread], number) << "of thread " << thread;
            next[thread] = number + 1;
            if (number % LENGTH != 0) {
                EXPECT_EQ(previous + 1, wc.wr_id) << "within a batch";
            }
            previous = wc.wr_id;
        }
    }

    std::atomic<bool> is_started{false};
};

/*
 * Threads post batches to one queue pair, and one posts lists the old way. Each
 * request completes once, in the order of its thread, and nothing comes between
 * those of a batch.
 */
TEST_F(test_wr_section_threads, share_a_queue_pair)
{
    std::vector<std::thread> threads;

    ASSERT_NO_FATAL_FAILURE(start_rc(TOTAL));
    for (uint64_t t = 0; t < THREADS; ++t) {
        threads.emplace_back([&, t] { run_thread(t); });
    }
    is_started = true;
    expect_in_order();
    for (std::thread &thread : threads) {
        thread.join();
    }
    cq_a.expect_empty();
}

/* A child has neither the section of its parent nor the device. */
TEST_F(test_wr_section, forked_child_is_refused)
{
    ASSERT_NO_FATAL_FAILURE(start_rc(16));
    ibv_wr_start(ex);
    write(1);
    in_child([&] {
        EXPECT_EQ(EPERM, ibv_wr_complete(ex));
        ibv_wr_start(ex);
        write(2);
        EXPECT_EQ(EPERM, ibv_wr_complete(ex));
        ibv_wr_start(ex);
        ibv_wr_abort(ex);
    });
    EXPECT_EQ(0, ibv_wr_complete(ex));
    cq_a.expect(1);
    cq_a.expect_empty();
}

/* --- all or nothing ------------------------------------------------------- */

TEST_F(test_wr_section, batch_is_posted_completely_or_not)
{
    ASSERT_NO_FATAL_FAILURE(start_rc(4));
    memset(local.data, 0x5a, local.length);

    /* Two places are taken until their completions have been polled. */
    ibv_wr_start(ex);
    write(1, 100);
    write(2, 101);
    ASSERT_EQ(0, ibv_wr_complete(ex));
    ibv_wr_start(ex);
    for (int i = 0; i < 3; ++i) {
        write(10 + i, i);
    }
    EXPECT_EQ(ENOMEM, ibv_wr_complete(ex));
    cq_a.expect(1, IBV_WC_SUCCESS, 2);
    cq_a.expect_empty();
    for (int i = 0; i < 24; ++i) {
        EXPECT_EQ(0, remote.data[i]) << i;
    }

    /* As many as there is room for. */
    for (uint64_t count : {2, 4}) {
        ibv_wr_start(ex);
        for (uint64_t i = 0; i < count; ++i) {
            write(20 + i, i);
        }
        EXPECT_EQ(0, ibv_wr_complete(ex));
        cq_a.expect(20, IBV_WC_SUCCESS, count);
    }
}

/* One bad request among good ones. */
TEST_F(test_wr_section, one_bad_request_refuses_the_batch)
{
    ASSERT_NO_FATAL_FAILURE(start_rc(16));
    std::vector<ibv_sge> three(3, local.sge(0, 8));
    const std::function<void()> bad[] = {
            [&] {
                ibv_wr_rdma_write(ex, remote.mr->rkey, remote.at(0));
                ibv_wr_set_sge_list(ex, three.size(), three.data());
            },
            [&] {
                ibv_wr_rdma_write(ex, remote.mr->rkey, remote.at(0));
                ibv_wr_set_inline_data(ex, local.data, 65);
            },
            [&] { /* valid for SEND and RDMA WRITE only */
                ibv_wr_rdma_read(ex, remote.mr->rkey, remote.at(0));
                ibv_wr_set_inline_data(ex, local.data, 8);
            }};

    memset(local.data, 0x5a, local.length);
    for (size_t i = 0; i < 3; ++i) {
        for (int place = 0; place < 3; ++place) {
            ibv_wr_start(ex);
            for (int k = 0; k < 3; ++k) {
                (k == place) ? bad[i]() : write(k, k);
            }
            EXPECT_EQ(EINVAL, ibv_wr_complete(ex)) << i << " at " << place;
            cq_a.expect_empty();
        }
    }
    EXPECT_EQ(0, remote.data[0]);
    EXPECT_EQ(IBV_QPS_RTS, a.state());
    ibv_wr_start(ex);
    write(7);
    EXPECT_EQ(0, ibv_wr_complete(ex));
    cq_a.expect(7);
}

/* The first error is returned, whatever comes after it. */
TEST_F(test_wr_section, first_error_is_returned)
{
    ASSERT_NO_FATAL_FAILURE(start_rc(2));
    ibv_wr_start(ex);
    for (int i = 0; i < 3; ++i) {
        write(i);
    }
    ibv_wr_set_inline_data(ex, local.data, 65);
    std::vector<ibv_sge> three(3, local.sge(0, 8));
    ibv_wr_set_sge_list(ex, three.size(), three.data());
    EXPECT_EQ(ENOMEM, ibv_wr_complete(ex));
}

TEST_F(test_wr_section, needs_the_right_state)
{
    ASSERT_NO_FATAL_FAILURE(extend(a, IBV_QPT_RC, RC_OPS, 16));
    ex = npemu_qp_to_qp_ex(a);
    for (int count : {1, 2}) {
        ibv_wr_start(ex);
        for (int i = 0; i < count; ++i) {
            write(i);
        }
        EXPECT_EQ(EINVAL, ibv_wr_complete(ex));
    }
    connect(a, b);
    ASSERT_EQ(0, a.to_state(IBV_QPS_ERR));
    for (int count : {1, 2}) {
        ibv_wr_start(ex);
        for (int i = 0; i < count; ++i) {
            write(i);
        }
        EXPECT_EQ(0, ibv_wr_complete(ex));
        cq_a.expect(0, IBV_WC_WR_FLUSH_ERR, count);
    }
}

/* A request that fails is no reason to refuse: what is behind it is flushed. */
TEST_F(test_wr_section, failed_request_gives_an_error_completion)
{
    ASSERT_NO_FATAL_FAILURE(start_rc(16));
    ibv_wr_start(ex);
    write(1);
    ex->wr_id = 2;
    ibv_wr_rdma_write(ex, 0x7f7f7f7f, remote.at(0));
    ibv_wr_set_sge(ex, local.mr->lkey, local.at(0), 8);
    write(3);
    EXPECT_EQ(0, ibv_wr_complete(ex));
    cq_a.expect(1);
    cq_a.expect(2, IBV_WC_REM_ACCESS_ERR);
    cq_a.expect(3, IBV_WC_WR_FLUSH_ERR);
}

/* Nor does a datagram go where one of an earlier batch went. */
TEST_F(test_wr_section, datagram_needs_an_address)
{
    ASSERT_NO_FATAL_FAILURE(extend(a, IBV_QPT_UD, IBV_QP_EX_WITH_SEND, 16));
    ASSERT_NO_FATAL_FAILURE(extend(b, IBV_QPT_UD, IBV_QP_EX_WITH_SEND, 16));
    ex = npemu_qp_to_qp_ex(a);
    a.connect();
    b.connect();
    ibv_ah_attr attr = {};
    attr.dlid        = 1;
    attr.port_num    = 1;
    ibv_ah *ah       = npemu_create_ah(device.pd, &attr);
    ASSERT_NE(nullptr, ah);

    auto datagram = [&](uint64_t wr_id, bool with_address) {
        ex->wr_id    = wr_id;
        ex->wr_flags = IBV_SEND_SIGNALED;
        ibv_wr_send(ex);
        ibv_wr_set_sge(ex, local.mr->lkey, local.at(0), 8);
        if (with_address) {
            ibv_wr_set_ud_addr(ex, ah, b.qp->qp_num, 0x11111111);
        }
    };
    ibv_wr_start(ex);
    datagram(1, true);
    datagram(2, true);
    ASSERT_EQ(0, ibv_wr_complete(ex));
    cq_a.expect(1, IBV_WC_SUCCESS, 2);

    ibv_wr_start(ex);
    datagram(3, false);
    EXPECT_EQ(EINVAL, ibv_wr_complete(ex));
    ibv_wr_start(ex);
    datagram(3, false);
    datagram(4, false);
    EXPECT_EQ(EINVAL, ibv_wr_complete(ex));
    cq_a.expect_empty();
    EXPECT_EQ(0, npemu_destroy_ah(ah));
}
