/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "uct_test.h"

#include "uct/ib/nprdma/net/nprdma_counters.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

/* The pages of counters of this process, as another process sees them */
class test_counters : public uct_buffer_test {
protected:
    test_counters() : uct_buffer_test(64 << 10) {}

    static std::vector<int> descriptors()
    {
        std::vector<int> found;
        DIR *dir = opendir("/proc/self/fd");

        while (const struct dirent *entry = readdir(dir)) {
            std::string path = std::string("/proc/self/fd/") + entry->d_name;
            char target[256] = "";
            if ((readlink(path.c_str(), target, sizeof(target) - 1) > 0) &&
                !strcmp(target, "/memfd:" NPRDMA_COUNTERS_FILE
                                " (deleted)")) {
                found.push_back(atoi(entry->d_name));
            }
        }
        closedir(dir);
        return found;
    }
};

TEST_F(test_counters, leave_descriptors_of_others_alone)
{
    std::vector<int> before = descriptors();
    std::vector<int> numbers;
    struct stat null, st;

    ASSERT_EQ(0, stat("/dev/null", &null));
    {
        entity other;
        for (int fd : descriptors()) {
            if (std::find(before.begin(), before.end(), fd) == before.end()) {
                numbers.push_back(fd);
            }
        }
        ASSERT_EQ(2u, numbers.size());
        /* The program closes what it does not know, and opens a file */
        close(numbers[0]);
        int fd = ::open("/dev/null", O_RDONLY);
        ASSERT_EQ(numbers[0], dup2(fd, numbers[0]));
        if (fd != numbers[0]) {
            close(fd);
        }
    }
    ASSERT_EQ(0, fstat(numbers[0], &st));
    EXPECT_EQ(null.st_rdev, st.st_rdev);
    close(numbers[0]);
}
