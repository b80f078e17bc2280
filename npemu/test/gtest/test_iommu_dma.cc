/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * Every kind of access through the emulated IOMMU: what is there moves, what is
 * not gives the signature or vanishes, byte by byte, and nothing else changes.
 */

#include "npemu_region.h"

#include <algorithm>
#include <memory>

using namespace npt;

namespace {

/* What the region's views do in an access. */
enum Kind { REMOTE_READ, REMOTE_WRITE, LOCAL_READ, LOCAL_WRITE };

struct Range {
    size_t offset;
    size_t length;
};

/* Beginnings, middles and ends of pages and of the region; chunks. */
const std::vector<Range> ranges = {
    {0, 1},
    {PAGE - 1, 1},
    {PAGE - 1, 2},
    {0, PAGE},
    {3, 7},
    {PAGE / 2 + 5, PAGE},
    {5 * PAGE + 1000, 3 * PAGE + 1},
    {0, 40 * PAGE},
    {13, 40 * PAGE - 29},
    {40 * PAGE - 1, 1},
    {38 * PAGE + 100, 2 * PAGE - 100},
    {2 * PAGE + 3000, 64 << 10},
    {1 * PAGE + 1, (64 << 10) + 4097},
};

class test_iommu_dma_access : public testing::TestWithParam<int> {
protected:
    static constexpr size_t PAGES = 40;
    static constexpr size_t SIZE  = PAGES * PAGE;

    test_iommu_dma_access() :
        m_granule("NPEMU_DMA_GRANULE",
                  (GetParam() == 0) ? "" : std::to_string(GetParam())),
        servant(SIZE), memory(SIZE), plain(SIZE), first(SIZE), second(SIZE)
    {
        pattern_fill(first.data(), SIZE, 1);
        pattern_fill(second.data(), SIZE, 2);
    }

    /* Pages that are missing, of those that a range touches. */
    static std::vector<std::vector<size_t>> absent_sets(const Range &range)
    {
        size_t first = range.offset / PAGE;
        size_t last  = (range.offset + range.length - 1) / PAGE;
        std::vector<size_t> all, even;

        for (size_t i = 0; i < PAGES; ++i) {
            all.push_back(i);
            if (i % 2 == 0) {
                even.push_back(i);
            }
        }
        return {{}, {first}, {(first + last) / 2}, {last}, {first, last}, even,
                all};
    }

    void run_all(Kind kind,
                 const std::function<void(const Range &)> &access)
    {
        for (const Range &range : ranges) {
            for (const auto &absent : absent_sets(range)) {
                SCOPED_TRACE(testing::Message()
                             << "offset " << range.offset << " length "
                             << range.length << " absent " << absent.size()
                             << " from " << (absent.empty() ? 0 : absent[0]));
                run_one(kind, range, absent, access);
                if (HasFatalFailure()) {
                    return;
                }
            }
        }
    }

