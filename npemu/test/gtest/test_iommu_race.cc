/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * Evictions during DMA: real pages are taken while other processes access them,
 * and an oracle that does not use the table checks that the NIC obeyed it.
 */

#include "npemu_region.h"
#include "npemu_rank.h"

#include <thread>

using namespace npt;

namespace {

constexpr size_t PAGES = 16;
constexpr size_t SIZE  = PAGES * PAGE;

/*
 * Takes pages away and brings them back, as a kernel under pressure does. Each
 * page holds words that are all alike while it is there. NPEMU_TEST_NO_DRAIN in
 * the environment leaves the drain out: then the tests below must fail.
 */
class Evictor {
public:
    Evictor(Device &device, Region &region, unsigned seed, size_t unit) :
        m_device(device), m_region(region), m_random(seed), m_unit(unit / 8),
        m_drain(getenv("NPEMU_TEST_NO_DRAIN") == nullptr),
        m_thread([this] { run(); })
    {
    }
    ~Evictor() { stop(); }

    void stop()
    {
        m_stop = true;
        if (m_thread.joinable()) {
            m_thread.join();
        }
    }

    std::atomic<uint64_t> evicted{0}, torn{0};

private:
    /* A page that has been evicted is the evictor's, for the drain has waited
     * for the NIC. ThreadSanitizer, which takes an access by a NIC of this
     * process for one of its thread, does not see that: a drain is for memory
     * hooks, and nothing of it is instrumented. Nor is this. */
    __attribute__((no_sanitize("thread"))) static void
    copy(void *to, const void *from)
    {
        auto words        = (volatile uint64_t*)to;
        const auto source = (const volatile uint64_t*)from;

        for (size_t i = 0; i < PAGE / 8; ++i) {
            words[i] = source[i];
        }
    }

    /* The check that no chunk was half done when the page went */
    bool is_torn(const uint64_t *page)
    {
        for (size_t i = 0; i < PAGE / 8; ++i) {
            if (page[i] != page[i - i % m_unit]) {
                return true;
            }
        }
        return false;
    }

    void run()
    {
        std::vector<uint64_t> saved(PAGE / 8);

        while (!m_stop) {
            size_t page  = m_random() % PAGES;
            uint8_t *ptr = m_region.data + page * PAGE;

            m_region.evict(page);
            if (m_drain) {
                npemu_iommu_drain(m_device.context);
            }
            copy(saved.data(), ptr);
            torn += is_torn(saved.data());
            /* The page is gone: a read gets zeros */
            madvise(ptr, PAGE, MADV_DONTNEED);
            sched_yield();
            copy(ptr, saved.data());
            m_region.set(page, 1);
            ++evicted;
        }
    }

    Device           &m_device;
    Region           &m_region;
    std::minstd_rand  m_random;
    size_t            m_unit;
    bool              m_drain;
    std::atomic<bool> m_stop{false};
    std::thread       m_thread;
};

/* The parameter is the granule of the NIC: what it moves is there as a whole or
 * not at all. */
class test_iommu_race : public testing::TestWithParam<size_t> {
protected:
    test_iommu_race() :
        unit(GetParam()),
        m_granule("NPEMU_DMA_GRANULE",
                  (unit == PAGE) ? "" : std::to_string(unit)),
        servant(SIZE)
    {
        memory = (uint8_t*)mmap(nullptr, SIZE, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    }
    ~test_iommu_race() override { munmap(memory, SIZE); }

    /* For some time, and on a busy machine until something has happened. */
    static bool go_on(Clock::time_point start, bool happened)
    {
        return (ms_since(start) < 400 * factor()) ||
               (!happened && (ms_since(start) < WAIT_MS));
    }

    uint64_t *word(uint8_t *base, size_t page)
    {
        return (uint64_t*)(base + page * PAGE);
    }

    /* Every unit as a whole is @a value, or the signature. Returns how many are
     * the latter; counts those that are neither. */
    size_t check_read(uint64_t value, uint64_t &violations)
    {
        const uint64_t *words = word(servant.shared.data, 0);
        const uint64_t *end   = words + SIZE / 8;
        size_t absent         = 0;

        for (; words < end; words += unit / 8) {
            bool good = (words[0] == value) || (words[0] == SIGNATURE);
            for (size_t i = 1; (i < unit / 8) && good; ++i) {
                good = words[i] == words[0];
            }
            violations += !good;
            absent     += words[0] == SIGNATURE;
        }
        return absent;
    }

    size_t   unit;
    Env      m_granule;
    Servant  servant;
    uint8_t *memory;
};

/* Reads and writes by a peer, and requests of the initiator's own pages. The
 * evictor sees whole pages only: what is written when it has drained would be
 * lost or, worse, land in what the address stands for by then. */
TEST_P(test_iommu_race, absent_pages_are_not_accessed)
{
    Device device;
    Region region(device, memory, SIZE);
    uint64_t violations = 0, absent = 0, value = 0x1111111111111111;

    std::fill(word(memory, 0), word(memory, PAGES), value);
    region.set_all();
    servant.connect(device);
    Evictor evictor(device, region, base_seed(), unit);
    for (auto start = Clock::now();
         go_on(start, (absent > 0) && (region.stats().absent_writes > 0));) {
        ASSERT_EQ(IBV_WC_SUCCESS,
                  servant.rdma(IBV_WR_RDMA_READ, region.remote(region.r, 0), 0,
                               SIZE));
        absent += check_read(value, violations);
        Wr put(1, IBV_WR_RDMA_WRITE, {region.sge(region.r, 0, SIZE)});
        ASSERT_EQ(0, servant.qp().post(put.rdma(servant.memory)));
        ASSERT_TRUE(servant.cq().expect(1));
        absent += check_read(value, violations);

        std::fill(word(servant.shared.data, 0),
                  word(servant.shared.data, PAGES), value);
        ASSERT_EQ(IBV_WC_SUCCESS,
                  servant.rdma(IBV_WR_RDMA_WRITE, region.remote(region.w, 0),
                               0, SIZE));
        Wr get(2, IBV_WR_RDMA_READ, {region.sge(region.w, 0, SIZE)});
        ASSERT_EQ(0, servant.qp().post(get.rdma(servant.memory)));
        ASSERT_TRUE(servant.cq().expect(2));
    }
    evictor.stop();
    EXPECT_EQ(0u, violations) << "seed " << base_seed();
    EXPECT_EQ(0u, evictor.torn) << "of " << evictor.evicted
                                << " evictions, seed " << base_seed();
    EXPECT_GT(absent, 0u);
    EXPECT_GT(region.stats().absent_writes, 0u);
    EXPECT_EQ(0u, region.stats().efault);
    servant.dismiss();
}

INSTANTIATE_TEST_SUITE_P(granules, test_iommu_race, testing::Values(PAGE, 256),
                         testing::PrintToStringParamName());

/* --- hooks -----------------------------------------------------------------*/

/* A signal handler is the only code that can run in the middle of a chunk. */
Device *drain_device;

void drain_in_handler(int)
{
    npemu_iommu_drain(drain_device->context);
}

TEST(test_iommu_race_drain, inside_a_chunk_of_the_same_thread_does_not_deadlock)
{
    RegionPair on(SIZE);
    auto *header = on.region.iommu.header;

    drain_device = &on.device;
    signal(SIGUSR1, drain_in_handler);
    on.region.set_all();
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
    ASSERT_TRUE(on.pair.cq_a.expect(1));
    signal(SIGUSR1, SIG_DFL);
}

} // namespace
