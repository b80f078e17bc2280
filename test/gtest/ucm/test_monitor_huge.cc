/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "test_monitor.h"

#include <ucm/api/ucm.h>
#include <ucm/events/nprdma_huge.h>

#include <fstream>

#include <sys/file.h>
#include <sys/shm.h>

/* System calls whose length covers a part of a huge page affect all of it. */
namespace {

constexpr uintptr_t huge = 2u << 20;

/* During its lifetime the kernel's pool has huge pages of 2 MiB. The pool
 * belongs to the whole machine: a lock keeps it from the tests of other build
 * trees, which would take its pages away. The lock is on the pool's file in
 * sysfs, because /proc may be another one for each PID namespace. */
class huge_pages {
public:
    explicit huge_pages(unsigned count) : m_fd(open(path, O_RDONLY | O_CLOEXEC))
    {
        if ((m_fd < 0) || (flock(m_fd, LOCK_EX) != 0)) {
            return;
        }
        m_before = get();
        if (m_before < count) {
            set(count);
        }
        m_good = (get() >= count);
    }

    ~huge_pages()
    {
        if (m_fd >= 0) {
            if (get() != m_before) {
                set(m_before);
            }
            close(m_fd); /* Unlocks */
        }
    }

    bool good() const { return m_good; }

private:
    static constexpr const char *path =
            "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";

    static unsigned get()
    {
        unsigned count = 0;
        std::ifstream(path) >> count;
        return count;
    }

    static void set(unsigned count) { std::ofstream(path) << count; }

    int      m_fd;
    unsigned m_before = 0;
    bool     m_good   = false;
};

/* UCM 1.13 loses the fifth argument of mremap(): this passes it on */
void *target_of_mremap;

void call_mremap(ucm_event_type_t, ucm_event_t *event, void *)
{
    event->mremap.result =
            (void*)syscall(SYS_mremap, event->mremap.address,
                           event->mremap.old_size, event->mremap.new_size,
                           event->mremap.flags, target_of_mremap);
}

void *mremap_to(void *ptr, size_t old_size, size_t new_size, int flags,
                void *target = nullptr)
{
    void *result;

    target_of_mremap = target;
    EXPECT_EQ(UCS_OK, ucm_set_event_handler((int)UCM_EVENT_MREMAP |
                                            (int)UCM_EVENT_FLAG_NO_INSTALL, -1,
                                            call_mremap, nullptr));
    result = mremap(ptr, old_size, new_size, flags, target);
    ucm_unset_event_handler(UCM_EVENT_MREMAP, call_mremap, nullptr);
    return result;
}

} // namespace

class test_monitor_huge : public test_monitor {
protected:
    void SetUp() override
    {
        test_monitor::SetUp();
        nprdma_huge_init();
        if (!m_pages.good() ||
            (nprdma_huge_mmap_page(huge, MAP_PRIVATE | MAP_ANONYMOUS |
                                         MAP_HUGETLB, -1) != huge)) {
            GTEST_SKIP() << "no 8 huge pages of 2 MiB, or not of the "
                            "default size: nr_hugepages cannot be set here";
        }
        start();
    }

    void TearDown() override
    {
        if (m_ptr != nullptr) {
            unreg(&m_range);
        }
        test_monitor::TearDown();
    }

    /* Memory of two huge pages, populated for writing */
    void make(int flags = 0)
    {
        m_ptr = map(2 * huge, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | flags);
        ASSERT_EQ(UCS_OK, reg(&m_range, m_ptr, 2 * huge));
        populate_all();
        for (uintptr_t first : {(uintptr_t)0, huge}) {
            EXPECT_EQ((flags & MAP_HUGETLB) ? huge : page,
                      nprdma_huge_page_at((uintptr_t)m_ptr + first));
        }
        EXPECT_EQ(page, nprdma_huge_page_at((uintptr_t)m_ptr + page));
    }

    void populate_all()
    {
        EXPECT_EQ(UCS_OK, populate(&m_range, NPRDMA_POPULATE_WRITE));
        EXPECT_EQ(3, all_bits(&m_range, m_ptr, 2 * huge));
    }

    /* The first huge page was replaced, the second one was left alone */
    void expect_first_taken()
    {
        EXPECT_EQ(0, all_bits(&m_range, m_ptr, huge));
        EXPECT_EQ(3, all_bits(&m_range, m_ptr + huge, huge));
        populate_all();
    }

    /* After a call has unmapped memory, a mapping that bypasses the hooks is
     * not taken for the registered one */
    void expect_gone(char *ptr)
    {
        EXPECT_EQ(0, all_bits(&m_range, ptr, huge));
        raw_mmap(ptr, huge);
        EXPECT_EQ(UCS_ERR_INVALID_ADDR, populate(&m_range, ptr, page));
        EXPECT_EQ(UCS_ERR_INVALID_ADDR,
                  populate(&m_range, ptr + huge - page, page));
    }

    huge_pages     m_pages{8};
    char           *m_ptr = nullptr;
    nprdma_range_t m_range;
};

TEST_F(test_monitor_huge, mmap_fixed)
{
    for (size_t length : {(size_t)1, page, (size_t)huge - page}) {
        make();
        ASSERT_EQ(m_ptr, mmap(m_ptr, length, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB |
                              MAP_FIXED, -1, 0)) << strerror(errno);
        expect_first_taken();
        unreg(&m_range);
        m_ptr = nullptr;
    }
}

TEST_F(test_monitor_huge, mremap_moves)
{
    nprdma_range_t range;
    char *target;

    make(MAP_HUGETLB);
    target = map(2 * huge);
    ASSERT_EQ(UCS_OK, reg(&range, target, 2 * huge));
    ASSERT_EQ(UCS_OK, populate(&range, target, page));
    if (mremap_to(m_ptr, page, page, MREMAP_MAYMOVE | MREMAP_FIXED, target) !=
        target) {
        unreg(&range);
        GTEST_SKIP() << "mremap() of huge pages: " << strerror(errno);
    }
    expect_gone(m_ptr);
    EXPECT_EQ(UCS_OK, populate(&m_range, m_ptr + huge, huge,
                               NPRDMA_POPULATE_WRITE));

    /* What was at the destination is taken; what is there now may be used */
    EXPECT_EQ(0u, bits(&range, target));
    EXPECT_EQ(UCS_OK, populate(&range, NPRDMA_POPULATE_WRITE));
    unreg(&range);
}

TEST_F(test_monitor_huge, segment_replaces)
{
    int id = shmget(IPC_PRIVATE, page, IPC_CREAT | SHM_HUGETLB | 0600);
    ASSERT_GE(id, 0) << strerror(errno);

    make();
    ASSERT_EQ((void*)m_ptr, shmat(id, m_ptr, SHM_REMAP)) << strerror(errno);
    expect_first_taken();
    EXPECT_EQ(0, shmdt(m_ptr));
    shmctl(id, IPC_RMID, nullptr);
    expect_gone(m_ptr);
}
