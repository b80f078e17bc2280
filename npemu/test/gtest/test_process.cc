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
    constexpr int COUNT = 200;
    Child receiver([](Pipe &pipe) {
        Side side;
        ASSERT_EQ(0, ibv_req_notify_cq(side.cq, 0));
        connect_over(pipe, side.qp);
        for (int i = 0; i < 32; ++i) {
            ASSERT_EQ(0, side.qp.post_recv(i, {side.buffer.sge(0, 8192)}));
        }
        int seen = 0;
        while (seen < COUNT) {
            ASSERT_EQ(side.cq.cq, side.channel.take());
            ASSERT_EQ(0, ibv_req_notify_cq(side.cq, 0));
            ibv_wc wc;
            while (ibv_poll_cq(side.cq, 1, &wc) == 1) {
                ASSERT_EQ(IBV_WC_SUCCESS, wc.status);
                ASSERT_EQ((uint32_t)seen, be32toh(wc.imm_data));
                ASSERT_EQ(0, side.qp.post_recv(seen,
                                               {side.buffer.sge(0, 8192)}));
                ++seen;
            }
            pipe.signal();
        }
    });
    Side side;
    connect_over(receiver.pipe(), side.qp);
    for (int i = 0; i < COUNT; ++i) {
        Wr send(i, IBV_WR_SEND_WITH_IMM,
                {side.buffer.sge(0, (i % 3) * 4000)});
        ASSERT_EQ(0, side.qp.post(send.imm(i)));
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
        ASSERT_EQ(0, side.qp.post_recv(1, {side.buffer.sge(0, 8192)}));
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
    receiver.pipe().signal();
    receiver.join();
}

/* --- death ---------------------------------------------------------------- */

TEST(test_process_death, peer_killed_before_the_request)
{
    Child peer(be_idle);
    QpOptions options;
    options.timeout   = 12;
    options.retry_cnt = 2;
    Side side(options);
    connect_over(peer.pipe(), side.qp);
    Remote remote = peer.pipe().recv<Remote>();
    ibv_qp_attr attr;
    ibv_qp_init_attr init;
    ASSERT_EQ(0, npemu_query_qp(side.qp.qp, &attr, -1, &init));
    EXPECT_EQ(1, npemu_has_qp(side.device.context, attr.dest_qp_num));
    peer.kill();
    EXPECT_EQ(0, npemu_has_qp(side.device.context, attr.dest_qp_num));

    side.write(1, remote);
    side.cq.expect(1, IBV_WC_RETRY_EXC_ERR);
    EXPECT_GE(11u, npemu_cq_retries(side.cq));
}

/* A program that replaces itself leaves the fabric. */
TEST(test_process_death, peer_calls_exec)
{
    Child peer([](Pipe &pipe) {
        Side side;
        connect_over(pipe, side.qp);
        execlp("sleep", "sleep", "60", nullptr);
        ADD_FAILURE() << "exec: " << strerror(errno);
    });
    Side side;
    connect_over(peer.pipe(), side.qp);
    side.send(1);
    side.cq.expect(1, IBV_WC_RETRY_EXC_ERR);
    peer.kill();
}

/* --- stopped -------------------------------------------------------------- */

/* Stops with the lock of its CQ, as may happen to any process. Its NIC would go
 * on, so what is sent to it waits, however short its patience. */
class test_process_stopped_with_lock : public testing::Test {
protected:
    static QpOptions impatient()
    {
        QpOptions options;
        options.timeout   = 1; /* 8 us */
        options.retry_cnt = 1;
        return options;
    }

    static void be_target(Pipe &pipe)
    {
        Side side;
        connect_over(pipe, side.qp);
        ASSERT_EQ(0, side.qp.post_recv(1, {side.buffer.sge()}));
        pipe.signal();
        npt_cq_lock(side.cq);
        raise(SIGSTOP);
        npt_cq_unlock(side.cq);
        side.cq.expect(1);
        pipe.await();
    }

    test_process_stopped_with_lock() : target(be_target), side(impatient())
    {
    }

    void send_meets_lock()
    {
        connect_over(target.pipe(), side.qp);
        ASSERT_TRUE(target.pipe().await());
        expect_stopped(target.pid());
        side.send(1, 100);
        EXPECT_TRUE(wait_until([&] { return npemu_cq_retries(side.cq) >= 5; }));
        side.cq.expect_empty();
    }

