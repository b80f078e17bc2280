/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "rmem.h"
#include "rmem_wire.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

namespace {

const uint64_t PAGES = 10;

/* A LINES message; what it lacks in data is zeros */
struct lines_message {
    rmem_lines_t               header;
    std::vector<rmem_record_t> records;
    size_t                     line_bytes;
    size_t                     header_length = sizeof(header);
    uint64_t                   pages         = PAGES;

    const char *parse(rmem_record_t *parsed = nullptr) const
    {
        size_t length = records.size() * sizeof(records[0]);
        /* Unaligned, and of exactly this size for the sanitizers */
        std::vector<uint8_t> data(1 + length + line_bytes);
        rmem_record_t copies[RMEM_MAX_RECORDS];
        rmem_lines_t lines;

        memcpy(data.data() + 1, records.data(), length);
        return rmem_wire_parse_lines(&header, header_length, data.data() + 1,
                                     data.size() - 1, pages, &lines,
                                     parsed ? parsed : copies);
    }
};

/* Two lines of the first page, all of the last one */
lines_message good()
{
    return {{1, 2, 0}, {{0, 0, 0x8000000000000001}, {9, 0, UINT64_MAX}},
            2 * RMEM_LINE_SIZE + RMEM_PAGE_SIZE};
}

lines_message good_free()
{
    return {{1, 1, RMEM_LINES_FREE}, {{3, 7, 0}}, 0};
}

struct refusal {
    const char *text;
    void       (*change)(lines_message &message);
};

void expect_refused(const lines_message &base,
                    const std::vector<refusal> &refusals)
{
    ASSERT_EQ(base.parse(), nullptr);
    for (const auto &refusal : refusals) {
        lines_message message = base;

        refusal.change(message);
        const char *wrong = message.parse();
        ASSERT_NE(wrong, nullptr) << refusal.text << " is accepted";
        EXPECT_NE(std::string(wrong).find(refusal.text), std::string::npos)
            << wrong;
    }
}

} // namespace

TEST(test_rmem_wire, lines_are_parsed)
{
    rmem_record_t records[RMEM_MAX_RECORDS];

    ASSERT_EQ(good().parse(records), nullptr);
    EXPECT_EQ(records[1].page, 9u);
    EXPECT_EQ(records[0].mask, 0x8000000000000001);
    ASSERT_EQ(good_free().parse(records), nullptr);
    EXPECT_EQ(records[0].count, 7u);

    lines_message full = {{1, RMEM_MAX_RECORDS, 0},
                          std::vector<rmem_record_t>(RMEM_MAX_RECORDS,
                                                     {5, 0, UINT64_MAX}),
                          RMEM_MAX_RECORDS * RMEM_PAGE_SIZE};
    EXPECT_EQ(full.parse(), nullptr);
}

TEST(test_rmem_wire, malformed_lines_are_refused)
{
    using lines = lines_message;

    expect_refused(good(), {
        {"header of another length", [](lines &m) { --m.header_length; }},
        {"no records", [](lines &m) { m.header.records = 0; }},
        {"too many",
         [](lines &m) { m.header.records = RMEM_MAX_RECORDS + 1; }},
        {"shorter than its records",
         [](lines &m) { m.header.records = 60; m.line_bytes = 0; }},
        {"unknown flags", [](lines &m) { m.header.flags = 2; }},
        {"without lines", [](lines &m) { m.records[0].mask = 0; }},
        {"with a count", [](lines &m) { m.records[0].count = 1; }},
        {"leaves the extent", [](lines &m) { m.records[1].page = PAGES; }},
        {"another length than its masks", [](lines &m) { --m.line_bytes; }},
        {"another length than its masks", [](lines &m) { ++m.line_bytes; }}
    });
    expect_refused(good_free(), {
        {"leaves the extent", [](lines &m) { m.records[0].count = 8; }},
        {"leaves the extent",
         [](lines &m) { m.records[0] = {1, UINT32_MAX, 0}; }},
        {"leaves the extent",
         [](lines &m) { m.records[0] = {UINT32_MAX, 1, 0}; }},
        {"drops no pages", [](lines &m) { m.records[0].count = 0; }},
        {"drops too many pages",
         [](lines &m) {
             m.pages          = UINT32_MAX;
             m.header.records = 2;
             m.records        = {{0, RMEM_MAX_CLEAR, 0}, {7, 1, 0}};
         }},
        {"has a mask", [](lines &m) { m.records[0].mask = 1; }},
        {"another length", [](lines &m) { m.line_bytes = 1; }}
    });
}

