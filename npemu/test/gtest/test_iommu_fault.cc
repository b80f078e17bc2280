/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Evictions at exact moments: fault plans, random ones, gates of the NIC. */

#include "internals.h"
#include "npemu_region.h"

#include <algorithm>
#include <future>
#include <thread>

#include <unistd.h>

using namespace npt;

namespace {

constexpr size_t PAGES = 20;
constexpr size_t SIZE  = PAGES * PAGE;

class test_iommu_fault : public testing::Test {
protected:
    test_iommu_fault() : memory(SIZE) {}

    void SetUp() override
    {
        region = std::make_unique<Region>(device, memory.data, SIZE);
        plain  = std::make_unique<Buffer>(device, SIZE);
        pair   = std::make_unique<Pair>(device);
        reset();
    }

    void reset()
    {
        region->set_all();
        pattern_fill(memory.data, SIZE, 1);
        plain->fill(2);
    }

    void read(size_t offset, size_t length)
    {
        Wr wr(1, IBV_WR_RDMA_READ, {plain->sge(offset, length)});
        ASSERT_EQ(0, pair->a.post(wr.rdma(region->remote(region->r, offset))));
        ASSERT_TRUE(pair->cq_a.expect(1));
    }

    void write(size_t offset, size_t length)
    {
        Wr wr(1, IBV_WR_RDMA_WRITE, {plain->sge(offset, length)});
        ASSERT_EQ(0,
                  pair->a.post(wr.rdma(region->remote(region->w, offset))));
        ASSERT_TRUE(pair->cq_a.expect(1));
    }

