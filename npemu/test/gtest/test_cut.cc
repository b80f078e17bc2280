/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * Processes that are stopped in the middle of a work request. A process that is
 * not connected to this one, and a peer that is not in our memory, cause no
 * delay. A peer in our memory is waited for, then cut off, and accesses nothing
 * when it continues.
 *
 * Gates hold the processes at the point where they are stopped.
 */

#include "internals.h"
#include "npemu_rank.h"
#include "npemu_region.h"

#include <algorithm>
#include <csignal>
#include <future>
#include <list>
#include <sys/wait.h>

using namespace npt;

namespace {

constexpr size_t PAGES = 16;
constexpr size_t SIZE  = PAGES * PAGE;

/* Before a process is cut off in these tests. In tests that must not reach the
 * limit it is so long that no busy machine does. */
constexpr int LIMIT_MS   = 800;
constexpr int PATIENT_MS = WAIT_MS / 2;
constexpr int SOON_MS    = PATIENT_MS / 2;

constexpr uint8_t OLD = 0x11, NEW = 0x22, SENT = 0x33;

/* SIGSTOP, and it has stopped */
void stop(pid_t pid)
{
    siginfo_t info;

    ASSERT_EQ(0, kill(pid, SIGSTOP));
    ASSERT_EQ(0, waitid(P_PID, pid, &info, WSTOPPED | WNOWAIT));
}

void stop_grandchild(pid_t pid)
{
    std::string path = "/proc/" + std::to_string(pid) + "/stat";

    ASSERT_EQ(0, kill(pid, SIGSTOP));
    ASSERT_TRUE(wait_until([&] {
        char text[256] = {};
        FILE *file     = fopen(path.c_str(), "r");
        size_t length  = fread(text, 1, sizeof(text) - 1, file);

        fclose(file);
        return (length > 0) && strstr(text, ") T ");
    }));
}

/* How long a drain, and the end of a registration, take this process */
double wait_for_all(Device &device)
{
    Buffer plain(device, PAGE);
    auto start = Clock::now();

    npemu_iommu_drain(device.context);
    plain.dereg();
    {
        Pair pair(device); /* destroyed as well */
    }
    return ms_since(start);
}

class test_cut : public testing::Test {
protected:
    test_cut() { set_limit(LIMIT_MS); }

