/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Two processes and more: sleeping, forking, exiting, being refused. */

#include "internals.h"
#include "npemu_test.h"

#include <atomic>
#include <cerrno>
#include <csignal>
#include <thread>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

using namespace npt;

/* --- sleeping ------------------------------------------------------------- */

TEST(test_process_sleep, receiver_wakes_for_each_message)
{
    constexpr int COUNT = 100;
    Child receiver([](Pipe &pipe) {
        Side side;
        ibv_wc wc;

        ASSERT_EQ(0, ibv_req_notify_cq(side.cq, 0));
        connect_over(pipe, side.qp);
        for (int i = 0; i < 32; ++i) {
            side.qp.recv(i, {side.buffer.sge(0, 8192)});
        }
        for (int seen = 0; seen < COUNT; pipe.signal()) {
            ASSERT_EQ(side.cq.cq, side.channel.take());
            ASSERT_EQ(0, ibv_req_notify_cq(side.cq, 0));
            while (ibv_poll_cq(side.cq, 1, &wc) == 1) {
                ASSERT_EQ(IBV_WC_SUCCESS, wc.status);
                ASSERT_EQ(seen % 3 * 4000u, wc.byte_len);
                side.qp.recv(seen++, {side.buffer.sge(0, 8192)});
            }
        }
    });
    Side side;
    connect_over(receiver.pipe(), side.qp);
    for (int i = 0; i < COUNT; ++i) {
        side.send(i, i % 3 * 4000);
        side.cq.expect(i);
        /* Asleep again, or about to be: both must do. */
        if (i % 2) {
            ASSERT_TRUE(receiver.pipe().await());
        }
    }
    receiver.join();
}

/* The sender sleeps too: its own device must try again in the background. */
TEST(test_process_sleep, sender_waits_for_a_receive_asleep)
{
    Child receiver([](Pipe &pipe) {
        Side side;
        connect_over(pipe, side.qp);
        EXPECT_TRUE(pipe.await());
        side.qp.recv(1, {side.buffer.sge(0, 8192)});
        side.cq.expect(1);
        EXPECT_TRUE(pattern_holds(side.buffer.data, 5000, 3));
        EXPECT_TRUE(pipe.await());
    });
    Side side;
    connect_over(receiver.pipe(), side.qp);
    side.buffer.fill(3);
    side.send(1, 5000);
    side.cq.expect_empty();
    ASSERT_EQ(0, ibv_req_notify_cq(side.cq, 0));
    receiver.pipe().signal();
    EXPECT_EQ(side.cq.cq, side.channel.take());
    side.cq.expect(1);
    receiver.release();
}

/* A program that replaces itself leaves the fabric. It does not hold up a peer
 * that has not taken its messages yet, which waits once until no thread of it
 * writes any more; nor does it leave its place before that. */
TEST(test_process_death, peer_calls_exec)
{
    constexpr int COUNT = 16;
    Child peer([](Pipe &pipe) {
        Side side;
        connect_over(pipe, side.qp);
        pipe.send(npt_slot(side.device.context));
        for (int i = 0; i < COUNT; ++i) {
            side.send(i);
            side.cq.expect(i);
        }
        execlp("sleep", "sleep", "60", nullptr);
        ADD_FAILURE() << "exec: " << strerror(errno);
    });
    Child later([](Pipe &pipe) {
        EXPECT_TRUE(pipe.await());
        auto began = Clock::now();
        Device device;
        pipe.send(ms_since(began));
        pipe.send(npt_slot(device.context));
        pipe.await();
    });
    Side side;
    connect_over(peer.pipe(), side.qp);
    for (int i = 0; i < COUNT; ++i) {
        side.qp.recv(i, {side.buffer.sge()});
    }
    auto slot = peer.pipe().recv<unsigned>();
    char end;
    EXPECT_FALSE(peer.pipe().recv_bytes(&end, 1));
    auto began = Clock::now();
    side.send(100);
    { Cq another(side.device); }
    EXPECT_LT(ms_since(began), COUNT / 2 * 1000);
    side.cq.expect(0, IBV_WC_SUCCESS, COUNT);
    side.cq.expect(100, IBV_WC_RETRY_EXC_ERR);

    later.pipe().signal();
    auto waited = later.pipe().recv<double>();
    if (later.pipe().recv<unsigned>() == slot) {
        EXPECT_GT(waited, 500);
    }
    peer.kill();
    later.kill();
}

