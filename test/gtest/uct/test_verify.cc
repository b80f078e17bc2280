/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include <nprdma_page_state.h> /* Has C++ headers: not in extern "C" */

extern "C" {
#include "uct/ib/nprdma/rma/nprdma_verify.h"
}

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

static constexpr uint64_t signature = 0x0123456789abcdef;
static constexpr size_t   line      = NPRDMA_LINE_SIZE;

/*
 * Data as it arrives from a range of remote memory, with some lines from the
 * signature page. Real data has no byte in common with the signature.
 */
class arrival {
public:
    /* At a local address with another alignment than the remote one */
    arrival(uint64_t address, size_t length, size_t misalign) :
        m_address(address), m_length(length), m_storage(length + 64),
        m_data(m_storage.data() + misalign)
    {
        memset(m_data, 0x5a, length);
    }

    /* Bytes of remote addresses [begin, end) come from the signature page */
    void absent(uint64_t begin, uint64_t end)
    {
        uint8_t bytes[8];

        memcpy(bytes, &signature, sizeof(bytes));
        for (uint64_t i = std::max(begin, m_address);
             i < std::min(end, m_address + m_length); ++i) {
            m_data[i - m_address] = bytes[i % 8];
        }
    }

    /* The function that only tells whether a line is suspect agrees */
    size_t scan() const
    {
        size_t count = uct_nprdma_verify_scan(m_data, m_address, m_length,
                                              signature);

        EXPECT_EQ(count > 0, uct_nprdma_verify_is_suspect(
                                     m_data, m_address, m_length, signature))
                << m_length << " bytes at " << m_address;
        return count;
    }

    uint8_t *data() { return m_data; }

private:
    uint64_t             m_address;
    size_t               m_length;
    std::vector<uint8_t> m_storage;
    uint8_t              *m_data;
};

/* Every offset, every length, every line absent on its own */
TEST(test_verify, any_line_is_found)
{
    for (size_t offset = 0; offset < line; ++offset) {
        for (size_t length = 1; length < 11 * line; length += 1 + length / 97) {
            uint64_t begin = 0x10000 + offset, end = begin + length;
            for (uint64_t at = begin & ~(line - 1); at < end; at += line) {
                arrival data(begin, length, (offset + length) % 13);
                data.absent(at, at + line);
                ASSERT_EQ(1u, data.scan())
                        << offset << " " << length << " line " << at;
            }
        }
    }
}

/* Only the first whole word of a line counts, because it arrives first */
TEST(test_verify, first_word_decides)
{
    arrival data(0x1000, 4 * line, 0);

    for (size_t offset = 8; offset < line; offset += 8) {
        memcpy(data.data() + line + offset, &signature, sizeof(signature));
    }
    EXPECT_EQ(0u, data.scan());
    memcpy(data.data() + line, &signature, sizeof(signature));
    EXPECT_EQ(1u, data.scan());
}

/* Lines of which the range has no whole word are compared byte by byte */
TEST(test_verify, partial_words)
{
    uint8_t bytes[8];

    memcpy(bytes, &signature, sizeof(bytes));
    for (size_t offset = 0; offset < line; ++offset) {
        for (size_t length = 1; (length < 15) && (offset + length <= line);
             ++length) {
            uint64_t begin = 0x3000 + offset;
            size_t skip    = -begin & 7;
            arrival absent(begin, length, 3);
            absent.absent(begin, begin + length);
            ASSERT_EQ(1u, absent.scan()) << offset << " " << length;
            if (skip + 8 <= length) {
                continue;
            }

            /* One different byte makes the line real */
            for (size_t i = 0; i < length; ++i) {
                arrival data(begin, length, 3);
                data.absent(begin, begin + length);
                data.data()[i] ^= 1;
                ASSERT_EQ(0u, data.scan())
                        << offset << " " << length << " " << i;
            }
        }
    }
}

TEST(test_verify, states)
{
    static constexpr size_t count = 67;
    std::vector<uint32_t> before(count), after;

    for (size_t i = 0; i < count; ++i) {
        before[i] = (i << 2) | 3;
    }
    after = before;
    EXPECT_TRUE(uct_nprdma_verify_usable(before.data(), count, 1));
    EXPECT_TRUE(uct_nprdma_verify_states(before.data(), after.data(), count,
                                         1));
    EXPECT_TRUE(uct_nprdma_verify_states(before.data(), after.data(), count,
                                         2));

    for (size_t i = 0; i < count; ++i) {
        /* The page has vanished and returned */
        after[i] += 8;
        EXPECT_FALSE(uct_nprdma_verify_states(before.data(), after.data(),
                                              count, 1)) << i;
        after[i] = before[i];

        /* Absent before and after: equal, but not valid */
        for (uint32_t bit : {1, 2}) {
            before[i] = after[i] &= ~bit;
            EXPECT_FALSE(uct_nprdma_verify_states(before.data(), after.data(),
                                                  count, bit)) << i;
            EXPECT_FALSE(uct_nprdma_verify_usable(before.data(), count, bit));
            EXPECT_TRUE(uct_nprdma_verify_states(before.data(), after.data(),
                                                 count, 3 ^ bit)) << i;
            before[i] = after[i] |= bit;
        }
    }
    EXPECT_TRUE(uct_nprdma_verify_states(before.data(), after.data(), count,
                                         3));
}
