/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_TEST_TEST_MEM_H_
#define NPRDMA_TEST_TEST_MEM_H_

#include "uct_test.h"

extern "C" {
#include <uct/ib/nprdma/wire/nprdma_key.h>
}

#include <algorithm>
#include <cstring>
#include <filesystem>

#include <sys/mman.h>
#include <unistd.h>

static constexpr size_t page = 4096;

/* Lines with a text in them */
inline size_t count(const complaints &log, const std::string &text)
{
    const auto lines = log.lines();

    return std::count_if(lines.begin(), lines.end(),
                         [&](const std::string &line) {
                             return line.find(text) != std::string::npos;
                         });
}

/* Files of this process that are page states of regions */
inline size_t count_regions()
{
    std::error_code closed; /* The iterator's own descriptor */
    size_t count = 0;

    for (auto &entry : std::filesystem::directory_iterator("/proc/self/fd")) {
        auto target = std::filesystem::read_symlink(entry, closed).string();
        count      += (target.find("memfd:nprdma-region") != target.npos) ||
                      (target.find("[nprdma-states]") != target.npos);
    }
    return count;
}

/* Registrations: their keys, their cost, and their end */
class test_mem : public uct_pair_test {
protected:
    static constexpr size_t size = 64 * page;

    void TearDown() override
    {
        for (auto &[ptr, length] : m_maps) {
            munmap(ptr, length);
        }
        uct_pair_test::TearDown();
    }

    /* Memory that stays until the end */
    char *map(size_t length)
    {
        void *ptr = mmap(nullptr, length, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        EXPECT_NE(MAP_FAILED, ptr);
        m_maps.emplace_back(ptr, length);
        return static_cast<char*>(ptr);
    }

    static uct_nprdma_rkey_t packed(const std::vector<char> &key)
    {
        uct_nprdma_rkey_t packed;

        EXPECT_EQ(sizeof(packed), key.size());
        memcpy(&packed, key.data(), sizeof(packed));
        return packed;
    }

    static bool has_region(const buffer &memory)
    {
        return packed(memory.packed_key()).flags & UCT_NPRDMA_KEY_FLAG_REGION;
    }

    ucs_status_t get(void *dest, size_t length, uint64_t address,
                     uct_rkey_t rkey)
    {
        return m_a->get(m_ab, dest, length, address, rkey);
    }

    ucs_status_t put(void *source, size_t length, uint64_t address,
                     uct_rkey_t rkey)
    {
        return m_a->put(m_ab, source, length, address, rkey);
    }

    /* No data of the memory becomes readable, and no write gets into it */
    void expect_revoked(buffer &memory, size_t offset, size_t length,
                        uct_rkey_t rkey)
    {
        const char *start = memory.ptr(offset);
        std::vector<char> result(length, 0), before(start, start + length);

        EXPECT_EQ(UCS_ERR_REJECTED,
                  get(result.data(), length, memory.address(offset), rkey));
        for (size_t i = 0; i + 64 <= length; i += 64) {
            ASSERT_NE(0, memcmp(&result[i], memory.ptr(offset + i), 64)) << i;
        }

        std::vector<char> junk(length, 0x77);
        EXPECT_EQ(UCS_ERR_REJECTED,
                  put(junk.data(), length, memory.address(offset), rkey));
        EXPECT_EQ(0, memcmp(before.data(), memory.ptr(offset), length));
    }

    void expect_works(buffer &memory, size_t offset, size_t length,
                      uct_rkey_t rkey)
    {
        std::vector<char> result(length, 0);

        EXPECT_EQ(UCS_OK,
                  get(result.data(), length, memory.address(offset), rkey));
        EXPECT_EQ(0, memcmp(result.data(), memory.ptr(offset), length));
        for (auto &c : result) {
            ++c;
        }
        EXPECT_EQ(UCS_OK,
                  put(result.data(), length, memory.address(offset), rkey));
        EXPECT_EQ(0, memcmp(result.data(), memory.ptr(offset), length));
        EXPECT_TRUE(m_a->failed.empty());
    }

    uct_mem_h reg(void *ptr, size_t length,
                  unsigned flags = UCT_MD_MEM_ACCESS_ALL)
    {
        uct_mem_h memh = nullptr;

        EXPECT_EQ(UCS_OK,
                  uct_md_mem_reg(m_b->md(), ptr, length, flags, &memh));
        return memh;
    }

    std::vector<char> pack(uct_mem_h memh)
    {
        std::vector<char> key(m_b->md_attr().rkey_packed_size);

        EXPECT_EQ(UCS_OK, uct_md_mkey_pack(m_b->md(), memh, key.data()));
        return key;
    }

    std::vector<std::pair<void*, size_t>> m_maps;
};

#endif