/* --- stopped with a lock -------------------------------------------------- */

/*
 * As may happen to any process. Its NIC would go on, so what is sent to it
 * waits, however short the patience of the sender.
 */
class test_process_stopped : public testing::Test {
protected:
    static QpOptions impatient()
    {
        QpOptions options;
        options.timeout   = 1; /* 8 us */
        options.retry_cnt = 1;
        return options;
    }

    /* The target has stopped; it goes on when the request has been tried. */
    void meet(Child &target, Side &side, ibv_send_wr &wr)
    {
        target.expect_stopped();
        ASSERT_EQ(0, side.qp.post(wr));
        uint64_t retries = npemu_cq_retries(side.cq) + 5;
        EXPECT_TRUE(wait_until([&] {
            return npemu_cq_retries(side.cq) >= retries;
        }));
        side.cq.expect_empty();
    }

    static constexpr size_t SIZE = 20000;
};

/* The target may have used already what it has received before. Twice, as the
 * second must not pass for written because the first was. */
TEST_F(test_process_stopped, data_with_immediate_is_written_once)
{
    Child target([](Pipe &pipe) {
        Side own;
        connect_over(pipe, own.qp);
        pipe.send(own.remote());
        for (uint64_t id : {1, 2}) {
            own.buffer.fill_byte(0);
            own.qp.recv(id, {});
            npt_cq_lock(own.cq);
            raise(SIGSTOP);
            EXPECT_TRUE(pattern_holds(own.buffer.data, SIZE, 5));
            own.buffer.fill_byte(0x77);
            npt_cq_unlock(own.cq);
            ibv_wc wc = own.cq.wait();
            EXPECT_EQ(IBV_WC_RECV_RDMA_WITH_IMM, wc.opcode);
            EXPECT_EQ(SIZE, wc.byte_len);
            for (size_t i = 0; i < SIZE; ++i) {
                ASSERT_EQ(0x77, own.buffer.data[i]) << i;
            }
        }
        EXPECT_TRUE(pipe.await());
    });
    Side side(impatient());
    connect_over(target.pipe(), side.qp);
    Remote remote = target.pipe().recv<Remote>();
    side.buffer.fill(5);
    for (uint64_t id : {1, 2}) {
        Wr write(id, IBV_WR_RDMA_WRITE_WITH_IMM, {side.buffer.sge(0, SIZE)});
        meet(target, side, write.rdma(remote));
        target.resume();
        side.cq.expect(id);
    }
    target.release();
}

TEST_F(test_process_stopped, atomics_are_done_once)
{
    Child target([](Pipe &pipe) {
        Side own;
        auto *word = (volatile uint64_t*)own.buffer.data;
        connect_over(pipe, own.qp);
        pipe.send(own.remote());
        npt_atomic_lock(own.device.context);
        raise(SIGSTOP);
        EXPECT_EQ(0u, *word);
        npt_atomic_unlock(own.device.context);
        EXPECT_TRUE(pipe.await());
        EXPECT_EQ(11u, *word);
    });
    Side side(impatient());
    connect_over(target.pipe(), side.qp);
    Remote remote = target.pipe().recv<Remote>();
    Wr first(1, IBV_WR_ATOMIC_FETCH_AND_ADD, {side.buffer.sge(0, 8)});
    Wr second(2, IBV_WR_ATOMIC_FETCH_AND_ADD, {side.buffer.sge(8, 8)});
    meet(target, side, first.atomic(remote, 1).then(second.atomic(remote, 10)));
    target.resume();
    side.cq.expect(1, IBV_WC_SUCCESS, 2);
    EXPECT_EQ(0u, ((uint64_t*)side.buffer.data)[0]);
    EXPECT_EQ(1u, ((uint64_t*)side.buffer.data)[1]);
    target.release();
}

TEST_F(test_process_stopped, its_death_ends_the_wait)
{
    Child target([](Pipe &pipe) {
        Side own;
        connect_over(pipe, own.qp);
        own.qp.recv(1, {own.buffer.sge()});
        npt_cq_lock(own.cq);
        raise(SIGSTOP);
    });
    Side side(impatient());
    connect_over(target.pipe(), side.qp);
    Wr send(1, IBV_WR_SEND, {side.buffer.sge(0, 100)});
    meet(target, side, send);
    target.kill();
    ibv_wc_status status = side.cq.wait().status;
    if (status == IBV_WC_SUCCESS) {
        /* The thread with the lock ended before the process did: its queue pair
         * still received */
        side.send(2, 100);
        status = side.cq.wait().status;
    }
    EXPECT_EQ(IBV_WC_RETRY_EXC_ERR, status);
}