    Child target;
    Side  side;
};

TEST_F(test_process_stopped_with_lock, requests_wait_for_it)
{
    send_meets_lock();
    ASSERT_EQ(0, ::kill(target.pid(), SIGCONT));
    side.cq.expect(1);
    target.pipe().signal();
    target.join();
}

TEST_F(test_process_stopped_with_lock, its_death_ends_the_wait)
{
    send_meets_lock();
    target.kill();
    ibv_wc wc = side.cq.wait();
    EXPECT_EQ(1u, wc.wr_id);
    if (wc.status == IBV_WC_SUCCESS) {
        /* The thread with the lock ended before the process did: its queue pair
         * still received */
        side.send(2, 100);
        wc = side.cq.wait();
        EXPECT_EQ(2u, wc.wr_id);
    }
    EXPECT_EQ(IBV_WC_RETRY_EXC_ERR, wc.status);
}

/*
 * Of three processes one is stopped while it holds a lock of the target. The
 * target continues, and the third process sends and has to wait. The target may
 * have used already what it has received before.
 */
class test_process_stopped_third : public testing::Test {
protected:
    using Sender = std::function<void(Pipe &, Side &, const Remote &)>;
    using Lock   = void (*)(ibv_qp *);

    static constexpr size_t SIZE = 20000;

    /* Up to the time when `sender` runs and the lock is held. */
    void start(Lock lock, Lock unlock, const Sender &sender)
    {
        holder = std::make_unique<Child>([=](Pipe &pipe) {
            Side own;
            connect_over(pipe, own.qp);
            lock(own.qp);
            raise(SIGSTOP);
            unlock(own.qp);
            pipe.await();
        });
        initiator = std::make_unique<Child>([=](Pipe &pipe) {
            Side own;
            own.buffer.fill(5);
            connect_over(pipe, own.qp);
            sender(pipe, own, pipe.recv<Remote>());
        });
        side  = std::make_unique<Side>();
        other = std::make_unique<Qp>(side->device, side->cq, side->cq);
        connect_over(holder->pipe(), *other);
        expect_stopped(holder->pid());
        connect_over(initiator->pipe(), side->qp);
        side->buffer.fill_byte(0);
        for (int i = 1; i <= 2; ++i) {
            ASSERT_EQ(0, side->qp.post_recv(i, {side->buffer.sge(
                                                       (i - 1) * SIZE,
                                                       SIZE)}));
        }
        initiator->pipe().send(side->remote());
    }

    void finish()
    {
        holder->pipe().signal();
        holder->join();
        initiator->pipe().signal();
        initiator->join();
    }

    void resume()
    {
        ASSERT_EQ(0, ::kill(holder->pid(), SIGCONT));
    }

    /* In the initiator */
    static void expect_more_tries(Side &own)
    {
        uint64_t retries = npemu_cq_retries(own.cq);

        EXPECT_TRUE(wait_until([&] {
            return npemu_cq_retries(own.cq) >= retries + 5;
        }));
        own.cq.expect_empty();
    }

    std::unique_ptr<Child> holder, initiator;
    std::unique_ptr<Side>  side;
    std::unique_ptr<Qp>    other;
};

/* Twice, as the second must not pass for written because the first was. */
TEST_F(test_process_stopped_third, data_with_immediate_is_written_once)
{
    start(npt_peer_cq_lock, npt_peer_cq_unlock,
          [](Pipe &pipe, Side &own, const Remote &remote) {
        Wr write(1, IBV_WR_RDMA_WRITE_WITH_IMM, {own.buffer.sge(0, SIZE)});
        ASSERT_EQ(0, own.qp.post(write.rdma(remote).imm(9)));
        EXPECT_TRUE(pipe.await());
        expect_more_tries(own);
        pipe.signal();
        own.cq.expect(1);
        write.wr_id = 2;
        EXPECT_TRUE(pipe.await());
        ASSERT_EQ(0, own.qp.post(write));
        own.cq.expect(2);
        EXPECT_TRUE(pipe.await());
    });
    EXPECT_TRUE(wait_until([&] {
        return bool(pattern_holds(side->buffer.data, SIZE, 5));
    }));
    side->buffer.fill_byte(0x77);
    initiator->pipe().signal();
    EXPECT_TRUE(initiator->pipe().await());
    resume();
    ibv_wc wc = side->cq.wait();
    EXPECT_EQ(1u, wc.wr_id);
    EXPECT_EQ(IBV_WC_RECV_RDMA_WITH_IMM, wc.opcode);
    EXPECT_EQ(SIZE, wc.byte_len);
    for (size_t i = 0; i < SIZE; ++i) {
        ASSERT_EQ(0x77, side->buffer.data[i]) << i;
    }
    initiator->pipe().signal();
    side->cq.expect(2);
    EXPECT_TRUE(pattern_holds(side->buffer.data, SIZE, 5));
    finish();
}

