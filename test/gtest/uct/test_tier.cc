/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "fake_device.h"

#include <ucm/api/ucm.h>
#include <ucs/debug/log.h>
#include <ucs/type/status.h>

#include <gtest/gtest.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

namespace {

struct line_t {
    ucs_log_level_t level;
    std::string     text;
};

/* What nprdma logs about zero copy, and warnings of others */
std::vector<line_t> *lines;

ucs_log_func_rc_t collect(const char *file, unsigned, const char *,
                          ucs_log_level_t level,
                          const ucs_log_component_config_t *,
                          const char *message, va_list args)
{
    char text[2048];

    vsnprintf(text, sizeof(text), message, args);
    if ((level <= UCS_LOG_LEVEL_WARN) ||
        (strstr(file, "nprdma_tier") != nullptr)) {
        lines->push_back({level, text});
    }
    return UCS_LOG_FUNC_RC_STOP;
}

size_t num_descriptors()
{
    auto begin = std::filesystem::directory_iterator("/proc/self/fd");
    return std::distance(begin, std::filesystem::directory_iterator());
}

} // namespace

/* How a memory domain on a device with views gets zero copy, or does not */
class test_tier : public ::testing::Test {
protected:
    static constexpr size_t mib = 1u << 20;

    void SetUp() override
    {
        /* Allocates what a process allocates once */
        ASSERT_NE(nullptr, fake_open(&params));
        fake_close();
        m_descriptors = num_descriptors();
        lines         = &m_lines;
        ucs_log_push_handler(collect);
    }

    void TearDown() override
    {
        ucs_log_pop_handler();
        if (device != nullptr) {
            fake_close();
        }
        /* Nothing is left of any try */
        EXPECT_EQ(m_descriptors, num_descriptors());
        EXPECT_EQ(0, fake_num_open);
        EXPECT_EQ(0, fake_num_mrs);
    }

    void open()
    {
        device = fake_open(&params);
        ASSERT_NE(nullptr, device);
    }

    /* No zero copy, with the words in one line */
    void expect_none(ucs_status_t status, ucs_log_level_t level,
                     std::initializer_list<std::string> words)
    {
        open();
        EXPECT_EQ(status, device->status);
        EXPECT_FALSE(device->has_zcopy);
        ASSERT_EQ(1u, m_lines.size());
        EXPECT_EQ(level, m_lines[0].level);
        for (auto &word : words) {
            EXPECT_NE(std::string::npos, m_lines[0].text.find(word))
                    << m_lines[0].text;
        }
    }

    void expect_copy(const std::string &reason, ucs_log_level_t level)
    {
        expect_none(UCS_OK, level, {"no zero copy", reason});
    }

    void expect_refused(const std::string &reason)
    {
        expect_none(UCS_ERR_INVALID_PARAM, UCS_LOG_LEVEL_ERROR, {reason});
    }

    void expect_zcopy()
    {
        open();
        EXPECT_EQ(UCS_OK, device->status);
        EXPECT_TRUE(device->has_zcopy);
        for (auto &line : m_lines) {
            EXPECT_GT(line.level, UCS_LOG_LEVEL_WARN) << line.text;
        }
    }

    fake_params_t params  = fake_params_t{FAKE_AUTO, FAKE_HONEST, 16 * mib,
                                          0, 0, 0, 0, 0, 0, 0};
    fake_device_t *device = nullptr;

private:
    std::vector<line_t> m_lines;
    size_t              m_descriptors;
};

TEST_F(test_tier, honest_device)
{
    expect_zcopy();
    EXPECT_EQ(16 * mib, device->region_size);
    EXPECT_GT(device->region_time, 0);
    /* The check's region: two views and the states */
    EXPECT_EQ(3, fake_num_mrs);
    /* The back end's flush is the drain, also for a revocation */
    EXPECT_EQ(0u, device->drains);
    /* Pages in the counters are those of the program, so that users and tests
     * can draw conclusions from them */
    EXPECT_EQ(0u, device->counted_pages);
}

/* What is unmapped is known without hooks */
TEST_F(test_tier, honest_device_without_memory_events)
{
    ucm_global_config_t saved = ucm_global_opts, opts = saved;

    opts.enable_events = 0;
    ucm_set_global_opts(&opts);
    expect_zcopy();
    ucm_set_global_opts(&saved);
}

