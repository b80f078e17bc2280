/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "fake_device.h"

extern "C" {
#include <ucm/regions/nprdma_reg.h>
}

#include <gtest/gtest.h>

#include <cerrno>
#include <cstdlib>
#include <set>
#include <string>

/*
 * The choice of on-demand paging: which device is used, and what happens if it
 * refuses something later. Whatever happens, nothing is leaked.
 */

struct odp_case {
    const char   *name;
    fake_lie_t   lie;
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
    {"good", FAKE_HONEST, 0, UCS_OK, ""},
    {"not_there", FAKE_NOT_THERE, 0, UCS_ERR_NO_DEVICE,
     "has no on-demand"},
    {"only_read", FAKE_NO_WRITE, 0, UCS_ERR_NO_DEVICE, "READ and WRITE"},
    {"reg_enomem", FAKE_REFUSES, ENOMEM, UCS_ERR_IO_ERROR,
     "registers no memory"},
    {"implicit_refused", FAKE_NO_IMPLICIT, EOPNOTSUPP, UCS_OK, ""},
    {"stuck", FAKE_STUCK, 0, UCS_ERR_IO_ERROR, "wrong data"},
    {"shared", FAKE_SHARED, 0, UCS_ERR_IO_ERROR, "writes to shared pages"},
    /* As soft-RoCE of Linux 7.2 */
    {"page_starts", FAKE_PAGE_STARTS, 0, UCS_ERR_IO_ERROR, "wrong data"}
};

INSTANTIATE_TEST_SUITE_P(all, test_odp_tier_choice,
                         ::testing::ValuesIn(odp_cases),
                         [](const auto &info) { return info.param.name; });

TEST_P(test_odp_tier_choice, is_used_only_if_it_is_right)
{
    const odp_case &it = GetParam();
    fake_device_t *device = fake_odp_open(it.lie, it.error);

    EXPECT_EQ(it.status, device->status);
    EXPECT_NE(std::string::npos, std::string(device->why).find(it.why))
            << device->why;
    if (device->status == UCS_OK) {
        EXPECT_FALSE(device->is_implicit);
        EXPECT_LT(0, device->reg_cost);
        EXPECT_STREQ("", device->why);
        fake_odp_close();
    }
    EXPECT_EQ(0, fake_num_mrs);
}

class test_odp_tier : public ::testing::Test {
protected:
    void SetUp() override
    {
        setenv("NPEMU_ODP", "explicit", 1);
        fake_device_t *device = fake_odp_open(FAKE_HONEST, 0);
        ASSERT_EQ(UCS_OK, device->status) << device->why;
        m_live = fake_num_mrs;
    }

    void TearDown() override
    {
        fake_odp_close();
        EXPECT_EQ(0, fake_num_mrs);
        unsetenv("NPEMU_ODP");
    }

    static constexpr uintptr_t place = 0x200000000000;
    int m_live;
};

TEST_F(test_odp_tier, refused_export_leaves_nothing)
{
    for (unsigned after : {0u, 1u}) {
        for (auto [error, status] :
             {std::pair{ENOMEM, UCS_ERR_EXCEEDS_LIMIT},
              std::pair{ENOSPC, UCS_ERR_EXCEEDS_LIMIT},
              std::pair{EINVAL, UCS_ERR_IO_ERROR}}) {
            fake_odp_refuse(after, error);
            EXPECT_EQ(status, fake_odp_export(place, 100,
                                                NPRDMA_REG_ACCESS_ALL));
            EXPECT_EQ(m_live, fake_num_mrs);
        }
    }
    fake_odp_refuse(0, 0);
    EXPECT_EQ(UCS_OK, fake_odp_export(place, 100, NPRDMA_REG_ACCESS_GET));
    EXPECT_EQ(m_live + 1, fake_num_mrs);
    fake_odp_unexport();
    EXPECT_EQ(m_live, fake_num_mrs);
}

/* A part is registered once for each direction, and a region has what begins in
 * its part, however it ends */
TEST_F(test_odp_tier, parts_are_registered_once)
{
    size_t part  = FAKE_ODP_PART_SIZE;
    int previous = fake_num_registrations;
    std::set<uint32_t> keys;

    for (int round = 0; round < 2; ++round) {
        for (int is_write : {0, 1}) {
            for (uintptr_t i : {0, 1, 1024, 2048}) {
                uintptr_t address = place + i * part;

                keys.insert(fake_odp_lkey(address, 1, is_write));
                keys.insert(fake_odp_lkey(address + part - 1, 1 << 20,
                                            is_write));
            }
        }
        EXPECT_EQ(8u, keys.size());
        EXPECT_EQ(0u, keys.count(0));
        EXPECT_EQ(previous + 8, fake_num_registrations);
    }
    EXPECT_EQ(0u, fake_odp_lkey(place, (2 << 20) + 1, 0)) << "too long";
    EXPECT_NE(0u, fake_odp_lkey(UINTPTR_MAX - 5000, 4096, 0)) << "last part";
}

/* Memory beyond the limit, and a part that the device has refused, are
 * copied */
TEST_F(test_odp_tier, parts_are_bounded)
{
    size_t part = FAKE_ODP_PART_SIZE;
    unsigned i, used = 1; /* By the check */

    fake_odp_refuse(0, ENOMEM);
    EXPECT_EQ(0u, fake_odp_lkey(place, 1, 0));
    ++used;
    fake_odp_refuse(0, 0);
    EXPECT_EQ(0u, fake_odp_lkey(place, 1, 0)) << "asked once";
    EXPECT_NE(0u, fake_odp_lkey(place, 1, 1)) << "the other direction";
    for (i = 1; fake_odp_lkey(place + i * part, 1, 0) != 0; ++i) {
        ASSERT_LE(i, fake_odp_max_parts());
    }
    EXPECT_NEAR(fake_odp_max_parts() - used, i - 1, 1);
    EXPECT_NE(0u, fake_odp_lkey(place + part, 1, 0)) << "those in use stay";
}
