/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * Registrations under limits of file size and of descriptors. Nothing fails,
 * one line reports it, and the program has descriptors left.
 */

#include "test_mem.h"

#include <csignal>
#include <memory>

#include <sys/mman.h>
#include <sys/resource.h>

namespace {

/* A limit during its lifetime */
class limited {
public:
    limited(__rlimit_resource resource, rlim_t limit) : m_resource(resource)
    {
        EXPECT_EQ(0, getrlimit(resource, &m_before));
        struct rlimit low = {limit, m_before.rlim_max};
        EXPECT_EQ(0, setrlimit(resource, &low));
    }
    ~limited() { setrlimit(m_resource, &m_before); }
    limited(const limited&) = delete;

private:
    __rlimit_resource m_resource;
    struct rlimit     m_before;
};

class test_mem_limits : public test_mem {
protected:
    test_mem_limits() { m_config["REGION_SIZE"] = std::to_string(granule); }

    /* A page of each of many regions */
    struct pages {
        explicit pages(size_t count) : length((count + 1) * granule)
        {
            void *ptr = mmap(nullptr, length, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
                             0);
            EXPECT_NE(MAP_FAILED, ptr);
            area  = (char*)ptr;
            first = area + granule - (uintptr_t)area % granule;
        }
        ~pages() { munmap(area, length); }
        char *at(size_t i) const { return first + i * granule; }

        size_t length;
        char   *area, *first;
    };

    static constexpr size_t granule = 2 << 20;
};

TEST_F(test_mem_limits, files_are_too_small_for_a_region)
{
    complaints log;
    std::unique_ptr<buffer> first, second;
    {
        /* A write beyond this limit raises a fatal signal */
        limited files(RLIMIT_FSIZE, page);
        first.reset(new buffer(m_b->md(), size));
        second.reset(new buffer(m_b->md(), size));
        EXPECT_FALSE(has_region(*first));
        expect_works(*first, 0, size, m_a->unpack(first->packed_key()));
    }
    EXPECT_EQ(1u, count(log, "RLIMIT_FSIZE"));

    /* No signal is pending afterwards */
    sigset_t pending;
    EXPECT_EQ(0, sigpending(&pending));
    EXPECT_EQ(0, sigismember(&pending, SIGXFSZ));

    buffer again(m_b->md(), size);
    EXPECT_TRUE(has_region(again));
    expect_works(again, 0, size, m_a->unpack(again.packed_key()));
}

TEST_F(test_mem_limits, regions_leave_descriptors_to_the_program)
{
    constexpr size_t many = 120, more = 40, share = 60;
    limited descriptors(RLIMIT_NOFILE, 4 * share);
    unsigned before = num_descriptors();
    std::vector<std::unique_ptr<buffer>> buffers;
    pages memory(many + more);
    size_t i, regions = 0;
    complaints log;

    for (i = 0; i < many; ++i) {
        buffers.emplace_back(new buffer(m_b->md(), page, memory.at(i)));
        buffers.back()->fill(i);
        regions += has_region(*buffers.back());
    }
    /* One region each, all of them in use */
    EXPECT_GE(regions, share - 4);
    EXPECT_LE(regions, share);
    EXPECT_LE(num_descriptors(), before + share);
    EXPECT_EQ(1u, count(log, "RLIMIT_NOFILE"));
    for (i = 0; i < many; i += 30) {
        expect_works(*buffers[i], 0, page,
                     m_a->unpack(buffers[i]->packed_key()));
    }

    /* Idle regions are closed first */
    buffers.resize(more);
    for (i = 0; i < share - more; ++i) {
        buffers.emplace_back(new buffer(m_b->md(), page,
                                        memory.at(many + i)));
        EXPECT_TRUE(has_region(*buffers.back())) << i;
    }
    /* The service, which executes assists, has descriptors of its own */
    EXPECT_LE(num_descriptors(), before + share + 8);
    buffers.clear();
}

} // namespace
