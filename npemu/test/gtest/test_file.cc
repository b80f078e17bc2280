/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * Files of the NIC. Where they may not be large (ulimit -f) this is an error,
 * and not the end of the program: each test has a process of its own, which
 * dies of SIGXFSZ otherwise. Files that a setting names may be in a directory
 * where others can make files, too.
 */

#include "npemu_test.h"

extern "C" {
#include "base/npemu_file.h"
#include "npemu_iommu.h"
#include "base/npemu_log.h"
}

#include <csignal>
#include <fstream>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

using namespace npt;

namespace {

constexpr size_t LIMIT = 8192;

void limit_files()
{
    struct rlimit limit = {LIMIT, LIMIT};

    ASSERT_EQ(0, setrlimit(RLIMIT_FSIZE, &limit));
}

bool is_pending()
{
    sigset_t pending;

    sigpending(&pending);
    return sigismember(&pending, SIGXFSZ);
}

bool is_blocked()
{
    sigset_t blocked;

    pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
    return sigismember(&blocked, SIGXFSZ);
}

/* A file that is as large as it may be */
int full_file()
{
    int fd = memfd_create("full", 0);

    EXPECT_EQ(0, ftruncate(fd, LIMIT));
    EXPECT_EQ((off_t)LIMIT, lseek(fd, 0, SEEK_END));
    return fd;
}

TEST(test_file_limit, table_creation_fails)
{
    in_child([] {
        npemu_iommu_t iommu;

        limit_files();
        EXPECT_EQ(EFBIG, npemu_iommu_create(0x10000000, 1 << 20, 1, &iommu));
        EXPECT_FALSE(is_pending());
        EXPECT_FALSE(is_blocked());
    });
}

/* The program's own signals are as they were. */
TEST(test_file_limit, signals_of_the_program_are_kept)
{
    in_child([] {
        sigset_t set;

        limit_files();
        int fd = full_file();
        EXPECT_EQ(-1, npemu_file_write(fd, "x", 1));
        EXPECT_EQ(EFBIG, errno);
        EXPECT_FALSE(is_pending());

        sigemptyset(&set);
        sigaddset(&set, SIGXFSZ);
        pthread_sigmask(SIG_BLOCK, &set, nullptr);
        EXPECT_EQ(-1, npemu_file_write(fd, "x", 1));
        EXPECT_FALSE(is_pending());
        EXPECT_TRUE(is_blocked());

        /* One that it caused itself */
        EXPECT_EQ(-1, write(fd, "x", 1));
        EXPECT_TRUE(is_pending());
        EXPECT_EQ(-1, npemu_file_write(fd, "x", 1));
        EXPECT_TRUE(is_pending());
    });
}

/* --- files that a setting names: the record of a fault plan ----------------*/

class test_file_users : public testing::Test {
protected:
    static constexpr unsigned OTHER = 54322;

    void SetUp() override
    {
        char name[] = "/tmp/npemu-files-XXXXXX";

        ASSERT_NE(nullptr, mkdtemp(name));
        dir  = name;
        file = dir + "/file";
        link = dir + "/link";
        std::ofstream(file) << "precious";
    }

    void TearDown() override
    {
        unlink(link.c_str());
        unlink(file.c_str());
        rmdir(dir.c_str());
    }

    static void record(const std::string &path, int result)
    {
        in_child([&] {
            Device device;
            EXPECT_EQ(result,
                      npemu_fault_random(device.context,
                                         ("rate=1,record=" + path).c_str()));
        });
    }

    static void expect_written(const std::string &path)
    {
        EXPECT_EQ("", stderr_of([&] { record(path, 0); })) << path;
    }

    static void expect_refused(const std::string &path, const char *reason)
    {
        expect_line(reason, [&] { record(path, EINVAL); });
    }

    std::string dir, file, link;
};

TEST_F(test_file_users, own_files_are_written)
{
    expect_written(file);
    ASSERT_EQ(0, symlink(file.c_str(), link.c_str()));
    expect_written(link);
    ASSERT_EQ(0, unlink(link.c_str()));
    expect_written(link);
    ASSERT_EQ(0, unlink(link.c_str()));
    ASSERT_EQ(0, mkfifo(link.c_str(), 0600));
    expect_refused(link, strerror(ENXIO)); /* would wait for a reader */
}

TEST_F(test_file_users, files_of_others_are_not_opened)
{
    SKIP_UNLESS(geteuid() == 0, "needs root to make another user's");
    for (auto target : {file, dir + "/new"}) {
        ASSERT_EQ(0, symlink(target.c_str(), link.c_str()));
        ASSERT_EQ(0, lchown(link.c_str(), OTHER, OTHER));
        expect_refused(link, "another user");
        ASSERT_EQ(0, unlink(link.c_str()));
    }
    EXPECT_NE(0, access((dir + "/new").c_str(), F_OK)) << "made by the link";

    ASSERT_EQ(0, chown(file.c_str(), OTHER, OTHER));
    ASSERT_EQ(0, chmod(file.c_str(), 0666));
    expect_refused(file, "another user");

    /* Without a reader opening it would never end */
    ASSERT_EQ(0, mkfifo(link.c_str(), 0666));
    ASSERT_EQ(0, chown(link.c_str(), OTHER, OTHER));
    expect_refused(link, "another user");
}

} // namespace
