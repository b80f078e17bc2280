/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Processes that are killed in the midst of it, at random moments. */

#include "npemu_rank.h"
#include "npemu_segments.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <set>
#include <thread>

#include <dirent.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

using namespace npt;

/*
 * The victim and the survivor write, read, add and send to each other at full
 * speed, on RC and with small and large messages, until the victim is killed.
 */
class Traffic : public Side {
public:
    explicit Traffic(unsigned seed) :
        Side(options(), 512 << 10), random(seed)
    {
    }

    static QpOptions options()
    {
        QpOptions result;
        result.timeout   = 12; /* 16.8 ms */
        result.retry_cnt = 7;
        return result;
    }

    void start()
    {
        for (int i = 0; i < 32; ++i) {
            ASSERT_EQ(0, qp.post_recv(i, {buffer.sge(i * 8192, 8192)}));
        }
    }

    /* False when the connection is broken. */
    bool step(const Remote &peer)
    {
        static const ibv_wr_opcode ops[] = {
                IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_SEND,
                IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_RDMA_WRITE_WITH_IMM};
        ibv_wr_opcode op = ops[random() % 5];
        size_t size      = (random() % 2) ? random() % 200 : random() % 8192;

        if (in_flight < 32) {
            Wr wr(100, op, {buffer.sge(256 << 10, size)});
            if (op == IBV_WR_ATOMIC_FETCH_AND_ADD) {
                wr.list[0].length = 8;
                wr.atomic(Remote{peer.addr + (300 << 10), peer.rkey}, 1);
            } else if (op != IBV_WR_SEND) {
                wr.rdma(Remote{peer.addr + (300 << 10), peer.rkey});
            }
            if (qp.post(wr) != 0) {
                return false;
            }
            ++in_flight;
        }
        ibv_wc wc[16];
        int n = ibv_poll_cq(cq, 16, wc);
        for (int i = 0; i < n; ++i) {
            if (wc[i].status != IBV_WC_SUCCESS) {
                status = wc[i].status;
                return false;
            }
            if (wc[i].wr_id == 100) {
                --in_flight;
            } else if (qp.post_recv(wc[i].wr_id,
                                    {buffer.sge(wc[i].wr_id * 8192, 8192)}) !=
                       0) {
                return false;
            }
        }
        return true;
    }

    int status = 0;

private:
    std::mt19937 random;
    int          in_flight = 0;
};

static void run_until_killed(Pipe &pipe, unsigned seed)
{
    Traffic traffic(seed);

    connect_over(pipe, traffic.qp);
    traffic.start();
    pipe.send(traffic.remote());
    Remote peer = pipe.recv<Remote>();
    pipe.signal();
    while (traffic.step(peer)) {
    }
    /* The survivor broke off first, in a test where it may. */
    pause();
}

static void kill_in_the_midst(int rounds)
{
    unsigned seed = base_seed();
    std::mt19937 random(seed);
    SCOPED_TRACE("NPEMU_TEST_SEED=" + std::to_string(seed));

    for (int round = 0; round < rounds * factor(); ++round) {
        SCOPED_TRACE("round " + std::to_string(round));
        unsigned victim_seed = random(), delay = random() % 3000;
        Child victim([=](Pipe &pipe) { run_until_killed(pipe, victim_seed); });
        Traffic traffic(random());
        connect_over(victim.pipe(), traffic.qp);
        traffic.start();
        victim.pipe().send(traffic.remote());
        Remote peer = victim.pipe().recv<Remote>();
        ASSERT_TRUE(victim.pipe().await());

        auto start = Clock::now();
        while (ms_since(start) * 1000 < delay) {
            ASSERT_TRUE(traffic.step(peer)) << "status " << traffic.status;
        }
        victim.kill();
        start = Clock::now();
        while (traffic.step(peer)) {
            ASSERT_GT(WAIT_MS, ms_since(start));
        }
        EXPECT_EQ(IBV_WC_RETRY_EXC_ERR, traffic.status);
        EXPECT_EQ(IBV_QPS_ERR, traffic.qp.state());
    }
}

