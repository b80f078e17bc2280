/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#include "uct_test.h"

#include "uct/ib/nprdma/net/nprdma_counters.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* The pages of counters of this process, as another process sees them */
class test_counters : public uct_buffer_test {
protected:
    struct page {
        int                      fd;
        nprdma_counters_header_t header;
        std::map<std::string, uint64_t> values;
    };

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

    static page read_page(int fd)
    {
        char raw[4096];
        page found = {};

        found.fd = fd;
        EXPECT_EQ(ssize_t(sizeof(raw)), pread(fd, raw, sizeof(raw), 0));
        memcpy(&found.header, raw, sizeof(found.header));
        EXPECT_STREQ(NPRDMA_COUNTERS_MAGIC, found.header.magic);
        EXPECT_EQ(uint32_t(NPRDMA_COUNTERS_VERSION), found.header.version);
        EXPECT_LE(found.header.values + (8 * found.header.num), sizeof(raw));
        const char *name = raw + found.header.names;
        for (uint32_t i = 0; i < found.header.num; ++i) {
            memcpy(&found.values[name],
                   raw + found.header.values + (i * sizeof(uint64_t)),
                   sizeof(uint64_t));
            name += strlen(name) + 1;
        }
        EXPECT_EQ(name, raw + found.header.names + found.header.names_size);
        EXPECT_EQ(found.header.num, found.values.size());
        return found;
    }

    static std::vector<page> pages(const std::string &kind)
    {
        std::vector<page> found;

        for (int fd : descriptors()) {
            page next = read_page(fd);
            if (next.header.kind == kind) {
                found.push_back(next);
            }
        }
        return found;
    }

    void send()
    {
        ASSERT_EQ(UCS_OK, m_a->retry([&]() {
            return uct_ep_am_short(m_ab, 1, 0, nullptr, 0);
        }));
    }
};

TEST_F(test_counters, end_with_their_owner)
{
    unsigned open = num_descriptors();
    {
        entity other;
        EXPECT_EQ(3u, pages("interface").size());
        EXPECT_EQ(3u, pages("device").size());
    }
    EXPECT_EQ(2u, pages("interface").size());
    EXPECT_EQ(2u, pages("device").size());
    EXPECT_EQ(open, num_descriptors());
}

TEST_F(test_counters, leave_descriptors_of_others_alone)
{
    std::vector<int> before = descriptors();
    std::vector<int> numbers;
    struct stat null, st;

    ASSERT_EQ(0, stat("/dev/null", &null));
    {
        entity other;
        for (const page &next : pages("interface")) {
            if (std::find(before.begin(), before.end(), next.fd) ==
                before.end()) {
                numbers.push_back(next.fd);
            }
        }
        ASSERT_EQ(1u, numbers.size());
        /* The program closes what it does not know, and opens a file */
        close(numbers[0]);
        int fd = open("/dev/null", O_RDONLY);
        ASSERT_EQ(numbers[0], dup2(fd, numbers[0]));
        if (fd != numbers[0]) {
            close(fd);
        }
    }
    ASSERT_EQ(0, fstat(numbers[0], &st));
    EXPECT_EQ(null.st_rdev, st.st_rdev);
    close(numbers[0]);
}