    /* For devices that are opened from now on, children's as well */
    void set_limit(int ms)
    {
        m_limit.reset();
        m_limit = std::make_unique<Env>("NPEMU_CUT_OFF_MS", std::to_string(ms));
    }

private:
    std::unique_ptr<Env> m_limit;
};

/* --- those that are not in our memory -------------------------------------*/

TEST_F(test_cut, stopped_unrelated_process_delays_no_drain)
{
    set_limit(PATIENT_MS);
    Child job([](Pipe &pipe) {
        Servant servant(SIZE);
        Device device;
        Shared memory(SIZE);
        Region region(device, memory.data, SIZE);

        region.set_all();
        servant.connect(device);
        npemu_gate_arm(region.iommu.header, NPEMU_GATE_CHUNK_CHECKED,
                       NPEMU_GATE_ANY_PAGE);
        servant.place({IBV_WR_RDMA_WRITE, region.remote(region.w, 0), 0, SIZE,
                       0, 0});
        ASSERT_EQ(0, npemu_gate_wait(region.iommu.header,
                                     NPEMU_GATE_CHUNK_CHECKED, WAIT_MS));
        stop_grandchild(servant.pid());
        pipe.signal();
        EXPECT_TRUE(pipe.await());
        ASSERT_EQ(0, kill(servant.pid(), SIGCONT));
        npemu_gate_release(region.iommu.header, NPEMU_GATE_CHUNK_CHECKED);
        /* It has not been cut off, either */
        EXPECT_EQ(IBV_WC_SUCCESS, servant.result());
        servant.dismiss();
    });
    Device device;
    ASSERT_TRUE(device.ok());

    ASSERT_TRUE(job.pipe().await());
    EXPECT_LT(wait_for_all(device), SOON_MS);
    job.pipe().signal();
    job.join();
}

/* It is connected to us, but what it was doing is within itself. */
TEST_F(test_cut, stopped_peer_in_its_own_memory_delays_no_drain)
{
    set_limit(PATIENT_MS);
    Child peer([](Pipe &pipe) {
        Device device;
        Cq cq(device);
        Qp qp(device, cq, cq);
        Pair own(device);
        Buffer buffer(device, SIZE);
        Shared memory(SIZE);
        Region region(device, memory.data, SIZE);
        Wr loop(1, IBV_WR_RDMA_WRITE, {buffer.sge()});

        connect_over(pipe, qp);
        region.set_all();
        npemu_gate_arm(region.iommu.header, NPEMU_GATE_CHUNK_CHECKED,
                       NPEMU_GATE_ANY_PAGE);
        auto done = std::async(std::launch::async, [&] {
            return own.a.post(loop.rdma(region.remote(region.w, 0)));
        });
        ASSERT_EQ(0, npemu_gate_wait(region.iommu.header,
                                     NPEMU_GATE_CHUNK_CHECKED, WAIT_MS));
        pipe.signal();
        EXPECT_TRUE(pipe.await());
        npemu_gate_release(region.iommu.header, NPEMU_GATE_CHUNK_CHECKED);
        EXPECT_EQ(0, done.get());
        EXPECT_TRUE(own.cq_a.expect(1));

        Remote remote = pipe.recv<Remote>();
        Wr write(2, IBV_WR_RDMA_WRITE, {buffer.sge()});
        EXPECT_EQ(0, qp.post(write.rdma(remote)));
        EXPECT_TRUE(cq.expect(2));
        pipe.signal();
        EXPECT_TRUE(pipe.await());
    });
    Device device;
    ASSERT_TRUE(device.ok());
    Cq cq(device);
    Qp qp(device, cq, cq);
    Buffer buffer(device, SIZE);

    connect_over(peer.pipe(), qp);
    ASSERT_TRUE(peer.pipe().await());
    stop(peer.pid());
    EXPECT_LT(wait_for_all(device), SOON_MS);
    ASSERT_EQ(0, kill(peer.pid(), SIGCONT));
    peer.pipe().signal();
    peer.pipe().send(Remote{buffer.at(0), buffer.mr->rkey});
    EXPECT_TRUE(peer.pipe().await());
    EXPECT_EQ(IBV_QPS_RTS, qp.state());
    peer.pipe().signal();
    peer.join();
}

/* --- those that close their device ----------------------------------------*/

/* Its threads are alive, and finish what they are doing. */
TEST_F(test_cut, drain_waits_for_a_peer_that_closes)
{
    set_limit(PATIENT_MS);
    Child peer([](Pipe &pipe) {
        Device device;
        Cq cq(device);
        Qp qp(device, cq, cq);
        Buffer buffer(device, SIZE);
        Wr write(1, IBV_WR_RDMA_WRITE, {buffer.sge()});

        connect_over(pipe, qp);
        Remote remote = pipe.recv<Remote>();
        auto done     = std::async(std::launch::async, [&] {
            return qp.post(write.rdma(remote));
        });
        EXPECT_TRUE(pipe.await());
        npt_begin_close(device.context);
        pipe.signal();
        EXPECT_EQ(0, done.get());
    });
    Device device;
    ASSERT_TRUE(device.ok());
    Cq cq(device);
    Qp qp(device, cq, cq);
    Shared memory(SIZE);
    Region region(device, memory.data, SIZE);

    region.set_all();
    connect_over(peer.pipe(), qp);
    npemu_gate_arm(region.iommu.header, NPEMU_GATE_CHUNK_CHECKED,
                   NPEMU_GATE_ANY_PAGE);
    peer.pipe().send(region.remote(region.w, 0));
    ASSERT_EQ(0, npemu_gate_wait(region.iommu.header, NPEMU_GATE_CHUNK_CHECKED,
                                 WAIT_MS));
    peer.pipe().signal();
    ASSERT_TRUE(peer.pipe().await());
    auto drained = std::async(std::launch::async, [&] {
        npemu_iommu_drain(device.context);
    });
    EXPECT_EQ(std::future_status::timeout,
              drained.wait_for(std::chrono::milliseconds(3000)));
    npemu_gate_release(region.iommu.header, NPEMU_GATE_CHUNK_CHECKED);
    drained.wait();
    peer.join();
}

/* It goes on without the device. */
TEST_F(test_cut, drain_ignores_a_process_that_has_closed)
{
    set_limit(PATIENT_MS);
    Child peer([](Pipe &pipe) {
        {
            Device device;
            Cq cq(device);
            Qp qp(device, cq, cq);

            connect_over(pipe, qp);
            EXPECT_TRUE(pipe.await());
        }
        pipe.signal();
        EXPECT_TRUE(pipe.await());
    });
    Device device;
    ASSERT_TRUE(device.ok());
    Cq cq(device);
    Qp qp(device, cq, cq);
    uint32_t gen;

    connect_over(peer.pipe(), qp);
    void *slot = npt_peer_slot(qp.qp, &gen);
    EXPECT_EQ(0, npt_slot_is_gone(slot, gen));
    peer.pipe().signal();
    ASSERT_TRUE(peer.pipe().await());
    auto start = Clock::now();
    EXPECT_EQ(1, npt_slot_is_gone(slot, gen));
    EXPECT_LT(ms_since(start), SOON_MS);
    peer.pipe().signal();
    peer.join();
}

/* --- one that is ----------------------------------------------------------*/

/* What the peer is stopped in. */
struct Held {
    const char   *name;
    ibv_wr_opcode opcode;
};

void PrintTo(const Held &held, std::ostream *os)
{
    *os << held.name;
}

class test_cut_peer :
        public test_cut, public testing::WithParamInterface<Held> {
protected:
    test_cut_peer() : servant(SIZE)
    {
        data = (uint8_t*)mmap(nullptr, SIZE, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        memset(data, OLD, SIZE);
        memset(servant.shared.data, SENT, SIZE);
    }
    ~test_cut_peer() override
    {
        region.reset();
        device.reset();
        munmap(data, SIZE);
    }

    /* The peer has looked at the states, and moved nothing. */
    void hold_peer()
    {
        device = std::make_unique<Device>();
        ASSERT_TRUE(device->ok());
        region = std::make_unique<Region>(*device, data, SIZE);
        region->set_all();
        servant.connect(*device);
        npemu_gate_arm(region->iommu.header, NPEMU_GATE_CHUNK_CHECKED,
                       NPEMU_GATE_ANY_PAGE);
        servant.place({GetParam().opcode,
                       region->remote(is_read() ? region->r : region->w, 0), 0,
                       is_atomic() ? 8u : (uint32_t)SIZE, 1, 0});
        ASSERT_EQ(0, npemu_gate_wait(region->iommu.header,
                                     NPEMU_GATE_CHUNK_CHECKED, WAIT_MS));
        stop(servant.pid());
    }

    /* What a memory hook does around munmap(), and other memory in its place.
     * Returns how long it waited. */
    double replace_memory()
    {
        auto start = Clock::now();

        EXPECT_EQ(PAGES, region->evict(0, PAGES));
        npemu_iommu_drain(device->context);
        double ms = ms_since(start);
        EXPECT_EQ(0, munmap(data, SIZE));
        EXPECT_EQ(data, mmap(data, SIZE, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE,
                             -1, 0));
        memset(data, NEW, SIZE);
        return ms;
    }

    void go_on()
    {
        /* First this: it passes the gate as soon as it runs */
        npemu_gate_release(region->iommu.header, NPEMU_GATE_CHUNK_CHECKED);
        ASSERT_EQ(0, kill(servant.pid(), SIGCONT));
    }

    /* The new memory is unchanged, and no peer knows it. */
    void expect_untouched()
    {
        EXPECT_EQ(SIZE, (size_t)std::count(data, data + SIZE, NEW));
        EXPECT_EQ(0, std::count(servant.shared.data,
                                servant.shared.data + SIZE, NEW));
    }

    bool is_read() const { return GetParam().opcode == IBV_WR_RDMA_READ; }
    bool is_atomic() const
    {
        return GetParam().opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
    }

    Servant                 servant;
    std::unique_ptr<Device> device;
    std::unique_ptr<Region> region;
    uint8_t                *data;
};

TEST_P(test_cut_peer, is_cut_off_and_accesses_nothing_later)
{
    hold_peer();
    double ms = replace_memory();
    EXPECT_GE(ms, LIMIT_MS / 2);
    EXPECT_LT(ms, WAIT_MS);
    EXPECT_EQ(IBV_QPS_ERR, servant.qp().state());
    EXPECT_EQ(IBV_EVENT_QP_FATAL, take_async(*device).type);

    /* Once is enough: what it has begun does no harm. A drain that waits for it
     * takes the limit each time; one that does not wait may be delayed. */
    EXPECT_TRUE(wait_until([&] {
        auto start = Clock::now();
        npemu_iommu_drain(device->context);
        return ms_since(start) < LIMIT_MS / 2;
    })) << "each drain waits";

    go_on();
    EXPECT_EQ(IBV_WC_RETRY_EXC_ERR, servant.result());
    expect_untouched();
    servant.kill();
}

/* All that it was connected to goes while it is stopped. */
TEST_P(test_cut_peer, resumes_after_its_connections_are_gone)
{
    hold_peer();
    uint64_t queue = npt_qp_receives(servant.qp());
    auto start     = Clock::now();
    servant.disconnect();
    EXPECT_LT(ms_since(start), WAIT_MS);

    /* Nothing of it is used again while the peer may write to it */
    {
        Cq cq(*device);
        Qp qp(*device, cq, cq);
        EXPECT_NE(queue, npt_qp_receives(qp));
    }
    replace_memory();
    go_on();
    EXPECT_EQ(IBV_WC_RETRY_EXC_ERR, servant.result());
    expect_untouched();

    /* But then it is */
    Cq cq(*device);
    std::list<Qp> qps;
    bool is_back = false;
    for (int i = 0; (i < 8) && !is_back; ++i) {
        qps.emplace_back(*device, cq, cq);
        is_back = (npt_qp_receives(qps.back()) == queue);
    }
    EXPECT_TRUE(is_back);
    servant.kill();
}

/* One that goes on in time is not. */
TEST_P(test_cut_peer, is_not_cut_off_if_it_resumes_in_time)
{
    set_limit(PATIENT_MS);
    hold_peer();
    auto done = std::async(std::launch::async, [&] {
        region->evict(0, PAGES);
        npemu_iommu_drain(device->context);
        uint8_t first = *(volatile uint8_t*)data;
        return first;
    });
    EXPECT_EQ(std::future_status::timeout,
              done.wait_for(std::chrono::milliseconds(50)));
    go_on();
    uint8_t first = done.get();
    EXPECT_EQ(IBV_WC_SUCCESS, servant.result());
    EXPECT_EQ((GetParam().opcode == IBV_WR_RDMA_WRITE) ? SENT : OLD, first);
    EXPECT_EQ(IBV_QPS_RTS, servant.qp().state());
    servant.dismiss();
}

INSTANTIATE_TEST_SUITE_P(
        held, test_cut_peer,
        testing::Values(Held{"write", IBV_WR_RDMA_WRITE},
                        Held{"read", IBV_WR_RDMA_READ},
                        Held{"atomic", IBV_WR_ATOMIC_FETCH_AND_ADD}),
        [](const testing::TestParamInfo<Held> &info) {
            return std::string(info.param.name);
        });

/* Plain memory of ours, and the peer is held by a gate of its own. */
TEST_F(test_cut, deregistration_cuts_off_a_peer_in_plain_memory)
{
    Child peer([](Pipe &pipe) {
        Device device;
        Cq cq(device);
        Qp qp(device, cq, cq);
        Shared memory(SIZE);
        Region region(device, memory.data, SIZE);
        Wr write(1, IBV_WR_RDMA_WRITE, {region.sge(region.r, 0, SIZE)});

        memset(memory.data, SENT, SIZE);
        connect_over(pipe, qp);
        write.rdma(pipe.recv<Remote>());
        region.set_all();
        npemu_gate_arm(region.iommu.header, NPEMU_GATE_CHUNK_CHECKED,
                       NPEMU_GATE_ANY_PAGE);
        auto done = std::async(std::launch::async,
                               [&] { return qp.post(write); });
        ASSERT_EQ(0, npemu_gate_wait(region.iommu.header,
                                     NPEMU_GATE_CHUNK_CHECKED, WAIT_MS));
        pipe.signal();
        EXPECT_TRUE(pipe.await());
        npemu_gate_release(region.iommu.header, NPEMU_GATE_CHUNK_CHECKED);
        EXPECT_EQ(0, done.get());
        EXPECT_TRUE(cq.expect(1, IBV_WC_RETRY_EXC_ERR));
        pipe.signal();
    });
    Device device;
    ASSERT_TRUE(device.ok());
    Cq cq(device);
    Qp qp(device, cq, cq);
    Buffer buffer(device, SIZE);

    buffer.fill_byte(OLD);
    connect_over(peer.pipe(), qp);
    peer.pipe().send(Remote{buffer.at(0), buffer.mr->rkey});
    ASSERT_TRUE(peer.pipe().await());
    stop(peer.pid());
    auto start = Clock::now();
    buffer.dereg();
    EXPECT_LT(ms_since(start), WAIT_MS);
    EXPECT_EQ(IBV_QPS_ERR, qp.state());
    buffer.fill_byte(NEW);
    ASSERT_EQ(0, kill(peer.pid(), SIGCONT));
    peer.pipe().signal();
    EXPECT_TRUE(peer.pipe().await());
    EXPECT_EQ(SIZE, (size_t)std::count(buffer.data, buffer.data + SIZE, NEW));
    peer.join();
}

/*
 * No gates: the peer is stopped wherever it is, which is mostly at the end of a
 * copy, and another thread of ours takes the memory at the same time. What is
 * mapped there then stays as it is.
 */
TEST(test_cut_race, replaced_memory_is_not_written)
{
    constexpr int rounds = 40, orders = 100;
    constexpr size_t size = 1 << 20;
    Env limit("NPEMU_CUT_OFF_MS", "3");
    std::mt19937 random(base_seed());
    auto start  = Clock::now();
    int cut_off = 0;

    /* Where the peer waits for a link, or for a CPU, few stops hit a copy */
    for (int round = 0; (round < rounds * factor()) ||
                        ((cut_off == 0) && (ms_since(start) < WAIT_MS));
         ++round) {
        Servant servant(size);
        Device device;
        ASSERT_TRUE(device.ok());
        auto data = (uint8_t*)mmap(nullptr, size, PROT_READ | PROT_WRITE,
                                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        memset(servant.shared.data, SENT, size);
        {
            Region region(device, data, size);
            region.set_all();
            servant.connect(device);
            for (int i = 0; i < orders; ++i) {
                servant.place({IBV_WR_RDMA_WRITE, region.remote(region.w, 0),
                               0, size, 0, 0});
            }
            servant.result();
            usleep(random() % 2000);
            ASSERT_EQ(0, kill(servant.pid(), SIGSTOP));
            region.evict(0, size / PAGE);
            npemu_iommu_drain(device.context);
            ASSERT_EQ(0, munmap(data, size));
            ASSERT_EQ(data, mmap(data, size, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS |
                                         MAP_FIXED_NOREPLACE, -1, 0));
            memset(data, NEW, size);
            cut_off += (servant.qp().state() == IBV_QPS_ERR);
            ASSERT_EQ(0, kill(servant.pid(), SIGCONT));
            servant.result();
            servant.result();
            ASSERT_EQ((long)size, std::count(data, data + size, NEW))
                    << "round " << round << ", seed " << base_seed();
            servant.kill();
        }
        munmap(data, size);
    }
    RecordProperty("cut_off", cut_off);
    EXPECT_GT(cut_off, 0);
}

TEST(test_cut_limit, must_be_a_number)
{
    in_child([] {
        Env limit("NPEMU_CUT_OFF_MS", "soon");
        testing::internal::CaptureStderr();
        {
            Device device;
            EXPECT_TRUE(device.ok());
        }
        EXPECT_NE(std::string::npos,
                  testing::internal::GetCapturedStderr().find(
                          "NPEMU_CUT_OFF_MS=soon"));
    });
}

} // namespace
