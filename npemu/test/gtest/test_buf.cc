/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * Buffers in the arena (ibv_alloc_buf): peers reach them without a system call,
 * by every operation, and as strictly as other memory.
 */

#include "npemu_test.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <future>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

using namespace npt;

namespace {

constexpr size_t PAGE = 4096;
constexpr size_t SIZE = 256 << 10;

/* As Buffer, from npemu_alloc_buf() or by mmap() */
class Memory {
public:
    Memory(Device &device, bool in_arena, size_t length = SIZE,
           int access = ACCESS_ALL) : length(length)
    {
        if (in_arena) {
            data = (uint8_t*)npemu_alloc_buf(device.pd, length, &m_buf);
            EXPECT_NE(nullptr, data) << strerror(errno);
            mr = npemu_reg_buf_mr(device.pd, m_buf, data, length, access);
        } else {
            data = (uint8_t*)mmap(nullptr, length, PROT_READ | PROT_WRITE,
                                  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            mr = npemu_reg_mr(device.pd, data, length, access);
        }
        EXPECT_NE(nullptr, mr) << strerror(errno);
    }

    ~Memory()
    {
        dereg();
        if (m_buf != nullptr) {
            npemu_free_buf(m_buf);
        } else {
            munmap(data, length);
        }
    }

    Memory(const Memory &) = delete;

    void dereg()
    {
        if (mr != nullptr) {
            EXPECT_EQ(0, npemu_dereg_mr(mr));
        }
        mr = nullptr;
    }

    ibv_sge sge(size_t offset, size_t size) const
    {
        return {(uintptr_t)data + offset, (uint32_t)size, mr->lkey};
    }
    Remote remote(size_t offset = 0) const
    {
        return {(uintptr_t)data + offset, mr->rkey};
    }

    uint8_t *data;
    size_t   length;
    ibv_mr  *mr;

private:
    ibv_buf *m_buf = nullptr;
};

/* Calls that @a body makes to copy memory of another process */
uint64_t copy_calls(Device &device, const std::function<void()> &body)
{
    uint64_t before = npemu_copy_calls(device.context);

    body();
    return npemu_copy_calls(device.context) - before;
}

/* --- the verbs ------------------------------------------------------------*/

class test_buf : public testing::Test {
protected:
    void SetUp() override { ASSERT_TRUE(device.ok()); }

    Device device;
};

TEST_F(test_buf, lives_as_long_as_its_registrations)
{
    ibv_pd *pd    = npemu_alloc_pd(device.context);
    ibv_buf *buf  = nullptr;
    uint8_t *data = (uint8_t*)npemu_alloc_buf(pd, SIZE, &buf);

    EXPECT_EQ(EBUSY, npemu_dealloc_pd(pd));
    ibv_mr *mr = npemu_reg_mr(pd, data + 1, SIZE - 1, ACCESS_ALL);
    ASSERT_NE(nullptr, mr);
    npemu_free_buf(buf);
    npemu_free_buf(buf); /* no handle any more: ignored */

    /* Other buffers do not get its memory */
    memset(data, 0x77, SIZE);
    {
        std::vector<std::unique_ptr<Memory>> others;

        for (int i = 0; i < 4; ++i) {
            others.push_back(std::make_unique<Memory>(device, true));
            memset(others.back()->data, i, SIZE);
        }
    }
    EXPECT_EQ((ptrdiff_t)SIZE, std::count(data, data + SIZE, 0x77));
    EXPECT_EQ(0, npemu_dereg_mr(mr));
    EXPECT_EQ(0, npemu_dealloc_pd(pd));
}

TEST_F(test_buf, pins_what_is_registered)
{
    SKIP_UNLESS(NPT_MLOCK_WORKS, "a sanitizer makes mlock() do nothing");
    long before = proc_status_kb("VmLck");
    {
        Memory memory(device, true);
        EXPECT_EQ(before + (long)(SIZE >> 10), proc_status_kb("VmLck"));
    }
    EXPECT_EQ(before, proc_status_kb("VmLck"));
}

/* --- from another process -------------------------------------------------*/

/* What the peer did, and how many system calls that took */
struct Done {
    ibv_wc_status status;
    uint64_t      calls;
};

/* The peer's memory: payload, and a place for what it fetches */
constexpr size_t PLACE = SIZE;

/* A process that executes what it is told, from and to private memory */
class Initiator {
public:
    struct Order {
        ibv_wr_opcode opcode; /* IBV_WR_BIND_MW: no more */
        uint32_t      length;
        uint32_t      seed;
        Remote        remote;
    };

