/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "odp_device.h"

extern "C" {
#include <ucm/regions/nprdma_reg.h>
}

#include <gtest/gtest.h>

#include <cerrno>
#include <cstdlib>
#include <set>
#include <string>

#include <sys/mman.h>

/*
 * The choice of on-demand paging: which device is used, and what happens if it
 * refuses something later. Whatever happens, nothing is leaked.
 */

struct odp_case {
    const char   *name;
    odp_fault_t  fault;
    int          error;
    ucs_status_t status;
    const char   *why;         /* Text in the reason */
};

static void PrintTo(const odp_case &it, std::ostream *out) { *out << it.name; }

class test_odp_tier_choice : public ::testing::TestWithParam<odp_case> {
protected:
    void SetUp() override { setenv("NPEMU_ODP", "explicit", 1); }
    void TearDown() override { unsetenv("NPEMU_ODP"); }
};

static const odp_case odp_cases[] = {
    {"good", ODP_FAULT_NONE, 0, UCS_OK, ""},
    {"query_fails", ODP_FAULT_QUERY, EIO, UCS_ERR_NO_DEVICE, "does not tell"},
    {"not_there", ODP_FAULT_NOT_THERE, 0, UCS_ERR_NO_DEVICE,
     "has no on-demand"},
    {"only_read", ODP_FAULT_NO_WRITE, 0, UCS_ERR_NO_DEVICE, "READ and WRITE"},
    {"reg_enomem", ODP_FAULT_REFUSES, ENOMEM, UCS_ERR_IO_ERROR,
     "registers no memory"},
    {"implicit_refused", ODP_FAULT_NO_IMPLICIT, EOPNOTSUPP, UCS_OK, ""},
    {"no_rts", ODP_FAULT_NO_RTS, 0, UCS_ERR_IO_ERROR, "no connection"},
    {"shifted", ODP_FAULT_SHIFTED, 0, UCS_ERR_IO_ERROR, "wrong data"},
    {"stuck", ODP_FAULT_STUCK, 0, UCS_ERR_IO_ERROR, "wrong data"},
    {"shared", ODP_FAULT_SHARED, 0, UCS_ERR_IO_ERROR, "writes to shared pages"},
    /* As soft-RoCE of Linux 7.2 */
    {"page_starts", ODP_FAULT_PAGE_STARTS, 0, UCS_ERR_IO_ERROR, "wrong data"}
};

INSTANTIATE_TEST_SUITE_P(all, test_odp_tier_choice,
                         ::testing::ValuesIn(odp_cases),
                         [](const auto &info) { return info.param.name; });

TEST_P(test_odp_tier_choice, is_used_only_if_it_is_right)
{
    const odp_case &it = GetParam();
    odp_open_result_t result;

    odp_device_open(it.fault, it.error, &result);
    EXPECT_EQ(it.status, result.status);
    EXPECT_NE(std::string::npos, std::string(result.why).find(it.why))
            << result.why;
    if (result.status == UCS_OK) {
        EXPECT_FALSE(result.is_implicit);
        EXPECT_LT(0, result.reg_cost);
        EXPECT_STREQ("", result.why);
        odp_device_close();
    }
    EXPECT_EQ(0u, odp_device_live());
}


class test_odp_tier : public ::testing::Test {
protected:
    void SetUp() override
    {
        odp_open_result_t result;

        setenv("NPEMU_ODP", "explicit", 1);
        odp_device_open(ODP_FAULT_NONE, 0, &result);
        ASSERT_EQ(UCS_OK, result.status) << result.why;
        m_live = odp_device_live();
    }

    void TearDown() override
    {
        odp_device_close();
        EXPECT_EQ(0u, odp_device_live());
        unsetenv("NPEMU_ODP");
    }

    static constexpr uintptr_t place = 0x200000000000;
    unsigned m_live;
};

TEST_F(test_odp_tier, refused_export_leaves_nothing)
{
    for (unsigned after : {0u, 1u}) {
        for (auto [error, status] :
             {std::pair{ENOMEM, UCS_ERR_EXCEEDS_LIMIT},
              std::pair{ENOSPC, UCS_ERR_EXCEEDS_LIMIT},
              std::pair{EINVAL, UCS_ERR_IO_ERROR}}) {
            odp_device_refuse(after, error);
            EXPECT_EQ(status, odp_device_export(place, 100,
                                                NPRDMA_REG_ACCESS_ALL));
            EXPECT_EQ(m_live, odp_device_live());
        }
    }
    odp_device_refuse(0, 0);
    EXPECT_EQ(UCS_OK, odp_device_export(place, 100, NPRDMA_REG_ACCESS_GET));
    EXPECT_EQ(m_live + 1, odp_device_live());
    odp_device_unexport();
    EXPECT_EQ(m_live, odp_device_live());
}

/* A part is registered once for each direction, and a region has what begins in
 * its part, however it ends */
TEST_F(test_odp_tier, parts_are_registered_once)
{
    size_t part       = odp_device_part_size();
    unsigned previous = odp_device_registrations();
    std::set<uint32_t> keys;

    for (int round = 0; round < 2; ++round) {
        for (int is_write : {0, 1}) {
            for (uintptr_t i : {0, 1, 1024, 2048}) {
                uintptr_t address = place + i * part;

                keys.insert(odp_device_lkey(address, 1, is_write));
                keys.insert(odp_device_lkey(address + part - 1, 1 << 20,
                                            is_write));
            }
        }
        EXPECT_EQ(8u, keys.size());
        EXPECT_EQ(0u, keys.count(0));
        EXPECT_EQ(previous + 8, odp_device_registrations());
    }
    EXPECT_EQ(0u, odp_device_lkey(place, (2 << 20) + 1, 0)) << "too long";
    EXPECT_NE(0u, odp_device_lkey(UINTPTR_MAX - 5000, 4096, 0)) << "last part";
}

/* Memory beyond the limit, and a part that the device has refused, are
 * copied */
TEST_F(test_odp_tier, parts_are_bounded)
{
    size_t part = odp_device_part_size();
    unsigned i, used = 1; /* By the check */

    odp_device_refuse(0, ENOMEM);
    EXPECT_EQ(0u, odp_device_lkey(place, 1, 0));
    ++used;
    odp_device_refuse(0, 0);
    EXPECT_EQ(0u, odp_device_lkey(place, 1, 0)) << "asked once";
    EXPECT_NE(0u, odp_device_lkey(place, 1, 1)) << "the other direction";
    for (i = 1; odp_device_lkey(place + i * part, 1, 0) != 0; ++i) {
        ASSERT_LE(i, odp_device_max_parts());
    }
    EXPECT_NEAR(odp_device_max_parts() - used, i - 1, 1);
    EXPECT_NE(0u, odp_device_lkey(place + part, 1, 0)) << "those in use stay";
}

int main(int argc, char **argv)
{
    ::testing::InitGoogleTest(&argc, argv);
    return RUN_ALL_TESTS();
}