TEST_F(test_tier, emulation_is_not_for_real_devices)
{
    params.monitor = FAKE_EMULATED;
    expect_refused("UCX_NPRDMA_MONITOR=emulated: not for this kind");
}

TEST_F(test_tier, refused_by_the_module_on_request)
{
    params.open_error = 1;
    params.monitor    = FAKE_KERNEL;
    expect_refused("UCX_NPRDMA_MONITOR=kernel: the fake is refused");
}

/* mlx5 without umr_extended_translation_offset takes less than 65536 pages,
 * which is the usual size of a region */
TEST_F(test_tier, half_the_size)
{
    params.region_size = 256 * mib;
    params.too_large   = 256 * mib;
    expect_zcopy();
    EXPECT_EQ(128 * mib, device->region_size);

    /* Across the border of two regions: not both of them */
    uint64_t border = UINT64_C(0x300000000000);
    EXPECT_EQ(202 * mib, fake_register(border - 100 * mib - 4096, 200 * mib));
}

/* What a device lacks or refuses. What others may release is worth a
 * warning. */
struct lack_t {
    void            (*take)(fake_params_t &params);
    const char      *reason;
    ucs_log_level_t level;
};

static const lack_t lacks[] = {
    {[](auto &params) { params.no_backend = 1; }, "nothing watches memory",
     UCS_LOG_LEVEL_INFO},
    {[](auto &params) { params.open_error = 1; },
     "kernel: the fake is refused", UCS_LOG_LEVEL_INFO},
    {[](auto &params) { params.no_dmabuf = 1; }, "rdma-core is too old",
     UCS_LOG_LEVEL_INFO},
    {[](auto &params) { params.is_iwarp = 1; }, "neither InfiniBand nor RoCE",
     UCS_LOG_LEVEL_INFO},
    {[](auto &params) { params.no_read = 1; }, "no RDMA READ",
     UCS_LOG_LEVEL_INFO},
    {[](auto &params) { params.too_large = 1; },
     "the device refuses a region of 8388608 bytes: Invalid",
     UCS_LOG_LEVEL_INFO},
    {[](auto &params) { params.mr_error = ENOMEM; },
     "the device refuses a region of 16777216 bytes: Cannot allocate memory",
     UCS_LOG_LEVEL_WARN}
};

class test_tier_lack : public test_tier,
                       public ::testing::WithParamInterface<lack_t> {
};

TEST_P(test_tier_lack, is_the_reason)
{
    GetParam().take(params);
    expect_copy(GetParam().reason, GetParam().level);
}

INSTANTIATE_TEST_SUITE_P(all, test_tier_lack, ::testing::ValuesIn(lacks));

/* The user has the driver make queue pairs on which a READ passes a WRITE */
TEST_F(test_tier, out_of_order_placement_is_the_reason)
{
    static const char *name = "MLX5_RELAXED_PACKET_ORDERING_ON";

    setenv(name, "all", 1);
    expect_copy(name, UCS_LOG_LEVEL_INFO);
    unsetenv(name);
}

/* The check of the device finds each lie, in time to use copy mode */
struct lie_t {
    fake_lie_t lie;
    const char *found;
};

class test_tier_lie : public test_tier,
                      public ::testing::WithParamInterface<lie_t> {
};

TEST_P(test_tier_lie, is_found)
{
    params.lie = GetParam().lie;
    expect_copy(GetParam().found, UCS_LOG_LEVEL_WARN);
}

INSTANTIATE_TEST_SUITE_P(
        all, test_tier_lie,
        ::testing::Values(
                lie_t{FAKE_SIGNATURE, "does not read as the signature"},
                lie_t{FAKE_OLD_STATES, "the device reads are old"},
                lie_t{FAKE_NOT_TAKEN, "has bits after its invalidation"},
                lie_t{FAKE_WRITES_ABSENT, "WRITE reaches an absent page"},
                lie_t{FAKE_LATE_WRITE, "writes a page after its invalidation"},
                lie_t{FAKE_LATE_READ, "reads a page after its invalidation"},
                lie_t{FAKE_OVERTAKEN, "overtakes the WRITE before it"}));
