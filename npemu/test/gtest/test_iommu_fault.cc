/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Evictions at exact moments: fault plans, random ones, gates of the NIC. */

#include "internals.h"
#include "npemu_region.h"

#include <cmath>
#include <future>
#include <thread>

#include <unistd.h>

using namespace npt;

namespace {

constexpr size_t PAGES = 20;
constexpr size_t SIZE  = PAGES * PAGE;

class test_iommu_fault : public testing::Test, public RegionPair {
protected:
    test_iommu_fault() : RegionPair(SIZE) { reset(); }

    void reset()
    {
        region.set_all();
        pattern_fill(memory.data, SIZE, 1);
        plain.fill(2);
    }

    void read(size_t offset, size_t length)
    {
        pair.a.read(1, {plain.sge(offset, length)},
                    region.remote(region.r, offset));
        ASSERT_TRUE(pair.cq_a.expect(1));
    }

    void write(size_t offset, size_t length)
    {
        pair.a.write(1, {plain.sge(offset, length)},
                     region.remote(region.w, offset));
        ASSERT_TRUE(pair.cq_a.expect(1));
    }

    /* Bytes [from, to) of the read were absent, the rest was there. */
    void expect_read(size_t offset, size_t length, size_t from, size_t to)
    {
        for (size_t i = offset; i < offset + length; ++i) {
            ASSERT_EQ(((i >= from) && (i < to)) ?
                              signature_byte(region.at(i)) :
                              pattern_byte(1, i),
                      plain.data[i]) << "byte " << i;
        }
    }

    void expect_written(size_t offset, size_t length, size_t from, size_t to)
    {
        for (size_t i = 0; i < SIZE; ++i) {
            bool written = (i >= offset) && (i < offset + length) &&
                           !((i >= from) && (i < to));
            ASSERT_EQ(pattern_byte(written ? 2 : 1, i), memory.data[i])
                    << "byte " << i;
        }
    }

    int add(const npemu_fault_t &fault)
    {
        return npemu_fault_add(region.iommu.header, &fault);
    }

    bool is_absent(size_t page) const
    {
        return !region.has(page, NPRDMA_PAGE_BITS);
    }
};

/* Fields: page, views, access, tear, restore, from_start */
constexpr uint32_t BOTH = NPRDMA_PAGE_BITS;

TEST_F(test_iommu_fault, evicts_at_the_nth_access)
{
    int index = add({7, BOTH, 3, 0, 0, 0});

    read(0, SIZE);
    read(7 * PAGE + 10, 1);
    EXPECT_FALSE(npemu_fault_hits(region.iommu.header, index));
    expect_read(0, SIZE, 0, 0);
    read(0, SIZE);
    EXPECT_TRUE(npemu_fault_hits(region.iommu.header, index));
    expect_read(0, SIZE, 7 * PAGE, 8 * PAGE);
    EXPECT_TRUE(is_absent(7));
    EXPECT_EQ(1u, region.stats().faults);

    /* Once only */
    region.set(7, 1);
    read(0, SIZE);
    read(0, SIZE);
    expect_read(0, SIZE, 0, 0);
}

/* From the start of the page, or of the access: the first byte that is absent
 * is in page 2. */
TEST_F(test_iommu_fault, tears_an_access)
{
    constexpr size_t AT = 2 * PAGE, END = 3 * PAGE;
    const struct {
        uint32_t tear, from_start;
        size_t   offset, length, absent;
    } tears[] = {{1000, 0, AT + 500, 1000, AT + 1000},
                 {400, 0, AT + 500, 1000, AT + 500}, /* before it begins */
                 {2000, 0, AT + 500, 1000, END},     /* after it has ended */
                 {PAGE, 0, 0, SIZE, END},
                 {256, 1, AT + 13, 1000, AT + 13 + 256},
                 {256, 1, PAGE + 13, 2 * PAGE, AT + 256},
                 {PAGE, 1, AT + 13, 2 * PAGE, END}};

    for (auto &it : tears) {
        SCOPED_TRACE(&it - tears);
        reset();
        add({2, BOTH, 1, it.tear, 0, it.from_start});
        read(it.offset, it.length);
        expect_read(it.offset, it.length, it.absent, END);
        EXPECT_TRUE(is_absent(2));
    }
}

/* Absent and present again within one access: only the count shows it. */
TEST_F(test_iommu_fault, returns_the_page_at_the_end_of_the_same_access)
{
    for (uint32_t tear : {128, (int)PAGE}) {
        reset();
        uint32_t before = region.state(5);
        add({5, BOTH, 1, tear, 1, 0});
        write(0, SIZE);
        expect_written(0, SIZE, 5 * PAGE + tear, 6 * PAGE);
        EXPECT_EQ(before + 2 * NPRDMA_PAGE_COUNT, region.state(5));
    }
}

TEST_F(test_iommu_fault, does_not_return_a_page_that_the_monitor_invalidated)
{
    add({5, BOTH, 1, 0, 2, 0});
    read(5 * PAGE, 10);
    EXPECT_EQ(1u, region.evict(5)) << "another NIC may be in it: drain";
    read(5 * PAGE, 10);
    read(5 * PAGE, 10);
    EXPECT_TRUE(is_absent(5));
    EXPECT_EQ(0u, region.stats().restored);
}

/* --- gates of the NIC ------------------------------------------------------*/

/* An initiator in another process is held at the gate. */
class test_iommu_fault_gate : private Env, public RegionTest {
protected:
    test_iommu_fault_gate() :
        Env("NPEMU_DMA_GRANULE", "65536"), RegionTest(2 * SIZE)
    {
        pattern_fill(memory.data, 2 * SIZE, 1);
        pattern_fill(servant.shared.data, 2 * SIZE, 2);
    }

