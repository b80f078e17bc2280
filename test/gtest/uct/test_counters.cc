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

    void SetUp() override
    {
        uct_buffer_test::SetUp();
        ASSERT_EQ(UCS_OK, uct_iface_set_am_handler(m_b->iface(), 1, on_am,
                                                   nullptr, 0));
    }

    static ucs_status_t on_am(void *, void *, size_t, unsigned)
    {
        return UCS_OK;
    }

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

    static uint64_t sum(const std::string &kind, const std::string &name)
    {
        uint64_t value = 0;

        for (const page &next : pages(kind)) {
            value += next.values.at(name);
        }
        return value;
    }

    void send()
    {
        ASSERT_EQ(UCS_OK, m_a->retry([&]() {
            return uct_ep_am_short(m_ab, 1, 0, nullptr, 0);
        }));
    }
};

TEST_F(test_counters, interfaces_and_devices)
{
    std::vector<page> found = pages("interface");

    ASSERT_EQ(2u, found.size());
    for (const page &next : found) {
        EXPECT_EQ(device_name() + ":1", next.header.device);
        EXPECT_EQ(uint32_t(getpid()), next.header.pid);
        EXPECT_STREQ("", next.header.mode);
        for (const auto &value : next.values) {
            m_a->counter(value.first); /* Fails if there is none */
        }
        EXPECT_EQ(sizeof(uct_nprdma_stats_t) / sizeof(uint64_t),
                  next.values.size());
    }

    found = pages("device");
    ASSERT_EQ(2u, found.size());
    for (const page &next : found) {
        EXPECT_EQ(device_name(), next.header.device);
        EXPECT_EQ(uint32_t(getpid()), next.header.pid);
        EXPECT_STRNE("", next.header.mode);
        EXPECT_LT(0u, next.values.at("pinned_bytes"));
    }
}

TEST_F(test_counters, follow_at_once)
{
    uint64_t sent       = sum("interface", "am_short_tx");
    uint64_t registered = sum("device", "registered_bytes");
    uint64_t peak       = sum("device", "registered_peak");

    for (unsigned i = 1; i <= 5; ++i) {
        send();
        EXPECT_EQ(sent + i, sum("interface", "am_short_tx"));
    }
    EXPECT_EQ(2 * m_length, registered);
    {
        buffer more(m_a->md(), 3 * m_length);
        EXPECT_EQ(registered + (3 * m_length),
                  sum("device", "registered_bytes"));
    }
    EXPECT_EQ(registered, sum("device", "registered_bytes"));
    EXPECT_EQ(peak + (3 * m_length), sum("device", "registered_peak"));
}

TEST_F(test_counters, same_values_as_the_virtual_file_system)
{
    completion comp;
    uct_iov_t iov = {m_local->ptr(), m_length, m_local->memh(), 0, 1};

    ASSERT_EQ(UCS_INPROGRESS, m_a->retry([&]() {
        return uct_ep_put_zcopy(m_ab, &iov, 1, m_remote->address(), m_rkey,
                                &comp);
    }));
    m_a->wait([&]() { return comp.done; });
    m_a->flush(m_ab);
    for (const char *name : {"put", "put_bytes", "nic_put", "nic_slices",
                             "cm_connected"}) {
        EXPECT_EQ(m_a->counter(name) + m_b->counter(name),
                  sum("interface", name)) << name;
    }
    EXPECT_EQ(1u, sum("interface", "put"));
}

TEST_F(test_counters, are_not_a_childs)
{
    uint64_t registered = sum("device", "registered_bytes");
    uct_mem_h memh;
    uint64_t sent;
    int status;

    send();
    sent = sum("interface", "am_short_tx");
    pid_t child = fork();
    if (child == 0) {
        std::ifstream maps("/proc/self/maps");
        std::string line;
        int is_shared = 0;

        while (std::getline(maps, line)) {
            is_shared |= (line.find(NPRDMA_COUNTERS_FILE) !=
                          std::string::npos);
        }
        /* What the child has inherited can still be used in some ways */
        complaints quiet;
        uct_ep_am_short(m_ab, 1, 0, nullptr, 0);
        uct_md_mem_reg(m_a->md(), m_local->ptr(), m_length, 0, &memh);
        _exit(is_shared);
    }
    ASSERT_EQ(child, waitpid(child, &status, 0));
    EXPECT_EQ(0, status);
    EXPECT_EQ(registered, sum("device", "registered_bytes"));
    EXPECT_EQ(sent, sum("interface", "am_short_tx"));
    send();
    EXPECT_EQ(sent + 1, sum("interface", "am_short_tx"));
}

TEST_F(test_counters, keep_their_size)
{
    std::vector<int> found = descriptors();

    ASSERT_FALSE(found.empty());
    for (int fd : found) {
        EXPECT_EQ(-1, ftruncate(fd, 0));
        EXPECT_EQ(EPERM, errno);
    }
    send();
}

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