    /* Bytes [from, to) of the read were absent, the rest was there. */
    void expect_read(size_t offset, size_t length, size_t from, size_t to)
    {
        for (size_t i = offset; i < offset + length; ++i) {
            ASSERT_EQ(((i >= from) && (i < to)) ?
                              signature_byte(region->at(i)) :
                              pattern_byte(1, i),
                      plain->data[i]) << "byte " << i;
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

    int add(uint64_t page, uint32_t access, uint32_t tear = 0,
            uint32_t restore = 0, uint32_t views = NPRDMA_PAGE_BITS)
    {
        npemu_fault_t fault = {page, views, access, tear, restore, 0};

        return npemu_fault_add(region->iommu.header, &fault);
    }

    bool hit(int index)
    {
        return npemu_fault_hits(region->iommu.header, index);
    }

    Device                  device;
    Shared                  memory;
    std::unique_ptr<Region> region;
    std::unique_ptr<Buffer> plain;
    std::unique_ptr<Pair>   pair;
};

TEST_F(test_iommu_fault, evicts_at_the_nth_access)
{
    int index = add(7, 3);

    read(0, SIZE);
    read(7 * PAGE + 10, 1);
    EXPECT_FALSE(hit(index));
    expect_read(0, SIZE, 0, 0);
    read(0, SIZE);
    EXPECT_TRUE(hit(index));
    expect_read(0, SIZE, 7 * PAGE, 8 * PAGE);
    EXPECT_FALSE(region->has(7, NPRDMA_PAGE_BITS));
    EXPECT_EQ(1u, region->stats().faults);

    /* Once only */
    region->set(7, 1);
    read(0, SIZE);
    read(0, SIZE);
    expect_read(0, SIZE, 0, 0);
}

TEST_F(test_iommu_fault, tear_is_counted_from_the_page)
{
    /* The access begins and ends within the page */
    add(2, 1, 1000);
    read(2 * PAGE + 500, 1000);
    expect_read(2 * PAGE + 500, 1000, 2 * PAGE + 1000, 3 * PAGE);

    /* Torn before it begins */
    reset();
    add(2, 1, 400);
    read(2 * PAGE + 500, 1000);
    expect_read(2 * PAGE + 500, 1000, 2 * PAGE + 500, 3 * PAGE);

    /* And after it has ended */
    reset();
    add(2, 1, 2000);
    read(2 * PAGE + 500, 1000);
    expect_read(2 * PAGE + 500, 1000, 0, 0);
    EXPECT_FALSE(region->has(2, NPRDMA_PAGE_BITS));

    reset();
    add(2, 1, PAGE);
    read(0, SIZE);
    expect_read(0, SIZE, 0, 0);
    EXPECT_FALSE(region->has(2, NPRDMA_PAGE_BITS));
}

TEST_F(test_iommu_fault, tear_can_be_counted_from_the_access)
{
    npemu_fault_t fault = {2, NPRDMA_PAGE_R, 1, 256, 0, 1};

    npemu_fault_add(region->iommu.header, &fault);
    read(2 * PAGE + 13, 1000);
    expect_read(2 * PAGE + 13, 1000, 2 * PAGE + 13 + 256, 3 * PAGE);

    /* In the first page of an access, and in one that it has whole */
    reset();
    npemu_fault_add(region->iommu.header, &fault);
    read(PAGE + 13, 2 * PAGE);
    expect_read(PAGE + 13, 2 * PAGE, 2 * PAGE + 256, 3 * PAGE);

    /* No further than the page */
    reset();
    fault.tear = PAGE;
    npemu_fault_add(region->iommu.header, &fault);
    read(2 * PAGE + 13, 2 * PAGE);
    expect_read(2 * PAGE + 13, 2 * PAGE, 0, 0);
    EXPECT_FALSE(region->has(2, NPRDMA_PAGE_BITS));
}

/* Absent and present again within one access: only the count shows it. */
TEST_F(test_iommu_fault, returns_the_page_at_the_end_of_the_same_access)
{
    uint32_t before = region->state(5);

    add(5, 1, 128, 1);
    write(0, SIZE);
    expect_written(0, SIZE, 5 * PAGE + 128, 6 * PAGE);
    EXPECT_EQ(before + 2 * NPRDMA_PAGE_COUNT, region->state(5));

    before = region->state(6);
    reset();
    add(6, 1, PAGE, 1);
    write(0, SIZE);
    expect_written(0, SIZE, 0, 0);
    EXPECT_EQ(before + 3 * NPRDMA_PAGE_COUNT, region->state(6));
}

TEST_F(test_iommu_fault, does_not_return_a_page_that_the_monitor_invalidated)
{
    add(5, 1, 0, 2);
    read(5 * PAGE, 10);
    EXPECT_EQ(1u, region->evict(5)) << "another NIC may be in it: drain";
    read(5 * PAGE, 10);
    read(5 * PAGE, 10);
    EXPECT_FALSE(region->has(5, NPRDMA_PAGE_BITS));
    EXPECT_EQ(0u, region->stats().restored);
}

/* --- gates of the NIC ------------------------------------------------------*/

/* An initiator in another process is held at the gate. */
class test_iommu_fault_gate : public testing::Test {
protected:
    test_iommu_fault_gate() :
        granule("NPEMU_DMA_GRANULE", "65536"), servant(PAGES * PAGE * 2),
        memory(2 * SIZE)
    {
    }

    void SetUp() override
    {
        device = std::make_unique<Device>();
        region = std::make_unique<Region>(*device, memory.data, 2 * SIZE);
        region->set_all();
        servant.connect(*device);
        pattern_fill(memory.data, 2 * SIZE, 1);
        pattern_fill(servant.shared.data, 2 * SIZE, 2);
    }

    void TearDown() override
    {
        servant.dismiss();
        region.reset();
        device.reset();
    }

    void place(ibv_wr_opcode opcode, ibv_mr *mr)
    {
        servant.place({opcode, region->remote(mr, 0), 0, 2 * SIZE, 0, 0});
    }

    npemu_iommu_header_t *header() { return region->iommu.header; }

    Env                     granule;
    Servant                 servant;
    Shared                  memory;
    std::unique_ptr<Device> device;
    std::unique_ptr<Region> region;
};

TEST_F(test_iommu_fault_gate, chunk_after_the_eviction_sees_it)
{
    /* Page 20 is in the second chunk */
    npemu_gate_arm(header(), NPEMU_GATE_CHUNK_BEGIN, 20);
    place(IBV_WR_RDMA_WRITE, region->w);
    ASSERT_EQ(0, npemu_gate_wait(header(), NPEMU_GATE_CHUNK_BEGIN, WAIT_MS));
    /* The first has come and gone */
    EXPECT_TRUE(pattern_holds(memory.data, PAGE, 2));
    region->evict(20);
    npemu_iommu_drain(device->context);
    npemu_gate_release(header(), NPEMU_GATE_CHUNK_BEGIN);
    ASSERT_EQ(IBV_WC_SUCCESS, servant.result());
    for (size_t i = 0; i < 2 * SIZE; ++i) {
        ASSERT_EQ(pattern_byte((i / PAGE == 20) ? 1 : 2, i), memory.data[i]);
    }
}

TEST_F(test_iommu_fault_gate, drain_waits_for_a_chunk_that_has_checked_the_page)
{
    std::atomic<bool> drained{false};

    npemu_gate_arm(header(), NPEMU_GATE_CHUNK_CHECKED, 20);
    place(IBV_WR_RDMA_WRITE, region->w);
    ASSERT_EQ(0, npemu_gate_wait(header(), NPEMU_GATE_CHUNK_CHECKED,
                                 WAIT_MS));
    EXPECT_EQ(1u, region->evict(20));
    std::thread thread([&] {
        npemu_iommu_drain(device->context);
        drained = true;
        EXPECT_EQ(pattern_byte(2, 20 * PAGE), memory.data[20 * PAGE]);
    });
    /* Nothing can be awaited to show that something does not happen */
    EXPECT_FALSE(wait_until([&] { return drained.load(); }, 50));
    EXPECT_EQ(pattern_byte(1, 20 * PAGE), memory.data[20 * PAGE]);
    npemu_gate_release(header(), NPEMU_GATE_CHUNK_CHECKED);
    ASSERT_EQ(IBV_WC_SUCCESS, servant.result());
    thread.join();
    EXPECT_TRUE(drained);
    /* It had been there when the chunk began */
    EXPECT_TRUE(pattern_holds(memory.data, 2 * SIZE, 2));
}

TEST_F(test_iommu_fault_gate, drain_does_not_wait_for_a_chunk_that_has_ended)
{
    npemu_gate_arm(header(), NPEMU_GATE_CHUNK_END, 20);
    place(IBV_WR_RDMA_READ, region->r);
    ASSERT_EQ(0, npemu_gate_wait(header(), NPEMU_GATE_CHUNK_END, WAIT_MS));
    region->evict(0, region->pages);
    npemu_iommu_drain(device->context);
    npemu_gate_release(header(), NPEMU_GATE_CHUNK_END);
    ASSERT_EQ(IBV_WC_SUCCESS, servant.result());
    /* 16 pages to a chunk: pages 16 to 31 were the last to be there */
    for (size_t i = 0; i < 2 * SIZE; ++i) {
        uint64_t chunk = region->at(i) / 65536;
        ASSERT_EQ((chunk <= region->at(20 * PAGE) / 65536) ?
                          pattern_byte(1, i) : signature_byte(region->at(i)),
                  servant.shared.data[i]) << "byte " << i;
    }
}

TEST_F(test_iommu_fault_gate, killed_initiator_does_not_hang_a_drain)
{
    npemu_gate_arm(header(), NPEMU_GATE_CHUNK_CHECKED, 20);
    place(IBV_WR_RDMA_WRITE, region->w);
    ASSERT_EQ(0, npemu_gate_wait(header(), NPEMU_GATE_CHUNK_CHECKED,
                                 WAIT_MS));
    region->evict(20);
    std::thread killer([&] { kill(servant.pid(), SIGKILL); });
    npemu_iommu_drain(device->context);
    killer.join();
    /* And what it left behind is not waited for again */
    auto start = Clock::now();
    for (int i = 0; i < 100; ++i) {
        npemu_iommu_drain(device->context);
    }
    EXPECT_LT(ms_since(start), WAIT_MS);
    npemu_gate_release(header(), NPEMU_GATE_CHUNK_CHECKED);
    servant.kill();
}

TEST_F(test_iommu_fault_gate, drain_names_a_stopped_initiator_and_waits)
{
    npemu_gate_arm(header(), NPEMU_GATE_CHUNK_CHECKED, 20);
    place(IBV_WR_RDMA_WRITE, region->w);
    ASSERT_EQ(0, npemu_gate_wait(header(), NPEMU_GATE_CHUNK_CHECKED,
                                 WAIT_MS));
    region->evict(20);
    kill(servant.pid(), SIGSTOP);
    npemu_gate_release(header(), NPEMU_GATE_CHUNK_CHECKED);
    /* It goes on as soon as the line is there */
    std::string want = "waiting for process " + std::to_string(servant.pid());
    int fds[2], saved = dup(STDERR_FILENO);
    ASSERT_EQ(0, pipe(fds));
    std::thread waker([&] {
        std::string text;
        char c;
        while ((text.find(want) == std::string::npos) &&
               (read(fds[0], &c, 1) == 1)) {
            text += c;
        }
        EXPECT_NE(std::string::npos, text.find(want)) << text;
        kill(servant.pid(), SIGCONT);
    });
    dup2(fds[1], STDERR_FILENO);
    npemu_iommu_drain(device->context);
    dup2(saved, STDERR_FILENO);
    close(fds[1]);
    waker.join();
    close(fds[0]);
    close(saved);
    ASSERT_EQ(IBV_WC_SUCCESS, servant.result());
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
                       0, 0});
        ASSERT_EQ(0, npemu_gate_wait(header, NPEMU_GATE_CHUNK_CHECKED,
                                     WAIT_MS));
        stop(servant.pid());
        pipe.signal();
        EXPECT_TRUE(pipe.await());
        ASSERT_EQ(0, kill(servant.pid(), SIGCONT));
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
    job.pipe().signal();
    job.join();
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
static uint64_t play(const Shared &data, const std::string &spec)
{
    auto *faults = (uint64_t*)(data.data + SIZE);

    in_child([&] {
        RegionPair on(SIZE);

        ASSERT_EQ(0, npemu_fault_random(on.device.context, spec.c_str()));
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
    uint64_t faults = play(data, "rate=0.1,seed=7");
    std::vector<uint8_t> first(data.data, data.data + SIZE);

    EXPECT_GT(faults, 40u); /* of 800 accesses */
    EXPECT_LT(faults, 120u);
    EXPECT_EQ(faults, play(data, "rate=0.1,seed=7"));
    EXPECT_EQ(0, memcmp(first.data(), data.data, SIZE));
    EXPECT_NE(faults, play(data, "rate=0.3,seed=7"));
}

TEST(test_iommu_fault_random, bad_specifications_are_named)
{
    Device device;

    for (std::string bad : {"rate=2", "seed=x", "colour=red", "rate", "rate=",
                            "rate=0.1;seed=1"}) {
        expect_line((bad + " is none of").c_str(), [&] {
            EXPECT_EQ(EINVAL, npemu_fault_random(device.context, bad.c_str()));
        });
    }
    EXPECT_EQ(0, npemu_fault_random(device.context, "rate=0.5,seed=0x10"));
    EXPECT_EQ(0, npemu_fault_random(device.context, ""));
}

} // namespace