    Initiator() : m_child([](Pipe &pipe) { serve(pipe); }) {}

    void connect(Device &device)
    {
        m_cq = std::make_unique<Cq>(device);
        m_qp = std::make_unique<Qp>(device, *m_cq, *m_cq);
        connect_over(m_child.pipe(), *m_qp);
    }

    Done run(ibv_wr_opcode opcode, size_t length, uint32_t seed,
             const Remote &remote = {})
    {
        m_child.pipe().send(Order{opcode, (uint32_t)length, seed, remote});
        return m_child.pipe().recv<Done>();
    }

    void dismiss()
    {
        m_child.pipe().send(Order{IBV_WR_BIND_MW, 0, 0, {}});
        m_child.join();
        m_qp.reset();
        m_cq.reset();
    }

    Qp &qp() { return *m_qp; }
    Cq &cq() { return *m_cq; }

private:
    static void serve(Pipe &pipe)
    {
        Device device;
        Cq cq(device);
        Qp qp(device, cq, cq);
        Memory memory(device, false, 2 * SIZE);
        Order order;

        connect_over(pipe, qp);
        while (pipe.recv_bytes(&order, sizeof(order)) &&
               (order.opcode != IBV_WR_BIND_MW)) {
            Done done = {};
            int fetch = (order.opcode == IBV_WR_RDMA_READ) ||
                        (order.opcode >= IBV_WR_ATOMIC_CMP_AND_SWP);
            /* In two pieces, if there is enough */
            size_t first = (order.length > 100) ? order.length / 3 :
                                                  order.length;
            size_t place = fetch ? PLACE : 0;
            std::vector<ibv_sge> list = {memory.sge(place, first)};

            if (order.length > first) {
                list.push_back(memory.sge(place + first,
                                          order.length - first));
            }
            pattern_fill(memory.data, order.length, order.seed);
            Wr wr(1, order.opcode, list);
            if (order.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
                wr.atomic(order.remote, order.seed);
            } else if (order.opcode != IBV_WR_SEND) {
                wr.rdma(order.remote);
            }
            done.calls = copy_calls(device, [&] {
                EXPECT_EQ(0, qp.post(wr));
                done.status = cq.wait().status;
            });
            if ((done.status == IBV_WC_SUCCESS) &&
                (order.opcode == IBV_WR_RDMA_READ)) {
                EXPECT_TRUE(pattern_holds(memory.data + PLACE, order.length,
                                          order.seed));
            }
            pipe.send(done);
        }
    }

    Child               m_child;
    std::unique_ptr<Cq> m_cq;
    std::unique_ptr<Qp> m_qp;
};

class test_buf_peer : public testing::Test {
protected:
    void SetUp() override
    {
        device = std::make_unique<Device>();
        ASSERT_TRUE(device->ok());
        peer.connect(*device);
    }

    void TearDown() override
    {
        if (!HasFatalFailure()) {
            peer.dismiss();
        }
    }

    /* The peer's SEND of that many bytes arrives in @a list */
    Done send(const std::vector<ibv_sge> &list, size_t length, uint32_t seed)
    {
        EXPECT_EQ(0, peer.qp().post_recv(7, list));
        Done done = peer.run(IBV_WR_SEND, length, seed);
        ibv_wc wc = peer.cq().wait();

        EXPECT_EQ(IBV_WC_SUCCESS, done.status);
        EXPECT_EQ(IBV_WC_SUCCESS, wc.status);
        EXPECT_EQ(length, wc.byte_len);
        return done;
    }