TEST(test_kill, peers_get_a_transport_error)
{
    kill_in_the_midst(100);
}

TEST(test_kill, peers_get_a_transport_error_in_the_arena)
{
    Buffer::InArena in_arena;
    kill_in_the_midst(100);
}

/* Receives of one SRQ for messages of less than 9 KiB, behind a page */
class hub {
public:
    static constexpr size_t slot = 9216;

    explicit hub(int count) :
        srq(device, count), memory(device, 4096 + count * slot)
    {
        options.srq     = srq;
        options.recv_wr = 0;
        for (int i = 0; i < count; ++i) {
            EXPECT_EQ(0, post(i));
        }
    }

    int post(uint64_t i)
    {
        return srq.post(i, {memory.sge(4096 + i * slot, slot)});
    }

    /* Polls one message, posts its receive again, and returns the number of the
     * queue pair that it came to; 0 if there is none. */
    uint32_t poll()
    {
        ibv_wc wc;

        if (ibv_poll_cq(recv_cq, 1, &wc) != 1) {
            return 0;
        }
        EXPECT_EQ(IBV_WC_SUCCESS, wc.status);
        EXPECT_EQ(0, post(wc.wr_id));
        return wc.qp_num;
    }

    Device    device;
    Srq       srq;
    Cq        send_cq{device}, recv_cq{device, 256};
    Buffer    memory;
    QpOptions options;
};

/* Sends until it is killed */
static void send_on(Pipe &pipe, unsigned seed)
{
    if (!pipe.await()) {
        return;
    }
    std::mt19937 random(seed);
    Side self;
    connect_over(pipe, self.qp);
    pipe.signal();
    for (;;) {
        self.send(2, random() % 9000);
        ASSERT_TRUE(self.cq.expect(2));
    }
}

/* Takes messages of a process, and kills it after a delay in microseconds */
static void take_and_kill(hub &self, Qp &qp, Child &victim, unsigned delay)
{
    victim.pipe().signal();
    connect_over(victim.pipe(), qp);
    ASSERT_TRUE(victim.pipe().await());
    auto start = Clock::now();
    while (ms_since(start) * 1000 < delay) {
        self.poll();
    }
    victim.kill();
}

/* The end of a queue pair discards completions that have not been polled, and
 * their receives are used up. All that there are come before that of a message
 * which is sent now. */
static void take_the_rest(hub &self)
{
    Cq cq(self.device);
    Qp a(self.device, cq, cq), b(self.device, cq, self.recv_cq, self.options);
    connect(a, b);
    Wr last(1, IBV_WR_SEND, {self.memory.sge(0, 100)});
    ASSERT_EQ(0, a.post(last));
    auto start = Clock::now();
    while (self.poll() != b.qp->qp_num) {
        ASSERT_GT(WAIT_MS, ms_since(start));
    }
    ASSERT_TRUE(cq.expect(1));
}

static std::vector<std::unique_ptr<Child>>
start_victims(int count, std::mt19937 &random)
{
    std::vector<std::unique_ptr<Child>> victims;

    for (int i = 0; i < count; ++i) {
        unsigned seed = random();
        victims.push_back(std::make_unique<Child>(
                [=](Pipe &pipe) { send_on(pipe, seed); }));
    }
    return victims;
}

/* All that were posted must still be there to be used, each once */
static void expect_all_receives(hub &self, int count)
{
    Cq cq(self.device);
    Qp a(self.device, cq, cq), b(self.device, cq, self.recv_cq, self.options);
    connect(a, b);
    uint32_t seen = 0;
    for (int i = 0; i < count; ++i) {
        Wr send(1, IBV_WR_SEND, {self.memory.sge(0, 100)});
        ASSERT_EQ(0, a.post(send));
        cq.expect(1);
        ibv_wc wc = self.recv_cq.wait();
        ASSERT_EQ(IBV_WC_SUCCESS, wc.status);
        EXPECT_EQ(0u, seen & (1u << wc.wr_id)) << "twice: " << wc.wr_id;
        seen |= 1u << wc.wr_id;
    }
    EXPECT_EQ((1u << count) - 1, seen);
}

