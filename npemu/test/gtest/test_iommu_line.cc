/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * A NIC reads lines of 64 bytes, and writes them to wherever they go: however
 * the destination is cut, a line of the source is there as a whole or not at
 * all. What scans data for signatures rests on that.
 */

#include "npemu_region.h"

#include <thread>

using namespace npt;

namespace {

constexpr size_t PAGES  = 4;
constexpr size_t SIZE   = PAGES * PAGE;
constexpr size_t LINE   = 64;
constexpr size_t FROM   = 2 * PAGE;   /* a line of the source begins here, */
constexpr size_t LENGTH = 300;
constexpr size_t FIRST  = 100;        /* bytes before a page ends */
constexpr size_t TO     = PAGE - FIRST;
constexpr size_t CUT    = 2 * LINE;   /* the line that is cut ends here */

/* What ends a piece of the destination */
enum Cut {
    GRANULE,
    ELEMENT
};

struct Case {
    ibv_wr_opcode opcode;
    Cut           cut;
};

/* Gates and drains order these with what the NIC does. They run in hooks, so
 * they are not instrumented, and ThreadSanitizer does not know of it. */
__attribute__((no_sanitize("thread"), noinline)) uint8_t
peek(const uint8_t *data)
{
    return *(const volatile uint8_t*)data;
}

__attribute__((no_sanitize("thread"), noinline)) void
wipe(uint8_t *data, size_t length)
{
    for (size_t i = 0; i < length; ++i) {
        ((volatile uint8_t*)data)[i] = 0; /* memset() would be seen */
    }
}

class test_iommu_line : private Env, public testing::TestWithParam<Case> {
protected:
    test_iommu_line() :
        Env("NPEMU_DMA_GRANULE", (GetParam().cut == GRANULE) ? "256" : ""),
        from_memory(SIZE), to_memory(SIZE),
        from(device, from_memory.data, SIZE),
        to(device, to_memory.data, SIZE), pair(device)
    {
        from.set_all();
        to.set_all();
        pattern_fill(from.data, SIZE, 1);
        pattern_fill(to.data, SIZE, 2);
    }

    /* Has another thread move the data, until it is held at the gate of the
     * page where the destination goes on. */
    std::thread start(npemu_gate_point_t point)
    {
        npemu_gate_arm(to.iommu.header, point, 1);
        std::thread thread([this] { move(); });
        EXPECT_EQ(0, npemu_gate_wait(to.iommu.header, point, WAIT_MS));
        return thread;
    }

    void finish(npemu_gate_point_t point, std::thread &thread)
    {
        npemu_gate_release(to.iommu.header, point);
        thread.join();
        ASSERT_TRUE(pair.cq_a.expect(1));
    }

    /* The lines before the end of the one that is cut, and those behind it,
     * were there or not. */
    void expect_moved(bool before, bool behind)
    {
        for (size_t i = 0; i < LENGTH; ++i) {
            bool there = (i < CUT) ? before : behind;
            ASSERT_EQ(there ? pattern_byte(1, FROM + i) :
                              signature_byte(from.at(FROM + i)),
                      to.data[TO + i]) << "byte " << i;
        }
        EXPECT_EQ(pattern_byte(2, TO - 1), to.data[TO - 1]);
        EXPECT_EQ(pattern_byte(2, TO + LENGTH), to.data[TO + LENGTH]);
    }

private:
    void move()
    {
        if (GetParam().opcode == IBV_WR_RDMA_READ) {
            std::vector<ibv_sge> list = {to.sge(to.w, TO, LENGTH)};
            if (GetParam().cut == ELEMENT) {
                list = {to.sge(to.w, TO, FIRST),
                        to.sge(to.w, PAGE, LENGTH - FIRST)};
            }
            pair.a.read(1, list, from.remote(from.r, FROM));
        } else {
            pair.a.write(1, {from.sge(from.r, FROM, LENGTH)},
                         to.remote(to.w, TO));
        }
    }

protected:
    Device device;
    Shared from_memory, to_memory;
    Region from, to;
    Pair   pair;
};

/* A drain meanwhile would wait for it: see below. */
TEST_P(test_iommu_line, eviction_within_it_takes_effect_after_it)
{
    auto thread = start(NPEMU_GATE_CHUNK_BEGIN);

    from.evict(FROM / PAGE);
    npemu_iommu_drain(device.context);
    finish(NPEMU_GATE_CHUNK_BEGIN, thread);
    expect_moved(true, false);
}

TEST_P(test_iommu_line, return_within_it_takes_effect_after_it)
{
    from.evict(FROM / PAGE);
    auto thread = start(NPEMU_GATE_CHUNK_BEGIN);

    from.set(FROM / PAGE, 1);
    finish(NPEMU_GATE_CHUNK_BEGIN, thread);
    expect_moved(false, true);
}

/* Its second half is still to come when it is evicted: the page must not go
 * before that. */
TEST_P(test_iommu_line, drain_waits_for_its_second_half)
{
    std::atomic<bool> drained{false};
    auto thread = start(NPEMU_GATE_CHUNK_CHECKED);

    EXPECT_EQ(pattern_byte(1, FROM + FIRST - 1), peek(&to.data[PAGE - 1]));
    EXPECT_EQ(pattern_byte(2, PAGE), peek(&to.data[PAGE]));
    from.evict(FROM / PAGE);
    std::thread reclaimer([&] {
        npemu_iommu_drain(device.context);
        drained = true;
        wipe(from.data + FROM, PAGE);
    });
    /* Nothing can be awaited to show that something does not happen */
    EXPECT_FALSE(wait_until([&] { return drained.load(); }, 50));
    finish(NPEMU_GATE_CHUNK_CHECKED, thread);
    reclaimer.join();
    expect_moved(true, false);
}

/* A request that takes more than a chunk is cut between lines, too. */
TEST(test_iommu_line_chunk, ends_at_a_line_of_the_source)
{
    constexpr size_t chunk = 65536, size = 2 * chunk, offset = 40;
    RegionPair on(size);
    auto *header = on.region.iommu.header;

    pattern_fill(on.memory.data, size, 1);
    npemu_gate_arm(header, NPEMU_GATE_CHUNK_END, 0);
    std::thread thread([&] { on.read(offset); });
    ASSERT_EQ(0, npemu_gate_wait(header, NPEMU_GATE_CHUNK_END, WAIT_MS));
    on.region.evict(0, on.region.pages);
    npemu_gate_release(header, NPEMU_GATE_CHUNK_END);
    thread.join();
    ASSERT_TRUE(on.pair.cq_a.expect(1));
    for (size_t i = 0; i < size - offset; ++i) {
        size_t at = offset + i;
        ASSERT_EQ((at < chunk) ? pattern_byte(1, at) :
                                 signature_byte(on.region.at(at)),
                  on.plain.data[i]) << "byte " << i;
    }
}

INSTANTIATE_TEST_SUITE_P(
        cuts, test_iommu_line,
        testing::Values(Case{IBV_WR_RDMA_READ, GRANULE},
                        Case{IBV_WR_RDMA_READ, ELEMENT},
                        Case{IBV_WR_RDMA_WRITE, GRANULE}),
        [](const testing::TestParamInfo<Case> &info) {
            return std::string((info.param.opcode == IBV_WR_RDMA_READ) ?
                                       "read_" : "write_") +
                   ((info.param.cut == GRANULE) ? "granule" : "element");
        });

} // namespace
