/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

/*
 * Files that a setting names, in a directory where others can make files, too.
 * The record of a fault plan stands for all of them.
 */

#include "npemu_region.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <fstream>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

using namespace npt;

constexpr unsigned OTHER = 54322;

class test_file_users : public testing::Test {
protected:
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

    /* What is said when a record is written to @a path, one eviction long. */
    static std::string record(const std::string &path, int result)
    {
        return stderr_of([&] {
            in_child([&] {
                Device device;
                ASSERT_TRUE(device.ok());
                EXPECT_EQ(result,
                          npemu_fault_random(device.context,
                                             ("rate=1,record=" + path)
                                                     .c_str()));
            });
        });
    }

    void expect_refused(const std::string &path, const char *reason)
    {
        std::string said = record(path, EINVAL);

        EXPECT_NE(std::string::npos, said.find(reason)) << said;
        EXPECT_EQ(1, std::count(said.begin(), said.end(), '\n')) << said;
    }

    std::string dir, file, link;
};

TEST_F(test_file_users, own_files_are_written)
{
    EXPECT_EQ("", record(file, 0));
    ASSERT_EQ(0, symlink(file.c_str(), link.c_str()));
    EXPECT_EQ("", record(link, 0));
    EXPECT_EQ("", record("/dev/null", 0));
    ASSERT_EQ(0, unlink(link.c_str()));
    EXPECT_EQ("", record(link, 0)) << "a new one";
    ASSERT_EQ(0, unlink(link.c_str()));
    ASSERT_EQ(0, mkfifo(link.c_str(), 0600));
    expect_refused(link, strerror(ENXIO));
}

TEST_F(test_file_users, links_of_others_are_not_followed)
{
    SKIP_UNLESS(geteuid() == 0, "needs root to make another user's");
    for (auto target : {file, dir + "/new"}) {
        ASSERT_EQ(0, symlink(target.c_str(), link.c_str()));
        ASSERT_EQ(0, lchown(link.c_str(), OTHER, OTHER));
        expect_refused(link, "another user");
        ASSERT_EQ(0, unlink(link.c_str()));
    }
    EXPECT_NE(0, access((dir + "/new").c_str(), F_OK)) << "made by the link";
}

TEST_F(test_file_users, files_of_others_are_not_written)
{
    SKIP_UNLESS(geteuid() == 0, "needs root to make another user's");
    ASSERT_EQ(0, chown(file.c_str(), OTHER, OTHER));
    ASSERT_EQ(0, chmod(file.c_str(), 0666));
    expect_refused(file, "another user");
}

/* Without a reader opening it would never end; with one it has a spy. */
TEST_F(test_file_users, fifos_of_others_are_not_waited_for)
{
    SKIP_UNLESS(geteuid() == 0, "needs root to make another user's");
    ASSERT_EQ(0, mkfifo(link.c_str(), 0666));
    ASSERT_EQ(0, chown(link.c_str(), OTHER, OTHER));
    expect_refused(link, "another user");
    int reader = open(link.c_str(), O_RDONLY | O_NONBLOCK);
    ASSERT_LE(0, reader);
    expect_refused(link, "another user");
    close(reader);
}