TEST_F(test_process_stopped_third, atomics_are_done_once)
{
    start(npt_peer_atomic_lock, npt_peer_atomic_unlock,
          [](Pipe &pipe, Side &own, const Remote &remote) {
        Wr first(1, IBV_WR_ATOMIC_FETCH_AND_ADD, {own.buffer.sge(0, 8)});
        Wr second(2, IBV_WR_ATOMIC_FETCH_AND_ADD, {own.buffer.sge(8, 8)});
        first.atomic(remote, 1).then(second.atomic(remote, 10));
        ASSERT_EQ(0, own.qp.post(first));
        expect_more_tries(own);
        pipe.signal();
        own.cq.expect(1, IBV_WC_SUCCESS);
        own.cq.expect(2, IBV_WC_SUCCESS);
        EXPECT_EQ(0u, ((uint64_t*)own.buffer.data)[0]);
        EXPECT_EQ(1u, ((uint64_t*)own.buffer.data)[1]);
        EXPECT_TRUE(pipe.await());
    });
    EXPECT_TRUE(initiator->pipe().await());
    EXPECT_EQ(0u, *(volatile uint64_t*)side->buffer.data);
    resume();
    finish();
    EXPECT_EQ(11u, *(volatile uint64_t*)side->buffer.data);
}

/* --- fork ----------------------------------------------------------------- */

TEST(test_process_fork, child_is_refused_and_parent_works)
{
    Side side;
    Cq cq(side.device);
    Qp qp(side.device, cq, cq);
    qp.connect(qp.address());

    in_child([&] {
        ibv_device_attr attr;
        ibv_wc wc;
        Wr write(1, IBV_WR_RDMA_WRITE, {side.buffer.sge(0, 8)});
        ibv_send_wr *bad;
        EXPECT_LE(-1, npemu_query_device(side.device.context, &attr));
        EXPECT_EQ(nullptr, npemu_alloc_pd(side.device.context));
        EXPECT_EQ(nullptr, npemu_reg_mr(side.device.pd, side.buffer.data, 8,
                                        ACCESS_ALL));
        EXPECT_EQ(nullptr, npemu_create_cq(side.device.context, 1, nullptr,
                                           nullptr, 0));
        write.rdma(side.buffer, 64);
        EXPECT_NE(0, ibv_post_send(qp, &write, &bad));
        EXPECT_GE(0, ibv_poll_cq(cq, 1, &wc));
        EXPECT_NE(0, npemu_dereg_mr(side.buffer.mr));
        EXPECT_NE(0, npemu_destroy_qp(qp));
    });

    Wr write(1, IBV_WR_RDMA_WRITE, {side.buffer.sge(0, 8)});
    ASSERT_EQ(0, qp.post(write.rdma(side.buffer, 64)));
    cq.expect(1);
}

