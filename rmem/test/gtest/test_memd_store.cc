/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "memd_store.h"
#include "rmem.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fcntl.h>
#include <string>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

namespace {

const uint64_t PAGE = RMEM_PAGE_SIZE;

class test_memd_store : public ::testing::Test {
protected:
    void SetUp() override
    {
        char name[] = "memd_store.XXXXXX";

        close(mkstemp(name));
        m_file = name;
    }

    void TearDown() override
    {
        unlink(m_file.c_str());
    }

    memd_store_t m_store;
    std::string  m_file;
};

int store_page(memd_store_t *store, uint64_t offset, uint32_t page, char value)
{
    std::vector<uint8_t> data(PAGE, value);
    memd_message_t message = {{1, 1, 0}, {{page, 0, UINT64_MAX}}, data.data(),
                              PAGE};

    return memd_store_lines(store, offset, &message);
}

int drop_pages(memd_store_t *store, uint64_t offset, uint32_t page,
               uint32_t count)
{
    memd_message_t message = {{1, 1, RMEM_LINES_FREE}, {{page, count, 0}},
                              nullptr, 0};

    return memd_store_lines(store, offset, &message);
}

} // namespace

TEST_F(test_memd_store, extents_are_the_first_that_fit)
{
    memd_extent_t extents[8], extent;
    auto          alloc = [&](uint64_t pages, memd_extent_t *extent) {
        return (memd_store_alloc(&m_store, pages * PAGE, extent) == RMEM_OK) ?
               (int)(extent->offset / PAGE) : -1;
    };

    ASSERT_EQ(memd_store_open(&m_store, nullptr, 2000 * PAGE), 0);
    EXPECT_EQ(0, alloc(3, &extents[0]));
    EXPECT_EQ(3, alloc(2, &extents[1]));
    EXPECT_EQ(5, alloc(3, &extents[2]));
    memd_store_free(&m_store, &extents[1]);
    EXPECT_EQ(8, alloc(3, &extents[3])); /* The gap is too small */
    EXPECT_EQ(3, alloc(1, &extents[1]));
    EXPECT_EQ(4, alloc(1, &extents[4]));
    memd_store_free(&m_store, &extents[0]);
    EXPECT_EQ(-1, alloc(1990, &extent));
    EXPECT_EQ(11, alloc(1989, &extents[5]));
    EXPECT_EQ(0, alloc(2, &extents[0]));
    EXPECT_EQ(2, alloc(1, &extents[6]));
    EXPECT_EQ(-1, alloc(1, &extent));
    EXPECT_EQ(memd_store_alloc(&m_store, UINT64_MAX - PAGE + 1, &extent),
              RMEM_ERR_FULL);
    EXPECT_EQ(2000 * PAGE, m_store.held);
    memd_store_close(&m_store);
}

TEST_F(test_memd_store, dropped_pages_are_zeros)
{
    for (const char *file : {(const char*)nullptr, m_file.c_str()}) {
        ASSERT_EQ(memd_store_open(&m_store, file, 8 * PAGE), 0);
        for (uint32_t page = 0; page < 4; ++page) {
            ASSERT_EQ(store_page(&m_store, 2 * PAGE, page, 'a' + page),
                      RMEM_OK);
        }
        ASSERT_EQ(drop_pages(&m_store, 2 * PAGE, 1, 2), RMEM_OK);
        EXPECT_EQ(m_store.base[2 * PAGE], 'a');
        EXPECT_EQ(m_store.base[3 * PAGE], 0);
        EXPECT_EQ(m_store.lent[5 * PAGE - 1], 0);
        EXPECT_EQ(m_store.lent[5 * PAGE], 'd');
        EXPECT_DEATH(m_store.lent[5 * PAGE] = 'd', "");
        ASSERT_EQ(memd_store_clear(&m_store, 0, 8 * PAGE), RMEM_OK);
        EXPECT_EQ(m_store.base[5 * PAGE], 0);
        memd_store_close(&m_store);
    }
}

TEST_F(test_memd_store, a_file_keeps_its_blocks_and_not_its_contents)
{
    struct stat st;

    ASSERT_EQ(memd_store_open(&m_store, m_file.c_str(), 64 * PAGE), 0);
    ASSERT_EQ(store_page(&m_store, 0, 5, 'x'), RMEM_OK);
    ASSERT_EQ(drop_pages(&m_store, 0, 0, 64), RMEM_OK);
    ASSERT_EQ(stat(m_file.c_str(), &st), 0);
    EXPECT_GE((uint64_t)st.st_blocks * 512, 64 * PAGE);
    ASSERT_EQ(store_page(&m_store, 0, 5, 'x'), RMEM_OK);
    memd_store_close(&m_store);
    ASSERT_EQ(stat(m_file.c_str(), &st), 0);
    EXPECT_EQ(st.st_size, 0);
}

/* An error for stores; other accesses are not guarded */
TEST_F(test_memd_store, pages_that_were_cut_off)
{
    ASSERT_EQ(memd_store_open(&m_store, m_file.c_str(), 8 * PAGE), 0);
    ASSERT_EQ(truncate(m_file.c_str(), 4 * PAGE), 0);
    for (int i = 0; i < 3; ++i) {
        EXPECT_EQ(store_page(&m_store, 0, 4, 'x'), RMEM_ERR_RANGE);
        EXPECT_EQ(store_page(&m_store, 0, 3, 'y'), RMEM_OK);
    }
    EXPECT_EQ(m_store.base[3 * PAGE], 'y');
    EXPECT_DEATH(m_store.base[4 * PAGE] = 1, "");
    memd_store_close(&m_store);
}