/* --- fork ----------------------------------------------------------------- */

TEST(test_process_fork, child_is_refused_and_parent_works)
{
    Side side;
    Pair pair(side.device);

    in_child([&] {
        ibv_wc wc;
        Wr write(1, IBV_WR_RDMA_WRITE, {side.buffer.sge(0, 8)});
        ibv_send_wr *bad;

        EXPECT_EQ(nullptr, npemu_alloc_pd(side.device.context));
        EXPECT_EQ(nullptr, npemu_reg_mr(side.device.pd, side.buffer.data, 8,
                                        ACCESS_ALL));
        EXPECT_EQ(nullptr, npemu_create_cq(side.device.context, 1, nullptr,
                                           nullptr, 0));
        write.rdma(side.remote(64));
        EXPECT_NE(0, ibv_post_send(pair.a, &write, &bad));
        EXPECT_GE(0, ibv_poll_cq(pair.cq_a, 1, &wc));
        EXPECT_NE(0, npemu_dereg_mr(side.buffer.mr));
        EXPECT_NE(0, npemu_destroy_qp(pair.a));
    });
    pair.a.write(1, {side.buffer.sge(0, 8)}, side.remote(64));
    pair.cq_a.expect(1);
}

/* A child that lives on does not keep a dead parent alive in the fabric. */
TEST(test_process_fork, child_does_not_keep_its_dead_parent_alive)
{
    int hold[2];
    ASSERT_EQ(0, pipe(hold));
    Child peer([&](Pipe &pipe) {
        Side side;
        connect_over(pipe, side.qp);
        if (fork() == 0) {
            char c;
            close(hold[1]);
            _exit((int)read(hold[0], &c, 1)); /* until the test is over */
        }
        pipe.signal();
        pause();
    });
    close(hold[0]);
    Side side;
    connect_over(peer.pipe(), side.qp);
    ASSERT_TRUE(peer.pipe().await());
    peer.kill();
    side.send(1);
    side.cq.expect(1, IBV_WC_RETRY_EXC_ERR);
    close(hold[1]);
}

/* Forks while a thread does something, which holds a lock of the process most
 * of the time: the child does not inherit it. */
static void fork_beside(const std::function<void()> &once)
{
    std::atomic<int> held(0);
    std::atomic<bool> stop(false);
    std::thread thread([&] {
        for (; !stop; ++held) {
            once();
            sched_yield();
        }
    });

    for (int i = 0; (i < 20) && !testing::Test::HasFailure(); ++i) {
        int before = held;
        EXPECT_TRUE(wait_until([&] { return held > before; }));
        in_child([] {
            Device device;
            Buffer buffer(device, 8192); /* pins */
            ibv_buf *buf = nullptr;

            EXPECT_NE(nullptr, npemu_alloc_buf(device.pd, 8192, &buf));
            EXPECT_EQ(1, npemu_is_buf(buf));
            npemu_free_buf(buf);
        });
    }
    stop = true;
    thread.join();
}

TEST(test_process_fork_lock, attaching)
{
    SKIP_UNLESS(NPT_FORK_WITH_THREADS, "TSan cannot follow such a fork");
    fork_beside([] { Device device; });
}

/* A handle is searched for among many buffers. */
TEST(test_process_fork_lock, buffers)
{
    SKIP_UNLESS(NPT_FORK_WITH_THREADS, "TSan cannot follow such a fork");
    Device device;
    std::vector<ibv_buf*> bufs(2000);

    for (auto &buf : bufs) {
        EXPECT_NE(nullptr, npemu_alloc_buf(device.pd, 1, &buf));
    }
    fork_beside([&] { EXPECT_EQ(0, npemu_is_buf((ibv_buf*)&device)); });
    for (auto buf : bufs) {
        npemu_free_buf(buf);
    }
}

/* The last page is missing, which is searched for page by page. fork() waits
 * for each of these system calls, but not for what is between them. */
