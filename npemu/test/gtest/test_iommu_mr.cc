/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/* MRs on regions: what is refused, what stays when things go, what leaks. */

#include "npemu_region.h"

#include <sys/eventfd.h>
#include <sys/stat.h>
#include <dirent.h>
#include <algorithm>
#include <fcntl.h>
#include <fstream>
#include <sys/syscall.h>
#include <unistd.h>

using namespace npt;

namespace {

constexpr size_t PAGES = 16;
constexpr size_t SIZE  = PAGES * PAGE;

size_t count_fds()
{
    DIR *dir     = opendir("/proc/self/fd");
    size_t count = 0;

    while (readdir(dir) != nullptr) {
        ++count;
    }
    closedir(dir);
    return count;
}

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
    test_iommu_mr() : memory(SIZE) {}

    void SetUp() override { ASSERT_TRUE(device.ok()); }

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
        int error        = 0;
        std::string text = stderr_of([&] { error = reg_error(fd, 0, PAGE); });

        EXPECT_EQ(EINVAL, error);
        EXPECT_NE(std::string::npos, text.find(why)) << text;
        EXPECT_EQ(1, std::count(text.begin(), text.end(), '\n')) << text;
    }

    Device device;
    Shared memory;
};

TEST_F(test_iommu_mr, ranges_must_lie_in_one_window)
{
    Region region(device, memory.data, SIZE);
    int fd = region.iommu.fd;

    EXPECT_EQ(0, reg_error(fd, 0, SIZE));
    EXPECT_EQ(0, reg_error(fd, SIZE - 1, 1));
    EXPECT_EQ(0, reg_error(fd, SIZE, SIZE));
    EXPECT_EQ(0, reg_error(fd, 2 * SIZE - 1, 1));
    EXPECT_EQ(0, reg_error(fd, 2 * SIZE, 4 * PAGES));
    std::string text = stderr_of([&] {
        EXPECT_EQ(EINVAL, reg_error(fd, 1, SIZE));
        EXPECT_EQ(EINVAL, reg_error(fd, SIZE - 1, 2));
        EXPECT_EQ(EINVAL, reg_error(fd, 2 * SIZE - 1, 2));
        EXPECT_EQ(EINVAL, reg_error(fd, 2 * SIZE, 4 * PAGES + 1));
        EXPECT_EQ(EINVAL, reg_error(fd, 2 * SIZE + 4 * PAGES, 1));
        EXPECT_EQ(EINVAL, reg_error(fd, UINT64_MAX - 1, 1));
    });
    EXPECT_NE(std::string::npos, text.find("not within one window")) << text;
    EXPECT_EQ(EINVAL, reg_error(fd, 0, 0));
}

TEST_F(test_iommu_mr, read_only_windows_refuse_write_access)
{
    Region region(device, memory.data, SIZE);
    int fd = region.iommu.fd;

    for (uint64_t offset : {(uint64_t)0, (uint64_t)2 * SIZE}) {
        EXPECT_EQ(0, reg_error(fd, offset, 64, 0));
        for (int access : {(int)IBV_ACCESS_LOCAL_WRITE,
                           IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE,
                           IBV_ACCESS_LOCAL_WRITE |
                                   IBV_ACCESS_REMOTE_ATOMIC,
                           (int)IBV_ACCESS_MW_BIND}) {
            EXPECT_EQ(EACCES, reg_error(fd, offset, 64, access)) << access;
        }
    }
    EXPECT_EQ(0, reg_error(fd, SIZE, 64, ACCESS_ALL));
    /* The kernel's REG_DMABUF_MR does not know this flag */
    EXPECT_EQ(EINVAL, reg_error(fd, 0, 64, IBV_ACCESS_ON_DEMAND));
}

TEST_F(test_iommu_mr, nothing_is_pinned)
{
    SKIP_UNLESS(NPT_MLOCK_WORKS, "sanitizers make mlock() do nothing");
    long before = proc_status_kb("VmLck");
    Region region(device, memory.data, SIZE);

    EXPECT_EQ(before, proc_status_kb("VmLck"));
    EXPECT_EQ(SIZE, region.w->length);
    EXPECT_EQ((void*)SIZE, region.w->addr);
}