    Initiator               peer; /* first: it forks */
    std::unique_ptr<Device> device;
};

constexpr size_t SIZES[] = {1, 64, 65, 1000, 1024, 1025, 4096, 8192, 8448,
                            8449, 65536, 65537, 200000};

TEST_F(test_buf_peer, send_makes_no_system_call)
{
    Memory memory(*device, true);
    uint32_t seed = 0;

    for (size_t length : SIZES) {
        memset(memory.data, 0, SIZE);
        Done done = send({memory.sge(5, length + 1)}, length, ++seed);

        EXPECT_EQ(0u, done.calls) << length;
        EXPECT_TRUE(pattern_holds(memory.data + 5, length, seed));
        EXPECT_EQ(0, memory.data[4]);
        EXPECT_EQ(0, memory.data[5 + length]);
    }
}

TEST_F(test_buf_peer, send_to_pieces)
{
    Memory memory(*device, true), other(*device, true, 3 * PAGE);
    std::vector<ibv_sge> list = {memory.sge(1, 5000), other.sge(7, 10001),
                                 memory.sge(9000, 50000)};
    std::vector<uint8_t> all;
    Done done = send(list, 60000, 3);

    EXPECT_EQ(0u, done.calls);
    for (auto &sge : list) {
        auto *data = (uint8_t*)(uintptr_t)sge.addr;
        all.insert(all.end(), data, data + sge.length);
    }
    EXPECT_TRUE(pattern_holds(all.data(), 60000, 3));
}

TEST_F(test_buf_peer, rdma_makes_no_system_call)
{
    Memory memory(*device, true), other(*device, false);
    uint32_t seed = 10;

    for (size_t length : SIZES) {
        for (auto *target : {&memory, &other}) {
            uint64_t calls = (target == &memory) ? 0 :
                                                   (length + 65535) / 65536;
            Done done      = peer.run(IBV_WR_RDMA_WRITE, length, ++seed,
                                      target->remote(3));
            EXPECT_EQ(IBV_WC_SUCCESS, done.status);
            EXPECT_EQ(calls, done.calls) << length;
            EXPECT_TRUE(pattern_holds(target->data + 3, length, seed));

            pattern_fill(target->data + 3, length, ++seed);
            done = peer.run(IBV_WR_RDMA_READ, length, seed, target->remote(3));
            EXPECT_EQ(IBV_WC_SUCCESS, done.status);
            EXPECT_EQ(calls, done.calls) << length;
        }
    }
    auto *word = (uint64_t*)memory.data;
    *word      = 40;
    Done done  = peer.run(IBV_WR_ATOMIC_FETCH_AND_ADD, 8, 2, memory.remote());
    EXPECT_EQ(IBV_WC_SUCCESS, done.status);
    EXPECT_EQ(0u, done.calls);
    EXPECT_EQ(42u, *word);
}

/* --- as strict as other memory --------------------------------------------*/

/* What the peer may not do: each is a connection of its own, which ends. */
struct Forbidden {
    const char   *name;
    ibv_wr_opcode opcode;
    int           access;
    ptrdiff_t     offset; /* of the first byte, in an MR of SIZE bytes */
    size_t        length;
    uint32_t      key;    /* xored */
};

void PrintTo(const Forbidden &forbidden, std::ostream *os)
{
    *os << forbidden.name;
}

class test_buf_forbidden :
        public test_buf_peer, public testing::WithParamInterface<Forbidden> {
};

TEST_P(test_buf_forbidden, is_refused_and_changes_nothing)
{
    const Forbidden &how = GetParam();
    /* Neighbours in the arena */
    Memory before(*device, true), memory(*device, true, SIZE, how.access),
            after(*device, true);

    for (auto *it : {&before, &memory, &after}) {
        memset(it->data, 0x5a, SIZE);
    }
    Remote remote = memory.remote(how.offset);
    remote.rkey  ^= how.key;
    Done done     = peer.run(how.opcode, how.length, 1, remote);
    EXPECT_EQ(IBV_WC_REM_ACCESS_ERR, done.status);
    EXPECT_EQ(0u, done.calls);
    for (auto *it : {&before, &memory, &after}) {
        EXPECT_EQ((ptrdiff_t)SIZE,
                  std::count(it->data, it->data + SIZE, 0x5a));
    }
}

INSTANTIATE_TEST_SUITE_P(
        buf, test_buf_forbidden,
        testing::Values(
                Forbidden{"past_the_end", IBV_WR_RDMA_WRITE, ACCESS_ALL,
                          SIZE - 100, 101, 0},
                Forbidden{"before_the_start", IBV_WR_RDMA_WRITE, ACCESS_ALL,
                          -1, 100, 0},
                Forbidden{"the_next_buffer", IBV_WR_RDMA_WRITE, ACCESS_ALL,
                          SIZE, 100, 0},
                Forbidden{"read_past_the_end", IBV_WR_RDMA_READ, ACCESS_ALL,
                          1, SIZE, 0},
                Forbidden{"other_key", IBV_WR_RDMA_WRITE, ACCESS_ALL, 0, 9000,
                          1 << 20},
                Forbidden{"write_of_read_only", IBV_WR_RDMA_WRITE,
                          IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ, 0,
                          9000, 0},
                Forbidden{"read_of_local", IBV_WR_RDMA_READ,
                          IBV_ACCESS_LOCAL_WRITE, 0, 9000, 0}),
        [](const auto &info) { return std::string(info.param.name); });

TEST_F(test_buf_peer, revoked_key_is_refused)
{
    Memory memory(*device, true);
    Remote remote = memory.remote();

    EXPECT_EQ(IBV_WC_SUCCESS,
              peer.run(IBV_WR_RDMA_WRITE, 9000, 1, remote).status);
    memory.dereg();
    memset(memory.data, 0x5a, SIZE);
    EXPECT_EQ(IBV_WC_REM_ACCESS_ERR,
              peer.run(IBV_WR_RDMA_WRITE, 9000, 2, remote).status);
    EXPECT_EQ((ptrdiff_t)SIZE, std::count(memory.data, memory.data + SIZE,
                                          0x5a));
}

/* The receive was posted while its key was valid. */
TEST_F(test_buf_peer, receive_with_a_revoked_key_fails)
{
    Memory memory(*device, true);

    EXPECT_EQ(0, peer.qp().post_recv(7, {memory.sge(0, 9000)}));
    memory.dereg();
    memset(memory.data, 0x5a, SIZE);
    EXPECT_EQ(IBV_WC_REM_OP_ERR, peer.run(IBV_WR_SEND, 9000, 1).status);
    EXPECT_EQ(IBV_WC_LOC_PROT_ERR, peer.cq().wait().status);
    EXPECT_EQ((ptrdiff_t)SIZE, std::count(memory.data, memory.data + SIZE,
                                          0x5a));
}

/* --- fork -----------------------------------------------------------------*/

TEST_F(test_buf_peer, forked_child_has_no_part_in_it)
{
    ibv_buf *buf  = nullptr;
    auto *data    = (uint8_t*)npemu_alloc_buf(device->pd, SIZE, &buf);
    ibv_mr *mr    = npemu_reg_mr(device->pd, data, SIZE, ACCESS_ALL);
    ASSERT_NE(nullptr, mr);

    in_child([&] {
        unsigned char resident;
        ibv_buf *mine = nullptr;

        EXPECT_EQ(-1, mincore(data, PAGE, &resident)) << "it is mapped";
        EXPECT_EQ(nullptr, npemu_alloc_buf(device->pd, SIZE, &mine));
        EXPECT_EQ(EPERM, errno);
        npemu_free_buf(buf);
    });
    Done done = peer.run(IBV_WR_RDMA_WRITE, 70000, 5,
                         {(uintptr_t)data, mr->rkey});
    EXPECT_EQ(IBV_WC_SUCCESS, done.status);
    EXPECT_TRUE(pattern_holds(data, 70000, 5));
    EXPECT_EQ(0, npemu_dereg_mr(mr));
    npemu_free_buf(buf);
}

/* --- a peer that is stopped or killed while it copies ---------------------*/

/* Three copies, and the page that stops the first one */
constexpr size_t LONG = 192 << 10, STOP = 32 << 10;

uint8_t *trap_page;
int      trap_signal;

/* The source of a copy is not there: the copy stands still. */
void trap(int, siginfo_t *info, void *)
{
    auto *address = (uint8_t*)info->si_addr;

    if ((address < trap_page) || (address >= trap_page + PAGE)) {
        abort();
    }
    raise(trap_signal);
    mprotect(trap_page, PAGE, PROT_READ | PROT_WRITE);
}

/* The peer writes to a buffer, and gets a signal in the midst of a copy. */
class test_buf_held : public testing::Test {
protected:
    void hold(int signal)
    {
        peer = std::make_unique<Child>([signal](Pipe &pipe) {
            Device own;
            Cq cq(own);
            Qp qp(own, cq, cq);
            Memory source(own, false, LONG);
            struct sigaction action = {};

            memset(source.data, 0x33, LONG);
            connect_over(pipe, qp);
            Wr write(1, IBV_WR_RDMA_WRITE, {source.sge(0, LONG)});
            write.rdma(pipe.recv<Remote>());
            trap_page           = source.data + STOP;
            trap_signal         = signal;
            action.sa_sigaction = trap;
            action.sa_flags     = SA_SIGINFO | SA_NODEFER;
            sigaction(SIGSEGV, &action, nullptr);
            mprotect(trap_page, PAGE, PROT_NONE);
            EXPECT_EQ(0, qp.post(write));
            pipe.send(cq.wait().status);
            EXPECT_TRUE(pipe.await());
        });
        device = std::make_unique<Device>();
        ASSERT_TRUE(device->ok());
        cq     = std::make_unique<Cq>(*device);
        qp     = std::make_unique<Qp>(*device, *cq, *cq);
        memory = std::make_unique<Memory>(*device, true, LONG);
        connect_over(peer->pipe(), *qp);
        peer->pipe().send(memory->remote());

        siginfo_t info;
        ASSERT_EQ(0, waitid(P_PID, peer->pid(), &info,
                            WSTOPPED | WEXITED | WNOWAIT));
        /* It is in the midst of it */
        EXPECT_EQ(0, memory->data[LONG - 1]);
    }

