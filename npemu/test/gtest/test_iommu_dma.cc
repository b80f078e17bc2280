/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * Every kind of access through the emulated IOMMU: what is there moves, what is
 * not gives the signature or vanishes, byte by byte, and nothing else changes.
 */

#include "npemu_region.h"

#include <algorithm>

using namespace npt;

namespace {

constexpr size_t PAGES = 40;
constexpr size_t SIZE  = PAGES * PAGE;

struct Range {
    size_t offset, length;
};

/* Beginnings, middles and ends of pages and of the region; chunks. */
const std::vector<Range> ranges = {
    {0, 1},
    {PAGE - 1, 2},
    {0, PAGE},
    {3, 7},
    {PAGE / 2 + 5, PAGE},
    {5 * PAGE + 1000, 3 * PAGE + 1},
    {0, SIZE},
    {13, SIZE - 29},
    {SIZE - 1, 1},
    {38 * PAGE + 100, 2 * PAGE - 100},
    {2 * PAGE + 3000, 64 << 10},
    {1 * PAGE + 1, (64 << 10) + 4097},
};

/* Which process posts, and what the region is for it. The other side is
 * memory of the other process, or of this. */
enum Way { REMOTE_OF_PEER, REMOTE_OF_SELF, LOCAL_AND_PEER, LOCAL_AND_SELF };

using Access = std::tuple<int, Way, bool>; /* granule, way, reads the region */

struct Granule {
    Granule() :
        env("NPEMU_DMA_GRANULE",
            std::to_string(std::get<0>(
                    testing::WithParamInterface<Access>::GetParam())))
    {
    }
    Env env;
};

class test_iommu_dma_access :
        private Granule,
        public RegionTest,
        public testing::WithParamInterface<Access> {
protected:
    test_iommu_dma_access() :
        RegionTest(SIZE), plain(device, SIZE), pair(device), first(SIZE),
        second(SIZE)
    {
        pattern_fill(first.data(), SIZE, 1);
        pattern_fill(second.data(), SIZE, 2);
    }

    Way way() const { return std::get<1>(WithParamInterface::GetParam()); }
    bool reads() const { return std::get<2>(WithParamInterface::GetParam()); }

    uint8_t *other()
    {
        bool is_peers = (way() == REMOTE_OF_PEER) || (way() == LOCAL_AND_PEER);

        return is_peers ? servant.shared.data : plain.data;
    }

    void access(const Range &range)
    {
        ibv_mr *view  = reads() ? region.r : region.w;
        ibv_sge own   = region.sge(view, range.offset, range.length);
        Remote remote = region.remote(view, range.offset);
        Remote peers  = {servant.memory.addr + range.offset,
                         servant.memory.rkey};
        ibv_sge others = plain.sge(range.offset, range.length);

        switch (way()) {
        case REMOTE_OF_PEER:
            ASSERT_EQ(IBV_WC_SUCCESS,
                      servant.rdma(reads() ? IBV_WR_RDMA_READ :
                                             IBV_WR_RDMA_WRITE,
                                   remote, range.offset, range.length));
            return;
        case REMOTE_OF_SELF:
            reads() ? pair.a.read(1, {others}, remote) :
                      pair.a.write(1, {others}, remote);
            break;
        case LOCAL_AND_PEER:
            reads() ? servant.qp().write(1, {own}, peers) :
                      servant.qp().read(1, {own}, peers);
            ASSERT_TRUE(servant.cq().expect(1));
            return;
        case LOCAL_AND_SELF:
            reads() ? pair.a.write(1, {own}, plain.remote(range.offset)) :
                      pair.a.read(1, {own}, plain.remote(range.offset));
            break;
        }
        ASSERT_TRUE(pair.cq_a.expect(1));
    }

    void check(const Range &range, const std::vector<size_t> &absent)
    {
        /* Only the bit of the view decides */
        uint32_t bit = reads() ? NPRDMA_PAGE_R : NPRDMA_PAGE_W;

        region.set_all(bit);
        for (size_t page : absent) {
            region.set(page, 1, NPRDMA_PAGE_BITS & ~bit);
        }
        memcpy(memory.data, first.data(), SIZE);
        memcpy(other(), second.data(), SIZE);
        ASSERT_NO_FATAL_FAILURE(access(range));

        std::vector<uint8_t> want_memory = first, want_other = second;
        for (size_t i = range.offset; i < range.offset + range.length; ++i) {
            bool there = region.has(i / PAGE, bit);
            if (reads()) {
                want_other[i] = there ? first[i] :
                                        signature_byte(region.at(i));
            } else if (there) {
                want_memory[i] = second[i];
            }
        }
        expect_same(want_memory.data(), memory.data, "the region");
        expect_same(want_other.data(), other(), "the other side");
    }

    void expect_same(const uint8_t *want, const uint8_t *got, const char *what)
    {
        if (memcmp(want, got, SIZE) != 0) {
            size_t i = std::mismatch(want, want + SIZE, got).first - want;
            FAIL() << what << " differs from byte " << i << " on: " << std::hex
                   << (int)got[i] << " instead of " << (int)want[i];
        }
    }

    Buffer               plain;
    Pair                 pair;
    std::vector<uint8_t> first, second; /* contents before each access */
};

TEST_P(test_iommu_dma_access, obeys_the_states)
{
    std::vector<size_t> all, even;

    for (size_t i = 0; i < PAGES; ++i) {
        all.push_back(i);
        if (i % 2 == 0) {
            even.push_back(i);
        }
    }
    for (const Range &range : ranges) {
        size_t begin = range.offset / PAGE;
        size_t end   = (range.offset + range.length - 1) / PAGE;
        const std::vector<size_t> sets[] = {
                {}, {begin}, {(begin + end) / 2}, {end}, even, all};

        for (const auto &absent : sets) {
            SCOPED_TRACE(testing::Message()
                         << "offset " << range.offset << " length "
                         << range.length << " absent " << absent.size()
                         << " from " << (absent.empty() ? 0 : absent[0]));
            ASSERT_NO_FATAL_FAILURE(check(range, absent));
        }
    }
}

INSTANTIATE_TEST_SUITE_P(
        granules, test_iommu_dma_access,
        testing::Combine(testing::Values(256, 4096, 65536),
                         testing::Values(REMOTE_OF_PEER, REMOTE_OF_SELF,
                                         LOCAL_AND_PEER, LOCAL_AND_SELF),
                         testing::Bool()));

/* --- other operations ------------------------------------------------------*/

class test_iommu_dma_ops : public testing::Test {
protected:
    test_iommu_dma_ops() :
        memory(SIZE), other(SIZE), region(device, memory.data, SIZE),
        peer(device, other.data, SIZE, ~SIGNATURE), pair(device)
    {
        region.set_all();
        peer.set_all();
        pattern_fill(memory.data, SIZE, 1);
        pattern_fill(other.data, SIZE, 2);
    }