static pid_t tid_of_npemu()
{
    pid_t found = -1;
    DIR *dir    = opendir("/proc/self/task");

    while (const struct dirent *entry = readdir(dir)) {
        std::ifstream file(std::string("/proc/self/task/") + entry->d_name +
                           "/comm");
        std::string name;
        if (std::getline(file, name) && (name == "npemu")) {
            found = atoi(entry->d_name);
        }
    }
    closedir(dir);
    return found;
}

/* The system call that a stopped thread of the parent is in; -1 if none */
static long syscall_of(pid_t tid)
{
    std::ifstream file("/proc/" + std::to_string(getppid()) + "/task/" +
                       std::to_string(tid) + "/syscall");
    long number = -1;

    file >> number;
    return file ? number : -1;
}

/* Stops a thread of the parent while it waits, so that it holds no lock */
static void stop_waiting(pid_t tid)
{
    auto start = Clock::now();
    int status;

    for (;;) {
        ASSERT_EQ(0, ptrace(PTRACE_SEIZE, tid, 0, 0)) << strerror(errno);
        ASSERT_EQ(0, ptrace(PTRACE_INTERRUPT, tid, 0, 0));
        ASSERT_EQ(tid, waitpid(tid, &status, __WALL));
        if (syscall_of(tid) == SYS_ppoll) {
            return;
        }
        ASSERT_EQ(0, ptrace(PTRACE_DETACH, tid, 0, 0));
        ASSERT_GT(WAIT_MS, ms_since(start));
    }
}

/* Stops a thread of the parent, again and again */
static void trace(Pipe &pipe)
{
    pid_t tid;

    while ((tid = pipe.recv<pid_t>()) != 0) {
        ASSERT_NO_FATAL_FAILURE(stop_waiting(tid));
        pipe.signal();
        ASSERT_TRUE(pipe.await());
        ASSERT_EQ(0, ptrace(PTRACE_DETACH, tid, 0, 0));
        pipe.signal();
    }
}

/* No receive is lost with a sender that dies between taking and filling it.
 * Also if another one has taken its slot and ended, before the owner's thread
 * has heard of either. */
TEST(test_kill, receives_of_unseen_senders_are_not_lost)
{
    unsigned seed = base_seed() + 5;
    std::mt19937 random(seed);
    SCOPED_TRACE("NPEMU_TEST_SEED=" + std::to_string(seed - 5));
    auto victims = start_victims(40 * factor(), random);
    Child tracer(trace);

    prctl(PR_SET_PTRACER, tracer.pid(), 0, 0, 0);
    hub self(8);
    pid_t tid = tid_of_npemu();
    ASSERT_LT(0, tid);
    for (size_t i = 0; i + 1 < victims.size(); i += 2) {
        Qp first(self.device, self.send_cq, self.recv_cq, self.options);
        Qp second(self.device, self.send_cq, self.recv_cq, self.options);
        tracer.pipe().send(tid);
        ASSERT_TRUE(tracer.pipe().await());
        ASSERT_NO_FATAL_FAILURE(take_and_kill(self, first, *victims[i],
                                              random() % 2000));
        ASSERT_NO_FATAL_FAILURE(take_and_kill(self, second, *victims[i + 1],
                                              random() % 2000));
        tracer.pipe().signal();
        ASSERT_TRUE(tracer.pipe().await());
        ASSERT_NO_FATAL_FAILURE(take_the_rest(self));
    }
    tracer.pipe().send(pid_t(0));
    tracer.join();
    expect_all_receives(self, 8);
}