TEST(test_rmem_wire, hello_is_checked)
{
    rmem_hello_t good = {RMEM_WIRE_MAGIC, RMEM_WIRE_VERSION, 0, {1, 2}, 4096};
    rmem_hello_t hello, bad = good;

    ASSERT_EQ(rmem_wire_parse_hello(&good, sizeof(good), 0, &hello), nullptr);
    EXPECT_EQ(memcmp(&good, &hello, sizeof(hello)), 0);
    for (size_t length = 0; length < sizeof(good); ++length) {
        EXPECT_NE(rmem_wire_parse_hello(&good, length, 0, &hello), nullptr);
    }
    EXPECT_NE(rmem_wire_parse_hello(&good, sizeof(good), 1, &hello), nullptr);
    bad.magic = 1;
    EXPECT_NE(rmem_wire_parse_hello(&bad, sizeof(bad), 0, &hello), nullptr);
    bad      = good;
    bad.zero = 1;
    EXPECT_NE(rmem_wire_parse_hello(&bad, sizeof(bad), 0, &hello), nullptr);
    for (uint64_t bytes : {UINT64_C(0), RMEM_MAX_BYTES + 1, UINT64_MAX}) {
        bad       = good;
        bad.bytes = bytes;
        EXPECT_NE(rmem_wire_parse_hello(&bad, sizeof(bad), 0, &hello), nullptr);
    }
    /* Another version may be longer */
    bad         = good;
    bad.version = RMEM_WIRE_VERSION + 1;
    ASSERT_EQ(rmem_wire_parse_hello(&bad, sizeof(bad), 7, &hello), nullptr);
    EXPECT_EQ(hello.version, RMEM_WIRE_VERSION + 1);
}

TEST(test_rmem_wire, answers_are_checked)
{
    rmem_welcome_t good = {RMEM_OK, 20, 4096, 4096}, welcome, bad = good;
    rmem_ack_t ack = {7, RMEM_ERR_RANGE}, parsed;

    EXPECT_EQ(rmem_wire_parse_welcome(&good, sizeof(good), 20, &welcome),
              nullptr);
    EXPECT_NE(rmem_wire_parse_welcome(&good, sizeof(good), 21, &welcome),
              nullptr);
    EXPECT_NE(rmem_wire_parse_welcome(&good, sizeof(good) - 1, 20, &welcome),
              nullptr);
    for (int32_t status : {1, -9, -4}) {
        bad.status = status;
        EXPECT_NE(rmem_wire_parse_welcome(&bad, sizeof(bad), 20, &welcome),
                  nullptr) << status;
    }
    bad.key_length = 0;
    EXPECT_EQ(rmem_wire_parse_welcome(&bad, sizeof(bad), 0, &welcome), nullptr);
    bad.status = RMEM_OK;
    EXPECT_NE(rmem_wire_parse_welcome(&bad, sizeof(bad), 0, &welcome), nullptr);

    EXPECT_EQ(rmem_wire_parse_ack(&ack, sizeof(ack), 0, &parsed), nullptr);
    EXPECT_NE(rmem_wire_parse_ack(&ack, sizeof(ack), 1, &parsed), nullptr);
    EXPECT_NE(rmem_wire_parse_ack(&ack, sizeof(ack) - 1, 0, &parsed), nullptr);
    ack.status = 1;
    EXPECT_NE(rmem_wire_parse_ack(&ack, sizeof(ack), 0, &parsed), nullptr);
}

TEST(test_rmem_wire, lines_are_carried)
{
    std::vector<uint8_t> from(RMEM_PAGE_SIZE), to(RMEM_PAGE_SIZE, 0xaa),
        message(RMEM_PAGE_SIZE);

    for (size_t i = 0; i < from.size(); ++i) {
        from[i] = i / RMEM_LINE_SIZE + 100;
    }
    for (uint64_t mask : {UINT64_C(1), UINT64_C(1) << 63, UINT64_C(0x50a1),
                          UINT64_MAX}) {
        size_t length = __builtin_popcountll(mask) * RMEM_LINE_SIZE;

        std::fill(to.begin(), to.end(), 0xaa);
        EXPECT_EQ(rmem_wire_gather(message.data(), from.data(), mask),
                  message.data() + length);
        EXPECT_EQ(rmem_wire_scatter(message.data(), to.data(), mask),
                  message.data() + length);
        for (size_t i = 0; i < to.size(); ++i) {
            bool is_carried = (mask >> (i / RMEM_LINE_SIZE)) & 1;
            ASSERT_EQ(to[i], is_carried ? from[i] : 0xaa) << mask << " " << i;
        }
    }
}

/* Against a comparison of bytes */
TEST(test_rmem_wire, differences_are_found)
{
    alignas(64) static char page[RMEM_PAGE_SIZE], twin[RMEM_PAGE_SIZE];
    unsigned seed = 1;

    EXPECT_EQ(0u, rmem_wire_diff(page, twin));
    for (unsigned bit = 0; bit < RMEM_PAGE_SIZE * 8; ++bit) {
        page[bit / 8] ^= 1 << (bit % 8);
        ASSERT_EQ(UINT64_C(1) << (bit / 8 / RMEM_LINE_SIZE),
                  rmem_wire_diff(page, twin));
        page[bit / 8] ^= 1 << (bit % 8);
    }

    for (unsigned round = 0; round < 2000; ++round) {
        uint64_t expected = 0;

        for (unsigned changes = rand_r(&seed) % 100; changes > 0; --changes) {
            page[rand_r(&seed) % sizeof(page)] = rand_r(&seed);
        }
        for (size_t i = 0; i < sizeof(page); ++i) {
            expected |= uint64_t(page[i] != twin[i]) << (i / RMEM_LINE_SIZE);
        }
        ASSERT_EQ(expected, rmem_wire_diff(page, twin));
        memcpy(twin, page, sizeof(twin));
    }
}
