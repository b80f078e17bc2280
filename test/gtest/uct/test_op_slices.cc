/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "test_op.h"

#include <algorithm>

/* The default, checked below */
constexpr size_t slice = 512 << 10;

/* A length, and what is tried with it */
struct slices_case {
    const char            *name;
    size_t                length;
    std::vector<size_t>   skews;
    std::vector<uint32_t> tears, restores;
};

/* Large operations in slices of the default size. Pages vanish at the ends of
 * the operation, in its middle, and on both sides of the borders between
 * slices. Only the slices that met such a page are repeated. */
class test_op_slices : public test_op,
                       public ::testing::WithParamInterface<slices_case> {
protected:
    struct transfer {
        op_t   op;
        size_t local, remote, length;
    };

    /* The part of a page that one slice accesses, in bytes of the page */
    struct share {
        size_t begin, end;
        bool   is_scanned;
    };

    static constexpr size_t scan_max = 32 << 10;

    config_t config() override
    {
        return {{"REGION_SIZE", "2m"}, {"MONITOR", "emulated"}};
    }

    /* Slices that did not complete with their first try */
    uint64_t redone()
    {
        return counter("redone_slices") + counter("assist_small");
    }

    uint64_t copied()
    {
        return counter("assist_fetch") + counter("assist_store");
    }

    /* Accesses that met absent pages */
    static uint64_t absent(const page_table_stats_t &stats)
    {
        return stats.absent_reads + stats.absent_writes;
    }

    static size_t page_of(size_t offset) { return offset & ~(page_size - 1); }

    /* The borders of the slices, in bytes of the operation. They lie at page
     * borders of the peer's memory, and the first slice includes the rest of
     * its page. */
    static std::vector<size_t> borders(const transfer &t)
    {
        std::vector<size_t> all = {0};

        for (size_t i = (-t.remote % page_size) + slice; i < t.length;
             i += slice) {
            all.push_back(i);
        }
        all.push_back(t.length);
        return all;
    }

    static std::vector<share> shares(const transfer &t, bool is_local,
                                     size_t page)
    {
        size_t offset = is_local ? t.local : t.remote;
        auto all      = borders(t);
        std::vector<share> found;

        for (size_t i = 0; i + 1 < all.size(); ++i) {
            size_t begin = std::max(offset + all[i], page);
            size_t end   = std::min(offset + all[i + 1], page + page_size);
            if (begin < end) {
                found.push_back({begin - page, end - page,
                                 (t.op != PUT_ZCOPY) &&
                                 (all[i + 1] - all[i] <= scan_max)});
            }
        }
        return found;
    }

    /* First, middle and last page, and the pages before and behind the first
     * and the last border */
    static std::vector<size_t> pages(const transfer &t, bool is_local)
    {
        size_t offset = is_local ? t.local : t.remote;
        auto all      = borders(t);
        std::vector<size_t> found;

        for (size_t at : {size_t(0), t.length / 2, t.length - 1, all[1] - 1,
                          all[1], all[all.size() - 2] - 1,
                          all[all.size() - 2]}) {
            if (at < t.length) {
                found.push_back(page_of(offset + at));
            }
        }
        std::sort(found.begin(), found.end());
        found.erase(std::unique(found.begin(), found.end()), found.end());
        return found;
    }

    /* An operation on a page and its neighbours, on both sides */
    void touch(op_t op, size_t page)
    {
        const size_t length = 16 * page_size; /* Larger than a slot */
        size_t from         = std::min(page, m_local->length() - length);

        run(op, from, from, length);
    }

    /* Bring back a page that a fault has taken */
    void repair(paged_buffer &of, size_t page)
    {
        page_table_fault_clear(of.table());
        for (int i = 0; (i < 10) && !of.has(page, 1, PAGE_R | PAGE_W); ++i) {
            touch(PUT_ZCOPY, page);
            touch(GET_ZCOPY, page);
        }
        ASSERT_TRUE(of.has(page, 1, PAGE_R | PAGE_W)) << "page " << page;
    }

    /* The state cache distrusts states that changed lately, so a slice reads
     * them first. Repeat until it uses the cached states. */
    void calm(const transfer &t)
    {
        for (size_t page : pages(t, false)) {
            ASSERT_NO_FATAL_FAILURE(repair(*m_remote, page));
            uint64_t reads = 2;
            for (int i = 0; (i < 50) && (reads != 1); ++i) {
                reads = counter("state_reads");
                touch(GET_ZCOPY, page);
                reads = counter("state_reads") - reads;
            }
            ASSERT_EQ(1u, reads) << "page " << page;
        }
    }

    /* No page is absent, and no slice is repeated */
    void run_clean(const transfer &t)
    {
        auto all       = borders(t);
        uint64_t looks = 0, again = 0, doubts = 0, slices = 0, reads = 0;

        for (size_t i = 0; i + 1 < all.size(); ++i) {
            looks += (t.op == PUT_ZCOPY) || (all[i + 1] - all[i] > scan_max);
        }
        for (int i = 0; (i < 50) && (reads != looks); ++i) {
            again  = redone();
            doubts = suspects();
            slices = counter("nic_slices");
            reads  = counter("state_reads");
            run(t.op, t.local, t.remote, t.length);
            reads  = counter("state_reads") - reads;
        }
        EXPECT_EQ(looks, reads);
        EXPECT_EQ(slices + all.size() - 1, counter("nic_slices"));
        EXPECT_EQ(again, redone());
        EXPECT_EQ(doubts, suspects());
    }

    /* One page vanishes during the access of one of the slices that share it */
    void try_fault(const transfer &t, bool is_local, size_t page,
                   uint32_t access, uint32_t tear, uint32_t restore)
    {
        auto sharing       = shares(t, is_local, page);
        const share &met   = sharing.at(access - 1);
        bool is_lost       = tear < met.end;
        bool is_seen       = is_local || !met.is_scanned;
        paged_buffer &side = this->side(is_local);

        SCOPED_TRACE(testing::Message()
                     << (is_local ? "local" : "remote") << " page " << page
                     << " access " << access << " tear " << tear
                     << " restore " << restore);
        ASSERT_NO_FATAL_FAILURE(repair(side, page));
        if (tear == 0) {
            ASSERT_NO_FATAL_FAILURE(calm(t));
        }
        uint64_t doubts = suspects(), again = redone(), by_cpu = copied();
        auto stats = side.stats();
        int index  = side.fault(page, window(t.op, is_local), access, tear,
                                restore);

        run(t.op, t.local, t.remote, t.length);
        auto after = side.stats();
        EXPECT_EQ(1, page_table_fault_hits(side.table(), index));
        EXPECT_EQ(stats.faults + 1, after.faults);
        EXPECT_EQ(by_cpu, copied());
        m_absent += absent(after) - absent(stats);

        /* If only one slice has the page, exactly that slice is repeated. A
         * scanned slice may have arrived before the page vanished. */
        if (is_lost || is_seen) {
            EXPECT_LT(doubts, suspects());
            EXPECT_LT(again, redone());
        }
        if (sharing.size() == 1) {
            EXPECT_EQ(again + (is_lost || is_seen), redone());
        }
    }

    /* One page is absent. The target's service, which populates ahead for an
     * earlier operation, may bring it back at this moment; then try again. */
    void try_absent(const transfer &t, bool is_local, size_t page)
    {
        paged_buffer &side = this->side(is_local);
        bool is_missed     = false;

        SCOPED_TRACE(testing::Message() << (is_local ? "local" : "remote")
                                        << " page " << page << " absent");
        for (int i = 0; (i < 20) && !is_missed; ++i) {
            ASSERT_NO_FATAL_FAILURE(repair(side, page));
            ASSERT_NO_FATAL_FAILURE(calm(t));
            uint64_t again = redone(), populated = counter("local_populate");
            auto stats     = side.stats();
            side.evict(page, 1);

            run(t.op, t.local, t.remote, t.length);
            EXPECT_TRUE(side.has(page, 1, window(t.op, is_local)));
            /* An absent local page is populated before the NIC could miss it */
            is_missed = is_local ? (populated < counter("local_populate")) :
                        (again < redone()) &&
                        (absent(stats) < absent(side.stats()));
        }
        EXPECT_TRUE(is_missed);
    }

    void try_transfer(const transfer &t, const std::vector<uint32_t> &tears,
                      const std::vector<uint32_t> &restores)
    {
        SCOPED_TRACE(testing::Message()
                     << "op " << t.op << " local " << t.local << " remote "
                     << t.remote << " length " << t.length);
        run_clean(t);
        m_absent = 0;
        for (bool is_local : {false, true}) {
            for (size_t page : pages(t, is_local)) {
                ASSERT_NO_FATAL_FAILURE(try_absent(t, is_local, page));
                for (uint32_t i = 1; i <= shares(t, is_local, page).size();
                     ++i) {
                    for (uint32_t tear : some(tears, is_sanitized)) {
                        for (uint32_t restore : some(restores, is_sanitized)) {
                            ASSERT_NO_FATAL_FAILURE(try_fault(
                                    t, is_local, page, i, tear, restore));
                        }
                    }
                }
            }
        }
        EXPECT_GT(m_absent, 0u);
    }

    /* Unaligned heads and tails. The page borders of the two sides differ, so
     * slices share pages on one of the sides. */
    void try_length(size_t length, const std::vector<size_t> &skews,
                    const std::vector<uint32_t> &tears,
                    const std::vector<uint32_t> &restores)
    {
        ASSERT_NO_FATAL_FAILURE(make(length + 4 * page_size));
        for (op_t op : {GET_ZCOPY, PUT_ZCOPY}) {
            for (size_t skew : some(skews, is_sanitized)) {
                transfer t = {op, page_size + (skew * 7) % page_size,
                              page_size + skew, length};
                ASSERT_NO_FATAL_FAILURE(try_transfer(t, tears, restores));
            }
        }
    }

private:
    uint64_t m_absent = 0; /* Absent pages met by one transfer */
};

