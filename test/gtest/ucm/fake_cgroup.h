/* Copyright (c) 2026 The nprdma authors. SPDX-License-Identifier: BSD-3-Clause */

#ifndef NPRDMA_FAKE_CGROUP_H
#define NPRDMA_FAKE_CGROUP_H

#include <ucm/events/nprdma_pressure.h>

#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <sstream>
#include <string>

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* Folders in place of /proc and /sys/fs/cgroup, in which a process is in the
 * cgroup /job/step. The thread of nprdma_pressure.h looks there, often. */
class fake_cgroup {
protected:
    static constexpr const char *trigger = "some 100000 2000000";

    fake_cgroup()
    {
        char name[] = "/tmp/test_pressure.XXXXXX";

        EXPECT_NE(nullptr, mkdtemp(name));
        m_root   = name;
        m_proc   = m_root + "/proc";
        m_cgroup = m_root + "/cgroup";
        folder(m_proc);
        folder(m_proc + "/self");
        folder(m_cgroup);
        m_params.psi             = {m_proc.c_str(), m_cgroup.c_str(), trigger};
        m_params.sample_seconds  = 0.01;
        m_params.holdoff_seconds = 0.01;
        nprdma_pressure_set_params(&m_params);
    }

    ~fake_cgroup()
    {
        nprdma_pressure_set_params(nullptr);
        nftw(m_root.c_str(), remove_one, 16, FTW_DEPTH | FTW_PHYS);
    }

    static int remove_one(const char *path, const struct stat *, int,
                          struct FTW *)
    {
        return remove(path);
    }

    static void folder(const std::string &path)
    {
        ASSERT_EQ(0, mkdir(path.c_str(), 0700)) << path;
    }

    static void put(const std::string &path, const std::string &text)
    {
        int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);

        ASSERT_GE(fd, 0) << path;
        EXPECT_EQ((ssize_t)text.size(), write(fd, text.data(), text.size()));
        close(fd);
    }

    static std::string get(const std::string &path)
    {
        std::stringstream text;

        text << std::ifstream(path).rdbuf();
        return text.str();
    }

    /* cgroup v2 alone, with usage far below the limits */
    void make_v2(const std::string &group = "/job/step")
    {
        put(m_cgroup + "/cgroup.controllers", "memory\n");
        put(m_proc + "/self/cgroup", "0::" + group + "\n");
        folder(m_cgroup + "/job");
        folder(m_cgroup + "/job/step");
        for (const char *name : {"/job", "/job/step"}) {
            put(m_cgroup + name + "/memory.current", "1000\n");
            put(m_cgroup + name + "/memory.high", "max\n");
            put(m_cgroup + name + "/memory.max", "max\n");
        }
    }

    void make_v1()
    {
        put(m_proc + "/self/cgroup",
            "12:cpu,cpuacct:/\n5:memory:/job/step\n0::/\n");
        folder(m_cgroup + "/memory");
        folder(m_cgroup + "/memory/job");
        folder(m_cgroup + "/memory/job/step");
        for (const char *name : {"/memory/job", "/memory/job/step"}) {
            put(m_cgroup + name + "/memory.usage_in_bytes", "1000\n");
            put(m_cgroup + name + "/memory.soft_limit_in_bytes",
                "9223372036854771712\n");
            put(m_cgroup + name + "/memory.limit_in_bytes",
                "9223372036854771712\n");
        }
    }

    void put_step(const std::string &name, const std::string &text)
    {
        put(m_cgroup + "/job/step/" + name, text);
    }

    void put_events(unsigned low, unsigned high, unsigned max)
    {
        put_step("memory.events", "low " + std::to_string(low) + "\nhigh " +
                 std::to_string(high) + "\nmax " + std::to_string(max) +
                 "\noom 0\noom_kill 0\n");
    }

    std::string m_root, m_proc, m_cgroup;
    nprdma_pressure_params_t m_params;
};


static inline void wait_for(const std::function<bool()> &condition)
{
    while (!condition()) {
        usleep(1000);
    }
}

/* Of the thread, as /proc has it, or empty if there is none */
static inline std::string thread_file(const char *name)
{
    std::string text;
    DIR *tasks = opendir("/proc/self/task");

    while (struct dirent *entry = readdir(tasks)) {
        std::string task = std::string("/proc/self/task/") + entry->d_name;
        std::string comm;
        std::getline(std::ifstream(task + "/comm"), comm);
        if (comm == "nprdma-pressure") {
            std::getline(std::ifstream(task + "/" + name), text, '\0');
        }
    }
    closedir(tasks);
    return text;
}

/* @return Exit code of a child that calls the function, which is killed if it
 *         hangs */
static inline int in_child(const std::function<int()> &func)
{
    int status = -1;
    pid_t pid  = fork();

    if (pid == 0) {
        alarm(60);
        _exit(func());
    }
    EXPECT_EQ(pid, waitpid(pid, &status, 0));
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

#endif
