/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* Memory registration: what is taken, what is refused, and what is pinned. */

#include "npemu_test.h"

#include <cerrno>
#include <set>

#include <sys/mman.h>
#include <sys/resource.h>

using namespace npt;

TEST(test_mr, keys_are_not_soon_reused)
{
    Device device;
    std::set<uint32_t> keys;
    Buffer buffer(device, 4096, -1);

    /* At least one 8 bit key as on a NIC; nothing is said beyond that. */
    for (int i = 0; i < 200; ++i) {
        ibv_mr *mr = npemu_reg_mr(device.pd, buffer.data, 4096, ACCESS_ALL);
        ASSERT_NE(nullptr, mr);
        EXPECT_TRUE(keys.insert(mr->rkey).second) << "round " << i;
        ASSERT_EQ(0, npemu_dereg_mr(mr));
    }
}

/* Also where memory was registered before it went away. */
TEST(test_mr, refuses_what_is_not_there)
{
    Device device;
    Buffer buffer(device, 4 * 4096);

    ASSERT_EQ(0, munmap(buffer.data + 3 * 4096, 4096));
    for (int access : {0, ACCESS_ALL}) {
        errno = 0;
        EXPECT_EQ(nullptr,
                  npemu_reg_mr(device.pd, buffer.data, 4 * 4096, access));
        EXPECT_EQ(EFAULT, errno) << "as pinning by the kernel has it";
    }
    buffer.dereg();
    EXPECT_EQ(0u, npemu_pinned());

    errno = 0;
    EXPECT_EQ(nullptr, npemu_reg_mr(device.pd, (void*)(UINTPTR_MAX - 4095),
                                    8192, ACCESS_ALL));
    EXPECT_NE(0, errno);

    errno = 0;
    EXPECT_EQ(nullptr, npemu_reg_mr_iova2(device.pd, buffer.data, 4096,
                                          UINT64_MAX - 100, ACCESS_ALL));
    EXPECT_EQ(EINVAL, errno);
}

TEST(test_mr, read_only_memory)
{
    Device device;
    Buffer buffer(device, 4096, -1);

    ASSERT_EQ(0, mprotect(buffer.data, 4096, PROT_READ));
    errno = 0;
    EXPECT_EQ(nullptr, npemu_reg_mr(device.pd, buffer.data, 4096,
                                    IBV_ACCESS_LOCAL_WRITE));
    EXPECT_EQ(EFAULT, errno);

    ibv_mr *mr = npemu_reg_mr(device.pd, buffer.data, 4096,
                              IBV_ACCESS_REMOTE_READ);
    ASSERT_NE(nullptr, mr) << strerror(errno);
    EXPECT_EQ(0, npemu_dereg_mr(mr));
}

/* Each registration counts, as in the kernel, and nothing is locked. */
TEST(test_mr, counts_pages)
{
    in_child([] {
        struct rlimit limit = {0, 0};
        ASSERT_EQ(0, setrlimit(RLIMIT_MEMLOCK, &limit));
        ASSERT_TRUE(become_nobody());

        Device device;
        Buffer buffer(device, 64 * 4096);
        EXPECT_EQ(64u * 4096, npemu_pinned());
        ibv_mr *part = npemu_reg_mr(device.pd, buffer.data + 4096 + 1, 8 * 4096,
                                    ACCESS_ALL);
        ASSERT_NE(nullptr, part);
        EXPECT_EQ((64u + 9) * 4096, npemu_pinned());
        EXPECT_EQ(0, locked_kb());
        in_child([] { EXPECT_EQ(0u, npemu_pinned()); });
        EXPECT_EQ(0, npemu_dereg_mr(part));
        buffer.dereg();
        EXPECT_EQ(0u, npemu_pinned());
    });
}