TEST_F(test_iommu_mr, descriptors_of_other_things_are_refused)
{
    EXPECT_EQ(EBADF, reg_error(-1, 0, PAGE));
    EXPECT_EQ(EBADF, reg_error(9999, 0, PAGE));

    int file = open("/tmp", O_TMPFILE | O_RDWR, 0600);
    ASSERT_GE(file, 0);
    expect_refused(file, "it is not that of a region");
    close(file);

    int plain = memfd_create("other", MFD_ALLOW_SEALING);
    ASSERT_EQ(0, ftruncate(plain, 1 << 20));
    expect_refused(plain, "it is not that of a region");
    ASSERT_EQ(0, fcntl(plain, F_ADD_SEALS, F_SEAL_SHRINK));
    expect_refused(plain, "it is not that of a region");
    close(plain);

    int tiny = memfd_create("tiny", MFD_ALLOW_SEALING);
    ASSERT_EQ(0, ftruncate(tiny, 100));
    ASSERT_EQ(0, fcntl(tiny, F_ADD_SEALS, F_SEAL_SHRINK));
    expect_refused(tiny, "it is not that of a region");
    close(tiny);
}

/* A copy of a table, changed in one place. */
class Forgery {
public:
    Forgery(const npemu_iommu_t &iommu, size_t size, size_t at, uint8_t value)
    {
        std::vector<uint8_t> bytes(size);
        struct stat st;

        fstat(iommu.fd, &st);
        EXPECT_LE(size, (size_t)st.st_size);
        EXPECT_EQ((ssize_t)size, pread(iommu.fd, bytes.data(), size, 0));
        bytes[at] ^= value;
        fd = memfd_create("forgery", MFD_ALLOW_SEALING);
        EXPECT_EQ((ssize_t)size, pwrite(fd, bytes.data(), size, 0));
        EXPECT_EQ(0, fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK));
    }
    ~Forgery() { close(fd); }

    int fd;
};

TEST_F(test_iommu_mr, damaged_tables_are_refused)
{
    /* Large enough for its table to be more than the smallest */
    Shared large(2000 * PAGE);
    Region region(device, large.data, 2000 * PAGE);
    struct stat st;
    ASSERT_EQ(0, fstat(region.iommu.fd, &st));
    const size_t size = st.st_size;
    /* Offsets of struct npemu_iommu_header */
    const size_t magic = 0, version = 8, pid = 12, address = 32, length = 40;

    Forgery same(region.iommu, size, 0, 0);
    EXPECT_EQ(0, reg_error(same.fd, 0, PAGE));
    expect_refused(Forgery(region.iommu, size, magic, 1).fd,
                   "it is not that of a region");
    expect_refused(Forgery(region.iommu, size, version, 2).fd,
                   "made by another version");
    expect_refused(Forgery(region.iommu, size, pid, 1).fd,
                   "another process'");
    expect_refused(Forgery(region.iommu, size, address, 8).fd, "damaged");
    expect_refused(Forgery(region.iommu, size, length + 5, 1).fd, "damaged");
    /* Truncated, and too small for any */
    expect_refused(Forgery(region.iommu, size - 1, 0, 0).fd, "damaged");
    expect_refused(Forgery(region.iommu, 4 * PAGE, 0, 0).fd,
                   "it is not that of a region");
}

TEST_F(test_iommu_mr, forked_child_is_refused)
{
    Region region(device, memory.data, SIZE);

    in_child([&] {
        EXPECT_EQ(EPERM, reg_error(region.iommu.fd, 0, PAGE));
        npemu_iommu_drain(device.context);
        /* The parent's table is not mapped */
        EXPECT_EQ(0u, count_maps());
    });
}

TEST_F(test_iommu_mr, failed_registrations_leave_nothing)
{
    npemu_iommu_t iommu;
    ASSERT_EQ(0, npemu_iommu_create((uintptr_t)memory.data, SIZE, SIGNATURE,
                                    &iommu));
    size_t fds = count_fds(), maps = count_maps();

    stderr_of([&] {
        EXPECT_EQ(EINVAL, reg_error(iommu.fd, 5 * SIZE, PAGE));
        EXPECT_EQ(EACCES, reg_error(iommu.fd, 0, PAGE, ACCESS_ALL));
    });
    EXPECT_EQ(fds, count_fds());
    EXPECT_EQ(maps, count_maps());
    npemu_iommu_destroy(&iommu);
}

/* --- in a process that has no device yet -----------------------------------*/

TEST(test_iommu_mr_child, regions_of_others_are_refused)
{
    Shared memory(SIZE);
    npemu_iommu_t iommu;
    ASSERT_EQ(0, npemu_iommu_create((uintptr_t)memory.data, SIZE, SIGNATURE,
                                    &iommu));
    in_child([&] {
        Device own;
        ASSERT_TRUE(own.ok());
        std::string text = stderr_of([&] {
            EXPECT_EQ(nullptr, npemu_reg_dmabuf_mr(own.pd, 0, PAGE, 0,
                                                   iommu.fd, 0));
        });
        EXPECT_NE(std::string::npos, text.find("another process'")) << text;
    });
    npemu_iommu_destroy(&iommu);
}

