/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* MRs on regions: what is refused, what stays when things go, what leaks. */

#include "npemu_region.h"

#include <sys/eventfd.h>
#include <sys/stat.h>
#include <fcntl.h>
#include <fstream>
#include <sys/syscall.h>
#include <unistd.h>

using namespace npt;

namespace {

constexpr size_t PAGES = 16;
constexpr size_t SIZE  = PAGES * PAGE;

/* Mappings of tables in a process. */
size_t count_maps(pid_t pid = getpid())
{
    std::ifstream maps("/proc/" + std::to_string(pid) + "/maps");
    size_t count = 0;
    std::string line;

    while (std::getline(maps, line)) {
        count += line.find("nprdma-region") != std::string::npos;
    }
    return count;
}

class test_iommu_mr : public testing::Test {
protected:
    test_iommu_mr() : memory(SIZE), region(device, memory.data, SIZE) {}

    int reg_error(int fd, uint64_t offset, size_t length,
                  int access = IBV_ACCESS_REMOTE_READ)
    {
        errno      = 0;
        ibv_mr *mr = npemu_reg_dmabuf_mr(device.pd, offset, length, 0, fd,
                                         access);

        if (mr != nullptr) {
            npemu_dereg_mr(mr);
            return 0;
        }
        return errno;
    }

    /* One line that says this; EINVAL. */
    void expect_refused(int fd, const char *why)
    {
        expect_line(why, [&] { EXPECT_EQ(EINVAL, reg_error(fd, 0, PAGE)); });
    }

    Device device;
    Shared memory;
    Region region;
};

TEST_F(test_iommu_mr, ranges_must_lie_in_one_view)
{
    int fd = region.iommu.fd;

    EXPECT_EQ(0, reg_error(fd, SIZE - 1, 1));
    EXPECT_EQ(0, reg_error(fd, 2 * SIZE - 1, 1));
    stderr_of([&] {
        EXPECT_EQ(EINVAL, reg_error(fd, 1, SIZE));
        EXPECT_EQ(EINVAL, reg_error(fd, 2 * SIZE - 1, 2));
        EXPECT_EQ(EINVAL, reg_error(fd, 2 * SIZE, 4 * PAGES + 1));
        EXPECT_EQ(EINVAL, reg_error(fd, UINT64_MAX - 1, 1));
    });
    EXPECT_EQ(EINVAL, reg_error(fd, 0, 0));
}

TEST_F(test_iommu_mr, read_only_views_refuse_write_access)
{
    int fd = region.iommu.fd;

    for (uint64_t offset : {(uint64_t)0, (uint64_t)2 * SIZE}) {
        EXPECT_EQ(0, reg_error(fd, offset, 64, 0));
        for (int access : {(int)IBV_ACCESS_LOCAL_WRITE,
                           IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE,
                           IBV_ACCESS_LOCAL_WRITE |
                                   IBV_ACCESS_REMOTE_ATOMIC}) {
            EXPECT_EQ(EACCES, reg_error(fd, offset, 64, access)) << access;
        }
    }
    EXPECT_EQ(0, reg_error(fd, SIZE, 64, ACCESS_ALL));
    /* The kernel's REG_DMABUF_MR does not know this flag */
    EXPECT_EQ(EINVAL, reg_error(fd, 0, 64, IBV_ACCESS_ON_DEMAND));
}

TEST_F(test_iommu_mr, descriptors_of_other_things_are_refused)
{
    EXPECT_EQ(EBADF, reg_error(-1, 0, PAGE));

    int plain = memfd_create("other", MFD_ALLOW_SEALING);
    ASSERT_EQ(0, ftruncate(plain, 1 << 20));
    expect_refused(plain, "it is not that of a region");
    ASSERT_EQ(0, fcntl(plain, F_ADD_SEALS, F_SEAL_SHRINK));
    expect_refused(plain, "it is not that of a region");
    close(plain);
}

/* A copy that has been changed in one place, or is too short */
TEST_F(test_iommu_mr, damaged_tables_are_refused)
{
    /* Offsets of struct npemu_iommu_header */
    const struct {
        size_t     at;
        uint8_t    change;
        size_t     cut;
        const char *why;
    } damages[] = {{0, 1, 0, "it is not that of a region"},
                   {8, 2, 0, "made by another version"},
                   {12, 1, 0, "another process'"},
                   {32 + 5, 1, 0, "damaged"}, /* the length */
                   {0, 0, 1, "damaged"}};
    /* Large enough for its table to be more than the smallest */
    Shared memory(2000 * PAGE);
    Region region(device, memory.data, memory.length);
    struct stat st;

    ASSERT_EQ(0, fstat(region.iommu.fd, &st));
    std::vector<uint8_t> good(st.st_size);
    ASSERT_EQ(st.st_size, pread(region.iommu.fd, good.data(), st.st_size, 0));
    for (auto &it : damages) {
        auto bad   = good;
        size_t end = good.size() - it.cut;
        int fd     = memfd_create("forgery", MFD_ALLOW_SEALING);
        bad[it.at] ^= it.change;
        ASSERT_EQ((ssize_t)end, write(fd, bad.data(), end));
        ASSERT_EQ(0, fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK));
        expect_refused(fd, it.why);
        close(fd);
    }
}