    /* What of the region was copied to the peer's: where a page of the source
     * is absent the signature, where one of the destination is nothing. */
    void expect_moved(size_t from, size_t to, size_t length)
    {
        for (size_t i = 0; i < SIZE; ++i) {
            uint8_t want = pattern_byte(2, i);
            if ((i >= to) && (i < to + length) &&
                peer.has(i / PAGE, NPRDMA_PAGE_W)) {
                size_t src = i - to + from;
                want = region.has(src / PAGE, NPRDMA_PAGE_R) ?
                               pattern_byte(1, src) :
                               signature_byte(region.at(src));
            }
            ASSERT_EQ(want, other.data[i]) << "byte " << i;
        }
    }

    Device device;
    Shared memory, other;
    Region region, peer;
    Pair   pair;
};

TEST_F(test_iommu_dma_ops, both_sides_use_tables)
{
    /* Lengths and alignments of the two sides differ */
    const size_t from = 3 * PAGE + 7, to = 10 * PAGE + 4001;
    const size_t length = 12 * PAGE + 5;

    region.evict(5);
    peer.evict(14);
    pair.a.write(1, {region.sge(region.r, from, length)},
                 peer.remote(peer.w, to));
    ASSERT_TRUE(pair.cq_a.expect(1));
    expect_moved(from, to, length);
}

/* Small ones ride in the CQ, large ones are copied by the sender. */
TEST_F(test_iommu_dma_ops, messages_use_tables)
{
    const size_t from = 7, to = 4000;

    region.evict(0);
    peer.evict(1);
    for (size_t length : {1, 64, 65, 4096, 4097, 9000, 70000}) {
        SCOPED_TRACE(length);
        pattern_fill(other.data, SIZE, 2);
        pair.b.recv(9, {peer.sge(peer.w, to, SIZE - to)});
        pair.a.send(1, {region.sge(region.r, from, length)});
        ASSERT_TRUE(pair.cq_a.expect(1));
        ASSERT_TRUE(pair.cq_b.expect(9));
        expect_moved(from, to, length);
    }
}

TEST_F(test_iommu_dma_ops, atomics_on_absent_pages_return_the_signature)
{
    uint64_t *target = (uint64_t*)(other.data + 8 * PAGE);
    uint64_t *result = (uint64_t*)(memory.data + 16);

    *target = 40;
    peer.evict(8);
    Wr add(1, IBV_WR_ATOMIC_FETCH_AND_ADD, {region.sge(region.w, 16, 8)});
    ASSERT_EQ(0, pair.a.post(add.atomic(peer.remote(peer.w, 8 * PAGE), 2)));
    ASSERT_TRUE(pair.cq_a.expect(1));
    EXPECT_EQ(~SIGNATURE, *result);
    EXPECT_EQ(40u, *target);

    /* And where the result has nowhere to go */
    peer.set(8, 1);
    region.evict(0);
    *result = 5;
    ASSERT_EQ(0, pair.a.post(add));
    ASSERT_TRUE(pair.cq_a.expect(1));
    EXPECT_EQ(5u, *result);
    EXPECT_EQ(42u, *target);
}

/* --- states: more than is copied at a time, from another process -----------*/

class test_iommu_dma_states : public RegionTest {
protected:
    static constexpr size_t COUNT = 5000;

