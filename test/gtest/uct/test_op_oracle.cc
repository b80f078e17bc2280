/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "test_op.h"

#include <cstring>
#include <random>

#include <sys/syscall.h>
#include <unistd.h>

/*
 * Pages of the target really vanish, repeatedly, while an initiator accesses
 * them: they move to another address and back. The kernel itself reports an
 * access of the NIC to an absent page, because nothing is mapped there.
 */

namespace {

constexpr size_t area     = 256 << 10;
constexpr uint64_t enough = 100;

struct oracle_result {
    uint64_t moved, efault, absent;
};

void pause_for(double microseconds)
{
    for (double end = now() + microseconds * 1e-6; now() < end;) {
        sched_yield();
    }
}

/* A mapping that grows has to move. mremap() gets no address, because the hooks
 * of UCX before 1.15 lose it. Nothing vanishes when the page returns, so that
 * bypasses them. */
void move_page(char *ptr, double microseconds)
{
    char *moved = (char*)mremap(ptr, page_size, 2 * page_size, MREMAP_MAYMOVE);

    ASSERT_NE(MAP_FAILED, (void*)moved);
    ASSERT_NE(ptr, moved);
    pause_for(microseconds);
    ASSERT_EQ((long)ptr, syscall(SYS_mremap, moved, page_size, page_size,
                                 MREMAP_MAYMOVE | MREMAP_FIXED, ptr));
    ASSERT_EQ(0, munmap(moved + page_size, page_size));
}

} // namespace

PEER_FUNCTION(oracle_target)
{
    complaints quiet;
    entity self({{"REGION_SIZE", "2m"}, {"SLICE", "64k"}});
    paged_buffer memory(self, area);
    oracle_result result = {};
    std::mt19937_64 random(parent.get<uint64_t>());

    memset(memory.ptr(), 1, area);
    parent.put_bytes(self.address());
    parent.put_bytes(memory.packed_key());
    parent.put(memory.address());
    /* Rare enough that some operations complete */
    while (!parent.ready() && !::testing::Test::HasFailure()) {
        /* Behind the last page there is nothing in the way */
        size_t page = random() % (area / page_size - 1);
        move_page(memory.ptr(page * page_size), random() % 100);
        pause_for(random() % 200);
        if (++result.moved == enough) {
            parent.put(true);
        }
    }
    parent.get<bool>();
    auto stats    = memory.stats();
    result.efault = stats.efault;
    result.absent = stats.absent_reads + stats.absent_writes;
    parent.put(result);
    parent.get<bool>();
    return 0;
}

class test_op_oracle : public test_op {};

TEST_F(test_op_oracle, nic_touches_no_absent_page)
{
    std::random_device device;
    uint64_t seed = device();
    std::mt19937_64 random(seed);
    peer target("oracle_target");
    complaints quiet; /* Operations may meet a hole in the address space */

    SCOPED_TRACE(testing::Message() << "seed " << seed);
    target.put(seed);
    uct_ep_h ep      = m_a->connect(target.get_bytes());
    uct_rkey_t rkey  = m_a->unpack(target.get_bytes());
    uint64_t address = target.get<uint64_t>();
    paged_buffer local(*m_a, area);
    std::vector<char> shadow(area, 1);
    std::vector<size_t> lengths = {100, 4096, 8000, 9000, 30000, 70000};
    unsigned count[2] = {};

    /* For a fixed time, on a busy machine until enough has happened */
    double end   = now() + 3;
    double limit = end + patience.count();
    while ((now() < end) ||
           ((!target.ready() || (counter("assist_populate") == 0)) &&
            (now() < limit))) {
        size_t length = lengths[random() % lengths.size()];
        size_t offset = random() % (area - length);
        bool is_put   = (random() % 2) == 0;
        ucs_status_t status;

        memset(local.ptr(offset), is_put ? (int)(random() % 255) : 0xee,
               length);
        do {
            status = is_put ? m_a->put(ep, local.ptr(offset), length,
                                       address + offset, rkey) :
                              m_a->get(ep, local.ptr(offset), length,
                                       address + offset, rkey);
            ++count[status == UCS_OK];
        } while ((status == UCS_ERR_INVALID_ADDR) && (now() < limit));
        ASSERT_EQ(UCS_OK, status) << ucs_status_string(status);
        if (is_put) {
            memcpy(&shadow[offset], local.ptr(offset), length);
        } else {
            ASSERT_EQ(0, memcmp(&shadow[offset], local.ptr(offset), length));
        }
    }
    EXPECT_TRUE(target.get<bool>()); /* Enough pages have moved */
    target.put(true);
    auto result = target.get<oracle_result>();
    target.put(true);
    EXPECT_EQ(0, target.join());
    EXPECT_EQ(0u, result.efault) << "of " << result.moved << " pages moved";
    EXPECT_GT(result.absent, 0u);
    EXPECT_GT(count[1], enough);
    EXPECT_GT(counter("assist_populate"), 0u);
}