constexpr size_t test_op_slices::scan_max;

TEST_P(test_op_slices, every_fault_is_repaired)
{
    const slices_case &it = GetParam();

    try_length(it.length, it.skews, it.tears, it.restores);
}

INSTANTIATE_TEST_SUITE_P(
        all, test_op_slices,
        ::testing::Values(
                slices_case{"less_than_one", (256 << 10) + 1,
                            {0, 1, 63, 4095}, {0, 64, 2048, 4096}, {0, 1, 2}},
                slices_case{"one", slice,
                            {0, 1, 63, 4095}, {0, 64, 2048, 4096}, {0, 1, 2}},
                slices_case{"one_and_a_byte", slice + 1,
                            {0, 1, 63, 4095}, {0, 64, 4096}, {0, 1, 2}},
                slices_case{"almost_two", 2 * slice - 3,
                            {0, 1, 4000}, {0, 2048, 4096}, {0, 1, 2}},
                slices_case{"three_mib", (3 << 20) + 77,
                            {0, 1, 4033}, {0, 2048, 4096}, {0, 1}},
                slices_case{"sixteen_mib", (16 << 20) + 5,
                            {1, 4000}, {0, 64}, {0, 1}},
                slices_case{"sixty_four_mib", 64 << 20,
                            {63}, {0, 4096}, {0, 1}}),
        [](const ::testing::TestParamInfo<slices_case> &info) {
            return std::string(info.param.name);
        });