TEST(test_mr, pins_pages)
{
    SKIP_UNLESS(NPT_MLOCK_WORKS, "sanitizers disable mlock()");
    in_child([] {
        Env pin("NPEMU_PIN", "mlock");
        Device device;
        long before = locked_kb();
        Buffer buffer(device, 64 * 4096, -1);

        ibv_mr *mr = npemu_reg_mr(device.pd, buffer.data, 64 * 4096,
                                  ACCESS_ALL);
        ASSERT_NE(nullptr, mr);
        EXPECT_EQ(before + 256, locked_kb());

        /* The overlap is pinned once, and until the last registration goes. */
        ibv_mr *part = npemu_reg_mr(device.pd, buffer.data + 4096 + 1, 8 * 4096,
                                    ACCESS_ALL);
        ASSERT_NE(nullptr, part);
        EXPECT_EQ(before + 256, locked_kb());
        EXPECT_EQ(0, npemu_dereg_mr(mr));
        EXPECT_EQ(before + 9 * 4, locked_kb());
        EXPECT_EQ(0, npemu_dereg_mr(part));
        EXPECT_EQ(before, locked_kb());
    });
}

TEST(test_mr, enomem_at_memlock_limit)
{
    SKIP_UNLESS(NPT_MLOCK_WORKS, "sanitizers disable mlock()");
    in_child([] {
        Env pin("NPEMU_PIN", "mlock");
        struct rlimit limit = {1 << 20, 1 << 20};
        ASSERT_EQ(0, setrlimit(RLIMIT_MEMLOCK, &limit));
        ASSERT_TRUE(become_nobody());

        Device device;
        Buffer fits(device, 512 << 10);
        Buffer large(device, 768 << 10, -1);

        errno = 0;
        EXPECT_EQ(nullptr, npemu_reg_mr(device.pd, large.data, 768 << 10,
                                        ACCESS_ALL));
        EXPECT_EQ(ENOMEM, errno);
        EXPECT_EQ(512, locked_kb());

        /* There is room for what fits. */
        fits.dereg();
        Buffer now(device, 768 << 10);
        EXPECT_EQ(768, locked_kb());
    });
}

/* A key is addressed by I/O addresses, on both sides of a transfer. */
class test_mr_iova : public testing::TestWithParam<uint64_t> {};

TEST_P(test_mr_iova, transfers)
{
    Device device;
    Pair pair(device);
    Buffer local(device, 8192, -1), remote(device, 8192, -1);
    uint64_t iova = GetParam();

    ibv_mr *lmr = npemu_reg_mr_iova(device.pd, local.data, 8192, iova,
                                    ACCESS_ALL);
    ibv_mr *rmr = npemu_reg_mr_iova2(device.pd, remote.data, 8192, iova,
                                     ACCESS_ALL);
    ASSERT_NE(nullptr, lmr) << strerror(errno);
    ASSERT_NE(nullptr, rmr) << strerror(errno);
    local.fill(1);

    pair.a.write(1, {{iova + 100, 5000, lmr->lkey}}, {iova + 200, rmr->rkey});
    pair.cq_a.expect(1);
    EXPECT_EQ(0, memcmp(remote.data + 200, local.data + 100, 5000));

    local.fill_byte(0);
    pair.a.read(2, {{iova, 8192, lmr->lkey}}, {iova, rmr->rkey});
    pair.cq_a.expect(2);
    EXPECT_EQ(0, memcmp(remote.data, local.data, 8192));

    /* Small and large SENDs take different ways to the receive buffer. */
    for (uint32_t size : {16u, 6000u}) {
        remote.fill_byte(0);
        local.fill(size);
        pair.b.recv(3, {{iova + 7, 8000, rmr->lkey}});
        pair.a.send(4, {{iova, size, lmr->lkey}});
        pair.cq_a.expect(4);
        pair.cq_b.expect(3);
        EXPECT_EQ(0, memcmp(remote.data + 7, local.data, size));
    }

    /* The virtual address is not an address of the key. */
    pair.a.write(5, {{iova, 8, lmr->lkey}}, {remote.at(0), rmr->rkey});
    pair.cq_a.expect(5, IBV_WC_REM_ACCESS_ERR);
    EXPECT_EQ(0, npemu_dereg_mr(lmr));
    EXPECT_EQ(0, npemu_dereg_mr(rmr));
}

/* libibverbs wants the page offset of address and I/O address to agree. */
INSTANTIATE_TEST_SUITE_P(iova, test_mr_iova,
                         testing::Values(0, 0x10000, 0x7654321000ull,
                                         0xffffffff00000000ull),
                         testing::PrintToStringParamName());