    void run_one(Kind kind, const Range &range,
                 const std::vector<size_t> &absent,
                 const std::function<void(const Range &)> &access)
    {
        bool from_region = (kind == REMOTE_READ) || (kind == LOCAL_READ);
        /* Only the bit of the view decides */
        uint32_t bit = from_region ? NPRDMA_PAGE_R : NPRDMA_PAGE_W;

        region->set_all(bit);
        for (size_t page : absent) {
            region->set(page, 1, NPRDMA_PAGE_BITS & ~bit);
        }
        memcpy(memory.data, first.data(), SIZE);
        memcpy(other(), second.data(), SIZE);
        access(range);

        std::vector<uint8_t> want_memory = first, want_other = second;
        size_t end = range.offset + range.length, next;
        for (size_t i = range.offset; i < end; i = next) {
            next       = std::min(end, (i / PAGE + 1) * PAGE);
            bool there = region->has(i / PAGE, bit);
            if (from_region && there) {
                memcpy(&want_other[i], &first[i], next - i);
            } else if (from_region) {
                for (size_t k = i; k < next; ++k) {
                    want_other[k] = signature_byte(region->at(k));
                }
            } else if (there) {
                memcpy(&want_memory[i], &second[i], next - i);
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

    uint8_t *other()
    {
        return with_servant ? servant.shared.data : plain.data;
    }

    static ibv_wr_opcode opcode(Kind kind)
    {
        return ((kind == REMOTE_READ) || (kind == LOCAL_WRITE)) ?
                       IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE;
    }

    /* The region is remote for another process. */
    void by_servant(Kind kind)
    {
        Device device;
        Region on_memory(device, memory.data, SIZE);

        region       = &on_memory;
        with_servant = true;
        servant.connect(device);
        run_all(kind, [&](const Range &range) {
            ibv_mr *mr = (kind == REMOTE_READ) ? region->r : region->w;

            ASSERT_EQ(IBV_WC_SUCCESS,
                      servant.rdma(opcode(kind),
                                   region->remote(mr, range.offset),
                                   range.offset, range.length));
        });
        servant.dismiss();
    }

    /* This process initiates; the other side is the servant's memory, or memory
     * of this process. */
    void by_self(Kind kind, bool with_servant)
    {
        Device device;
        Region on_memory(device, memory.data, SIZE);
        Pair pair(device);
        ibv_mr *mr = npemu_reg_mr(device.pd, plain.data, SIZE, ACCESS_ALL);
        ASSERT_NE(nullptr, mr);

        region             = &on_memory;
        this->with_servant = with_servant;
        servant.connect(device);
        run_all(kind, [&](const Range &range) {
            bool reads = (kind == REMOTE_READ) || (kind == LOCAL_READ);
            ibv_mr *view = reads ? region->r : region->w;
            ibv_sge own    = region->sge(view, range.offset, range.length);
            ibv_sge there  = {(uintptr_t)plain.data + range.offset,
                              (uint32_t)range.length, mr->lkey};
            bool is_local  = (kind == LOCAL_READ) || (kind == LOCAL_WRITE);
            Wr wr(1, opcode(kind), {is_local ? own : there});

            if (!is_local) {
                wr.rdma(region->remote(view, range.offset));
            } else if (with_servant) {
                wr.rdma(Remote{servant.memory.addr + range.offset,
                               servant.memory.rkey});
            } else {
                wr.rdma(Remote{there.addr, mr->rkey});
            }
            ASSERT_EQ(0, with_servant ? servant.qp().post(wr) :
                                        pair.a.post(wr));
            ASSERT_TRUE((with_servant ? servant.cq() : pair.cq_a).expect(1));
        });
        npemu_dereg_mr(mr);
        servant.dismiss();
    }

    Env     m_granule;
    Servant servant;
    Shared  memory, plain;
    bool    with_servant = false;
    Region *region       = nullptr;

private:
    std::vector<uint8_t> first, second; /* contents before each access */
};

TEST_P(test_iommu_dma_access, peer_reads) { by_servant(REMOTE_READ); }
TEST_P(test_iommu_dma_access, peer_writes) { by_servant(REMOTE_WRITE); }
TEST_P(test_iommu_dma_access, read_from_self) { by_self(REMOTE_READ, false); }
TEST_P(test_iommu_dma_access, write_to_self) { by_self(REMOTE_WRITE, false); }
TEST_P(test_iommu_dma_access, read_from_peer_into_table)
{
    by_self(LOCAL_WRITE, true);
}

TEST_P(test_iommu_dma_access, write_to_peer_from_table)
{
    by_self(LOCAL_READ, true);
}

TEST_P(test_iommu_dma_access, read_from_self_into_table)
{
    by_self(LOCAL_WRITE, false);
}

TEST_P(test_iommu_dma_access, write_to_self_from_table)
{
    by_self(LOCAL_READ, false);
}

INSTANTIATE_TEST_SUITE_P(granules, test_iommu_dma_access,
                         testing::Values(0, 256, 1024, 4096, 16384, 65536),
                         testing::PrintToStringParamName());

/* --- other operations ------------------------------------------------------*/

class test_iommu_dma_ops : public testing::Test {
protected:
    static constexpr size_t PAGES = 40;
    static constexpr size_t SIZE  = PAGES * PAGE;

    test_iommu_dma_ops() : memory(SIZE), other(SIZE) {}

    void SetUp() override
    {
        region = std::make_unique<Region>(device, memory.data, SIZE);
        peer   = std::make_unique<Region>(device, other.data, SIZE,
                                        ~SIGNATURE);
        pair   = std::make_unique<Pair>(device);
        region->set_all();
        peer->set_all();
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
                peer->has(i / PAGE, NPRDMA_PAGE_W)) {
                size_t src = i - to + from;
                want = region->has(src / PAGE, NPRDMA_PAGE_R) ?
                               pattern_byte(1, src) :
                               signature_byte(region->at(src));
            }
            ASSERT_EQ(want, other.data[i]) << "byte " << i;
        }
    }

    Device                  device;
    Shared                  memory, other;
    std::unique_ptr<Region> region, peer;
    std::unique_ptr<Pair>   pair;
};

TEST_F(test_iommu_dma_ops, both_sides_use_tables)
{
    /* Lengths and alignments of the two sides differ */
    const size_t from = 3 * PAGE + 7, to = 10 * PAGE + 4001;
    const size_t length = 12 * PAGE + 5;

    region->evict(5);
    peer->evict(14);
    Wr wr(1, IBV_WR_RDMA_WRITE, {region->sge(region->r, from, length)});
    ASSERT_EQ(0, pair->a.post(wr.rdma(peer->remote(peer->w, to))));
    ASSERT_TRUE(pair->cq_a.expect(1));
    expect_moved(from, to, length);
}

/* Small ones ride in the CQ, large ones are copied by the sender. */
class test_iommu_dma_send :
        public test_iommu_dma_ops, public testing::WithParamInterface<size_t> {
};

TEST_P(test_iommu_dma_send, both_sides_use_tables)
{
    const size_t length = GetParam(), from = 7, to = 4000;

    region->evict(0);
    peer->evict(1);
    ASSERT_EQ(0, pair->b.post_recv(9, {peer->sge(peer->w, to, SIZE - to)}));
    Wr wr(1, IBV_WR_SEND, {region->sge(region->r, from, length)});
    ASSERT_EQ(0, pair->a.post(wr));
    ASSERT_TRUE(pair->cq_a.expect(1));
    ASSERT_TRUE(pair->cq_b.expect(9));
    expect_moved(from, to, length);
}

INSTANTIATE_TEST_SUITE_P(sizes, test_iommu_dma_send,
                         testing::Values(1, 60, 64, 65, 2000, 4096, 4097, 9000,
                                         70000),
                         testing::PrintToStringParamName());

TEST_F(test_iommu_dma_ops, datagrams_use_tables)
{
    QpOptions options;
    options.type = IBV_QPT_UD;
    Cq cq(device);
    Qp a(device, cq, cq, options), b(device, cq, cq, options);
    a.connect();
    b.connect();
    Ah ah(device);

    /* 40 bytes for the route, the payload begins in an absent page */
    const size_t to = 2 * PAGE - 40 - 8;
    peer->evict(1);
    ASSERT_EQ(0, b.post_recv(9, {peer->sge(peer->w, to, PAGE)}));
    Wr wr(1, IBV_WR_SEND, {region->sge(region->r, 100, 64)});
    ASSERT_EQ(0, a.post(wr.ud(ah, b.address().qpn)));
    ASSERT_TRUE(cq.expect(9));
    ASSERT_TRUE(cq.expect(1));
    expect_moved(100, to + 40, 64);
}

TEST_F(test_iommu_dma_ops, inline_data_needs_no_table)
{
    region->evict(0, PAGES);
    Wr wr(1, IBV_WR_RDMA_WRITE, {{region->at(0), 32, 0}},
          IBV_SEND_SIGNALED | IBV_SEND_INLINE);
    ASSERT_EQ(0, pair->a.post(wr.rdma(peer->remote(peer->w, 64))));
    ASSERT_TRUE(pair->cq_a.expect(1));
    EXPECT_EQ(0, memcmp(memory.data, other.data + 64, 32));
}

TEST_F(test_iommu_dma_ops, atomics_on_absent_pages_return_the_signature)
{
    uint64_t *target = (uint64_t*)(other.data + 8 * PAGE);
    uint64_t *result = (uint64_t*)(memory.data + 16);

    *target = 40;
    peer->evict(8);
    Wr add(1, IBV_WR_ATOMIC_FETCH_AND_ADD, {region->sge(region->w, 16, 8)});
    ASSERT_EQ(0, pair->a.post(add.atomic(peer->remote(peer->w, 8 * PAGE), 2)));
    ASSERT_TRUE(pair->cq_a.expect(1));
    EXPECT_EQ(~SIGNATURE, *result);
    EXPECT_EQ(40u, *target);

    /* And where the result has nowhere to go */
    peer->set(8, 1);
    region->evict(0);
    *result = 5;
    ASSERT_EQ(0, pair->a.post(add.atomic(peer->remote(peer->w, 8 * PAGE), 2)));
    ASSERT_TRUE(pair->cq_a.expect(1));
    EXPECT_EQ(5u, *result);
    EXPECT_EQ(42u, *target);
}

/* --- states ----------------------------------------------------------------*/

TEST_F(test_iommu_dma_ops, states_can_be_read)
{
    Buffer plain(device, PAGE);

    peer->evict(3);
    peer->set(5, 1, NPRDMA_PAGE_R);
    Wr wr(1, IBV_WR_RDMA_READ, {plain.sge(8, PAGES * 4)});
    ASSERT_EQ(0, pair->a.post(wr.rdma(Remote{0, peer->s->rkey})));
    ASSERT_TRUE(pair->cq_a.expect(1));
    uint32_t *words = (uint32_t*)(plain.data + 8);
    for (size_t i = 0; i < PAGES; ++i) {
        ASSERT_EQ(peer->state(i), words[i]) << "page " << i;
    }
    EXPECT_EQ(2 * NPRDMA_PAGE_COUNT, words[3]);
    EXPECT_EQ(2 * NPRDMA_PAGE_COUNT | NPRDMA_PAGE_R, words[5]);
    EXPECT_EQ(0u, words[PAGES]);
}

/* More than is copied at a time, from another process. */
TEST(test_iommu_dma_states, of_a_large_region_are_read_by_a_peer)
{
    constexpr size_t COUNT = 5000;
    Servant servant(COUNT * 4 + PAGE);
    Device device;
    /* The memory is not accessed */
    Shared memory(COUNT * PAGE);
    Region region(device, memory.data, COUNT * PAGE);

    servant.connect(device);
    for (size_t i = 0; i < COUNT; i += 3) {
        region.set(i, 1);
    }
    ASSERT_EQ(IBV_WC_SUCCESS, servant.rdma(IBV_WR_RDMA_READ,
                                           Remote{8, region.s->rkey}, 4,
                                           (COUNT - 2) * 4));
    uint32_t *words = (uint32_t*)(servant.shared.data + 4);
    for (size_t i = 2; i < COUNT; ++i) {
        ASSERT_EQ(region.state(i), words[i - 2]) << "page " << i;
    }
    servant.dismiss();
}

/* --- pages that the kernel does not have -----------------------------------*/

class test_iommu_dma_efault : public testing::Test {
protected:
    static constexpr size_t PAGES = 20;