    test_iommu_dma_states() : RegionTest(COUNT * PAGE) {}
};

TEST_F(test_iommu_dma_states, are_read_by_a_peer)
{
    region.evict(3);
    region.set(5, 1, NPRDMA_PAGE_R);
    ASSERT_EQ(IBV_WC_SUCCESS, servant.rdma(IBV_WR_RDMA_READ,
                                           Remote{8, region.s->rkey}, 4,
                                           (COUNT - 2) * 4));
    uint32_t *words = (uint32_t*)(servant.shared.data + 4);
    for (size_t i = 2; i < COUNT; ++i) {
        ASSERT_EQ(region.state(i), words[i - 2]) << "page " << i;
    }
    EXPECT_EQ(2 * NPRDMA_PAGE_COUNT, words[3 - 2]);
    EXPECT_EQ(2 * NPRDMA_PAGE_COUNT | NPRDMA_PAGE_R, words[5 - 2]);
    EXPECT_EQ(0u, words[COUNT - 2]);
}

/* --- pages that the kernel does not have -----------------------------------*/

class test_iommu_dma_efault : public RegionTest {
protected:
    test_iommu_dma_efault() : RegionTest(SIZE)
    {
        pattern_fill(memory.data, SIZE, 1);
        pattern_fill(servant.shared.data, SIZE, 2);
    }

    void protect(size_t page, size_t count, int rights)
    {
        ASSERT_EQ(0, mprotect(memory.data + page * PAGE, count * PAGE, rights));
    }

    static constexpr size_t OFFSET = 100, LENGTH = SIZE - 300;
};

TEST_F(test_iommu_dma_efault, read_marks_the_page_and_returns_the_signature)
{
    protect(7, 2, PROT_NONE);
    ASSERT_EQ(IBV_WC_SUCCESS, read(OFFSET, LENGTH));
    for (size_t i = OFFSET; i < OFFSET + LENGTH; ++i) {
        bool gone = (i / PAGE == 7) || (i / PAGE == 8);
        ASSERT_EQ(gone ? signature_byte(region.at(i)) : pattern_byte(1, i),
                  servant.shared.data[i - OFFSET]) << "byte " << i;
    }
    for (size_t i = 0; i < PAGES; ++i) {
        bool gone = (i == 7) || (i == 8);
        EXPECT_EQ(gone ? 2 * NPRDMA_PAGE_COUNT :
                         NPRDMA_PAGE_COUNT | NPRDMA_PAGE_BITS,
                  region.state(i)) << "page " << i;
    }
    EXPECT_EQ(2u, region.stats().efault);
    /* From now on a drain is always due */
    EXPECT_EQ(1u, region.evict(7));
}

TEST_F(test_iommu_dma_efault, write_marks_the_page_and_is_dropped)
{
    protect(3, 1, PROT_READ);
    ASSERT_EQ(IBV_WC_SUCCESS, write(OFFSET, LENGTH));
    for (size_t i = 0; i < SIZE; ++i) {
        bool written = (i >= OFFSET) && (i < OFFSET + LENGTH) &&
                       (i / PAGE != 3);
        ASSERT_EQ(written ? pattern_byte(2, i - OFFSET) : pattern_byte(1, i),
                  memory.data[i]) << "byte " << i;
    }
    EXPECT_FALSE(region.has(3, NPRDMA_PAGE_BITS));
    EXPECT_EQ(1u, region.stats().efault);
}

TEST_F(test_iommu_dma_efault, applies_to_local_pages)
{
    protect(5, 1, PROT_NONE);
    servant.qp().read(1, {region.sge(region.w, 0, SIZE)}, servant.memory);
    ASSERT_TRUE(servant.cq().expect(1));
    EXPECT_FALSE(region.has(5, NPRDMA_PAGE_BITS));
    protect(5, 1, PROT_READ | PROT_WRITE);
    for (size_t i = 0; i < SIZE; ++i) {
        ASSERT_EQ(pattern_byte((i / PAGE == 5) ? 1 : 2, i), memory.data[i]);
    }

    region.set(5, 1);
    protect(5, 1, PROT_NONE);
    servant.qp().write(2, {region.sge(region.r, 0, SIZE)}, servant.memory);
    ASSERT_TRUE(servant.cq().expect(2));
    for (size_t i = 0; i < SIZE; ++i) {
        ASSERT_EQ((i / PAGE == 5) ? signature_byte(region.at(i)) :
                                    pattern_byte(2, i),
                  servant.shared.data[i]);
    }
    EXPECT_EQ(2u, region.stats().efault);
}

} // namespace