TEST(test_iommu_mr_child, closing_the_device_releases_what_is_left)
{
    Shared memory(SIZE);
    npemu_iommu_t iommu;
    in_child([&] {
        size_t fds = count_fds();
        {
            ibv_device **list = npemu_get_device_list(nullptr);
            ibv_context *own  = npemu_open_device(list[0]);
            ASSERT_NE(nullptr, own);
            ibv_pd *pd = npemu_alloc_pd(own);
            ASSERT_EQ(0, npemu_iommu_create((uintptr_t)memory.data, SIZE,
                                            SIGNATURE, &iommu));
            EXPECT_NE(nullptr, npemu_reg_dmabuf_mr(pd, 0, PAGE, 0, iommu.fd,
                                                   0));
            npemu_close_device(own);
            npemu_free_device_list(list);
        }
        npemu_iommu_destroy(&iommu);
        EXPECT_EQ(fds, count_fds());
        EXPECT_EQ(0u, count_maps());
    });
}

/* --- with a peer -----------------------------------------------------------*/

TEST(test_iommu_mr_peer, maps_once_per_table)
{
    Servant servant(SIZE);
    Device device;
    ASSERT_TRUE(device.ok());
    Shared memory(SIZE);
    Region one(device, memory.data, SIZE / 2);
    Region two(device, memory.data + SIZE / 2, SIZE / 2);

    servant.connect(device);
    EXPECT_EQ(0u, count_maps(servant.pid()));
    for (int i = 0; i < 3; ++i) {
        for (Region *region : {&one, &two}) {
            for (ibv_mr *mr : {region->r, region->s}) {
                Remote remote = {(mr == region->s) ? 0 : region->at(0),
                                 mr->rkey};
                ASSERT_EQ(IBV_WC_SUCCESS,
                          servant.rdma(IBV_WR_RDMA_READ, remote, 0, 16));
            }
        }
    }
    EXPECT_EQ(2u, count_maps(servant.pid()));
    servant.dismiss();
}

TEST(test_iommu_mr_peer, unmaps_tables_of_destroyed_regions)
{
    Servant servant(SIZE);
    Device device;
    ASSERT_TRUE(device.ok());
    Shared memory(SIZE);

    servant.connect(device);
    for (int i = 0; i < 50; ++i) {
        Region region(device, memory.data, SIZE, i);
        uint64_t want = i;
        ASSERT_EQ(IBV_WC_SUCCESS,
                  servant.rdma(IBV_WR_RDMA_READ, region.remote(region.r, 0), 0,
                               8));
        /* The signature shows that it is the right one */
        ASSERT_EQ(0, memcmp(&want, servant.shared.data, 8));
        ASSERT_LE(count_maps(servant.pid()), 1u);
    }
    servant.dismiss();
}

TEST(test_iommu_mr_peer, keeps_a_bounded_number_of_tables)
{
    constexpr size_t COUNT = 300;
    Servant servant(SIZE);
    Device device;
    ASSERT_TRUE(device.ok());
    Shared memory(COUNT * PAGE);
    std::vector<std::unique_ptr<Region>> regions;

    servant.connect(device);
    for (size_t i = 0; i < COUNT; ++i) {
        regions.push_back(std::make_unique<Region>(
                device, memory.data + i * PAGE, PAGE, i));
    }
    for (int round = 0; round < 2; ++round) {
        for (size_t i = 0; i < COUNT; ++i) {
            uint64_t want = i;
            ASSERT_EQ(IBV_WC_SUCCESS,
                      servant.rdma(IBV_WR_RDMA_READ,
                                   regions[i]->remote(regions[i]->r, 0), 0,
                                   8));
            ASSERT_EQ(0, memcmp(&want, servant.shared.data, 8));
        }
        EXPECT_LE(count_maps(servant.pid()), 256u);
    }
    servant.dismiss();
}

TEST(test_iommu_mr_peer, old_keys_are_refused_after_deregistration)
{
    Servant servant(SIZE);
    Device device;
    ASSERT_TRUE(device.ok());
    Shared memory(SIZE);
    Region region(device, memory.data, SIZE);

    servant.connect(device);
    ASSERT_EQ(IBV_WC_SUCCESS, servant.rdma(IBV_WR_RDMA_READ,
                                           region.remote(region.r, 0), 0, 8));
    Remote old = region.remote(region.r, 0);
    region.dereg();
    Region again(device, memory.data, SIZE);
    EXPECT_EQ(IBV_WC_REM_ACCESS_ERR,
              servant.rdma(IBV_WR_RDMA_READ, old, 0, 8));
    servant.dismiss();
}

