/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_LIMITED_GROUP_H
#define NPRDMA_LIMITED_GROUP_H

/* A real cgroup, beyond whose limit the kernel kills a process */

#include "test_monitor.h"

#include <cerrno>
#include <fstream>
#include <string>

#include <dlfcn.h>
#include <sys/wait.h>

static constexpr size_t MiB = 1u << 20;

/* A cgroup below that of the test, or the root, that may limit memory */
struct limited_group {
    explicit limited_group(size_t limit)
    {
        for (auto &version : {
                 std::pair<std::string, std::string>{
                     "/sys/fs/cgroup/memory", "memory.limit_in_bytes"},
                 std::pair<std::string, std::string>{
                     "/sys/fs/cgroup", "memory.max"} }) {
            m_path = version.first + "/nprdma-test.XXXXXX";
            if (mkdtemp(&m_path[0]) != nullptr) {
                std::ofstream file(m_path + "/" + version.second);
                if (file << limit << std::flush) {
                    return;
                }
                rmdir(m_path.c_str());
            }
        }
        m_path.clear();
    }

    ~limited_group()
    {
        if (!m_path.empty()) {
            /* Ended processes leave it a moment later */
            while ((rmdir(m_path.c_str()) != 0) && (errno == EBUSY)) {
                usleep(1000);
            }
        }
    }

    void join() const
    {
        std::ofstream file(m_path + "/cgroup.procs");
        if (!(file << getpid() << std::flush)) {
            _exit(99);
        }
    }

    std::string m_path;
};

/* Children in such a group */
class limited_test : public test_monitor {
protected:
    explicit limited_test(size_t limit) : group{limit}
    {
    }

    void SetUp() override
    {
        test_monitor::SetUp();
        for (const char *name : { "__asan_init", "__hwasan_init", "__msan_init",
                                  "__tsan_init" }) {
            if (dlsym(RTLD_DEFAULT, name) != nullptr) {
                GTEST_SKIP() << "sanitizers need more memory";
            }
        }
        if (group.m_path.empty()) {
            GTEST_SKIP() << "no memory controller here, or no right to use it";
        }
    }

    /* @return A child in the group, with a monitor of its own. It ends even if
     *         nothing gives memory back. */
    template<typename F> pid_t in_group(F func)
    {
        pid_t pid = fork();
        if (pid == 0) {
            alarm(40);
            group.join();
            _exit((nprdma_monitor_create(&params, &monitor) == UCS_OK) ?
                  func() : 98);
        }
        return pid;
    }

    static int status_of(pid_t pid)
    {
        int status = -1;
        EXPECT_EQ(pid, waitpid(pid, &status, 0));
        return status;
    }

    static char *block(size_t size)
    {
        return (char*)mmap(nullptr, size, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    }

    limited_group group;
};

#endif