    std::unique_ptr<Child>  peer;
    std::unique_ptr<Device> device;
    std::unique_ptr<Cq>     cq;
    std::unique_ptr<Qp>     qp;
    std::unique_ptr<Memory> memory;
};

/* Nobody can stop what it will write: the end of the registration waits. */
TEST_F(test_buf_held, stopped_peer_is_waited_for)
{
    hold(SIGSTOP);
    auto done = std::async(std::launch::async, [&] {
        memory->dereg();
        /* All that is ever written has been */
        return memory->data[LONG - 1];
    });
    EXPECT_EQ(std::future_status::timeout,
              done.wait_for(std::chrono::milliseconds(100)));
    ASSERT_EQ(0, kill(peer->pid(), SIGCONT));
    EXPECT_EQ(0x33, done.get());
    EXPECT_EQ(IBV_WC_SUCCESS, peer->pipe().recv<ibv_wc_status>());
    EXPECT_EQ(IBV_QPS_RTS, qp->state());
    peer->pipe().signal();
    peer->join();
}

/* A dead one writes nothing, and no one waits. */
TEST_F(test_buf_held, killed_peer_is_not_waited_for)
{
    hold(SIGKILL);
    memory->dereg();
    memset(memory->data, 0x55, LONG);
    peer->kill();
    EXPECT_EQ((ptrdiff_t)LONG,
              std::count(memory->data, memory->data + LONG, 0x55));
}

} // namespace