    test_iommu_dma_efault() : servant(PAGES * PAGE)
    {
        memory = (uint8_t*)mmap(nullptr, PAGES * PAGE, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        pattern_fill(memory, PAGES * PAGE, 1);
    }
    ~test_iommu_dma_efault() override
    {
        region.reset();
        munmap(memory, PAGES * PAGE);
    }

    void SetUp() override
    {
        region = std::make_unique<Region>(device, memory, PAGES * PAGE);
        region->set_all();
        servant.connect(device);
    }

    void TearDown() override
    {
        servant.dismiss();
    }

    Servant                 servant; /* Forks: before the device */
    Device                  device;
    std::unique_ptr<Region> region;
    uint8_t                 *memory;
};

TEST_F(test_iommu_dma_efault, read_marks_the_page_and_returns_the_signature)
{
    ASSERT_EQ(0, mprotect(memory + 7 * PAGE, 2 * PAGE, PROT_NONE));

    const size_t offset = 100, length = PAGES * PAGE - 300;
    ASSERT_EQ(IBV_WC_SUCCESS,
              servant.rdma(IBV_WR_RDMA_READ, region->remote(region->r, offset),
                           0, length));
    for (size_t i = 0; i < length; ++i) {
        size_t at = offset + i, page = at / PAGE;
        ASSERT_EQ(((page == 7) || (page == 8)) ?
                          signature_byte(region->at(at)) : pattern_byte(1, at),
                  servant.shared.data[i]) << "byte " << i;
    }
    for (size_t i = 0; i < PAGES; ++i) {
        bool gone = (i == 7) || (i == 8);
        EXPECT_EQ(gone ? 2 * NPRDMA_PAGE_COUNT :
                         NPRDMA_PAGE_COUNT | NPRDMA_PAGE_BITS,
                  region->state(i)) << "page " << i;
    }
    EXPECT_EQ(2u, region->stats().efault);
    /* From now on a drain is always due */
    EXPECT_EQ(1u, region->evict(7));
}

TEST_F(test_iommu_dma_efault, write_marks_the_page_and_is_dropped)
{
    pattern_fill(servant.shared.data, PAGES * PAGE, 2);
    ASSERT_EQ(0, mprotect(memory + 3 * PAGE, PAGE, PROT_READ));

    const size_t offset = 100, length = PAGES * PAGE - 300;
    ASSERT_EQ(IBV_WC_SUCCESS,
              servant.rdma(IBV_WR_RDMA_WRITE, region->remote(region->w, offset),
                           0, length));
    for (size_t i = 0; i < PAGES * PAGE; ++i) {
        bool written = (i >= offset) && (i < offset + length) &&
                       (i / PAGE != 3);
        ASSERT_EQ(written ? pattern_byte(2, i - offset) : pattern_byte(1, i),
                  memory[i]) << "byte " << i;
    }
    EXPECT_FALSE(region->has(3, NPRDMA_PAGE_BITS));
    EXPECT_EQ(1u, region->stats().efault);
}

TEST_F(test_iommu_dma_efault, applies_to_local_pages)
{
    pattern_fill(servant.shared.data, PAGES * PAGE, 2);
    ASSERT_EQ(0, mprotect(memory + 5 * PAGE, PAGE, PROT_NONE));

    Wr get(1, IBV_WR_RDMA_READ, {region->sge(region->w, 0, PAGES * PAGE)});
    ASSERT_EQ(0, servant.qp().post(get.rdma(servant.memory)));
    ASSERT_TRUE(servant.cq().expect(1));
    EXPECT_FALSE(region->has(5, NPRDMA_PAGE_BITS));
    ASSERT_EQ(0, mprotect(memory + 5 * PAGE, PAGE, PROT_READ | PROT_WRITE));
    for (size_t i = 0; i < PAGES * PAGE; ++i) {
        ASSERT_EQ(pattern_byte((i / PAGE == 5) ? 1 : 2, i), memory[i]);
    }

    region->set(5, 1);
    ASSERT_EQ(0, mprotect(memory + 5 * PAGE, PAGE, PROT_NONE));
    Wr put(2, IBV_WR_RDMA_WRITE, {region->sge(region->r, 0, PAGES * PAGE)});
    ASSERT_EQ(0, servant.qp().post(put.rdma(servant.memory)));
    ASSERT_TRUE(servant.cq().expect(2));
    for (size_t i = 0; i < PAGES * PAGE; ++i) {
        ASSERT_EQ((i / PAGE == 5) ? signature_byte(region->at(i)) :
                                    pattern_byte(2, i),
                  servant.shared.data[i]);
    }
    EXPECT_EQ(2u, region->stats().efault);
}

} // namespace