TEST(test_process_fork_lock, pins)
{
    SKIP_UNLESS(NPT_FORK_WITH_THREADS, "TSan cannot follow such a fork");
    constexpr size_t PAGE = 4096, SIZE = 64 << 20;
    Device device;
    Buffer buffer(device, SIZE, -1);

    ASSERT_EQ(0, munmap(buffer.data + SIZE - PAGE, PAGE));
    fork_beside([&] {
        EXPECT_EQ(nullptr, npemu_reg_mr(device.pd, buffer.data, SIZE, 0));
        EXPECT_EQ(EFAULT, errno);
    });
}

TEST(test_process_fork, descriptors_are_closed_by_exec_and_by_closing)
{
    std::set<int> before = open_fds();
    {
        Side side;
        for (int fd : open_fds()) {
            if (before.count(fd) == 0) {
                EXPECT_NE(0, fcntl(fd, F_GETFD) & FD_CLOEXEC) << fd;
            }
        }
    }
    EXPECT_EQ(before, open_fds());
}

/* --- refused by the kernel ------------------------------------------------ */

/*
 * A process whose memory may not be accessed: the request fails, one line names
 * the process, and nothing hangs.
 */
TEST(test_process_refused, process_that_may_not_be_traced)
{
    in_child([] {
        ASSERT_TRUE(become_nobody());
        Child target([](Pipe &pipe) {
            Side side;
            connect_over(pipe, side.qp);
            ASSERT_EQ(0, prctl(PR_SET_DUMPABLE, 0, 0, 0, 0));
            pipe.send(side.remote());
            EXPECT_TRUE(pipe.await());
        });
        Side side;
        connect_over(target.pipe(), side.qp);
        Remote remote = target.pipe().recv<Remote>();
        expect_line(std::to_string(target.pid()), [&] {
            side.write(1, remote, 8192);
            side.cq.expect(1, IBV_WC_REM_OP_ERR);
        });
        target.release();
    });
}

/* --- limits of the process ------------------------------------------------ */

/* One descriptor more each time: each step of opening fails once, and leaves
 * none open. */
TEST(test_process_limits, no_descriptors_left)
{
    in_child([] {
        struct rlimit limit;
        ASSERT_EQ(0, getrlimit(RLIMIT_NOFILE, &limit));
        struct rlimit tight      = limit;
        std::set<int> before     = open_fds();
        struct ibv_device **list = npemu_get_device_list(nullptr);
        ibv_context *ctx         = nullptr;
        for (int spare = 0; (spare < 40) && (ctx == nullptr); ++spare) {
            tight.rlim_cur = *before.rbegin() + 1 + spare;
            ASSERT_EQ(0, setrlimit(RLIMIT_NOFILE, &tight));
            errno = 0;
            ctx   = npemu_open_device(list[0]);
            ASSERT_EQ(0, setrlimit(RLIMIT_NOFILE, &limit));
            if (ctx == nullptr) {
                EXPECT_NE(0, errno);
                EXPECT_EQ(before, open_fds()) << spare;
            }
        }
        ASSERT_NE(nullptr, ctx);
        npemu_free_device_list(list);

        std::vector<ibv_comp_channel*> channels;
        ibv_comp_channel *channel;
        ASSERT_EQ(0, setrlimit(RLIMIT_NOFILE, &tight));
        while ((channel = npemu_create_comp_channel(ctx)) != nullptr) {
            channels.push_back(channel);
            ASSERT_GT(1000u, channels.size());
        }
        EXPECT_EQ(EMFILE, errno);
        for (auto *it : channels) {
            EXPECT_EQ(0, npemu_destroy_comp_channel(it));
        }
        EXPECT_EQ(0, npemu_close_device(ctx));
    });
}

/* A process has its own arena mapped, and that of each peer (ulimit -v). */
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(test_process_limits, peer_beyond_the_address_space_is_unreachable)
{
    Side side;
    Address address = side.qp.address();

    in_child([&] {
        struct rlimit limit = {2ul << 30, 2ul << 30};
        ASSERT_EQ(0, setrlimit(RLIMIT_AS, &limit));
        Side own;

        expect_line("ulimit -v", [&] {
            own.qp.connect(address);
            Qp again(own.device, own.cq, own.cq);
            again.connect(address);
        });
        /* As to a host that does not answer */
        own.write(1, Remote{0, 0});
        EXPECT_TRUE(own.cq.expect(1, IBV_WC_RETRY_EXC_ERR));
    });
}
#endif