TEST_F(test_iommu_mr, forked_child_is_refused)
{
    in_child([&] {
        EXPECT_EQ(EPERM, reg_error(region.iommu.fd, 0, PAGE));
        npemu_iommu_drain(device.context);
        /* The parent's table is not mapped */
        EXPECT_EQ(0u, count_maps());
    });
}

/* --- with a peer -----------------------------------------------------------*/

class test_iommu_mr_peer : public RegionTest {
protected:
    test_iommu_mr_peer() : RegionTest(SIZE) {}

    ibv_wc_status read(const Remote &remote)
    {
        return servant.rdma(IBV_WR_RDMA_READ, remote, 0, 8);
    }
    uint64_t word() const { return *(uint64_t*)servant.shared.data; }
};

/* The signature shows that each is the right one. */
TEST_F(test_iommu_mr_peer, keeps_a_bounded_number_of_tables)
{
    constexpr size_t COUNT = 300;
    Shared large(COUNT * PAGE);
    std::vector<std::unique_ptr<Region>> regions;

    for (size_t i = 0; i < COUNT; ++i) {
        regions.push_back(std::make_unique<Region>(
                device, large.data + i * PAGE, PAGE, i));
    }
    for (int round = 0; round < 2; ++round) {
        for (size_t i = 0; i < COUNT; ++i) {
            ASSERT_EQ(IBV_WC_SUCCESS,
                      read(regions[i]->remote(regions[i]->r, 0)));
            ASSERT_EQ(i, word());
        }
        EXPECT_LE(count_maps(servant.process().pid()), 256u);
    }
    regions.clear();
    EXPECT_EQ(IBV_WC_SUCCESS, read(region.remote(region.r, 0)));
    EXPECT_EQ(1u, count_maps(servant.process().pid()));
}

TEST_F(test_iommu_mr_peer, old_keys_are_refused_after_deregistration)
{
    Remote old = region.remote(region.r, 0);

    ASSERT_EQ(IBV_WC_SUCCESS, read(old));
    region.dereg();
    Region again(device, memory.data, SIZE);
    EXPECT_EQ(IBV_WC_REM_ACCESS_ERR, read(old));
}

TEST_F(test_iommu_mr_peer, region_destroyed_before_its_mrs_is_absent)
{
    Remote remote = region.remote(region.r, 0);

    pattern_fill(memory.data, SIZE, 1);
    ASSERT_EQ(IBV_WC_SUCCESS, read(remote));
    ASSERT_TRUE(pattern_holds(servant.shared.data, 8, 1));
    npemu_iommu_destroy(&region.iommu);
    ASSERT_EQ(IBV_WC_SUCCESS, read(remote));
    EXPECT_EQ(SIGNATURE, word());
    region.dereg();
    EXPECT_EQ(0, npemu_iommu_create((uintptr_t)memory.data, SIZE, SIGNATURE,
                                    &region.iommu)); /* to be destroyed */
}

/* The owner's descriptor has become that of something else, another table or no
 * file at all: the peer must notice. */
class test_iommu_mr_descriptor :
        public test_iommu_mr_peer, public testing::WithParamInterface<bool> {
};

TEST_P(test_iommu_mr_descriptor, of_something_else_is_refused)
{
    struct stat want, st;
    npemu_iommu_t other;
    ASSERT_EQ(0, npemu_iommu_create((uintptr_t)memory.data, SIZE, SIGNATURE,
                                    &other));

    ASSERT_EQ(0, fstat(region.iommu.fd, &want));
    int by       = GetParam() ? dup(other.fd) : eventfd(0, EFD_CLOEXEC);
    int replaced = -1;
    for (int fd : open_fds()) {
        /* Whatever the device holds of the table. Not fstat(): ThreadSanitizer
         * takes it for a race with the thread that closes those of processes
         * that have ended */
        if ((fd != region.iommu.fd) &&
            (syscall(SYS_newfstatat, fd, "", &st, AT_EMPTY_PATH) == 0) &&
            (st.st_ino == want.st_ino) && (st.st_dev == want.st_dev)) {
            replaced = fd;
        }
    }
    ASSERT_GE(replaced, 0);
    ASSERT_EQ(replaced, dup3(by, replaced, O_CLOEXEC));
    close(by);
    EXPECT_EQ(IBV_WC_REM_OP_ERR, read(region.remote(region.r, 0)));
    npemu_iommu_destroy(&other);
}

INSTANTIATE_TEST_SUITE_P(is_a_table, test_iommu_mr_descriptor,
                         testing::Bool(), testing::PrintToStringParamName());

/* A process that dies with tables of its peer */
TEST_F(test_iommu_mr_peer, death_leaves_nothing)
{
    size_t fds = open_fds().size(), maps = count_maps();

    ASSERT_EQ(IBV_WC_SUCCESS, read(region.remote(region.r, 0)));
    servant.kill();
    region.evict(0, PAGES);
    npemu_iommu_drain(device.context);
    EXPECT_EQ(maps, count_maps());
    EXPECT_GE(fds, open_fds().size());
}

} // namespace