TEST(test_iommu_mr_peer, region_destroyed_before_its_mrs_is_absent)
{
    Servant servant(SIZE);
    Device device;
    ASSERT_TRUE(device.ok());
    Shared memory(SIZE);
    auto region = std::make_unique<Region>(device, memory.data, SIZE);

    servant.connect(device);
    region->set_all();
    pattern_fill(memory.data, SIZE, 1);
    Remote remote = region->remote(region->r, 0);
    ASSERT_EQ(IBV_WC_SUCCESS, servant.rdma(IBV_WR_RDMA_READ, remote, 0, 8));
    ASSERT_TRUE(pattern_holds(servant.shared.data, 8, 1));

    ibv_mr *mrs[] = {region->r, region->w, region->s};
    region->r = region->w = region->s = nullptr;
    region.reset();
    ASSERT_EQ(IBV_WC_SUCCESS, servant.rdma(IBV_WR_RDMA_READ, remote, 0, 8));
    uint64_t want = SIGNATURE;
    EXPECT_EQ(0, memcmp(&want, servant.shared.data, 8));
    for (ibv_mr *mr : mrs) {
        EXPECT_EQ(0, npemu_dereg_mr(mr));
    }
    servant.dismiss();
}

/* The owner's descriptor has become that of something else: the peer must
 * notice. */
static void expect_refused_by_peer(const std::function<int()> &open_other)
{
    Servant servant(SIZE);
    Device device;
    ASSERT_TRUE(device.ok());
    Shared memory(SIZE);
    Region region(device, memory.data, SIZE);

    servant.connect(device);
    /* Whatever the device holds of the table becomes the other file */
    struct stat want, st;
    ASSERT_EQ(0, fstat(region.iommu.fd, &want));
    int replaced = -1;
    for (int fd = 3; fd < 256; ++fd) {
        /* Not fstat(): ThreadSanitizer takes it for a race with the thread that
         * closes those of processes that have ended */
        if ((fd != region.iommu.fd) &&
            (syscall(SYS_newfstatat, fd, "", &st, AT_EMPTY_PATH) == 0) &&
            (st.st_ino == want.st_ino) && (st.st_dev == want.st_dev)) {
            replaced = fd;
        }
    }
    ASSERT_GE(replaced, 0);
    int other = open_other();
    ASSERT_GE(other, 0);
    ASSERT_EQ(replaced, dup3(other, replaced, O_CLOEXEC));
    close(other);
    EXPECT_EQ(IBV_WC_REM_OP_ERR,
              servant.rdma(IBV_WR_RDMA_READ, region.remote(region.r, 0), 0,
                           8));
    servant.dismiss();
}

TEST(test_iommu_mr_peer, descriptor_that_is_another_table_is_refused)
{
    Shared memory(SIZE);

    expect_refused_by_peer([&] {
        npemu_iommu_t other;
        EXPECT_EQ(0, npemu_iommu_create((uintptr_t)memory.data, SIZE,
                                        SIGNATURE, &other));
        int fd = dup(other.fd);
        npemu_iommu_destroy(&other);
        return fd;
    });
}

TEST(test_iommu_mr_peer, descriptor_that_is_no_file_is_refused)
{
    expect_refused_by_peer([] { return eventfd(0, EFD_CLOEXEC); });
}

/* A process that dies with tables of its peer, and with tables of its own. */
TEST(test_iommu_mr_peer, death_leaves_nothing)
{
    Shared memory(SIZE);
    size_t fds, maps;
    {
        auto servant = std::make_unique<Servant>(SIZE);
        Device device;
        ASSERT_TRUE(device.ok());
        fds  = count_fds();
        maps = count_maps();
        {
            Region region(device, memory.data, SIZE);
            servant->connect(device);
            ASSERT_EQ(IBV_WC_SUCCESS,
                      servant->rdma(IBV_WR_RDMA_READ,
                                    region.remote(region.r, 0), 0, 8));
            servant->kill();
            region.set_all();
            region.evict(0, PAGES);
            npemu_iommu_drain(device.context);
        }
        EXPECT_EQ(maps, count_maps());
        servant.reset();
    }
    EXPECT_EQ(0u, count_maps());
    EXPECT_GE(fds, count_fds());
}

} // namespace