    /* An access to all of the region, which is held at page 20: that is in the
     * second chunk. */
    void hold(npemu_gate_point_t point,
              ibv_wr_opcode opcode = IBV_WR_RDMA_WRITE)
    {
        bool reads = opcode == IBV_WR_RDMA_READ;

        npemu_gate_arm(header, point, 20);
        servant.place({opcode, region.remote(reads ? region.r : region.w, 0), 0,
                       2 * SIZE, 0});
        ASSERT_EQ(0, npemu_gate_wait(header, point, WAIT_MS));
    }

    void drain() { npemu_iommu_drain(device.context); }

    npemu_iommu_header_t *header = region.iommu.header;
};

/* Before it has checked the page, and after its end */
TEST_F(test_iommu_fault_gate, drain_does_not_wait_between_chunks)
{
    for (auto point : {NPEMU_GATE_CHUNK_BEGIN, NPEMU_GATE_CHUNK_END}) {
        region.set_all();
        hold(point, IBV_WR_RDMA_READ);
        region.evict(0, region.pages);
        drain();
        npemu_gate_release(header, point);
        ASSERT_EQ(IBV_WC_SUCCESS, servant.result());
        /* That of page 20 is the first, or the last, to be there or not */
        uint64_t chunk = region.at(20 * PAGE) / 65536 +
                         (point == NPEMU_GATE_CHUNK_END);
        for (size_t i = 0; i < 2 * SIZE; ++i) {
            ASSERT_EQ((region.at(i) / 65536 < chunk) ?
                              pattern_byte(1, i) : signature_byte(region.at(i)),
                      servant.shared.data[i]) << "byte " << i;
        }
    }
}

TEST_F(test_iommu_fault_gate, drain_waits_for_a_chunk_that_has_checked_the_page)
{
    std::atomic<bool> drained{false};

    hold(NPEMU_GATE_CHUNK_CHECKED);
    EXPECT_EQ(1u, region.evict(20));
    std::thread thread([&] {
        drain();
        drained = true;
        EXPECT_EQ(pattern_byte(2, 20 * PAGE), memory.data[20 * PAGE]);
    });
    /* Nothing can be awaited to show that something does not happen */
    EXPECT_FALSE(wait_until([&] { return drained.load(); }, 50));
    EXPECT_EQ(pattern_byte(1, 20 * PAGE), memory.data[20 * PAGE]);
    npemu_gate_release(header, NPEMU_GATE_CHUNK_CHECKED);
    ASSERT_EQ(IBV_WC_SUCCESS, servant.result());
    thread.join();
    EXPECT_TRUE(drained);
    /* It had been there when the chunk began */
    EXPECT_TRUE(pattern_holds(memory.data, 2 * SIZE, 2));
}

TEST_F(test_iommu_fault_gate, killed_initiator_does_not_hang_a_drain)
{
    hold(NPEMU_GATE_CHUNK_CHECKED);
    region.evict(20);
    std::thread killer([&] { kill(servant.process().pid(), SIGKILL); });
    drain();
    killer.join();
    /* And what it left behind is not waited for again */
    drain();
    servant.kill();
}

TEST_F(test_iommu_fault_gate, drain_names_a_stopped_initiator_and_waits)
{
    hold(NPEMU_GATE_CHUNK_CHECKED);
    region.evict(20);
    kill(servant.process().pid(), SIGSTOP);
    npemu_gate_release(header, NPEMU_GATE_CHUNK_CHECKED);
    /* It goes on as soon as the line is there */
    std::string want = "waiting for process " +
                       std::to_string(servant.process().pid());
    int fds[2], saved = dup(STDERR_FILENO);
    ASSERT_EQ(0, pipe(fds));
    std::thread waker([&] {
        char line[256] = {};
        EXPECT_LT(0, ::read(fds[0], line, sizeof(line) - 1));
        EXPECT_NE(nullptr, strstr(line, want.c_str())) << line;
        servant.process().resume();
    });
    dup2(fds[1], STDERR_FILENO);
    drain();
    dup2(saved, STDERR_FILENO);
    waker.join();
    for (int fd : {fds[0], fds[1], saved}) {
        close(fd);
    }
    ASSERT_EQ(IBV_WC_SUCCESS, servant.result());
}

/* A signal handler is the only code that can run in the middle of a chunk. */
Device *drain_device;

void drain_in_handler(int)
{
    npemu_iommu_drain(drain_device->context);
}

TEST(test_iommu_fault_drain, within_a_chunk_of_its_thread_does_not_deadlock)
{
    RegionPair on(SIZE);
    auto *header = on.region.iommu.header;

    drain_device = &on.device;
    signal(SIGUSR1, drain_in_handler);
    npemu_gate_arm(header, NPEMU_GATE_CHUNK_CHECKED, 0);
    std::atomic<bool> done{false};
    std::thread thread([&] {
        on.read();
        done = true;
    });
    ASSERT_EQ(0, npemu_gate_wait(header, NPEMU_GATE_CHUNK_CHECKED, WAIT_MS));
    pthread_kill(thread.native_handle(), SIGUSR1);
    npemu_gate_release(header, NPEMU_GATE_CHUNK_CHECKED);
    EXPECT_TRUE(wait_until([&] { return done.load(); }));
    thread.join();
    signal(SIGUSR1, SIG_DFL);
}

/* A process that is not in our memory is not waited for. */
TEST(test_iommu_fault_stopped, stranger_delays_nothing)
{
    Child job([](Pipe &pipe) {
        Servant servant(SIZE);
        Device device;
        Shared memory(SIZE);
        Region region(device, memory.data, SIZE);
        auto *header = region.iommu.header;

        region.set_all();
        servant.connect(device);
        npemu_gate_arm(header, NPEMU_GATE_CHUNK_CHECKED, NPEMU_GATE_ANY_PAGE);
        servant.place({IBV_WR_RDMA_WRITE, region.remote(region.w, 0), 0, SIZE,
                       0});
        ASSERT_EQ(0, npemu_gate_wait(header, NPEMU_GATE_CHUNK_CHECKED,
                                     WAIT_MS));
        servant.process().stop();
        pipe.signal();
        EXPECT_TRUE(pipe.await());
        servant.process().resume();
        npemu_gate_release(header, NPEMU_GATE_CHUNK_CHECKED);
        EXPECT_EQ(IBV_WC_SUCCESS, servant.result());
        servant.dismiss();
    });
    Device device;

    ASSERT_TRUE(job.pipe().await());
    auto done = std::async(std::launch::async, [&] {
        npemu_iommu_drain(device.context);
        Buffer plain(device, PAGE);
        Pair pair(device);
    });
    EXPECT_EQ(std::future_status::ready,
              done.wait_for(std::chrono::milliseconds(WAIT_MS / 2)));
    job.release();
}

/* A peer that closes its device while a thread of it executes a request: the
 * thread is alive, and finishes what it is doing. */
TEST(test_iommu_fault_stopped, drain_waits_for_a_peer_that_closes)
{
    Child peer([](Pipe &pipe) {
        Side side(QpOptions(), SIZE);

        connect_over(pipe, side.qp);
        Remote remote = pipe.recv<Remote>();
        auto done     = std::async(std::launch::async,
                                   [&] { side.write(1, remote, SIZE); });
        EXPECT_TRUE(pipe.await());
        npt_begin_close(side.device.context);
        pipe.signal();
        done.wait();
    });
    Side side;
    Shared memory(SIZE);
    Region region(side.device, memory.data, SIZE);
    auto *header = region.iommu.header;

    region.set_all();
    connect_over(peer.pipe(), side.qp);
    npemu_gate_arm(header, NPEMU_GATE_CHUNK_CHECKED, NPEMU_GATE_ANY_PAGE);
    peer.pipe().send(region.remote(region.w, 0));
    ASSERT_EQ(0, npemu_gate_wait(header, NPEMU_GATE_CHUNK_CHECKED, WAIT_MS));
    peer.pipe().signal();
    ASSERT_TRUE(peer.pipe().await());
    auto drained = std::async(std::launch::async, [&] {
        npemu_iommu_drain(side.device.context);
    });
    EXPECT_EQ(std::future_status::timeout,
              drained.wait_for(std::chrono::milliseconds(100)));
    npemu_gate_release(header, NPEMU_GATE_CHUNK_CHECKED);
    drained.wait();
    peer.join();
}

/* --- the random plan -------------------------------------------------------*/

/* The number of evictions of reads that are always the same, by a new process;
 * and what the last one gave, in `data`. */
static uint64_t play(const Shared &data, double rate)
{
    auto *faults = (uint64_t*)(data.data + SIZE);

    in_child([&] {
        RegionPair on(SIZE);

        ASSERT_EQ(0, npemu_fault_random(on.device.context, rate, 7));
        pattern_fill(on.memory.data, SIZE, 1);
        for (int round = 0; round < 40; ++round) {
            for (size_t i = 0; i < PAGES; ++i) {
                if (!on.region.has(i, NPRDMA_PAGE_BITS)) {
                    on.region.set(i, 1);
                }
            }
            on.read();
            ASSERT_TRUE(on.pair.cq_a.expect(1));
        }
        *faults = on.region.stats().faults;
        memcpy(data.data, on.plain.data, SIZE);
    });
    return *faults;
}

TEST(test_iommu_fault_random, repeats_itself)
{
    Shared data(SIZE + PAGE);
    uint64_t faults = play(data, 0.1);
    std::vector<uint8_t> first(data.data, data.data + SIZE);

    EXPECT_GT(faults, 40u); /* of 800 accesses */
    EXPECT_LT(faults, 120u);
    EXPECT_EQ(faults, play(data, 0.1));
    EXPECT_EQ(0, memcmp(first.data(), data.data, SIZE));
    EXPECT_NE(faults, play(data, 0.3));
}

TEST(test_iommu_fault_random, rate_is_a_probability)
{
    Device device;

    for (double bad : {-0.1, 1.1, std::nan("")}) {
        EXPECT_EQ(EINVAL, npemu_fault_random(device.context, bad, 1));
    }
    for (double good : {1., 0.5, 0.}) {
        EXPECT_EQ(0, npemu_fault_random(device.context, good, 1));
    }
}

/* A hook of one waits for the access of another. */
TEST(test_iommu_fault_drain, waits_for_threads_that_share_a_counter)
{
    Device device;
    std::atomic<unsigned> users{0}, stage{0};
    std::vector<std::future<void>> threads;
    auto start = [&](const std::function<void()> &body) {
        threads.push_back(std::async(std::launch::async, body));
    };
    auto await = [&](unsigned number, std::atomic<unsigned> &of) {
        EXPECT_TRUE(wait_until([&] { return of >= number; }));
    };
    auto use = [&](unsigned until) {
        npt_access_begin(device.context);
        npt_access_end(device.context);
        ++users;
        await(until, stage);
    };

    for (unsigned i = 0; i < npt_own_counters(); ++i) {
        start([&] { use(3); });
    }
    await(npt_own_counters(), users);
    start([&] {
        use(1);
        npemu_iommu_drain(device.context);
    });
    await(npt_own_counters() + 1, users);
    start([&] {
        npt_access_begin(device.context);
        stage = 1;
        await(2, stage);
        npt_access_end(device.context);
    });
    await(1, stage);
    EXPECT_EQ(std::future_status::timeout,
              threads[npt_own_counters()].wait_for(
                      std::chrono::milliseconds(50)));
    stage = 2;
    threads[npt_own_counters()].wait();
    stage = 3;
}

} // namespace
