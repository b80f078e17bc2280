/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "swapper.h"
#include "test_op.h"

#include <atomic>
#include <cstring>
#include <random>
#include <thread>

/*
 * Pages of the target really vanish, repeatedly, while an initiator accesses
 * them. The kernel itself reports an access of the NIC to an absent page.
 */

namespace {

constexpr size_t area     = 256 << 10;
constexpr uint64_t enough = 100;

struct oracle_report {
    int      error;   /* The reason if there is no oracle */
    uint64_t address;
};

struct oracle_result {
    uint64_t out, in, efault, absent;
};

} // namespace

PEER_FUNCTION(oracle_target)
{
    entity self({{"REGION_SIZE", "2m"}, {"SLICE", "64k"}});
    paged_buffer memory(self, area);
    std::atomic<bool> quit(false);
    oracle_result result = {};
    uint64_t seed        = parent.get<uint64_t>();

    memset(memory.ptr(), 1, area);
    parent.put_bytes(self.address());
    parent.put(oracle_report{swapper_start(memory.ptr(), area),
                             memory.address()});
    parent.put_bytes(memory.packed_key());
    if (!parent.get<bool>()) {
        return 0;
    }

    std::thread thread([&]() {
        std::mt19937_64 random(seed);
        bool told = false;
        while (!quit) {
            swapper_out(random() % (area / page_size));
            ++result.out;
            if (!told && (result.out > enough) &&
                (swapper_num_in() > enough)) {
                parent.put(true);
                told = true;
            }
            /* Rare enough that some operations complete */
            for (double end = now() + 1e-6 * (random() % 200); now() < end;) {
                sched_yield();
            }
        }
        if (!told) {
            parent.put(false);
        }
    });
    parent.get<bool>();
    quit = true;
    thread.join();
    result.in     = swapper_num_in();
    result.efault = memory.stats().efault;
    result.absent = memory.stats().absent_reads + memory.stats().absent_writes;
    swapper_stop();
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

    SCOPED_TRACE(testing::Message() << "seed " << seed);
    target.put(seed);
    uct_ep_h ep = m_a->connect(target.get_bytes());
    auto report = target.get<oracle_report>();
    uct_rkey_t rkey = m_a->unpack(target.get_bytes());
    if (report.error != 0) {
        target.put(false);
        EXPECT_EQ(0, target.join());
        GTEST_SKIP() << "no userfaultfd for user mode: "
                     << strerror(report.error);
    }

    paged_buffer local(*m_a, area);
    std::vector<char> shadow(area, 1);
    std::vector<size_t> lengths = {100, 4096, 8000, 9000, 30000, 70000};
    target.put(true);
    /* For a fixed time, on a busy machine until enough has happened */
    double end   = now() + 3;
    double limit = end + patience.count();
    while ((now() < end) ||
           ((!target.ready() || (counter("assist_populate") == 0)) &&
            (now() < limit))) {
        size_t length = lengths[random() % lengths.size()];
        size_t offset = random() % (area - length);
        bool is_put   = (random() % 2) == 0;
        completion comp;

        uct_iov_t iov = {local.ptr(offset), length, local.memh(), 0, 1};
        memset(local.ptr(offset), is_put ? (int)(random() % 255) : 0xee,
               length);
        ASSERT_FALSE(UCS_STATUS_IS_ERR(m_a->retry([&]() {
            return is_put ?
                   uct_ep_put_zcopy(ep, &iov, 1, report.address + offset, rkey,
                                    &comp) :
                   uct_ep_get_zcopy(ep, &iov, 1, report.address + offset, rkey,
                                    &comp);
        })));
        m_a->wait([&]() { return comp.done; });
        ASSERT_EQ(UCS_OK, comp.status) << ucs_status_string(comp.status);
        if (is_put) {
            memcpy(&shadow[offset], local.ptr(offset), length);
        } else {
            ASSERT_EQ(0, memcmp(&shadow[offset], local.ptr(offset), length));
        }
    }
    target.put(true);
    EXPECT_TRUE(target.get<bool>());
    auto result = target.get<oracle_result>();
    target.put(true);
    EXPECT_EQ(0, target.join());
    EXPECT_EQ(0u, result.efault) << "of " << result.out << " pages taken";
    EXPECT_GT(result.out, enough);
    EXPECT_GT(result.in, enough);
    EXPECT_GT(result.absent, 0u);
    EXPECT_GT(counter("assist_populate"), 0u);
}