/* With a device of its own the child is a process like any other. */
TEST(test_process_fork, child_opens_the_device_anew)
{
    SKIP_UNLESS(NPT_FORK_WITH_THREADS, "TSan cannot follow such a fork");
    Side side;
    Child child([](Pipe &pipe) {
        Side own;
        connect_over(pipe, own.qp);
        ASSERT_EQ(0, own.qp.post_recv(1, {own.buffer.sge()}));
        own.cq.expect(1);
        EXPECT_TRUE(pattern_holds(own.buffer.data, 20000, 4));
    });
    connect_over(child.pipe(), side.qp);
    side.buffer.fill(4);
    side.send(1, 20000);
    side.cq.expect(1);
    child.join();
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

/* What a thread of the parent does while it forks. Each holds another lock of
 * the process most of the time. */
struct Holder {
    virtual ~Holder() {}
    virtual void once() = 0;
};

struct AttachLock : Holder {
    void once() override { Device device; }
};

/* A handle is searched for among many buffers. */
struct BufferLock : Holder {
    BufferLock() : bufs(2000)
    {
        for (auto &buf : bufs) {
            EXPECT_NE(nullptr, npemu_alloc_buf(device.pd, 1, &buf));
        }
    }
    ~BufferLock() override
    {
        for (auto buf : bufs) {
            npemu_free_buf(buf);
        }
    }
    void once() override { EXPECT_EQ(0, npemu_is_buf((ibv_buf*)&device)); }

    Device                device;
    std::vector<ibv_buf*> bufs;
};

/* The last page is missing, which is searched for page by page. fork() waits
 * for each of these system calls, but not for what is between them. */
struct PinLock : Holder {
    PinLock()
    {
        data = (char*)mmap(nullptr, SIZE, PROT_NONE,
                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        EXPECT_NE(MAP_FAILED, (void*)data);
        EXPECT_EQ(0, munmap(data + SIZE - PAGE, PAGE));
    }
    ~PinLock() override { munmap(data, SIZE - PAGE); }
    void once() override
    {
        EXPECT_EQ(nullptr, npemu_reg_mr(device.pd, data, SIZE, ACCESS_ALL));
        EXPECT_EQ(EFAULT, errno);
    }

    static constexpr size_t PAGE = 4096, SIZE = 64 << 20;

    Device device;
    char   *data;
};

template<typename T> std::unique_ptr<Holder> make_holder()
{
    return std::make_unique<T>();
}

struct Lock {
    const char *name;
    std::unique_ptr<Holder> (*holder)();
};

class test_process_fork_lock : public testing::TestWithParam<Lock> {
};

TEST_P(test_process_fork_lock, child_does_not_inherit_it)
{
    SKIP_UNLESS(NPT_FORK_WITH_THREADS, "TSan cannot follow such a fork");
    constexpr int FORKS = 20;
    auto holder         = GetParam().holder();
    std::atomic<int> held(0);
    std::atomic<bool> stop(false);
    std::thread thread([&] {
        while (!stop) {
            holder->once();
            ++held;
            sched_yield();
        }
    });

    for (int i = 0; (i < FORKS) && !HasFailure(); ++i) {
        int before = held;
        EXPECT_TRUE(wait_until([&] { return held > before; }));
        Child child([](Pipe &) {
            Device device;
            Buffer buffer(device, 8192); /* pins */
            ibv_buf *buf = nullptr;

            EXPECT_NE(nullptr, npemu_alloc_buf(device.pd, 8192, &buf));
            EXPECT_EQ(1, npemu_is_buf(buf));
            npemu_free_buf(buf);
        });
        child.join();
    }
    stop = true;
    thread.join();
}

INSTANTIATE_TEST_SUITE_P(locks, test_process_fork_lock,
                         testing::Values(
                                 Lock{"attaching", make_holder<AttachLock>},
                                 Lock{"buffers", make_holder<BufferLock>},
                                 Lock{"pins", make_holder<PinLock>}),
                         [](const auto &info) {
                             return std::string(info.param.name);
                         });

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
        /* A change of user clears it; a normal program has it set. */
        ASSERT_EQ(0, prctl(PR_SET_DUMPABLE, 1, 0, 0, 0));
        Child target([](Pipe &pipe) {
            Side side;
            connect_over(pipe, side.qp);
            ASSERT_EQ(0, side.qp.post_recv(1, {side.buffer.sge()}));
            ASSERT_EQ(0, prctl(PR_SET_DUMPABLE, 0, 0, 0, 0));
            pipe.send(side.remote());
            EXPECT_TRUE(pipe.await());
        });
        Side side;
        connect_over(target.pipe(), side.qp);
        Remote remote = target.pipe().recv<Remote>();

        expect_line(std::to_string(target.pid()), [&] {
            side.write(1, remote, 8192);
            ibv_wc wc = side.cq.wait();
            EXPECT_NE(IBV_WC_SUCCESS, wc.status);
            EXPECT_NE(NO_COMPLETION, wc.status);
        });
        target.pipe().signal();
        target.join();
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
