/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* The allocator of a window, against a list of what is allocated */

#include "rmem_heap.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <vector>


class test_rmem_heap : public ::testing::Test {
protected:
    static constexpr uint64_t chunks = 256;
    static constexpr uint64_t bytes  = chunks * RMEM_HEAP_CHUNK;

    void SetUp() override
    {
        m_heap = rmem_heap_create(bytes + RMEM_HEAP_CHUNK - 1, unused, this);
        ASSERT_NE(nullptr, m_heap);
    }

    uint64_t alloc(size_t size, size_t align = 16)
    {
        uint64_t offset = rmem_heap_alloc(m_heap, size, align, &m_is_new);

        if (offset != RMEM_HEAP_NONE) {
            add(offset, size, align);
        }
        return offset;
    }

    void add(uint64_t offset, size_t size, size_t align)
    {
        size_t usable = rmem_heap_size(m_heap, offset);
        auto   next   = m_objects.lower_bound(offset);

        EXPECT_GE(usable, size);
        EXPECT_EQ(0u, offset % align);
        EXPECT_LE(offset + usable, bytes);
        EXPECT_TRUE((next == m_objects.end()) ||
                    (offset + usable <= next->first));
        if (next != m_objects.begin()) {
            --next;
            EXPECT_LE(next->first + next->second, offset);
        }
        if (m_is_new) {
            /* All of it was reported as unused, or was never used */
            for (uint64_t c = offset / RMEM_HEAP_CHUNK;
                 c < (offset + usable) / RMEM_HEAP_CHUNK; ++c) {
                EXPECT_FALSE(m_is_used[c]);
            }
        }
        for (uint64_t c = offset / RMEM_HEAP_CHUNK;
             c <= (offset + usable - 1) / RMEM_HEAP_CHUNK; ++c) {
            m_is_used[c] = true;
        }
        m_objects[offset] = usable;
    }

    void free(uint64_t offset)
    {
        EXPECT_EQ(m_objects[offset], rmem_heap_size(m_heap, offset));
        m_objects.erase(offset);
        rmem_heap_free(m_heap, offset);
        EXPECT_EQ(0u, rmem_heap_size(m_heap, offset));
    }

    static void unused(uint64_t offset, uint64_t length, void *arg)
    {
        auto self = static_cast<test_rmem_heap*>(arg);
        auto next = self->m_objects.lower_bound(offset);

        EXPECT_TRUE((next == self->m_objects.end()) ||
                    (next->first >= offset + length));
        if (next != self->m_objects.begin()) {
            --next;
            EXPECT_LE(next->first + next->second, offset);
        }
        for (uint64_t c = offset / RMEM_HEAP_CHUNK;
             c < (offset + length) / RMEM_HEAP_CHUNK; ++c) {
            EXPECT_TRUE(self->m_is_used[c]);
            self->m_is_used[c] = false;
        }
    }

    rmem_heap_t                *m_heap = nullptr;
    int                        m_is_new = 0;
    std::map<uint64_t, size_t> m_objects; /* Usable size by offset */
    bool                       m_is_used[chunks + 1] = {};
};

TEST_F(test_rmem_heap, a_million_random_steps)
{
    std::mt19937          random(1);
    std::vector<uint64_t> offsets;
    unsigned              refused = 0;

    for (unsigned step = 0; (step < 1000000) && !HasFailure(); ++step) {
        if (offsets.empty() || (random() % 100 < 52)) {
            size_t   size   = random() % (size_t(1) << (4 + random() % 18));
            size_t   align  = size_t(16) << (random() % 8 ? 0 : random() % 15);
            uint64_t offset = alloc(size, align);

            if (offset != RMEM_HEAP_NONE) {
                offsets.push_back(offset);
                continue;
            }
            ++refused;
        }
        if (!offsets.empty()) {
            size_t which = random() % offsets.size();

            free(offsets[which]);
            offsets[which] = offsets.back();
            offsets.pop_back();
        }
    }
    EXPECT_GT(refused, 0u);

    while (!offsets.empty()) {
        free(offsets.back());
        offsets.pop_back();
    }
    /* It is one piece again */
    EXPECT_EQ(0u, alloc(bytes));
}

TEST_F(test_rmem_heap, classes_waste_at_most_a_fifth)
{
    for (size_t size = 64; size <= RMEM_HEAP_CHUNK / 2; size += 16) {
        uint64_t offset = alloc(size);

        ASSERT_NE(RMEM_HEAP_NONE, offset);
        EXPECT_LE(m_objects[offset], size + size / 4);
        free(offset);
    }
}

TEST_F(test_rmem_heap, what_was_freed_is_used_again)
{
    std::vector<uint64_t> places;

    for (unsigned i = 0; i < 3 * RMEM_HEAP_CHUNK / 4096; ++i) {
        places.push_back(alloc(4096));
    }
    for (unsigned i : {70, 3, 130}) {
        free(places[i]);
    }
    for (unsigned i : {3, 70, 130}) {
        EXPECT_EQ(places[i], alloc(4096));
    }
}

TEST_F(test_rmem_heap, what_was_freed_is_no_object)
{
    uint64_t large = alloc(3 * RMEM_HEAP_CHUNK);
    uint64_t other = alloc(2 * RMEM_HEAP_CHUNK);
    uint64_t place = alloc(1000);

    EXPECT_EQ(0u, rmem_heap_size(m_heap, large + RMEM_HEAP_CHUNK));
    EXPECT_EQ(0u, rmem_heap_size(m_heap, place + 16));
    EXPECT_EQ(0u, rmem_heap_size(m_heap, bytes));
    free(large);
    free(other); /* Its chunks join those before */
    free(place);
    EXPECT_EQ(0u, rmem_heap_size(m_heap, other));
}

TEST_F(test_rmem_heap, refuses_what_it_has_not)
{
    EXPECT_EQ(RMEM_HEAP_NONE, alloc(bytes + 1));
    EXPECT_EQ(RMEM_HEAP_NONE, alloc(SIZE_MAX));
    EXPECT_EQ(RMEM_HEAP_NONE, alloc(100, 2 * RMEM_HEAP_CHUNK));
    EXPECT_NE(RMEM_HEAP_NONE, alloc(bytes));
    EXPECT_EQ(RMEM_HEAP_NONE, alloc(64));
}