/* All at once, and nothing is left. */
TEST(test_kill, nothing_is_left_of_four_killed_processes)
{
    SKIP_UNLESS(has_own_fabric(), "no IPC namespace of our own");
    unsigned seed = base_seed() + 3;
    std::mt19937 random(seed);
    SCOPED_TRACE("NPEMU_TEST_SEED=" + std::to_string(seed - 3));

    for (int round = 0; round < 10 * factor(); ++round) {
        std::vector<std::unique_ptr<Child>> ranks;
        for (int self = 0; self < 4; ++self) {
            unsigned rank_seed = random();
            ranks.push_back(std::make_unique<Child>([=](Pipe &pipe) {
                Rank rank(self, 4, rank_seed, 1 << 30);
                meet(pipe, rank, 4);
                rank.peers_die = true;
                rank.run();
                pause(); /* one of the others was killed before */
            }));
        }
        introduce(ranks);
        for (auto &rank : ranks) {
            std::this_thread::sleep_for(
                    std::chrono::microseconds(random() % 5000));
            rank->kill();
        }
        EXPECT_TRUE(wait_until([] { return segments().empty(); }));
    }
}

/* What a process of the fabric takes: descriptors, and segments mapped, which
 * may be in several pieces */
static std::pair<size_t, size_t> held()
{
    std::set<std::string> segments;
    std::ifstream maps("/proc/self/maps");
    for (std::string range, rights, offset, device, inode, rest;
         maps >> range >> rights >> offset >> device >> inode &&
         std::getline(maps, rest);) {
        if (rest.find("/SYSV") != std::string::npos) {
            segments.insert(inode);
        }
    }
    return {open_fds().size(), segments.size()};
}

/* Is connected twice, and armed: peers need a descriptor of its channel */
static void be_connected(Pipe &pipe)
{
    Side side;
    Qp without(side.device, side.cq, side.cq);

    connect_over(pipe, side.qp);
    connect_over(pipe, without);
    ASSERT_EQ(0, side.qp.post_recv(1, {side.buffer.sge()}));
    ASSERT_EQ(0, ibv_req_notify_cq(side.cq, 0));
    pipe.signal();
    pipe.await();
}

/* Its peer keeps nothing of it, though its queue pairs stay connected. What
 * waits on one, and what is posted later, fails at once. */
static void expect_release(Device &device, Cq &cq, Buffer &buffer)
{
    Child victim(be_connected);
    Qp idle(device, cq, cq), waits(device, cq, cq);
    auto before = held();

    connect_over(victim.pipe(), idle);
    connect_over(victim.pipe(), waits);
    ASSERT_TRUE(victim.pipe().await());
    Wr taken(1, IBV_WR_SEND, {buffer.sge()});
    Wr not_taken(2, IBV_WR_SEND, {buffer.sge()});
    ASSERT_EQ(0, idle.post(taken));
    ASSERT_TRUE(cq.expect(1));
    ASSERT_EQ(0, waits.post(not_taken));
    EXPECT_LT(before.first, held().first);
    EXPECT_EQ(before.second + 1, held().second);

    victim.kill();
    ASSERT_TRUE(wait_until([&] { return held() == before; }))
            << held().first << " descriptors, " << before.first
            << " before; " << held().second << " segments, " << before.second
            << " before";
    EXPECT_TRUE(cq.expect(2, IBV_WC_RETRY_EXC_ERR));
    EXPECT_EQ(IBV_QPS_RTS, idle.state());
    Wr late(3, IBV_WR_SEND, {buffer.sge()});
    ASSERT_EQ(0, idle.post(late));
    EXPECT_TRUE(cq.expect(3, IBV_WC_RETRY_EXC_ERR));
    EXPECT_EQ(IBV_QPS_ERR, idle.state());
}

TEST(test_kill, peers_release_what_they_hold)
{
    SKIP_UNLESS(NPT_FORK_WITH_THREADS, "TSan permits no such fork");
    Device device;
    Cq cq(device);
    Buffer buffer(device, 4096);

    for (int round = 0; round < 3 * factor(); ++round) {
        ASSERT_NO_FATAL_FAILURE(expect_release(device, cq, buffer)) << round;
    }
}
