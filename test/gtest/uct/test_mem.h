/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_TEST_TEST_MEM_H_
#define NPRDMA_TEST_TEST_MEM_H_

#include "uct_test.h"

extern "C" {
#include <uct/ib/nprdma/wire/nprdma_key.h>
}

#include <algorithm>
#include <cstring>

#include <dirent.h>
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
    DIR *dir = opendir("/proc/self/fd");
    size_t count = 0;
    struct dirent *entry;

    while ((entry = readdir(dir)) != nullptr) {
        char target[256];
        ssize_t length = readlinkat(dirfd(dir), entry->d_name, target,
                                    sizeof(target) - 1);
        if (length > 0) {
            target[length] = '\0';
            count         += (strstr(target, "memfd:nprdma-region") ||
                              strstr(target, "[nprdma-states]"));
        }
    }
    closedir(dir);
    return count;
}


/* Registrations: their keys, their cost, and their end */
class test_mem : public uct_pair_test {
protected:
    static constexpr size_t size = 64 * page;

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
};

#endif
