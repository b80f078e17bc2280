/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* On-demand paging of the emulated RNIC (NPEMU_ODP). */

#include "npemu_test.h"

#include <cerrno>
#include <cstdlib>

#include <sys/mman.h>

using namespace npt;

namespace {

constexpr int ODP     = (ACCESS_ALL & ~IBV_ACCESS_REMOTE_ATOMIC) |
                        IBV_ACCESS_ON_DEMAND;
constexpr size_t PAGE = 4096;

} // namespace

class test_odp : private Env, public testing::TestWithParam<const char *> {
protected:
    test_odp() : Env("NPEMU_ODP", GetParam()) {}

    bool is_implicit() const { return !strcmp(GetParam(), "implicit"); }

    Device device;
};

INSTANTIATE_TEST_SUITE_P(, test_odp, testing::Values("explicit", "implicit"),
                         [](const auto &info) { return info.param; });

TEST_P(test_odp, attributes_and_refusals)
{
    ibv_device_attr_ex ex = {};

    ASSERT_EQ(0, ibv_query_device_ex(device.context, nullptr, &ex));
    EXPECT_EQ(IBV_ODP_SUPPORT | (is_implicit() ? IBV_ODP_SUPPORT_IMPLICIT : 0),
              ex.odp_caps.general_caps);
    EXPECT_EQ(uint32_t(IBV_ODP_SUPPORT_READ | IBV_ODP_SUPPORT_WRITE),
              ex.odp_caps.per_transport_caps.rc_odp_caps);
    EXPECT_EQ(0u, ex.odp_caps.per_transport_caps.ud_odp_caps);

    Buffer buffer(device, PAGE, -1);
    EXPECT_EQ(nullptr, npemu_reg_mr(device.pd, buffer.data, PAGE,
                                    ODP | IBV_ACCESS_REMOTE_ATOMIC));
    EXPECT_EQ(EOPNOTSUPP, errno);

    ibv_mr *all = npemu_reg_mr(device.pd, nullptr, SIZE_MAX, ODP);
    EXPECT_EQ(is_implicit(), all != nullptr);
    if (all != nullptr) {
        EXPECT_EQ(0, npemu_dereg_mr(all));
    } else {
        EXPECT_EQ(EINVAL, errno);
    }
}

/* The device follows the address. The transport's tests show that data does. */
TEST_P(test_odp, nothing_is_pinned)
{
    size_t before = npemu_pinned();
    Buffer buffer(device, 4 * PAGE, ODP);

    ASSERT_NE(nullptr, buffer.mr);
    EXPECT_EQ(before, npemu_pinned());
}

/* What is not mapped, or not writable, is an error of the side that has it,
 * never a signal */
TEST_P(test_odp, what_is_not_there_is_an_error)
{
    enum { UNMAPPED_REMOTE, READ_ONLY_REMOTE, UNMAPPED_LOCAL };

    for (int what : {UNMAPPED_REMOTE, READ_ONLY_REMOTE, UNMAPPED_LOCAL}) {
        Buffer local(device, 4 * PAGE, ODP), remote(device, 4 * PAGE, ODP);
        Pair pair(device);

        remote.fill(1);
        local.fill(2);
        if (what == READ_ONLY_REMOTE) {
            ASSERT_EQ(0, mprotect(remote.data + PAGE, PAGE, PROT_READ));
        } else {
            ASSERT_EQ(0, munmap((what == UNMAPPED_LOCAL ? local : remote).data +
                                PAGE, PAGE));
        }
        pair.a.write(1, {local.sge()}, remote.remote());
        EXPECT_TRUE(pair.cq_a.expect(1, (what == UNMAPPED_LOCAL) ?
                                        IBV_WC_LOC_PROT_ERR :
                                        IBV_WC_REM_OP_ERR)) << what;
    }
}
